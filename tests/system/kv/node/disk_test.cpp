// SPDX-License-Identifier: BSD-3-Clause
// What a node does when its disk is full, and when what lies on it was damaged or lost.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "client.hpp"
#include "cluster.hpp"

namespace sluice::kv::test {
namespace {

using namespace std::chrono_literals;
using testing::AnyOf;
using testing::HasSubstr;

/// A file system of its own, of so many MiB.
class SmallDisk {
 public:
  explicit SmallDisk(std::string folder, int mib) : folder_(std::move(folder)) {
    std::filesystem::create_directory(folder_);
    const std::string options = "size=" + std::to_string(mib) + "m";
    mounted_ = ::mount("none", folder_.c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  [[nodiscard]] bool mounted() const { return mounted_; }
  [[nodiscard]] std::string operator/(const std::string& name) const {
    return folder_ + "/" + name;
  }
  /// Takes all the room that is left.
  void fill() {
    const int fd = ::open((*this / "filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    const std::vector<char> block(64 << 10, 'x');
    while (::write(fd, block.data(), block.size()) > 0) {
    }
    ::close(fd);
  }
  void make_room() { std::filesystem::remove(*this / "filler"); }

 private:
  std::string folder_;
  bool mounted_ = false;
};

std::string key(int i) {
  return "k" + std::to_string(i);
}
std::string value(int i) {
  return std::to_string(i) + std::string(4000, 'v');
}

TEST(FullDisk, WritesAreRefusedReadsGoOnAndItGoesOnWhenThereIsRoom) {
  const TemporaryFolder folder;
  SmallDisk disk(folder / "disk", 24);
  if (!disk.mounted()) GTEST_SKIP() << "a file system of its own takes root";
  Node node("node", disk / "data",
            {"--segment-bytes", "1m", "--log-keep-bytes", "1m", "--write-buffer-bytes", "1m"});
  node.start();
  ASSERT_TRUE(node.listens()) << node.last_words();
  Connection c(node.address());
  int written = 0;
  const auto write_one = [&] { return c.call({"SET", key(written), value(written)}); };
  for (; written < 10; ++written) ASSERT_EQ(write_one()->to_string(), "OK");
  disk.fill();
  // The first ones that find it full may have been written: nobody knows. Later ones are refused.
  std::optional<Reply> reply;
  ASSERT_TRUE(eventually([&] {
    reply = write_one();
    if (reply && !reply->is_error()) ++written;
    return !reply || (reply->is_error() && !reply->is_error("UNCERTAIN"));
  }));
  ASSERT_TRUE(reply) << node.last_words();
  EXPECT_THAT(reply->text, AnyOf(HasSubstr("the store takes no writes"), HasSubstr("full")));
  EXPECT_THAT((*node.info())["last_error"], HasSubstr("full")) << node.info()->text();
  EXPECT_EQ(c.call({"GET", key(0)})->to_string(), value(0)) << "the same client";
  EXPECT_EQ(Connection(node.address()).call({"GET", key(9)})->to_string(), value(9))
      << "another one";
  disk.make_room();
  EXPECT_TRUE(eventually([&] {
    const auto again = c.call({"SET", "after", "there"});
    return again && !again->is_error();
  })) << node.last_words();
  node.kill();
  node.start();
  ASSERT_TRUE(node.listens()) << node.last_words();
  Connection later(node.address());
  for (int i = 0; i < written; ++i)
    ASSERT_EQ(later.call({"GET", key(i)})->to_string(), value(i)) << i;
  EXPECT_EQ(later.call({"GET", "after"})->to_string(), "there");
}

/// The log's files that hold entries, oldest first.
std::vector<std::string> log_files(const Node& node) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(node.data() + "/log"))
    if (entry.is_regular_file() && entry.file_size() > 0) files.push_back(entry.path().string());
  std::ranges::sort(files);
  return files;
}

/// Turns over bits of an entry's payload: `mark` is in it.
bool damage(const Node& node, const std::string& mark) {
  for (const std::string& path : log_files(node)) {
    std::ifstream in(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const auto at = text.find(mark);
    if (at == std::string::npos) continue;
    std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(at));
    out.put(static_cast<char>(text[at] ^ 1));
    return out.good();
  }
  return false;
}

TEST(DamagedLog, OfANodeAloneIsRefusedWithOneLine) {
  const TemporaryFolder folder;
  Node node("node", folder / "data", {"--segment-bytes", "1m"});
  node.start();
  ASSERT_TRUE(node.listens()) << node.last_words();
  Connection c(node.address());
  for (int i = 0; i < 50; ++i) ASSERT_EQ(c.call({"SET", key(i), value(i)})->to_string(), "OK");
  node.kill();
  ASSERT_TRUE(damage(node, value(20)));
  node.start();
  EXPECT_EQ(node.process().end(), 1);
  EXPECT_THAT(node.last_words(), HasSubstr("damaged"));
}

class DamagedNode : public testing::Test {
 protected:
  void SetUp() override {
    cluster_.start_all();
    primary_ = cluster_.wait_until_in_sync();
    ASSERT_NE(primary_, "") << cluster_.state();
    victim_ = cluster_.without(primary_).front();
    ClusterClient client = cluster_.client("all_disk");
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(client.write_surely({"SET", key(i), value(i)}).ok());
  }
  /// It is in sync again, and leads with everything when the others are gone from the set.
  void expect_whole_again() {
    ASSERT_NE(cluster_.wait_until_in_sync(), "") << cluster_.state();
    for (int i = 0; i < 6 && cluster_.primary() != victim_; ++i) {
      const std::string leads = cluster_.wait_until_in_sync();
      ASSERT_NE(leads, "") << cluster_.state();
      if (leads == victim_) break;
      cluster_[leads].kill();
      ASSERT_NE(cluster_.wait_for_primary(leads), "") << cluster_.state();
      cluster_[leads].start();
    }
    ClusterClient client = cluster_.client();
    for (int i = 0; i < 50; ++i)
      ASSERT_EQ(client.read({"GET", key(i)}).reply.to_string(), value(i)) << i << cluster_.state();
  }

  Cluster cluster_;
  std::string primary_, victim_;
};

TEST_F(DamagedNode, AReplicaWhoseLogWasDamagedFetchesEverythingAnew) {
  cluster_[victim_].kill();
  ASSERT_TRUE(damage(cluster_[victim_], value(20)));
  cluster_[victim_].start();
  expect_whole_again();
}

TEST_F(DamagedNode, AReplicaThatLostItsFolderFetchesEverythingAnew) {
  cluster_[victim_].kill();
  std::filesystem::remove_all(cluster_[victim_].data());
  cluster_[victim_].start();
  expect_whole_again();
}

TEST_F(DamagedNode, APrimaryThatLostItsFolderDoesNotLeadWithNothing) {
  cluster_[primary_].kill();
  std::filesystem::remove_all(cluster_[primary_].data());
  cluster_[primary_].start();
  const std::string next = cluster_.wait_until_in_sync();
  EXPECT_NE(next, "") << cluster_.state();
  EXPECT_NE(next, primary_);
  victim_ = primary_;
  expect_whole_again();
}

/// What a and b acknowledged is not lost when b has lost its disk and a is away: c alone cannot
/// know.
TEST(LostDisk, OfAMemberIsNotCountedAsHavingNothingInAnElection) {
  // The replicas stay in the set while they are dead.
  Cluster cluster({.arguments = {"--replica-timeout", "60000"}});
  cluster.start_all();
  const std::string a = cluster.wait_until_in_sync();
  ASSERT_NE(a, "") << cluster.state();
  const std::string b = cluster.without(a)[0], c = cluster.without(a)[1];
  cluster[c].kill();
  ClusterClient client = cluster.client("quorum_disk");
  ASSERT_TRUE(client.write_surely({"SET", "k", "a and b have it"}).ok()) << cluster.state();
  cluster[a].kill();
  cluster[b].kill();
  std::filesystem::remove_all(cluster[b].data());
  cluster[b].start();
  cluster[c].start();
  // Long enough for an election and for whoever is elected to hear the other one.
  (void)eventually([&, until = std::chrono::steady_clock::now() + 12s] {
    return cluster.primary() != "" || std::chrono::steady_clock::now() > until;
  });
  EXPECT_EQ(cluster.primary(), "") << cluster.state();
  cluster[a].start();
  ASSERT_NE(cluster.wait_for_primary(), "") << cluster.state();
  EXPECT_EQ(client.read({"GET", "k"}).reply.to_string(), "a and b have it") << cluster.state();
}

TEST(LostDisk, OfAStaticPrimaryIsFilledAgainFromAReplica) {
  Cluster cluster({.etcds = 0});
  cluster.start_all();
  ASSERT_EQ(cluster.wait_until_in_sync(), "a") << cluster.state();
  ClusterClient client = cluster.client("all_disk");
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(client.write_surely({"SET", key(i), value(i)}).ok());
  cluster["a"].kill();
  std::filesystem::remove_all(cluster["a"].data() + "/log");
  std::filesystem::remove_all(cluster["a"].data() + "/store");
  cluster["a"].start();
  ASSERT_EQ(cluster.wait_until_in_sync(), "a") << cluster.state();
  EXPECT_THAT(cluster["a"].last_words(), HasSubstr("fetches what node"));
  for (int i = 0; i < 300; ++i)
    ASSERT_EQ(client.read({"GET", key(i)}).reply.to_string(), value(i)) << i;
}

}  // namespace
}  // namespace sluice::kv::test
