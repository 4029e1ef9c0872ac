// SPDX-License-Identifier: BSD-3-Clause
// sluice-bench-count ORDER [CONNECTIONS [BATCH [WORKERS]]]: what `instructions.*` and `rmw.*` are
// made of.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "profile.hpp"

namespace {

constexpr std::size_t kShown = 25;

void print(const char* title, const std::vector<sluice::bench::SteppedCost::Share>& shares) {
  std::printf("\n%12s %8s  %s\n", "instructions", "locked", title);
  for (std::size_t i = 0; i < shares.size() && i < kShown; ++i) {
    std::printf("%12.3f %8.3f  %s\n", shares[i].instructions, shares[i].locked,
                shares[i].where.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 5) {
    std::fputs(
        "usage: sluice-bench-count ORDER [CONNECTIONS [BATCH [WORKERS]]]\n"
        "Steps a poller and a worker under callgrind; prints per completion, beyond the source's\n"
        "poll and the handler, what each function and source line executes.\n",
        stderr);
    return 2;
  }
  sluice::bench::SteppedWorkload workload;
  workload.order = argv[1];
  if (argc > 2) workload.connections = static_cast<std::uint32_t>(std::atoi(argv[2]));
  if (argc > 3) workload.batch = static_cast<std::uint32_t>(std::atoi(argv[3]));
  if (argc > 4) workload.workers = static_cast<std::uint32_t>(std::atoi(argv[4]));
  const std::string program =
      std::filesystem::canonical("/proc/self/exe").replace_filename("sluice-bench-stepped");
  const auto cost = sluice::bench::count_stepped(program, workload);
  if (!cost) {
    std::fprintf(stderr, "sluice-bench-count: %s\n", cost.status().to_string().c_str());
    return 1;
  }
  std::printf(
      "%s, %u connections, batches of %u, %u workers: %.2f instructions, %.3f of them locked, per "
      "completion\n",
      workload.order.c_str(), workload.connections, workload.batch, workload.workers,
      cost->instructions, cost->locked);
  print("function, without what it calls", cost->functions);
  print("source line", cost->lines);
  return 0;
}
