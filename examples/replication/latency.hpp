// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>

namespace replicate {

/// Counts durations in buckets that grow with the value, so that any percentile of any number of
/// them costs a fixed 15 KiB and is never more than 1/32 too high: within a power of two there are
/// 32 buckets (the layout of HdrHistogram). Durations below 32 ns and the largest one are exact.
///
/// One thread at a time. Cost: a shift and an increment per duration; no allocation.
class LatencyHistogram {
 public:
  void add(std::uint64_t nanoseconds) noexcept;
  void merge(const LatencyHistogram& other) noexcept;

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t max() const noexcept { return max_; }
  /// The smallest bucket bound that at least `fraction` (0..1) of the durations do not exceed;
  /// never above max(). 0 when there are none.
  [[nodiscard]] std::uint64_t percentile(double fraction) const noexcept;

 private:
  static constexpr unsigned kSubBits = 5;
  static constexpr unsigned kSubBuckets = 1U << kSubBits;
  static constexpr unsigned kBuckets = (64 - kSubBits + 1) * kSubBuckets;
  static unsigned bucket_of(std::uint64_t value) noexcept;
  static std::uint64_t upper_bound_of(unsigned bucket) noexcept;

  std::array<std::uint64_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
  std::uint64_t max_ = 0;
};

}  // namespace replicate
