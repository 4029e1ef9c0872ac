// SPDX-License-Identifier: BSD-3-Clause
// Everything at once: attaches, detaches, completions, tickets, stalls of handlers, counters.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <thread>
#include <vector>

#include "sluice_test/dispatch_fixture.hpp"
#include "stress_support.hpp"

namespace sluice::testing {
namespace {

constexpr std::uint32_t kLanes = 8;

/// One thread's own share of the storm: a source of several queue pairs that it attaches, feeds and
/// detaches, and checks that each completion was handled in order, or was an orphan.
class Participant {
 public:
  Participant(Dispatcher& dispatcher, Order order, unsigned number)
      : dispatcher_(dispatcher), order_(order), random_(number) {}

  void one_life(std::atomic<std::uint64_t>& progress) {
    auto source = std::make_shared<SyntheticSource>(128);
    std::atomic<std::uint64_t> handled{0};
    auto logs = std::make_unique<std::array<ConnectionLog, kLanes>>();
    auto attached =
        dispatcher_.attach(source, {.order = order_},
                           [this, at = logs.get(), &handled](std::span<const ibv_wc> batch,
                                                             const BatchInfo& info) noexcept {
                             if (order_ == Order::per_connection) {
                               note_in_log(batch, info);
                             }
                             static_cast<void>(at);
                             handled.fetch_add(batch.size(), std::memory_order_release);
                           });
    ASSERT_TRUE(attached.ok()) << attached.status().to_string();
    std::vector<std::shared_ptr<ConnectionHandle>> connections;
    std::uint64_t made = 0;
    std::array<std::uint64_t, kLanes> next{};
    SetupTicket ticket;
    if (order_ == Order::per_connection) ticket = dispatcher_.expect_connection(**attached);
    const std::uint32_t count = 1 + random_() % kLanes;
    for (std::uint32_t i = 0; i < 300; ++i) {
      if (order_ == Order::per_connection && connections.size() < count && random_() % 8 == 0) {
        const auto qp = static_cast<std::uint32_t>(connections.size());
        auto connection = dispatcher_.attach_queue_pair(
            qp, {.context = &(*logs)[qp], .receive_source = *attached});
        ASSERT_TRUE(connection.ok()) << connection.status().to_string();
        connections.push_back(*connection);
      }
      const auto lane = static_cast<std::uint32_t>(random_() % count);
      if (source->complete(lane, next[lane])) {
        ++next[lane];
        ++made;
      }
      progress.fetch_add(1, std::memory_order_relaxed);
    }
    while (order_ == Order::per_connection && connections.size() < count) {
      const auto qp = static_cast<std::uint32_t>(connections.size());
      auto connection =
          dispatcher_.attach_queue_pair(qp, {.context = &(*logs)[qp], .receive_source = *attached});
      ASSERT_TRUE(connection.ok()) << connection.status().to_string();
      connections.push_back(*connection);
    }
    ticket = SetupTicket{};
    for (auto& connection : connections) {
      if (random_() % 2 == 0) {
        auto report = connection->detach(kGenerous);
        ASSERT_TRUE(report.ok());
        EXPECT_TRUE(report->clean) << report->to_string();
      } else {
        std::atomic<bool> done{false};
        connection->detach_async(kGenerous, [&](const DetachReport& report) {
          EXPECT_TRUE(report.clean) << report.to_string();
          done = true;
        });
        ASSERT_TRUE(eventually([&] { return done.load(); }));
      }
    }
    auto report = (*attached)->detach(kGenerous);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_TRUE(report->clean) << report->to_string();
    EXPECT_EQ(handled.load(std::memory_order_acquire), made);
    EXPECT_EQ(source->retired(), made);
    for (const auto& log : *logs) log.expect_in_order();
    logs.reset();  // nobody touches it any more, or a sanitizer says so
    progress.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  Dispatcher& dispatcher_;
  const Order order_;
  std::minstd_rand random_;
};

TEST(DispatcherStorm, AttachDetachAndCompleteFromManyThreads) {
  DispatcherConfig config = small_config(3);
  config.pollers[0].count = 2;
  config.pollers[0].hot_rounds = 2;
  config.pollers[0].batch_count = 8;
  config.pools[0].spin_rounds = 4;
  auto dispatcher = start(config);
  const std::uint64_t lives = std::max<std::uint64_t>(test::stress_items(1200) / 6, 10);
  std::atomic<std::uint64_t> progress{0};
  const test::Watchdog watchdog(progress);
  test::Threads threads;
  threads.start(6, [&](unsigned number) {
    constexpr std::array kOrders = {Order::inlined, Order::none, Order::per_connection,
                                    Order::per_connection};
    for (std::uint64_t life = 0; life < lives && !::testing::Test::HasFailure(); ++life) {
      Participant(*dispatcher, kOrders[(number + life) % kOrders.size()],
                  number * 1000 + static_cast<unsigned>(life))
          .one_life(progress);
      static_cast<void>(dispatcher->counters());
    }
  });
  threads.join();
  const auto counters = dispatcher->counters();
  for (const PollerCounters& poller : counters.pollers) {
    EXPECT_EQ(poller.sources, 0u);
    EXPECT_EQ(poller.connections, 0u);
    EXPECT_EQ(poller.orphans, 0u);
  }
  EXPECT_EQ(counters.control.quarantined, 0u);
  EXPECT_TRUE(dispatcher->stop(kGenerous).ok());
}

// One connection may be fed by its own CQ's poller and by the SRQ's: here two pollers, each with a
// source of its own, and lanes on one pool whose workers sleep and wake all the time.
TEST(DispatcherStorm, ManyLanesFewWorkersOneByOne) {
  DispatcherConfig config = small_config(2);
  config.pollers[0].count = 2;
  config.pollers[0].hot_rounds = 0;
  config.pools[0].spin_rounds = 0;
  auto dispatcher = start(config);
  const std::uint64_t each = std::max<std::uint64_t>(test::stress_items(60'000) / 2, 1000);
  std::atomic<std::uint64_t> progress{0};
  const test::Watchdog watchdog(progress);
  test::Threads threads;
  threads.start(2, [&](unsigned number) {
    auto source = std::make_shared<SyntheticSource>(64);
    std::array<ConnectionLog, kLanes> logs;
    auto attached = dispatcher->attach(source, {.poller = number}, note_in_log);
    ASSERT_TRUE(attached.ok());
    std::vector<std::shared_ptr<ConnectionHandle>> connections;
    for (std::uint32_t qp = 0; qp < kLanes; ++qp) {
      auto connection =
          dispatcher->attach_queue_pair(qp, {.context = &logs[qp], .receive_source = *attached});
      ASSERT_TRUE(connection.ok());
      connections.push_back(*connection);
    }
    for (std::uint64_t i = 0; i < each; ++i) {
      const auto qp = static_cast<std::uint32_t>(i % kLanes);
      complete_when_room(*source, qp, i / kLanes);
      progress.fetch_add(1, std::memory_order_relaxed);
    }
    for (auto& connection : connections) EXPECT_TRUE(connection->detach(kGenerous)->clean);
    EXPECT_TRUE((*attached)->detach(kGenerous)->clean);
    EXPECT_EQ(source->retired(), each);
    for (const auto& log : logs) log.expect_in_order();
  });
  threads.join();
}

}  // namespace
}  // namespace sluice::testing
