// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// The wire format: a stream of frames over one TCP connection per queue pair.
///
/// Every frame starts with the same 48-byte header, little-endian, and carries `payload_length`
/// bytes after it. The header has a CRC-32C over itself, a magic and a version. Fields that a frame
/// type does not use must be zero. The decoder is strict and allocates nothing; the largest payload
/// is bounded, so that a peer's numbers never size a buffer.
namespace softrdma::wire {

inline constexpr std::uint32_t kMagic = 0x31445253;  // "SRD1" as bytes
inline constexpr std::uint8_t kVersion = 1;
inline constexpr std::size_t kHeaderSize = 48;
/// Messages are cut into frames of at most this payload, so that acknowledgements get between them.
inline constexpr std::uint32_t kFragmentMax = 64 * 1024;
inline constexpr std::uint32_t kMessageMax = 1U << 31;
/// Sizes of the private data as the InfiniBand connection manager has them (request less the IP
/// header that rdma_cm puts before it). The receiver always sees the full size, padded with zeros.
inline constexpr std::size_t kRequestPrivateSize = 56;
inline constexpr std::size_t kReplyPrivateSize = 196;
inline constexpr std::size_t kRejectPrivateSize = 148;
inline constexpr std::size_t kConnParamSize = 8;

enum class FrameType : std::uint8_t {
  kConnectRequest = 1,  // aux: qp_num; payload: ConnParam, private data
  kConnectReply = 2,    // aux: qp_num; payload: ConnParam, private data
  kConnectReject = 3,   // aux: reason; payload: private data
  kReady = 4,
  kDisconnectRequest = 5,
  kDisconnectReply = 6,
  kSend = 16,              // sequence, total, offset, imm; payload: data
  kWrite = 17,             // the same with address and rkey of the message's start
  kReadRequest = 18,       // sequence, address, rkey, total
  kCompareSwap = 19,       // sequence, address, rkey; payload: compare, swap
  kFetchAdd = 20,          // sequence, address, rkey; payload: add, zero
  kReadResponse = 32,      // sequence, total, offset; payload: data
  kAtomicResponse = 33,    // sequence; payload: the value before
  kAck = 34,               // sequence: it and all before it are placed
  kNak = 35,               // sequence, aux: NakCode
  kReceiverNotReady = 36,  // sequence that met no receive; it and all after it are to be sent again
  kReceiverReady = 37,     // sequence: a receive has been posted, send again
};

enum FrameFlags : std::uint16_t {
  kFlagImmediate = 1,
  kFlagSolicited = 2,
  kFlagsKnown = 3,
};

enum class NakCode : std::uint32_t {
  kInvalidRequest = 1,
  kAccess = 2,
  kOperation = 3,
  kDead = 4,  // the queue pair is in error or gone: nothing will ever be acknowledged
};

struct Header {
  FrameType type{};
  std::uint16_t flags = 0;
  std::uint32_t payload_length = 0;
  std::uint32_t sequence = 0;
  std::uint64_t address = 0;
  std::uint32_t rkey = 0;
  std::uint32_t total = 0;
  std::uint32_t offset = 0;
  std::uint32_t immediate = 0;
  std::uint32_t aux = 0;

  friend bool operator==(const Header&, const Header&) = default;
};

struct ConnParam {
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  std::uint8_t flow_control = 0;
  std::uint8_t retry_count = 0;
  std::uint8_t rnr_retry_count = 0;
  std::uint8_t srq = 0;

  friend bool operator==(const ConnParam&, const ConnParam&) = default;
};

void encode(const Header& header, std::span<std::uint8_t, kHeaderSize> out) noexcept;

/// Nullptr when `bytes` is a valid header, else what is wrong with it.
[[nodiscard]] const char* decode(std::span<const std::uint8_t, kHeaderSize> bytes,
                                 Header& out) noexcept;

void encode(const ConnParam& param, std::span<std::uint8_t, kConnParamSize> out) noexcept;
[[nodiscard]] const char* decode(std::span<const std::uint8_t, kConnParamSize> bytes,
                                 ConnParam& out) noexcept;

/// CRC-32C (Castagnoli), as in RFC 3720.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::uint8_t> bytes) noexcept;

[[nodiscard]] std::uint64_t load64(const std::uint8_t* from) noexcept;
void store64(std::uint8_t* to, std::uint64_t value) noexcept;

/// True for frames that a requester sends, which the responder acknowledges in their order.
[[nodiscard]] constexpr bool is_request(FrameType type) noexcept {
  return type >= FrameType::kSend && type <= FrameType::kFetchAdd;
}
[[nodiscard]] constexpr bool is_response(FrameType type) noexcept {
  return type >= FrameType::kReadResponse && type <= FrameType::kReceiverReady;
}

}  // namespace softrdma::wire
