// SPDX-License-Identifier: BSD-3-Clause
// What a completion costs beyond the poll and the handler, counted, not timed.
#include <string>
#include <utility>

#include "../stepped/profile.hpp"
#include "figures.hpp"
#include "programs.hpp"

namespace sluice::bench {
namespace {

Status run_instructions(Bench& bench) {
  const std::string program = program_path("sluice-bench-stepped");
  // A pool of one worker needs no lanes to keep order; with two there are lanes.
  const SteppedWorkload lanes{.order = "per_connection", .workers = 2};
  const std::pair<std::string, SteppedWorkload> workloads[] = {
      {"none", {.order = "none"}},
      {"per_connection", {.order = "per_connection"}},
      {"per_connection_lanes", lanes}};
  for (const auto& [name, workload] : workloads) {
    if (!bench.wanted("instructions." + name) && !bench.wanted("rmw." + name)) continue;
    const auto cost = count_stepped(program, workload);
    if (!cost) return cost.status();
    bench.add("instructions." + name, cost->instructions);
    bench.add("rmw." + name, cost->locked);
  }
  return {};
}

Status run_allocations(Bench& bench) {
  const auto numbers =
      run_program("", "sluice-bench-allocations", bench.quick() ? "1000" : "100000");
  if (!numbers) return numbers.status();
  bench.add("allocations", numbers->at("allocations"));
  return {};
}

}  // namespace

FigureGroup instructions() {
  return {"instructions",
          {{"instructions.none", "instructions", at_most(8)},
           {"instructions.per_connection", "instructions", at_most(45)},
           {"instructions.per_connection_lanes", "instructions", {}},
           {"rmw.none", "locked", at_most(0.2)},
           {"rmw.per_connection", "locked", at_most(1)},
           {"rmw.per_connection_lanes", "locked", {}}},
          run_instructions};
}

FigureGroup allocations() {
  return {"allocations", {{"allocations", "", at_most(0)}}, run_allocations};
}

}  // namespace sluice::bench
