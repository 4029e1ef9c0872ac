// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "control_port.hpp"
#include "owner_thread.hpp"
#include "pool.hpp"
#include "sluice/core/mailbox.hpp"
#include "sluice/topology/memory.hpp"
#include "state.hpp"

namespace sluice::detail {

/// What others ask of a poller. The states named live until the poller has acknowledged.
struct PollerCommand {
  enum class Kind : std::uint8_t {
    none,
    add_source,
    remove_source,      ///< polls it to empty first; acknowledged by SourceState::removed
    fail_source,        ///< an async event said that its CQ is in error
    add_connection,     ///< names a queue pair on a source of many; ends one pending set-up
    remove_connection,  ///< polls the source to empty first; acknowledged by
                        ///< ConnectionState::removed
  };
  Kind kind = Kind::none;
  SourceState* source = nullptr;
  ConnectionState* connection = nullptr;
};

/// Owns sources: polls the hot ones, waits for the cold ones, routes what it takes (C1-C3, C6).
///
/// Its states are its own; others reach it through the mailbox. Driven by one thread at a time.
/// Invariants: INV-ARM and INV-EMPTY of CompletionSource. Cost of a round: O(hot sources), plus one
/// epoll_wait when nothing was found or every kColdCheckRounds rounds.
class Poller final : public Runnable {
 public:
  /// `memory` holds its batch buffers: config.batch_count of them, zeroed, aligned to a page.
  Poller(std::uint32_t index, const PollerConfig& config, topology::NodeMemory memory,
         std::vector<Pool*> pools, ControlPort& control, const DispatcherCallbacks& callbacks);
  ~Poller() override;

  /// Where the batch buffers are, for tests and reports.
  [[nodiscard]] const topology::NodeMemory& batch_memory() const noexcept { return batch_memory_; }
  [[nodiscard]] Status open();  ///< makes the descriptors; once, before anything else

  // --- Runnable, for the owning thread ---------------------------------------------------------
  std::size_t run_once() override;
  [[nodiscard]] int wait_fd() override { return epoll_fd_; }
  [[nodiscard]] bool prepare_to_wait() override;
  void finish_wait() override;
  void release_thread() override { owner_.release(); }
  /// Blocks until something is readable; between prepare_to_wait() and finish_wait().
  void block() noexcept;

  // --- any thread ------------------------------------------------------------------------------
  [[nodiscard]] bool post(const PollerCommand& command) noexcept { return mailbox_.post(command); }
  void poke() noexcept { mailbox_.poke(); }
  /// A worker is done with a batch.
  void give_back(Batch* batch) noexcept {
    returned_.push(batch);
    wake_if_starved();
  }
  /// After a push to one of the stacks that a starved poller waits for.
  void wake_if_starved() noexcept {
    // (2) pairs with (1) in prepare_to_wait(): the push before and the poller's take_all_ordered()
    // are RMWs of one word. If the push came second, it acquired what (1) stored before.
    if (starved_.load(std::memory_order_seq_cst) &&
        starved_.exchange(false, std::memory_order_relaxed)) {
      mailbox_.poke();
    }
  }
  [[nodiscard]] PollerCounters counters() const noexcept;
  /// Odd while an inlined handler runs; with the source it runs for (R2).
  [[nodiscard]] std::uint64_t handler_sequence() const noexcept {
    return handler_sequence_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] SourceId handler_source() const noexcept {
    return handler_source_.load(std::memory_order_relaxed);
  }
  /// Between prepare_to_wait() that said yes and finish_wait().
  [[nodiscard]] bool asleep() const noexcept { return asleep_.load(std::memory_order_seq_cst); }
  void count_stall() noexcept { inline_stalls_.fetch_add(1, std::memory_order_relaxed); }

 private:
  struct Slot {
    SourceState* source = nullptr;
    std::uint32_t generation = 0;
  };
  struct Counters {
    Counter rounds, polls, empty_polls, completions, batches, sleeps, wakes, events, empty_wakes,
        turned_cold, turned_hot, backpressure, commands, early, orphans, failed_sources, sources,
        hot_sources;
  };

  // The phases of a round.
  std::size_t take_commands();
  std::size_t poll_hot_sources();
  void check_cold_sources();
  void retry_removals();
  void expire_early_completions();
  void notify_pools();

  // Commands.
  void execute(const PollerCommand& command);
  void add_source(SourceState* source);
  void add_connection(SourceState* source, ConnectionState* connection);
  [[nodiscard]] bool try_remove(const PollerCommand& command);
  [[nodiscard]] bool poll_to_empty(SourceState* source);
  void forget(SourceState* source);

  // One source.
  enum class Polled : std::uint8_t { some, empty, no_buffer, failed };
  Polled poll_source(SourceState* source);
  Polled poll_into_batch(SourceState* source);
  Polled poll_into_lanes(SourceState* source);
  Polled poll_inline(SourceState* source);
  std::uint32_t poll_and_check(SourceState* source, std::span<ibv_wc> out);
  std::uint32_t inspect(SourceState* source, std::span<ibv_wc> completions);
  void route(SourceState* source, std::span<const ibv_wc> completions);
  void append(SourceState* source, ConnectionState* connection, const ibv_wc& wc);
  void flush_lanes(SourceState* source);
  void hold_or_orphan(SourceState* source, const ibv_wc& wc);
  void orphan(SourceState* source, const ibv_wc& wc);
  void note_failed(ConnectionState* connection);
  void run_inline(SourceState* source, std::span<const ibv_wc> completions);

  // Temperature.
  void turn_hot(SourceState* source);
  void try_turn_cold(SourceState* source);
  void remove_from_hot(SourceState* source);
  void fail(SourceState* source, SourceFault fault, int error);

  // Buffers.
  Batch* take_batch();
  Segment* take_segment(SourceState* source);
  std::uint32_t free_segments(SourceState* source);

  const std::uint32_t index_;
  const WaitMode wait_;
  const std::uint32_t hot_rounds_;
  const std::uint32_t batch_size_;  ///< 1..kBatchSize
  std::vector<Pool*> pools_;
  std::vector<bool> touched_pools_;
  ControlPort& control_;
  const DispatcherCallbacks& callbacks_;

  OwnerThread owner_;
  int epoll_fd_ = -1;
  Mailbox<PollerCommand> mailbox_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<SourceState*> hot_;
  std::vector<PollerCommand> removals_;   ///< waiting for buffers to poll to empty
  std::vector<SourceState*> with_early_;  ///< sources that hold early completions
  std::uint32_t rounds_since_cold_check_ = 0;
  bool check_cold_now_ = false;
  std::array<epoll_event, 64> ready_;  ///< what block() found
  int ready_count_ = 0;
  bool short_of_buffers_ =
      false;  ///< every hot source was left alone in this round, for want of buffers

  topology::NodeMemory batch_memory_;
  Batch* free_batches_ = nullptr;
  std::array<ibv_wc, kBatchSize> scratch_;
  std::array<ConnectionState*, kBatchSize> open_lanes_{};
  std::uint32_t open_lane_count_ = 0;

  std::atomic<bool> asleep_{false};
  Counters count_;
  std::atomic<std::uint64_t> handler_sequence_{0};
  std::atomic<SourceId> handler_source_{SourceId::none};

  // Written by others.
  ReturnStack<Batch> returned_;
  alignas(kCacheLine) std::atomic<bool> starved_{false};
  alignas(kCacheLine) std::atomic<std::uint64_t> inline_stalls_{0};
};

}  // namespace sluice::detail
