// SPDX-License-Identifier: BSD-3-Clause
// Three nodes and etcd: levels of durability, redirects, what INFO tells, replicas that are away,
// etcd that is away. The failure of a primary is failover_test's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client.hpp"
#include "cluster.hpp"
#include "load.hpp"

namespace sluice::kv::test {
namespace {

using namespace std::chrono_literals;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class ThreeNodes : public testing::Test {
 protected:
  void start(ClusterOptions options = {}) {
    cluster_ = std::make_unique<Cluster>(std::move(options));
    cluster_->start_all();
    primary_ = cluster_->wait_until_in_sync();
    ASSERT_NE(primary_, "") << cluster_->state();
    replicas_ = cluster_->without(primary_);
  }
  [[nodiscard]] Cluster& cluster() { return *cluster_; }
  [[nodiscard]] Node& node(const std::string& id) { return (*cluster_)[id]; }
  [[nodiscard]] Connection to(const std::string& id) { return Connection(node(id).address()); }
  [[nodiscard]] LoadOptions load(const std::string& durability) const {
    LoadOptions options;
    options.client = cluster_->client_options(durability);
    return options;
  }
  /// Ends the load, reads everything, and judges.
  void expect_right(Load& load) {
    const Judgement judgement = judge(load, cluster_->client_options());
    RecordProperty("summary", judgement.summary);
    EXPECT_EQ(judgement.wrong, "") << cluster_->state();
  }

  std::unique_ptr<Cluster> cluster_;
  std::string primary_;
  std::vector<std::string> replicas_;
};

TEST_F(ThreeNodes, WritesAtEachLevelAreThereAtOnce) {
  start();
  Connection c = to(primary_);
  EXPECT_EQ(c.call({"DURABILITY"})->to_string(), "quorum_disk") << "the default in a cluster";
  for (const std::string level :
       {"memory", "local_disk", "quorum_memory", "quorum_disk", "all_disk"}) {
    ASSERT_EQ(c.call({"DURABILITY", level})->to_string(), "OK") << level;
    EXPECT_EQ(c.call({"DURABILITY"})->to_string(), level);
    for (int i = 0; i < 20; ++i) {
      const std::string value = level + std::to_string(i);
      ASSERT_EQ(c.call({"SET", level, value})->to_string(), "OK") << level;
      ASSERT_EQ(c.call({"GET", level})->to_string(), value);
    }
    EXPECT_EQ(c.call({"INCR", "n"})->type, Reply::Type::integer);
    EXPECT_EQ(c.call({"MSET", "x", level, "y", level})->to_string(), "OK");
    EXPECT_EQ(c.call({"DEL", "x", "y"})->to_string(), "2");
  }
  EXPECT_EQ(c.call({"GET", "n"})->to_string(), "5");
}

TEST_F(ThreeNodes, WhatIsOnAllDisksSurvivesThatAllAreKilledAtOnce) {
  start();
  ClusterClient client = cluster().client("all_disk");
  for (int i = 0; i < 50; ++i)
    ASSERT_TRUE(client.write_surely({"SET", "k" + std::to_string(i), std::to_string(i)}).ok());
  for (const std::string& id : cluster().ids()) node(id).kill();
  cluster().start_all();
  ASSERT_NE(cluster().wait_until_in_sync(), "") << cluster().state();
  for (int i = 0; i < 50; ++i)
    EXPECT_EQ(client.read({"GET", "k" + std::to_string(i)}).reply.to_string(), std::to_string(i));
}

TEST_F(ThreeNodes, AReplicaNamesThePrimary) {
  start();
  ClusterClient client = cluster().client();
  ASSERT_TRUE(client.write_surely({"SET", "k", "v"}).ok());
  EXPECT_EQ(client.node(), node(primary_).address());
  const std::string moved = "error MOVED 0 " + node(primary_).address().to_string();
  for (const std::string& id : replicas_) {
    Connection c = to(id);
    EXPECT_EQ(c.call({"SET", "k", "w"})->to_string(), moved);
    EXPECT_EQ(c.call({"GET", "k"})->to_string(), moved);
    EXPECT_EQ(c.call({"MGET", "k"})->to_string(), moved);
    EXPECT_EQ(c.call({"INCR", "n"})->to_string(), moved);
    EXPECT_EQ(c.call({"PING"})->to_string(), "PONG");
  }
  EXPECT_EQ(client.read({"GET", "k"}).reply.to_string(), "v");
}

TEST_F(ThreeNodes, InfoTellsOfEachNode) {
  start();
  ClusterClient client = cluster().client("all_disk");
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(client.write_surely({"SET", "k", "v"}).ok());
  ASSERT_EQ(cluster().wait_until_in_sync(), primary_);
  const auto of_primary = node(primary_).info();
  ASSERT_TRUE(of_primary);
  const Info& info = *of_primary;
  EXPECT_EQ(info["role"], "primary");
  EXPECT_EQ(info["node"], primary_);
  EXPECT_GT(info.number("epoch"), 0U);
  EXPECT_EQ(info["primary"], primary_ + "," + node(primary_).address().to_string());
  EXPECT_THAT(info.list("in_sync"), ElementsAre("a", "b", "c"));
  EXPECT_EQ(info.number("min_in_sync"), 2U);
  EXPECT_GE(info.number("last_index"), 10U);
  EXPECT_EQ(info.number("durable_index"), info.number("last_index"));
  EXPECT_EQ(info.number("connected_replicas"), 2U);
  EXPECT_THAT(info["membership"], StartsWith("etcd"));
  EXPECT_EQ(info["last_error"], "");
  for (const std::string& id : replicas_) {
    EXPECT_EQ(info.replica(id, "state"), "streaming") << info.text();
    EXPECT_EQ(info.replica(id, "in_sync"), "yes");
    EXPECT_EQ(info.replica(id, "memory"), info["last_index"]);
    EXPECT_EQ(info.replica(id, "durable"), info["last_index"]);
    EXPECT_EQ(info.replica(id, "lag_entries"), "0");
    EXPECT_EQ(info.replica(id, "lag_bytes"), "0");
    EXPECT_EQ(info.replica(id, "last_error"), "");
    const auto own = node(id).info();
    ASSERT_TRUE(own);
    EXPECT_EQ((*own)["role"], "replica");
    EXPECT_EQ((*own)["node"], id);
    EXPECT_EQ((*own)["epoch"], info["epoch"]);
    EXPECT_EQ((*own)["primary"], info["primary"]);
    EXPECT_EQ(own->number("last_index"), info.number("last_index"));
  }
  // What is acknowledged at all_disk is applied by the replicas soon.
  EXPECT_TRUE(eventually([&] {
    const auto own = node(replicas_.front()).info();
    return own && own->number("applied_index") >= info.number("last_index");
  })) << cluster().state();
}

TEST_F(ThreeNodes, WaitCountsTheReplicasThatHaveIt) {
  // Long enough that a stopped replica is not taken out meanwhile.
  start({.arguments = {"--replica-timeout", "30000"}});
  Connection c = to(primary_);
  ASSERT_EQ(c.call({"DURABILITY", "memory"})->to_string(), "OK");
  ASSERT_EQ(c.call({"SET", "k", "1"})->to_string(), "OK");
  EXPECT_EQ(c.call({"WAIT", "2", "20000"})->to_string(), "2");
  EXPECT_EQ(c.call({"WAIT", "0", "20000"})->to_string(), "2");
  node(replicas_[0]).freeze();
  ASSERT_EQ(c.call({"SET", "k", "2"})->to_string(), "OK");
  EXPECT_EQ(c.call({"WAIT", "1", "20000"})->to_string(), "1");
  EXPECT_EQ(c.call({"WAIT", "2", "100"})->to_string(), "1") << "at the time's end, what there is";
  node(replicas_[0]).go_on();
  EXPECT_EQ(c.call({"WAIT", "2", "20000"})->to_string(), "2");
}

TEST_F(ThreeNodes, NoWriteIsAnsweredBeforeAsManyHaveItAsItsLevelSays) {
  // Long enough that stopped replicas are not taken out meanwhile.
  start({.arguments = {"--replica-timeout", "60000"}});
  const auto answered = [&](const std::string& level, std::chrono::milliseconds limit) {
    Connection c(node(primary_).address(), limit);
    const auto set = c.call({"DURABILITY", level});
    if (!set || set->is_error()) return false;
    const auto reply = c.call({"SET", "k", level});
    return reply && !reply->is_error();
  };
  for (const std::string level : {"quorum_memory", "quorum_disk", "all_disk"}) {
    node(replicas_[0]).freeze();
    if (level != "all_disk") {
      EXPECT_TRUE(answered(level, 60s)) << level << ": two of three have it";
      node(replicas_[1]).freeze();
    }
    EXPECT_TRUE(answered("local_disk", 60s));
    EXPECT_FALSE(answered(level, 1s)) << level;
    for (const std::string& replica : replicas_) node(replica).go_on();
    EXPECT_TRUE(answered(level, 60s)) << level;
    ASSERT_EQ(cluster().wait_until_in_sync(), primary_) << cluster().state();
  }
}

TEST_F(ThreeNodes, AReplicaThatWasAwayCatchesUpFromTheLogWhileWritesGoOn) {
  start();
  Load clients(load("quorum_disk"));
  ASSERT_TRUE(clients.wait_for_more(100, kStatePatience)) << cluster().state();
  node(replicas_[0]).kill();
  ASSERT_TRUE(clients.wait_for_more(500, kStatePatience)) << cluster().state();
  ASSERT_EQ(cluster().wait_until_in_sync({primary_, replicas_[1]}), primary_) << cluster().state();
  node(replicas_[0]).start();
  ASSERT_EQ(cluster().wait_until_in_sync(), primary_) << cluster().state();
  ASSERT_TRUE(clients.wait_for_more(100, kStatePatience)) << cluster().state();
  expect_right(clients);
}

TEST_F(ThreeNodes, AReplicaThatWasAwayForLongCatchesUpFromACheckpointWhileWritesGoOn) {
  start({.arguments = {"--segment-bytes", "256k", "--log-keep-bytes", "512k"}});
  LoadOptions options = load("quorum_disk");
  options.value_bytes_max = 8'000;
  Load clients(options);
  ASSERT_TRUE(clients.wait_for_more(100, kStatePatience)) << cluster().state();
  node(replicas_[0]).kill();
  // 4 KB each: several times what is kept.
  ASSERT_TRUE(clients.wait_for_more(800, kStatePatience)) << cluster().state();
  node(replicas_[0]).start();
  ASSERT_EQ(cluster().wait_until_in_sync(), primary_) << cluster().state();
  const auto told = [&](const std::string& id) {
    return node(id).process().wait_for("checkpoint", 0, 0ms).has_value();
  };
  EXPECT_TRUE(told(primary_) || told(replicas_[0])) << cluster().state();
  ASSERT_TRUE(clients.wait_for_more(100, kStatePatience)) << cluster().state();
  // It has all of it: it may lead.
  node(replicas_[1]).kill();
  ASSERT_TRUE(clients.wait_for_more(100, kStatePatience)) << cluster().state();
  node(primary_).kill();
  node(replicas_[1]).start();
  ASSERT_NE(cluster().wait_for_primary(primary_), "") << cluster().state();
  node(primary_).start();
  ASSERT_NE(cluster().wait_until_in_sync(), "") << cluster().state();
  expect_right(clients);
}

TEST_F(ThreeNodes, WithoutAQuorumItIsRefusedAndLaterGoesOn) {
  start();
  Connection c(node(primary_).address(), 60s);
  ASSERT_EQ(c.call({"SET", "k", "1"})->to_string(), "OK");
  for (const std::string& id : replicas_) node(id).kill();
  // What it took before it knows would stay on its way, and later writes would wait for it.
  ASSERT_TRUE(eventually([&] {
    const auto info = node(primary_).info();
    return info && (*info)["connected_replicas"] == "0";
  })) << cluster().state();
  const auto refused = c.call({"SET", "refused", "x"});
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->to_string(), StartsWith("error NOREPLICAS"));
  EXPECT_EQ(c.call({"DURABILITY", "local_disk"})->to_string(), "OK");
  EXPECT_EQ(c.call({"SET", "alone", "v"})->to_string(), "OK") << "a level that needs nobody";
  EXPECT_EQ(c.call({"WAIT", "1", "50"})->to_string(), "0");
  for (const std::string& id : replicas_) node(id).start();
  ASSERT_EQ(cluster().wait_until_in_sync(), primary_) << cluster().state();
  EXPECT_EQ(c.call({"DURABILITY", "all_disk"})->to_string(), "OK");
  EXPECT_EQ(c.call({"SET", "k", "3"})->to_string(), "OK");
  EXPECT_EQ(c.call({"GET", "k"})->to_string(), "3");
  EXPECT_EQ(c.call({"GET", "refused"})->to_string(), "(nothing)");
  EXPECT_EQ(c.call({"GET", "alone"})->to_string(), "v");
}

TEST_F(ThreeNodes, WhenEtcdIsGoneNobodyAnswersForLongAndAllGoOnWhenItIsBack) {
  start();
  ClusterClient client = cluster().client("quorum_disk");
  ASSERT_TRUE(client.write_surely({"SET", "k", "v"}).ok());
  cluster().etcd()[0].kill();
  Connection c = to(primary_);
  // When its lease is over it must not answer: another might lead by then.
  EXPECT_TRUE(eventually([&] {
    const auto reply = c.call({"GET", "k"});
    return reply && reply->is_error("CLUSTERDOWN");
  })) << cluster().state();
  EXPECT_THAT(c.call({"SET", "k", "w"})->to_string(), StartsWith("error CLUSTERDOWN"));
  EXPECT_EQ(cluster().primary(), "");
  cluster().etcd().restart(0);
  ASSERT_NE(cluster().wait_until_in_sync(), "") << cluster().state();
  EXPECT_EQ(client.read({"GET", "k"}).reply.to_string(), "v");
  EXPECT_TRUE(client.write_surely({"SET", "k", "x"}).ok());
}

TEST_F(ThreeNodes, AShortAbsenceOfOneEtcdOfThreeIsNotNoticed) {
  start({.etcds = 3, .lease_s = 3});
  Load clients(load("quorum_disk"));
  for (std::size_t i = 0; i < 3; ++i) {
    cluster().etcd()[i].kill();
    ASSERT_TRUE(clients.wait_for_more(200, kStatePatience)) << cluster().state();
    cluster().etcd().restart(i);
  }
  ASSERT_NE(cluster().wait_until_in_sync(), "") << cluster().state();
  expect_right(clients);
}

TEST_F(ThreeNodes, ANodeThatStartsBeforeEtcdWaitsForIt) {
  cluster_ = std::make_unique<Cluster>();
  cluster().etcd()[0].kill();
  cluster().start_all();
  for (const std::string& id : cluster().ids()) {
    ASSERT_TRUE(node(id).listens()) << cluster().state();
    EXPECT_THAT(to(id).call({"GET", "k"})->to_string(), StartsWith("error CLUSTERDOWN"));
  }
  cluster().etcd().restart(0);
  EXPECT_NE(cluster().wait_until_in_sync(), "") << cluster().state();
}

TEST_F(ThreeNodes, ConnectionsThatAreCutAgainAndAgainLoseNothing) {
  start();
  Load clients(load("quorum_disk"));
  std::uint64_t seed = 1;
  for (const std::string& id : replicas_) {
    ASSERT_EQ(node(id).end(), 0) << node(id).last_words();
    node(id).start("drop_after=50-400", seed++);
    ASSERT_TRUE(clients.wait_for_more(400, kStatePatience)) << cluster().state();
  }
  for (const std::string& id : replicas_) {
    ASSERT_EQ(node(id).end(), 0) << node(id).last_words();
    node(id).start();
    ASSERT_NE(cluster().wait_until_in_sync(), "") << cluster().state();
  }
  expect_right(clients);
}

TEST_F(ThreeNodes, ACleanEndOfAllIsStatus0AndKeepsAll) {
  start();
  ClusterClient client = cluster().client("quorum_disk");
  for (int i = 0; i < 50; ++i)
    ASSERT_TRUE(client.write_surely({"SET", "k" + std::to_string(i), "v"}).ok());
  for (const std::string& id : cluster().ids()) EXPECT_EQ(node(id).end(), 0) << cluster().state();
  cluster().start_all();
  ASSERT_NE(cluster().wait_until_in_sync(), "") << cluster().state();
  for (int i = 0; i < 50; ++i)
    EXPECT_EQ(client.read({"GET", "k" + std::to_string(i)}).reply.to_string(), "v");
}

TEST_F(ThreeNodes, RedisBenchmarkRunsAgainstThePrimary) {
  start();
  Process benchmark({SLUICE_REDIS_BENCHMARK, "-p", std::to_string(node(primary_).address().port),
                     "-t", "set,get,incr", "-n", "1000", "-c", "16", "-q", "-r", "100"});
  EXPECT_EQ(benchmark.end(), 0);
  for (const std::string& line : benchmark.lines()) EXPECT_THAT(line, Not(HasSubstr("rror")));
  EXPECT_EQ(cluster().wait_until_in_sync(), primary_) << cluster().state();
}

}  // namespace
}  // namespace sluice::kv::test
