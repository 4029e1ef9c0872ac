// SPDX-License-Identifier: BSD-3-Clause
// What a plan comes to in a dispatcher, on machines that are not this one: no thread is started.
#include "sluice/topology/plan.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::testing {
namespace {

using topology::Machine;

DispatcherConfig planned(const Machine& machine, const Config& config) {
  auto plan = topology::place(machine, config);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return DispatcherConfig::from_plan(*plan);
}

Machine two_nics() {
  return Machine::from_synthetic("numa:2 core:8 pu:1")
      .value()
      .with_nic("mlx5_0", 0)
      .with_nic("mlx5_1", 1);
}

TEST(PlannedConfig, NamesCpusNodesAndThreadsOfEveryPoller) {
  Config config;
  config.pollers[0].count = 4;
  config.pollers[0].wait = WaitMode::busy;
  config.pollers[0].batch_size = 8;
  const DispatcherConfig dispatch = planned(two_nics(), config);
  ASSERT_EQ(dispatch.pollers.size(), 1U);
  const PollerConfig& pollers = dispatch.pollers[0];
  EXPECT_EQ(pollers.count, 4U);
  EXPECT_EQ(pollers.wait, WaitMode::busy);
  EXPECT_EQ(pollers.batch_size, 8U);
  EXPECT_EQ(pollers.nodes, (std::vector<unsigned>{0, 1, 0, 1}));
  EXPECT_EQ(std::set<unsigned>(pollers.cpus.begin(), pollers.cpus.end()).size(), 4U);
  EXPECT_EQ(pollers.thread_names.front(), "sluice-poll-0");
  EXPECT_TRUE(dispatch.control_cpu.has_value());
  EXPECT_TRUE(dispatch.validate().ok()) << dispatch.validate().to_string();
}

TEST(PlannedConfig, CarriesHowPollersAndWorkersWait) {
  Config config;
  config.pollers[0].wait = WaitMode::adaptive;
  config.pollers[0].latency_target = std::chrono::microseconds(20);
  config.pollers[0].cpu_cap = 0.5;
  config.pools[0].spin = SpinMode::adaptive;
  const DispatcherConfig dispatch = planned(two_nics(), config);
  EXPECT_EQ(dispatch.pollers.at(0).wait, WaitMode::adaptive);
  EXPECT_EQ(dispatch.pollers.at(0).latency_target, std::chrono::microseconds(20));
  EXPECT_EQ(dispatch.pollers.at(0).cpu_cap, 0.5);
  EXPECT_EQ(dispatch.pools.at(0).spin, SpinMode::adaptive);
  EXPECT_TRUE(dispatch.validate().ok()) << dispatch.validate().to_string();
}

TEST(PlannedConfig, CarriesKeyLanesAndTheOrderOfARoute) {
  Config config;
  config.pools[0].key_lanes = 17;
  config.routes.push_back({.name = "accounts", .order = Order::per_key});
  const DispatcherConfig dispatch = planned(two_nics(), config);
  ASSERT_EQ(dispatch.pools.size(), 2U);
  for (const PoolConfig& pool : dispatch.pools) EXPECT_EQ(pool.key_lanes, 17U);
  ASSERT_EQ(dispatch.routes.size(), 1U);
  EXPECT_EQ(dispatch.routes[0].order, Order::per_key);
  EXPECT_TRUE(dispatch.validate().ok()) << dispatch.validate().to_string();
}

TEST(PlannedConfig, SplitsAPoolByNodeAndValidates) {
  const DispatcherConfig dispatch = planned(two_nics(), Config{});
  ASSERT_EQ(dispatch.pools.size(), 2U);
  EXPECT_EQ(dispatch.pools[0].name, dispatch.pools[1].name);
  EXPECT_EQ(dispatch.pools[0].node, 0U);
  EXPECT_EQ(dispatch.pools[1].node, 1U);
  EXPECT_TRUE(dispatch.validate().ok()) << dispatch.validate().to_string();
}

/// The same two nodes on one thread: nothing is pinned, the host drives.
DispatcherConfig two_nodes_hosted() {
  DispatcherConfig config = small_config(1, WaitMode::event, Drive::host);
  config.pollers[0].count = 2;
  config.pollers[0].nodes = {0, 1};
  config.pools = {PoolConfig{.name = "apply", .node = 0}, PoolConfig{.name = "apply", .node = 1}};
  return config;
}

TEST(SplitPool, WorkersOfThePollersNodeServeIt) {
  auto dispatcher = start(two_nodes_hosted());
  for (std::uint32_t poller = 0; poller < 2; ++poller) {
    auto source = std::make_shared<SyntheticSource>();
    const auto handle =
        dispatcher->attach(source, {.pool = "apply", .order = Order::none, .poller = poller},
                           [](std::span<const ibv_wc>, const BatchInfo&) noexcept {});
    ASSERT_TRUE(handle.ok()) << handle.status().to_string();
    ASSERT_TRUE(source->complete(1, 0));
    const auto handled = [&](std::uint32_t worker) {
      return dispatcher->counters().workers[worker].completions;
    };
    EXPECT_TRUE(run_until(*dispatcher, [&] { return handled(0) + handled(1) == poller + 1; }));
    EXPECT_EQ(handled(poller), 1U) << "another node's worker took it";
  }
}

TEST(SplitPool, AConnectionGoesToAPollerOfItsReceiveSourcesNode) {
  auto dispatcher = start(two_nodes_hosted());
  auto source = std::make_shared<SyntheticSource>();
  auto handle = dispatcher->attach(source, {.pool = "apply", .poller = 1},
                                   [](std::span<const ibv_wc>, const BatchInfo&) noexcept {});
  ASSERT_TRUE(handle.ok()) << handle.status().to_string();
  for (std::uint32_t qp_num = 10; qp_num < 14; ++qp_num) {
    ConnectionOptions options;
    options.pool = "apply";
    options.receive_source = *handle;
    const auto connection = dispatcher->attach_queue_pair(qp_num, std::move(options));
    ASSERT_TRUE(connection.ok()) << connection.status().to_string();
    EXPECT_EQ((*connection)->poller(), 1U);
  }
  ConnectionOptions wrong;
  wrong.pool = "apply";
  wrong.receive_source = *handle;
  wrong.poller = 0;
  EXPECT_EQ(dispatcher->attach_queue_pair(20, std::move(wrong)).status().code(),
            StatusCode::invalid_argument);
}

TEST(SplitPool, ANodeWithoutMemoryOrPollersIsANotice) {
  DispatcherConfig config = two_nodes_hosted();
  config.pollers[0].nodes = {0, 1000};
  config.pools[1].node = 77;
  const auto dispatcher = start(config);
  const auto notices = dispatcher->notices();
  ASSERT_EQ(notices.size(), 2U);
  EXPECT_NE(notices[0].find("77"), std::string::npos) << notices[0];
  EXPECT_NE(notices[1].find("poller 1"), std::string::npos) << notices[1];
  config.memory_node = 1000;  // that one was asked for by name
  EXPECT_FALSE(Dispatcher::start(config).ok());
}

TEST(StartOverloads, BracesMeanADispatcherConfig) {
  const auto dispatcher = Dispatcher::start({.drive = Drive::host});
  ASSERT_TRUE(dispatcher.ok());
  EXPECT_EQ((*dispatcher)->plan(), nullptr);
  EXPECT_FALSE((*dispatcher)->arena("default").ok()) << "the host's threads are not pinned by us";
}

TEST(PollerGroups, AnAttachStaysInItsGroup) {
  DispatcherConfig config = small_config(1, WaitMode::event, Drive::host);
  config.pollers = {PollerConfig{.name = "a", .count = 1}, PollerConfig{.name = "b", .count = 2}};
  auto dispatcher = start(config);
  const auto attach = [&](const std::string& group, std::uint32_t poller = kAnyPoller) {
    return dispatcher->attach(std::make_shared<SyntheticSource>(),
                              {.order = Order::none, .pollers = group, .poller = poller},
                              [](std::span<const ibv_wc>, const BatchInfo&) noexcept {});
  };
  for (int i = 0; i < 6; ++i) EXPECT_GE((*attach("b"))->poller(), 1U);
  EXPECT_EQ((*attach("a"))->poller(), 0U);
  EXPECT_EQ(attach("c").status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(attach("a", 1).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(attach("", 3).status().code(), StatusCode::invalid_argument);
}

TEST(BatchSize, IsTheMostThatAHandlerGetsAtOnce) {
  DispatcherConfig config = small_config(1, WaitMode::event, Drive::host);
  config.pollers[0].batch_size = 3;
  auto dispatcher = start(config);
  for (const Order order : {Order::none, Order::inlined, Order::per_connection}) {
    auto source = std::make_shared<SyntheticSource>();
    std::size_t handled = 0;
    std::size_t most = 0;
    const auto handle = dispatcher->attach(
        source, {.order = order, .single_connection = order == Order::per_connection},
        [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
          handled += batch.size();
          most = std::max(most, batch.size());
        });
    ASSERT_TRUE(handle.ok());
    for (std::uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(source->complete(1, i));
    EXPECT_TRUE(run_until(*dispatcher, [&] { return handled == 20; }));
    EXPECT_EQ(most, 3U) << to_string(order);
  }
}

// R4: every CQ on completion vector 0 loads one core.
TEST(CompletionVectors, AreSpreadOverTheGroupsPollers) {
  DispatcherConfig config = small_config(1, WaitMode::event, Drive::host);
  config.pollers = {PollerConfig{.name = "a", .count = 3},
                    PollerConfig{.name = "b", .count = 2, .completion_vectors = {5, 1, 4}}};
  auto dispatcher = start(config);
  std::multiset<int> dealt;
  for (std::uint32_t poller = 0; poller < 3; ++poller) {
    const auto vectors = dispatcher->completion_vectors(poller, 8);
    ASSERT_TRUE(vectors.ok());
    dealt.insert(vectors.value().begin(), vectors.value().end());
  }
  EXPECT_EQ(dealt, (std::multiset<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(*dispatcher->completion_vectors(3, 8), (std::vector<int>{5, 4}));
  EXPECT_EQ(*dispatcher->completion_vectors(4, 8), (std::vector<int>{1}));
  EXPECT_EQ(*dispatcher->completion_vectors(2, 2), (std::vector<int>{0})) << "two for three";
  const auto refused = dispatcher->completion_vectors(3, 4);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("pollers.b.completion_vectors"), std::string::npos);
  EXPECT_FALSE(dispatcher->completion_vectors(5, 8).ok());
}

TEST(BatchMemory, IsWhereTheBatchesAre) {
  auto dispatcher = start(small_config(1, WaitMode::event, Drive::host));
  auto source = std::make_shared<SyntheticSource>();
  const ibv_wc* seen = nullptr;
  const auto handle = dispatcher->attach(
      source, {.order = Order::none},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { seen = batch.data(); });
  ASSERT_TRUE(source->complete(1, 0));
  ASSERT_TRUE(run_until(*dispatcher, [&] { return seen != nullptr; }));
  const auto memory = dispatcher->batch_memory(0);
  const auto* const at = reinterpret_cast<const std::byte*>(seen);
  EXPECT_TRUE(at >= memory.data() && at < memory.data() + memory.size());
}

}  // namespace
}  // namespace sluice::testing
