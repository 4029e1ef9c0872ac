// SPDX-License-Identifier: BSD-3-Clause
// What sluice-kv says to options that make no sense (status 2) and to a place where it cannot run
// (status 1): one line that names what is wrong, and nothing is left half done.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cluster.hpp"

namespace sluice::kv::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Arguments = std::vector<std::string>;

/// One line that begins with the program's name and has `why` in it.
void expect_one_line(Process& process, int status, const std::string& why) {
  EXPECT_EQ(process.end(), status);
  const auto lines = process.lines();
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  EXPECT_EQ(lines.size(), 1U) << all;
  EXPECT_THAT(all, StartsWith("sluice-kv: "));
  EXPECT_THAT(all, HasSubstr(why));
}

struct BadOption {
  const char* name;
  Arguments arguments;
  const char* why;
};
void PrintTo(const BadOption& bad, std::ostream* out) {
  *out << bad.name;
}

class BadOptions : public testing::TestWithParam<BadOption> {};

TEST_P(BadOptions, AreNamedInOneLine) {
  TemporaryFolder folder;
  Arguments arguments = GetParam().arguments;
  if (std::ranges::find(arguments, "--data") == arguments.end() &&
      std::string(GetParam().name) != "no_folder")
    arguments.insert(arguments.begin(), {"--data", folder / "data"});
  Process process(command_line(arguments));
  expect_one_line(process, 2, GetParam().why);
  EXPECT_FALSE(std::filesystem::exists(folder / "data")) << "nothing was begun";
}

INSTANTIATE_TEST_SUITE_P(
    All, BadOptions,
    testing::Values(
        BadOption{"no_folder", {}, "--data"},
        BadOption{"unknown_option", {"--nonsense"}, "--nonsense"},
        BadOption{"a_word_too_many", {"nonsense"}, "nonsense"},
        BadOption{"port_no_number", {"--port", "x"}, "--port"},
        BadOption{"port_too_large", {"--port", "65536"}, "--port"},
        BadOption{"no_durability", {"--durability", "perhaps"}, "perhaps"},
        BadOption{"node_with_a_comma", {"--node", "a,b"}, "--node"},
        BadOption{"empty_node", {"--node", ""}, "--node"},
        BadOption{"size_no_number", {"--segment-bytes", "many"}, "--segment-bytes"},
        BadOption{"size_of_nothing", {"--log-keep-bytes", "5q"}, "--log-keep-bytes"},
        BadOption{"size_too_large", {"--ring-bytes", "99999999999g"}, "--ring-bytes"},
        BadOption{"timeout_negative", {"--replica-timeout", "-1"}, "--replica-timeout"},
        BadOption{"announce_without_port", {"--announce", "host"}, "--announce"},
        BadOption{"etcd_without_replication",
                  {"--etcd", "http://127.0.0.1:1", "--members", "node"},
                  "--replication"},
        BadOption{
            "replication_without_port",
            {"--etcd", "http://127.0.0.1:1", "--members", "node", "--replication", "127.0.0.1"},
            "--replication"},
        BadOption{"lease_zero",
                  {"--etcd", "http://127.0.0.1:1", "--members", "node", "--replication",
                   "127.0.0.1:7000", "--lease", "0"},
                  "--lease"},
        BadOption{"etcd_and_static",
                  {"--etcd", "http://127.0.0.1:1", "--replication", "127.0.0.1:7000", "--static",
                   "node=127.0.0.1:6379,127.0.0.1:7000", "--primary", "node"},
                  "--static"},
        BadOption{
            "static_without_primary",
            {"--replication", "127.0.0.1:7000", "--static", "node=127.0.0.1:6379,127.0.0.1:7000"},
            "--primary"},
        BadOption{"static_without_itself",
                  {"--replication", "127.0.0.1:7000", "--static", "b=127.0.0.1:6379,127.0.0.1:7000",
                   "--primary", "b"},
                  "node"},
        BadOption{"static_nonsense",
                  {"--replication", "127.0.0.1:7000", "--static", "node", "--primary", "node"},
                  "--static"},
        BadOption{"primary_that_is_none",
                  {"--replication", "127.0.0.1:7000", "--static",
                   "node=127.0.0.1:6379,127.0.0.1:7000", "--primary", "z"},
                  "z"},
        BadOption{"more_in_sync_than_there_are",
                  {"--replication", "127.0.0.1:7000", "--static",
                   "node=127.0.0.1:6379,127.0.0.1:7000", "--primary", "node", "--min-in-sync", "5"},
                  "--min-in-sync"}),
    [](const auto& each) { return std::string(each.param.name); });

