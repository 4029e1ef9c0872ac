// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "figure.hpp"
#include "sluice/core/status.hpp"

namespace sluice::bench {

/// A thread of a contender: what it does, on which CPU (OS index).
struct Role {
  unsigned cpu = 0;
  std::function<void()> body;
};

/// What a contender took.
struct Timing {
  double wall_ns = 0;  ///< from the first role's start to the last one's end
  double cpu_ns = 0;   ///< of all roles together (CLOCK_THREAD_CPUTIME_ID)
};

/// Runs the roles at once, each on a fresh thread bound to its CPU, started from one barrier.
/// Fails when a thread cannot be bound.
[[nodiscard]] Result<Timing> run_pinned(std::span<const Role> roles);

/// CPU time of the calling thread. ns
[[nodiscard]] double thread_cpu_ns() noexcept;
/// Monotonic time. ns
[[nodiscard]] double now_ns() noexcept;

/// How long one cache line takes from one CPU to the other and back: median of many. ns
[[nodiscard]] Result<double> pingpong_ns(unsigned cpu_a, unsigned cpu_b);

/// One CPU a core, those that this process may use: neighbours first, SMT siblings only when there
/// is but one core. Fails when hwloc does.
[[nodiscard]] Result<std::vector<unsigned>> bench_cpus();

/// What a thread does that finds nothing to do: spins, and then lets others run. With a thread for
/// each CPU it spins for long; where threads share one, hardly at all: what it waits for may be
/// waiting for its CPU. The same for every contender.
class Backoff {
 public:
  Backoff(const Bench& bench, std::size_t threads) noexcept;
  /// A round did so much.
  void after(std::size_t work) noexcept { work > 0 ? busy() : idle(); }
  void idle() noexcept;
  void busy() noexcept { idle_rounds_ = 0; }

 private:
  const std::uint32_t spin_rounds_;
  std::uint32_t idle_rounds_ = 0;
};

}  // namespace sluice::bench
