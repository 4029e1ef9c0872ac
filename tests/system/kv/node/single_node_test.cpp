// SPDX-License-Identifier: BSD-3-Clause
// sluice-kv on its own: what a user of Redis expects of one server, and what is kept when it dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "client.hpp"
#include "cluster.hpp"
#include "load.hpp"

namespace sluice::kv::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class SingleNode : public testing::Test {
 protected:
  void start(const std::vector<std::string>& arguments = {}) {
    node_ = std::make_unique<Node>("node", folder_ / "data", arguments);
    again();
  }
  void again() {
    node_->start();
    ASSERT_TRUE(node_->listens()) << node_->last_words();
  }
  [[nodiscard]] Connection connection() { return Connection(node_->address()); }
  /// One request on a new connection.
  std::string ask(const Words& words) {
    auto reply = connection().call(words);
    return reply ? reply->to_string() : "cut off";
  }
  [[nodiscard]] LoadOptions load() const {
    LoadOptions options;
    options.client.nodes = {node_->address()};
    return options;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Node> node_;
};

TEST_F(SingleNode, EveryCommandDoesWhatItDoesInRedis) {
  start();
  Connection c = connection();
  const auto ask = [&](const Words& words) {
    const auto reply = c.call(words);
    return reply ? reply->to_string() : "cut off";
  };
  EXPECT_EQ(ask({"PING"}), "PONG");
  EXPECT_EQ(ask({"ECHO", "hello"}), "hello");
  EXPECT_EQ(ask({"GET", "k"}), "(nothing)");
  EXPECT_EQ(ask({"SET", "k", "v"}), "OK");
  EXPECT_EQ(ask({"GET", "k"}), "v");
  EXPECT_EQ(ask({"SET", "k", ""}), "OK");
  EXPECT_EQ(ask({"GET", "k"}), "");
  EXPECT_EQ(ask({"MSET", "a", "1", "b", "2", "c", "3"}), "OK");
  EXPECT_EQ(ask({"MGET", "a", "b", "nobody", "c"}), "[1, 2, (nothing), 3]");
  EXPECT_EQ(ask({"EXISTS", "a", "b", "nobody", "a"}), "3");
  EXPECT_EQ(ask({"DEL", "a", "b", "nobody"}), "2");
  EXPECT_EQ(ask({"EXISTS", "a"}), "0");
  EXPECT_EQ(ask({"INCR", "n"}), "1");
  EXPECT_EQ(ask({"INCR", "n"}), "2");
  EXPECT_EQ(ask({"GET", "n"}), "2");
  EXPECT_EQ(ask({"SET", "text", "no number"}), "OK");
  EXPECT_THAT(ask({"INCR", "text"}), StartsWith("error ERR"));
  EXPECT_EQ(ask({"SET", "most", "9223372036854775807"}), "OK");
  EXPECT_THAT(ask({"INCR", "most"}), StartsWith("error ERR"));
  EXPECT_EQ(ask({"GET", "most"}), "9223372036854775807");
  EXPECT_THAT(ask({"CONFIG", "GET", "maxmemory"}), testing::Not(StartsWith("error")));
  EXPECT_THAT(ask({"COMMAND", "COUNT"}), testing::Not(StartsWith("error")));
  EXPECT_EQ(ask({"CLIENT", "SETNAME", "me"}), "OK");
  EXPECT_THAT(ask({"NONSENSE"}), StartsWith("error ERR"));
  EXPECT_THAT(ask({"GET"}), StartsWith("error ERR"));
  EXPECT_EQ(ask({"WAIT", "0", "10"}), "0");
  EXPECT_EQ(ask({"DURABILITY"}), "local_disk");
  EXPECT_EQ(ask({"DURABILITY", "memory"}), "OK");
  EXPECT_EQ(ask({"SET", "m", "v"}), "OK");
  EXPECT_THAT(ask({"DURABILITY", "nonsense"}), StartsWith("error ERR"));
  EXPECT_EQ(ask({"QUIT"}), "OK");
  EXPECT_EQ(ask({"PING"}), "cut off");
}

TEST_F(SingleNode, KeysAndValuesMayHoldAnything) {
  start();
  Connection c = connection();
  std::string every_byte;
  for (int i = 0; i < 256; ++i) every_byte += static_cast<char>(i);
  std::string large(2 << 20, 'x');
  for (std::size_t i = 0; i < large.size(); i += 7) large[i] = static_cast<char>(i);
  for (const std::string& text : {every_byte, std::string("\r\n"), std::string(1, '\0'), large}) {
    ASSERT_EQ(c.call({"SET", "v", text})->to_string(), "OK");
    EXPECT_TRUE(c.call({"GET", "v"})->text == text) << text.size();
  }
  ASSERT_EQ(c.call({"SET", every_byte, "w"})->to_string(), "OK");
  EXPECT_EQ(c.call({"GET", every_byte})->to_string(), "w");
}

TEST_F(SingleNode, InfoTellsWhatItIs) {
  start();
  const auto info = node_->info();
  ASSERT_TRUE(info);
  EXPECT_EQ((*info)["role"], "primary");
  EXPECT_EQ((*info)["node"], "node");
  EXPECT_THAT((*info)["membership"], StartsWith("alone"));
  EXPECT_EQ(info->number("connected_replicas"), 0U);
  const std::uint64_t before = info->number("last_index");
  EXPECT_EQ(ask({"SET", "k", "v"}), "OK");
  const auto after = node_->info();
  ASSERT_TRUE(after);
  EXPECT_GT(after->number("last_index"), before);
  EXPECT_GE(after->number("durable_index"), before + 1);
  EXPECT_EQ((*after)["last_error"], "");
}

TEST_F(SingleNode, APipelineIsAnsweredInItsOrder) {
  start();
  Connection c = connection();
  constexpr int kRounds = 500;
  for (int i = 0; i < kRounds; ++i) {
    c.send_later({"SET", "k", std::to_string(i)});
    c.send_later({"GET", "k"});
    c.send_later({"INCR", "n"});
    c.send_later({"ECHO", std::to_string(i)});
    c.send_later({"WRONG"});
  }
  for (int i = 0; i < kRounds; ++i) {
    std::vector<std::string> got;
    for (int j = 0; j < 5; ++j) {
      const auto reply = c.receive();
      ASSERT_TRUE(reply);
      got.push_back(reply->to_string());
    }
    ASSERT_THAT(got, ElementsAre("OK", std::to_string(i), std::to_string(i + 1), std::to_string(i),
                                 StartsWith("error ERR")));
  }
}

TEST_F(SingleNode, ItsThreadsAreWhereTheConfigurationWantsThem) {
  std::ofstream(folder_ / "sluice.toml") << "[pollers.log]\nwait = \"adaptive\"\n"
                                            "[pools.apply]\nworkers = 2\nnodes = \"any\"\n";
  start({"--topology", folder_ / "sluice.toml"});
  EXPECT_EQ(ask({"SET", "k", "v"}), "OK");
  EXPECT_EQ(ask({"GET", "k"}), "v");
  std::string names;
  for (const auto& thread : std::filesystem::directory_iterator(
           "/proc/" + std::to_string(node_->process().pid()) + "/task")) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm") >> std::ws, name);
    names += name + "\n";
  }
  EXPECT_THAT(names, AllOf(HasSubstr("log"), HasSubstr("apply")));
}

