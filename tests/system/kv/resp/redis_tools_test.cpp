// SPDX-License-Identifier: BSD-3-Clause
// The programs that people use with Redis, unchanged, against the RESP front end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "map_handler.hpp"
#include "resp/resp_server.hpp"
#include "tool.hpp"

namespace sluice::kv::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using Where = MapHandler::Where;

class RedisTools : public testing::TestWithParam<Where> {
 protected:
  void start(ServerOptions options = {}) {
    auto made = RespServer::start(std::move(options), handler_);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    server_ = std::move(*made);
  }

  [[nodiscard]] std::vector<std::string> with_port(std::string program,
                                                   std::vector<std::string> more) const {
    more.insert(more.begin(), {std::move(program), "-p", std::to_string(server_->port())});
    return more;
  }
  [[nodiscard]] ToolResult cli(std::vector<std::string> words, const std::string& input = {}) {
    return run_tool(with_port(SLUICE_REDIS_CLI, std::move(words)), input);
  }
  [[nodiscard]] ToolResult benchmark(std::vector<std::string> words) {
    return run_tool(with_port(SLUICE_REDIS_BENCHMARK, std::move(words)));
  }
  /// What the server says, for a command given as arguments.
  [[nodiscard]] std::string answer(std::vector<std::string> words) {
    words.insert(words.begin(), "--no-raw");
    const ToolResult result = cli(std::move(words));
    EXPECT_EQ(result.status, 0) << result.out;
    return result.out;
  }

  MapHandler handler_{GetParam()};
  std::unique_ptr<RespServer> server_;
};

INSTANTIATE_TEST_SUITE_P(Answered, RedisTools, testing::Values(Where::io_thread, Where::worker),
                         [](const auto& where) {
                           return where.param == Where::io_thread ? "OnTheIoThread" : "ByAWorker";
                         });

TEST_P(RedisTools, CliRunsEachCommand) {
  start();
  EXPECT_EQ(answer({"ping"}), "PONG\n");
  EXPECT_EQ(answer({"set", "a", "one two"}), "OK\n");
  EXPECT_EQ(answer({"get", "a"}), "\"one two\"\n");
  EXPECT_EQ(answer({"get", "b"}), "(nil)\n");
  EXPECT_EQ(answer({"mset", "x", "1", "y", "2"}), "OK\n");
  EXPECT_EQ(answer({"mget", "x", "b", "y"}), "1) \"1\"\n2) (nil)\n3) \"2\"\n");
  EXPECT_EQ(answer({"incr", "x"}), "(integer) 2\n");
  EXPECT_EQ(answer({"exists", "x", "y", "z"}), "(integer) 2\n");
  EXPECT_EQ(answer({"del", "x", "y", "z"}), "(integer) 2\n");
  EXPECT_EQ(answer({"wait", "1", "10"}), "(integer) 0\n");
  EXPECT_EQ(answer({"config", "get", "appendonly"}), "1) \"appendonly\"\n2) \"yes\"\n");
  EXPECT_EQ(answer({"config", "set", "durability", "quorum_disk"}), "OK\n");
  EXPECT_THAT(answer({"info"}), HasSubstr("db0:keys=1"));
  EXPECT_THAT(answer({"flushall"}), HasSubstr("(error) ERR unknown command 'flushall'"));
  EXPECT_THAT(answer({"get"}), HasSubstr("(error) ERR wrong number of arguments for 'get'"));
}

TEST_P(RedisTools, CliOnATerminalHasHelp) {
  start();
  const ToolResult result =
      run_on_terminal(with_port(SLUICE_REDIS_CLI, {}), "> ",
                      {"SET greeting hello", "GET greeting", "help mget", "quit"});
  EXPECT_EQ(result.status, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("\"hello\""));
  EXPECT_THAT(result.out, HasSubstr("The values of several keys."));
  EXPECT_THAT(result.out, Not(HasSubstr("rror")));
}

TEST_P(RedisTools, CliLoadsThousandsOfKeysThroughAPipe) {
  start();
  std::string input;
  for (int i = 0; i < 20'000; ++i)
    input += "SET key:" + std::to_string(i) + " " + std::to_string(i) + "\r\n";
  const ToolResult result = cli({"--pipe"}, input);
  EXPECT_EQ(result.status, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("errors: 0, replies: 20000"));
  EXPECT_EQ(answer({"get", "key:19999"}), "\"19999\"\n");
}

TEST_P(RedisTools, CliGivesThePassword) {
  start({.requirepass = "a secret"});
  EXPECT_THAT(answer({"get", "a"}), HasSubstr("NOAUTH"));
  EXPECT_EQ(answer({"-a", "a secret", "--no-auth-warning", "set", "a", "1"}), "OK\n");
  EXPECT_THAT(answer({"-a", "wrong", "--no-auth-warning", "get", "a"}), HasSubstr("NOAUTH"));
}

TEST_P(RedisTools, BenchmarkRunsWithPipelining) {
  start({.requirepass = "pass"});
  const ToolResult result =
      benchmark({"-a", "pass", "-t", "set,get,ping,mset,incr", "-n", "32000", "-P", "16", "-q"});
  EXPECT_EQ(result.status, 0) << result.out;
  for (const char* const test :
       {"PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "MSET (10 keys)"})
    EXPECT_THAT(result.out, HasSubstr(std::string(test) + ": ")) << test;
  EXPECT_THAT(result.out, Not(HasSubstr("rror")));
  EXPECT_THAT(result.out, Not(HasSubstr("WARN")));
  EXPECT_EQ(answer({"-a", "pass", "--no-auth-warning", "get", "counter:__rand_int__"}),
            "\"32000\"\n");
}

TEST_P(RedisTools, BenchmarkWithoutPipeliningOnTwoThreads) {
  start({.io_threads = 2});
  const ToolResult result = benchmark(
      {"-t", "set,get,incr", "-n", "20000", "-c", "64", "-r", "1000", "-d", "4096", "-q"});
  EXPECT_EQ(result.status, 0) << result.out;
  EXPECT_THAT(result.out, Not(HasSubstr("rror")));
  // The same keys in both tests, of twelve digits: key:000000000042.
  EXPECT_THAT(answer({"get", "key:000000000042"}), testing::SizeIs(testing::Ge(4096U)));
  EXPECT_TRUE(server_->stop(std::chrono::seconds{60}).ok());
}

}  // namespace
}  // namespace sluice::kv::test
