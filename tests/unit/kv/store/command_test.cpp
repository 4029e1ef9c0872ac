// SPDX-License-Identifier: BSD-3-Clause
#include "kv/store/command.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <string>
#include <utility>

namespace sluice::kv {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes bytes_of(std::string_view text) {
  const auto* const from = reinterpret_cast<const std::byte*>(text.data());
  return {from, from + text.size()};
}

std::vector<std::pair<std::string, std::string>> pairs_of(const Command& command) {
  std::vector<std::pair<std::string, std::string>> pairs;
  command.each([&](const KeyValue& pair) { pairs.emplace_back(pair.key, pair.value); });
  return pairs;
}

/// A literal with zero bytes in it.
template <std::size_t N>
std::string raw(const char (&text)[N]) {
  return {text, N - 1};
}

// Entries that were written once must be read for ever: the bytes are the contract.
TEST(Encoding, IsExactlyThis) {
  Bytes no_op, set, del, mset, plus, minus;
  encode_no_op(no_op);
  encode_set(set, "key", "value");
  encode_del(del, std::vector<std::string_view>{"a", "bc"});
  encode_mset(mset, std::vector<KeyValue>{{"a", "x"}, {"bc", ""}});
  encode_incr_by(plus, "n", 150);
  encode_incr_by(minus, "n", -1);
  EXPECT_EQ(text_of(no_op), raw("\x01\x00"));
  EXPECT_EQ(text_of(set), "\x01\x01\x03keyvalue");
  EXPECT_EQ(text_of(del),
            "\x01\x02\x02\x01"
            "a\x02"
            "bc");
  EXPECT_EQ(text_of(mset), raw("\x01\x03\x02\x01"
                               "a\x01x\x02"
                               "bc\x00"));
  EXPECT_EQ(text_of(plus), "\x01\x04\x01n\xac\x02");
  EXPECT_EQ(text_of(minus), "\x01\x04\x01n\x01");
}

TEST(Encoding, AppendsToWhatIsThere) {
  Bytes out = bytes_of("before");
  encode_set(out, "k", "v");
  EXPECT_EQ(text_of(out), "before\x01\x01\x01kv");
}

TEST(Decoding, RefusesEachCutOffCommand) {
  // A SET is cut off within its key only: its value goes up to the end, whatever that is.
  for (const std::string& whole :
       {std::string("\x01\x02\x02\x01"
                    "a\x02"
                    "bc"),
        std::string("\x01\x03\x01\x01"
                    "a\x03xyz"),
        std::string("\x01\x04\x02nn\xac\x02"), std::string("\x01\x01\x03key"), raw("\x01\x00")}) {
    ASSERT_TRUE(decode(bytes_of(whole)).ok());
    for (std::size_t size = 0; size < whole.size(); ++size) {
      const auto cut = decode(bytes_of(whole.substr(0, size)));
      ASSERT_FALSE(cut.ok()) << ::testing::PrintToString(whole) << " cut to " << size;
      EXPECT_EQ(cut.status().code(), StatusCode::invalid_argument);
      EXPECT_THAT(cut.status().message(), HasSubstr("malformed"));
    }
  }
}

class Malformed : public ::testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(Malformed, IsRefusedWithAReason) {
  const auto command = decode(bytes_of(GetParam().first));
  ASSERT_FALSE(command.ok());
  EXPECT_EQ(command.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(command.status().message(), HasSubstr(GetParam().second));
}

INSTANTIATE_TEST_SUITE_P(
    Decoding, Malformed,
    ::testing::Values(std::pair{raw("\x01\x00x"), "no end"},  // bytes left
                      std::pair{raw("\x01\x02\x01\x01"
                                    "ax"),
                                "no end"},                               //
                      std::pair{raw("\x01\x04\x01n\x02x"), "no end"},    //
                      std::pair{raw("\x01\x05\x01n"), "no known kind"},  //
                      std::pair{raw("\x01\xff"), "no known kind"},       //
                      std::pair{raw("\x01\x02\x00"), "no valid count"},  // of no key
                      std::pair{raw("\x01\x03\x00"), "no valid count"},  //
                      std::pair{raw("\x01\x02\x81\x80\x80\x01"
                                    "a"),
                                "count"},  // 2 Mi keys
                      std::pair{raw("\x01\x02\x81\x00\x01"
                                    "a"),
                                "count"},                                       // 1 in two bytes
                      std::pair{raw("\x01\x01\x83\x00keyvalue"), "whole key"},  // likewise
                      std::pair{raw("\x01\x01\x81\x80\x40"
                                    "a"),
                                "whole key"},  // longer than all
                      std::pair{raw("\x01\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
                                    "a"),
                                "key"},
                      std::pair{raw("\x01\x04\x01n\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"),
                                "valid summand"},  // 65 bits
                      std::pair{raw("\x01\x04\x01n\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"),
                                "valid summand"}));

TEST(Decoding, ANewerVersionIsNamed) {
  const auto command = decode(bytes_of("\x02\x01\x03keyvalue"));
  ASSERT_FALSE(command.ok());
  EXPECT_EQ(command.status().code(), StatusCode::not_supported);
  EXPECT_THAT(command.status().message(), HasSubstr("version 2; this program reads version 1"));
}

TEST(Decoding, ALongKeyIsRefused) {
  Bytes out = bytes_of("\x01\x01");
  for (const char c : {'\x81', '\x80', '\x40'}) out.push_back(static_cast<std::byte>(c));
  out.resize(out.size() + kKeyBytesMax + 1);  // the length says 1 Mi + 1
  EXPECT_FALSE(decode(out).ok());
}

RC_GTEST_PROP(Decoding, GivesBackWhatWasEncoded, ()) {
  const auto kind = *rc::gen::inRange(0, 5);
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  auto pairs = *rc::gen::nonEmpty(rc::gen::arbitrary<Pairs>());
  const auto summand = *rc::gen::arbitrary<std::int64_t>();
  std::vector<KeyValue> views;
  std::vector<std::string_view> keys;
  for (const auto& [key, value] : pairs) {
    views.push_back({key, value});
    keys.push_back(key);
  }
  Bytes out;
  switch (static_cast<CommandKind>(kind)) {
    case CommandKind::no_op: encode_no_op(out); break;
    case CommandKind::set: encode_set(out, keys[0], views[0].value); break;
    case CommandKind::del: encode_del(out, keys); break;
    case CommandKind::mset: encode_mset(out, views); break;
    case CommandKind::incr_by: encode_incr_by(out, keys[0], summand); break;
  }
  const auto command = decode(out);
  RC_ASSERT(command.ok());
  RC_ASSERT(static_cast<int>(command->kind()) == kind);
  if (command->kind() == CommandKind::no_op) pairs.clear();
  if (command->kind() == CommandKind::set || command->kind() == CommandKind::incr_by)
    pairs.resize(1);
  if (command->kind() == CommandKind::del || command->kind() == CommandKind::incr_by)
    for (auto& pair : pairs) pair.second.clear();
  RC_ASSERT(pairs_of(*command) == pairs);
  if (command->kind() == CommandKind::incr_by) {
    RC_ASSERT(command->summand() == summand);
  }
}

TEST(Decoding, TheEndsOfTheNumbersComeThrough) {
  for (const std::int64_t summand :
       {kLeast, kLeast + 1, std::int64_t{-1}, std::int64_t{0}, kMost}) {
    Bytes out;
    encode_incr_by(out, "n", summand);
    const auto command = decode(out);
    ASSERT_TRUE(command.ok());
    EXPECT_EQ(command->summand(), summand);
  }
}

TEST(Increment, ReadsNumbersAsRedisDoes) {
  const auto add = [](std::string_view value, std::int64_t summand) {
    return increment(&value, summand);
  };
  const Outcome no_number{Outcome::Kind::not_an_integer, 0};
  const Outcome overflow{Outcome::Kind::overflow, 0};
  EXPECT_EQ(increment(nullptr, 7), (Outcome{Outcome::Kind::integer, 7}));
  EXPECT_EQ(add("41", 1), (Outcome{Outcome::Kind::integer, 42}));
  EXPECT_EQ(add("0", -1), (Outcome{Outcome::Kind::integer, -1}));
  EXPECT_EQ(add("-5", 5), (Outcome{Outcome::Kind::integer, 0}));
  EXPECT_EQ(add("-9223372036854775808", 0), (Outcome{Outcome::Kind::integer, kLeast}));
  EXPECT_EQ(add("9223372036854775807", kLeast), (Outcome{Outcome::Kind::integer, -1}));
  EXPECT_EQ(add("9223372036854775807", 1), overflow);
  EXPECT_EQ(add("-1", kLeast), overflow);
  for (const char* text : {"", " ", "-", "+1", "1 ", " 1", "01", "-0", "-01", "0x1", "1.0", "abc",
                           "9223372036854775808", "-9223372036854775809", "1\n"})
    EXPECT_EQ(add(text, 1), no_number) << '"' << text << '"';
  EXPECT_EQ(add({"1\0", 2}, 1), no_number);
  EXPECT_EQ(no_number.error(), "ERR value is not an integer or out of range");
  EXPECT_EQ(overflow.error(), "ERR increment or decrement would overflow");
  EXPECT_EQ(Outcome{}.error(), "");
  EXPECT_FALSE(Outcome{}.failed());
}

TEST(Sizes, WhatIsTooLargeIsToldBeforeItIsEncoded) {
  EXPECT_TRUE(check_size(std::string(kKeyBytesMax, 'k')).ok());
  EXPECT_THAT(check_size(std::string(kKeyBytesMax + 1, 'k')).message(), HasSubstr("1048577 bytes"));
  EXPECT_FALSE(check_count(0).ok());
  EXPECT_TRUE(check_count(kCommandKeysMax).ok());
  EXPECT_FALSE(check_count(kCommandKeysMax + 1).ok());
  Bytes out;
  EXPECT_DEATH(encode_del(out, {}), "a DEL of no key");
}

}  // namespace
}  // namespace sluice::kv
