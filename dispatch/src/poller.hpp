// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "control_port.hpp"
#include "pool.hpp"
#include "sluice/core/mailbox.hpp"
#include "sluice/core/owner_thread.hpp"
#include "sluice/dispatch/wait_controller.hpp"
#include "sluice/topology/memory.hpp"
#include "state.hpp"
#include "wake_probe.hpp"

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
/// Invariants: INV-ARM and INV-EMPTY of CompletionSource. Cost of a round: up to kPassesMax passes
/// of up to kPollBurstMax polls for each hot source (or kRoundPollsMax for the only one, if it is
/// inlined) until there were kRoundPollsMax; plus one epoll_wait when nothing was found, or where
/// some are cold every kColdCheckPolls polls, but not more often than every 20 us.
class Poller final : public Runnable {
 public:
  /// `memory` holds its batch buffers, memory_size() bytes, zeroed, aligned to a page.
  /// `clock`: DispatcherConfig::clock.
  Poller(std::uint32_t index, const PollerConfig& config, topology::NodeMemory memory,
         const std::vector<Pool*>& pools, ControlPort& control,
         const DispatcherCallbacks& callbacks,
         const std::function<std::chrono::steady_clock::time_point()>& clock);
  ~Poller() override;
  [[nodiscard]] static std::size_t memory_size(const PollerConfig& config) noexcept {
    return (std::size_t{config.batch_count} + 1) * sizeof(Batch);  // one to poll into
  }

