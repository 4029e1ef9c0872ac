// SPDX-License-Identifier: BSD-3-Clause
// The replicated log on disk.
#pragma once

#include <liburing.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "recovery.hpp"
#include "sluice/core/cacheline.hpp"
#include "sluice/core/owner_thread.hpp"
#include "sluice/core/status.hpp"
#include "sluice/core/uring/ring.hpp"

namespace sluice::kv {

/// One entry of the log. `payload` is valid as long as whoever gives it says.
struct Entry {
  std::uint64_t epoch = 0;           ///< > 0, never less than the entry's before
  std::uint64_t index = 0;           ///< from 1, no gaps
  std::uint64_t previous_epoch = 0;  ///< of entry index - 1; 0 before the first
  std::span<const std::byte> payload;
};

struct LogOptions {
  /// Of each file; a multiple of 4096, 16 KiB..1 GiB. An entry fits into one segment. Files of
  /// another size that are there are read, and not used again.
  std::uint64_t segment_bytes = 64ULL << 20;
  /// Payload and headers appended and not durable yet; beyond it append() says resource_exhausted.
  std::size_t pending_bytes_max = 16ULL << 20;
  /// Memory for the latest entries, from which read() serves replicas that are not far behind.
  std::size_t tail_bytes = 8ULL << 20;
  /// Size of a buffer, so of what one submit() writes at most (an entry that is larger: its size);
  /// a multiple of 4096.
  std::size_t chunk_bytes = 1ULL << 20;
  /// Groups written at the same time; 1..8. See README, "Why one at a time".
  std::uint32_t groups_in_flight_max = 1;
  /// O_DIRECT where the file system has it.
  bool direct = true;
  /// One write with RWF_DSYNC for each group, in place of a write and an fdatasync linked to it.
  /// See README, "Why linked".
  bool dsync = false;
  /// Files that hold nothing any more and wait for their next use.
  std::size_t free_files_max = 4;
  /// Upper half of the log's user_data on the ring: how its completions are told from others.
  std::uint32_t ring_tag = 0x4c4f4700;
  /// False: files are not filled before use and grow with each write. Slower; to measure with: a
  /// log made so is told to be cut off when it is opened.
  bool prewrite = true;
};

/// What open() found.
struct LogRecovery {
  std::uint64_t segments = 0;
  std::uint64_t entries = 0;
  /// Set if the end of the log was cut off: what was not acknowledged when a process or machine
  /// died, or the last group, damaged since: both look the same.
  std::optional<Cut> cut;
};

/// An ordered log of entries in a folder of segment files: prewritten, used again when they are
/// trimmed. Entries are committed in groups: append() puts one into memory, submit() writes all
/// that are there with one chain on an io_uring, on_completion() says what became of it.
///
///     auto log = kv::Log::open("data/log", {}, "prod");
///     dispatcher->attach(ring, {.order = Order::per_connection, .single_connection = true},
///         uring_handler([&](std::span<const io_uring_cqe> cqes, const BatchInfo&) noexcept {
///           for (const auto& cqe : cqes) (void)log->on_completion(cqe);   // durable_index() moves
///           (void)log->submit(*ring);                                     // what has come
///           meanwhile log->release_thread(); ring->release_thread();                // the next
///           worker may
///         }));
///     auto index = log->append(epoch, command);
///     log->submit(*ring);
///
/// Invariants:
/// - L1: durable_index() <= last_index(); first_index() <= last_index() + 1; no gaps between.
/// - L2: an entry counts as durable only after its group's write and sync have succeeded and those
///   of all groups before it. After one has failed none ever counts again (failed()): the kernel
///   may have dropped the pages that it could not write, and a later fsync succeeds without them.
/// - L3: no byte of a durable entry is written again, until its segment is recycled.
/// - L4: no entry is returned whose CRC is not right, under its segment's salt.
/// - L5: open() drops only what nothing shows to have been durable, and says so; else it refuses.
///
/// Thread-safety: owned by one thread (append, submit, on_completion, sync, truncate_after,
/// restart_after, trim_before; any other stops the program) until release_thread(). read, epoch_of,
/// first_index, last_index, durable_index, failed by any thread at any time. Handlers that hand the
/// log from worker to worker must not overlap: one lane.
/// Cost: append copies the payload and computes its CRC; no system call, no allocation, a mutex
/// once per 64 KiB. A new segment is waited for if it is not ready: see stalls().
class Log {
 public:
  /// Opens the log in `folder`, made if there is none (its parent must be there). `cluster_id`: 1
  /// to 64 bytes. Fails with invalid_argument (an option), already_owned (the folder is in use),
  /// device_failed (entries that were durable are damaged or missing: a replica fetches the log
  /// anew, after erase()), rejected (another cluster's), not_supported (a newer format),
  /// permission_denied, resource_exhausted, io_error. Nothing is changed then. What is not durable
  /// is cut off: see recovery(). Reads all of the log. Blocks.
  static Result<std::unique_ptr<Log>> open(const std::string& folder, const LogOptions& options,
                                           const std::string& cluster_id);
  /// No group may be in flight: the kernel would write from freed memory. What is not durable is
  /// not written.
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // --- the owner's -----------------------------------------------------------------------------
  /// Appends in memory; the entry's index. resource_exhausted: pending_bytes_max is reached, or
  /// there is no room for a new segment (nothing is lost: trim, or make room, and try again);
  /// invalid_argument: larger than a segment takes; rejected: an epoch older than the last entry's;
  /// after a failure failed()'s Status.
  [[nodiscard]] Result<std::uint64_t> append(std::uint64_t epoch,
                                             std::span<const std::byte> payload);
  /// The same for a replica: rejected unless `entry` follows on the last one (index, previous
  /// epoch).
  [[nodiscard]] Status append(const Entry& entry);
  /// Hands what was appended to the ring, as far as groups_in_flight_max lets it; nothing to do is
  /// okay. The ring's other operations are submitted with it. resource_exhausted: the ring has no
  /// room now; call again. Takes two operations for each group: the ring needs room for two.
  [[nodiscard]] Status submit(uring::Ring& ring);
  /// Whether a completion is this log's.
  [[nodiscard]] bool owns(const io_uring_cqe& cqe) const noexcept {
    return cqe.user_data >> 32 == options_.ring_tag;
  }
  /// Takes one of this log's completions; others stop the program. Not okay: the log has failed.
  [[nodiscard]] Status on_completion(const io_uring_cqe& cqe);
  /// Groups on a ring.
  [[nodiscard]] std::uint32_t in_flight() const noexcept {
    return static_cast<std::uint32_t>(in_flight_.size());
  }
  /// Appended, and in no group yet.
  [[nodiscard]] bool has_unsubmitted() const noexcept;
  /// Writes all and blocks until it is durable, without a ring. For tools and tests; no group may
  /// be in flight.
  [[nodiscard]] Status sync();
  /// Drops what is behind `index`; durable when it returns. What is kept is made durable first.
  /// Blocks. resource_exhausted while groups are in flight: take their completions first.
  /// invalid_argument unless first_index() - 1 <= index <= last_index().
  [[nodiscard]] Status truncate_after(std::uint64_t index);
  /// Drops everything: the next entry is index + 1, and the one before it had `epoch` (what a
  /// checkpoint says that it holds). Durable when it returns. Blocks; else like truncate_after().
  [[nodiscard]] Status restart_after(std::uint64_t index, std::uint64_t epoch);
  /// Lets go of segments that hold nothing from `index` on; in the background they are made ready
  /// for their next use. The last one stays. Never fails: what stays takes room, no more.
  void trim_before(std::uint64_t index);
  [[nodiscard]] std::uint64_t last_epoch() const noexcept { return last_epoch_; }
  /// Lets another thread become the owner.
  void release_thread() noexcept { owner_.release(); }

