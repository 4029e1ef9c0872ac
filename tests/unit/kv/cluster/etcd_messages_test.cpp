// SPDX-License-Identifier: BSD-3-Clause
// The gateway's answers as etcd 3.4 sends them, and what it does not send.
#include "kv/cluster/etcd_messages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace {

using namespace sluice;
using namespace sluice::kv::etcd;
using nlohmann::json;
using testing::HasSubstr;

const std::string kHeader =
    R"("header":{"cluster_id":"13369201406284182755","member_id":"2376372474921158072","revision":"7","raft_term":"2"})";

std::string answer_with(const std::string& rest) {
  return "{" + kHeader + (rest.empty() ? "" : "," + rest) + "}";
}

TEST(Requests, AreWhatTheGatewayTakes) {
  EXPECT_EQ(json::parse(encode(RangeRequest{"foo", "fop", 3})),
            json::parse(R"({"key":"Zm9v","range_end":"Zm9w","limit":"3"})"));
  EXPECT_EQ(json::parse(encode(PutRequest{"foo", "bar", 0})),
            json::parse(R"({"key":"Zm9v","value":"YmFy"})"));
  EXPECT_EQ(json::parse(encode(PutRequest{"foo", "", 9})),
            json::parse(R"({"key":"Zm9v","value":"","lease":"9"})"));
  EXPECT_EQ(json::parse(encode_watch("foo", "", 4)),
            json::parse(R"({"create_request":{"key":"Zm9v","start_revision":"4"}})"));
  EXPECT_EQ(json::parse(encode_lease(9223372036854775807)),
            json::parse(R"({"ID":"9223372036854775807"})"));
  EXPECT_EQ(
      json::parse(
          encode(TxnRequest{{Compare::absent("foo"),
                             {"foo", Compare::Target::value, Compare::Relation::less, 0, "bar"}},
                            {PutRequest{"foo", "bar", 0}},
                            {DeleteRequest{"foo", ""}}})),
      json::parse(
          R"({"compare":[{"key":"Zm9v","target":"CREATE","result":"EQUAL","create_revision":"0"},
                         {"key":"Zm9v","target":"VALUE","result":"LESS","value":"YmFy"}],
              "success":[{"request_put":{"key":"Zm9v","value":"YmFy"}}],
              "failure":[{"request_delete_range":{"key":"Zm9v"}}]})"));
}

TEST(Requests, APrefixEndsBeforeItsSuccessor) {
  EXPECT_EQ(prefix_end("/a/"), "/a0");
  EXPECT_EQ(prefix_end("a\xFF\xFF"), "b");
  EXPECT_EQ(prefix_end(std::string(1, '\0')), "\x01");
}

TEST(Answers, NumbersComeAsTextOrAsNumbersAndZeroesNotAtAll) {
  const auto answer = decode_range(answer_with(
      R"("kvs":[{"key":"Zm9v","create_revision":"2","mod_revision":6,"version":"3","value":"YmFy","lease":"-5"},
                {"key":"Zm8=","mod_revision":"7","create_revision":"7"}],"count":"2","more":true)"));
  ASSERT_TRUE(answer) << answer.status().to_string();
  EXPECT_EQ(answer->header.cluster_id, 13369201406284182755U);
  EXPECT_EQ(answer->header.raft_term, 2U);
  EXPECT_EQ(answer->header.revision, 7);
  ASSERT_EQ(answer->kvs.size(), 2U);
  EXPECT_EQ(answer->kvs[0].key, "foo");
  EXPECT_EQ(answer->kvs[0].mod_revision, 6);
  EXPECT_EQ(answer->kvs[0].lease, -5);
  EXPECT_EQ(answer->kvs[1].value, "");
  EXPECT_EQ(answer->kvs[1].version, 0);
  EXPECT_TRUE(answer->more);
  EXPECT_TRUE(decode_range(answer_with(""))->kvs.empty());
}

