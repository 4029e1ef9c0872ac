// SPDX-License-Identifier: BSD-3-Clause
// Adaptive pollers and workers; what they have in common with mode event is in waiting_test.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "sluice/topology/cpus.hpp"
#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::testing {
namespace {

using Point = SyntheticSource::Point;
using std::chrono::microseconds;

/// Host-driven, stepped by this thread, under a clock that only the test moves.
class Adaptive : public ::testing::Test {
 protected:
  Adaptive() {
    config_ = small_config(1, WaitMode::adaptive, Drive::host);
    config_.pollers[0].hot_rounds = 4;
    config_.clock = [this] { return now_; };
  }
  void begin() { dispatcher_ = start(config_); }
  std::shared_ptr<SyntheticSource> attach(Order order = Order::inlined) {
    auto source = std::make_shared<SyntheticSource>();
    auto handle =
        dispatcher_->attach(source, {.order = order, .single_connection = true},
                            [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                              handled_ += batch.size();
                            });
    EXPECT_TRUE(handle.ok());
    return source;
  }
  Runnable& poller() { return dispatcher_->poller(0); }
  PollerCounters count() { return dispatcher_->counters().pollers[0]; }
  /// A round, then the question whether to sleep; each takes a microsecond.
  bool round_then_sleep() {
    now_ += microseconds(1);
    return poller().run_once() == 0 && poller().prepare_to_wait();
  }
  /// How long it spins before it would sleep.
  microseconds spin() {
    const auto began = now_;
    for (int i = 0; i < 100'000; ++i) {
      if (round_then_sleep()) return std::chrono::duration_cast<microseconds>(now_ - began);
    }
    ADD_FAILURE() << "it never sleeps";
    return {};
  }
  /// Completions that far apart; it spins or sleeps as it likes.
  void feed(SyntheticSource& source, int many, microseconds gap) {
    for (int i = 0; i < many; ++i) {
      const auto due = now_ + gap;
      bool asleep = false;
      while (now_ < due && !asleep) asleep = round_then_sleep();
      if (asleep) now_ = std::max(now_, due + microseconds(25));
      ASSERT_TRUE(source.complete(1, 1));
      if (asleep) poller().finish_wait();
      const auto before = handled_;
      for (int round = 0; round < 50 && handled_ == before; ++round) poller().run_once();
      ASSERT_EQ(handled_, before + 1);
    }
  }

  std::chrono::steady_clock::time_point now_{std::chrono::seconds(1)};
  DispatcherConfig config_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::uint64_t handled_ = 0;
};

TEST_F(Adaptive, ShortGapsAreSpunThroughAndLongOnesSlept) {
  begin();
  auto source = attach();
  feed(*source, 300, microseconds(8));
  const auto before = count();
  feed(*source, 100, microseconds(8));
  EXPECT_EQ(count().sleeps, before.sleeps) << "a wake is dearer than the gap";
  EXPECT_EQ(count().turned_cold, before.turned_cold) << "its last hot source stays hot";
  EXPECT_GE(count().spins_found, before.spins_found + 100);
  feed(*source, 400, microseconds(2000));
  const auto later = count();
  feed(*source, 100, microseconds(2000));
  EXPECT_EQ(count().sleeps, later.sleeps + 100);
  EXPECT_LT(count().spun_ns - later.spun_ns, 100U * 5000U) << "it sleeps nearly at once";
}

TEST_F(Adaptive, WhenTheBudgetIsOverAllTurnColdAndItSleeps) {
  begin();
  std::vector<std::shared_ptr<SyntheticSource>> sources;
  for (int i = 0; i < 5; ++i) sources.push_back(attach());
  poller().run_once();
  EXPECT_EQ(count().hot_sources, 5u);
  (void)spin();
  poller().finish_wait();
  EXPECT_EQ(count().turned_cold, 5u);
  EXPECT_EQ(count().sleeps, 1u);
}

// A round costs O(hot): what brings nothing beside others that do turns cold as in mode event.
TEST_F(Adaptive, ASourceThatIsEmptyWhileOthersAreHotTurnsCold) {
  begin();
  auto busy = attach(), quiet = attach();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(busy->complete(1, 1));
    now_ += microseconds(1);
    EXPECT_GT(poller().run_once(), 0u);
  }
  EXPECT_EQ(count().hot_sources, 1u);
  EXPECT_EQ(count().turned_cold, 1u);
  // And is seen nevertheless.
  ASSERT_TRUE(quiet->complete(1, 1));
  const auto before = handled_;
  EXPECT_TRUE(eventually([&] {
    poller().run_once();  // looks at the cold ones now and then, by a clock of its own
    return handled_ == before + 1;
  }));
}

