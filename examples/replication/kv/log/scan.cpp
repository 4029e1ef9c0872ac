// SPDX-License-Identifier: BSD-3-Clause
#include "scan.hpp"

#include <algorithm>
#include <bit>

namespace sluice::kv {
namespace {

using format::EntryHeader;
using format::kBlock;

/// How many bits of a mark one damaged byte can change.
constexpr int kDamagedBits = 8;

/// Whether what is not a valid header here was written for this place. What a recycled file held
/// before has another mark; it may have the very index, after a cut.
bool looks_ours(std::span<const std::byte> file, std::uint64_t at, std::uint32_t seed,
                std::uint32_t mark, std::uint64_t index) {
  if (at + EntryHeader::kBytes > file.size()) return false;
  EntryHeader header;
  if (format::decode(file.subspan(at, EntryHeader::kBytes), seed, header)) return true;
  return header.mark == mark ||
         (header.index == index && std::popcount(header.mark ^ mark) <= kDamagedBits);
}

std::string said(const char* what, std::uint64_t at) {
  return std::string(what) + " at offset " + std::to_string(at);
}

/// Says what is wrong at the end of the valid entries, if something is.
void judge_end(std::span<const std::byte> file, const format::SegmentHeader& header,
               std::uint64_t at, SegmentScan& scan) {
  const std::uint32_t seed = format::seed_of(header.salt);
  const std::uint32_t mark = format::mark_of(header.salt);
  const std::uint64_t index = scan.last_index + 1;
  for (const std::uint64_t place : {format::entry_place(at), scan.end}) {
    if (!looks_ours(file, place, seed, mark, index)) continue;
    scan.damaged = true;
    scan.why = said("damaged or incomplete entry", place);
    scan.bad_at = place;
    break;
  }
  look_beyond(file, scan.end, seed, scan);
  if (scan.valid_beyond != 0 && !scan.damaged) {
    scan.damaged = true;
    scan.why = said("missing entry", scan.end);
    scan.bad_at = scan.end;
  }
  if (!scan.damaged && file.size() < header.segment_bytes) {
    scan.damaged = true;
    scan.why = "the file ends at " + std::to_string(file.size()) + " and not at " +
               std::to_string(header.segment_bytes);
    scan.bad_at = std::min<std::uint64_t>(at, file.size());
  }
  if (!scan.damaged && header.fresh && scan.end < file.size()) {
    const auto rest = file.subspan(scan.end);
    const auto first =
        std::find_if(rest.begin(), rest.end(), [](std::byte byte) { return byte != std::byte{0}; });
    if (first == rest.end()) return;
    scan.damaged = true;
    scan.bad_at = scan.end + static_cast<std::uint64_t>(first - rest.begin());
    scan.why = said("garbage", scan.bad_at);
  }
}

}  // namespace

WalkResult walk(std::span<const std::byte> bytes, std::uint64_t base, std::uint64_t at,
                std::uint64_t end, std::uint32_t seed, std::uint64_t index,
                std::uint64_t previous_epoch) {
  WalkResult result;
  // Behind the entry before, or where a group ended: the next block. (Twice the same: harmless.)
  for (const std::uint64_t place : {format::entry_place(at), format::round_up(at, kBlock)}) {
    result.at = place;
    if (place + EntryHeader::kBytes > end) break;
    if (place + EntryHeader::kBytes > base + bytes.size()) {
      return {Walk::more, place, {}, EntryHeader::kBytes};
    }
    if (!format::decode(bytes.subspan(place - base, EntryHeader::kBytes), seed, result.header)) {
      continue;
    }
    const EntryHeader& header = result.header;
    if (header.index != index || header.previous_epoch != previous_epoch ||
        header.epoch < previous_epoch || header.epoch == 0) {
      continue;
    }
    const std::uint64_t size = format::entry_bytes(header.length);
    if (place + size > end) break;
    if (place + size > base + bytes.size()) return {Walk::more, place, {}, size};
    const auto payload = bytes.subspan(place - base + EntryHeader::kBytes, header.length);
    if (format::payload_crc(payload, seed) != header.payload_crc) break;
    result.kind = Walk::entry;
    return result;
  }
  return result;
}

void look_beyond(std::span<const std::byte> file, std::uint64_t from, std::uint32_t seed,
                 SegmentScan& scan) {
  EntryHeader header;
  for (std::uint64_t at = format::round_up(from, kBlock); at + EntryHeader::kBytes <= file.size();
       at += kBlock) {
    if (!format::decode(file.subspan(at, EntryHeader::kBytes), seed, header)) continue;
    ++scan.valid_beyond;
    scan.last_beyond = std::max(scan.last_beyond, header.index);
    scan.durable_beyond = std::max(scan.durable_beyond, header.durable);
  }
}

SegmentScan scan_segment(std::span<const std::byte> file, const format::SegmentHeader& header,
                         const format::Activation& activation, std::uint64_t stop_index) {
  const std::uint32_t seed = format::seed_of(header.salt);
  SegmentScan scan;
  scan.last_index = activation.first_index - 1;
  scan.last_epoch = activation.previous_epoch;
  scan.end = format::kEntriesAt;
  std::uint64_t at = format::kEntriesAt;
  while (stop_index == 0 || scan.last_index < stop_index) {  // bound: the file's size
    const WalkResult next =
        walk(file, 0, at, file.size(), seed, scan.last_index + 1, scan.last_epoch);
    if (next.kind != Walk::entry) {
      judge_end(file, header, at, scan);
      if (stop_index != 0 && !scan.damaged) {
        scan.damaged = true;
        scan.bad_at = scan.end;
        scan.why = said("missing entry", scan.end);
      }
      return scan;
    }
    if (scan.places.empty() || next.at - scan.places.back().offset >= kPlaceDistance) {
      scan.places.push_back({next.header.index, next.at});
    }
    if (scan.epochs.empty() || scan.epochs.back().epoch != next.header.epoch) {
      scan.epochs.push_back({next.header.index, next.header.epoch});
    }
    scan.last_index = next.header.index;
    scan.last_epoch = next.header.epoch;
    at = next.at + format::entry_bytes(next.header.length);
    scan.end = format::round_up(at, kBlock);
  }
  return scan;
}

}  // namespace sluice::kv
