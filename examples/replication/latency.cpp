// SPDX-License-Identifier: BSD-3-Clause
#include "latency.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace replicate {

// Values below 32 have a bucket each. Above, the five bits after the leading one choose the bucket
// within the value's power of two.
unsigned LatencyHistogram::bucket_of(std::uint64_t value) noexcept {
  if (value < kSubBuckets) return static_cast<unsigned>(value);
  const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - kSubBits - 1;
  return (shift + 1) * kSubBuckets + static_cast<unsigned>((value >> shift) - kSubBuckets);
}

std::uint64_t LatencyHistogram::upper_bound_of(unsigned bucket) noexcept {
  if (bucket < kSubBuckets) return bucket;
  const unsigned shift = bucket / kSubBuckets - 1;
  const std::uint64_t first = static_cast<std::uint64_t>(kSubBuckets + bucket % kSubBuckets)
                              << shift;
  return first + ((std::uint64_t{1} << shift) - 1);
}

void LatencyHistogram::add(std::uint64_t nanoseconds) noexcept {
  ++buckets_[bucket_of(nanoseconds)];
  ++count_;
  max_ = std::max(max_, nanoseconds);
}

void LatencyHistogram::merge(const LatencyHistogram& other) noexcept {
  for (unsigned i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  max_ = std::max(max_, other.max_);
}

std::uint64_t LatencyHistogram::percentile(double fraction) const noexcept {
  if (count_ == 0) return 0;
  const double rank = std::ceil(std::clamp(fraction, 0.0, 1.0) * static_cast<double>(count_));
  const std::uint64_t wanted = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(rank));
  std::uint64_t seen = 0;
  for (unsigned i = 0; i < kBuckets; ++i) {
    seen += buckets_[i];
    if (seen >= wanted) return std::min(upper_bound_of(i), max_);
  }
  return max_;
}

}  // namespace replicate
