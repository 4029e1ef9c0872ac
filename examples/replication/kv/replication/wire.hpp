// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/log/log.hpp"
#include "sluice/core/status.hpp"

/// What nodes say to each other. Integers stand least byte first; every size is checked before a
/// byte is read. Nothing here knows of RDMA.
///
///     connection:  Hello (the primary, with its request)
///     replica -> primary, sends:   Report, or Refusal; then Acks
///     primary -> replica, written into the ring that the Report names, with the place as
///     immediate:
///                  frames of entries (none: a sign of life), or a checkpoint's frames
namespace sluice::kv::wire {

inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kNodeBytesMax = 28;  ///< of a node's id: it travels in a Hello

/// The private data of a connection request, of which there are 56 bytes.
struct Hello {
  std::uint64_t cluster = 0;  ///< hash of its name
  std::uint64_t epoch = 0;    ///< that the caller leads
  std::string node;
};
[[nodiscard]] std::vector<std::byte> encode(const Hello& hello);
/// The message says what does not suit; providers pad private data with zeros.
[[nodiscard]] Result<Hello> decode_hello(std::span<const std::byte> bytes);

// --- messages of a replica -----------------------------------------------------------------------

inline constexpr std::size_t kMessageBytesMax = 640;

/// A stretch of a log that has one epoch: it begins behind the one before.
struct Run {
  std::uint64_t epoch = 0;
  std::uint64_t last_index = 0;
  friend bool operator==(const Run&, const Run&) = default;
};

/// What a replica has, and where to write.
struct Report {
  std::uint64_t first_index = 1;  ///< of its log
  std::uint64_t last_index = 0;
  std::uint64_t last_epoch = 0;
  std::uint64_t durable_index = 0;
  std::uint64_t applied_index = 0;
  std::uint64_t applied_epoch = 0;
  std::uint64_t ring_bytes = 0;
  std::uint32_t frames_max = 0;  ///< not yet consumed, at most
  bool rebuilding = false;       ///< it lost what it had: it counts for nobody until it caught up
  std::vector<Run> runs;         ///< the latest, oldest first
  std::vector<std::byte> ring;   ///< its descriptor
  static constexpr std::size_t kRunsMax = 20;
  static constexpr std::size_t kDescriptorMax = 96;
};

struct Refusal {
  std::uint64_t promised_epoch = 0;
  std::string why;
};

struct Ack {
  std::uint64_t memory = 0;    ///< all entries up to here are in its log, and are the primary's
  std::uint64_t durable = 0;   ///< and on its disk
  std::uint64_t applied = 0;   ///< and in its store
  std::uint64_t consumed = 0;  ///< position in the ring, see FrameHeader
  std::uint64_t frames = 0;    ///< consumed since the connection began
};

/// What a fetch asked for lies in the ring, to be read from there.
struct Fetched {
  std::uint64_t offset = 0;  ///< in the ring: a frame of entries
  std::uint64_t bytes = 0;   ///< 0: there is nothing
};

enum class MessageKind : std::uint16_t { report = 1, refusal = 2, ack = 3, fetched = 4 };

[[nodiscard]] std::vector<std::byte> encode(const Report& report);
[[nodiscard]] std::vector<std::byte> encode(const Refusal& refusal);
[[nodiscard]] std::vector<std::byte> encode(const Fetched& fetched);
/// Into a buffer of kAckBytes at least; how many bytes.
[[nodiscard]] std::size_t encode(const Ack& ack, std::span<std::byte> out) noexcept;
inline constexpr std::size_t kAckBytes = 64;

/// io_error: it is no message, or a damaged one.
[[nodiscard]] Result<MessageKind> kind_of(std::span<const std::byte> message);
[[nodiscard]] Result<Report> decode_report(std::span<const std::byte> message);
[[nodiscard]] Result<Refusal> decode_refusal(std::span<const std::byte> message);
[[nodiscard]] Result<Fetched> decode_fetched(std::span<const std::byte> message);
[[nodiscard]] Result<Ack> decode_ack(std::span<const std::byte> message);

// --- frames in the ring --------------------------------------------------------------------------

enum class FrameKind : std::uint16_t {
  entries = 1,           ///< body: entries that follow each other
  checkpoint_begin = 2,  ///< body: a part of the listing's text
  checkpoint_file = 3,   ///< body: number of the file, offset, bytes
  checkpoint_end = 4,    ///< no body
  fetch = 5,             ///< no body: what is there from first_index on?
};

struct FrameHeader {
  FrameKind kind = FrameKind::entries;
  std::uint32_t bytes = 0;        ///< of the whole frame
  std::uint32_t count = 0;        ///< of entries
  std::uint64_t epoch = 0;        ///< that the sender leads
  std::uint64_t position = 0;     ///< where the frame ends, counted on from the ring's first round
  std::uint64_t commit = 0;       ///< all entries up to here count for good
  std::uint64_t disk = 0;         ///< up to here somebody waits for the disk
  std::uint64_t first_index = 0;  ///< of the first entry here or, without any, of the next one
  std::uint64_t previous_epoch = 0;  ///< of entry first_index - 1
  static constexpr std::size_t kBytes = 72;
};

inline constexpr std::size_t kFrameAlign = 64;
inline constexpr std::size_t kEntryHeaderBytes = 32;
[[nodiscard]] constexpr std::size_t aligned(std::size_t bytes, std::size_t to) noexcept {
  return (bytes + to - 1) / to * to;
}
[[nodiscard]] constexpr std::size_t entry_bytes(std::size_t payload) noexcept {
  return kEntryHeaderBytes + aligned(payload, 8);
}

/// Writes an entry at the front of `out`, which has entry_bytes() at least.
void put_entry(const Entry& entry, std::span<std::byte> out) noexcept;
/// Writes the header before a body that is in place, and the CRC-32C of both.
void seal(const FrameHeader& header, std::span<std::byte> frame) noexcept;

struct Frame {
  FrameHeader header;
  std::span<const std::byte> body;
};
/// Safe whatever stands there: `at` begins with a frame that the sender says is here. io_error.
[[nodiscard]] Result<Frame> open_frame(std::span<const std::byte> at);
/// Walks through a frame of entries; the message says what is wrong with it.
[[nodiscard]] Status each_entry(const Frame& frame,
                                const std::function<Status(const Entry&)>& sink);

/// FrameKind::checkpoint_file.
struct FilePart {
  std::uint32_t file = 0;  ///< number in the listing
  std::uint64_t offset = 0;
  std::span<const std::byte> bytes;
  static constexpr std::size_t kHeaderBytes = 16;
};
void put_file_part_header(std::uint32_t file, std::uint64_t offset,
                          std::span<std::byte> out) noexcept;
[[nodiscard]] Result<FilePart> decode_file_part(std::span<const std::byte> body);

/// A number for a name, the same everywhere (FNV-1a); never 0.
[[nodiscard]] std::uint64_t hash_of(std::string_view name) noexcept;

}  // namespace sluice::kv::wire
