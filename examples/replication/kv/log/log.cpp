// SPDX-License-Identifier: BSD-3-Clause
// Writing: appending, groups, cutting.
#include "log.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "log_parts.hpp"

namespace sluice::kv {
namespace {

using format::EntryHeader;
using format::kBlock;

constexpr const char* kOwned = "a log is driven by one thread; another one used it";
/// How often a group is written that comes to nothing without an error.
constexpr std::uint32_t kAttemptsMax = 8;
constexpr std::uint64_t kNumberMask = 0x7fffffff;  ///< of a group's number, in user_data

/// A write that was not begun, or not finished, and said nothing against trying again. A sync that
/// was begun and failed is never one: the kernel may have given up the pages.
bool may_try_again(std::int32_t result) noexcept {
  return result >= 0 || result == -ECANCELED || result == -EINTR || result == -EAGAIN;
}

Status no_room(const uring::Ring& ring) {
  return {StatusCode::resource_exhausted, "write a group of the log: the ring '" +
                                              std::string(ring.name()) +
                                              "' has no room until a handler returns"};
}

}  // namespace

Log::Log(std::string folder, const LogOptions& options, FolderLock lock)
    : folder_(std::move(folder)), options_(options), lock_(std::move(lock)) {}

Log::~Log() {
  for (const Group& group : in_flight_) {
    SLUICE_CHECK(group.again || group.done,
                 "a log was destroyed while the kernel writes from its memory");
  }
}

// --- appending ----------------------------------------------------------------------------------

Status Log::check_append(std::uint64_t epoch, std::size_t payload_bytes) const {
  if (!failure_.ok()) return failure_;  // written by the owner only
  if (epoch < last_epoch_ || epoch == 0) {
    return {StatusCode::rejected, "append entry " + std::to_string(tail_ + 1) + " of epoch " +
                                      std::to_string(epoch) + " after one of epoch " +
                                      std::to_string(last_epoch_)};
  }
  const std::uint64_t most = options_.segment_bytes - format::kEntriesAt - EntryHeader::kBytes;
  if (payload_bytes > most) {
    return {StatusCode::invalid_argument, "append an entry of " + std::to_string(payload_bytes) +
                                              " bytes to a log whose segments take " +
                                              std::to_string(most)};
  }
  const std::uint64_t bytes = format::entry_bytes(payload_bytes);
  if (pending_bytes_ != 0 && pending_bytes_ + bytes > options_.pending_bytes_max) {
    return {StatusCode::resource_exhausted,
            "append " + std::to_string(payload_bytes) + " bytes while " +
                std::to_string(pending_bytes_) + " of " +
                std::to_string(options_.pending_bytes_max) + " are not durable yet"};
  }
  return {};
}

Result<std::uint64_t> Log::append(std::uint64_t epoch, std::span<const std::byte> payload) {
  owner_.check(kOwned);
  SLUICE_RETURN_IF_ERROR(check_append(epoch, payload.size()));
  SLUICE_RETURN_IF_ERROR(make_room(format::entry_bytes(payload.size())));
  put(epoch, payload);
  return tail_;
}

Status Log::append(const Entry& entry) {
  owner_.check(kOwned);
  if (entry.index != tail_ + 1 || entry.previous_epoch != last_epoch_) {
    return {StatusCode::rejected,
            "append entry " + std::to_string(entry.index) + ", which follows one of epoch " +
                std::to_string(entry.previous_epoch) + ", after entry " + std::to_string(tail_) +
                " of epoch " + std::to_string(last_epoch_)};
  }
  return append(entry.epoch, entry.payload).status();
}

/// Sees to it that chunk_ takes an entry of that many bytes.
Status Log::make_room(std::uint64_t bytes) {
  if (chunk_ != nullptr) {
    if (format::entry_place(chunk_->write_at) + bytes <= chunk_->capacity) return {};
    write_at_ = chunk_->base + format::round_up(chunk_->write_at, kBlock);
    chunk_.reset();
  }
  if (segment_ == nullptr || write_at_ + bytes > segment_->file.header.segment_bytes) {
    SLUICE_RETURN_IF_ERROR(begin_segment());
  }
  begin_chunk(bytes);
  return {};
}

Status Log::begin_segment() {
  if (!files_->ready()) ++counters_.stalls;
  auto file = files_->take();
  if (!file.ok()) return file.status().with_context("begin a new segment of the log");
  segment_ = make_segment(std::move(file).value(), {tail_ + 1, last_epoch_, 0, 0});
  write_at_ = format::kActivationAt;  // which its first group brings with it
  const std::lock_guard lock(shared_);
  segments_.push_back(segment_);
  return {};
}

Log::SegmentPtr Log::make_segment(SegmentFile file, const format::Activation& activation) {
  auto segment = std::make_shared<Segment>();
  segment->seed = format::seed_of(file.header.salt);
  segment->mark = format::mark_of(file.header.salt);
  segment->file = std::move(file);
  segment->activation = activation;
  return segment;
}

void Log::begin_chunk(std::uint64_t bytes) {
  const std::uint64_t header = write_at_ == format::kActivationAt ? kBlock : 0;
  const std::uint64_t wanted =
      std::max<std::uint64_t>(options_.chunk_bytes, format::round_up(bytes, kBlock) + header);
  const std::uint64_t capacity = std::min(wanted, segment_->file.header.segment_bytes - write_at_);
  ChunkPtr chunk;
  if (capacity <= options_.chunk_bytes && !spare_chunks_.empty()) {
    chunk = std::move(spare_chunks_.back());
    spare_chunks_.pop_back();
  } else {
    chunk = std::make_shared<Chunk>();
    chunk->memory = allocate_aligned(std::max<std::uint64_t>(capacity, options_.chunk_bytes));
  }
  chunk->capacity = capacity;
  chunk->segment = segment_;
  chunk->base = write_at_;
  chunk->first_entry = chunk->write_at = header;
  chunk->first_index = tail_ + 1;
  chunk->sealed = 0;
  chunk->open_entry = header;
  chunk->open_bytes = 0;
  chunk->last_index = tail_;
  chunk->filled.store(0, std::memory_order_relaxed);  // nobody else has it: shared_ is between
  chunk_ = chunk;
  const std::lock_guard lock(shared_);
  chunks_bytes_ += capacity;
  chunks_.push_back(std::move(chunk));
}

void Log::put(std::uint64_t epoch, std::span<const std::byte> payload) {
  Chunk& chunk = *chunk_;
  const std::uint64_t at = format::entry_place(chunk.write_at);
  const std::uint64_t size = format::entry_bytes(payload.size());
  std::memset(chunk.memory.get() + chunk.write_at, 0, at - chunk.write_at);
  std::memset(chunk.memory.get() + at + size - 8, 0, 8);  // what the payload leaves of the last 8
  format::encode(
      {format::payload_crc(payload, segment_->seed), static_cast<std::uint32_t>(payload.size()),
       segment_->mark, epoch, tail_ + 1, last_epoch_, 0},
      chunk.bytes(at, EntryHeader::kBytes));
  if (!payload.empty()) {
    std::memcpy(chunk.memory.get() + at + EntryHeader::kBytes, payload.data(), payload.size());
  }
  const std::uint64_t offset = chunk.base + at;
  const bool new_epoch = epoch != last_epoch_ || epochs_.empty();
  const bool place = segment_->places.empty() || offset - last_place_ >= kPlaceDistance;
  ++tail_;
  if (new_epoch || place) {
    const std::lock_guard lock(shared_);
    if (new_epoch) epochs_.push_back({tail_, epoch});
    if (place) {
      segment_->places.push_back({tail_, offset});
      last_place_ = offset;
    }
  }
  last_epoch_ = epoch;
  chunk.write_at = at + size;
  chunk.last_index = tail_;
  chunk.open_bytes += size;
  pending_bytes_ += size;
  if (unsent_.empty() || unsent_.back() != chunk_) unsent_.push_back(chunk_);
  // (5) release: pairs with (6) in read_chunk(): the entry is written.
  chunk.filled.store(chunk.write_at, std::memory_order_release);
  last_index_.store(tail_, std::memory_order_release);  // (2) release: pairs with (1)
}

// --- groups -------------------------------------------------------------------------------------

bool Log::has_unsubmitted() const noexcept {
  return !unsent_.empty() && failure_.ok();  // failure_ is written by the owner only
}

/// Whether a segment's Activation is in it.
bool Log::begins_segment(const Group& group) noexcept {
  return group.begin == 0 && group.chunk->base == format::kActivationAt;
}

/// Makes a group of the oldest entries that are in none: the rest of a chunk.
void Log::seal_next(Group& group) {
  group.chunk = std::move(unsent_.front());
  unsent_.pop_front();
  Chunk& chunk = *group.chunk;
  const Segment& segment = *chunk.segment;
  const std::uint64_t durable = durable_index_.load(std::memory_order_relaxed);  // own value
  group.number = next_group_++ & kNumberMask;
  group.begin = chunk.sealed;
  group.end = format::round_up(chunk.write_at, kBlock);
  group.last_index = chunk.last_index;
  group.pending_bytes = chunk.open_bytes;
  if (begins_segment(group)) {
    const auto block = chunk.bytes(0, kBlock);
    std::memset(block.data(), 0, block.size());
    format::Activation activation = segment.activation;
    activation.durable = durable;
    format::encode(activation, segment.file.header.salt, block);
  }
  for (std::uint64_t at = chunk.open_entry; at < chunk.write_at;) {
    at = format::entry_place(at);
    const auto header = chunk.bytes(at, EntryHeader::kBytes);
    format::seal(header, segment.seed, durable);
    at += format::entry_bytes(format::decode_unsealed(header).length);
  }
  std::memset(chunk.memory.get() + chunk.write_at, 0, group.end - chunk.write_at);
  chunk.sealed = chunk.write_at = chunk.open_entry = group.end;
  chunk.open_bytes = 0;
}

Status Log::submit(uring::Ring& ring) {
  owner_.check(kOwned);
  if (!failure_.ok()) return failure_;
  Status status;
  for (Group& group : in_flight_) {
    if (!group.again) continue;
    if (!send(ring, group)) status = no_room(ring);
  }
  while (status.ok() && in_flight_.size() < options_.groups_in_flight_max && !unsent_.empty()) {
    Group& group = in_flight_.emplace_back();
    seal_next(group);
    if (!send(ring, group)) {
      group.again = true;  // sealed for good, sent the next time
      status = no_room(ring);
    }
  }
  const Status submitted = ring.submit();
  for (Group& group : in_flight_) {
    if (group.submitted || group.again) continue;
    if (submitted.ok()) group.submitted = true;
    // Another's operation was refused, and ours was dropped with it. (With any other failure the
    // ring has kept it.)
    if (submitted.code() == StatusCode::invalid_argument) group.again = true;
  }
  return submitted.ok() ? status : submitted;
}

bool Log::send(uring::Ring& ring, Group& group) {
  io_uring_sqe* sqes[2];
  const std::size_t count = options_.dsync ? 1 : 2;
  if (!ring.try_prepare(std::span(sqes, count))) return false;
  const std::uint64_t user_data = std::uint64_t{options_.ring_tag} << 32 | group.number << 1;
  const Chunk& chunk = *group.chunk;
  const int fd = chunk.segment->file.fd.get();
  ::io_uring_prep_write(sqes[0], fd, chunk.memory.get() + group.begin,
                        static_cast<unsigned>(group.end - group.begin), chunk.base + group.begin);
  sqes[0]->user_data = user_data;
  if (options_.dsync) {
    sqes[0]->rw_flags = RWF_DSYNC;
  } else {
    sqes[0]->flags |= IOSQE_IO_LINK;  // a write that fails or is short cancels the sync
    ::io_uring_prep_fsync(sqes[1], fd, IORING_FSYNC_DATASYNC);
    sqes[1]->user_data = user_data | 1;
  }
  group.waiting = static_cast<std::uint32_t>(count);
  group.write_result = group.sync_result = 0;
  group.again = group.submitted = false;
  return true;
}

Status Log::on_completion(const io_uring_cqe& cqe) {
  owner_.check(kOwned);
  SLUICE_CHECK(owns(cqe) && !in_flight_.empty(), "a completion that is not this log's");
  const std::uint64_t ahead = ((cqe.user_data >> 1) - in_flight_.front().number) & kNumberMask;
  SLUICE_CHECK(ahead < in_flight_.size(), "a completion of a group that is not in flight");
  Group& group = in_flight_[ahead];
  SLUICE_CHECK(group.waiting != 0, "a group completed twice");
  ((cqe.user_data & 1) != 0 ? group.sync_result : group.write_result) = cqe.res;
  if (--group.waiting != 0) return failure_;

  const auto bytes = static_cast<std::int32_t>(group.end - group.begin);
  const bool written = group.write_result == bytes;
  const std::int32_t result = written ? group.sync_result : group.write_result;
  if (written && result == 0) {
    group.done = true;
  } else if (failure_.ok() && group.attempts < kAttemptsMax &&
             (written ? result == -ECANCELED : may_try_again(result))) {
    ++group.attempts;
    ++counters_.retried_groups;
    group.again = true;
  } else {
    group.done = true;
    const SegmentFile& file = group.chunk->segment->file;
    (void)fail(system_failure((written ? "fdatasync '" : "write '") + file.path + "', offset " +
                                  std::to_string(group.chunk->base + group.begin) +
                                  ", entries up to " + std::to_string(group.last_index),
                              result < 0 ? -result : EIO));
  }
  advance();
  return failure_;
}

/// Moves durable_index() over what is done.
void Log::advance() {
  const bool working = failure_.ok();
  if (!working) {
    for (Group& group : in_flight_) group.done = group.done || group.again;
  }
  while (!in_flight_.empty() && in_flight_.front().done) {
    const Group group = std::move(in_flight_.front());
    in_flight_.pop_front();
    if (!working) continue;
    pending_bytes_ -= group.pending_bytes;
    ++counters_.groups;
    // (4) release: pairs with (3).
    durable_index_.store(group.last_index, std::memory_order_release);
    // Its segment has begun, durably: now the next one may be made.
    if (begins_segment(group)) files_->request();
  }
  if (chunks_bytes_ > options_.tail_bytes) trim_tail();
}

/// Lets go of memory beyond tail_bytes, as far as it is durable.
void Log::trim_tail() {
  const std::uint64_t durable = durable_index_.load(std::memory_order_relaxed);  // own value
  const std::lock_guard lock(shared_);
  while (chunks_bytes_ > options_.tail_bytes && chunks_.front() != chunk_ &&
         chunks_.front()->last_index <= durable) {
    ChunkPtr chunk = std::move(chunks_.front());
    chunks_.pop_front();
    chunks_bytes_ -= chunk->capacity;
    // A reader that has it lets go of it under shared_: then it is only freed.
    if (chunk.use_count() == 1 && chunk->capacity <= options_.chunk_bytes) {
      chunk->segment.reset();
      spare_chunks_.push_back(std::move(chunk));
    }
  }
}

Status Log::failed() const {
  const std::lock_guard lock(shared_);
  return failure_;
}

Status Log::fail(Status status) {
  const std::lock_guard lock(shared_);
  if (failure_.ok()) {
    failure_ = status.with_context(
        "the log takes no more entries, since what the disk has after a failed write is not known "
        "(what was durable is; look at the disk, then start again)");
  }
  return failure_;
}

Status Log::sync() {
  owner_.check(kOwned);
  SLUICE_RETURN_IF_ERROR(failed());
  SLUICE_CHECK(in_flight_.empty(), "sync() of a log while groups are on a ring");
  while (!unsent_.empty()) {
    Group& group = in_flight_.emplace_back();
    seal_next(group);
    const Status status = write_now(group);
    group.done = true;
    if (!status.ok()) (void)fail(status);
    advance();
    SLUICE_RETURN_IF_ERROR(failed());
  }
  return {};
}

Status Log::write_now(Group& group) {
  Chunk& chunk = *group.chunk;
  const SegmentFile& file = chunk.segment->file;
  SLUICE_RETURN_IF_ERROR(write_all(file.fd.get(), file.path,
                                   chunk.bytes(group.begin, group.end - group.begin),
                                   chunk.base + group.begin));
  return sync_data(file.fd.get(), file.path);
}

// --- cutting ------------------------------------------------------------------------------------

Status Log::truncate_after(std::uint64_t index) {
  owner_.check(kOwned);
  SLUICE_RETURN_IF_ERROR(failed());
  const std::uint64_t first = first_index();
  if (index + 1 < first || index > tail_) {
    return {StatusCode::invalid_argument, "truncate the log after entry " + std::to_string(index) +
                                              ": it has " + std::to_string(first) + " to " +
                                              std::to_string(tail_)};
  }
  if (!in_flight_.empty()) {
    return {StatusCode::resource_exhausted, "truncate the log after entry " +
                                                std::to_string(index) + " while " +
                                                std::to_string(in_flight_.size()) +
                                                " groups are on a ring: take their completions"};
  }
  SLUICE_RETURN_IF_ERROR(sync());
  if (index == tail_) return {};
  const auto epoch = epoch_of(index);
  SLUICE_RETURN_IF_ERROR(epoch.status());
  return restart_at({index + 1, *epoch, index, format::Activation::kCuts});
}

Status Log::restart_after(std::uint64_t index, std::uint64_t epoch) {
  owner_.check(kOwned);
  SLUICE_RETURN_IF_ERROR(failed());
  if (!in_flight_.empty()) {
    return {StatusCode::resource_exhausted, "restart the log after entry " + std::to_string(index) +
                                                " while " + std::to_string(in_flight_.size()) +
                                                " groups are on a ring: take their completions"};
  }
  if ((index == 0) != (epoch == 0)) {
    return {StatusCode::invalid_argument, "restart the log after entry " + std::to_string(index) +
                                              " of epoch " + std::to_string(epoch)};
  }
  return restart_at({index + 1, epoch, index, format::Activation::kRestarts});
}

/// Begins a segment that makes void what earlier ones hold: nothing old is written over, and the
/// one write of its Activation is the moment at which it counts.
Status Log::restart_at(const format::Activation& activation) {
  auto made = cut_segment(activation);
  SLUICE_RETURN_IF_ERROR(made.status());
  const SegmentPtr& newest = *made;
  const std::uint64_t after = activation.first_index - 1;
  const bool all = (activation.flags & format::Activation::kRestarts) != 0;
  std::vector<std::string> superseded;
  {
    const std::lock_guard lock(shared_);
    while (!segments_.empty() &&
           (all || segments_.back()->first_index() >= activation.first_index)) {
      superseded.push_back(segments_.back()->file.path);
      segments_.pop_back();
    }
    segments_.push_back(newest);
    while (!epochs_.empty() && (all || epochs_.back().first_index > after)) epochs_.pop_back();
    if (segments_.size() == 1) epoch_before_first_ = activation.previous_epoch;
    chunks_.clear();
    chunks_bytes_ = 0;
    last_index_.store(after, std::memory_order_relaxed);  // readers look again under shared_
    first_index_.store(segments_.front()->first_index(), std::memory_order_relaxed);
  }
  segment_ = newest;
  // (4) release: pairs with (3).
  durable_index_.store(after, std::memory_order_release);
  unsent_.clear();
  chunk_.reset();
  write_at_ = format::kEntriesAt;
  tail_ = after;
  last_epoch_ = activation.previous_epoch;
  pending_bytes_ = 0;
  for (std::string& path : superseded) files_->recycle(std::move(path));
  files_->request();
  return {};
}

Result<Log::SegmentPtr> Log::cut_segment(const format::Activation& activation) {
  auto file = files_->take();
  if (!file.ok()) return file.status().with_context("begin a new segment to cut the log");
  const AlignedBytes memory = allocate_aligned(kBlock);
  const std::span<std::byte> block(memory.get(), kBlock);
  std::memset(block.data(), 0, kBlock);
  format::encode(activation, file->header.salt, block);
  Status status = write_all(file->fd.get(), file->path, block, format::kActivationAt);
  if (status.ok()) status = sync_data(file->fd.get(), file->path);
  if (!status.ok()) return fail(status);
  return make_segment(std::move(file).value(), activation);
}

void Log::trim_before(std::uint64_t index) {
  owner_.check(kOwned);
  std::vector<std::string> paths;
  {
    const std::lock_guard lock(shared_);
    const std::uint64_t durable = durable_index_.load(std::memory_order_relaxed);  // own value
    // Not before the one that follows has begun on the disk.
    const auto begun = [&](const Segment& segment) {
      return segment.activation.flags != 0 || segment.first_index() <= durable;
    };
    while (segments_.size() > 1 && segments_[1]->first_index() <= index && begun(*segments_[1])) {
      epoch_before_first_ = segments_[1]->activation.previous_epoch;
      paths.push_back(segments_.front()->file.path);
      segments_.pop_front();
    }
    if (paths.empty()) return;
    const std::uint64_t first = segments_.front()->first_index();
    while (epochs_.size() > 1 && epochs_[1].first_index <= first) epochs_.erase(epochs_.begin());
    while (!chunks_.empty() && chunks_.front() != chunk_ && chunks_.front()->last_index < first) {
      chunks_bytes_ -= chunks_.front()->capacity;
      chunks_.pop_front();
    }
    first_index_.store(first, std::memory_order_relaxed);  // readers look again under shared_
  }
  for (std::string& path : paths) files_->recycle(std::move(path));
}

Log::Counters Log::counters() const {
  Counters counters = counters_;
  counters.segments_made = files_->made_anew();
  counters.segments_reused = files_->reused();
  return counters;
}

}  // namespace sluice::kv
