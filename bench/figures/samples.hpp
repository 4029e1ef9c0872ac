// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "sluice/core/status.hpp"
#include "stamp.hpp"

namespace sluice::bench {

/// Times between two stamps: the first `skipped` are not kept. Filled by one thread at a time
/// without an allocation; read when all are there.
class Samples {
 public:
  Samples(std::uint64_t skipped, std::uint64_t count)
      : skipped_(skipped), times_(count), all_(std::make_unique<std::atomic<bool>>(false)) {}

  void add(std::uint64_t from, std::uint64_t to) noexcept {
    const std::uint64_t at = added_++;
    if (at < skipped_ || at - skipped_ >= times_.size()) return;
    // Counters of two cores may differ by a few ticks.
    times_[at - skipped_] = to > from ? to - from : 0;
    if (at - skipped_ + 1 == times_.size()) {
      all_->store(true, std::memory_order_release);  // (1) release: pairs with (2)
      all_->notify_one();
    }
  }
  /// Blocks until as many were added as the constructor was told.
  void await_all() const noexcept { all_->wait(false, std::memory_order_acquire); }  // (2)

  /// Those there are; more may be added after this.
  [[nodiscard]] std::size_t size() const noexcept {
    return added_ < skipped_ ? 0 : std::min<std::size_t>(added_ - skipped_, times_.size());
  }
  void clear() noexcept { added_ = 0; }

  [[nodiscard]] double quantile_ns(double at) const {
    SLUICE_CHECK(size() > 0, "a quantile of no samples");
    std::vector<std::uint64_t> sorted(times_.begin(),
                                      times_.begin() + static_cast<std::ptrdiff_t>(size()));
    std::sort(sorted.begin(), sorted.end());
    const auto index = static_cast<std::size_t>(at * static_cast<double>(sorted.size() - 1) + 0.5);
    return static_cast<double>(sorted[index]) * ns_per_tick();
  }
  [[nodiscard]] double mean_ns() const {
    SLUICE_CHECK(size() > 0, "a mean of no samples");
    double sum = 0;
    for (std::size_t i = 0; i < size(); ++i) sum += static_cast<double>(times_[i]);
    return sum / static_cast<double>(size()) * ns_per_tick();
  }

 private:
  const std::uint64_t skipped_;
  std::vector<std::uint64_t> times_;
  std::uint64_t added_ = 0;
  std::unique_ptr<std::atomic<bool>> all_;  ///< so that this can be moved
};

}  // namespace sluice::bench
