// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>

#include "control_port.hpp"
#include "owner_thread.hpp"
#include "poller.hpp"
#include "pool.hpp"
#include "state.hpp"

namespace sluice::detail {

/// Takes runnable lanes and batches of its pool and calls their handlers. Driven by one thread at a
/// time. Holds at most one lane or one batch: a slow handler holds up nothing else.
class Worker final : public Runnable {
 public:
  Worker(Pool& pool, std::uint32_t index, bool host_driven, ControlPort& control) noexcept
      : pool_(pool),
        index_(index),
        host_driven_(host_driven),
        control_(control),
        next_ring_(index) {}

  // --- Runnable, for the owning thread ---------------------------------------------------------
  std::size_t run_once() override;
  [[nodiscard]] int wait_fd() override { return pool_.parking.wait_fd(index_); }
  [[nodiscard]] bool prepare_to_wait() override;
  void finish_wait() override;
  void release_thread() override { owner_.release(); }
  /// Sleeps until there is work or the pool stops; after prepare_to_wait() said yes.
  void park() noexcept;

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
  void begin_search();
  void end_search();
  void found();
  void run_lane(Lane* lane);
  void run_segment(Segment* segment);
  void run_batch(Batch* batch);
  Batch* next_batch();
  void call(SourceState* source, std::span<const ibv_wc> completions, const BatchInfo& info);

  Pool& pool_;
  const std::uint32_t index_;
  const bool host_driven_;
  ControlPort& control_;
  OwnerThread owner_;
  bool searching_ = false;  ///< counted as a searcher by the parking lot
  bool lane_first_ = true;  ///< lanes and batches take turns
  std::uint32_t next_ring_;
  Counter batches_, completions_, lane_runs_;
  std::atomic<std::uint64_t> handler_sequence_{0};
  std::atomic<SourceId> handler_source_{SourceId::none};
  alignas(kCacheLine) std::atomic<std::uint64_t> stalls_{0};  ///< the control's
};

}  // namespace sluice::detail