  // --- any thread's ----------------------------------------------------------------------------
  /// The oldest that is there; last_index() + 1 in an empty log.
  [[nodiscard]] std::uint64_t first_index() const noexcept {
    return first_index_.load(std::memory_order_relaxed);  // a hint: read() looks again
  }
  /// The latest appended.
  [[nodiscard]] std::uint64_t last_index() const noexcept {
    // (1) acquire: pairs with (2) in append(): the entry is there to be read.
    return last_index_.load(std::memory_order_acquire);
  }
  [[nodiscard]] std::uint64_t durable_index() const noexcept {
    // (3) acquire: pairs with (4) in advance(): what the owner did before it counted as durable.
    return durable_index_.load(std::memory_order_acquire);
  }
  /// Okay, or why nothing becomes durable any more.
  [[nodiscard]] Status failed() const;
  /// The epoch of an entry that is there, or of the one before the first. unreachable: trimmed, or
  /// not there yet.
  [[nodiscard]] Result<std::uint64_t> epoch_of(std::uint64_t index) const;

  struct ReadResult {
    std::uint64_t next_index = 0;  ///< where to go on
    std::size_t bytes = 0;         ///< payload given
  };
  /// Gives entries from `from_index` on to `sink`, in order, until their payload reaches
  /// `max_bytes` (one at least), the sink says false (that entry counts as given), or the log ends;
  /// those too that are not durable yet. A payload is valid during the call. unreachable: trimmed;
  /// device_failed: an entry on the disk is damaged; io_error. Latest entries come from memory,
  /// older ones from the files, each checked. What is truncated meanwhile may still be given.
  [[nodiscard]] Result<ReadResult> read(std::uint64_t from_index, std::size_t max_bytes,
                                        const std::function<bool(const Entry&)>& sink) const;

  [[nodiscard]] const LogRecovery& recovery() const noexcept { return recovery_; }
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }

