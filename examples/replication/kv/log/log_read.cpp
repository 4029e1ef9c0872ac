// SPDX-License-Identifier: BSD-3-Clause
// Reading: from memory what is recent, from the files what is older. Any thread.
#include <algorithm>

#include "log_parts.hpp"

namespace sluice::kv {
namespace {

using format::EntryHeader;
using format::kBlock;

/// What is read of a file at a time, unless an entry is larger.
constexpr std::size_t kWindowBytes = 256 * 1024;

}  // namespace

/// Where to find an entry: a place at or before it, in a chunk or else in a file. Keeps both alive.
struct Log::Source {
  SegmentPtr segment;
  ChunkPtr chunk;                    ///< null: the file
  Place start{};                     ///< the offset is the file's, of a chunk too
  std::uint64_t previous_epoch = 0;  ///< of the entry before `start`
  std::uint64_t stop_index = 0;      ///< the last one to read here
};

/// How far a read() has come.
struct Log::Reading {
  std::uint64_t next;
  std::size_t bytes = 0;
  const std::size_t bytes_max;
  const std::function<bool(const Entry&)>& sink;
  bool enough = false;

  void give(const EntryHeader& header, std::span<const std::byte> payload) {
    if (header.index != next) return;  // on the way from the place to where it begins
    ++next;
    bytes += payload.size();
    const bool more = sink({header.epoch, header.index, header.previous_epoch, payload});
    enough = !more || bytes >= bytes_max;
  }
};

Status Log::unreachable(std::uint64_t index) const {
  return {StatusCode::unreachable,
          "the log in '" + folder_ + "' has entries " + std::to_string(first_index()) + " to " +
              std::to_string(last_index()) + ", not " + std::to_string(index)};
}

Result<std::uint64_t> Log::epoch_of(std::uint64_t index) const {
  const std::lock_guard lock(shared_);
  return epoch_of_locked(index);
}

Result<std::uint64_t> Log::epoch_of_locked(std::uint64_t index) const {
  const std::uint64_t first = first_index_.load(std::memory_order_relaxed);  // under shared_
  if (index + 1 == first) return epoch_before_first_;
  if (index < first || index > last_index()) return unreachable(index);
  const auto after =
      std::upper_bound(epochs_.begin(), epochs_.end(), index,
                       [](std::uint64_t i, const EpochRun& run) { return i < run.first_index; });
  SLUICE_CHECK(after != epochs_.begin(), "an entry of a log has no epoch");
  return std::prev(after)->epoch;
}

Result<Log::Source> Log::find(std::uint64_t index) const {
  const std::lock_guard lock(shared_);
  // Both are changed downwards under shared_ only.
  if (index < first_index_.load(std::memory_order_relaxed)) return unreachable(index);
  Source source;
  source.stop_index = last_index();
  if (index > source.stop_index) return source;
  if (!chunks_.empty() && index >= chunks_.front()->first_index) {
    const auto after = std::upper_bound(
        chunks_.begin(), chunks_.end(), index,
        [](std::uint64_t i, const ChunkPtr& chunk) { return i < chunk->first_index; });
    source.chunk = *std::prev(after);
    source.segment = source.chunk->segment;
    source.start = {source.chunk->first_index, source.chunk->base + source.chunk->first_entry};
  } else {
    const auto after = std::upper_bound(
        segments_.begin(), segments_.end(), index,
        [](std::uint64_t i, const SegmentPtr& segment) { return i < segment->first_index(); });
    source.segment = *std::prev(after);
    source.start = {source.segment->first_index(), format::kEntriesAt};
    // What is not in memory is durable.
    if (after != segments_.end()) source.stop_index = (*after)->first_index() - 1;
    if (!chunks_.empty()) {
      source.stop_index = std::min(source.stop_index, chunks_.front()->first_index - 1);
    }
  }
  const auto& places = source.segment->places;
  const auto beyond =
      std::upper_bound(places.begin(), places.end(), index,
                       [](std::uint64_t i, const Place& place) { return i < place.index; });
  if (beyond != places.begin() && std::prev(beyond)->offset > source.start.offset) {
    source.start = *std::prev(beyond);
  }
  const auto epoch = epoch_of_locked(source.start.index - 1);
  SLUICE_CHECK(epoch.ok() || source.chunk != nullptr, "the log's segments and epochs differ");
  source.previous_epoch = epoch.ok() ? *epoch : 0;
  return source;
}

bool Log::still_there(const Segment& segment) const {
  const std::lock_guard lock(shared_);
  return std::any_of(segments_.begin(), segments_.end(),
                     [&](const SegmentPtr& other) { return other.get() == &segment; });
}

Result<Log::ReadResult> Log::read(std::uint64_t from_index, std::size_t max_bytes,
                                  const std::function<bool(const Entry&)>& sink) const {
  Reading reading{from_index, 0, max_bytes, sink};
  while (!reading.enough) {  // bound: each turn gives an entry, or ends
    auto source = find(reading.next);
    if (!source.ok()) {
      if (reading.next != from_index) break;  // trimmed behind what was given: the next call says
      return source.status();
    }
    if (source->segment == nullptr) break;
    const std::uint64_t before = reading.next;
    const Status status =
        source->chunk != nullptr ? read_chunk(*source, reading) : read_file(*source, reading);
    {
      // Under shared_, so that the owner, when it sees that nobody else has the chunk, comes after
      // us. See trim_tail().
      const std::lock_guard lock(shared_);
      source->chunk.reset();
    }
    if (!status.ok() && reading.next == from_index) return status;
    if (!status.ok() || reading.next == before) break;
  }
  return ReadResult{reading.next, reading.bytes};
}

Status Log::read_chunk(const Source& source, Reading& reading) const {
  Chunk& chunk = *source.chunk;
  // (6) acquire: pairs with (5) in put().
  const std::uint64_t filled = chunk.filled.load(std::memory_order_acquire);
  std::uint64_t at = source.start.offset - chunk.base;
  std::uint64_t index = source.start.index;
  // Not beyond stop_index, though more may be filled: put() counts an entry after it has filled it,
  // and nobody shall be given one that last_index() does not know.
  while (!reading.enough && index <= source.stop_index) {  // bound: the chunk
    at = format::entry_place(at);
    if (at >= filled) break;
    const EntryHeader header = format::decode_unsealed(chunk.bytes(at, EntryHeader::kBytes));
    if (header.mark != source.segment->mark) {
      SLUICE_CHECK(at % kBlock != 0, "a log's memory has a gap");
      at = format::round_up(at, kBlock);  // a group ended
      continue;
    }
    SLUICE_CHECK(header.index == index, "a log's memory is out of order");
    reading.give(header, chunk.bytes(at + EntryHeader::kBytes, header.length));
    at += format::entry_bytes(header.length);
    ++index;
  }
  return {};
}

Status Log::read_file(const Source& source, Reading& reading) const {
  const Segment& segment = *source.segment;
  const SegmentFile& file = segment.file;
  std::uint64_t end = file.header.segment_bytes;
  std::uint64_t at = source.start.offset;
  std::uint64_t index = source.start.index;
  std::uint64_t previous_epoch = source.previous_epoch;
  AlignedBytes memory;
  std::size_t memory_bytes = 0;
  std::span<const std::byte> window;
  std::uint64_t base = at;                                 // of the window
  while (!reading.enough && index <= source.stop_index) {  // bound: the file
    const WalkResult next = walk(window, base, at, end, segment.seed, index, previous_epoch);
    switch (next.kind) {
      case Walk::entry:
        reading.give(next.header,
                     window.subspan(next.at - base + EntryHeader::kBytes, next.header.length));
        at = next.at + format::entry_bytes(next.header.length);
        previous_epoch = next.header.epoch;
        ++index;
        break;
      case Walk::more: {
        base = at / kBlock * kBlock;
        const std::uint64_t wanted =
            std::min(std::max<std::uint64_t>(format::round_up(next.at - base + next.need, kBlock),
                                             kWindowBytes),
                     format::round_up(end - base, kBlock));
        if (wanted > memory_bytes) {
          memory = allocate_aligned(wanted);
          memory_bytes = wanted;
        }
        auto count = read_some(file.fd.get(), file.path, {memory.get(), wanted}, base);
        SLUICE_RETURN_IF_ERROR(count.status());
        window = {memory.get(), *count};
        if (*count < wanted) end = std::min(end, base + *count);  // shorter than it was
        break;
      }
      case Walk::bad:
        // Used again for something else while we read it: no damage.
        if (!still_there(segment)) return unreachable(index);
        return {StatusCode::device_failed,
                "read the log: '" + file.path + "', offset " + std::to_string(next.at) +
                    ", entry " + std::to_string(index) +
                    ": damaged since it was written; this copy must not be used any more"};
    }
  }
  return {};
}

}  // namespace sluice::kv
