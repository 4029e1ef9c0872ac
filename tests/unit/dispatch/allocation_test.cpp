// SPDX-License-Identifier: BSD-3-Clause
// C2: no allocation on the data path, ever. This program counts every allocation of the process.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "sluice/core/uring/ring.hpp"
#include "sluice/dispatch/uring.hpp"
#include "sluice_test/count_allocations.hpp"
#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::testing {
namespace {

struct Mode {
  Order order;
  Drive drive;
  std::uint32_t workers = 2;
};

class Allocations : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, Allocations,
                         ::testing::Values(Mode{Order::inlined, Drive::host},
                                           Mode{Order::none, Drive::host},
                                           Mode{Order::per_connection, Drive::host},
                                           Mode{Order::per_connection, Drive::host, 1},
                                           Mode{Order::per_key, Drive::host},
                                           Mode{Order::per_key, Drive::host, 1},
                                           Mode{Order::inlined, Drive::own_threads},
                                           Mode{Order::none, Drive::own_threads},
                                           Mode{Order::per_connection, Drive::own_threads},
                                           Mode{Order::per_connection, Drive::own_threads, 1},
                                           Mode{Order::per_key, Drive::own_threads},
                                           Mode{Order::per_key, Drive::own_threads, 1}),
                         [](const auto& param) {
                           return std::string(to_string(param.param.order)) +
                                  (param.param.drive == Drive::host ? "_stepped" : "_threads") +
                                  (param.param.workers == 1 ? "_one_worker" : "");
                         });

TEST(AllocationCounter, CountsNewAndMalloc) {
  counting = true;
  const std::uint64_t before = allocations;
  { const std::vector<int> some(100); }
  const std::uint64_t after = allocations;
  counting = false;
  EXPECT_GE(after, before + 1);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  counting = true;
  void* volatile memory = std::malloc(10);
  const std::uint64_t with_malloc = allocations;
  counting = false;
  std::free(memory);
  EXPECT_EQ(with_malloc, after + 1);
#endif
}

