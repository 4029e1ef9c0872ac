// SPDX-License-Identifier: BSD-3-Clause
#include "wire.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "faults.hpp"

namespace softrdma::wire {
namespace {

using Bytes = std::array<std::uint8_t, kHeaderSize>;

/// A valid header of each type, with values that use every byte of each field.
std::vector<Header> valid_headers() {
  std::vector<Header> all;
  const auto add = [&](FrameType type, auto&& fill) {
    Header h;
    h.type = type;
    fill(h);
    all.push_back(h);
  };
  const auto sequence = [](Header& h) { h.sequence = 0x89ABCDEF; };
  add(FrameType::kConnectRequest, [](Header& h) {
    h.aux = 0xABCDEF;
    h.payload_length = kConnParamSize + kRequestPrivateSize;
  });
  add(FrameType::kConnectReply, [](Header& h) {
    h.aux = 0x123456;
    h.payload_length = kConnParamSize + kReplyPrivateSize;
  });
  add(FrameType::kConnectReject, [](Header& h) {
    h.aux = 28;
    h.payload_length = kRejectPrivateSize;
  });
  for (const FrameType type :
       {FrameType::kReady, FrameType::kDisconnectRequest, FrameType::kDisconnectReply}) {
    add(type, [](Header&) {});
  }
  add(FrameType::kSend, [&](Header& h) {
    sequence(h);
    h.flags = kFlagImmediate | kFlagSolicited;
    h.immediate = 0xFEDCBA98;
    h.total = kMessageMax;
    h.offset = kMessageMax - kFragmentMax;
    h.payload_length = kFragmentMax;
  });
  add(FrameType::kWrite, [&](Header& h) {
    sequence(h);
    h.address = 0x0123456789ABCDEFULL;
    h.rkey = 0x76543210;
    h.total = 10;
    h.offset = 3;
    h.payload_length = 7;
  });
  add(FrameType::kReadRequest, [&](Header& h) {
    sequence(h);
    h.address = ~0ULL;
    h.rkey = ~0U;
    h.total = 5;
  });
  for (const FrameType type : {FrameType::kCompareSwap, FrameType::kFetchAdd}) {
    add(type, [&](Header& h) {
      sequence(h);
      h.address = 8;
      h.rkey = 1;
      h.payload_length = 16;
    });
  }
  add(FrameType::kReadResponse, [&](Header& h) {
    sequence(h);
    h.total = 9;
    h.payload_length = 9;
  });
  add(FrameType::kAtomicResponse, [&](Header& h) {
    sequence(h);
    h.payload_length = 8;
  });
  for (const FrameType type :
       {FrameType::kAck, FrameType::kReceiverNotReady, FrameType::kReceiverReady}) {
    add(type, sequence);
  }
  add(FrameType::kNak, [&](Header& h) {
    sequence(h);
    h.aux = static_cast<std::uint32_t>(NakCode::kDead);
  });
  return all;
}

TEST(Wire, HeadersOfEachTypeComeBackAsTheyWere) {
  for (const Header& h : valid_headers()) {
    Bytes bytes{};
    encode(h, bytes);
    Header back;
    const char* wrong = decode(std::span<const std::uint8_t, kHeaderSize>(bytes), back);
    ASSERT_EQ(wrong, nullptr) << "type " << static_cast<int>(h.type) << ": " << wrong;
    EXPECT_EQ(back, h);
  }
}

TEST(Wire, TheByteOrderIsFixed) {
  Header h;
  h.type = FrameType::kAck;
  h.sequence = 0x01020304;
  Bytes bytes{};
  encode(h, bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), "SRD1", 4), 0);
  EXPECT_EQ(bytes[4], kVersion);
  EXPECT_EQ(bytes[12], 4);
  EXPECT_EQ(bytes[15], 1);
}

TEST(Wire, EverySingleFlippedBitIsNoticed) {
  for (const Header& h : valid_headers()) {
    for (std::size_t bit = 0; bit < kHeaderSize * 8; ++bit) {
      Bytes bytes{};
      encode(h, bytes);
      bytes[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
      Header back;
      EXPECT_NE(decode(std::span<const std::uint8_t, kHeaderSize>(bytes), back), nullptr)
          << "bit " << bit;
    }
  }
}

TEST(Wire, WhatAChecksumCannotCatchIsRefused) {
  // Well-formed frames of a hostile peer.
  const auto refused = [](auto&& spoil) {
    int kept = 0;
    for (Header h : valid_headers()) {
      if (!spoil(h)) continue;
      Bytes bytes{};
      encode(h, bytes);
      Header back;
      if (decode(std::span<const std::uint8_t, kHeaderSize>(bytes), back) == nullptr) ++kept;
    }
    return kept == 0;
  };
  EXPECT_TRUE(refused([](Header& h) { return h.type = static_cast<FrameType>(7), true; }));
  EXPECT_TRUE(refused([](Header& h) { return h.type = static_cast<FrameType>(255), true; }));
  EXPECT_TRUE(refused([](Header& h) { return h.flags |= 4, true; }));
  EXPECT_TRUE(refused([](Header& h) { return h.payload_length = kFragmentMax + 1, true; }));
  EXPECT_TRUE(refused([](Header& h) { return h.payload_length = 0xFFFFFFFF, true; }));
  EXPECT_TRUE(refused([](Header& h) { return h.total = kMessageMax + 1, true; }));
  EXPECT_TRUE(refused([](Header& h) { return h.offset = 0xFFFFFFFF, true; }));
  EXPECT_TRUE(refused([](Header& h) { return h.offset += 1, h.offset != 0; }));
  EXPECT_TRUE(refused([](Header& h) { return h.aux = 99, h.type == FrameType::kNak; }));
  EXPECT_TRUE(refused([](Header& h) { return h.sequence = 1, h.type == FrameType::kReady; }));
  EXPECT_TRUE(refused([](Header& h) { return h.immediate = 1, (h.flags & kFlagImmediate) == 0; }));
}

TEST(Wire, ConnectionParametersComeBackAndReservedBytesAreChecked) {
  const ConnParam param{1, 2, 1, 7, 6, 1};
  std::array<std::uint8_t, kConnParamSize> bytes{};
  encode(param, bytes);
  ConnParam back;
  ASSERT_EQ(decode(std::span<const std::uint8_t, kConnParamSize>(bytes), back), nullptr);
  EXPECT_EQ(back, param);
  for (const std::size_t spoilt : {3U, 4U, 5U, 6U, 7U}) {
    auto bad = bytes;
    bad[spoilt] = 8;
    EXPECT_NE(decode(std::span<const std::uint8_t, kConnParamSize>(bad), back), nullptr) << spoilt;
  }
}

TEST(Wire, TheChecksumIsCrc32c) {
  // RFC 3720, appendix B.4: 32 bytes of zeros.
  const std::array<std::uint8_t, 32> zeros{};
  EXPECT_EQ(crc32c(zeros), 0x8A9136AAU);
}

TEST(Wire, RandomBytesNeverPassAsAHeader) {
  Random random(42);
  for (int round = 0; round < 100'000; ++round) {
    Bytes bytes{};
    for (auto& b : bytes) b = static_cast<std::uint8_t>(random.next());
    std::memcpy(bytes.data(), "SRD1\x01", 5);
    Header back;
    ASSERT_NE(decode(std::span<const std::uint8_t, kHeaderSize>(bytes), back), nullptr);
  }
}

}  // namespace
}  // namespace softrdma::wire
