// SPDX-License-Identifier: BSD-3-Clause
#include "sluice_test/process.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <memory>

namespace sluice::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> shell(const std::string& script) {
  return {"/bin/sh", "-c", script};
}

TEST(Process, ItsStatusAndWhatItSaidOnEachStream) {
  const Ended ended = run(shell("echo one; echo two >&2; printf three; exit 3"));
  EXPECT_EQ(ended.status, 3);
  EXPECT_EQ(ended.out, "one\nthree");
  EXPECT_EQ(ended.err, "two\n");
  EXPECT_EQ(run(shell("kill -TERM $$")).status, 128 + SIGTERM);
  EXPECT_EQ(run({"/does/not/exist"}).status, 127);
}

TEST(Process, ChangesOfItsEnvironmentAreItsAlone) {
  ::setenv("SLUICE_SUPPORT_TEST", "mine", 1);
  const auto said = [](const std::string& value) {
    return run(shell("echo ${SLUICE_SUPPORT_TEST-unset}"),
               {.environment = {{"SLUICE_SUPPORT_TEST", value}}})
        .out;
  };
  EXPECT_EQ(run(shell("echo $SLUICE_SUPPORT_TEST")).out, "mine\n");
  EXPECT_EQ(said("its own"), "its own\n");
  EXPECT_EQ(said(""), "unset\n");
  EXPECT_STREQ(::getenv("SLUICE_SUPPORT_TEST"), "mine");
  ::unsetenv("SLUICE_SUPPORT_TEST");
}

TEST(Process, RunsUnderItsLimitOfDescriptors) {
  EXPECT_EQ(run(shell("ulimit -n"), {.descriptors_max = 77}).out, "77\n");
}

TEST(Process, IsTalkedTo) {
  Process process(shell("while read -r line; do printf '%s\\n' \"got $line\"; done; printf end"));
  process.say("a");
  EXPECT_EQ(process.wait_for("got"), "got a");
  process.say("b");
  EXPECT_EQ(process.wait_for("got", 1), "got b");
  EXPECT_THAT(process.lines(), ElementsAre("got a", "got b"));
  EXPECT_EQ(process.wait_for("got", 2, std::chrono::milliseconds{1}), std::nullopt);
  EXPECT_FALSE(process.says("end", std::chrono::milliseconds{1}));
  process.kill();
  EXPECT_FALSE(process.says("end"));
}

TEST(Process, SaysIsTrueBeforeTheLineEnds) {
  Process process(shell("printf 'half a li'; read -r nothing"));
  EXPECT_TRUE(process.says("half a li"));
  EXPECT_THAT(process.lines(), IsEmpty());
}

TEST(Process, OneThatHangsIsKilledWithAllThatItStarted) {
  Process process(shell("sleep 1000 & echo started; sleep 1000"));
  ASSERT_TRUE(process.says("started"));
  const Ended ended = process.finish(std::chrono::seconds{1});
  EXPECT_EQ(ended.status, -1);
  EXPECT_EQ(ended.out, "started\n");
  EXPECT_TRUE(process.group_is_empty());
}

TEST(Process, WhatItLeavesBehindIsFoundAndKilledInTheEnd) {
  auto process = std::make_unique<Process>(shell("sleep 1000 >/dev/null 2>&1 & echo $!; read x"));
  const auto line = process->wait_for("");
  ASSERT_TRUE(line);
  const pid_t left = std::stoi(*line);
  EXPECT_THAT(process->children(), ElementsAre(left));
  process->kill();
  EXPECT_FALSE(process->group_is_empty(std::chrono::seconds{0}));
  process.reset();
  int status = 0;
  EXPECT_EQ(::waitpid(left, &status, 0), left);  // adopted
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

// It holds the output, which nobody waits for.
TEST(Process, WhatHasLeftItsGroupDoesNotHoldUpTheEnd) {
  auto process = std::make_unique<Process>(shell("setsid sleep 1000 & echo $!; read x"));
  const auto line = process->wait_for("");
  ASSERT_TRUE(line);
  const pid_t left = std::stoi(*line);
  // Until it has: before, it would be killed with the group.
  while (::getpgid(left) == process->pid())
    std::this_thread::yield();  // bound: the test's time-out
  process.reset();
  EXPECT_EQ(::kill(left, SIGKILL), 0);
  EXPECT_EQ(::waitpid(left, nullptr, 0), left);
}

TEST(TemporaryFolder, IsRemovedWithAllThatIsInIt) {
  std::string path;
  {
    const TemporaryFolder outer;
    const TemporaryFolder folder(outer.path());
    path = outer.path();
    EXPECT_THAT(outer.names(), SizeIs(1));
    EXPECT_EQ(content_of(folder.file("b", "text")), "text");
    std::filesystem::create_directory(folder / "a");
    EXPECT_EQ(content_of(folder / "a/none"), "");
    (void)folder.file("a/c", "");
    EXPECT_THAT(folder.names(), ElementsAre("a", "b"));
    EXPECT_THAT(folder.names("a"), ElementsAre("c"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace sluice::test
