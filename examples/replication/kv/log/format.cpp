// SPDX-License-Identifier: BSD-3-Clause
#include "format.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "crc32c.hpp"

namespace sluice::kv::format {
namespace {

using replicate::crc32c;

constexpr char kMagic[8] = {'s', 'l', 'u', 'i', 'c', 'e', 'L', 'G'};

template <typename T>
void put(std::span<std::byte> out, std::size_t at, T value) noexcept {
  if constexpr (std::endian::native == std::endian::big) {
    value = sizeof(T) == 8 ? static_cast<T>(__builtin_bswap64(value))
                           : static_cast<T>(__builtin_bswap32(static_cast<std::uint32_t>(value)));
  }
  std::memcpy(out.data() + at, &value, sizeof value);
}

template <typename T>
T get(std::span<const std::byte> in, std::size_t at) noexcept {
  T value;
  std::memcpy(&value, in.data() + at, sizeof value);
  if constexpr (std::endian::native == std::endian::big) {
    value = sizeof(T) == 8 ? static_cast<T>(__builtin_bswap64(value))
                           : static_cast<T>(__builtin_bswap32(static_cast<std::uint32_t>(value)));
  }
  return value;
}

// SegmentHeader
constexpr std::size_t kHeaderCrcAt = SegmentHeader::kBytes - 4;
constexpr std::uint32_t kFreshBit = 1U << 31;  ///< beside the cluster id's length
// EntryHeader
constexpr std::size_t kCrcAt = 0, kPayloadCrcAt = 4, kLengthAt = 8, kMarkAt = 12, kEpochAt = 16,
                      kIndexAt = 24, kPreviousAt = 32, kDurableAt = 40;

}  // namespace

void encode(const SegmentHeader& header, std::span<std::byte> block) {
  std::memset(block.data(), 0, SegmentHeader::kBytes);
  std::memcpy(block.data(), kMagic, sizeof kMagic);
  const auto length = static_cast<std::uint32_t>(std::min(header.cluster_id.size(), kClusterIdMax));
  put(block, 8, header.version);
  put(block, 12, length | (header.fresh ? kFreshBit : 0U));
  put(block, 16, header.generation);
  put(block, 24, header.segment_bytes);
  put(block, 32, header.salt);
  std::memcpy(block.data() + 40, header.cluster_id.data(), length);
  put(block, kHeaderCrcAt, crc32c(block.first(kHeaderCrcAt)));
}

HeaderFault decode(std::span<const std::byte> block, SegmentHeader& header) {
  if (block.size() < SegmentHeader::kBytes) return HeaderFault::not_a_segment;
  if (std::memcmp(block.data(), kMagic, sizeof kMagic) != 0) return HeaderFault::not_a_segment;
  header.version = get<std::uint32_t>(block, 8);
  // Before the CRC: a later version may have it elsewhere.
  if (header.version > kVersion) return HeaderFault::newer_version;
  if (get<std::uint32_t>(block, kHeaderCrcAt) != crc32c(block.first(kHeaderCrcAt))) {
    return HeaderFault::damaged;
  }
  const auto length = get<std::uint32_t>(block, 12);
  header.fresh = (length & kFreshBit) != 0;
  header.generation = get<std::uint64_t>(block, 16);
  header.segment_bytes = get<std::uint64_t>(block, 24);
  header.salt = get<std::uint64_t>(block, 32);
  header.cluster_id.assign(reinterpret_cast<const char*>(block.data() + 40),
                           std::min<std::size_t>(length & ~kFreshBit, kClusterIdMax));
  return HeaderFault::none;
}

void encode(const Activation& activation, std::uint64_t salt, std::span<std::byte> block) {
  const auto out = block.first(Activation::kBytes);
  put(out, 0, activation.first_index);
  put(out, 8, activation.previous_epoch);
  put(out, 16, activation.durable);
  put(out, 24, activation.flags);
  put(out, 28, crc32c(out.first(28), seed_of(salt)));
}

ActivationState decode(std::span<const std::byte> block, std::uint64_t salt,
                       Activation& activation) {
  const auto in = block.first(Activation::kBytes);
  const bool empty =
      std::all_of(in.begin(), in.end(), [](std::byte byte) { return byte == std::byte{0}; });
  if (empty) return ActivationState::none;
  if (get<std::uint32_t>(in, 28) != crc32c(in.first(28), seed_of(salt))) {
    return ActivationState::damaged;
  }
  activation.first_index = get<std::uint64_t>(in, 0);
  activation.previous_epoch = get<std::uint64_t>(in, 8);
  activation.durable = get<std::uint64_t>(in, 16);
  activation.flags = get<std::uint32_t>(in, 24);
  return ActivationState::valid;
}

std::uint32_t seed_of(std::uint64_t salt) noexcept {
  std::byte bytes[8];
  put(std::span<std::byte>(bytes), 0, salt);
  return crc32c(bytes);
}

void encode(const EntryHeader& header, std::span<std::byte> out) noexcept {
  put(out, kPayloadCrcAt, header.payload_crc);
  put(out, kLengthAt, header.length);
  put(out, kMarkAt, header.mark);
  put(out, kEpochAt, header.epoch);
  put(out, kIndexAt, header.index);
  put(out, kPreviousAt, header.previous_epoch);
}

void seal(std::span<std::byte> header, std::uint32_t seed, std::uint64_t durable) noexcept {
  put(header, kDurableAt, durable);
  put(header, kCrcAt, crc32c(header.subspan(4, EntryHeader::kBytes - 4), seed));
}

EntryHeader decode_unsealed(std::span<const std::byte> in) noexcept {
  EntryHeader header;
  header.payload_crc = get<std::uint32_t>(in, kPayloadCrcAt);
  header.length = get<std::uint32_t>(in, kLengthAt);
  header.mark = get<std::uint32_t>(in, kMarkAt);
  header.epoch = get<std::uint64_t>(in, kEpochAt);
  header.index = get<std::uint64_t>(in, kIndexAt);
  header.previous_epoch = get<std::uint64_t>(in, kPreviousAt);
  return header;
}

bool decode(std::span<const std::byte> in, std::uint32_t seed, EntryHeader& header) noexcept {
  header = decode_unsealed(in);
  header.durable = get<std::uint64_t>(in, kDurableAt);
  return get<std::uint32_t>(in, kCrcAt) == crc32c(in.subspan(4, EntryHeader::kBytes - 4), seed);
}

std::uint32_t payload_crc(std::span<const std::byte> payload, std::uint32_t seed) noexcept {
  return crc32c(payload, seed);
}

}  // namespace sluice::kv::format