TEST(Answers, AKeepAliveWithoutTimeIsALeaseThatIsNoMore) {
  auto answer = decode_keep_alive(R"({"result":)" + answer_with(R"("ID":"5","TTL":"2")") + "}\n");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->ttl_s, 2);
  answer = decode_keep_alive(R"({"result":)" + answer_with(R"("ID":"5")") + "}\n");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->ttl_s, 0);
}

TEST(Answers, AWatchsLines) {
  const auto line = decode_watch_line(
      R"({"result":)" + answer_with(R"("events":[{"kv":{"key":"Zm9v","mod_revision":"6"}},
                               {"type":"DELETE","kv":{"key":"Zm9v","mod_revision":"7"}}])") +
      "}");
  ASSERT_TRUE(line) << line.status().to_string();
  ASSERT_EQ(line->events.size(), 2U);
  EXPECT_FALSE(line->events[0].deleted);
  EXPECT_TRUE(line->events[1].deleted);
  const auto compacted = decode_watch_line(
      R"({"result":)" + answer_with(R"("canceled":true,"compact_revision":"3")") + "}");
  ASSERT_TRUE(compacted);
  EXPECT_TRUE(compacted->canceled);
  EXPECT_EQ(compacted->compact_revision, 3);
  const auto ended = decode_watch_line(
      R"({"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"Service Unavailable"}})");
  EXPECT_EQ(ended.status().code(), StatusCode::unreachable);
  EXPECT_THAT(ended.status().message(), HasSubstr("etcdserver: no leader"));
}