TEST_F(Adaptive, EmptyRoundsOfAllCoolNobodyWhileTheBudgetLasts) {
  begin();
  auto source = attach();
  feed(*source, 300, microseconds(8));
  const auto before = count();
  for (int i = 0; i < 100; ++i) {
    poller().run_once();  // far more than hot_rounds, in no time
    EXPECT_FALSE(poller().prepare_to_wait());
  }
  EXPECT_EQ(count().turned_cold, before.turned_cold);
}

// S2: neither work nor a sample.
TEST_F(Adaptive, AStaleWakeIsNeitherWorkNorASample) {
  begin();
  auto source = attach();
  feed(*source, 300, microseconds(8));
  (void)spin();
  const auto before = count();
  for (int i = 0; i < 50; ++i) {
    now_ += microseconds(500);
    source->make_stale_wake();
    ASSERT_TRUE(readable(poller().wait_fd()));
    poller().finish_wait();
    EXPECT_LE(spin(), microseconds(4)) << "the budget of this gap is used up";
  }
  poller().finish_wait();
  EXPECT_EQ(count().empty_wakes, before.empty_wakes + 50);
  EXPECT_EQ(count().spin_limit_ns, before.spin_limit_ns);
  EXPECT_EQ(count().spins_found, before.spins_found);
}

TEST_F(Adaptive, ACpuCapOfNothingNeverSpins) {
  config_.pollers[0].cpu_cap = 0;
  begin();
  auto source = attach();
  feed(*source, 100, microseconds(8));
  EXPECT_LE(spin(), microseconds(2));
  EXPECT_EQ(count().spins_found, 0u);
}

TEST_F(Adaptive, ALatencyTargetMakesItSpinThroughGapsThatItWouldSleep) {
  const auto sleeps = [&](microseconds target, microseconds gap) {
    config_.pollers[0].latency_target = target;
    begin();
    auto source = attach();
    feed(*source, 600, gap);
    const auto before = count().sleeps;
    feed(*source, 200, gap);
    return count().sleeps - before;
  };
  // What the system calls on the way to sleep take is measured by the real clock: on a slow machine
  // a gap must be long for a sleep to be the cheaper by far.
  EXPECT_GT(sleeps(microseconds(0), microseconds(5000)), 150u) << "of 200";
  EXPECT_LT(sleeps(microseconds(5), microseconds(100)), 60u) << "of 25 us each";
}

// --- pre-waking

/// A poller and a worker, both asleep, and a completion: who is woken when.
class PreWake : public ::testing::TestWithParam<WaitMode> {
 protected:
  PreWake() {
    config_ = small_config(1, GetParam(), Drive::host);
    config_.pollers[0].hot_rounds = 1;
    config_.pools.push_back(config_.pools[0]);
    config_.pools[1].name = "other";
    dispatcher_ = start(config_);
  }
  std::shared_ptr<SyntheticSource> attach(Order order) {
    auto source = std::make_shared<SyntheticSource>();
    auto handle =
        dispatcher_->attach(source, {.order = order, .single_connection = true},
                            [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                              handled_ += batch.size();
                            });
    EXPECT_TRUE(handle.ok());
    return source;
  }
  void all_asleep() {
    ASSERT_TRUE(eventually([&] {
      return dispatcher_->poller(0).run_once() == 0 && dispatcher_->poller(0).prepare_to_wait();
    }));
    for (std::uint32_t i = 0; i < 2; ++i) {
      (void)dispatcher_->worker(i).run_once();
      ASSERT_TRUE(dispatcher_->worker(i).prepare_to_wait());
    }
  }
  bool is_woken(std::uint32_t worker) { return readable(dispatcher_->worker(worker).wait_fd()); }
  PollerCounters count() { return dispatcher_->counters().pollers[0]; }

  DispatcherConfig config_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::uint64_t handled_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Modes, PreWake, ::testing::Values(WaitMode::event, WaitMode::adaptive),
                         [](const auto& param) { return std::string(to_string(param.param)); });

TEST_P(PreWake, AWorkerIsWokenBeforeTheColdSourceIsPolled) {
  for (const Order order : {Order::none, Order::per_connection}) {
    auto source = attach(order);
    for (int i = 0; i < 5; ++i) {
      all_asleep();
      const auto before = count();
      ASSERT_TRUE(source->complete(1, 1));
      bool at_the_poll = false;
      std::optional<std::uint64_t> batches_then;
      source->set_hook([&](Point point) {
        if (point != Point::before_poll || batches_then) return;
        at_the_poll = is_woken(0);
        batches_then = count().batches;
      });
      dispatcher_->poller(0).finish_wait();
      EXPECT_FALSE(is_woken(0));
      EXPECT_GT(dispatcher_->poller(0).run_once(), 0u);
      source->set_hook({});
      EXPECT_TRUE(at_the_poll) << "it is woken only after the poll";
      EXPECT_EQ(batches_then, before.batches);
      EXPECT_EQ(count().pre_wakes, before.pre_wakes + 1);
      EXPECT_FALSE(is_woken(1)) << "of a pool that this source does not use";
      // And finds what it was woken for.
      const auto handled = handled_;
      dispatcher_->worker(0).finish_wait();
      dispatcher_->worker(1).finish_wait();
      EXPECT_GT(dispatcher_->worker(0).run_once(), 0u);
      EXPECT_EQ(handled_, handled + 1);
    }
  }
}

