// SPDX-License-Identifier: BSD-3-Clause
// Waiting in virtual time: `waiting_traces [FIRST_SEED [SEEDS]]` prints the medians over the seeds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "traces.hpp"

int main(int argc, char** argv) {
  const auto first = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1001ULL;
  const auto seeds = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 9ULL;
  if (seeds == 0) return 2;
  std::map<std::string, std::vector<double>> figures;
  for (auto seed = first; seed < first + seeds; ++seed) {
    const auto ratios = sluice::bench::simulate_waiting(seed);
    for (const auto& [name, ratio] : ratios.traces) figures[name].push_back(ratio);
    for (const auto& [name, ratio] : ratios.adversaries) figures[name].push_back(ratio);
    figures["~geomean"].push_back(ratios.geomean);
    figures["~worst"].push_back(ratios.worst);
    figures["~ns_per_decision"].push_back(ratios.ns_per_decision);
  }
  for (auto& [name, values] : figures) {
    std::sort(values.begin(), values.end());
    std::printf("%-24s %8.3f  (%.3f .. %.3f)\n", name.c_str(), values[values.size() / 2],
                values.front(), values.back());
  }
  return 0;
}
