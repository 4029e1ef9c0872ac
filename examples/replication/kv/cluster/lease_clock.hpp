// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

namespace sluice::kv {

/// The clock that leases are counted on: CLOCK_BOOTTIME, which nobody sets, which runs on while
/// this process is stopped, and also while the machine is suspended; CLOCK_MONOTONIC, and with it
/// std::chrono::steady_clock, stands still then, so that a laptop that wakes would think that its
/// lease still holds. A virtual machine that its host has paused sees no clock run: what pauses it
/// must also make sure that it does not go on as a primary (or pause it for less than the margin).
/// Cost: one vDSO call, some tens of nanoseconds.
struct LeaseClock {
  using rep = std::int64_t;
  using period = std::nano;
  using duration = std::chrono::nanoseconds;
  using time_point = std::chrono::time_point<LeaseClock>;
  static constexpr bool is_steady = true;

  [[nodiscard]] static time_point now() noexcept {
    timespec now{};
    clock_gettime(CLOCK_BOOTTIME, &now);
    return time_point(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
  }
};

}  // namespace sluice::kv
