// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/machine.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "sluice_test/topologies.hpp"

namespace sluice::topology {
namespace {

Machine loaded(Result<Machine> machine) {
  EXPECT_TRUE(machine.ok()) << machine.status().to_string();
  return std::move(machine).value();
}

Machine two_nodes() {
  return loaded(Machine::load(test::own_topology("two_nodes_nic_on_node1.xml")));
}

/// What holds for every machine.
void expect_consistent(const Machine& machine) {
  SCOPED_TRACE(machine.name());
  std::set<unsigned> seen;
  for (unsigned i = 0; i < machine.pus().size(); ++i) {
    const Pu& pu = machine.pus()[i];
    EXPECT_TRUE(seen.insert(pu.os_index).second) << "PU " << pu.os_index << " twice";
    EXPECT_EQ(machine.pu_of(pu.os_index), i);
    ASSERT_LT(pu.core, machine.cores().size());
    ASSERT_LT(pu.node, machine.nodes().size());
    const Core& core = machine.cores()[pu.core];
    EXPECT_EQ(std::count(core.pus.begin(), core.pus.end(), i), 1);
    const auto& of_node = machine.nodes()[pu.node].pus;
    EXPECT_EQ(std::count(of_node.begin(), of_node.end(), i), 1);
    EXPECT_EQ(core.l3, pu.l3);
    if (pu.l3 != kNone) {
      ASSERT_LT(pu.l3, machine.l3s().size());
    }
    EXPECT_FALSE(machine.offline().contains(pu.os_index) && pu.allowed);
  }
  EXPECT_FALSE(machine.usable().empty());
  EXPECT_TRUE(machine.usable().is_within(machine.allowed()));
  for (const Nic& nic : machine.nics()) {
    EXPECT_FALSE(nic.locality_source.empty()) << nic.name;
    if (nic.node != kNone) {
      EXPECT_FALSE(machine.nodes().at(nic.node).pus.empty()) << nic.name;
    }
  }
}

TEST(Machine, EveryMachineIsConsistent) {
  for (const std::string& what : test::all_topologies()) {
    auto machine = Machine::load(what);
    ASSERT_TRUE(machine.ok()) << machine.status().to_string();
    expect_consistent(*machine);
  }
}

TEST(Machine, ThisMachineIsWhereTheTestRuns) {
  const Machine machine = loaded(Machine::this_machine());
  expect_consistent(machine);
  EXPECT_TRUE(machine.is_this_machine());
}

TEST(Machine, KnowsSiblingsNodesAndTheNodeOfANic) {
  const Machine machine = two_nodes();
  ASSERT_EQ(machine.nodes().size(), 2U);
  EXPECT_EQ(machine.cores().size(), 4U);
  EXPECT_EQ(machine.pus().size(), 8U);
  const Core& first = machine.cores()[0];
  ASSERT_EQ(first.pus.size(), 2U);
  EXPECT_EQ(machine.pus()[first.pus[1]].os_index, 4U);
  ASSERT_EQ(machine.nics().size(), 1U) << "a network device is no RDMA device";
  EXPECT_EQ(machine.nics()[0].name, "mlx5_0");
  EXPECT_EQ(machine.nodes().at(machine.nics()[0].node).os_index, 1U);
  EXPECT_FALSE(machine.is_this_machine());
}

TEST(Machine, KeepsDisallowedAndOfflineCpusApart) {
  const Machine machine = two_nodes();
  EXPECT_EQ(machine.all().to_string(), "0-7");
  EXPECT_EQ(machine.allowed().to_string(), "0-6");
  EXPECT_EQ(machine.offline().to_string(), "8-9");
}

TEST(Machine, UsableAreAllowedInTheAffinityAndNotIsolated) {
  const Machine machine = two_nodes();
  const auto set = [](const char* list) { return *CpuSet::parse(list); };
  EXPECT_EQ(machine.with_affinity(set("1-7")).usable().to_string(), "1-6");
  EXPECT_EQ(machine.with_isolated(set("0-2")).usable().to_string(), "3-6");
  // Started on isolated CPUs on purpose: then these are what there is.
  EXPECT_EQ(machine.with_isolated(set("2-3")).with_affinity(set("2-3")).usable().to_string(),
            "2-3");
  EXPECT_EQ(machine.with_allowed(set("5")).usable().to_string(), "5");
}

TEST(Machine, MemoryOnlyNodesHaveNoCpus) {
  const std::string path = test::shared_topology("knl-snc4-mcdram-mlx5.xml");
  if (path.empty()) return;  // only where these topologies are
  const Machine machine = loaded(Machine::load(path));
  ASSERT_EQ(machine.nodes().size(), 8U);
  EXPECT_EQ(std::count_if(machine.nodes().begin(), machine.nodes().end(),
                          [](const Node& node) { return node.pus.empty(); }),
            4);
  for (const Node& node : machine.nodes()) EXPECT_EQ(node.pus.empty(), node.os_index >= 4);
}

TEST(Machine, NicsOfRealMachinesLieWhereTheyAre) {
  const struct {
    const char* file;
    const char* nic;
    unsigned node;
  } known[] = {{"intel-2numa-smt-mlx5-on-node1.xml", "mlx5_0", 1},
               {"amd-epyc-nps4-8numa-16l3-mlx5-on-node3.xml", "mlx5_0", 3}};
  for (const auto& [file, name, node] : known) {
    const std::string path = test::shared_topology(file);
    if (path.empty()) return;  // only where these topologies are
    const Machine machine = loaded(Machine::load(path));
    const Nic* const nic = machine.find_nic(name);
    ASSERT_NE(nic, nullptr) << file;
    ASSERT_NE(nic->node, kNone) << file;
    EXPECT_EQ(machine.nodes()[nic->node].os_index, node) << file;
  }
}

TEST(Machine, WhatIsNoTopologyIsRefusedInOneLine) {
  for (const std::string& what :
       {std::string("no such file.xml"), std::string("nonsense"), std::string("numa:x"),
        std::string(SLUICE_SOURCE_DIR), std::string(SLUICE_SOURCE_DIR) + "/README.md"}) {
    const auto machine = Machine::load(what);
    ASSERT_FALSE(machine.ok()) << what;
    EXPECT_EQ(machine.status().message().find('\n'), std::string::npos);
    EXPECT_NE(machine.status().message().find(what), std::string::npos)
        << machine.status().message();
  }
}

TEST(Locate, FindsPusByListObjectAndDevice) {
  const Machine machine = two_nodes();
  const struct {
    const char* text;
    const char* pus;
  } known[] = {
      {"0-3,6", "0-3,6"},
      {"numa:1", "1,3,5,7"},
      {"node:0", "0,2,4,6"},
      {"core:0", "0,4"},
      {"numa:1.core:1", "3,7"},
      {"package:all.core:0.pu:0", "0"},
      {"pu:0-1", "0,4"},
      {"core:0-1.pu:even", "0,2"},
      {"os=mlx5_0", "1,3,5,7"},
      {"os=ens81", "1,3,5,7"},
      {"pci=0000:81:00.0", "1,3,5,7"},
      {"numa:0 5", "0,2,4-6"},
      {"core:0+core:3", "0,3-4,7"},
      {"all", "0-7"},
      {"core:2-", "1,3,5,7"},
  };
  for (const auto& [text, pus] : known) {
    const auto found = machine.locate(text);
    ASSERT_TRUE(found.ok()) << text << ": " << found.status().to_string();
    EXPECT_EQ(found->to_string(), pus) << text;
  }
}

TEST(Locate, SaysWhatIsWrongAndWhatThereIs) {
  const Machine machine = two_nodes();
  const struct {
    const char* text;
    const char* said;
  } known[] = {
      {"", "empty"},
      {"numa:2", "there are 2"},
      {"nonsense", "numa:1"},
      {"nmua:1", "package, numa"},
      {"numa:x", "no index"},
      {"numa:1-0", "no index"},
      {"9", "0-7"},
      {"os=mlx5_1", "ens81, mlx5_0"},
      {"pci=0000:00:00.0", "no device"},
      {"numa:", "no index"},
      {"core:99999999999999999999", "no index"},
      {"os=", "no device"},
  };
  for (const auto& [text, said] : known) {
    const auto found = machine.locate(text);
    ASSERT_FALSE(found.ok()) << text << " is " << found->to_string();
    EXPECT_NE(found.status().message().find(said), std::string::npos) << found.status().message();
  }
}

}  // namespace
}  // namespace sluice::topology
