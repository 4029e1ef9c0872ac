// SPDX-License-Identifier: BSD-3-Clause
#include "traces.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "sluice/dispatch/wait_controller.hpp"

namespace sluice::bench {
namespace {

/// A wake, as this simulated machine has it: the controller starts with another idea of it.
constexpr double kLatencyNs = 22'000;
constexpr double kOverheadNs = 8'000;
constexpr double kWakeNs = kLatencyNs + kOverheadNs;
/// Of a wake's latency: the median is kLatencyNs, every tenth is more than 1.5 times that.
constexpr double kLatencySigma = 0.3;
/// Gaps between two measured wakes.
constexpr std::uint32_t kMeasureEvery = 1000;

using Random = std::mt19937_64;

double uniform(Random& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}
double exponential(Random& random, double mean) {
  return -mean * std::log1p(-uniform(random));
}
double normal(Random& random) {
  return std::sqrt(-2 * std::log1p(-uniform(random))) *
         std::cos(6.283185307179586 * uniform(random));
}
double lognormal(Random& random, double median, double sigma) {
  return median * std::exp(sigma * normal(random));
}
double pareto(Random& random, double least, double alpha) {
  return std::min(1e5, least * std::pow(1 - uniform(random), -1 / alpha));
}

/// The gap before the `index`th arrival, in wakes.
using Trace = std::function<double(std::uint32_t index, Random& random)>;

std::vector<std::pair<std::string, Trace>> all_traces() {
  std::vector<std::pair<std::string, Trace>> traces;
  const auto add = [&](const char* name, Trace trace) {
    traces.emplace_back(name, std::move(trace));
  };
  const auto poisson = [](double mean) {
    return [mean](std::uint32_t, Random& random) { return exponential(random, mean); };
  };
  add("poisson_0.05", poisson(0.05));
  add("poisson_0.2", poisson(0.2));
  add("poisson_1", poisson(1));
  add("poisson_5", poisson(5));
  add("poisson_20", poisson(20));
  // So many arrivals close together, then a pause.
  const auto bursts = [](std::uint32_t length, double gap, double pause) {
    return [=](std::uint32_t i, Random& random) {
      return exponential(random, i % length == length - 1 ? pause : gap);
    };
  };
  add("bursts_100", bursts(100, 0.12, 20));
  add("bursts_10", bursts(10, 0.3, 10));
  add("bursts_of_any_length", [](std::uint32_t, Random& random) {
    return uniform(random) < 0.05 ? exponential(random, 30) : exponential(random, 0.1);
  });
  add("pareto_1.1", [](std::uint32_t, Random& random) { return pareto(random, 0.1, 1.1); });
  add("pareto_1.5", [](std::uint32_t, Random& random) { return pareto(random, 0.3, 1.5); });
  add("lognormal_1", [](std::uint32_t, Random& random) { return lognormal(random, 0.5, 1); });
  add("lognormal_2", [](std::uint32_t, Random& random) { return lognormal(random, 1, 2); });
  const auto periodic = [](double period, double jitter) {
    return [=](std::uint32_t, Random& random) {
      return std::max(0.0, period * (1 + jitter * normal(random)));
    };
  };
  add("periodic_0.7", periodic(0.7, 0.05));
  add("periodic_1.5", periodic(1.5, 0.05));
  add("periodic_4", periodic(4, 0.2));
  add("regimes_of_1000", [](std::uint32_t i, Random& random) {
    return exponential(random, (i / 1000) % 2 == 0 ? 0.15 : 10);
  });
  add("regimes_of_200", [](std::uint32_t i, Random& random) {
    constexpr double kMeans[] = {0.1, 1, 30, 0.4};
    return exponential(random, kMeans[(i / 200) % 4]);
  });
  add("alternating", [](std::uint32_t i, Random& random) {
    return (i % 2 == 0 ? 0.2 : 5) * (1 + 0.1 * uniform(random));
  });
  add("bimodal", [](std::uint32_t, Random& random) {
    return (uniform(random) < 0.5 ? 0.1 : 6) * (1 + 0.2 * uniform(random));
  });
  return traces;
}

struct Costs {
  double own = 0;
  double clairvoyant = 0;
  [[nodiscard]] double ratio() const { return own / clairvoyant; }
};

/// One controller and its virtual clock.
class Player {
 public:
  explicit Player(std::uint64_t seed) : controller_({.seed = seed}), random_(seed) {
    for (int i = 0; i < 31; ++i) measure();  // as at start
  }

