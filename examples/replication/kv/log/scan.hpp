// SPDX-License-Identifier: BSD-3-Clause
// Reading a segment: entry by entry, and what there is to say about the place where that ends.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format.hpp"

namespace sluice::kv {

/// The next entry of a segment, wherever it is read from. `bytes` begins at `base` in the file.
/// At most one block boundary is skipped: what ends a group.
enum class Walk : std::uint8_t {
  entry,  ///< valid, and its payload too
  bad,    ///< neither here nor at the next block's begin is entry `index`
  more,   ///< the bytes end before that can be said
};
struct WalkResult {
  Walk kind = Walk::bad;
  std::uint64_t at = 0;  ///< of the entry in the file, or of where it should be
  format::EntryHeader header;
  std::uint64_t need = 0;  ///< with more: bytes from `at` that would tell
};
/// `end` is the file's size: nothing is beyond. `index` and `previous_epoch` must follow on.
[[nodiscard]] WalkResult walk(std::span<const std::byte> bytes, std::uint64_t base,
                              std::uint64_t at, std::uint64_t end, std::uint32_t seed,
                              std::uint64_t index, std::uint64_t previous_epoch);

/// Where an entry is.
struct Place {
  std::uint64_t index;
  std::uint64_t offset;  ///< in its file
};
/// From which entry on which epoch.
struct EpochRun {
  std::uint64_t first_index;
  std::uint64_t epoch;
};

/// One file of the log as it was read: what is valid, and what it says about what is not.
struct SegmentScan {
  std::uint64_t last_index = 0;  ///< first_index - 1: none
  std::uint64_t last_epoch = 0;
  std::uint64_t end = 0;      ///< where the next group would begin
  std::vector<Place> places;  ///< about one per kPlaceDistance bytes
  std::vector<EpochRun> epochs;
  /// Something of ours is where entry last_index + 1 should be, or behind it, and is not valid.
  bool damaged = false;
  std::string why;                   ///< what is wrong there, for people
  std::uint64_t bad_at = 0;          ///< offset of it
  std::uint64_t valid_beyond = 0;    ///< entries behind it that are valid
  std::uint64_t last_beyond = 0;     ///< the highest index of them
  std::uint64_t durable_beyond = 0;  ///< the highest `durable` that they tell
};
inline constexpr std::uint64_t kPlaceDistance = 64 * 1024;

/// Scans a whole file. `stop_index`: a later segment begins behind it (what follows is void); 0:
/// this is the last one.
[[nodiscard]] SegmentScan scan_segment(std::span<const std::byte> file,
                                       const format::SegmentHeader& header,
                                       const format::Activation& activation,
                                       std::uint64_t stop_index);
/// Valid entries at block boundaries from `from` on: what survives of groups.
void look_beyond(std::span<const std::byte> file, std::uint64_t from, std::uint32_t seed,
                 SegmentScan& scan);

}  // namespace sluice::kv
