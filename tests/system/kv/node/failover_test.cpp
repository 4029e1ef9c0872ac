// SPDX-License-Identifier: BSD-3-Clause
// A primary that dies, hangs, or goes: another one leads with all that was acknowledged at a
// quorum, and the old one is not believed any more.
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
using Clock = std::chrono::steady_clock;

class Failover : public testing::Test {
 protected:
  void start(ClusterOptions options = {}) {
    cluster_ = std::make_unique<Cluster>(std::move(options));
    cluster_->start_all();
    primary_ = cluster_->wait_until_in_sync();
    ASSERT_NE(primary_, "") << cluster_->state();
  }
  [[nodiscard]] Node& node(const std::string& id) { return (*cluster_)[id]; }
  [[nodiscard]] LoadOptions load(const std::string& durability) const {
    LoadOptions options;
    options.client = cluster_->client_options(durability);
    return options;
  }
  void expect_right(Load& load) {
    const Judgement judgement = judge(load, cluster_->client_options());
    RecordProperty("summary", judgement.summary);
    EXPECT_EQ(judgement.wrong, "") << cluster_->state();
  }

  std::unique_ptr<Cluster> cluster_;
  std::string primary_;
};

class FailoverAtALevel : public Failover, public testing::WithParamInterface<const char*> {};

TEST_P(FailoverAtALevel, AKilledPrimaryIsReplacedAndNothingAcknowledgedIsLost) {
  start();
  Load clients(load(GetParam()));
  ASSERT_TRUE(clients.wait_for_more(300, kStatePatience)) << cluster_->state();
  const auto epoch = node(primary_).info()->number("epoch");
  const auto killed = Clock::now();
  node(primary_).kill();
  const std::string next = cluster_->wait_for_primary(primary_);
  ASSERT_NE(next, "") << cluster_->state();
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - killed);
  RecordProperty("failover_ms", std::to_string(took.count()));
  EXPECT_GT(node(next).info()->number("epoch"), epoch);
  ASSERT_TRUE(clients.wait_for_more(300, kStatePatience)) << cluster_->state();
  // The old one comes back as a replica and gets what it has missed.
  node(primary_).start();
  ASSERT_EQ(cluster_->wait_until_in_sync(), next) << cluster_->state();
  EXPECT_EQ((*node(primary_).info())["role"], "replica");
  ASSERT_TRUE(clients.wait_for_more(100, kStatePatience)) << cluster_->state();
  expect_right(clients);
}

INSTANTIATE_TEST_SUITE_P(Levels, FailoverAtALevel,
                         testing::Values("quorum_memory", "quorum_disk", "all_disk"),
                         [](const auto& each) { return std::string(each.param); });

TEST_F(Failover, EachPrimaryInTurnIsKilled) {
  start();
  Load clients(load("quorum_disk"));
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(clients.wait_for_more(100, kStatePatience)) << cluster_->state();
    const std::string before = cluster_->wait_until_in_sync();
    ASSERT_NE(before, "") << cluster_->state();
    node(before).kill();
    ASSERT_NE(cluster_->wait_for_primary(before), "") << cluster_->state();
    node(before).start();
  }
  ASSERT_NE(cluster_->wait_until_in_sync(), "") << cluster_->state();
  expect_right(clients);
}

TEST_F(Failover, AStoppedPrimaryIsFenced) {
  start();
  ClusterClient client = cluster_->client("quorum_disk");
  ASSERT_TRUE(client.write_surely({"SET", "k", "old"}).ok());
  Connection reader(node(primary_).address(), 60s), writer(node(primary_).address(), 60s);
  ASSERT_EQ(reader.call({"GET", "k"})->to_string(), "old");
  ASSERT_EQ(writer.call({"DURABILITY", "memory"})->to_string(), "OK");
  node(primary_).freeze();
  ASSERT_NE(cluster_->wait_for_primary(primary_), "") << cluster_->state();
  ASSERT_TRUE(client.write_surely({"SET", "k", "new"}).ok()) << cluster_->state();
  // These lie in front of it when it wakes, and it believed to lead when it went to sleep.
  reader.send_later({"GET", "k"});
  reader.flush();
  writer.send_later({"SET", "k", "stale"});
  writer.flush();
  node(primary_).go_on();
  const auto read = reader.receive(), written = writer.receive();
  ASSERT_TRUE(read && written) << cluster_->state();
  EXPECT_TRUE(read->is_error("MOVED") || read->is_error("CLUSTERDOWN") ||
              read->is_error("UNCERTAIN"))
      << read->to_string();
  EXPECT_TRUE(written->is_error("MOVED") || written->is_error("CLUSTERDOWN") ||
              written->is_error("UNCERTAIN"))
      << written->to_string();
  ASSERT_NE(cluster_->wait_until_in_sync(), "") << cluster_->state();
  EXPECT_EQ(client.read({"GET", "k"}).reply.to_string(), "new");
  EXPECT_EQ((*node(primary_).info())["role"], "replica");
}

