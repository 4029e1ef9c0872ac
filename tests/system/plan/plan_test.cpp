// SPDX-License-Identifier: BSD-3-Clause
// sluice-plan as a whole, in real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "program.hpp"
#include "sluice_test/topologies.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using Json = nlohmann::json;

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

const std::string kSmall = "numa:2 l3:1 core:4 pu:2";

TEST(PlanCommand, JsonHasTheDocumentedKeysAndNoOthersOnAnyMachine) {
  const std::set<std::string> roles{"poller", "worker", "housekeeping"};
  for (const std::string& topology : all_topologies()) {
    SCOPED_TRACE(topology);
    const Ended ended = run_plan({"plan", "--json", "--topology", topology});
    ASSERT_EQ(ended.status, 0) << ended.err;
    const Json plan = Json::parse(ended.out);
    EXPECT_THAT(keys_of(plan), UnorderedElementsAre("threads", "degraded", "cost"));
    EXPECT_THAT(keys_of(plan["cost"]),
                UnorderedElementsAre("disallowed", "shared_cores", "off_node", "busy_siblings",
                                     "split_l3", "imbalance"));
    EXPECT_FALSE(plan["threads"].empty());
    for (const Json& thread : plan["threads"]) {
      EXPECT_THAT(keys_of(thread), UnorderedElementsAre("name", "role", "pu", "core", "l3", "node",
                                                        "nic", "reason"));
      EXPECT_TRUE(roles.contains(thread["role"]));
    }
  }
}

TEST(PlanCommand, PollersGoToTheNodeOfANicThatIsOnlySupposed) {
  for (const unsigned node : {0U, 1U}) {
    const Ended ended = run_plan(
        {"plan", "--json", "--topology", kSmall, "--nic", "mlx5_7@" + std::to_string(node)});
    const Json poller = Json::parse(ended.out)["threads"][0];
    EXPECT_EQ(poller["role"], "poller");
    EXPECT_EQ(poller["nic"], "mlx5_7");
    EXPECT_EQ(poller["node"], node);
  }
}

TEST(PlanCommand, WhatIfsKeepThreadsWithinWhatIsLeft) {
  for (const char* const option : {"--allowed", "--affinity"}) {
    const Ended ended = run_plan({"plan", "--json", "--topology", kSmall, option, "12-15"});
    for (const Json& thread : Json::parse(ended.out)["threads"]) EXPECT_GE(thread["pu"], 12);
  }
  const Ended ended = run_plan({"plan", "--json", "--topology", kSmall, "--isolated", "0-11"});
  for (const Json& thread : Json::parse(ended.out)["threads"]) EXPECT_GE(thread["pu"], 12);
}

TEST(PlanCommand, TheTableNamesEachThreadAndTheCost) {
  const Ended ended = run_plan({"plan", "--topology", kSmall, "--set", "pools.default.workers=2"});
  EXPECT_EQ(ended.status, 0);
  for (const char* const what : {"THREAD", "REASON", "default-1", "sluice-control", "cost: "})
    EXPECT_THAT(ended.out, HasSubstr(what));
  EXPECT_THAT(ended.err, IsEmpty());
}

TEST(PlanCommand, StrictTurnsADegradedPlanIntoAFailure) {
  EXPECT_EQ(run_plan({"plan", "--topology", "pu:1"}).status, 0);
  EXPECT_EQ(run_plan({"plan", "--topology", "pu:1", "--strict"}).status, 4);
  EXPECT_EQ(run_plan({"check", "--topology", "pu:1", "--strict"}).status, 4);
  EXPECT_EQ(run_plan({"plan", "--topology", "numa:1 l3:1 core:8 pu:1", "--strict"}).status, 0);
}

TEST(CheckCommand, SaysOkAndWhatAReloadWouldChange) {
  const TemporaryFolder folder;
  const auto wanted = folder.file("wanted.toml", "[pools.apply]\nworkers = 3\n");
  const auto running = folder.file("running.toml", "[pools.apply]\nworkers = 2\n");
  const Ended changed = run_plan({"check", wanted, "--topology", kSmall, "--against", running});
  EXPECT_EQ(changed.status, 0) << changed.err;
  EXPECT_THAT(changed.out, HasSubstr("wanted.toml: ok, 1 poller, 3 workers"));
  EXPECT_THAT(changed.out, HasSubstr("pools.apply.workers: 2 -> 3"));
  const Ended same = run_plan({"check", wanted, "--no-machine", "--against", wanted});
  EXPECT_THAT(same.out, HasSubstr("no changes"));
}

