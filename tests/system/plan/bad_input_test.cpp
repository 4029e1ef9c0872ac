// SPDX-License-Identifier: BSD-3-Clause
// Whatever sluice-plan is fed: one line that says what, where and what to do, and no data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "program.hpp"

namespace sluice::test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kFailed = 1, kUsage = 2, kConfig = 3;

void expect_refused(const std::vector<std::string>& arguments, int status, const std::string& why,
                    const Environment& environment = {}) {
  SCOPED_TRACE(::testing::PrintToString(arguments));
  const Ended ended = run_plan(arguments, environment);
  EXPECT_EQ(ended.status, status);
  EXPECT_THAT(ended.out, IsEmpty());
  EXPECT_THAT(ended.err, AllOf(HasSubstr(why), EndsWith("\n")));
  EXPECT_EQ(lines_of(ended.err), 1U) << ended.err;
}

TEST(BadInput, AnUnknownOrMissingCommandIsAUsageErrorThatListsTheCommands) {
  expect_refused({}, kUsage, "print-defaults");
  expect_refused({"bogus"}, kUsage, "'bogus'");
  expect_refused({"plan", "--bogus"}, kUsage, "--bogus");
  expect_refused({"draw"}, kUsage, "OUTPUT");
}

TEST(BadInput, AConfigurationThatCannotBeReadIsNamed) {
  const TemporaryFolder folder;
  expect_refused({"check", folder / "none.toml"}, kFailed, "none.toml: cannot be read: No such");
  expect_refused({"plan", folder / "."}, kFailed, "Is a directory");
  expect_refused({"plan", "/dev/zero"}, kFailed, "no regular file");
  expect_refused({"plan"}, kFailed, "gone.toml", {{"SLUICE_CONFIG", folder / "gone.toml"}});
}

TEST(BadInput, AConfigurationWithErrorsSaysFileLineAndColumn) {
  const TemporaryFolder folder;
  const auto typo = folder.file("typo.toml", "[pools.apply]\nwrokers = 3\n");
  expect_refused({"check", typo}, kConfig, typo + ":2:1: error: ");
  expect_refused({"plan", typo}, kConfig, "did you mean 'workers'?");
  expect_refused({"check", folder.file("binary.toml", std::string("\x7f\x45\x4c\x46\0\1\xff", 7))},
                 kConfig, "binary.toml:1:");
  expect_refused({"plan", "--set", "pools.default.workers=lots"}, kConfig,
                 "--set pools.default.workers: error: ");
  expect_refused({"plan"}, kConfig, "SLUICE_POOLS__DEFAULT__WORKERS: error: ",
                 {{"SLUICE_POOLS__DEFAULT__WORKERS", "lots"}});
}

TEST(BadInput, WhatTheMachineDoesNotHaveIsAnErrorOfItsLine) {
  const TemporaryFolder folder;
  const auto file = folder.file("device.toml", "[pollers.nic]\ndevice = \"mlx9_0\"\n");
  expect_refused({"check", file, "--topology", "core:4 pu:1"}, kConfig,
                 file + ":2:10: error: pollers.nic.device");
  EXPECT_EQ(run_plan({"check", file, "--no-machine"}).status, 0);
}

TEST(BadInput, ATopologyThatIsNoneIsAUsageError) {
  const TemporaryFolder folder;
  expect_refused({"plan", "--topology", folder / "none.xml"}, kUsage, "there is no such file");
  expect_refused({"plan", "--topology", folder / "."}, kUsage, "is no file");
  expect_refused({"plan", "--topology", folder.file("a.xml", "<a/>")}, kUsage, "not a topology");
  expect_refused({"plan", "--topology", folder.file("b.xml", "\1\2\3\xff")}, kUsage,
                 "not a topology");
  expect_refused({"plan", "--topology", "nonsense"}, kUsage, "synthetic");
  expect_refused({"plan", "--topology", ""}, kUsage, "is empty");
}

TEST(BadInput, AWhatIfThatCannotBeSaysWhatThereIs) {
  const std::vector<std::string> on{"plan", "--topology", "numa:2 core:2 pu:2"};
  const auto with = [&](const std::string& option, const std::string& value) {
    auto all = on;
    all.insert(all.end(), {option, value});
    return all;
  };
  expect_refused(with("--nic", "mlx5_0"), kUsage, "NAME@NODE");
  expect_refused(with("--nic", "@1"), kUsage, "NAME@NODE");
  expect_refused(with("--nic", "mlx5_0@one"), kUsage, "NODE is a number");
  expect_refused(with("--nic", "mlx5_0@2"), kUsage, "there are 0-1");
  for (const char* const option : {"--allowed", "--affinity", "--isolated"}) {
    expect_refused(with(option, "4-9"), kUsage, "no CPU 8-9");
    expect_refused(with(option, "x"), kUsage, "'x'");
    expect_refused(with(option, ""), kUsage, "is empty");
  }
  expect_refused(with("--set", "workers"), kUsage, "PATH=VALUE");
}

TEST(BadInput, APictureThatCannotBeWrittenLeavesNothing) {
  const TemporaryFolder folder;
  expect_refused({"draw", folder / "a.gif"}, kUsage, ".svg or .png");
  expect_refused({"draw", folder / "a"}, kUsage, ".svg or .png");
  expect_refused({"draw", folder / "none/a.xml", "--topology", "pu:1"}, kFailed,
                 "a.xml: cannot be written: No such");
  expect_refused({"draw", folder / "none/a.svg", "--topology", "pu:1"}, kFailed,
                 "a.svg: cannot be written: No such");
}

TEST(BadInput, AMissingLstopoSaysWhatToInstall) {
  const TemporaryFolder folder;
  expect_refused({"draw", folder / "a.svg", "--topology", "pu:1"}, kFailed, "install hwloc",
                 {{"PATH", folder / "."}});
  EXPECT_FALSE(std::filesystem::exists(folder / "a.svg"));
}

TEST(BadInput, OutputThatIsLostIsAFailure) {
  for (const char* const out : {"closed", "/dev/full"}) {
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{"plan", "--topology", "pu:1"},
          {"plan", "--json"},
          {"print-defaults"},
          {"print-config"},
          {"check"},
          {"--help"}}) {
      SCOPED_TRACE(out + (" " + arguments.front()));
      const Ended ended = run_plan(arguments, {{"SLUICE_POOLS__DEFAULT__WORKERS", "1"}}, out);
      EXPECT_EQ(ended.status, kFailed);
      EXPECT_THAT(ended.err, HasSubstr("standard output: cannot be written"));
    }
  }
}

TEST(BadInput, AReaderThatHasSeenEnoughIsAFailureWithoutTalk) {
  const Ended ended = run_plan({"plan", "--json", "--topology", "pu:1"}, {}, "broken pipe");
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, IsEmpty());
}

}  // namespace
}  // namespace sluice::test
