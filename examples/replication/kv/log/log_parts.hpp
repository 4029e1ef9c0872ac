// SPDX-License-Identifier: BSD-3-Clause
// What a Log is made of. Private to its sources.
#pragma once

#include "log.hpp"

namespace sluice::kv {

/// A file that entries are in. Constant but for `places`, which Log::shared_ guards.
struct Log::Segment {
  SegmentFile file;
  format::Activation activation;
  std::uint32_t seed = 0;
  std::uint32_t mark = 0;
  std::vector<Place> places;
  [[nodiscard]] std::uint64_t first_index() const noexcept { return activation.first_index; }
};

struct Log::Chunk {
  AlignedBytes memory;
  std::uint64_t capacity = 0;
  SegmentPtr segment;
  std::uint64_t base = 0;         ///< offset in the file of the first byte
  std::uint64_t first_entry = 0;  ///< offset in the chunk of entry first_index
  std::uint64_t first_index = 0;
  /// Bytes that readers may look at: all entries before it are complete, but for what seal() sets.
  std::atomic<std::uint64_t> filled{0};

  // The owner's.
  std::uint64_t write_at = 0;  ///< where the next entry would begin, at the earliest
  std::uint64_t sealed = 0;    ///< what is before it is in a group
  std::uint64_t last_index = 0;
  std::uint64_t open_bytes = 0;  ///< of the entries behind `sealed`
  std::uint64_t open_entry = 0;  ///< where they begin

  [[nodiscard]] std::span<std::byte> bytes(std::uint64_t at, std::uint64_t count) noexcept {
    return {memory.get() + at, count};
  }
};

}  // namespace sluice::kv