TEST(CheckCommand, TakesTheFileOfTheEnvironment) {
  const TemporaryFolder folder;
  const auto file = folder.file("env.toml", "[pools.apply]\nworkers = 3\n");
  const Ended ended = run_plan({"check", "--no-machine"}, {{"SLUICE_CONFIG", file}});
  EXPECT_THAT(ended.out, HasSubstr("env.toml: ok"));
}

TEST(PrintCommands, ValuesComeWithTheirOrigins) {
  const TemporaryFolder folder;
  const auto file = folder.file("a.toml", "[pools.apply]\nworkers = 3\n");
  const std::vector<std::string> set{"--set", "pools.apply.spin_rounds=7"};
  const Ended toml =
      run_plan({"print-config", file, set[0], set[1]}, {{"SLUICE_MEMORY__NODE", "0"}});
  EXPECT_EQ(toml.status, 0) << toml.err;
  for (const char* const origin :
       {"a.toml:2:", "--set pools.apply.spin_rounds", "SLUICE_MEMORY__NODE", "default"})
    EXPECT_THAT(toml.out, HasSubstr(origin));
  const Json json = Json::parse(run_plan({"print-config", file, "--json"}).out);
  bool found = false;
  for (const Json& value : json) {
    if (value["path"] != "pools.apply.workers") continue;
    found = true;
    EXPECT_EQ(value["value"], "3");
    EXPECT_THAT(value["origin"].get<std::string>(), HasSubstr("a.toml:2:"));
  }
  EXPECT_TRUE(found);
}

TEST(PrintCommands, TheDefaultsAreAConfigurationThatPasses) {
  const TemporaryFolder folder;
  const Ended defaults = run_plan({"print-defaults"});
  EXPECT_THAT(defaults.out, HasSubstr("[dispatcher]"));
  const Ended ended =
      run_plan({"check", folder.file("defaults.toml", defaults.out), "--topology", kSmall});
  EXPECT_EQ(ended.status, 0) << ended.err;
}

TEST(DrawCommand, ThePictureHoldsEachThreadsNameAndTheLegend) {
  const TemporaryFolder folder;
  for (const std::string& topology : all_topologies()) {
    SCOPED_TRACE(topology);
    const Json plan = Json::parse(run_plan({"plan", "--json", "--topology", topology}).out);
    for (const char* const name : {"plan.svg", "plan.xml"}) {
      const Ended ended = run_plan({"draw", folder / name, "--topology", topology});
      ASSERT_EQ(ended.status, 0) << ended.err;
      EXPECT_THAT(ended.out + ended.err, IsEmpty());
      const std::string picture = content_of(folder / name);
      for (const Json& thread : plan["threads"])
        EXPECT_NE(picture.find(thread["name"].get<std::string>()), std::string::npos) << thread;
      // The legend; XML may write the apostrophe of its title in its own way.
      for (const char* const entry : {"s threads", "poller", "worker", "housekeeping"})
        EXPECT_NE(picture.find(entry), std::string::npos) << entry;
    }
  }
}

TEST(DrawCommand, APngIsAPng) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_plan({"draw", folder / "a.png", "--topology", kSmall, "--nic", "m@1"}).status, 0);
  EXPECT_EQ(content_of(folder / "a.png").substr(1, 3), "PNG");
}

TEST(Help, HasExamplesAndTheExitStatus) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"plan", "--help"}, {"draw", "--help"}}) {
    const Ended ended = run_plan(arguments);
    EXPECT_EQ(ended.status, 0);
    EXPECT_THAT(ended.out, HasSubstr("Examples:"));
    EXPECT_THAT(ended.out, HasSubstr("Exit status:"));
  }
}

}  // namespace
}  // namespace sluice::test
