// SPDX-License-Identifier: BSD-3-Clause
#include "kv/node/options.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace sluice::kv {
namespace {

struct Parsed {
  ParsedOptions result;
  std::string said;  ///< on stderr
};
Parsed parse(std::vector<std::string> words) {
  words.insert(words.begin(), "sluice-kv");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  testing::internal::CaptureStderr();
  Parsed out{parse_options(static_cast<int>(argv.size()), argv.data()), {}};
  out.said = testing::internal::GetCapturedStderr();
  return out;
}
/// One line, status 2, and it names what is wrong.
void expect_refused(std::vector<std::string> words, const std::string& names) {
  const std::string shown = testing::PrintToString(words);
  const Parsed parsed = parse(std::move(words));
  EXPECT_FALSE(parsed.result.options.has_value()) << shown;
  EXPECT_EQ(parsed.result.exit_code, 2) << shown;
  EXPECT_NE(parsed.said.find(names), std::string::npos) << shown << " said: " << parsed.said;
  EXPECT_EQ(std::count(parsed.said.begin(), parsed.said.end(), '\n'), 1) << parsed.said;
}

TEST(KvOptions, ANodeAloneNeedsAFolderOnly) {
  const auto parsed = parse({"--data", "d"});
  ASSERT_TRUE(parsed.result.options.has_value()) << parsed.said;
  const Options& options = *parsed.result.options;
  EXPECT_TRUE(options.alone());
  EXPECT_EQ(options.port, 6379);
  EXPECT_EQ(options.bind, "127.0.0.1");
  EXPECT_EQ(options.effective_durability(), Durability::local_disk);
  EXPECT_EQ(options.effective_min_in_sync(), 1U);
}

TEST(KvOptions, AClusterWithEtcd) {
  const auto parsed =
      parse({"--data", "d", "--node", "b", "--replication", "127.0.0.1:8002", "--etcd",
             "http://h:1,http://h:2", "--members", "a,b,c", "--segment-bytes", "64k"});
  ASSERT_TRUE(parsed.result.options.has_value()) << parsed.said;
  const Options& options = *parsed.result.options;
  EXPECT_EQ(options.etcd.size(), 2U);
  EXPECT_EQ(options.members, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(options.effective_durability(), Durability::quorum_disk);
  EXPECT_EQ(options.effective_min_in_sync(), 2U);
  EXPECT_EQ(options.segment_bytes, 65536U);
  EXPECT_LE(options.entry_bytes_max(), 65536U);
}

TEST(KvOptions, AStaticCluster) {
  const auto parsed = parse({"--data", "d", "--node", "b", "--static", "a=127.0.0.1:1,127.0.0.1:2",
                             "--static", "b=127.0.0.1:3,127.0.0.1:4", "--primary", "a"});
  ASSERT_TRUE(parsed.result.options.has_value()) << parsed.said;
  EXPECT_EQ(parsed.result.options->replication, "127.0.0.1:4");
  EXPECT_EQ(parsed.result.options->announce, "127.0.0.1:3");
  EXPECT_EQ(parsed.result.options->effective_min_in_sync(), 2U);
}

TEST(KvOptions, WhatCannotWorkIsOneLineThatNamesIt) {
  expect_refused({}, "--data");
  expect_refused({"--data", "d", "--port", "70000"}, "--port");
  expect_refused({"--data", "d", "--durability", "high"}, "quorum_disk");
  expect_refused({"--data", "d", "--nonsense"}, "--nonsense");
  expect_refused({"--data", "d", "--node", "a/b"}, "a/b");
  expect_refused({"--data", "d", "--node", std::string(29, 'n')}, "28");
  expect_refused({"--data", "d", "--replication", "127.0.0.1:1"}, "--etcd or --static");
  expect_refused({"--data", "d", "--members", "a"}, "--etcd");
  expect_refused({"--data", "d", "--etcd", "http://h:1"}, "--replication");
  expect_refused({"--data", "d", "--etcd", "http://h:1", "--replication", "h"}, "HOST:PORT");
  expect_refused({"--data", "d", "--etcd", "http://h:1", "--replication", "h:0"},
                 "port of its own");
  expect_refused({"--data", "d", "--static", "a=x"}, "ID=CLIENT");
  expect_refused({"--data", "d", "--node", "z", "--static", "a=h:1,h:2", "--primary", "a"},
                 "lacks this node");
  expect_refused({"--data", "d", "--node", "a", "--static", "a=h:1,h:2", "--primary", "q"},
                 "--primary");
  expect_refused({"--data", "d", "--node", "a", "--static", "a=h:1,h:2", "--static", "a=h:3,h:4",
                  "--primary", "a"},
                 "twice");
  expect_refused({"--data", "d", "--ring-bytes", "1k"}, "--ring-bytes");
  expect_refused({"--data", "d", "--segment-bytes", "99999999999999999999"}, "--segment-bytes");
  expect_refused({"--data", "d", "--replica-timeout", "1"}, "--replica-timeout");
}

TEST(KvOptions, HelpIsNoFailure) {
  testing::internal::CaptureStdout();
  const auto parsed = parse({"--help"});
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_EQ(parsed.result.exit_code, 0);
  EXPECT_NE(said.find("--durability"), std::string::npos);
}

}  // namespace
}  // namespace sluice::kv
