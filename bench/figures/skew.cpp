// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "../harness/rounds.hpp"
#include "../harness/threads.hpp"
#include "figures.hpp"
#include "ours.hpp"
#include "workload.hpp"

namespace sluice::bench {
namespace {

constexpr std::uint32_t kConnections = 64;
constexpr std::uint32_t kHotOfTen = 9;  ///< completions of ten that are the hot connection's
constexpr double kHandlerNs = 1000;

/// Work that takes the same number of instructions each time, whatever the clock says meanwhile.
class BusyWork {
 public:
  explicit BusyWork(double ns) {
    constexpr std::uint64_t kProbe = 1 << 16;
    constexpr int kTries = 9;
    double fastest = 0;
    for (int i = 0; i < kTries; ++i) {  // the fastest is the one that was not disturbed
      const double start = now_ns();
      spin(kProbe);
      const double took = now_ns() - start;
      fastest = i == 0 ? took : std::min(fastest, took);
    }
    steps_ = std::max<std::uint64_t>(
        1, static_cast<std::uint64_t>(ns * static_cast<double>(kProbe) / std::max(fastest, 1.0)));
  }
  void once() const noexcept { spin(steps_); }

 private:
  static void spin(std::uint64_t steps) noexcept {
    std::uint64_t value = steps;
    for (std::uint64_t i = 0; i < steps; ++i) {
      value = value * 6364136223846793005ULL + 1442695040888963407ULL;
      asm volatile("" : "+r"(value));  // each step waits for the one before, and none is left out
    }
  }
  std::uint64_t steps_ = 1;
};

/// 90 % of queue pair 1, the rest of the others in turn, shuffled the same way in every run.
std::vector<ibv_wc> skewed() {
  constexpr std::size_t kLength = 20 * kBatch;
  std::vector<std::uint32_t> numbers(kLength, 1);
  constexpr std::size_t kCold = kLength * (10 - kHotOfTen) / 10;
  for (std::size_t i = 0; i < kCold; ++i) {
    numbers[i] = static_cast<std::uint32_t>(2 + i % (kConnections - 1));
  }
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(1));  // NOLINT: the same on purpose
  return receives(kLength, [&](std::size_t i) { return numbers[i]; });
}

/// The hot connection's handler calls, one after the other and nothing else: no dispatcher that
/// keeps its order can be faster.
Contender serial_bound(const Bench& bench, const BusyWork& work) {
  return {"bound", [&bench, &work](std::uint64_t units) {
            const Role role{bench.cpu(0), [&work, units] {
                              const std::uint64_t hot = units * kHotOfTen / 10;
                              for (std::uint64_t i = 0; i < hot; ++i) work.once();
                            }};
            return run_pinned({&role, 1});
          }};
}

Status run_skew(Bench& bench) {
  const BusyWork work(kHandlerNs);
  // On two cores: one thread runs a worker, the other one the poller and the second worker.
  auto ours = Ours::make(bench, {.workers = 2,
                                 .order = Order::per_connection,
                                 .connections = kConnections,
                                 .check_order = true,
                                 .pattern = skewed(),
                                 .poller_beside_worker = true,
                                 .work = [&work] { work.once(); }});
  if (!ours.ok()) return ours.status();
  const auto rounds =
      measure(bench, {serial_bound(bench, work), (*ours)->contender("ours")}, {.pingpong = false});
  if (!rounds.ok()) return rounds.status();
  // Throughput over throughput: time under time.
  return add_ratio(bench, "skew.vs_bound", *rounds, "bound", "ours");
}

}  // namespace

FigureGroup skew() {
  return {"skew", {{"skew.vs_bound", "x", at_least(0.9)}}, run_skew};
}

}  // namespace sluice::bench
