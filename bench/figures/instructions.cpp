// SPDX-License-Identifier: BSD-3-Clause
// What a completion costs beyond the poll and the handler, counted, not timed.
#include <filesystem>
#include <string>
#include <utility>

#include "../stepped/profile.hpp"
#include "figures.hpp"

namespace sluice::bench {
namespace {

Status run_instructions(Bench& bench) {
  const std::string program =
      std::filesystem::canonical("/proc/self/exe").replace_filename("sluice-bench-stepped");
  for (const std::string order : {"none", "per_connection"}) {
    if (!bench.wanted("instructions." + order) && !bench.wanted("rmw." + order)) continue;
    const auto cost = count_stepped(program, {.order = order});
    if (!cost) return cost.status();
    bench.add("instructions." + order, cost->instructions);
    bench.add("rmw." + order, cost->locked);
  }
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

}  // namespace sluice::bench
