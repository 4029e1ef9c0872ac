// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "control_port.hpp"
#include "poller.hpp"
#include "pool.hpp"
#include "sluice/core/owner_thread.hpp"
#include "state.hpp"

namespace sluice::detail {

/// Takes runnable lanes and batches of its pool and calls their handlers. Driven by one thread at a
/// time. Where it has colleagues it holds at most one lane or one batch: a slow handler holds up
/// nothing else. Alone in its pool it takes several at once, which is cheaper and delays nobody:
/// there is no one else who could take them.
class Worker final : public Runnable {
 public:
  /// `batch_counts`: of each poller.
  Worker(Pool& pool, std::uint32_t index, bool host_driven, ControlPort& control,
         const std::vector<std::uint32_t>& batch_counts)
      : pool_(pool),
        index_(index),
        alone_(pool.config.workers == 1),
        claims_max_(claims_max(pool.config.workers, batch_counts)),
        host_driven_(host_driven),
        control_(control),
        lanes_at_{index % static_cast<std::uint32_t>(batch_counts.size())},
        batches_at_(lanes_at_) {
    for (const std::uint32_t count : batch_counts) {
      returns_.push_back(std::make_unique<SpmcRing<Parcel*>>(count));
    }
  }

  ~Worker() override;

  // --- Runnable, for the owning thread ---------------------------------------------------------
  std::size_t run_once() override;
  [[nodiscard]] int wait_fd() override { return pool_.parking.wait_fd(index_); }
  [[nodiscard]] bool prepare_to_wait() override;
  void finish_wait() override;
  void release_thread() override { owner_.release(); }
  /// Sleeps until there is work or the pool stops; after prepare_to_wait() said yes.
  void park() noexcept;
  /// The sleep that has just ended was a standby's: what wakes the poller, too, will be here soon.
  [[nodiscard]] bool stood_by() const noexcept { return on_standby_; }
  /// The pollers' descriptors, for the standby; before it is driven.
  void stand_by_for(std::vector<int> poller_fds) { poller_fds_ = std::move(poller_fds); }

  /// Where it puts a poller's batches when it is done with them; the poller takes them out.
  [[nodiscard]] SpmcRing<Parcel*>& returns(std::uint32_t poller) noexcept {
    return *returns_[poller];
  }

  // --- any thread ------------------------------------------------------------------------------
  [[nodiscard]] WorkerCounters counters() const;
  /// Odd while a handler runs.
  [[nodiscard]] std::uint64_t handler_sequence() const noexcept {
    return handler_sequence_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] SourceId handler_source() const noexcept {
    return handler_source_.load(std::memory_order_relaxed);
  }
  /// Its mark in the parking lot, which a waker takes away before the worker runs.
  [[nodiscard]] bool asleep() const noexcept { return pool_.parking.asleep(index_); }
  void count_stall() noexcept { stalls_.fetch_add(1, std::memory_order_relaxed); }

 private:
  static constexpr std::uint32_t kClaimMax = 16;
  static constexpr std::uint32_t kClaimsMax = 8;
  /// Several batches are given back together only if all workers together keep a small part of any
  /// poller's.
  [[nodiscard]] static std::uint32_t claims_max(std::uint32_t workers,
                                                const std::vector<std::uint32_t>& batch_counts) {
    if (workers == 1) return 1;  // it takes as many at once
    const std::uint32_t fewest = *std::min_element(batch_counts.begin(), batch_counts.end());
    return std::clamp(fewest / (4 * workers), 1U, kClaimsMax);
  }

  /// What was handled and not yet given back: segments of one source, linked, or lent batches of
  /// one. They cost a locked instruction each to give back and to count, however many they are.
  struct Homebound {
    Parcel* first = nullptr;
    Parcel* last = nullptr;
    SourceState* source = nullptr;
    std::uint32_t completions = 0;
  };

  /// Which of the pollers' rings is looked at first, and how often in a row it was.
  struct Cursor {
    std::uint32_t ring = 0;
    std::uint32_t streak = 0;
  };

  void begin_search();
  void end_search();
  void found();
  void run_lanes();
  void run_batches();
  template <typename T>
  std::size_t claim(const std::vector<std::unique_ptr<SpmcRing<T>>>& rings, Cursor& cursor,
                    std::span<T> out);
  void run_lane(Lane* lane);
  Parcel* run_chain(Parcel* parcel, std::uint32_t budget);
  void run_batch(BatchTicket ticket);
  void call(SourceState* source, std::span<const ibv_wc> completions, const BatchInfo& info);
  void settle();
  void watch(std::uint32_t poller) noexcept;
  void give_back(Poller* poller, std::span<Parcel* const> batches);

  Pool& pool_;
  const std::uint32_t index_;
  const bool alone_;                ///< in its pool
  const std::uint32_t claims_max_;  ///< in a round
  const bool host_driven_;
  ControlPort& control_;
  OwnerThread owner_;
  bool searching_ = false;     ///< counted as a searcher by the parking lot
  bool lanes_first_ = true;    ///< lanes and batches take turns
  bool resumed_first_ = true;  ///< so do lanes that were put back and new ones
  Cursor lanes_at_, batches_at_;
  // The standby: the pool's first worker sleeps on the descriptors of the pollers that have brought
  // it work, too. What wakes a poller wakes it at the same time, and not after the poller has run:
  // a cold completion waits for one wake, not for two in a row.
  std::vector<int> poller_fds_;  ///< empty: this worker is not the standby
  int standby_fd_ = -1;
  std::uint64_t watched_ = 0;         ///< pollers (bit = index) in standby_fd_
  bool on_standby_ = false;           ///< this sleep is one
  bool standby_was_in_vain_ = false;  ///< then the next sleep is a plain one
  std::size_t handled_ = 0;           ///< completions in this round
  std::vector<std::unique_ptr<SpmcRing<Parcel*>>> returns_;  ///< of each poller
  Homebound homebound_;
  Counter completions_, lane_runs_;
  std::atomic<std::uint64_t> handler_sequence_{0};
  std::atomic<SourceId> handler_source_{SourceId::none};
  alignas(kCacheLine) std::atomic<std::uint64_t> stalls_{0};  ///< the control's
};

}  // namespace sluice::detail
