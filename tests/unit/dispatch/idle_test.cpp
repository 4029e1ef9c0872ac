// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::testing {
namespace {

std::chrono::microseconds cpu_time() {
  rusage usage{};
  EXPECT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
  const auto of = [](const timeval& t) {
    return std::chrono::seconds(t.tv_sec) + std::chrono::microseconds(t.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

// S1: an idle service burns whole cores.
class Idle : public ::testing::TestWithParam<WaitMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, Idle, ::testing::Values(WaitMode::event, WaitMode::adaptive),
                         [](const auto& param) { return std::string(to_string(param.param)); });

TEST_P(Idle, AThousandSourcesOnThreePollersUseUnderOnePercentOfACore) {
  DispatcherConfig config = small_config(4, GetParam());
  if (GetParam() == WaitMode::adaptive) config.pools[0].spin = SpinMode::adaptive;
  config.pollers[0].count = 3;
  config.pollers[0].sources_max = 400;
  auto dispatcher = start(config);
  std::vector<std::shared_ptr<SyntheticSource>> sources;
  std::atomic<std::uint64_t> handled{0};
  for (int i = 0; i < 1000; ++i) {
    sources.push_back(std::make_shared<SyntheticSource>(16));
    auto handle = dispatcher->attach(
        sources.back(), {.order = Order::none},
        [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
    ASSERT_TRUE(handle.ok()) << handle.status().to_string();
  }
  ASSERT_TRUE(eventually([&] {
    const auto counters = dispatcher->counters();
    return std::all_of(counters.pollers.begin(), counters.pollers.end(),
                       [](const auto& poller) {
                         return poller.sources > 300 && poller.hot_sources == 0;
                       }) &&
           std::all_of(counters.workers.begin(), counters.workers.end(),
                       [](const auto& w) { return w.parks > 0; });
  }));
  // What it costs is measured over wall time: there is nothing to wait for.
  constexpr auto kWall = std::chrono::seconds(2);
  const auto before = cpu_time();
  std::this_thread::sleep_for(kWall);
  const auto used = cpu_time() - before;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int kPercent = 5;  // the sanitizer's own background thread
#else
  constexpr int kPercent = 1;
#endif
  EXPECT_LT(used, std::chrono::microseconds(kWall) * kPercent / 100);
  // And it is awake when it is needed.
  for (const auto& source : sources) ASSERT_TRUE(source->complete(1, 1));
  EXPECT_TRUE(eventually([&] { return handled == sources.size(); }));
}

/// Until the control has not run for thirty times its interval.
void await_doze(Dispatcher& dispatcher, std::chrono::milliseconds interval) {
  ASSERT_TRUE(eventually([&] {
    const std::uint64_t before = dispatcher.counters().control.rounds;
    std::this_thread::sleep_for(30 * interval);  // what does not happen takes time to see
    return dispatcher.counters().control.rounds == before;
  })) << "the control ticks although everything sleeps";
}

// S1: a thousand dispatchers of a process must not wake it a thousand times a second.
TEST(Idle, NothingTicksOnceEverythingSleeps) {
  constexpr std::chrono::milliseconds kStall{10};
  DispatcherConfig config = small_config(2);
  config.stall_threshold = kStall;
  auto dispatcher = start(config);
  auto source = std::make_shared<SyntheticSource>(16);
  std::atomic<std::uint64_t> handled{0};
  auto handle = dispatcher->attach(
      source, {.order = Order::none},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
  ASSERT_TRUE(handle.ok());
  for (std::uint64_t i = 1; i <= 3; ++i) {
    await_doze(*dispatcher, kStall);
    ASSERT_TRUE(source->complete(1, i));
    ASSERT_TRUE(eventually([&] { return handled == i; }));
  }
}

// R2, after S1: who sleeps deeply still notices a handler that blocks.
TEST(Idle, AStallIsSeenAlsoAfterEverythingHasSlept) {
  for (const Order order : {Order::none, Order::inlined}) {
    constexpr std::chrono::milliseconds kStall{10};
    DispatcherConfig config = small_config(2);
    config.stall_threshold = kStall;
    std::atomic<std::uint32_t> stalls{0};
    DispatcherCallbacks callbacks;
    callbacks.on_stall = [&](SourceId, bool, std::chrono::nanoseconds) { ++stalls; };
    auto dispatcher = start(config, callbacks);
    auto source = std::make_shared<SyntheticSource>(16);
    Gate gate;
    auto handle = dispatcher->attach(
        source, {.order = order},
        [&](std::span<const ibv_wc>, const BatchInfo&) noexcept { gate.pass(); });
    ASSERT_TRUE(handle.ok());
    await_doze(*dispatcher, kStall);
    ASSERT_TRUE(source->complete(1, 1));
    EXPECT_TRUE(eventually([&] { return stalls == 1; })) << to_string(order);
    gate.open();
  }
}

// A cold completion waits for one wake, not for the poller's and then the worker's. A standby that
// the machine has once let come too late sleeps plainly the next time: hence the tries.
TEST(Standby, TheWorkerWakesTogetherWithThePollerThatHasFedIt) {
  constexpr std::chrono::milliseconds kStall{10};
  constexpr std::uint64_t kTries = 40;
  DispatcherConfig config = small_config(1);
  config.stall_threshold = kStall;
  auto dispatcher = start(config);
  auto source = std::make_shared<SyntheticSource>(16);
  std::atomic<bool> hold{false};
  std::atomic<bool> held{false};
  source->set_hook([&](SyntheticSource::Point point) {
    if (point != SyntheticSource::Point::before_poll || !hold) return;
    held = true;
    hold.wait(true);
  });
  std::atomic<std::uint64_t> handled{0};
  ASSERT_TRUE(dispatcher
                  ->attach(source, {.order = Order::none},
                           [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                             handled += batch.size();
                           })
                  .ok());
  ASSERT_TRUE(source->complete(1, 0));
  ASSERT_TRUE(eventually([&] { return handled == 1; }));
  bool together = false;
  for (std::uint64_t i = 1; !together && i <= kTries; ++i) {
    await_doze(*dispatcher, kStall);
    const auto before = dispatcher->counters();
    held = false;
    hold = true;
    ASSERT_TRUE(source->complete(1, i));
    ASSERT_TRUE(eventually([&] { return held.load(); })) << "the poller does not wake";
    // It stands before its poll: nothing has been published yet.
    const auto worker_is_back = [&] {
      return dispatcher->counters().workers[0].parks > before.workers[0].parks;
    };
    together = dispatcher->counters().pollers[0].pre_wakes == before.pollers[0].pre_wakes &&
               eventually(worker_is_back, std::chrono::seconds(1));
    EXPECT_EQ(handled, i);
    hold = false;
    hold.notify_all();
    ASSERT_TRUE(eventually([&] { return handled == i + 1; }));
  }
  EXPECT_TRUE(together) << "in " << kTries << " tries";
}

}  // namespace
}  // namespace sluice::testing