  void play(double gap) {
    if (++played_ % kMeasureEvery == 0) measure();
    const auto gap_ns = static_cast<std::int64_t>(gap * kWakeNs);
    const std::int64_t began = now_;
    (void)controller_.idle(began);
    const std::int64_t limit = controller_.spin_limit_ns();
    if (gap_ns <= limit) {
      now_ = began + gap_ns;
    } else {
      controller_.blocked(began + limit);
      now_ = began + gap_ns + static_cast<std::int64_t>(latency());
      controller_.woke(now_);
    }
    controller_.worked(now_);
    costs_.own += gap_ns <= limit ? gap : static_cast<double>(limit) / kWakeNs + 1;
    costs_.clairvoyant += std::min(gap, 1.0);
    slept_ += gap_ns > limit ? 1 : 0;
    now_ += 300;  // the work
  }

  [[nodiscard]] const WaitController& controller() const { return controller_; }
  /// What an adversary may know: the limit, unless it is drawn after the gap is chosen.
  [[nodiscard]] double known_limit() const {
    return static_cast<double>(controller_.spin_limit_ns()) / kWakeNs;
  }
  [[nodiscard]] const Costs& costs() const { return costs_; }
  [[nodiscard]] std::uint64_t slept() const { return slept_; }  ///< gaps
  [[nodiscard]] Random& random() { return random_; }

 private:
  double latency() { return lognormal(random_, kLatencyNs, kLatencySigma); }
  void measure() {
    controller_.note_wake_latency(static_cast<std::int64_t>(latency()));
    controller_.note_block_overhead(
        static_cast<std::int64_t>(lognormal(random_, kOverheadNs, kLatencySigma)));
  }

  WaitController controller_;
  Random random_;
  Costs costs_;
  std::int64_t now_ = 1'000'000;
  std::uint32_t played_ = 0;
  std::uint64_t slept_ = 0;
};

/// The work comes right after it has stopped looking. Where it draws its limit: after a wake's
/// time, the worst for who draws.
Costs just_after_the_limit(std::uint64_t seed, std::uint32_t gaps) {
  Player player(seed);
  for (std::uint32_t i = 0; i < gaps; ++i) {
    player.play(player.controller().guarded() ? 1.001 : player.known_limit() * 1.001 + 0.001);
  }
  return player.costs();
}

/// Teaches it one thing for as long as it takes to be believed, then the opposite.
Costs deceiver(std::uint64_t seed, std::uint32_t gaps) {
  Player player(seed);
  bool teach_short = true;
  for (std::uint32_t i = 0; i < gaps; ++i) {
    if (!player.controller().guarded()) {
      if (teach_short && player.known_limit() >= 0.5) teach_short = false;
      if (!teach_short && player.known_limit() < 0.5) teach_short = true;
    }
    player.play(teach_short ? 0.5 : 50);
  }
  return player.costs();
}

double measure_decision(std::uint64_t seed) {
  WaitController controller({.seed = seed});
  Random random(seed);
  std::vector<std::int64_t> gaps(4096);
  for (std::int64_t& gap : gaps) gap = static_cast<std::int64_t>(exponential(random, kWakeNs));
  std::int64_t now = 0;
  const auto began = std::chrono::steady_clock::now();
  constexpr int kRepeats = 50;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (const std::int64_t gap : gaps) {
      (void)controller.idle(now);
      now += gap;
      if (!controller.idle(now)) {
        controller.blocked(now);
        controller.woke(now);
      }
      controller.worked(now);
    }
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - began;
  return took.count() / (kRepeats * static_cast<double>(gaps.size()));
}

}  // namespace

WaitingRatios simulate_waiting(std::uint64_t seed, std::uint32_t gaps) {
  WaitingRatios out;
  double logs = 0;
  for (const auto& [name, trace] : all_traces()) {
    Random random(seed * 1'000'003 + out.traces.size());
    Player player(seed);
    for (std::uint32_t i = 0; i < gaps; ++i) player.play(trace(i, random));
    const double ratio = player.costs().ratio();
    out.traces[name] = ratio;
    out.worst = std::max(out.worst, ratio);
    logs += std::log(ratio);
  }
  out.geomean = std::exp(logs / static_cast<double>(out.traces.size()));
  out.adversaries["adversary_just_after"] = just_after_the_limit(seed, gaps).ratio();
  out.adversaries["adversary_deceiver"] = deceiver(seed, gaps).ratio();
  for (const auto& [name, ratio] : out.adversaries) out.worst = std::max(out.worst, ratio);
  out.ns_per_decision = measure_decision(seed);
  return out;
}

RecordedRatios play_recorded(std::span<const double> gaps_ns, std::uint64_t seed) {
  Player player(seed);
  double sum = 0;
  for (const double gap_ns : gaps_ns) {
    const double gap = gap_ns / kWakeNs;
    player.play(gap);
    sum += gap;
  }
  const double clairvoyant = player.costs().clairvoyant;
  const auto count = static_cast<double>(gaps_ns.size());
  return {player.costs().ratio(), sum / clairvoyant, count / clairvoyant,
          100 * static_cast<double>(player.slept()) / count};
}

}  // namespace sluice::bench