TEST_F(Failover, APrimaryThatIsStoppedUnderLoadLosesNothing) {
  start();
  Load clients(load("quorum_disk"));
  ASSERT_TRUE(clients.wait_for_more(200, kStatePatience)) << cluster_->state();
  node(primary_).freeze();
  ASSERT_NE(cluster_->wait_for_primary(primary_), "") << cluster_->state();
  ASSERT_TRUE(clients.wait_for_more(200, kStatePatience)) << cluster_->state();
  node(primary_).go_on();
  ASSERT_NE(cluster_->wait_until_in_sync(), "") << cluster_->state();
  ASSERT_TRUE(clients.wait_for_more(100, kStatePatience)) << cluster_->state();
  expect_right(clients);
}

TEST_F(Failover, WhatWasNeverOnAnotherNodeIsTruncatedWhenTheOldPrimaryComesBack) {
  // The replicas stay in the set while they are dead, or they could not lead afterwards.
  start({.arguments = {"--replica-timeout", "60000"}});
  ClusterClient client = cluster_->client("all_disk");
  ASSERT_TRUE(client.write_surely({"SET", "k", "everywhere"}).ok());
  const auto replicas = cluster_->without(primary_);
  Connection c(node(primary_).address());
  ASSERT_EQ(c.call({"DURABILITY", "local_disk"})->to_string(), "OK");
  for (const std::string& id : replicas) node(id).kill();
  int only_here = 0;
  for (; only_here < 20; ++only_here) {
    const auto reply = c.call({"SET", "k", "only here"});
    ASSERT_TRUE(reply);
    if (reply->is_error()) break;  // its lease was over
  }
  ASSERT_GT(only_here, 0);
  node(primary_).kill();
  for (const std::string& id : replicas) node(id).start();
  const std::string next = cluster_->wait_for_primary(primary_);
  ASSERT_NE(next, "") << cluster_->state();
  // The old primary is still in the set: all of it cannot have this.
  ClusterClient later = cluster_->client("quorum_disk");
  ASSERT_TRUE(later.write_surely({"SET", "k", "new"}).ok());
  node(primary_).start();
  ASSERT_EQ(cluster_->wait_until_in_sync(), next) << cluster_->state();
  // Whoever leads from now on, the new value is there: the old primary has given up what it had.
  for (int i = 0; i < 3; ++i) {
    const std::string before = cluster_->wait_until_in_sync();
    ASSERT_NE(before, "") << cluster_->state();
    EXPECT_EQ(client.read({"GET", "k"}).reply.to_string(), "new") << before << " leads";
    node(before).kill();
    ASSERT_NE(cluster_->wait_for_primary(before), "") << cluster_->state();
    node(before).start();
  }
  ASSERT_NE(cluster_->wait_until_in_sync(), "") << cluster_->state();
  EXPECT_EQ(client.read({"GET", "k"}).reply.to_string(), "new");
}

TEST_F(Failover, APrimaryThatEndsCleanlyHandsOver) {
  start();
  Load clients(load("quorum_disk"));
  ASSERT_TRUE(clients.wait_for_more(100, kStatePatience)) << cluster_->state();
  EXPECT_EQ(node(primary_).end(), 0) << cluster_->state();
  ASSERT_NE(cluster_->wait_for_primary(primary_), "") << cluster_->state();
  ASSERT_TRUE(clients.wait_for_more(100, kStatePatience)) << cluster_->state();
  node(primary_).start();
  ASSERT_NE(cluster_->wait_until_in_sync(), "") << cluster_->state();
  expect_right(clients);
}

}  // namespace
}  // namespace sluice::kv::test