  /// Where the batch buffers are, for tests and reports.
  [[nodiscard]] const topology::NodeMemory& batch_memory() const noexcept { return batch_memory_; }
  [[nodiscard]] Status open();  ///< makes the descriptors; once, before anything else
  /// Where workers will put batches of this poller that they are done with.
  void take_returns_from(SpmcRing<Parcel*>& ring) { returns_.push_back(&ring); }
  /// It shares its CPU with other threads (S6): it soon gives way. Before it is driven.
  void give_way() noexcept;

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
  [[nodiscard]] std::uint32_t index() const noexcept { return index_; }
  /// After something that a starved poller waits for was given back, by a seq_cst operation.
  void wake_if_starved() noexcept {
    // (2) seq_cst: pairs with (1) in prepare_to_wait(), a Dekker pair. Batches: the ring's push
    // comes before (2), its empty_seq_cst() after (1). Segments: the push and take_all_ordered()
    // are RMWs of one word; if the push came second, it acquired what (1) stored before.
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
  /// Passes over the hot sources in one round, as long as they bring something.
  static constexpr std::uint32_t kPassesMax = 4;
  static constexpr std::uint32_t kPollBurstMax = 8;  ///< polls of a source before it publishes
  /// Polls after which a round ends, be there more or not; and of one source that has its handler
  /// called inline, with none beside it.
  static constexpr std::uint32_t kRoundPollsMax = kPassesMax * kPollBurstMax;
  static constexpr std::uint32_t kOpenLanesMax = kPollBurstMax * kBatchSize;

  struct Slot {
    SourceState* source = nullptr;
    std::uint32_t generation = 0;
  };
  struct Counters {
    Counter rounds, polls, empty_polls, completions, batches, sleeps, wakes, events, empty_wakes,
        turned_cold, turned_hot, backpressure, commands, early, orphans, failed_sources, sources,
        hot_sources, pre_wakes, spins_found, spun_ns, spun_in_vain_ns, spin_capped, wake_cost_ns,
        spin_limit_ns;
  };

  // The phases of a round.
  std::size_t take_commands();
  std::size_t poll_hot_sources();
  void settle_tally();
  void check_cold_sources();
  void retry_put_off();
  void expire_early_completions();

  // Waiting.
  [[nodiscard]] bool turns_cold(SourceState* source) noexcept;
  [[nodiscard]] bool goes_on_spinning() noexcept;
  void pre_wake_workers() noexcept;
  [[nodiscard]] SourceState* cold_source_of(const epoll_event& event) const noexcept;
  void end_gap() noexcept;
  [[nodiscard]] std::int64_t now_ns() const;

  // Commands.
  void execute(const PollerCommand& command);
  void add_source(SourceState* source);
  /// A command that waits for buffers.
  struct PutOff {
    PollerCommand command;
    std::uint32_t left = 0;  ///< of a removal: completions that may still be its own
  };
  [[nodiscard]] bool waits(const PollerCommand& command, std::size_t among) const noexcept;
  [[nodiscard]] bool try_execute(PutOff& of);
  [[nodiscard]] bool add_connection(SourceState* source, ConnectionState* connection);
  [[nodiscard]] bool try_remove(PutOff& of);
  [[nodiscard]] bool poll_to_empty(SourceState* source, std::uint32_t& left);
  void forget(SourceState* source);

  // One source.
  enum class Polled : std::uint32_t { some, empty, no_buffer, failed };
  struct Poll {
    Polled brought = Polled::empty;
    std::uint32_t count = 0;  ///< completions taken off the queue
  };
  Poll poll_source(SourceState* source);
  Poll poll_into_batches(SourceState* source);
  Poll poll_into_batch(SourceState* source);
  Poll poll_sorted(SourceState* source);
  void publish(SourceState* source, Parcel* batch, std::uint32_t count, bool sorted);
  void announce(const SourceState* source);
  Poll poll_into_lanes(SourceState* source);
  Poll poll_into_lanes_once(SourceState* source);
  Poll poll_inline(SourceState* source);
  [[nodiscard]] static Poll nothing(const SourceState* source) noexcept {
    return {source->heat == Heat::failed ? Polled::failed : Polled::empty, 0};
  }
  std::uint32_t found_empty(SourceState* source);
  void note_poll(SourceState* source, const PollOutcome& outcome);
  [[nodiscard]] static bool all_succeeded(std::span<const ibv_wc> completions) noexcept;
  void run_inline(SourceState* source, std::span<const ibv_wc> completions);
  std::uint32_t poll_and_check(SourceState* source, std::span<ibv_wc> out);
  std::uint32_t inspect(SourceState* source, std::span<ibv_wc> completions);
  std::uint32_t inspect_failed(SourceState* source, std::span<ibv_wc> completions);
  void route(SourceState* source, std::span<const ibv_wc> completions);
  void route_by_key(SourceState* source, std::span<const ibv_wc> completions);
  [[nodiscard]] bool lend(SourceState* source, std::span<const ibv_wc> completions);
  void link(OpenParcels& open, Lane* lane, Stream* stream, Parcel* parcel);
  void append(OpenParcels& open, Lane* lane, Stream* stream, const ibv_wc& wc);
  void extend(OpenParcels& open, Lane* lane, Stream* stream);
  void publish_lanes(SourceState* source);
  void hold_or_orphan(SourceState* source, const ibv_wc& wc);
  void orphan(SourceState* source, const ibv_wc& wc);
  void note_failed(ConnectionState* connection);

  // Temperature.
  void turn_hot(SourceState* source);
  std::uint32_t try_turn_cold(SourceState* source);
  void remove_from_hot(SourceState* source);
  void unwatch(SourceState* source);
  void unwatch_hot_sources();
  void fail(SourceState* source, SourceFault fault, int error);

  // Buffers.
  Parcel* take_batch();
  void collect_batches();
  static bool collect_segments(SourceState* source, Parcel* list);
  Parcel* take_segment(SourceState* source);
  std::uint32_t free_segments(SourceState* source);

  const std::uint32_t index_;
  const WaitMode wait_;
  const std::uint32_t hot_rounds_;
  const std::uint32_t batch_size_;    ///< 1..kBatchSize
  const std::uint32_t segment_size_;  ///< completions in one, at most
  const std::uint32_t lent_max_;      ///< batches in lanes
  ControlPort& control_;
  const DispatcherCallbacks& callbacks_;

  OwnerThread owner_;
  int epoll_fd_ = -1;
  Mailbox<PollerCommand> mailbox_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<SourceState*> hot_;
  std::vector<PutOff> put_off_;           ///< waiting for buffers
  std::vector<SourceState*> to_unwatch_;  ///< turned hot in this round by an event
  std::vector<SourceState*> with_early_;  ///< sources that hold early completions
  std::uint32_t cold_ = 0;                ///< sources that wait in epoll
  std::uint32_t polls_since_cold_check_ = 0;
  std::chrono::steady_clock::time_point last_cold_check_{};
  bool check_cold_now_ = false;
  std::array<epoll_event, 64> ready_;  ///< what block() found
  int ready_count_ = 0;
  bool short_of_buffers_ =
      false;  ///< every hot source was left alone in the last pass, for want of buffers

  // Adaptive waiting.
  const std::function<std::chrono::steady_clock::time_point()>& clock_;
  WaitController controller_;
  WakeProbe probe_;
  bool found_ = false;       ///< the last round brought something
  bool cooling_ = false;     ///< the next round turns cold what is empty, to sleep after it
  bool just_woken_ = false;  ///< from a sleep; the next round knows from which
  std::int64_t cooling_since_ns_ = 0;  ///< what of the way to sleep, and then back, costs time
  std::int64_t cooled_for_ns_ = 0;
  std::int64_t woken_at_ns_ = 0;

  topology::NodeMemory batch_memory_;
  std::vector<Parcel*> free_batches_;
  std::vector<SpmcRing<Parcel*>*> returns_;  ///< of each worker
  std::uint32_t lent_ = 0;                   ///< at most so many batches lie in lanes
  Parcel* scratch_ = nullptr;  ///< the batch that ordered and inlined sources are polled into

  /// A lane that the present poll has filled segments for.
  struct OpenLane {
    OpenParcels* parcels;
    Lane* lane;
    Stream* stream;
  };
  std::array<OpenLane, kOpenLanesMax> open_lanes_;
  std::uint32_t open_lane_count_ = 0;
  std::array<Lane*, kOpenLanesMax> fresh_lanes_;     ///< room for publish_lanes()
  std::vector<std::vector<OpenParcels>> open_keys_;  ///< by pool and key lane

  std::atomic<bool> asleep_{false};
  Counters count_;
  /// What a round adds to the counters: others look at those, so each is a store of its own.
  struct Tally {
    std::uint32_t polls = 0, batches = 0, completions = 0;
  };
  Tally tally_;
  std::atomic<std::uint64_t> handler_sequence_{0};
  std::atomic<SourceId> handler_source_{SourceId::none};

  // Written by others.
  alignas(kCacheLine) std::atomic<bool> starved_{false};
  alignas(kCacheLine) std::atomic<std::uint64_t> inline_stalls_{0};
};

}  // namespace sluice::detail
