// SPDX-License-Identifier: BSD-3-Clause
// Waiting in virtual time, over somebody who knows each gap.
#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../harness/rounds.hpp"
#include "../waiting/traces.hpp"
#include "figures.hpp"

namespace sluice::bench {
namespace {

/// The controller's parameters were fixed before these were drawn.
constexpr std::uint64_t kFirstSeed = 1001;
constexpr std::uint32_t kGaps = 20000, kQuickGaps = 500;

std::string name_of(const std::string& trace) {
  return "waiting." + trace + ".vs_clairvoyant";
}

Status run_waiting(Bench& bench) {
  std::map<std::string, std::vector<double>> values;
  for (unsigned round = 0; round < bench.rounds(); ++round) {
    const WaitingRatios ratios =
        simulate_waiting(kFirstSeed + round, bench.quick() ? kQuickGaps : kGaps);
    for (const auto& [trace, ratio] : ratios.traces) values[name_of(trace)].push_back(ratio);
    for (const auto& [trace, ratio] : ratios.adversaries) values[name_of(trace)].push_back(ratio);
    values["waiting.geomean"].push_back(ratios.geomean);
    values["waiting.worst"].push_back(ratios.worst);
    values["waiting.decision_ns"].push_back(ratios.ns_per_decision);
  }
  for (auto& [name, of_seeds] : values) bench.add(name, spread_of(std::move(of_seeds)));
  return {};
}

Status run_recorded(Bench& bench, const RecordedTrace& trace) {
  std::map<std::string, std::vector<double>> values;
  for (unsigned round = 0; round < bench.rounds(); ++round) {
    const RecordedRatios ratios = play_recorded(trace.gaps_ns, kFirstSeed + round);
    values[".vs_clairvoyant"].push_back(ratios.adaptive);
    values[".busy.vs_clairvoyant"].push_back(ratios.busy);
    values[".event.vs_clairvoyant"].push_back(ratios.event);
    values[".slept_percent"].push_back(ratios.slept_percent);
  }
  for (auto& [suffix, of_seeds] : values) {
    Value value = spread_of(std::move(of_seeds));
    if (suffix == ".vs_clairvoyant") value.note = fmt::format("{} gaps", trace.gaps_ns.size());
    bench.add(trace.name + suffix, std::move(value));
  }
  return {};
}

}  // namespace

FigureGroup waiting_recorded(RecordedTrace trace) {
  const std::string name = trace.name;
  FigureGroup group{name,
                    {{name + ".vs_clairvoyant", "x", {}},
                     {name + ".busy.vs_clairvoyant", "x", {}},
                     {name + ".event.vs_clairvoyant", "x", {}},
                     {name + ".slept_percent", "percent", {}}},
                    {}};
  group.run = [trace = std::move(trace)](Bench& bench) { return run_recorded(bench, trace); };
  return group;
}

FigureGroup waiting() {
  FigureGroup group{"waiting",
                    {{"waiting.geomean", "x", at_most(1.17)},
                     {"waiting.worst", "x", at_most(1.7)},
                     {"waiting.decision_ns", "ns", {}}},
                    run_waiting};
  // The names of the traces come with them.
  const WaitingRatios names = simulate_waiting(kFirstSeed, 1);
  for (const auto* traces : {&names.traces, &names.adversaries}) {
    for (const auto& [trace, ratio] : *traces) group.figures.push_back({name_of(trace), "x", {}});
  }
  return group;
}

}  // namespace sluice::bench