  struct Counters {
    std::uint64_t groups = 0;          ///< durable ones
    std::uint64_t retried_groups = 0;  ///< written again after a short or cancelled write
    std::uint64_t stalls = 0;          ///< a new segment was not ready and had to be waited for
    std::uint64_t segments_made = 0;   ///< filled with zeros
    std::uint64_t segments_reused = 0;
  };
  [[nodiscard]] Counters counters() const;  ///< the owner's
  /// Waits until the background has made and recycled what it was asked to.
  void settle() { files_->settle(); }

  /// Removes the log's files (not the folder, nor anything else in it): what a replica does with a
  /// damaged log before it fetches it anew. already_owned while it is open.
  static Status erase(const std::string& folder);
  /// What the files hold, a line each, for people; also of a damaged log. Changes nothing.
  static Result<std::string> describe(const std::string& folder);

 private:
  /// A piece of the log in memory, byte by byte as in its file. Written by the owner; readers see
  /// what is before `filled`.
  struct Chunk;
  struct Segment;
  using ChunkPtr = std::shared_ptr<Chunk>;
  using SegmentPtr = std::shared_ptr<Segment>;
  /// A range of a chunk that is written at once.
  struct Group {
    std::uint64_t number = 0;
    ChunkPtr chunk;
    std::uint64_t begin = 0, end = 0;  ///< in the chunk; whole blocks
    std::uint64_t last_index = 0;
    std::uint64_t pending_bytes = 0;
    std::uint32_t waiting = 0;  ///< completions to come
    std::int32_t write_result = 0, sync_result = 0;
    std::uint32_t attempts = 0;
    bool submitted = false;  ///< the kernel has it
    bool again = false;      ///< to be sent once more
    bool done = false;       ///< on the disk; or given up, in a failed log
  };
  struct Source;

  Log(std::string folder, const LogOptions& options, FolderLock lock);
  [[nodiscard]] Status start(Findings findings, const std::string& cluster_id);
  [[nodiscard]] Status check_append(std::uint64_t epoch, std::size_t payload_bytes) const;
  [[nodiscard]] Status make_room(std::uint64_t bytes);
  [[nodiscard]] Status begin_segment();
  void begin_chunk(std::uint64_t bytes);
  [[nodiscard]] static SegmentPtr make_segment(SegmentFile file,
                                               const format::Activation& activation);
  void put(std::uint64_t epoch, std::span<const std::byte> payload);
  void seal_next(Group& group);
  [[nodiscard]] static bool begins_segment(const Group& group) noexcept;
  [[nodiscard]] bool send(uring::Ring& ring, Group& group);
  void advance();
  void trim_tail();
  [[nodiscard]] Status fail(Status status);
  [[nodiscard]] Status write_now(Group& group);
  [[nodiscard]] Status restart_at(const format::Activation& activation);
  [[nodiscard]] Result<SegmentPtr> cut_segment(const format::Activation& activation);
  [[nodiscard]] Result<std::uint64_t> epoch_of_locked(std::uint64_t index) const;
  [[nodiscard]] Status unreachable(std::uint64_t index) const;
  [[nodiscard]] Result<Source> find(std::uint64_t index) const;
  [[nodiscard]] bool still_there(const Segment& segment) const;
  struct Reading;
  [[nodiscard]] Status read_chunk(const Source& source, Reading& reading) const;
  [[nodiscard]] Status read_file(const Source& source, Reading& reading) const;

  const std::string folder_;
  const LogOptions options_;
  const FolderLock lock_;
  LogRecovery recovery_;
  std::unique_ptr<SegmentFiles> files_;

  // The owner's.
  alignas(kCacheLine) detail::OwnerThread owner_;
  SegmentPtr segment_;           ///< that entries go to; null before the first
  ChunkPtr chunk_;               ///< that entries go to; null: begin one
  std::uint64_t write_at_ = 0;   ///< offset in segment_ where the next chunk begins, without chunk_
  std::deque<ChunkPtr> unsent_;  ///< with bytes in no group; the last one is chunk_
  std::deque<Group> in_flight_;
  std::vector<ChunkPtr> spare_chunks_;
  std::uint64_t next_group_ = 1;
  std::uint64_t last_epoch_ = 0;
  std::uint64_t tail_ = 0;  ///< last_index_, own copy
  std::size_t pending_bytes_ = 0;
  std::uint64_t last_place_ = 0;  ///< offset in segment_ of its latest Place
  Counters counters_;

  // Published.
  alignas(kCacheLine) std::atomic<std::uint64_t> last_index_{0};
  std::atomic<std::uint64_t> durable_index_{0};
  std::atomic<std::uint64_t> first_index_{1};

  /// Guards what follows. The owner takes it once per 64 KiB, chunk and segment, readers once per
  /// piece that they read; nobody does I/O or calls out under it.
  mutable std::mutex shared_;
  std::deque<SegmentPtr> segments_;
  std::deque<ChunkPtr> chunks_;  ///< the tail in memory: without gaps up to last_index_
  std::size_t chunks_bytes_ = 0;
  std::vector<EpochRun> epochs_;
  std::uint64_t epoch_before_first_ = 0;
  Status failure_;
};

}  // namespace sluice::kv
