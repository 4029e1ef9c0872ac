// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "../harness/instant_source.hpp"
#include "../harness/rounds.hpp"
#include "figures.hpp"
#include "floor.hpp"
#include "ours.hpp"
#include "workload.hpp"

namespace sluice::bench {
namespace {

Status run_none(Bench& bench) {
  auto ours = Ours::make(bench, {});
  if (!ours.ok()) return ours.status();
  Floor floor(bench, of_connections(1), kBatch, kBufferCount);
  const auto rounds = measure(bench, {floor.contender(), (*ours)->contender("ours")});
  if (!rounds.ok()) return rounds.status();
  return add_ratio(bench, "handoff.none.vs_floor", *rounds, "ours", "floor");
}

Status run_single(Bench& bench) {
  auto ours = Ours::make(bench, {.batch = 1});
  if (!ours.ok()) return ours.status();
  Floor floor(bench, of_connections(1, 1), 1, kBufferCount);
  const auto rounds = measure(bench, {floor.contender(), (*ours)->contender("ours")});
  if (!rounds.ok()) return rounds.status();
  return add_ratio(bench, "handoff.single.vs_floor", *rounds, "ours", "floor");
}

constexpr std::uint32_t kInFlight[] = {1, 4, 32};  ///< batches
constexpr std::uint32_t kInFlightOfGoal = 4;

Status run_per_connection(Bench& bench, std::uint32_t connections) {
  std::vector<std::unique_ptr<Ours>> ours;
  std::vector<std::unique_ptr<Floor>> floors;
  std::vector<Contender> contenders;
  for (const std::uint32_t batches : kInFlight) {
    auto made = Ours::make(bench, {.order = Order::per_connection,
                                   .connections = connections,
                                   .in_flight_max = batches * kBatch,
                                   .pattern = of_connections(connections)});
    if (!made.ok()) return made.status();
    ours.push_back(std::move(*made));
    floors.push_back(std::make_unique<Floor>(bench, of_connections(connections), kBatch, batches));
    contenders.push_back(floors.back()->contender(fmt::format("floor.f{}", batches)));
    contenders.push_back(ours.back()->contender(fmt::format("ours.f{}", batches)));
  }
  const auto rounds = measure(bench, contenders);
  if (!rounds.ok()) return rounds.status();
  const std::string prefix = fmt::format("handoff.per_connection.c{}", connections);
  for (const std::uint32_t batches : kInFlight) {
    const std::string over = fmt::format("ours.f{}", batches);
    const std::string under = fmt::format("floor.f{}", batches);
    if (batches == kInFlightOfGoal) {
      SLUICE_RETURN_IF_ERROR(add_ratio(bench, prefix + ".vs_floor", *rounds, over, under));
    }
    SLUICE_RETURN_IF_ERROR(
        add_ratio(bench, fmt::format("{}.f{}.vs_floor", prefix, batches), *rounds, over, under));
  }
  return {};
}

}  // namespace

FigureGroup handoff_none() {
  return {"handoff.none", {{"handoff.none.vs_floor", "x", at_most(1.10)}}, run_none};
}

FigureGroup handoff_single() {
  return {"handoff.single", {{"handoff.single.vs_floor", "x", at_most(2.0)}}, run_single};
}

FigureGroup handoff_per_connection(std::uint32_t connections, double goal) {
  const std::string name = fmt::format("handoff.per_connection.c{}", connections);
  FigureGroup group{name, {{name + ".vs_floor", "x", at_most(goal)}}, {}};
  for (const std::uint32_t batches : kInFlight) {
    group.figures.push_back({fmt::format("{}.f{}.vs_floor", name, batches), "x", std::nullopt});
  }
  group.run = [connections](Bench& bench) { return run_per_connection(bench, connections); };
  return group;
}

}  // namespace sluice::bench