// Busy phases and sleeps, several connections, failed completions, early ones and orphans: all of
// it is data path.
TEST_P(Allocations, AreNoneWhileCompletionsFlow) {
  constexpr std::uint64_t kWarmUp = 10'000, kMany = 100'000;
  constexpr std::uint32_t kConnections = 4;
  const Order order = GetParam().order;
  const Drive drive = GetParam().drive;
  DispatcherConfig config = small_config(GetParam().workers, WaitMode::event, drive);
  config.pollers[0].hot_rounds = 2;
  auto dispatcher = start(config);
  auto source = std::make_shared<SyntheticSource>(256);
  std::atomic<std::uint64_t> handled{0};
  KeyFunction key;
  if (order == Order::per_key) key = [](const ibv_wc& wc) noexcept { return wc.wr_id % 61; };
  auto handle = dispatcher->attach(
      source, {.order = order, .key = key},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
  ASSERT_TRUE(handle.ok());
  std::vector<std::shared_ptr<ConnectionHandle>> connections;
  for (std::uint32_t qp = 0; order == Order::per_connection && qp < kConnections; ++qp) {
    auto connection = dispatcher->attach_queue_pair(qp, {.receive_source = *handle});
    ASSERT_TRUE(connection.ok());
    connections.push_back(*connection);
  }
  if (drive == Drive::host) run_all_once(*dispatcher);
  ASSERT_TRUE(eventually(
      [&] { return dispatcher->counters().pollers[0].commands == 1 + connections.size(); }));

  std::uint64_t made = 0;
  // Now a burst, now one alone; at times an unknown queue pair; now and then to sleep.
  const auto a_little = [&](std::uint64_t until) {
    for (std::uint64_t burst = made % 50; made < until; --burst) {
      const auto qp_num = static_cast<std::uint32_t>(made % (kConnections + (made % 16 == 0)));
      if (!source->complete(qp_num, made)) break;
      ++made;
      if (burst == 0) break;
    }
    if (drive == Drive::own_threads) return std::this_thread::yield();
    run_all_once(*dispatcher);
    for (Runnable* part : {&dispatcher->poller(0), &dispatcher->worker(0),
                           &dispatcher->worker(GetParam().workers - 1), &dispatcher->control()}) {
      if (part->prepare_to_wait()) part->finish_wait();
    }
  };
  const auto flow = [&](std::uint64_t until) {
    const auto end = std::chrono::steady_clock::now() + 4 * kGenerous;
    while (handled + dispatcher->counters().pollers[0].orphans < until &&
           std::chrono::steady_clock::now() < end) {
      counting = true;
      for (int i = 0; i < 64; ++i) a_little(until);
      counting = false;  // counters() allocates
    }
    return handled + dispatcher->counters().pollers[0].orphans == until;
  };
  ASSERT_TRUE(flow(kWarmUp));
  allocations = 0;
  ASSERT_TRUE(flow(kWarmUp + kMany));
  EXPECT_EQ(allocations, 0u) << "while " << kMany << " completions flowed";
  if (drive == Drive::host) {
    for (auto& connection : connections) detach_by_running(*dispatcher, *connection);
  }
}

TEST(AllocationsOfHeldCompletions, AreNone) {
  auto dispatcher = start(small_config(1, WaitMode::event, Drive::host));
  std::vector<std::shared_ptr<SyntheticSource>> sources;
  std::vector<std::shared_ptr<SourceHandle>> handles;
  std::vector<SetupTicket> tickets;
  for (int i = 0; i < 40; ++i) {
    sources.push_back(std::make_shared<SyntheticSource>(64));
    auto handle = dispatcher->attach(sources.back(), {}, [](auto, const auto&) noexcept {});
    ASSERT_TRUE(handle.ok());
    handles.push_back(*handle);
    tickets.push_back(dispatcher->expect_connection(**handle));
  }
  for (int i = 0; i < 10; ++i) run_all_once(*dispatcher);
  counting = true;
  allocations = 0;
  for (const auto& source : sources) {
    for (std::uint64_t i = 0; i < 30; ++i) {
      if (!source->complete(1, i)) break;
    }
  }
  for (int i = 0; i < 50; ++i) run_all_once(*dispatcher);
  counting = false;
  EXPECT_EQ(allocations, 0u);
  EXPECT_EQ(dispatcher->counters().pollers[0].early, 40u * 30u);
}

TEST(AllocationsOfARing, AreNone) {
  constexpr std::uint64_t kWarmUp = 1'000, kMany = 20'000;
  auto dispatcher = start(small_config(1, WaitMode::event, Drive::host));
  auto ring = uring::Ring::create({.submissions = 16, .completions = 32}, "ring");
  ASSERT_TRUE(ring.ok()) << ring.status().to_string();
  std::uint64_t handled = 0;
  auto handle =
      dispatcher->attach(*ring, {.order = Order::none},
                         uring_handler([&](std::span<const io_uring_cqe> cqes,
                                           const BatchInfo&) noexcept { handled += cqes.size(); }));
  ASSERT_TRUE(handle.ok());
  const auto flow = [&](std::uint64_t until) {
    std::uint64_t made = handled;
    while (handled < until) {
      // Prepared until it is refused: that is data path, too.
      for (io_uring_sqe* sqe = nullptr; (*ring)->try_prepare(std::span(&sqe, 1)); ++made) {
        ::io_uring_prep_nop(sqe);
      }
      static_cast<void>((*ring)->submit());
      while (handled < made) run_all_once(*dispatcher);
    }
  };
  flow(kWarmUp);
  allocations = 0;
  counting = true;
  flow(kWarmUp + kMany);
  counting = false;
  EXPECT_EQ(allocations, 0u);
  detach_by_running(*dispatcher, **handle);
}

}  // namespace
}  // namespace sluice::testing
