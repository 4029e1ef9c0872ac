// SPDX-License-Identifier: BSD-3-Clause
// What examples/run shows, as a test: the whole story with a small load; nothing is left behind,
// however it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "sluice_test/process.hpp"

namespace sluice::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// The processes that have this text in their command lines.
std::vector<std::string> processes_with(const std::string& text) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    std::string line(std::istreambuf_iterator<char>(file), {});
    std::replace(line.begin(), line.end(), '\0', ' ');
    if (line.find(text) != std::string::npos) found.push_back(line);
  }
  return found;
}

/// The demo with a small load, its data in a folder of the test's.
class Demo : public ::testing::Test {
 protected:
  Demo() {
    EXPECT_EQ(mkdir((folder_ / "tmp").c_str(), 0700), 0);
    EXPECT_EQ(setenv("TMPDIR", (folder_ / "tmp").c_str(), 1), 0);
  }
  ~Demo() override { unsetenv("TMPDIR"); }

  [[nodiscard]] static std::vector<std::string> words(std::vector<std::string> more = {}) {
    more.insert(more.begin(),
                {SLUICE_KV_DEMO, "--requests", "1000", "--clients", "4", "--writers", "2"});
    return more;
  }
  /// What it made for its processes, which each of them has in its command line.
  [[nodiscard]] std::string data() const { return folder_ / "tmp/sluice-kv-demo."; }
  void expect_nothing_left() const {
    EXPECT_TRUE(std::filesystem::is_empty(folder_ / "tmp"));
    EXPECT_THAT(processes_with(data()), ::testing::IsEmpty());
  }

  TemporaryFolder folder_;
};

std::string all_of(const Process& process) {
  std::string text;
  for (const std::string& line : process.lines()) text += line + '\n';
  return text;
}

TEST_F(Demo, LosesItsPrimaryAndNoAcknowledgedWrite) {
  Process demo(words());
  const int status = demo.end();
  const std::string said = all_of(demo);
  EXPECT_EQ(status, 0) << said;
  for (const char* const part : {"leads, epoch", "kill -9", "MOVED 0 127.0.0.1:", "in sync again",
                                 "0 missing, 0 wrong", "all have ended"})
    EXPECT_THAT(said, HasSubstr(part));
  EXPECT_THAT(demo.lines().back(),
              AllOf(HasSubstr("lost        0 of "), Not(HasSubstr("0 of 0 "))));
  expect_nothing_left();
}

TEST_F(Demo, EndsAllThatItStartedWhenItIsInterrupted) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Process demo(words());
    ASSERT_TRUE(demo.wait_for("leads, epoch")) << all_of(demo);
    EXPECT_GE(processes_with(data()).size(), 4U);
    demo.signal(signal);
    EXPECT_EQ(demo.end(), 128 + signal) << all_of(demo);
    expect_nothing_left();
  }
}

TEST_F(Demo, TakesItsProcessesWithItWhenItIsKilled) {
  Process demo(words());
  ASSERT_TRUE(demo.wait_for("leads, epoch")) << all_of(demo);
  ASSERT_GE(processes_with(data()).size(), 4U);
  demo.kill();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!processes_with(data()).empty() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_THAT(processes_with(data()), ::testing::IsEmpty());
}

TEST_F(Demo, RefusesNonsenseInOneLine) {
  for (const std::vector<std::string>& nonsense :
       std::vector<std::vector<std::string>>{{"--nodes", "2"},
                                             {"--lease", "many"},
                                             {"--address", "here"},
                                             {"--requests"},
                                             {"--kill-one"},
                                             {"stray"}}) {
    Process demo(words(nonsense));
    EXPECT_EQ(demo.end(), 2) << nonsense[0];
    EXPECT_THAT(demo.lines(), ::testing::ElementsAre(HasSubstr("sluice-kv-demo: ")));
    expect_nothing_left();
  }
}

}  // namespace
}  // namespace sluice::test
