// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <string>

#include "placement.hpp"
#include "sluice/topology/plan.hpp"
#include "sluice_test/topologies.hpp"

namespace sluice::topology {
namespace {

Machine machine_of(const std::string& what) {
  auto machine = Machine::load(what);
  EXPECT_TRUE(machine.ok()) << machine.status().to_string();
  return std::move(machine).value();
}
CpuSet cpus(const char* list) {
  return *CpuSet::parse(list);
}
Plan placed(const Machine& machine, const Config& config = {}) {
  auto plan = place(machine, config);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return std::move(plan).value();
}
std::vector<PlannedThread> of_role(const Plan& plan, ThreadRole role) {
  std::vector<PlannedThread> found;
  for (const PlannedThread& thread : plan.threads) {
    if (thread.role == role) found.push_back(thread);
  }
  return found;
}
bool mentions(const std::vector<std::string>& sentences, const std::string& what) {
  return std::any_of(sentences.begin(), sentences.end(),
                     [&](const std::string& one) { return one.find(what) != std::string::npos; });
}

/// The cost by its description in plan.hpp, pair by pair: no line of it is the optimizer's.
Cost described_cost(const Machine& machine, const Config& config,
                    const std::vector<PlannedThread>& threads, const std::vector<CpuSet>& allowed) {
  Cost cost;
  const auto at = [&](std::size_t i) -> const Pu& { return machine.pus()[threads[i].pu]; };
  std::map<unsigned, std::uint32_t> busy;
  std::map<std::string, std::set<std::uint32_t>> connections;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    if (!allowed[i].contains(at(i).os_index)) ++cost.disallowed;
    if (threads[i].role != ThreadRole::housekeeping && ++busy[at(i).core] > 1) ++cost.shared_cores;
  }
  for (std::size_t i = 0; i < threads.size(); ++i) {
    if (threads[i].role != ThreadRole::poller) continue;
    const unsigned nic = threads[i].nic;
    const unsigned nic_node = nic == kNone ? kNone : machine.nics()[nic].node;
    if (nic_node != kNone && at(i).node != nic_node) ++cost.off_node;
    if (busy[at(i).core] > 1) ++cost.busy_siblings;
    connections[threads[i].group].insert(threads[i].connections);
    for (std::size_t j = 0; j < threads.size(); ++j) {
      const bool fed = threads[j].role == ThreadRole::worker &&
                       (threads[j].home_node == kNone || threads[j].home_node == at(i).node);
      if (fed && at(i).l3 != at(j).l3) ++cost.split_l3;
    }
  }
  EXPECT_TRUE(config.routes.empty()) << "everybody feeds everybody here";
  for (const auto& [group, counts] : connections) {
    const std::uint32_t apart = *counts.rbegin() - *counts.begin();
    cost.imbalance = std::max(cost.imbalance, apart > 1 ? apart - 1 : 0);
  }
  return cost;
}

/// What holds for every plan, whatever the machine.
void expect_sound(const Plan& plan) {
  const Machine& machine = plan.machine;
  SCOPED_TRACE(machine.name());
  const auto allowed = allowed_sets(machine, plan.config, plan.threads);
  ASSERT_TRUE(allowed.ok());
  std::set<std::string> names;
  for (std::size_t i = 0; i < plan.threads.size(); ++i) {
    const PlannedThread& thread = plan.threads[i];
    EXPECT_TRUE((*allowed)[i].contains(thread.pu_os_index)) << thread.name;
    EXPECT_TRUE(machine.allowed().contains(thread.pu_os_index)) << thread.name;
    EXPECT_EQ(machine.pus()[thread.pu].os_index, thread.pu_os_index);
    EXPECT_LE(thread.name.size(), 15U);
    EXPECT_TRUE(names.insert(thread.name).second) << thread.name << " twice";
    EXPECT_FALSE(thread.reason.empty()) << thread.name;
    if (thread.role == ThreadRole::poller) {
      EXPECT_NE(thread.memory_node, kNone);
    }
  }
  const auto has_poller_on = [&](unsigned node) {
    return std::any_of(plan.threads.begin(), plan.threads.end(), [&](const auto& thread) {
      return thread.role == ThreadRole::poller && machine.pus()[thread.pu].node == node;
    });
  };
  for (const PlannedPool& pool : plan.pools) {
    EXPECT_TRUE(pool.node == kNone || has_poller_on(pool.node)) << "nobody feeds these workers";
    EXPECT_FALSE(pool.threads.empty());
    EXPECT_LE(pool.threads.size(), 58U);
  }
  EXPECT_LE(plan.poller_count(), 64U);
  EXPECT_EQ(plan.cost, described_cost(machine, plan.config, plan.threads, *allowed));
  EXPECT_EQ(plan.cost.disallowed, 0U);
  EXPECT_EQ(plan.cost.imbalance, 0U);
  EXPECT_EQ(of_role(plan, ThreadRole::housekeeping).size(), 1U);
  EXPECT_GE(of_role(plan, ThreadRole::worker).size(), 1U);
  const bool gave_up =
      plan.cost.shared_cores > 0 || plan.cost.off_node > 0 || plan.cost.busy_siblings > 0;
  EXPECT_TRUE(!gave_up || !plan.degraded.empty()) << plan.cost.to_string();
}

TEST(Place, EveryMachineGetsASoundPlanWithoutAConfiguration) {
  for (const std::string& what : test::all_topologies()) expect_sound(placed(machine_of(what)));
}

TEST(Place, WithRoomNothingIsGivenUp) {
  for (const std::string& what : test::all_topologies()) {
    const Machine machine = machine_of(what);
    if (machine.cores().size() < 8) continue;
    const Plan plan = placed(machine);
    EXPECT_EQ(plan.cost.shared_cores, 0U) << what << ": " << plan.cost.to_string();
    EXPECT_EQ(plan.cost.off_node, 0U) << what;
    EXPECT_EQ(plan.cost.busy_siblings, 0U) << what;
    EXPECT_TRUE(plan.degraded.empty()) << what << ": " << plan.degraded.front();
  }
}

TEST(Place, PollersGoToTheNodeOfTheirNic) {
  const Plan plan = placed(machine_of(test::own_topology("two_nodes_nic_on_node1.xml")));
  for (const PlannedThread& poller : of_role(plan, ThreadRole::poller)) {
    EXPECT_EQ(plan.machine.nodes()[plan.machine.pus()[poller.pu].node].os_index, 1U);
    EXPECT_NE(poller.reason.find("mlx5_0"), std::string::npos) << poller.reason;
  }
}

TEST(Place, ThePollersSiblingStaysFree) {  // S4
  const Plan plan = placed(machine_of("core:4 pu:2"));
  const PlannedThread poller = of_role(plan, ThreadRole::poller).front();
  const unsigned core = plan.machine.pus()[poller.pu].core;
  for (const PlannedThread& thread : plan.threads) {
    if (thread.name != poller.name) {
      EXPECT_NE(plan.machine.pus()[thread.pu].core, core) << thread.name;
    }
  }
  EXPECT_NE(poller.reason.find("left free"), std::string::npos) << poller.reason;
}

TEST(Place, ASiblingThatCannotBeLeftFreeIsSaid) {  // S4
  const Plan plan = placed(machine_of("core:1 pu:2"));
  EXPECT_GT(plan.cost.busy_siblings, 0U);
  EXPECT_TRUE(mentions(plan.degraded, "same core"));
  std::set<unsigned> pus;
  for (const PlannedThread& thread : plan.threads) {
    if (thread.role != ThreadRole::housekeeping) pus.insert(thread.pu);
  }
  EXPECT_EQ(pus.size(), 2U) << "the sibling is still better than one PU for both";
}

TEST(Place, OnePuIsEnoughForADegradedPlan) {  // S6
  Config config;
  config.pollers[0].wait = WaitMode::busy;
  const Plan plan = placed(machine_of("core:4 pu:2").with_affinity(cpus("3")), config);
  expect_sound(plan);
  for (const PlannedThread& thread : plan.threads) EXPECT_EQ(thread.pu_os_index, 3U);
  EXPECT_TRUE(mentions(plan.degraded, "busy polling gives way"));
  EXPECT_TRUE(mentions(plan.notes, "affinity"));
}

TEST(Place, WhoKeepsACoreBusyIsSaid) {  // S5
  Config config;
  config.pollers[0].wait = WaitMode::busy;
  EXPECT_TRUE(mentions(placed(machine_of("core:4 pu:1"), config).notes, "busy all the time"));
  EXPECT_FALSE(mentions(placed(machine_of("core:4 pu:1")).notes, "busy all the time"));
  config.pollers[0].wait = WaitMode::adaptive;
  const auto adaptive = placed(machine_of("core:4 pu:1"), config).notes;
  EXPECT_FALSE(mentions(adaptive, "busy all the time"));
  EXPECT_TRUE(mentions(adaptive, "and sleeps otherwise: its wait mode is \"adaptive\""));
  EXPECT_FALSE(mentions(adaptive, "% of the CPU"));
  config.pollers[0].cpu_cap = 0.25;
  EXPECT_TRUE(mentions(placed(machine_of("core:4 pu:1"), config).notes, "beyond 25 % of the CPU"));
}

TEST(Place, AnAdaptivePollerThatSharesItsPuSleepsSoon) {  // S6
  Config config;
  config.pollers[0].wait = WaitMode::adaptive;
  const Plan plan = placed(machine_of("core:4 pu:2").with_affinity(cpus("3")), config);
  expect_sound(plan);
  EXPECT_TRUE(mentions(plan.degraded, "it sleeps soon after it finds nothing"));
}

TEST(Place, WorkersGatherUnderTheirPollersL3) {
  Config config;
  config.pools[0].workers = 2;
  const Plan plan = placed(machine_of("numa:2 l3:3 core:3 pu:2").with_nic("mlx5_0", 1), config);
  EXPECT_EQ(plan.cost, Cost{});
  const unsigned l3 = plan.machine.pus()[plan.threads.front().pu].l3;
  for (const PlannedThread& worker : of_role(plan, ThreadRole::worker)) {
    EXPECT_EQ(plan.machine.pus()[worker.pu].l3, l3) << worker.reason;
  }
}

TEST(Place, WorkersSpreadOverCoresBeforeSiblings) {
  Config config;
  config.pools[0].workers = 3;
  const Plan plan = placed(machine_of("core:4 pu:4"), config);
  EXPECT_EQ(plan.cost, Cost{});
}

TEST(Place, HousekeepingGoesToAnEfficiencyCore) {
  const Machine machine = machine_of("core:8 pu:1").with_efficient(cpus("4-7"));
  const Plan plan = placed(machine);
  EXPECT_GE(of_role(plan, ThreadRole::housekeeping).front().pu_os_index, 4U);
  EXPECT_LT(of_role(plan, ThreadRole::poller).front().pu_os_index, 4U);
}

TEST(Place, EachNodeWithPollersGetsWorkersOfItsOwn) {
  Config config;
  config.pollers[0].count = 2;
  config.pools[0].workers = 3;
  const Machine machine =
      machine_of("numa:4 core:6 pu:1").with_nic("mlx5_0", 1).with_nic("mlx5_1", 3);
  const Plan plan = placed(machine, config);
  ASSERT_EQ(plan.pools.size(), 2U);
  for (const PlannedPool& pool : plan.pools) {
    ASSERT_EQ(pool.threads.size(), 3U);
    for (const unsigned thread : pool.threads) {
      EXPECT_EQ(machine.pus()[plan.threads[thread].pu].node, pool.node);
    }
  }
  config.pools[0].nodes = PoolNodes::any;
  EXPECT_EQ(of_role(placed(machine, config), ThreadRole::worker).size(), 3U);
  config.pools[0].nodes = PoolNodes::all;
  const Plan all = placed(machine, config);
  EXPECT_EQ(of_role(all, ThreadRole::worker).size(), 12U);
  EXPECT_EQ(all.pools.size(), 1U);
}

TEST(Place, WorkersThatPushPollersAboutComeToRest) {
  Config config;
  config.pollers = {PollerGroup{.name = "a", .cpus = "numa:0"},
                    PollerGroup{.name = "b", .cpus = "numa:1 numa:2"}};
  config.pools[0].workers = 3;
  expect_sound(placed(machine_of("numa:3 l3:2 core:2 pu:1"), config));
  Config crowded;
  crowded.pollers[0].count = 2;
  crowded.pools[0].cpus = "numa:0";
  crowded.pools[0].workers = 1;
  expect_sound(placed(machine_of("numa:2 core:2 pu:1").with_nic("mlx5_0", 0), crowded));
}

TEST(Place, APoolOnAllNodesIsCutEvenlyAndSaysSo) {
  Config config;
  config.pools[0].nodes = PoolNodes::all;
  config.pools[0].workers = 12;
  const Plan plan = placed(machine_of("numa:8 core:16 pu:2"), config);
  std::map<unsigned, unsigned> on_node;
  for (const PlannedThread& worker : of_role(plan, ThreadRole::worker)) {
    ++on_node[plan.machine.pus()[worker.pu].node];
  }
  EXPECT_EQ(on_node.size(), 8U);
  for (const auto& [node, workers] : on_node) EXPECT_EQ(workers, 7U) << node;
  EXPECT_TRUE(mentions(plan.degraded, "7 workers on each node"));
}

TEST(Place, WorkersNamedElsewhereAreAsManyAsTheirCores) {
  Config config;
  config.pools[0].cpus = "numa:1";
  const Plan plan = placed(machine_of("numa:2 core:8 pu:1").with_nic("mlx5_0", 0), config);
  EXPECT_EQ(of_role(plan, ThreadRole::worker).size(), 7U);
}

TEST(Place, AutoPollersKeepWithinTheLimitOfAllGroups) {
  Config config;
  config.pollers = {PollerGroup{.name = "a", .count = 63}, PollerGroup{.name = "b"}};
  Machine machine = machine_of("numa:8 core:16 pu:1");
  for (unsigned nic = 0; nic < 8; ++nic) {
    machine = machine.with_nic("mlx5_" + std::to_string(nic), nic);
  }
  EXPECT_EQ(placed(machine, config).poller_count(), 64U);
}

TEST(Place, ABigPlanIsPlacedToo) {
  Config config;
  config.pollers[0].count = 64;
  config.pools[0].workers = 58;
  expect_sound(placed(machine_of("numa:8 l3:2 core:8 pu:2"), config));
}

TEST(Place, ConnectionsAreSpreadWithinOneOfEven) {  // R1
  Config config;
  config.pollers[0].count = 4;
  config.general.connections_max = 399;
  const Plan plan = placed(machine_of("core:16 pu:1"), config);
  std::uint32_t sum = 0;
  for (const PlannedThread& poller : of_role(plan, ThreadRole::poller)) {
    EXPECT_GE(poller.connections, 99U);
    EXPECT_LE(poller.connections, 100U);
    sum += poller.connections;
  }
  EXPECT_EQ(sum, 399U);
}

TEST(Place, NamedCpusGoBeyondTheAffinityButNotTheCgroup) {
  const Machine machine = machine_of("core:8 pu:1")
                              .with_allowed(cpus("0-5"))
                              .with_affinity(cpus("0-2"))
                              .with_isolated(cpus("4-5"));
  Config config;
  config.pollers[0].cpus = "4";
  const Plan plan = placed(machine, config);
  EXPECT_EQ(of_role(plan, ThreadRole::poller).front().pu_os_index, 4U);
  for (const PlannedThread& worker : of_role(plan, ThreadRole::worker)) {
    EXPECT_LE(worker.pu_os_index, 2U);
  }
  config.pollers[0].cpus = "4-6";
  EXPECT_TRUE(mentions(placed(machine, config).degraded, "PU 6 left out"));
  config.pollers[0].cpus = "6-7";
  const auto refused = place(machine, config);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("pollers.default.cpus"), std::string::npos);
  EXPECT_NE(refused.status().message().find("0-5"), std::string::npos);
}

