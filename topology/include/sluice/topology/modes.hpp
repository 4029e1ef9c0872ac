// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace sluice {

/// How a poller spends the time in which nothing completes (C5).
enum class WaitMode : std::uint8_t {
  busy,      ///< polls without a pause; lowest latency, one core each
  event,     ///< sleeps on the completion channels as soon as every CQ was seen empty
  adaptive,  ///< goes on polling for as long as it pays, learnt from the gaps, then sleeps
};
[[nodiscard]] const char* to_string(WaitMode mode) noexcept;

/// How long a worker searches for work before it parks.
enum class SpinMode : std::uint8_t {
  fixed,     ///< a number of searches
  adaptive,  ///< as WaitMode::adaptive
};
[[nodiscard]] const char* to_string(SpinMode mode) noexcept;

/// In which order, and where, a source's completions are handled (C3).
enum class Order : std::uint8_t {
  inlined,         ///< on the poller thread, in CQ order; opt-in, watched (R2)
  none,            ///< any worker, any order, whole batches
  per_connection,  ///< each connection's completions in CQ order, one batch at a time, on any
                   ///< worker
  per_key,         ///< the same for each value of a key that the user takes from a completion
};
[[nodiscard]] const char* to_string(Order order) noexcept;

}  // namespace sluice