TEST_F(SingleNode, APasswordIsAskedFor) {
  start({"--requirepass", "secret"});
  EXPECT_THAT(ask({"GET", "k"}), StartsWith("error NOAUTH"));
  EXPECT_THAT(ask({"INFO"}), StartsWith("error NOAUTH"));
  Connection c = connection();
  EXPECT_THAT(c.call({"AUTH", "wrong"})->to_string(), StartsWith("error WRONGPASS"));
  EXPECT_EQ(c.call({"AUTH", "secret"})->to_string(), "OK");
  EXPECT_EQ(c.call({"SET", "k", "v"})->to_string(), "OK");
}

TEST_F(SingleNode, ACleanEndIsStatus0AndKeepsAll) {
  start();
  EXPECT_EQ(ask({"SET", "k", "v"}), "OK");
  EXPECT_EQ(ask({"INCR", "n"}), "1");
  EXPECT_EQ(node_->end(), 0) << node_->last_words();
  again();
  EXPECT_EQ(ask({"GET", "k"}), "v");
  EXPECT_EQ(ask({"INCR", "n"}), "2");
  node_->process().signal(SIGINT);
  EXPECT_EQ(node_->process().end(), 0) << node_->last_words();
}

TEST_F(SingleNode, ACleanEndAlsoKeepsWhatWasOnlyInMemory) {
  start({"--durability", "memory"});
  Connection c = connection();
  EXPECT_EQ(c.call({"DURABILITY"})->to_string(), "memory");
  for (int i = 0; i < 100; ++i)
    ASSERT_EQ(c.call({"SET", "k" + std::to_string(i), "v"})->to_string(), "OK");
  EXPECT_EQ(node_->end(), 0) << node_->last_words();
  again();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ask({"GET", "k" + std::to_string(i)}), "v");
}

TEST_F(SingleNode, WhatWasAcknowledgedSurvivesEachOfManyKills) {
  start({"--durability", "local_disk", "--segment-bytes", "1m", "--log-keep-bytes", "1m"});
  Load clients(load());
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(clients.wait_for_more(300, kStatePatience))
        << clients.refusal() << node_->last_words();
    node_->kill();
    again();
  }
  ASSERT_TRUE(clients.wait_for_more(300, kStatePatience)) << clients.refusal();
  const Judgement judgement = judge(clients, load().client);
  RecordProperty("summary", judgement.summary);
  EXPECT_EQ(judgement.wrong, "") << node_->last_words();
}

TEST_F(SingleNode, RedisBenchmarkRunsUnchanged) {
  start({"--durability", "memory"});
  Process benchmark({SLUICE_REDIS_BENCHMARK, "-p", std::to_string(node_->address().port), "-t",
                     "ping,set,get,incr,mset", "-n", "2000", "-c", "16", "-P", "4", "-q", "-r",
                     "100"});
  EXPECT_EQ(benchmark.end(), 0);
  std::string said;
  for (const std::string& line : benchmark.lines()) said += line + "\n";
  for (const char* name : {"PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "MSET"})
    EXPECT_THAT(said, HasSubstr(std::string(name))) << said;
  EXPECT_THAT(said, testing::Not(HasSubstr("rror")));
}

TEST_F(SingleNode, APortOfTheKernelsChoiceIsSaid) {
  Process process(command_line({"--data", folder_ / "data", "--port", "0"}));
  const auto line = process.wait_for("sluice-kv: node node listens on 127.0.0.1:");
  ASSERT_TRUE(line);
  const auto address = Address::parse(line->substr(line->rfind(' ') + 1));
  ASSERT_TRUE(address);
  EXPECT_EQ(Connection(*address).call({"PING"})->to_string(), "PONG");
  process.signal(SIGTERM);
  EXPECT_EQ(process.end(), 0);
}

}  // namespace
}  // namespace sluice::kv::test