TEST(Place, AllThatDoesNotFitTheMachineIsSaidAtOnce) {
  Config config;
  config.pollers[0].device = "mlx5_7";
  config.pools[0].cpus = "numa:9";
  config.memory.node = "5";
  config.origins["pools.default.cpus"] = {OriginKind::file, "sluice.toml", 4, 8};
  const auto refused = place(machine_of("numa:2 core:2 pu:1").with_nic("mlx5_0", 0), config);
  ASSERT_FALSE(refused.ok());
  const std::string said = refused.status().message();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;
  EXPECT_NE(said.find("mlx5_0"), std::string::npos) << said;
  EXPECT_NE(said.find("sluice.toml:4:8: pools.default.cpus"), std::string::npos) << said;
}

TEST(Place, ANicWhoseNodeIsUnknownIsSaid) {
  const Plan plan = placed(machine_of("numa:2 core:4 pu:1").with_nic("rxe0", kNone));
  EXPECT_EQ(plan.cost.off_node, 0U);
  EXPECT_TRUE(mentions(plan.notes, "rxe0"));
}

TEST(Place, ThreadsThatShareAnAlmostEqualLongNameAreToldApart) {
  Config config;
  config.pools = {PoolSettings{.name = "replication-apply-1", .workers = 2},
                  PoolSettings{.name = "replication-apply-2", .workers = 2}};
  expect_sound(placed(machine_of("core:8 pu:1"), config));
}

