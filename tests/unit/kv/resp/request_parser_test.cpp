// SPDX-License-Identifier: BSD-3-Clause
#include "resp/request_parser.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cctype>
#include <numeric>
#include <string>
#include <vector>

#include "requests.hpp"

namespace sluice::kv::test {
namespace {

using Step = RequestParser::Step;

constexpr RequestLimits kSmall{
    .words_max = 4, .word_bytes_max = 10, .request_bytes_max = 24, .inline_bytes_max = 20};

std::vector<std::size_t> every_place_of(std::string_view bytes) {
  std::vector<std::size_t> places(bytes.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  return places;
}

TEST(RequestParser, ReadsAnArrayOfBulkStrings) {
  const std::string value("a\r\n\0b", 5);
  EXPECT_EQ(parsed(encoded({"SET", "k", value, ""})), (Outcome{{{"SET", "k", value, ""}}, ""}));
}

TEST(RequestParser, ReadsLines) {
  EXPECT_EQ(parsed("PING\r\n  GET\ta \nset k \"two words\\x41\\n\" 'one'\r\n"),
            (Outcome{{{"PING"}, {"GET", "a"}, {"set", "k", "two wordsA\n", "one"}}, ""}));
}

TEST(RequestParser, SkipsEmptyLinesAndArrays) {
  EXPECT_EQ(parsed("\r\n\n*0\r\n  \r\nPING\r\n*0\r\n" + encoded({"A"})),
            (Outcome{{{"PING"}, {"A"}}, ""}));
}

TEST(RequestParser, LinesAndArraysMayAlternate) {
  const std::string array = encoded({"SET", "k", "*1\r\n$4\r\nEVIL\r\n"});
  const std::string bytes = "PING\r\n" + array + array + "PING 1\nPING 2\n" + array + "PI";
  const Words set{"SET", "k", "*1\r\n$4\r\nEVIL\r\n"};
  EXPECT_EQ(parsed(bytes), (Outcome{{{"PING"}, set, set, {"PING", "1"}, {"PING", "2"}, set}, ""}));
  EXPECT_EQ(parsed(bytes), parsed(bytes, every_place_of(bytes)));
}

TEST(RequestParser, ARequestCutAtEachByteIsTheSame) {
  const std::string bytes = encoded({"MSET", "a", std::string(30, 'x'), "b", ""}) +
                            "PING \"q\"\r\n" + encoded({"GET", "a"});
  const Outcome whole = parsed(bytes);
  ASSERT_EQ(whole.requests.size(), 3U);
  for (std::size_t at = 0; at <= bytes.size(); ++at) {
    EXPECT_EQ(parsed(bytes, {at}), whole) << "cut at " << at;
    const Outcome half = parsed(std::string_view(bytes).substr(0, at));
    EXPECT_EQ(half.error, "") << "half a request is no error; cut at " << at;
    EXPECT_LE(half.requests.size(), whole.requests.size());
  }
  EXPECT_EQ(parsed(bytes, every_place_of(bytes)), whole);
}

struct Bad {
  const char* what;
  std::string bytes;
  const char* error;
};

class Malformed : public testing::TestWithParam<Bad> {};

TEST_P(Malformed, IsAnErrorHoweverItIsCut) {
  const std::string bytes = encoded({"PING"}) + GetParam().bytes;
  const Outcome whole = parsed(bytes, {}, kSmall);
  EXPECT_EQ(whole.requests, (std::vector<Words>{{"PING"}}));
  EXPECT_THAT(whole.error, testing::StartsWith("Protocol error: "));
  EXPECT_THAT(whole.error, testing::HasSubstr(GetParam().error));
  EXPECT_EQ(whole.error.find_first_of("\r\n"), std::string::npos);
  for (std::size_t at = 0; at <= bytes.size(); ++at)
    EXPECT_EQ(parsed(bytes, {at}, kSmall), whole) << "cut at " << at;
  EXPECT_EQ(parsed(bytes, every_place_of(bytes), kSmall), whole);
}

INSTANTIATE_TEST_SUITE_P(
    RequestParser, Malformed,
    testing::Values(
        Bad{"array length", "*x\r\n", "length of an array"},
        Bad{"array length, none", "*\r\n", "length of an array"},
        Bad{"array length, signed", "*+1\r\n", "length of an array"},
        Bad{"array length, leading zero", "*01\r\n", "length of an array"},
        Bad{"array length, endless", "*1" + std::string(64, '1'), "length of an array"},
        Bad{"array length, a return alone", "*1\r$", "length of an array"},
        Bad{"null array", "*-1\r\n", "length of an array"},
        Bad{"negative array", "*-7\r\n", "length of an array"},
        Bad{"array length beyond an int", "*4294967297\r\n", "length of an array"},
        Bad{"too many words", "*5\r\n", "too many words"},
        Bad{"very many words", "*2147483647\r\n", "too many words"},
        Bad{"nested", "*1\r\n*1\r\n", "bulk string"},
        Bad{"nested deeply", "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
            "bulk string"},
        Bad{"integer", "*1\r\n:1\r\n", "bulk string"},
        Bad{"status", "*1\r\n+OK\r\n", "bulk string"},
        Bad{"error", "*1\r\n-ERR\r\n", "bulk string"},
        Bad{"unknown type", "*1\r\n@1\r\n", "bulk string"},
        Bad{"null string", "*1\r\n$-1\r\n", "bulk string"},
        Bad{"string length", "*1\r\n$x\r\n", "bulk string"},
        Bad{"string length, none", "*1\r\n$\r\n", "bulk string"},
        Bad{"string length, endless", "*1\r\n$1" + std::string(64, '1'), "bulk string"},
        Bad{"string length beyond 63 bits", "*1\r\n$9223372036854775808\r\n", "bulk string"},
        Bad{"string length of 63 bits", "*1\r\n$9223372036854775807\r\n", "too long"},
        Bad{"word too long, not there", "*1\r\n$11\r\n", "word that is too long"},
        Bad{"word too long, there", "*1\r\n$11\r\n12345678901\r\n", "word that is too long"},
        Bad{"request too long", "*3\r\n$10\r\n1234567890\r\n$10\r\n1234567890\r\n$5\r\n",
            "request that is too long"},
        Bad{"no line end", "*1\r\n$3\r\nabcde", "no line end"},
        Bad{"line too long", std::string(21, 'x'), "line that is too long"},
        Bad{"line too long, ended", std::string(21, 'x') + "\r\n", "line that is too long"},
        Bad{"too many words in a line", "a b c d e\r\n", "too many words"},
        Bad{"open quote", "GET \"a\r\n", "quote"},
        Bad{"text behind a quote", "GET \"a\"b\r\n", "quote"},
        Bad{"zero byte in a line", std::string("GET a\0b\r\n", 9), "zero byte"}),
    [](const auto& bad) {
      std::string name;
      for (const char c : std::string(bad.param.what))
        if (std::isalnum(static_cast<unsigned char>(c)) != 0) name += c;
      return name + std::to_string(bad.index);
    });

TEST(RequestParser, TakesWhatIsJustWithinTheLimits) {
  const Words words{"1234567890", "1234567890", "1234", ""};  // 4 words, 10 the longest, 24 in all
  EXPECT_EQ(parsed(encoded(words), {}, kSmall), (Outcome{{words}, ""}));
  const std::string line(20, 'x');
  EXPECT_EQ(parsed(line + "\n", {}, kSmall), (Outcome{{{line}}, ""}));
  EXPECT_EQ(parsed(line, {}, kSmall), (Outcome{{}, ""}));
}

TEST(RequestParser, SaysNothingMoreAfterAnError) {
  RequestParser parser(kSmall);
  parser.feed("*x\r\n");
  EXPECT_EQ(parser.next(), Step::malformed);
  const std::string error(parser.error());
  parser.feed(encoded({"PING"}));
  EXPECT_EQ(parser.next(), Step::malformed);
  EXPECT_EQ(parser.error(), error);
  EXPECT_TRUE(parser.words().empty());
  EXPECT_LT(parser.memory_bytes(), 4096U);
}

TEST(RequestParser, ADeclaredLengthTakesNoMemory) {
  RequestParser parser(RequestLimits{});
  parser.feed("*65536\r\n$8388608\r\n");
  EXPECT_EQ(parser.next(), Step::need_more);
  EXPECT_LT(parser.memory_bytes(), 4096U);
}

TEST(RequestParser, HoldsNoMoreThanTheLimitsOfABulkThatNeverEnds) {
  constexpr RequestLimits kLimits{.word_bytes_max = 100'000, .request_bytes_max = 200'000};
  RequestParser parser(kLimits);
  const std::string piece(10'000, 'x');
  Outcome out;
  take(parser, "*100\r\n", out);
  std::size_t fed = 0;
  while (out.error.empty() && fed < 10'000'000) {
    take(parser, "$100000\r\n", out);
    for (int i = 0; i < 10; ++i) take(parser, piece, out);
    take(parser, "\r\n", out);
    fed += 100'000;
    EXPECT_LT(parser.memory_bytes(), 1'000'000U);
  }
  EXPECT_THAT(out.error, testing::HasSubstr("request that is too long"));
  EXPECT_LE(fed, 300'000U);
}

TEST(RequestParser, GivesLargeBuffersBackWhenItIsIdle) {
  RequestParser parser(RequestLimits{});
  Outcome out;
  take(parser, encoded({"SET", "k", std::string(5'000'000, 'x')}), out);
  ASSERT_EQ(out.requests.size(), 1U);
  EXPECT_LT(parser.memory_bytes(), 100'000U);
  take(parser, encoded({"GET", "k"}), out);
  EXPECT_EQ(out.requests.back(), (Words{"GET", "k"}));
}

TEST(RequestParser, ALongStreamOfLinesOrArraysTakesNoMoreMemory) {
  for (const std::string& request : {std::string("PING 12\r\n"), encoded({"PING", "12"})}) {
    RequestParser parser(RequestLimits{});
    std::string bytes;
    for (int i = 0; i < 1000; ++i) bytes += request;
    std::size_t requests = 0;
    for (int round = 0; round < 200; ++round) {
      Outcome out;
      // Never cut at a request's end, so that something always stays behind.
      take(parser, std::string_view(bytes).substr(0, bytes.size() - 3), out);
      take(parser, std::string_view(bytes).substr(bytes.size() - 3), out);
      requests += out.requests.size();
      ASSERT_LT(parser.memory_bytes(), 200'000U);
    }
    EXPECT_EQ(requests, 200'000U);
  }
}

TEST(RequestParser, GivesEverythingBackWhenItGivesUp) {
  RequestParser parser(RequestLimits{});
  Outcome out;
  take(
      parser,
      encoded({"SET", std::string(100'000, 'x')}) + "*2\r\n$200000\r\n" + std::string(100'000, 'x'),
      out);
  EXPECT_GT(parser.memory_bytes(), 100'000U);
  parser.give_up();
  EXPECT_LT(parser.memory_bytes(), 1000U);
  EXPECT_EQ(parser.next(), Step::malformed);
}

TEST(RequestParser, NewLimitsHoldFromTheNextRequestOn) {
  RequestParser parser(kSmall);
  Outcome out;
  take(parser, encoded({"AUTH", "secret"}), out);
  parser.set_limits(RequestLimits{});
  take(parser, encoded({"SET", "k", std::string(100, 'x')}), out);
  EXPECT_EQ(out.error, "");
  EXPECT_EQ(out.requests.size(), 2U);
}

// ---- properties ---------------------------------------------------------------------------------

/// Words in which what matters to the parser is frequent.
rc::Gen<std::string> word() {
  return rc::gen::container<std::string>(rc::gen::oneOf(
      rc::gen::element('\r', '\n', '$', '*', '\0', '"', '0', '1'), rc::gen::arbitrary<char>()));
}

rc::Gen<std::string> plain_word() {
  return rc::gen::nonEmpty(
      rc::gen::container<std::string>(rc::gen::element('a', 'b', '$', ':', '7', '-')));
}

std::vector<std::size_t> any_cuts(std::size_t size) {
  return *rc::gen::container<std::vector<std::size_t>>(rc::gen::inRange<std::size_t>(0, size + 1));
}

RC_GTEST_PROP(RequestParserProperty, AnyPipelinedSequenceCutAnywhereParsesTheSame, ()) {
  std::string bytes;
  std::vector<Words> requests;
  const int count = *rc::gen::inRange(0, 12);
  for (int i = 0; i < count; ++i) {
    Words words;
    if (*rc::gen::inRange(0, 3) > 0) {
      words = *rc::gen::nonEmpty(rc::gen::container<Words>(word()));
      bytes += encoded(words);
    } else {
      words = *rc::gen::nonEmpty(rc::gen::container<Words>(plain_word()));
      std::string line;
      for (const std::string& one : words) line += (line.empty() ? "" : " ") + one;
      bytes += line + *rc::gen::element<std::string>("\n", "\r\n");
    }
    requests.push_back(words);
  }
  RC_ASSERT(parsed(bytes, any_cuts(bytes.size())) == (Outcome{requests, ""}));
}

RC_GTEST_PROP(RequestParserProperty, AnyBytesCutAnywhereComeToTheSame, ()) {
  // Pieces of requests, in any order and often wrong.
  const auto pieces = *rc::gen::container<Words>(rc::gen::oneOf(
      rc::gen::element<std::string>("*1\r\n", "*2\r\n", "$1\r\nx\r\n", "$3\r\nGET\r\n", "$", "*",
                                    "\r\n", "\n", "\r", "5", "-1", ":1\r\n", "+OK\r\n", "PING\r\n",
                                    "\"", " "),
      word()));
  std::string bytes;
  for (const std::string& piece : pieces) bytes += piece;
  RC_ASSERT(parsed(bytes, any_cuts(bytes.size()), kSmall) == parsed(bytes, {}, kSmall));
  RC_ASSERT(parsed(bytes, every_place_of(bytes), kSmall) == parsed(bytes, {}, kSmall));
}

}  // namespace
}  // namespace sluice::kv::test
