// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace sluice::bench {

/// A moment in ticks: the processor's own counter, which all its cores share (constant_tsc), where
/// a look at it costs some 10 ns. What comes before it in the program has been read by then.
inline std::uint64_t stamp() noexcept {
#if defined(__x86_64__)
  _mm_lfence();
  return __rdtsc();
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

/// Nanoseconds of a tick, measured once against steady_clock.
inline double ns_per_tick() {
#if defined(__x86_64__)
  static const double value = [] {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kLong{50};
    const auto begin = Clock::now();
    const std::uint64_t first = stamp();
    Clock::time_point end;
    do {
      end = Clock::now();
    } while (end - begin < kLong);
    const std::uint64_t last = stamp();
    return std::chrono::duration<double, std::nano>(end - begin).count() /
           static_cast<double>(last - first);
  }();
  return value;
#else
  return 1.0;
#endif
}

inline std::uint64_t ticks(std::chrono::nanoseconds time) {
  return static_cast<std::uint64_t>(static_cast<double>(time.count()) / ns_per_tick());
}

}  // namespace sluice::bench