// A regression: where workers beside each poller push the pollers about for ever, these were bound
// one by one to the nodes they had last, three of four to a node of two cores, and shared cores
// while others were free.
TEST(Place, PollersThatKeepToTheirNodesShareNoCoreNeedlessly) {
  const Machine machine =
      machine_of("numa:4 l3:2 core:1 pu:3").with_allowed(cpus("4,6,13,16,20,23"));
  Config config;
  config.pollers[0].count = 4;
  config.pools[0].nodes = PoolNodes::pollers;
  for (unsigned nic_node = 0; nic_node < 4; ++nic_node) {
    const Machine with_nic = machine.with_nic("mlx5_0", nic_node);
    const Plan plan = placed(with_nic, config);
    std::size_t busy = 0;
    std::set<unsigned> used;
    for (const PlannedThread& thread : plan.threads) {
      if (thread.role == ThreadRole::housekeeping) continue;
      ++busy;
      used.insert(with_nic.pus()[thread.pu].core);
    }
    EXPECT_EQ(used.size(), std::min<std::size_t>(busy, 6)) << "NIC on node " << nic_node;
  }
}

TEST(Place, IsAFunctionOfItsInput) {
  for (const std::string& what : test::all_topologies()) {
    const Machine machine = machine_of(what);
    const Plan first = placed(machine);
    const Plan second = placed(machine);
    ASSERT_EQ(first.threads.size(), second.threads.size());
    for (std::size_t i = 0; i < first.threads.size(); ++i) {
      EXPECT_EQ(first.threads[i].pu, second.threads[i].pu);
    }
  }
}

