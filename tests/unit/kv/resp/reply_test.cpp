// SPDX-License-Identifier: BSD-3-Clause
#include "resp/reply.hpp"

#include <gtest/gtest.h>

extern "C" {
#include <hiredis/hiredis.h>
}

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

namespace sluice::kv::test {
namespace {

TEST(ReplyBuilder, WritesEachKind) {
  std::string out;
  ReplyBuilder(out)
      .ok()
      .simple("PONG")
      .error("ERR no")
      .integer(-7)
      .bulk("a\r\nb")
      .bulk("")
      .null()
      .array(2);
  EXPECT_EQ(out, "+OK\r\n+PONG\r\n-ERR no\r\n:-7\r\n$4\r\na\r\nb\r\n$0\r\n\r\n$-1\r\n*2\r\n");
}

TEST(ReplyBuilder, ALineEndInATextIsNoReplyOfItsOwn) {
  std::string out;
  ReplyBuilder(out).error("ERR unknown 'a\r\n+OK\r\n'").simple("x\ny");
  EXPECT_EQ(out, "-ERR unknown 'a  +OK  '\r\n+x y\r\n");
}

TEST(ReplyBuilder, WritesTheLargestNumbers) {
  std::string out;
  ReplyBuilder(out)
      .integer(std::numeric_limits<std::int64_t>::min())
      .integer(std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(out, ":-9223372036854775808\r\n:9223372036854775807\r\n");
}

TEST(ReplyBuilder, AClientLibraryReadsIt) {
  std::string out;
  ReplyBuilder(out).array(3).bulk("save").integer(12).array(1).null();
  const std::unique_ptr<redisReader, decltype(&redisReaderFree)> reader(redisReaderCreate(),
                                                                        redisReaderFree);
  redisReaderFeed(reader.get(), out.data(), out.size());
  void* read = nullptr;
  ASSERT_EQ(redisReaderGetReply(reader.get(), &read), REDIS_OK);
  ASSERT_NE(read, nullptr);
  const std::unique_ptr<void, decltype(&freeReplyObject)> owner(read, freeReplyObject);
  const auto& reply = *static_cast<redisReply*>(read);
  ASSERT_EQ(reply.elements, 3U);
  EXPECT_EQ(std::string(reply.element[0]->str, static_cast<std::size_t>(reply.element[0]->len)),
            "save");
  EXPECT_EQ(reply.element[1]->integer, 12);
  EXPECT_EQ(reply.element[2]->element[0]->type, REDIS_REPLY_NIL);
}

}  // namespace
}  // namespace sluice::kv::test
