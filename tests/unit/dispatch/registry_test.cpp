// SPDX-License-Identifier: BSD-3-Clause
#include "registry.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <set>
#include <thread>
#include <vector>

#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::detail {
namespace {

// R1: connections made in parallel all land on one poller (281/40/39/39).
TEST(Registry, ConnectionsMadeInParallelAreSpreadWithinOneOfEven) {
  constexpr unsigned kThreads = 8, kEach = 50;  // two sources each on any of three pollers
  Registry registry(kThreads * kEach, {800, 800, 800});
  std::barrier together(kThreads);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      together.arrive_and_wait();
      for (unsigned i = 0; i < kEach; ++i)
        ASSERT_TRUE(registry.choose_poller({0, 1, 2}, true, 2).has_value());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto spread = registry.connections_per_poller();
  const auto [least, most] = std::minmax_element(spread.begin(), spread.end());
  EXPECT_LE(*most - *least, 1u);
}

TEST(Registry, SpreadAgainAfterConnectionsLeave) {
  Registry registry(100, {100, 100});
  for (int i = 0; i < 10; ++i) static_cast<void>(registry.choose_poller({0}, true, 1));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(registry.choose_poller({0, 1}, true, 1), 1u);
  for (int i = 0; i < 6; ++i) registry.leave_poller(0, true, 1);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(registry.choose_poller({0, 1}, true, 1), 0u);
}

TEST(Registry, AFullPollerIsNotChosen) {
  Registry registry(100, {3, 3});
  EXPECT_EQ(registry.choose_poller({0}, true, 2), 0u);
  EXPECT_EQ(registry.choose_poller({0}, true, 2), std::nullopt);
  EXPECT_EQ(registry.choose_poller({0, 1}, true, 2), 1u);
  EXPECT_EQ(registry.choose_poller({0, 1}, true, 2), std::nullopt);
  EXPECT_EQ(registry.choose_poller({}, true, 0), std::nullopt);
}

// QP numbers are reused, and so are the places of connections: an id never is.
TEST(Registry, IdsCarryGenerations) {
  Registry registry(1, {1});
  std::set<ConnectionId> ids;
  ConnectionId last = ConnectionId::none;
  for (int i = 0; i < 100; ++i) {
    auto connection = std::make_shared<ConnectionState>();
    connection->qp_num = 5;
    const ConnectionId id = registry.add(connection, {});
    ASSERT_NE(id, ConnectionId::none);
    EXPECT_TRUE(ids.insert(id).second) << "an id was used twice";
    EXPECT_EQ(registry.find(id), connection);
    if (last != ConnectionId::none) {
      EXPECT_EQ(registry.find(last), nullptr);
      registry.remove(last);  // long gone: must not take the new one with it
      EXPECT_EQ(registry.find(id), connection);
    }
    EXPECT_EQ(registry.add(std::make_shared<ConnectionState>(), {}), ConnectionId::none);
    EXPECT_FALSE(registry.reserve_connection().held());
    registry.remove(id);
    EXPECT_TRUE(registry.reserve_connection().held());
    last = id;
  }
  EXPECT_EQ(registry.find(ConnectionId{77}), nullptr);
}

TEST(Registry, DetachBeginsOnce) {
  Registry registry(1, {1});
  ConnectionState connection;
  int called = 0;
  DetachCallback first,
      second = [&](const DetachReport&report) { called += report.clean ? 1 : 100; };
  EXPECT_TRUE(registry.begin_detach(connection, first));
  EXPECT_FALSE(registry.begin_detach(connection, second));
  EXPECT_EQ(called, 0) << "told of the end before it";
  for (const auto& waiter : registry.end_detach(connection.detaching, DetachReport{}))
    waiter(DetachReport{});
  EXPECT_EQ(called, 1);
  DetachCallback late = [&](const DetachReport&) { called += 10; };
  EXPECT_FALSE(registry.begin_detach(connection, late));
  EXPECT_EQ(called, 11);
}

}  // namespace
}  // namespace sluice::detail

namespace sluice::testing {
namespace {

// R1, through the front door.
TEST(Spreading, QueuePairsAttachedFromEightThreadsAreSpreadWithinOneOfEven) {
  constexpr unsigned kThreads = 8, kEach = 12, kPollers = 3;
  DispatcherConfig config = small_config(1);
  config.pollers[0].count = kPollers;
  auto dispatcher = start(config);
  auto receive = dispatcher->attach(std::make_shared<SyntheticSource>(), {},
                                    [](auto, const auto&) noexcept {});
  ASSERT_TRUE(receive.ok());
  std::barrier together(kThreads);
  std::vector<std::thread> threads;
  std::vector<std::vector<std::shared_ptr<ConnectionHandle>>> made(kThreads);
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      together.arrive_and_wait();
      for (unsigned i = 0; i < kEach; ++i) {
        auto connection =
            dispatcher->attach_queue_pair(t * kEach + i, {.receive_source = *receive});
        ASSERT_TRUE(connection.ok()) << connection.status().to_string();
        made[t].push_back(*connection);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::uint64_t> spread;
  for (const PollerCounters& poller : dispatcher->counters().pollers)
    spread.push_back(poller.connections);
  const auto [least, most] = std::minmax_element(spread.begin(), spread.end());
  EXPECT_LE(*most - *least, 1u);
  std::set<ConnectionId> ids;
  for (const auto& some : made) {
    for (const auto& connection : some) EXPECT_TRUE(ids.insert(connection->id()).second);
  }
  for (const auto& some : made) {
    for (const auto& connection : some) {
      auto report = connection->detach(kGenerous);
      ASSERT_TRUE(report.ok());
      EXPECT_TRUE(report->clean);
    }
  }
  for (const PollerCounters& poller : dispatcher->counters().pollers)
    EXPECT_EQ(poller.connections, 0u);
}

}  // namespace
}  // namespace sluice::testing
