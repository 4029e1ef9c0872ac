// SPDX-License-Identifier: BSD-3-Clause
#include "kv/replication/wire.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace sluice::kv::wire {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Report some_report() {
  Report report;
  report.first_index = 3;
  report.last_index = 90;
  report.last_epoch = 7;
  report.durable_index = 80;
  report.applied_index = 70;
  report.applied_epoch = 6;
  report.ring_bytes = 1 << 20;
  report.frames_max = 128;
  report.rebuilding = true;
  report.runs = {{2, 10}, {7, 90}};
  report.ring = bytes_of("a descriptor");
  return report;
}

std::vector<std::byte> some_frame(std::size_t entries = 3) {
  std::vector<std::byte> frame(FrameHeader::kBytes);
  FrameHeader header{.kind = FrameKind::entries,
                     .count = static_cast<std::uint32_t>(entries),
                     .epoch = 5,
                     .position = 4096,
                     .commit = 11,
                     .disk = 12,
                     .first_index = 20,
                     .previous_epoch = 4};
  for (std::size_t i = 0; i < entries; ++i) {
    const auto payload = bytes_of(std::string(i * 5, static_cast<char>('a' + i)));
    const std::size_t at = frame.size();
    frame.resize(at + entry_bytes(payload.size()));
    put_entry({.epoch = 5, .index = 20 + i, .previous_epoch = i == 0 ? 4U : 5U, .payload = payload},
              std::span(frame).subspan(at));
  }
  header.bytes = static_cast<std::uint32_t>(frame.size());
  seal(header, frame);
  return frame;
}

TEST(KvWire, AHelloComesBackPaddedOrNot) {
  const Hello hello{hash_of("prod"), 42, "node-1.example_x"};
  auto bytes = encode(hello);
  ASSERT_LE(bytes.size(), 56U);
  bytes.resize(56);  // as the kernel's soft-RoCE pads it
  const auto back = decode_hello(bytes);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->cluster, hello.cluster);
  EXPECT_EQ(back->epoch, 42U);
  EXPECT_EQ(back->node, hello.node);
}

TEST(KvWire, AHelloOfTheLongestNameFitsIntoPrivateData) {
  EXPECT_LE(encode(Hello{1, 1, std::string(kNodeBytesMax, 'n')}).size(), 56U);
}

TEST(KvWire, AHelloThatIsCutOrOfAnotherVersionIsRefused) {
  const auto bytes = encode(Hello{1, 2, "node"});
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_hello(std::span(bytes).first(size)).ok()) << size << " bytes";
  auto other = bytes;
  other[4] = std::byte{99};
  const auto refused = decode_hello(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::not_supported);
  EXPECT_NE(refused.status().message().find("version 99"), std::string::npos);
}

TEST(KvWire, AReportComesBack) {
  const Report report = some_report();
  const auto back = decode_report(encode(report));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->first_index, report.first_index);
  EXPECT_EQ(back->last_index, report.last_index);
  EXPECT_EQ(back->last_epoch, report.last_epoch);
  EXPECT_EQ(back->durable_index, report.durable_index);
  EXPECT_EQ(back->applied_index, report.applied_index);
  EXPECT_EQ(back->applied_epoch, report.applied_epoch);
  EXPECT_EQ(back->ring_bytes, report.ring_bytes);
  EXPECT_EQ(back->frames_max, report.frames_max);
  EXPECT_TRUE(back->rebuilding);
  EXPECT_EQ(back->runs, report.runs);
  EXPECT_EQ(back->ring, report.ring);
}

TEST(KvWire, TheLongestReportFitsIntoAMessage) {
  Report report = some_report();
  report.runs.assign(Report::kRunsMax, {1, 1});
  report.ring.assign(Report::kDescriptorMax, std::byte{1});
  EXPECT_TRUE(decode_report(encode(report)).ok());
}

TEST(KvWire, AcksAndRefusalsComeBack) {
  std::array<std::byte, kAckBytes> buffer;
  const std::size_t bytes = encode(Ack{1, 2, 3, 4, 5}, buffer);
  const auto ack = decode_ack(std::span(buffer).first(bytes));
  ASSERT_TRUE(ack.ok());
  EXPECT_EQ(ack->memory, 1U);
  EXPECT_EQ(ack->durable, 2U);
  EXPECT_EQ(ack->applied, 3U);
  EXPECT_EQ(ack->consumed, 4U);
  EXPECT_EQ(ack->frames, 5U);
  EXPECT_FALSE(decode_report(std::span(buffer).first(bytes)).ok()) << "another kind";
  const auto refusal = decode_refusal(encode(Refusal{9, std::string(5000, 'x')}));
  ASSERT_TRUE(refusal.ok());
  EXPECT_EQ(refusal->promised_epoch, 9U);
  EXPECT_FALSE(refusal->why.empty());
}

