// SPDX-License-Identifier: BSD-3-Clause
// sluice-bench: measures what it is asked for and prints a table. Data on stdout, talk on stderr.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "figures/figures.hpp"
#include "harness/machine.hpp"
#include "harness/options.hpp"
#include "harness/recorded.hpp"
#include "harness/report.hpp"
#include "harness/threads.hpp"
#include "replication/replication.hpp"

namespace sluice::bench {
namespace {

FigureGroup once(FigureGroup group) {
  group.once = true;
  return group;
}

/// Every group, in the order of the table.
std::vector<FigureGroup> all_groups() {
  return {
      handoff_none(1),
      handoff_none(2),
      handoff_thread_per_cq(),
      handoff_single(),
      handoff_per_connection(1, 1.3),
      handoff_per_connection(8, 2.0),
      handoff_per_connection(64, 4.0),
      handoff_dpdk(),
      skew(),
      path(),
      latency_oneway(),
      latency_cold(),
      many_sources(),
      once(idle()),
      once(waiting()),
      waiting_live(),
#ifndef SLUICE_BENCH_SANITIZED
      // By programs of their own.
      once(softrdma_idle()),
      softrdma_echo(),
      once(instructions()),
      once(allocations()),
      once(replication()),
#endif
  };
}

sluice::Status add_traces(const std::vector<std::string>& paths, std::vector<FigureGroup>& groups) {
  for (const std::string& path : paths) {
    auto trace = read_trace(path);
    if (!trace.ok()) return trace.status();
    for (const FigureGroup& group : groups) {
      if (group.name == trace->name) {
        return {StatusCode::invalid_argument,
                "--trace: a second file would be called " + trace->name + ": '" + path + "'"};
      }
    }
    groups.push_back(once(waiting_recorded(std::move(*trace))));
  }
  return {};
}

/// Takes out what cannot be measured here, and says so; fails when --only asks for it.
Status leave_out(std::vector<FigureGroup>& groups, const Settings& settings) {
  for (const FigureGroup& group : groups) {
    if (group.left_out.empty()) continue;
    const bool asked =
        std::any_of(group.figures.begin(), group.figures.end(), [&](const FigureInfo& figure) {
          return std::any_of(settings.only.begin(), settings.only.end(),
                             [&](const auto& name) { return figure.name.starts_with(name); });
        });
    if (asked)
      return {StatusCode::not_supported,
              fmt::format("{} cannot be measured: {}", group.name, group.left_out)};
    if (settings.only.empty())
      fmt::print(stderr, "sluice-bench: {} is LEFT OUT: {}\n", group.name, group.left_out);
  }
  std::erase_if(groups, [](const FigureGroup& group) { return !group.left_out.empty(); });
  return {};
}

void print_list(const std::vector<FigureGroup>& groups, const Bench& asked) {
  for (const FigureGroup& group : groups) {
    for (const FigureInfo& figure : group.figures) {
      if (asked.wanted(figure.name)) fmt::print("{}\n", figure.name);
    }
  }
}

Status run_group(const FigureGroup& group, Bench& bench) {
  if (std::none_of(group.figures.begin(), group.figures.end(),
                   [&](const FigureInfo& figure) { return bench.wanted(figure.name); })) {
    return {};
  }
  fmt::print(stderr, "sluice-bench: {} ...\n", group.name);
  SLUICE_RETURN_IF_ERROR(group.run(bench).with_context(group.name));
  const std::vector<std::string> missing = bench.missing(group.figures);
  SLUICE_CHECK(missing.empty(), group.name + " did not measure " + missing.front());
  return {};
}

int run(const Options& options, std::vector<FigureGroup> groups) {
  const auto fail = [](const Status& status) {
    fmt::print(stderr, "sluice-bench: {}\n", status.to_string());
    return 1;
  };
  if (const Status status = leave_out(groups, options.settings); !status.ok()) return fail(status);
  const auto cpus = bench_cpus();
  if (!cpus.ok()) return fail(cpus.status());
  Bench bench(options.settings, *cpus);
  if (options.list) {
    print_list(groups, bench);
    return 0;
  }
  if (!options.json.empty()) {  // an empty file now rather than a failure after all the measuring
    if (const Status status = write_empty(options.json); !status.ok()) return fail(status);
  }
  const Facts machine = machine_facts();
  for (const FigureGroup& group : groups) bench.declare(group.figures);
  for (unsigned pass = 0; pass < bench.passes(); ++pass) {
    bench.begin_pass();
    if (pass > 0) fmt::print(stderr, "sluice-bench: pass {} of {}\n", pass + 1, bench.passes());
    for (const FigureGroup& group : groups) {
      if (pass > 0 && group.once) continue;
      if (const Status status = run_group(group, bench); !status.ok()) return fail(status);
    }
  }
  fmt::print("{}", table(machine, bench.results()));
  if (bench.quick()) fmt::print("a smoke run (--quick): these numbers mean nothing\n");
  if (std::fflush(stdout) != 0) return fail({StatusCode::io_error, "could not write to stdout"});
  if (!options.json.empty()) {
    const Status status = write_json(options.json, machine, bench.quick(), bench.results());
    if (!status.ok()) return fail(status);
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  std::vector<FigureGroup> groups = all_groups();
  const Parsed parsed = parse_options(argc, argv, groups);
  if (!parsed.options) return parsed.exit_code;
  if (const auto status = add_traces(parsed.options->traces, groups); !status.ok()) {
    fmt::print(stderr, "sluice-bench: {}\n", status.message());
    return kBadUsage;
  }
  return run(*parsed.options, std::move(groups));
}
