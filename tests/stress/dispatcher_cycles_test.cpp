// SPDX-License-Identifier: BSD-3-Clause
// Ten thousand times attached and detached, through more than a thousand dispatchers that start and
// stop, while completions flow: what was completed before the detach, or the stop, was handled
// exactly once, and each connection's in order.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "sluice_test/dispatch_fixture.hpp"
#include "stress_support.hpp"

namespace sluice::testing {
namespace {

constexpr std::uint32_t kConnections = 2;  ///< of each source
constexpr std::uint64_t kCyclesOfALife = 50;
constexpr unsigned kCyclers = 2;

/// What one attached source is given and what its handler saw of it.
struct Stream {
  explicit Stream(Order order_of_it) : order(order_of_it) {}

  [[nodiscard]] Handler handler() {
    return [this](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
      if (order == Order::per_connection) {
        note_in_log(batch, info);
      }
      for (const ibv_wc& wc : batch) seen.at(wc.qp_num).fetch_add(1, std::memory_order_relaxed);
      handled.fetch_add(batch.size(), std::memory_order_release);
    };
  }

  /// The device completes one more of a connection, once there is room.
  void complete(std::uint32_t qp_num) {
    complete_when_room(*source, qp_num, made.at(qp_num));
    ++made.at(qp_num);
  }

  void expect_all_handled() const {
    std::uint64_t total = 0;
    for (std::uint32_t qp = 0; qp < kConnections; ++qp) {
      EXPECT_EQ(seen[qp].load(), made[qp]);
      if (order == Order::per_connection) {
        EXPECT_EQ(logs[qp].count.load(), made[qp]);
        logs[qp].expect_in_order();
      }
      total += made[qp];
    }
    EXPECT_EQ(handled.load(std::memory_order_acquire), total);
    EXPECT_EQ(source->retired(), total);
    EXPECT_EQ(source->pending(), 0u);
  }

  const Order order;
  std::shared_ptr<SyntheticSource> source = std::make_shared<SyntheticSource>(64);
  std::array<std::uint64_t, kConnections> made{};
  std::array<std::atomic<std::uint64_t>, kConnections> seen{};
  std::array<ConnectionLog, kConnections> logs;
  std::atomic<std::uint64_t> handled{0};
};

/// Attaches a source, and its connections if it has an order to keep.
struct Attached {
  Attached(Dispatcher& dispatcher, Stream& stream) {
    auto attached = dispatcher.attach(stream.source, {.order = stream.order}, stream.handler());
    EXPECT_TRUE(attached.ok()) << attached.status().to_string();
    if (!attached.ok()) return;
    source = *attached;
    if (stream.order != Order::per_connection) return;
    for (std::uint32_t qp = 0; qp < kConnections; ++qp) {
      auto connection =
          dispatcher.attach_queue_pair(qp, {.context = &stream.logs[qp], .receive_source = source});
      EXPECT_TRUE(connection.ok()) << connection.status().to_string();
      if (connection.ok()) connections.push_back(*connection);
    }
  }

  void detach() {
    for (const auto& connection : connections) {
      auto report = connection->detach(kGenerous);
      ASSERT_TRUE(report.ok()) << report.status().to_string();
      EXPECT_TRUE(report->clean) << report->to_string();
    }
    auto report = source->detach(kGenerous);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_TRUE(report->clean) << report->to_string();
  }

  std::shared_ptr<SourceHandle> source;
  std::vector<std::shared_ptr<ConnectionHandle>> connections;
};

constexpr std::array kOrders = {Order::none, Order::per_connection, Order::inlined,
                                Order::per_connection};

DispatcherConfig config_of_life(std::uint64_t life) {
  DispatcherConfig config = small_config(1 + life % 3);
  config.pollers[0].count = 1 + life % 2;
  config.pollers[0].batch_count = 8;
  config.pollers[0].hot_rounds = life % 4 == 0 ? 0 : 2;
  config.pools[0].spin_rounds = life % 4;
  return config;
}

TEST(DispatcherCycles, StartAndStopWithNothingAttached) {
  const std::uint64_t rounds = test::stress_items(1000);
  for (std::uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    auto dispatcher = start(config_of_life(round));
    ASSERT_NE(dispatcher, nullptr);
    if (round % 2 == 0) {  // else its destructor stops it
      const Status stopped = dispatcher->stop(kGenerous);
      EXPECT_TRUE(stopped.ok()) << stopped.to_string();
    }
  }
}

// One source stays from start to stop and is fed all along; beside it others come and go.
TEST(DispatcherCycles, AttachAndDetachWhileCompletionsFlow) {
  const std::uint64_t cycles_wanted = test::stress_items(10'000);
  std::atomic<std::uint64_t> cycles{0};
  const test::Watchdog watchdog(cycles);
  for (std::uint64_t life = 0; cycles.load() < cycles_wanted && !HasFailure(); ++life) {
    auto dispatcher = start(config_of_life(life));
    ASSERT_NE(dispatcher, nullptr);
    Stream lasting(kOrders[life % kOrders.size()]);
    const Attached attached(*dispatcher, lasting);
    ASSERT_FALSE(HasFailure());
    std::atomic<unsigned> cycling{kCyclers};
    test::Threads threads;
    threads.start(1, [&](unsigned) {
      for (std::uint32_t i = 0; cycling.load() > 0 && !HasFailure(); ++i) {
        lasting.complete(i % kConnections);
        if (i % 16 == 15) std::this_thread::yield();
      }
    });
    threads.start(kCyclers, [&](unsigned number) {
      for (std::uint64_t i = 0; i < kCyclesOfALife / kCyclers && !HasFailure(); ++i) {
        Stream stream(kOrders[(life + number + i) % kOrders.size()]);
        Attached one(*dispatcher, stream);
        if (HasFailure()) break;
        // From none to more than there is room for at once.
        const std::uint32_t count = (i * 13 + number) % 90;
        for (std::uint32_t k = 0; k < count; ++k) stream.complete(k % kConnections);
        one.detach();
        stream.expect_all_handled();
        cycles.fetch_add(1);
      }
      cycling.fetch_sub(1);
    });
    threads.join();
    const Status stopped = dispatcher->stop(kGenerous);  // which detaches the lasting one
    EXPECT_TRUE(stopped.ok()) << stopped.to_string();
    lasting.expect_all_handled();
  }
  EXPECT_GE(cycles.load(), cycles_wanted);
}

}  // namespace
}  // namespace sluice::testing
