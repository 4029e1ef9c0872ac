// SPDX-License-Identifier: BSD-3-Clause
// Waiting on real threads and descriptors: what each wait mode costs at three rates.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../harness/cpu_time.hpp"
#include "../harness/rounds.hpp"
#include "figures.hpp"
#include "samples.hpp"
#include "sluice/dispatch/dispatcher.hpp"
#include "sources.hpp"

namespace sluice::bench {
namespace {

struct Rate {
  const char* name;
  double per_second;
};
constexpr std::array<Rate, 3> kRates = {Rate{"1k", 1e3}, Rate{"10k", 1e4}, Rate{"100k", 1e5}};
constexpr std::array kModes = {WaitMode::busy, WaitMode::event, WaitMode::adaptive};
/// How long one mode runs at one rate in a round, beside what it is warmed up with.
constexpr double kSeconds = 0.5;
constexpr double kQuickSeconds = 0.02;
/// Of the completions, before anything is counted.
constexpr double kWarmUpShare = 0.2;
/// The thread that completes sleeps until so long before it is time, then looks at the clock.
constexpr std::chrono::microseconds kAwakeBefore{150};

/// What one completion cost.
struct Cost {
  double cpu_ns = 0;  ///< of all threads but the one that completes
  double mean_ns = 0;
  double p50_ns = 0;
  double p99_ns = 0;
  [[nodiscard]] double total_ns() const noexcept { return cpu_ns + mean_ns; }
};

/// Completes at the times of a Poisson process; late ones at once, so that the rate stays.
class PoissonTimes {
 public:
  PoissonTimes(double per_second, std::uint64_t seed)
      : engine_(seed), gap_(per_second), begin_ns_(now_ns()) {}
  void await_next() {
    at_ns_ += gap_(engine_) * 1e9;
    const double due = begin_ns_ + at_ns_;
    const double asleep_until =
        due - static_cast<double>(std::chrono::nanoseconds(kAwakeBefore).count());
    if (now_ns() < asleep_until) {
      constexpr double kSecond = 1e9;
      const timespec time{static_cast<time_t>(asleep_until / kSecond),
                          static_cast<long>(std::fmod(asleep_until, kSecond))};
      ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr);
    }
    while (now_ns() < due) cpu_relax();
  }

 private:
  std::mt19937_64 engine_;
  std::exponential_distribution<double> gap_;  ///< in seconds
  const double begin_ns_;
  double at_ns_ = 0;
};

/// The handler runs on the poller, so that nothing but the poller's waiting is seen.
Result<Cost> run_mode(const Bench& bench, WaitMode mode, const Rate& rate, std::uint64_t seed) {
  const double seconds = bench.quick() ? kQuickSeconds : kSeconds;
  const auto count = std::max<std::uint64_t>(static_cast<std::uint64_t>(rate.per_second * seconds),
                                             bench.quick() ? 8 : 100);
  const auto warm_up = static_cast<std::uint64_t>(static_cast<double>(count) * kWarmUpShare);
  DispatcherConfig config;
  config.pollers[0].wait = mode;
  config.pollers[0].cpus = {bench.cpu(0)};
  config.pollers[0].sources_max = 1;
  config.connections_max = 1;
  auto source = std::make_shared<EventSource>(4096);
  if (!source->usable()) return Status(StatusCode::resource_exhausted, "no eventfd", errno);
  Samples samples(warm_up, count);
  auto dispatcher = Dispatcher::start(std::move(config));
  if (!dispatcher) return dispatcher.status();
  auto attached = (*dispatcher)
                      ->attach(source, {.order = Order::inlined},
                               [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                 const std::uint64_t now = stamp();
                                 for (const ibv_wc& wc : batch) samples.add(wc.wr_id, now);
                               });
  if (!attached) return attached.status();
  double cpu_ns = 0;
  const std::array<Role, 1> roles = {Role{bench.cpu(1), [&] {
                                            PoissonTimes times(rate.per_second, seed);
                                            const auto complete = [&](std::uint64_t completions) {
                                              for (std::uint64_t i = 0; i < completions; ++i) {
                                                times.await_next();
                                                while (!source->complete()) cpu_relax();
                                              }
                                            };
                                            const auto others = [] {
                                              return 1e9 * (cpu_seconds(RUSAGE_SELF) -
                                                            cpu_seconds(RUSAGE_THREAD));
                                            };
                                            complete(warm_up);
                                            const double before = others();
                                            complete(count);
                                            cpu_ns = others() - before;
                                          }}};
  const auto timing = run_pinned(roles);
  if (!timing) return timing.status();
  samples.await_all();
  SLUICE_RETURN_IF_ERROR((*dispatcher)->stop(std::chrono::seconds(5)));
  return Cost{cpu_ns / static_cast<double>(count), samples.mean_ns(), samples.quantile_ns(0.5),
              samples.quantile_ns(0.99)};
}

std::string prefix_of(const Rate& rate) {
  return std::string("waiting.live.") + rate.name;
}

Status run_rate(Bench& bench, const Rate& rate) {
  const std::string prefix = prefix_of(rate);
  if (!bench.any_wanted(prefix + '.')) return {};
  std::array<std::vector<Cost>, kModes.size()> costs;
  for (unsigned round = 0; round < bench.rounds(); ++round) {
    for (std::size_t i = 0; i < kModes.size(); ++i) {
      const std::size_t at = (round + i) % kModes.size();
      const auto cost = run_mode(bench, kModes[at], rate, 1 + round);
      if (!cost) return cost.status();
      costs[at].push_back(*cost);
    }
  }
  for (std::size_t mode = 0; mode < kModes.size(); ++mode) {
    const auto of = [&](double Cost::*value) {
      std::vector<double> values;
      for (const Cost& cost : costs[mode]) values.push_back(cost.*value);
      return scaled(spread_of(std::move(values)), 1e-3);
    };
    const std::string name = prefix + "." + to_string(kModes[mode]);
    bench.add(name + ".cpu", of(&Cost::cpu_ns));
    bench.add(name + ".p50_us", of(&Cost::p50_ns));
    bench.add(name + ".p99_us", of(&Cost::p99_ns));
  }
  // CPU time and added latency weigh the same; the better of the others is each round's.
  std::vector<double> ratios;
  for (std::size_t round = 0; round < costs[0].size(); ++round) {
    ratios.push_back(costs[2][round].total_ns() /
                     std::min(costs[0][round].total_ns(), costs[1][round].total_ns()));
  }
  bench.add(prefix + ".adaptive.vs_best", spread_of(std::move(ratios)));
  return {};
}

}  // namespace

FigureGroup waiting_live() {
  FigureGroup group{"waiting.live", {}, [](Bench& bench) -> Status {
                      for (const Rate& rate : kRates) SLUICE_RETURN_IF_ERROR(run_rate(bench, rate));
                      return {};
                    }};
  for (const Rate& rate : kRates) {
    group.figures.push_back({prefix_of(rate) + ".adaptive.vs_best", "x", at_most(1.15)});
    for (const WaitMode mode : kModes) {
      const std::string name = prefix_of(rate) + "." + to_string(mode);
      group.figures.push_back({name + ".cpu", "us/compl.", {}});
      group.figures.push_back({name + ".p50_us", "us", {}});
      group.figures.push_back({name + ".p99_us", "us", {}});
    }
  }
  return group;
}

}  // namespace sluice::bench