/// Each bit that is flipped, and each cut, is noticed.
TEST(KvWire, DamagedMessagesAreRefused) {
  const auto message = encode(some_report());
  for (std::size_t size = 0; size < message.size(); ++size)
    EXPECT_FALSE(decode_report(std::span(message).first(size)).ok()) << size << " bytes";
  for (std::size_t at = 0; at < message.size(); ++at) {
    auto damaged = message;
    damaged[at] ^= std::byte{0x10};
    EXPECT_FALSE(decode_report(damaged).ok()) << "byte " << at;
  }
}

TEST(KvWire, AFrameOfEntriesComesBack) {
  const auto bytes = some_frame();
  const auto frame = open_frame(bytes);
  ASSERT_TRUE(frame.ok()) << frame.status().to_string();
  EXPECT_EQ(frame->header.epoch, 5U);
  EXPECT_EQ(frame->header.position, 4096U);
  EXPECT_EQ(frame->header.commit, 11U);
  EXPECT_EQ(frame->header.disk, 12U);
  EXPECT_EQ(frame->header.first_index, 20U);
  EXPECT_EQ(frame->header.previous_epoch, 4U);
  std::vector<std::string> payloads;
  std::uint64_t index = 20;
  ASSERT_TRUE(each_entry(*frame, [&](const Entry& entry) -> Status {
                EXPECT_EQ(entry.index, index++);
                EXPECT_EQ(entry.epoch, 5U);
                payloads.emplace_back(reinterpret_cast<const char*>(entry.payload.data()),
                                      entry.payload.size());
                return {};
              }).ok());
  EXPECT_EQ(payloads, (std::vector<std::string>{"", "bbbbb", "cccccccccc"}));
}

TEST(KvWire, DamagedFramesAreRefused) {
  const auto whole = some_frame();
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(open_frame(std::span(whole).first(size)).ok()) << size << " bytes";
  for (std::size_t at = 0; at < whole.size(); ++at) {
    auto damaged = whole;
    damaged[at] ^= std::byte{0x01};
    EXPECT_FALSE(open_frame(damaged).ok()) << "byte " << at;
  }
}

/// A CRC that is right is no promise that the sender knows how to count.
TEST(KvWire, AFrameThatCountsWronglyIsRefused) {
  auto bytes = some_frame();
  auto frame = open_frame(bytes);
  ASSERT_TRUE(frame.ok());
  const auto accept = [](const Entry&) { return Status(); };
  Frame more = *frame;
  more.header.count = 4;
  EXPECT_FALSE(each_entry(more, accept).ok());
  Frame elsewhere = *frame;
  elsewhere.header.first_index = 21;
  EXPECT_FALSE(each_entry(elsewhere, accept).ok());
  Frame cut = *frame;
  cut.body = cut.body.first(cut.body.size() - 8);
  EXPECT_FALSE(each_entry(cut, accept).ok());
}

TEST(KvWire, WhatTheSinkSaysEndsTheWalk) {
  const auto bytes = some_frame();
  int seen = 0;
  const Status status = each_entry(*open_frame(bytes), [&](const Entry&) {
    ++seen;
    return Status(StatusCode::cancelled, "enough");
  });
  EXPECT_EQ(status.code(), StatusCode::cancelled);
  EXPECT_EQ(seen, 1);
}

TEST(KvWire, APartOfAFileComesBack) {
  std::vector<std::byte> body(FilePart::kHeaderBytes + 4, std::byte{7});
  put_file_part_header(3, 1 << 20, body);
  const auto part = decode_file_part(body);
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(part->file, 3U);
  EXPECT_EQ(part->offset, std::uint64_t{1} << 20);
  EXPECT_EQ(part->bytes.size(), 4U);
  EXPECT_FALSE(decode_file_part(std::span(body).first(15)).ok());
}

}  // namespace
}  // namespace sluice::kv::wire