/// Machines far too big to enumerate: the goals one by one.
RC_GTEST_PROP(PlaceProperty, EveryGoalThatCanBeMetIsMet, ()) {
  const auto pick = [](unsigned from, unsigned to) { return *rc::gen::inRange(from, to + 1); };
  const unsigned nodes = pick(1, 4), l3s = pick(1, 3), cores = pick(1, 6), threads = pick(1, 4);
  Machine machine = machine_of("numa:" + std::to_string(nodes) + " l3:" + std::to_string(l3s) +
                               " core:" + std::to_string(cores) + " pu:" + std::to_string(threads));
  const auto subset = *rc::gen::container<std::vector<bool>>(nodes * l3s * cores * threads,
                                                             rc::gen::arbitrary<bool>());
  CpuSet allowed;
  for (unsigned pu = 0; pu < subset.size(); ++pu) {
    if (subset[pu]) allowed.add(pu);
  }
  if (!allowed.empty()) machine = machine.with_allowed(allowed);
  const unsigned nic_node = pick(0, nodes - 1);
  machine = machine.with_nic("mlx5_0", nic_node);
  Config config;
  if (pick(0, 1) == 1) config.pollers[0].count = pick(1, 4);
  if (pick(0, 1) == 1) config.pools[0].workers = pick(1, 12);
  config.pools[0].nodes =
      std::array{PoolNodes::pollers, PoolNodes::any, PoolNodes::all}[pick(0, 2)];

  const auto plan = place(machine, config);
  RC_ASSERT(plan.ok());
  std::set<unsigned> free_cores, nic_cores, used;
  for (const Pu& pu : machine.pus()) {
    if (!pu.allowed) continue;
    free_cores.insert(pu.core);
    if (pu.node == nic_node) nic_cores.insert(pu.core);
  }
  std::size_t busy = 0, pollers = 0;
  for (const PlannedThread& thread : plan->threads) {
    RC_ASSERT(machine.pus()[thread.pu].allowed);
    if (thread.role == ThreadRole::housekeeping) continue;
    ++busy;
    pollers += thread.role == ThreadRole::poller ? 1 : 0;
    used.insert(machine.pus()[thread.pu].core);
    if (thread.only_node != kNone) RC_ASSERT(machine.pus()[thread.pu].node == thread.only_node);
  }
  if (config.pools[0].nodes != PoolNodes::all) {
    RC_ASSERT(used.size() == std::min(busy, free_cores.size()));
    RC_ASSERT(plan->cost.shared_cores == busy - used.size());
    if (nic_cores.size() >= pollers && busy <= free_cores.size()) {
      RC_ASSERT(plan->cost.off_node == 0U);
      RC_ASSERT(plan->cost.busy_siblings == 0U);
    }
  }
  // On all nodes there may be more cores than one pool can have workers, which costs nothing.
  const bool gave_up =
      plan->cost.shared_cores + plan->cost.off_node + plan->cost.busy_siblings > 0 ||
      mentions(plan->degraded, "a pool has at most");
  RC_ASSERT(gave_up == !plan->degraded.empty());
}

