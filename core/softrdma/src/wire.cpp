// SPDX-License-Identifier: BSD-3-Clause
#include "wire.hpp"

#include <array>

namespace softrdma::wire {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() noexcept {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78U : 0U);
    table[i] = value;
  }
  return table;
}
constexpr auto kCrcTable = make_crc_table();

void put16(std::uint8_t* to, std::uint16_t v) noexcept {
  to[0] = static_cast<std::uint8_t>(v);
  to[1] = static_cast<std::uint8_t>(v >> 8);
}
void put32(std::uint8_t* to, std::uint32_t v) noexcept {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::uint8_t>(v >> (8 * i));
}
std::uint16_t get16(const std::uint8_t* from) noexcept {
  return static_cast<std::uint16_t>(from[0] | (from[1] << 8));
}
std::uint32_t get32(const std::uint8_t* from) noexcept {
  return static_cast<std::uint32_t>(from[0]) | static_cast<std::uint32_t>(from[1]) << 8 |
         static_cast<std::uint32_t>(from[2]) << 16 | static_cast<std::uint32_t>(from[3]) << 24;
}

// Which fields a frame type may use; everything else must be zero.
struct Shape {
  bool flags, sequence, address, range, immediate, aux;
  std::int32_t payload;  // exact size, or -1: a fragment
};

bool shape_of(FrameType type, Shape& shape) noexcept {
  switch (type) {
    case FrameType::kConnectRequest:
      shape = {false, false, false, false, false, true, kConnParamSize + kRequestPrivateSize};
      return true;
    case FrameType::kConnectReply:
      shape = {false, false, false, false, false, true, kConnParamSize + kReplyPrivateSize};
      return true;
    case FrameType::kConnectReject:
      shape = {false, false, false, false, false, true, kRejectPrivateSize};
      return true;
    case FrameType::kReady:
    case FrameType::kDisconnectRequest:
    case FrameType::kDisconnectReply:
      shape = {false, false, false, false, false, false, 0};
      return true;
    case FrameType::kSend: shape = {true, true, false, true, true, false, -1}; return true;
    case FrameType::kWrite: shape = {true, true, true, true, true, false, -1}; return true;
    case FrameType::kReadRequest: shape = {false, true, true, true, false, false, 0}; return true;
    case FrameType::kCompareSwap:
    case FrameType::kFetchAdd: shape = {false, true, true, false, false, false, 16}; return true;
    case FrameType::kReadResponse:
      shape = {false, true, false, true, false, false, -1};
      return true;
    case FrameType::kAtomicResponse:
      shape = {false, true, false, false, false, false, 8};
      return true;
    case FrameType::kAck:
    case FrameType::kReceiverNotReady:
    case FrameType::kReceiverReady:
      shape = {false, true, false, false, false, false, 0};
      return true;
    case FrameType::kNak: shape = {false, true, false, false, false, true, 0}; return true;
  }
  return false;
}

const char* check(const Header& h) noexcept {
  Shape shape{};
  if (!shape_of(h.type, shape)) return "unknown frame type";
  if ((h.flags & ~kFlagsKnown) != 0) return "unknown flags";
  if (!shape.flags && h.flags != 0) return "flags on a frame that has none";
  if (!shape.sequence && h.sequence != 0) return "sequence on a frame that has none";
  if (!shape.address && (h.address != 0 || h.rkey != 0)) return "address on a frame that has none";
  if (!shape.range && (h.total != 0 || h.offset != 0)) return "range on a frame that has none";
  if (!shape.aux && h.aux != 0) return "aux on a frame that has none";
  if (h.immediate != 0 && (!shape.immediate || (h.flags & kFlagImmediate) == 0))
    return "immediate without its flag";
  if (h.total > kMessageMax) return "message too long";
  if (shape.payload >= 0) {
    if (h.payload_length != static_cast<std::uint32_t>(shape.payload))
      return "wrong payload length";
    if (h.offset != 0) return "offset on a frame without data";
  } else {
    if (h.payload_length > kFragmentMax) return "fragment too long";
    if (h.offset > h.total || h.payload_length > h.total - h.offset)
      return "fragment beyond its message";
    if (h.payload_length == 0 && h.total != 0) return "empty fragment";
  }
  if (h.type == FrameType::kNak && (h.aux < 1 || h.aux > 4)) return "unknown error code";
  return nullptr;
}

}  // namespace

std::uint32_t crc32c(std::span<const std::uint8_t> bytes) noexcept {
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const std::uint8_t byte : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ byte) & 0xFF];
  return ~crc;
}

std::uint64_t load64(const std::uint8_t* from) noexcept {
  return static_cast<std::uint64_t>(get32(from)) | static_cast<std::uint64_t>(get32(from + 4))
                                                       << 32;
}
void store64(std::uint8_t* to, std::uint64_t value) noexcept {
  put32(to, static_cast<std::uint32_t>(value));
  put32(to + 4, static_cast<std::uint32_t>(value >> 32));
}

void encode(const Header& h, std::span<std::uint8_t, kHeaderSize> out) noexcept {
  std::uint8_t* p = out.data();
  put32(p, kMagic);
  p[4] = kVersion;
  p[5] = static_cast<std::uint8_t>(h.type);
  put16(p + 6, h.flags);
  put32(p + 8, h.payload_length);
  put32(p + 12, h.sequence);
  store64(p + 16, h.address);
  put32(p + 24, h.rkey);
  put32(p + 28, h.total);
  put32(p + 32, h.offset);
  put32(p + 36, h.immediate);
  put32(p + 40, h.aux);
  put32(p + 44, crc32c({p, kHeaderSize - 4}));
}

const char* decode(std::span<const std::uint8_t, kHeaderSize> bytes, Header& h) noexcept {
  const std::uint8_t* p = bytes.data();
  if (get32(p) != kMagic) return "wrong magic";
  if (p[4] != kVersion) return "wrong version";
  if (get32(p + 44) != crc32c({p, kHeaderSize - 4})) return "wrong checksum";
  h.type = static_cast<FrameType>(p[5]);
  h.flags = get16(p + 6);
  h.payload_length = get32(p + 8);
  h.sequence = get32(p + 12);
  h.address = load64(p + 16);
  h.rkey = get32(p + 24);
  h.total = get32(p + 28);
  h.offset = get32(p + 32);
  h.immediate = get32(p + 36);
  h.aux = get32(p + 40);
  return check(h);
}

void encode(const ConnParam& param, std::span<std::uint8_t, kConnParamSize> out) noexcept {
  out[0] = param.responder_resources;
  out[1] = param.initiator_depth;
  out[2] = param.flow_control;
  out[3] = param.retry_count;
  out[4] = param.rnr_retry_count;
  out[5] = param.srq;
  out[6] = 0;
  out[7] = 0;
}

const char* decode(std::span<const std::uint8_t, kConnParamSize> bytes, ConnParam& out) noexcept {
  out = {bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]};
  if (out.retry_count > 7 || out.rnr_retry_count > 7) return "retry count above 7";
  if (out.srq > 1 || bytes[6] != 0 || bytes[7] != 0) return "reserved bytes in use";
  return nullptr;
}

}  // namespace softrdma::wire
