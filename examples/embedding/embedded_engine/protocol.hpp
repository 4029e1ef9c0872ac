// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

/// What goes between the sender and the engine, on each connection by itself: records one way, and
/// the other way how many of them are on disk. The very first acknowledgement, of 0, says that the
/// engine has posted its receives.
namespace embedded {

inline constexpr std::uint32_t kConnections = 2;
inline constexpr std::uint32_t kWindow = 16;  ///< records of a connection in flight at most
inline constexpr std::size_t kRecordBytes = 4096;

struct RecordHeader {
  std::uint32_t connection;
  std::uint32_t number;  ///< from 0
  std::uint32_t total;   ///< records that this connection sends in all
  std::uint32_t unused;
};

/// What makes a connection: the request's private data.
struct Hello {
  std::uint32_t magic;
  std::uint32_t connection;
};
inline constexpr std::uint32_t kMagic = 0x534c4545;

struct Acknowledgement {
  std::uint64_t durable;  ///< records from the first on, without a gap, that survive a power cut
};

/// A record's bytes follow from its header, so whoever reads one back can judge it.
inline std::byte record_byte(const RecordHeader& header, std::size_t at) noexcept {
  return static_cast<std::byte>(header.connection * 131 + header.number * 31 + at * 7);
}

inline void fill_record(std::span<std::byte> record, const RecordHeader& header) noexcept {
  std::memcpy(record.data(), &header, sizeof header);
  for (std::size_t i = sizeof header; i < record.size(); ++i) record[i] = record_byte(header, i);
}

inline RecordHeader header_of(std::span<const std::byte> record) noexcept {
  RecordHeader header;
  std::memcpy(&header, record.data(), sizeof header);
  return header;
}

inline bool is_whole(std::span<const std::byte> record, std::uint32_t connection,
                     std::uint32_t number) noexcept {
  if (record.size() != kRecordBytes) return false;
  const RecordHeader header = header_of(record);
  if (header.connection != connection || header.number != number) return false;
  for (std::size_t i = sizeof header; i < record.size(); ++i)
    if (record[i] != record_byte(header, i)) return false;
  return true;
}

}  // namespace embedded
