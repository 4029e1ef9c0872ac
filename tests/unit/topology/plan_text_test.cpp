// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "sluice/topology/plan.hpp"
#include "sluice_test/topologies.hpp"

namespace sluice::topology {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Plan placed(const Machine& machine) {
  auto plan = place(machine, Config{});
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return std::move(plan).value();
}
Machine machine_of(const std::string& what) {
  auto machine = Machine::load(what);
  EXPECT_TRUE(machine.ok()) << machine.status().to_string();
  return std::move(machine).value();
}

TEST(PlanText, JsonSaysOsIndicesOfPuAndNodeAndNullWhereThereIsNone) {
  Plan plan = placed(machine_of("numa:2(indexes=4,8) core:2 pu:1(indexes=10,20,30,40)"));
  ASSERT_FALSE(plan.threads.empty());
  plan.threads.resize(1);
  plan.threads[0].pu = 2;
  plan.threads[0].pu_os_index = 30;
  plan.threads[0].nic = kNone;
  const auto thread = nlohmann::json::parse(plan.to_json())["threads"][0];
  EXPECT_EQ(thread["pu"], 30);
  EXPECT_EQ(thread["core"], 2);
  EXPECT_EQ(thread["node"], 8);
  EXPECT_TRUE(thread["l3"].is_null());
  EXPECT_TRUE(thread["nic"].is_null());
}

TEST(PlanText, JsonSurvivesANameThatIsNoUtf8) {
  const Plan plan = placed(machine_of("core:4 pu:1").with_nic("\xff\"\n", 0));
  EXPECT_TRUE(nlohmann::json::accept(plan.to_json()));
}

TEST(PlanText, TheTableSaysWhatWasGivenUpOnlyWhereSomethingWas) {
  Plan plan = placed(machine_of("l3:1 core:8 pu:1"));
  plan.degraded.clear();
  EXPECT_THAT(plan.to_table(), Not(HasSubstr("degraded:")));
  plan.degraded = {"too few of them"};
  EXPECT_THAT(plan.to_table(), HasSubstr("degraded:\n  - too few of them\n"));
}

TEST(AnnotatedXml, IsAMachineWithThePlansThreadsAndTheOriginalStaysAsItIs) {
  const Machine machine =
      machine_of(test::own_topology("two_nodes_nic_on_node1.xml")).with_nic("mlx5_9", 0);
  const Plan plan = placed(machine);
  const auto xml = annotated_xml(plan);
  ASSERT_TRUE(xml.ok()) << xml.status().to_string();
  for (const PlannedThread& thread : plan.threads) EXPECT_THAT(*xml, HasSubstr(thread.name));
  EXPECT_THAT(*xml, HasSubstr("mlx5_9"));
  const auto again = Machine::from_xml(*xml);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->pus().size(), machine.pus().size());
  EXPECT_EQ(*annotated_xml(plan), *xml);
}

TEST(AnnotatedXml, MarksPusThatAreNotUsedOnlyWhereThereAreAny) {
  const Machine machine = machine_of("core:4 pu:1");
  EXPECT_THAT(*annotated_xml(placed(machine)), Not(HasSubstr("PU not to be used")));
  EXPECT_THAT(*annotated_xml(placed(machine.with_allowed(*CpuSet::parse("0-2")))),
              HasSubstr("PU not to be used"));
}

}  // namespace
}  // namespace sluice::topology