// --- against all placements that there are
// ---------------------------------------------------------

struct Case {
  std::string description;
  Machine machine;
  Config config;
};

/// A random machine of at most eight PUs, with a random part of it allowed, and up to five threads.
Case random_case(std::mt19937& random) {
  const auto pick = [&](unsigned from, unsigned to) {
    return std::uniform_int_distribution<unsigned>(from, to)(random);
  };
  unsigned nodes = 0, l3s = 0, cores = 0, threads = 0;
  do {
    nodes = pick(1, 3);
    l3s = pick(1, 3);
    cores = pick(1, 4);
    threads = pick(1, 2);
  } while (nodes * l3s * cores * threads > 8);
  const std::string synthetic = "numa:" + std::to_string(nodes) + " l3:" + std::to_string(l3s) +
                                " core:" + std::to_string(cores) + " pu:" + std::to_string(threads);
  Machine machine = machine_of(synthetic);
  const unsigned pus = nodes * l3s * cores * threads;
  const auto subset = [&](unsigned keep_of_ten) {
    CpuSet set;
    for (unsigned pu = 0; pu < pus; ++pu) {
      if (pick(1, 10) <= keep_of_ten) set.add(pu);
    }
    if (set.empty()) set.add(pick(0, pus - 1));
    return set;
  };
  if (pick(0, 1) == 1) machine = machine.with_allowed(subset(8));
  const unsigned nics = pick(0, 2);
  for (unsigned nic = 0; nic < nics; ++nic) {
    machine = machine.with_nic("mlx5_" + std::to_string(nic),
                               pick(0, 9) == 0 ? kNone : pick(0, nodes - 1));
  }
  Config config;
  config.pollers[0].count = pick(1, 2);
  config.pools[0].workers = pick(1, 3);
  config.pools[0].nodes = pick(0, 1) == 0 ? PoolNodes::any : PoolNodes::pollers;
  const auto name_some = [&](std::string& of) {
    const CpuSet set = subset(6) & machine.allowed();
    if (pick(0, 3) == 0 && !set.empty()) of = set.to_string();
  };
  name_some(config.pollers[0].cpus);
  name_some(config.pools[0].cpus);
  return {synthetic + ", allowed " + machine.allowed().to_string() + ", " + std::to_string(nics) +
              " NICs, " + std::to_string(*config.pollers[0].count) + " pollers on " +
              config.pollers[0].cpus + ", " + std::to_string(*config.pools[0].workers) +
              " workers on " + config.pools[0].cpus,
          machine, config};
}

