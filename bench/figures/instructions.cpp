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
  for (const std::string order : {"none", "per_connection"}) {
    if (!bench.wanted("instructions." + order) && !bench.wanted("rmw." + order)) continue;
    const auto cost = count_stepped(program, {.order = order});
    if (!cost) return cost.status();
    bench.add("instructions." + order, cost->instructions);
    bench.add("rmw." + order, cost->locked);
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
           {"rmw.none", "locked", at_most(0.2)},
           {"rmw.per_connection", "locked", at_most(1)}},
          run_instructions};
}

FigureGroup allocations() {
  return {"allocations", {{"allocations", "", at_most(0)}}, run_allocations};
}

}  // namespace sluice::bench
