// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "sha256.hpp"

/// What goes over the wire. All integers are little-endian; every size is checked before a byte is
/// read. Nothing here knows of RDMA, allocates (but for messages to people) or throws.
///
///   connection set-up:  Hello (primary, with its request) -> Welcome (replica, with its accept)
///   primary -> replica: data frames, numbered 0..n-1; then one end frame, numbered n
///   replica -> primary: ack frames (cumulative), then one report frame
namespace replicate {

inline constexpr std::uint16_t kProtocolVersion = 1;

// --- connection set-up -------------------------------------------------------------------------

/// The private data of a connection request.
struct Hello {
  std::uint64_t session = 0;      ///< one run of a primary; never 0
  std::uint16_t replica = 0;      ///< the primary's number for this replica
  std::uint16_t connection = 0;   ///< which of ...
  std::uint16_t connections = 0;  ///< ... so many; record r comes over connection r % connections
  std::uint32_t record_size = 0;
  static constexpr std::size_t kBytes = 24;
};
[[nodiscard]] std::array<std::byte, Hello::kBytes> encode(const Hello& hello) noexcept;

/// The private data of an accept.
struct Welcome {
  std::uint32_t receive_depth = 0;    ///< receives posted for all the connections together
  std::uint32_t record_size_max = 0;  ///< what fits into one of them
  static constexpr std::size_t kBytes = 16;
};
[[nodiscard]] std::array<std::byte, Welcome::kBytes> encode(const Welcome& welcome) noexcept;

/// A decoded value, or why there is none. Providers pad private data: more bytes than needed are
/// normal.
template <typename T>
struct Decoded {
  std::optional<T> value;
  std::string error;  ///< set when there is no value
};
[[nodiscard]] Decoded<Hello> decode_hello(std::span<const std::byte> private_data);
[[nodiscard]] Decoded<Welcome> decode_welcome(std::span<const std::byte> private_data);

// --- messages ----------------------------------------------------------------------------------

enum class FrameKind : std::uint16_t {
  data = 1,    ///< number: the record's; payload: its bytes
  end = 2,     ///< number: how many records there were; payload: EndOfStream
  ack = 3,     ///< number: so many records are appended (and synced, with --fsync); no payload
  report = 4,  ///< number: as ack; payload: Report
};

/// 32 bytes in front of each payload.
struct FrameHeader {
  FrameKind kind = FrameKind::data;
  std::uint64_t session = 0;
  std::uint64_t number = 0;
  std::uint32_t length = 0;  ///< of the payload
  static constexpr std::size_t kBytes = 32;
};

/// Writes the header into the front of `frame`, whose payload (the rest) is in place already, and
/// the CRC32C of both. `frame` is kBytes + header.length long.
void seal_frame(std::span<std::byte> frame, const FrameHeader& header) noexcept;

enum class FrameError : std::uint8_t {
  none,
  too_short,
  bad_magic,
  bad_version,
  bad_kind,
  wrong_session,
  bad_length,
  bad_crc,
};
[[nodiscard]] std::string_view to_string(FrameError error) noexcept;

/// A received message that has been checked; `payload` points into it.
struct Frame {
  FrameError error = FrameError::too_short;
  FrameHeader header;
  std::span<const std::byte> payload;
  [[nodiscard]] bool ok() const noexcept { return error == FrameError::none; }
};

/// Safe on arbitrary bytes. `payload` is set only when everything is right, CRC32C included.
[[nodiscard]] Frame open_frame(std::span<const std::byte> message, std::uint64_t session) noexcept;

// --- payloads ----------------------------------------------------------------------------------

struct EndOfStream {
  std::uint64_t bytes = 0;
  Digest digest{};
  static constexpr std::size_t kBytes = 40;
};
void encode(const EndOfStream& end, std::span<std::byte, EndOfStream::kBytes> out) noexcept;
[[nodiscard]] std::optional<EndOfStream> decode_end(std::span<const std::byte> payload) noexcept;

/// What a side's dispatcher did, as the summary shows it.
struct Load {
  static constexpr std::size_t kWorkersMax = 32;
  std::uint64_t polls = 0;
  std::uint64_t empty_polls = 0;
  std::uint64_t sleeps = 0;
  std::uint64_t wakes = 0;  ///< of pollers
  std::uint64_t worker_wakes = 0;
  std::uint64_t completions = 0;
  std::uint32_t workers = 0;
  std::array<std::uint64_t, kWorkersMax> handled{};  ///< completions per worker
};

/// How it ended at the replica.
struct Report {
  enum class Outcome : std::uint8_t {
    identical = 1,  ///< the copy, read back, has the digest that the primary sent; it has its name
    differs = 2,    ///< it has not
    failed = 3,     ///< `text` says why
  };
  Outcome outcome = Outcome::failed;
  std::uint64_t bytes = 0;
  Digest digest{};  ///< of the copy, read back
  Load load;
  static constexpr std::size_t kTextMax = 200;
  std::uint16_t text_size = 0;
  std::array<char, kTextMax> text{};
  [[nodiscard]] std::string_view why() const noexcept { return {text.data(), text_size}; }
  void set_why(std::string_view why) noexcept;
  static constexpr std::size_t kBytes = 4 + 8 + 32 + 6 * 8 + 8 * Load::kWorkersMax + kTextMax;
};
void encode(const Report& report, std::span<std::byte, Report::kBytes> out) noexcept;
[[nodiscard]] std::optional<Report> decode_report(std::span<const std::byte> payload) noexcept;

/// Room for the largest message in each direction.
[[nodiscard]] constexpr std::size_t record_frame_bytes(std::size_t record_size) noexcept {
  const std::size_t payload = record_size < EndOfStream::kBytes ? EndOfStream::kBytes : record_size;
  return (FrameHeader::kBytes + payload + 63) / 64 * 64;
}
inline constexpr std::size_t kReplyFrameBytes =
    (FrameHeader::kBytes + Report::kBytes + 63) / 64 * 64;

/// How many of the first `records` records come over connection `connection`.
[[nodiscard]] constexpr std::uint64_t records_of(std::uint64_t records, std::uint32_t connection,
                                                 std::uint32_t connections) noexcept {
  return records / connections + (records % connections > connection ? 1 : 0);
}

}  // namespace replicate
