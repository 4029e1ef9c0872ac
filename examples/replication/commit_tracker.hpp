// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "latency.hpp"
#include "one_at_a_time.hpp"
#include "sluice/core/cacheline.hpp"

namespace replicate {

/// The largest n such that at least `quorum` of the values are >= n. 1 <= quorum <= values.size()
/// <= 64. Does not allocate.
[[nodiscard]] std::uint64_t quorum_mark(std::span<const std::uint64_t> values,
                                        std::uint32_t quorum) noexcept;

/// Which records a quorum of the replicas has, and how long each took to get there.
///
/// A replica's mark is how many records it has appended; it only rises, and stays where it is when
/// the replica dies: what it had acknowledged, it had. The commit mark is the quorum-th highest of
/// them. Records commit in order.
///
/// Threads: sent() by the one feeder; appended() by any worker (they do not wait for each other:
/// see OneAtATime); the rest by anybody. latencies() only when no appended() can run any more.
/// Cost: no allocation after construction; appended() looks at every replica's mark.
class CommitTracker {
 public:
  using Clock = std::chrono::steady_clock;

  /// `in_flight_max`: how many records may be sent and not committed, >= 1.
  CommitTracker(std::uint32_t replicas, std::uint32_t quorum, std::uint64_t in_flight_max);

  /// There is room to send one more record.
  [[nodiscard]] bool has_room() const noexcept {
    return sent_.load(std::memory_order_relaxed) - committed() < sent_at_.size();
  }
  /// The next record is about to be sent: its time starts now.
  void sent() noexcept;
  /// This replica has appended the first `count` records. False: it cannot have, so many were never
  /// sent.
  [[nodiscard]] bool appended(std::uint32_t replica, std::uint64_t count) noexcept;

  [[nodiscard]] std::uint64_t committed() const noexcept {
    return committed_.load(std::memory_order_acquire);  // (1) acquire: pairs with (2)
  }
  [[nodiscard]] std::uint64_t appended_by(std::uint32_t replica) const noexcept {
    return marks_[replica].count.load(std::memory_order_acquire);  // (3) acquire: pairs with (4)
  }
  [[nodiscard]] const LatencyHistogram& latencies() const noexcept { return latencies_; }

 private:
  struct alignas(sluice::kCacheLine) Mark {
    std::atomic<std::uint64_t> count{0};
  };
  static_assert(sizeof(Mark) == sluice::kCacheLine);

  void advance() noexcept;

  const std::uint32_t quorum_;
  std::vector<Mark> marks_;
  std::vector<Clock::time_point> sent_at_;  ///< of record r at r % size
  OneAtATime one_at_a_time_;
  LatencyHistogram latencies_;  ///< by whoever advances
  alignas(sluice::kCacheLine) std::atomic<std::uint64_t> sent_{0};
  alignas(sluice::kCacheLine) std::atomic<std::uint64_t> committed_{0};
};

}  // namespace replicate