TEST(Answers, AnErrorKeepsItsCauseAndGetsItsCode) {
  const auto error = [](int code) {
    return decode_error(
        400, R"({"error":"x","message":"the\nmessage","code":)" + std::to_string(code) + "}");
  };
  EXPECT_EQ(error(5).code(), StatusCode::rejected);
  EXPECT_EQ(error(11).code(), StatusCode::rejected);
  EXPECT_EQ(error(3).code(), StatusCode::invalid_argument);
  EXPECT_EQ(error(4).code(), StatusCode::timed_out);
  EXPECT_EQ(error(7).code(), StatusCode::permission_denied);
  EXPECT_EQ(error(8).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(error(14).code(), StatusCode::unreachable);
  EXPECT_EQ(error(99).code(), StatusCode::io_error);
  EXPECT_THAT(error(14).message(), HasSubstr("the message (gRPC code 14)"));
  const auto page = decode_error(404, "<html>Not here</html>");
  EXPECT_EQ(page.code(), StatusCode::io_error);
  EXPECT_THAT(page.message(), HasSubstr("HTTP status 404, which is not how etcd"));
  EXPECT_THAT(page.message(), HasSubstr("<html>Not here"));
}

TEST(Answers, OnlySomeErrorsSayThatNothingWasDone) {
  EXPECT_TRUE(surely_not_done("etcd says: etcdserver: no leader (gRPC code 14)"));
  EXPECT_FALSE(surely_not_done("etcd says: etcdserver: request timed out (gRPC code 14)"));
  EXPECT_FALSE(surely_not_done("etcd says: etcdserver: leader changed (gRPC code 14)"));
}

struct Malformed {
  std::string text;
  const char* says;
};

TEST(Answers, WhatIsNotTheGatewaysIsRefusedAndSaysWhatIsWrong) {
  const std::vector<Malformed> ranges{
      {"", "no JSON"},
      {"OK", "no JSON: 'OK'"},
      {"{", "no JSON"},
      {answer_with("") + "x", "no JSON"},
      {"[]", "an object was expected"},
      {"7", "an object was expected"},
      {"null", "an object was expected"},
      {"{}", "there is no header"},
      {R"({"header":7})", "answer.header: an object was expected"},
      {R"({"header":{}})", "names no cluster"},
      {R"({"header":{"cluster_id":"-1"}})", "'cluster_id' is no number of 64 bits"},
      {R"({"header":{"cluster_id":"18446744073709551616"}})", "no number of 64 bits"},
      {R"({"header":{"cluster_id":"1","revision":"9223372036854775808"}})", "no number of 64 bits"},
      {R"({"header":{"cluster_id":"1","revision":9223372036854775808}})", "too large"},
      {R"({"header":{"cluster_id":"1","revision":"-1"}})", "'revision' is negative"},
      {R"({"header":{"cluster_id":"1","revision":"7 "}})", "no number of 64 bits"},
      {R"({"header":{"cluster_id":"1","revision":""}})", "no number of 64 bits"},
      {R"({"header":{"cluster_id":"1","revision":1.5}})", "no whole number"},
      {R"({"header":{"cluster_id":-1}})", "no whole number"},
      {answer_with(R"("kvs":{})"), "'kvs' is no list"},
      {answer_with(R"("kvs":[7])"), "answer.kvs[0]: an object was expected"},
      {answer_with(R"("kvs":[{"key":"Zm9v"},{"key":"Zm9"}])"), "answer.kvs[1]: 'key' is no base64"},
      {answer_with(R"("kvs":[{"key":7}])"), "'key' is no text"},
      {answer_with(R"("more":"yes")"), "neither true nor false"},
      {answer_with(R"("count":true)"), "'count' is no whole number"},
      {std::string(100000, '['), "no JSON"},
      {answer_with(R"("x":)" + std::string(100000, '[') + std::string(100000, ']') + R"(,"kvs":7)"),
       "'kvs' is no list"},
  };
  for (const auto& [text, says] : ranges) {
    const auto answer = decode_range(text);
    ASSERT_FALSE(answer) << text;
    EXPECT_EQ(answer.status().code(), StatusCode::io_error);
    EXPECT_THAT(answer.status().message(), HasSubstr("not what etcd's JSON gateway sends"));
    EXPECT_THAT(answer.status().message(), HasSubstr(says)) << text;
    EXPECT_LT(answer.status().message().size(), 500U);
  }
  const std::vector<Malformed> txns{
      {answer_with(R"("succeeded":1)"), "neither true nor false"},
      {answer_with(R"("responses":[{}])"), "answer.responses[0]: none of the known"},
      {answer_with(R"("responses":[{"response_range":7}])"), "response_range: an object"},
      {answer_with(R"("responses":[{"response_delete_range":{"deleted":"-1"}}])"), "negative"},
  };
  for (const auto& [text, says] : txns)
    EXPECT_THAT(decode_txn(text).status().message(), HasSubstr(says)) << text;
  const std::vector<Malformed> lines{
      {"{}", "neither a result nor an error"},
      {"7", "an object was expected"},
      {R"({"result":7})", "line.result: an object"},
      {R"({"result":{}})", "there is no header"},
      {R"({"error":7})", "an error of no known form"},
      {R"({"result":)" + answer_with(R"("events":[{}])") + "}", "an event without a key"},
      {R"({"result":)" + answer_with(R"("events":[{"type":"MOVE","kv":{}}])") + "}", "'MOVE'"},
  };
  for (const auto& [text, says] : lines)
    EXPECT_THAT(decode_watch_line(text).status().message(), HasSubstr(says)) << text;
  EXPECT_THAT(decode_grant(answer_with(R"("ID":"5")")).status().message(), HasSubstr("without"));
  EXPECT_THAT(decode_grant(answer_with(R"("ID":"5","TTL":"1","error":"no")")).status().message(),
              HasSubstr("no lease: no"));
}

TEST(Answers, CutAnywhereTheyAreRefused) {
  const std::string whole = answer_with(
      R"("kvs":[{"key":"Zm9v","create_revision":"2","mod_revision":"6","version":"3","value":"YmFy"}],"count":"1")");
  ASSERT_TRUE(decode_range(whole));
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(decode_range(whole.substr(0, length))) << whole.substr(0, length);
}

}  // namespace