/// Walks all ways to put the threads of a plan on the PUs that they may use.
class BruteForce {
 public:
  explicit BruteForce(const Plan& plan)
      : plan_(plan),
        threads_(plan.threads),
        allowed_(*allowed_sets(plan.machine, plan.config, plan.threads)) {}
  Cost best() {
    walk(0);
    return best_;
  }

 private:
  void walk(std::size_t thread) {
    if (thread == threads_.size()) {
      const Cost cost = described_cost(plan_.machine, plan_.config, threads_, allowed_);
      if (!any_ || cost < best_) best_ = cost;
      any_ = true;
      return;
    }
    if (threads_[thread].role == ThreadRole::housekeeping) return walk(thread + 1);
    for (unsigned pu = 0; pu < plan_.machine.pus().size(); ++pu) {
      if (!allowed_[thread].contains(plan_.machine.pus()[pu].os_index)) continue;
      // Workers of one home are alike: only in one order.
      if (thread > 0 && threads_[thread].role == ThreadRole::worker &&
          threads_[thread - 1].role == ThreadRole::worker &&
          threads_[thread].home_node == threads_[thread - 1].home_node &&
          pu < threads_[thread - 1].pu) {
        continue;
      }
      threads_[thread].pu = pu;
      walk(thread + 1);
    }
  }
  const Plan& plan_;
  std::vector<PlannedThread> threads_;
  const std::vector<CpuSet> allowed_;
  Cost best_;
  bool any_ = false;
};

