// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "counter.hpp"
#include "queue_pair_table.hpp"
#include "sluice/core/cacheline.hpp"
#include "sluice/core/completion_source.hpp"
#include "sluice/core/lane_queue.hpp"
#include "sluice/core/return_stack.hpp"
#include "sluice/core/rpma/handles.hpp"
#include "sluice/dispatch/dispatcher.hpp"

namespace sluice::detail {

class Poller;
struct Pool;
struct Stream;
struct SourceState;
struct ConnectionState;

inline constexpr std::uint32_t kBatchSize = 32;   ///< completions per poll and per batch (C2)
inline constexpr std::uint32_t kSegmentSize = 8;  ///< completions per lane entry

/// Completions on their way to a handler: a batch of a poller, or a segment of a source, in a ring,
/// in a lane or in a worker's hands. What lies behind `completions` goes with it.
struct alignas(kCacheLine) Parcel {
  Parcel* next = nullptr;
  Stream* stream = nullptr;       ///< whose handler it is for
  Poller* poller = nullptr;       ///< a batch: where it returns to. nullptr: a segment
  ibv_wc* completions = nullptr;  ///< constant
  std::uint32_t count = 0;  ///< a segment's or a lent batch's; a batch in a ring: see BatchTicket
  bool lent = false;        ///< the poller's: a batch that lies in a lane
};
static_assert(sizeof(Parcel) == kCacheLine);

/// Polled into, and handed over as it is: to any worker, or to the lane of the one connection that
/// all of it belongs to. For a pool of one worker it may be sorted by connection.
struct Batch : Parcel {
  /// Of a sorted batch: for each group of completions its stream and, in the low bits, their number
  /// less one.
  std::uintptr_t groups[kBatchSize];
  ibv_wc storage[kBatchSize];
};

/// A batch in a ring: its address and, in the bits that alignment leaves free, what a worker has to
/// know first, so that the line of the parcel's head stays in both caches.
class BatchTicket {
 public:
  BatchTicket() noexcept = default;
  BatchTicket(Batch* batch, std::uint32_t count, bool sorted) noexcept
      : bits_(reinterpret_cast<std::uintptr_t>(batch) | (sorted ? kSorted : 0) | (count - 1)) {}
  [[nodiscard]] Batch* batch() const noexcept {
    return reinterpret_cast<Batch*>(bits_ & ~std::uintptr_t{kCacheLine - 1});
  }
  [[nodiscard]] std::uint32_t count() const noexcept {
    return static_cast<std::uint32_t>(bits_ & (kBatchSize - 1)) + 1;
  }
  [[nodiscard]] bool sorted() const noexcept { return (bits_ & kSorted) != 0; }

 private:
  static constexpr std::uintptr_t kSorted = kBatchSize;
  static_assert(2 * kBatchSize <= kCacheLine, "count and mark fit below a batch's address");
  std::uintptr_t bits_;  // not set: room for tickets costs nothing
};

/// Some completions of one lane, copied. Each source has as many as its CQs have entries: a segment
/// holds at least one completion, so a lane is never full (C3).
struct Segment : Parcel {
  ibv_wc storage[kSegmentSize];
};

/// A queue towards the workers of one pool, in whose order a connection's, or a key's, completions
/// are handled (C3).
struct Lane {
  LaneQueue<Parcel> queue;
  Parcel* leftover = nullptr;  ///< taken and not yet handled; the holder's
};

/// Counts the completions that were handed to handlers and those they are done with. `handed` has
/// one writer (the poller). A detach waits until the two agree; raising `done` is the last access
/// to the state by a worker (but for the lane, see LaneQueue::idle).
struct Handover {
  alignas(kCacheLine) std::atomic<std::uint64_t> handed{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> done{0};

  void hand(std::uint32_t completions) noexcept {
    handed.store(handed.load(std::memory_order_relaxed) + completions,
                 std::memory_order_release);  // (1) release: pairs with (3)
  }
  /// They were not handed to anybody after all. By the poller.
  void take_back(std::uint32_t completions) noexcept {
    handed.store(handed.load(std::memory_order_relaxed) - completions, std::memory_order_release);
  }
  void finish(std::uint32_t completions) noexcept {
    done.fetch_add(
        completions,
        std::memory_order_seq_cst);  // (2) pairs with (4); seq_cst: see ControlPort::poke
  }
  /// By the holder of the one lane that all of it goes through: no locked instruction.
  void finish_in_lane(std::uint32_t completions) noexcept {
    done.store(done.load(std::memory_order_relaxed) + completions,
               std::memory_order_release);  // (5) release: pairs with (4)
  }
  [[nodiscard]] std::uint64_t outstanding() const noexcept {
    const std::uint64_t finished = done.load(std::memory_order_seq_cst);  // (4) pairs with (2) (5)
    return handed.load(std::memory_order_acquire) - finished;             // (3) pairs with (1)
  }
};

/// Completions of one source for one addressee. Those of a connection on a source of many are
/// counted here and in the source's own stream: a segment is the source's memory and goes back
/// before the latter is told.
struct Stream {
  SourceState* source = nullptr;
  BatchInfo info;  ///< constant; its worker is 0, or kOnPoller of an inlined source
  Handover handover;