TEST_P(PreWake, AnInlinedSourceAndTheMailboxWakeNoWorker) {
  auto source = attach(Order::inlined);
  all_asleep();
  ASSERT_TRUE(source->complete(1, 1));
  dispatcher_->poller(0).finish_wait();
  EXPECT_GT(dispatcher_->poller(0).run_once(), 0u);
  EXPECT_EQ(count().pre_wakes, 0u);
  EXPECT_FALSE(is_woken(0) || is_woken(1));
  for (std::uint32_t i = 0; i < 2; ++i) dispatcher_->worker(i).finish_wait();
  all_asleep();
  auto other = attach(Order::none);  // a command
  dispatcher_->poller(0).finish_wait();
  EXPECT_GT(dispatcher_->poller(0).run_once(), 0u);
  EXPECT_EQ(count().pre_wakes, 0u);
  EXPECT_FALSE(is_woken(0) || is_woken(1));
  for (std::uint32_t i = 0; i < 2; ++i) dispatcher_->worker(i).finish_wait();
}

TEST_P(PreWake, AWakeForNothingLosesNoLaterWake) {
  auto source = attach(Order::none);
  for (int i = 0; i < 10; ++i) {
    all_asleep();
    source->make_stale_wake();
    dispatcher_->poller(0).finish_wait();
    dispatcher_->poller(0).run_once();
    EXPECT_TRUE(is_woken(0));
    dispatcher_->worker(0).finish_wait();
    dispatcher_->worker(1).finish_wait();
    EXPECT_EQ(dispatcher_->worker(0).run_once(), 0u);
    ASSERT_TRUE(dispatcher_->worker(0).prepare_to_wait());
    ASSERT_TRUE(source->complete(1, 1));
    for (int round = 0; round < 50 && !is_woken(0); ++round) dispatcher_->poller(0).run_once();
    EXPECT_TRUE(is_woken(0));
    dispatcher_->worker(0).finish_wait();
    EXPECT_GT(dispatcher_->worker(0).run_once(), 0u);
  }
  EXPECT_EQ(handled_, 10u);
}

// --- threads

TEST(AdaptiveThreads, TheCostOfAWakeIsLearntFromTheMachine) {
  auto dispatcher = start(small_config(1, WaitMode::adaptive));
  auto source = std::make_shared<SyntheticSource>();
  std::atomic<std::uint64_t> handled{0};
  auto handle = dispatcher->attach(
      source, {.order = Order::inlined},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
  ASSERT_TRUE(handle.ok());
  std::uint64_t made = 0;
  EXPECT_TRUE(eventually([&] {
    if (source->complete(1, made)) ++made;
    const auto cost = dispatcher->counters().pollers[0].wake_cost_ns;
    return cost > 0 && cost != 30'000;  // the guess
  }));
  EXPECT_TRUE(eventually([&] { return handled == made; }));
}

// S6: more busy threads than CPUs: an adaptive poller gives way, and so does a worker.
TEST(AdaptiveThreads, OnASharedCpuTheSpinIsShortAndTheWorkIsDone) {
  const auto allowed = topology::allowed_cpus();
  ASSERT_TRUE(allowed.ok());
  const unsigned cpu = *allowed->begin();
  DispatcherConfig config = small_config(2, WaitMode::adaptive);
  config.pollers[0].cpus = {cpu};
  config.pools[0].cpus = {cpu};
  config.pools[0].spin = SpinMode::adaptive;
  auto dispatcher = start(config);
  auto source = std::make_shared<SyntheticSource>();
  std::atomic<std::uint64_t> handled{0};
  auto handle = dispatcher->attach(
      source, {.single_connection = true},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
  ASSERT_TRUE(handle.ok());
  for (std::uint64_t i = 0; i < 2000; ++i) {
    complete_when_room(*source, 1, i);
    if (i % 16 == 0) {
      ASSERT_TRUE(eventually([&] { return handled == i + 1; })) << i;
    }
    const auto counters = dispatcher->counters().pollers[0];
    // Written one after the other, and the cost may move in between.
    ASSERT_LE(counters.spin_limit_ns, counters.wake_cost_ns / 4);
  }
  EXPECT_TRUE(eventually([&] { return handled == 2000; }));
}

}  // namespace
}  // namespace sluice::testing
