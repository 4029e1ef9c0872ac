// SPDX-License-Identifier: BSD-3-Clause
// The bytes of a segment: what is written is read, what is damaged is seen, and where things are.
#include "kv/log/format.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <vector>

#include "kv/log/scan.hpp"

namespace sluice::kv::format {
namespace {

using Block = std::vector<std::byte>;

TEST(Format, ASegmentHeaderIsReadAsItWasWritten) {
  Block block(kBlock, std::byte{0x5a});
  const SegmentHeader header{kVersion, 7, 1 << 20, 0x123456789abcdef0, true, std::string(64, 'c')};
  encode(header, block);
  SegmentHeader read;
  ASSERT_EQ(decode(block, read), HeaderFault::none);
  EXPECT_EQ(read.generation, 7u);
  EXPECT_EQ(read.segment_bytes, 1u << 20);
  EXPECT_EQ(read.salt, 0x123456789abcdef0u);
  EXPECT_TRUE(read.fresh);
  EXPECT_EQ(read.cluster_id, std::string(64, 'c'));
  EXPECT_EQ(block[SegmentHeader::kBytes], std::byte{0x5a}) << "no byte more";
  EXPECT_EQ(decode(std::span(block).first(SegmentHeader::kBytes - 1), read),
            HeaderFault::not_a_segment);
}

TEST(Format, EachBitOfASegmentHeaderCounts) {
  Block block(kBlock);
  encode({kVersion, 7, 1 << 20, 99, false, "prod"}, block);
  for (std::size_t bit = 0; bit < 8 * SegmentHeader::kBytes; ++bit) {
    Block damaged = block;
    damaged[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    SegmentHeader read;
    EXPECT_NE(decode(damaged, read), HeaderFault::none) << bit;
  }
}

TEST(Format, EachBitOfAnActivationCounts) {
  Block block(kBlock);
  Activation read;
  EXPECT_EQ(decode(block, 99, read), ActivationState::none);
  encode(Activation{5, 2, 4, Activation::kCuts}, 99, block);
  ASSERT_EQ(decode(block, 99, read), ActivationState::valid);
  EXPECT_EQ(read.first_index, 5u);
  EXPECT_EQ(read.previous_epoch, 2u);
  EXPECT_EQ(read.durable, 4u);
  EXPECT_EQ(read.flags, Activation::kCuts);
  EXPECT_EQ(decode(block, 98, read), ActivationState::damaged) << "another salt";
  for (std::size_t bit = 0; bit < 8 * Activation::kBytes; ++bit) {
    Block damaged = block;
    damaged[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    EXPECT_EQ(decode(damaged, 99, read), ActivationState::damaged) << bit;
  }
}

/// A group of one entry at the begin of `bytes`.
void put_entry(Block& bytes, std::uint64_t salt, EntryHeader header, const Block& payload) {
  header.length = static_cast<std::uint32_t>(payload.size());
  header.mark = mark_of(salt);
  header.payload_crc = payload_crc(payload, seed_of(salt));
  bytes.assign(round_up(entry_bytes(payload.size()), kBlock), std::byte{0});
  encode(header, bytes);
  seal(bytes, seed_of(salt), header.durable);
  if (!payload.empty()) {
    std::memcpy(bytes.data() + EntryHeader::kBytes, payload.data(), payload.size());
  }
}

RC_GTEST_PROP(Format, AnEntryIsReadAsItWasWrittenAndEachBitCounts, ()) {
  const auto salt = *rc::gen::arbitrary<std::uint64_t>();
  const EntryHeader header{0, 0, 0, *rc::gen::inRange<std::uint64_t>(3, 9), 12, 3, 11};
  Block payload(*rc::gen::inRange<std::size_t>(0, 9000));
  for (std::byte& byte : payload) byte = static_cast<std::byte>(*rc::gen::inRange(0, 256));
  Block bytes;
  put_entry(bytes, salt, header, payload);
  const auto look = [&](std::uint64_t with_salt, std::uint64_t index, std::uint64_t previous) {
    return walk(bytes, 0, 0, bytes.size(), seed_of(with_salt), index, previous);
  };
  const WalkResult found = look(salt, 12, 3);
  RC_ASSERT(found.kind == Walk::entry);
  RC_ASSERT(found.header.epoch == header.epoch);
  RC_ASSERT(found.header.durable == 11u);
  RC_ASSERT(found.header.length == payload.size());
  RC_ASSERT(look(salt, 13, 3).kind != Walk::entry);
  RC_ASSERT(look(salt, 12, 2).kind != Walk::entry);
  RC_ASSERT(look(salt + 2, 12, 3).kind != Walk::entry);
  const std::size_t bit =
      *rc::gen::inRange<std::size_t>(0, 8 * (EntryHeader::kBytes + payload.size()));
  bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
  RC_ASSERT(look(salt, 12, 3).kind != Walk::entry);
}

TEST(Format, AWalkAsksForTheBytesThatItNeeds) {
  Block bytes;
  put_entry(bytes, 5, {0, 0, 0, 1, 1, 0, 0}, Block(6000));
  const auto look = [&](std::size_t have, std::uint64_t end) {
    return walk(std::span(bytes).first(have), 0, 0, end, seed_of(5), 1, 0);
  };
  EXPECT_EQ(look(0, 8192).kind, Walk::more);
  EXPECT_EQ(look(0, 8192).need, EntryHeader::kBytes);
  EXPECT_EQ(look(48, 8192).kind, Walk::more);
  EXPECT_EQ(look(48, 8192).need, 6048u);
  EXPECT_EQ(look(6047, 8192).kind, Walk::more);
  EXPECT_EQ(look(6048, 8192).kind, Walk::entry);
  EXPECT_EQ(look(4096, 4096).kind, Walk::bad) << "the file ends before it does";
  EXPECT_EQ(look(0, 47).kind, Walk::bad);
}

TEST(Format, AHeaderLiesWithinABlock) {
  EXPECT_EQ(entry_place(0), 0u);
  EXPECT_EQ(entry_place(4096 - 48), 4096u - 48);
  EXPECT_EQ(entry_place(4096 - 40), 4096u);
  EXPECT_EQ(entry_place(4096 - 8), 4096u);
  EXPECT_EQ(entry_place(4096), 4096u);
  EXPECT_EQ(entry_bytes(0), 48u);
  EXPECT_EQ(entry_bytes(1), 56u);
  EXPECT_EQ(entry_bytes(8), 56u);
  EXPECT_NE(mark_of(0), 0u);
}

}  // namespace
}  // namespace sluice::kv::format