class CannotStart : public testing::Test {
 protected:
  TemporaryFolder folder_;
};

TEST_F(CannotStart, AFolderThatCannotBeMade) {
  std::ofstream(folder_ / "file") << "no folder";
  Process process(command_line({"--data", folder_ / "file", "--port", "0"}));
  expect_one_line(process, 1, folder_ / "file");
  Process below(command_line({"--data", folder_ / "file/data", "--port", "0"}));
  expect_one_line(below, 1, folder_ / "file/data");
}

TEST_F(CannotStart, ATopologyThatIsWrongOrHasTooFewWorkers) {
  const std::string file = folder_ / "sluice.toml";
  const auto expect = [&](const std::string& text, const std::string& said) {
    std::ofstream(file) << text;
    Process process(command_line({"--data", folder_ / "data", "--port", "0", "--topology", file}));
    expect_one_line(process, 1, said);
  };
  expect("[pools.apply]\nworker = 2\n", "sluice.toml:2");
  expect("[pools.apply]\nworkers = 1\n", "needs 2 at least");
  Process process(command_line(
      {"--data", folder_ / "data", "--port", "0", "--topology", folder_ / "absent.toml"}));
  expect_one_line(process, 1, folder_ / "absent.toml");
}

TEST_F(CannotStart, APortInUse) {
  Node first("node", folder_ / "first", {});
  first.start();
  ASSERT_TRUE(first.listens());
  const std::string port = std::to_string(first.address().port);
  Process second(command_line({"--data", folder_ / "second", "--port", port}));
  expect_one_line(second, 1, port);
}

TEST_F(CannotStart, AnAddressThatIsNotThisMachines) {
  for (const char* address : {"192.0.2.1", "not an address"}) {
    Process process(command_line({"--data", folder_ / "data", "--port", "0", "--bind", address}));
    expect_one_line(process, 1, address);
  }
}

TEST_F(CannotStart, AFolderInUse) {
  Node first("node", folder_ / "data", {});
  first.start();
  ASSERT_TRUE(first.listens());
  Process second(command_line({"--data", folder_ / "data", "--port", "0"}));
  expect_one_line(second, 1, folder_ / "data");
  EXPECT_EQ(Connection(first.address()).call({"SET", "k", "v"})->to_string(), "OK");
}

TEST_F(CannotStart, TheDataOfAnotherCluster) {
  Node first("node", folder_ / "data", {"--cluster", "one"});
  first.start();
  ASSERT_TRUE(first.listens());
  ASSERT_EQ(Connection(first.address()).call({"SET", "k", "v"})->to_string(), "OK");
  ASSERT_EQ(first.end(), 0);
  Process other(command_line({"--data", folder_ / "data", "--port", "0", "--cluster", "two"}));
  expect_one_line(other, 1, "cluster");
  first.start();
  ASSERT_TRUE(first.listens()) << "what was refused has changed nothing";
  EXPECT_EQ(Connection(first.address()).call({"GET", "k"})->to_string(), "v");
}

TEST_F(CannotStart, AnotherClustersEtcd) {
  Cluster cluster({.ids = {"a"}});
  cluster.start_all();
  ASSERT_EQ(cluster.wait_for_primary(), "a") << cluster.state();
  const ReservedPort replication;
  Process other(command_line({"--data", folder_ / "data", "--port", "0", "--node", "a", "--cluster",
                              "another", "--etcd", cluster.etcd().endpoints().front(), "--lease",
                              "1", "--members", "a", "--replication",
                              device_address() + ":" + std::to_string(replication.number())}));
  EXPECT_EQ(other.end(), 1);
  std::string last;
  for (const std::string& line : other.lines()) last = line;
  EXPECT_THAT(last, StartsWith("sluice-kv: "));
  EXPECT_THAT(last, HasSubstr("cluster"));
  EXPECT_EQ(cluster.primary(), "a") << "which notices nothing";
}

}  // namespace
}  // namespace sluice::kv::test