TEST(Place, IsAsGoodAsTheBestOfAllPlacements) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr unsigned kCases = 100;  // the same search, instrumented, takes ten times as long
#else
  constexpr unsigned kCases = 1000;
#endif
  std::mt19937 random(20260101);
  unsigned equal = 0;
  std::size_t biggest = 0;
  for (unsigned i = 0; i < kCases; ++i) {
    const Case one = random_case(random);
    SCOPED_TRACE("case " + std::to_string(i) + ": " + one.description);
    const Plan plan = placed(one.machine, one.config);
    expect_sound(plan);
    biggest = std::max(biggest, plan.threads.size());
    const Cost best = BruteForce(plan).best();
    const auto first_three = [](const Cost& cost) {
      return std::tuple(cost.disallowed, cost.shared_cores, cost.off_node);
    };
    ASSERT_EQ(first_three(plan.cost), first_three(best))
        << plan.cost.to_string() << " against " << best.to_string();
    // The flow alone has to get these right: the search after it may be cut short.
    const auto slots = slots_of(plan.machine, plan.config, plan.threads,
                                *allowed_sets(plan.machine, plan.config, plan.threads));
    const Score flow =
        Arrangement(plan.machine, slots, assign_by_flow(plan.machine, slots, 0)).score();
    ASSERT_EQ(std::tuple(flow[kDisallowed], flow[kSharedCores], flow[kOffNode]), first_three(best));
    ASSERT_GE(plan.cost, best) << "the search missed a placement, or the cost is reckoned twice";
    if (plan.cost == best) {
      ++equal;
    } else {
      std::printf("case %u: %s\n  plan %s\n  best %s\n", i, one.description.c_str(),
                  plan.cost.to_string().c_str(), best.to_string().c_str());
    }
  }
  std::printf("%u of %u plans are the optimum; up to %zu threads\n", equal, kCases, biggest);
  EXPECT_GE(equal, kCases * 95 / 100);
}

}  // namespace
}  // namespace sluice::topology
