// SPDX-License-Identifier: BSD-3-Clause
// Three nodes without etcd: the configuration says who leads, for good.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client.hpp"
#include "cluster.hpp"
#include "load.hpp"

namespace sluice::kv::test {
namespace {

using testing::StartsWith;

class StaticCluster : public testing::Test {
 protected:
  void SetUp() override {
    cluster_.start_all();
    ASSERT_EQ(cluster_.wait_until_in_sync(), "a") << cluster_.state();
  }
  Cluster cluster_{{.etcds = 0}};
};

TEST_F(StaticCluster, ReplicatesAndSaysThatNothingTakesOver) {
  ClusterClient client = cluster_.client("all_disk");
  EXPECT_TRUE(client.write_surely({"SET", "k", "v"}).ok());
  EXPECT_EQ(client.read({"GET", "k"}).reply.text, "v");
  for (const std::string& id : cluster_.ids()) {
    const auto info = cluster_[id].info();
    ASSERT_TRUE(info);
    EXPECT_THAT((*info)["membership"], StartsWith("static")) << id;
    EXPECT_EQ((*info)["primary"], "a," + cluster_["a"].address().to_string()) << id;
  }
  const auto moved = Connection(cluster_["b"].address()).call({"SET", "k", "w"});
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->to_string(), "error MOVED 0 " + cluster_["a"].address().to_string());
}

TEST_F(StaticCluster, ThePrimaryComesBackWithAllThatWasAcknowledged) {
  LoadOptions options;
  options.client = cluster_.client_options("quorum_disk");
  Load load(options);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(load.wait_for_more(200, kStatePatience)) << load.refusal() << cluster_.state();
    cluster_["a"].kill();
    cluster_["a"].start();
    ASSERT_EQ(cluster_.wait_until_in_sync(), "a") << cluster_.state();
  }
  EXPECT_EQ(judge(load, options.client).wrong, "") << cluster_.state();
}

TEST_F(StaticCluster, AReplicaOfAnotherClusterIsRefusedAndToldAbout) {
  ASSERT_EQ(cluster_["c"].end(), 0);
  TemporaryFolder folder;
  std::vector<std::string> arguments{"--data",        folder / "c",
                                     "--node",        "c",
                                     "--cluster",     "another",
                                     "--port",        std::to_string(cluster_["c"].address().port),
                                     "--replication", cluster_["c"].replication(),
                                     "--primary",     "a"};
  for (const std::string& id : cluster_.ids()) {
    arguments.emplace_back("--static");
    arguments.push_back(id + "=" + cluster_[id].address().to_string() + "," +
                        cluster_[id].replication());
  }
  Process stranger(command_line(arguments));
  EXPECT_TRUE(eventually([&] {
    const auto info = cluster_["a"].info();
    return info && info->replica("c", "state") == "refused" &&
           info->list("in_sync") == std::vector<std::string>{"a", "b"};
  })) << cluster_.state();
  ClusterClient client = cluster_.client("quorum_disk");
  EXPECT_TRUE(client.write_surely({"SET", "k", "v"}).ok()) << "the others go on";
}

}  // namespace
}  // namespace sluice::kv::test