  /// Batch::groups: a stream is aligned as its handover is.
  static constexpr std::uintptr_t kCountMask = kBatchSize - 1;
  [[nodiscard]] std::uintptr_t group(std::uint32_t count) noexcept {
    return reinterpret_cast<std::uintptr_t>(this) | (count - 1);
  }
  [[nodiscard]] static Stream* of_group(std::uintptr_t group) noexcept {
    return reinterpret_cast<Stream*>(group & ~kCountMask);
  }
};
static_assert(alignof(Stream) > Stream::kCountMask);

/// How a poller sees a source. Moved on by the poller only.
enum class Heat : std::uint8_t {
  hot,     ///< polled every round; its fd is not in epoll
  cold,    ///< seen empty since its last re-arm; its fd is in epoll, level-triggered
  failed,  ///< a fault was reported; never polled again
  gone,    ///< not added yet, or removed: the poller does not touch it
};

/// Parcels being filled from the present poll, not yet in their lane.
struct OpenParcels {
  Parcel* first = nullptr;
  Parcel* last = nullptr;
  ibv_wc* at = nullptr;   ///< where the next completion goes
  ibv_wc* end = nullptr;  ///< == at: `last` is full, lent, or there is none
};

/// One detach of a source or connection; who asks for another one waits for the end of the first.
struct Detaching {
  bool begun = false;
  std::optional<DetachReport> report;  ///< once it is over
  std::vector<DetachCallback> waiters;
};

struct SourceState {
  SourceState(SourceId source_id, std::shared_ptr<CompletionSource> completion_source,
              AttachOptions attach_options, Handler completion_handler);

  const SourceId id;
  std::shared_ptr<CompletionSource> source;
  SourceOwnership ownership;
  const AttachOptions options;
  Handler handler;
  Pool* pool = nullptr;  ///< not used when inlined
  Poller* poller = nullptr;
  std::uint32_t poller_index = 0;
  /// Not null: all completions are this connection's. Outlives this source (Drain sees to it).
  ConnectionState* connection = nullptr;
  /// Of a pool with one worker: whatever is handed to it in order is handled in order, without
  /// lanes.
  bool lanes_needed = true;
  std::uint64_t drain_marker = 0;  ///< wr_id that is the connection's drain marker; 0: none
  /// The lane of a source attached alone, all of one connection (AttachOptions::single_connection).
  std::unique_ptr<ConnectionState> own_connection;

  // --- the poller's own ------------------------------------------------------------------------
  Heat heat = Heat::gone;
  bool polled_for_good = false;  ///< re-arming failed, or it has no fd: never slept on (W8, S5)
  std::uint32_t empty_rounds = 0;
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;
  bool watched = false;  ///< its fd is in epoll: cold, or turned hot in this very round
  bool woken = false;    ///< has become hot through an event and has not brought anything since
  std::unique_ptr<QueuePairTable> queue_pairs;  ///< a source of many connections
  std::vector<ibv_wc> early;                    ///< completions of connections being set up (C6)
  OpenParcels open;                             ///< of a source of one connection
  std::uint32_t burst = 1;                      ///< polls before its lanes are published
  Parcel* free_segments = nullptr;
  std::uint32_t free_segment_count = 0;

  // --- shared ------------------------------------------------------------------------------------
  std::unique_ptr<Segment[]> segments;
  std::uint32_t segment_count = 0;
  ReturnStack<Parcel> returned;
  Stream stream;
  std::atomic<std::uint32_t> pending_setups{0};
  std::atomic<bool> removed{false};  ///< the poller has let go of it
  std::atomic<bool> dead{false};     ///< a fault ended it: nothing more comes out of it
  std::atomic<std::uint32_t> attached_connections{0};
  Detaching detaching;  ///< under the registry's mutex
  /// The control's: connections whose drains ran out of time while their lanes may still hold
  /// segments, and run the handler, of this source.
  std::vector<std::shared_ptr<ConnectionState>> abandoned;

  /// A segment for each completion that its CQs can hold; where lanes are needed.
  void make_segments();
  /// Lets go of the source and the handler, once nobody touches them any more.
  void release() noexcept;
};

/// An attached connection, or a queue pair known by number only.
struct ConnectionState {
  ConnectionId id = ConnectionId::none;
  std::uint32_t qp_num = 0;
  std::shared_ptr<rpma::Connection> connection;  ///< null: attached by number
  ibv_context* device = nullptr;
  void* context = nullptr;
  std::function<void(ConnectionId, rpma::ConnectionEvent)> on_event;
  Pool* pool = nullptr;
  std::atomic<std::uint32_t>* lanes_used = nullptr;  ///< of its pool, where it counts there
  std::uint32_t poller_index = 0;
  std::vector<std::shared_ptr<SourceState>> own_sources;
  std::shared_ptr<SourceState> receive_source;

  Lane lane;

  // The receive source's poller's own.
  OpenParcels open;
  static constexpr std::uint32_t kNotInBatch = ~0U;
  /// Completions in the batch that is being sorted: so the first one is a sum of zero.
  std::uint32_t in_batch_less_one = kNotInBatch;
  ibv_wc* batch_at = nullptr;  ///< where in it the next one goes

  // --- shared
  // --------------------------------------------------------------------------------------
  Stream receives;  ///< what comes from the receive source
  std::atomic<bool> down{false};
  std::atomic<bool> failure_reported{
      false};  ///< a poller has told the control of a failed completion
  std::atomic<bool> marker_seen{false};
  std::atomic<bool> last_wqe_seen{false};
  std::atomic<bool> removed{false};  ///< the receive source's poller has let go of it
  bool event_told = false;           ///< the control's: on_event was called with the end
  Detaching detaching;               ///< under the registry's mutex
};

}  // namespace sluice::detail
