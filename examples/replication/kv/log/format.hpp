// SPDX-License-Identifier: BSD-3-Clause
// What is in a segment file, byte by byte. All integers are little-endian.
//
//   block 0      SegmentHeader, written when the file is made ready and never touched again
//   block 1      Activation, written together with the segment's first group
//   block 2...   groups: entries one behind the other, 8-byte aligned, the first of a group on a
//                block's boundary, the rest of its last block zero
//
// An entry is 48 bytes of header, then the payload, then 0..7 zeros. A header lies within one
// block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sluice::kv::format {

inline constexpr std::uint32_t kVersion = 1;
/// What is written at once: no durable byte is ever written again. See README, "Why blocks".
inline constexpr std::size_t kBlock = 4096;
/// The Activation's place: in another block than the header's, so that writing the one cannot tear
/// the other.
inline constexpr std::size_t kActivationAt = kBlock;
inline constexpr std::size_t kEntriesAt = 2 * kBlock;
inline constexpr std::size_t kClusterIdMax = 64;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t to) noexcept {
  return (value + to - 1) / to * to;
}

/// Who wrote the file, and the salt that tells its entries from what it held in an earlier life.
struct SegmentHeader {
  static constexpr std::size_t kBytes = 108;
  std::uint32_t version = kVersion;
  std::uint64_t generation = 0;     ///< > 0; grows with each segment of a folder
  std::uint64_t segment_bytes = 0;  ///< of the whole file
  std::uint64_t salt = 0;
  bool fresh = false;      ///< its blocks were zero when it was made: all else is ours
  std::string cluster_id;  ///< up to kClusterIdMax bytes
};
enum class HeaderFault : std::uint8_t { none, not_a_segment, newer_version, damaged };
void encode(const SegmentHeader& header, std::span<std::byte> block);
/// Reads from the first SegmentHeader::kBytes of `block`. With newer_version only the version is
/// set.
[[nodiscard]] HeaderFault decode(std::span<const std::byte> block, SegmentHeader& header);

/// Where a segment begins in the log.
struct Activation {
  static constexpr std::size_t kBytes = 32;
  enum Flags : std::uint32_t {
    kCuts = 1,      ///< what earlier segments hold from first_index on is void
    kRestarts = 2,  ///< earlier segments are void altogether
  };
  std::uint64_t first_index = 0;
  std::uint64_t previous_epoch = 0;  ///< of the entry before the first; 0: there was none
  std::uint64_t durable = 0;         ///< what was durable when this was written
  std::uint32_t flags = 0;
};
/// Whether there is one.
enum class ActivationState : std::uint8_t { none, valid, damaged };
/// `block` is the Activation's own.
void encode(const Activation& activation, std::uint64_t salt, std::span<std::byte> block);
[[nodiscard]] ActivationState decode(std::span<const std::byte> block, std::uint64_t salt,
                                     Activation& activation);

/// In front of each payload. `durable` is what makes a torn tail and a damaged middle two things:
/// an entry that says "5 was durable when I was written" behind a bad entry 5 shows that an
/// acknowledged entry is lost.
struct EntryHeader {
  static constexpr std::size_t kBytes = 48;
  std::uint32_t payload_crc = 0;  ///< over the salt and the payload
  std::uint32_t length = 0;       ///< of the payload
  std::uint32_t mark = 0;         ///< mark_of(salt), in clear: whose a damaged header was
  std::uint64_t epoch = 0;
  std::uint64_t index = 0;
  std::uint64_t previous_epoch = 0;
  std::uint64_t durable = 0;
};
[[nodiscard]] inline std::uint32_t mark_of(std::uint64_t salt) noexcept {
  return static_cast<std::uint32_t>(salt) | 1;  // never that of zeros
}
/// The CRC that all of a segment's CRCs start from.
[[nodiscard]] std::uint32_t seed_of(std::uint64_t salt) noexcept;

/// Writes all but what seal() writes.
void encode(const EntryHeader& header, std::span<std::byte> out) noexcept;
/// Sets `durable` and the header's CRC: the entry is valid from here on.
void seal(std::span<std::byte> header, std::uint32_t seed, std::uint64_t durable) noexcept;
/// Whether the header's CRC is right; fills `header` either way.
[[nodiscard]] bool decode(std::span<const std::byte> in, std::uint32_t seed,
                          EntryHeader& header) noexcept;
/// Without the fields that seal() writes (0): for one that may be sealed by another thread now.
[[nodiscard]] EntryHeader decode_unsealed(std::span<const std::byte> in) noexcept;
[[nodiscard]] std::uint32_t payload_crc(std::span<const std::byte> payload,
                                        std::uint32_t seed) noexcept;

/// Of an entry in the file.
constexpr std::uint64_t entry_bytes(std::uint64_t length) noexcept {
  return round_up(EntryHeader::kBytes + length, 8);
}

/// Where an entry that comes behind `at` begins: there, or on the next block.
constexpr std::uint64_t entry_place(std::uint64_t at) noexcept {
  return kBlock - at % kBlock < EntryHeader::kBytes ? round_up(at, kBlock) : at;
}

}  // namespace sluice::kv::format
