// SPDX-License-Identifier: BSD-3-Clause
#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <vector>

#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::testing {
namespace {

using Point = SyntheticSource::Point;

/// A host-driven dispatcher of one poller and one worker, stepped by this thread.
class Waiting : public ::testing::TestWithParam<WaitMode> {
 protected:
  explicit Waiting(std::uint32_t hot_rounds = 4) {
    config_ = small_config(1, GetParam(), Drive::host);
    config_.clock = [this] {
      now_ += std::chrono::microseconds(1);
      return now_;
    };
    config_.pollers[0].hot_rounds = hot_rounds;
  }
  void SetUp() override { begin(); }
  void begin(DispatcherCallbacks callbacks = {}) {
    dispatcher_ = start(config_, std::move(callbacks));
  }

  std::shared_ptr<SourceHandle> attach(const std::shared_ptr<SyntheticSource>& source,
                                       Order order = Order::inlined) {
    auto handle = dispatcher_->attach(
        source, {.order = order}, [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
          handled_ += batch.size();
        });
    EXPECT_TRUE(handle.ok());
    return handle.ok() ? *handle : nullptr;
  }
  Runnable& poller() { return dispatcher_->poller(0); }
  PollerCounters count() { return dispatcher_->counters().pollers[0]; }

  /// Runs the poller until it may sleep; says whether it came to that.
  bool run_to_sleep(int rounds_max = 2000) {
    for (int i = 0; i < rounds_max; ++i) {
      if (poller().run_once() > 0) continue;
      if (poller().prepare_to_wait()) return true;
    }
    return false;
  }
  /// The same, and no round found work.
  bool run_to_sleep_without_work(int rounds_max = 2000) {
    for (int i = 0; i < rounds_max; ++i) {
      if (poller().run_once() > 0) return false;
      if (poller().prepare_to_wait()) return true;
    }
    return false;
  }
  /// What a host does: run, sleep on the descriptor if allowed, until nothing happens any more.
  /// Everything that is pending must have been delivered by then.
  void run_and_sleep_until_quiet() {
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(run_to_sleep());
      const bool woken = readable(poller().wait_fd());
      poller().finish_wait();
      if (!woken) return;
    }
    FAIL() << "never quiet";
  }

  std::chrono::steady_clock::time_point now_{std::chrono::seconds(1)};  ///< a microsecond per look
  DispatcherConfig config_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::uint64_t handled_ = 0;
};

std::string wait_name(const ::testing::TestParamInfo<WaitMode>& info) {
  return to_string(info.param);
}
const auto kModesThatSleep = ::testing::Values(WaitMode::event, WaitMode::adaptive);
INSTANTIATE_TEST_SUITE_P(Modes, Waiting, kModesThatSleep, wait_name);

/// With threads of its own. Where pollers are adaptive, workers are, too.
class WaitingWithThreads : public ::testing::TestWithParam<WaitMode> {
 protected:
  static DispatcherConfig threads_config(std::uint32_t workers) {
    DispatcherConfig config = small_config(workers, GetParam());
    if (GetParam() == WaitMode::adaptive) config.pools[0].spin = SpinMode::adaptive;
    return config;
  }
};
class WaitingThreads : public WaitingWithThreads {};
class WaitingFaults : public WaitingWithThreads {};
INSTANTIATE_TEST_SUITE_P(Modes, WaitingThreads, kModesThatSleep, wait_name);
INSTANTIATE_TEST_SUITE_P(Modes, WaitingFaults, kModesThatSleep, wait_name);

// W1: two completions arrive for one event; both are drained; the next wait finds none.
TEST_P(Waiting, AnEmptyWakeIsNormalAndCounted) {
  auto source = std::make_shared<SyntheticSource>();
  attach(source);
  run_and_sleep_until_quiet();
  // Readable, and nothing there: as if somebody had polled it in between.
  source->make_stale_wake();
  ASSERT_TRUE(readable(poller().wait_fd()));
  const auto before = count();
  EXPECT_TRUE(run_to_sleep());
  EXPECT_EQ(count().empty_wakes, before.empty_wakes + 1);
  EXPECT_EQ(count().failed_sources, 0u);
  EXPECT_FALSE(readable(poller().wait_fd()));
  poller().finish_wait();
  // It goes on as if nothing had been.
  ASSERT_TRUE(source->complete(1, 1));
  ASSERT_TRUE(source->complete(1, 2));
  run_and_sleep_until_quiet();
  EXPECT_EQ(handled_, 2u);
  EXPECT_TRUE(source->armed_or_signalled());
}

// W1 by the other way: both completions of one event are taken while the source is hot; the event
// is still queued when it turns cold.
TEST_P(Waiting, AnEventWhoseCompletionsAreGoneIsConsumedBeforeSleeping) {
  auto source = std::make_shared<SyntheticSource>();
  attach(source);
  poller().run_once();
  ASSERT_TRUE(source->complete(1, 1));  // hot: polled, its event stays
  ASSERT_TRUE(source->complete(1, 2));
  run_and_sleep_until_quiet();
  EXPECT_EQ(handled_, 2u);
  EXPECT_EQ(count().events, 1u);
  EXPECT_FALSE(readable(source->wait_fd())) << "it sleeps on an event it could have taken";
}

// W2: the completion is there before the first wait.
TEST_P(Waiting, WhatCompletedBeforeTheAttachIsDelivered) {
  auto source = std::make_shared<SyntheticSource>();
  ASSERT_TRUE(source->complete(1, 1));
  ASSERT_TRUE(source->complete(1, 2));
  attach(source);
  run_and_sleep_until_quiet();
  EXPECT_EQ(handled_, 2u);
}

// W4: poll budget used up (32 of 100 taken), then the loop sleeps.
TEST_P(Waiting, ABurstBeyondTheBatchIsDeliveredWithoutASleepInBetween) {
  auto source = std::make_shared<SyntheticSource>();
  attach(source);
  run_and_sleep_until_quiet();
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(source->complete(1, i));
  for (int i = 0; handled_ < 100 && i < 100; ++i) {
    poller().run_once();
    if (handled_ < 100 && handled_ > 0) {
      ASSERT_FALSE(poller().prepare_to_wait())
          << "it would sleep with " << handled_ << " of 100 taken";
    }
  }
  EXPECT_EQ(handled_, 100u);
}

TEST_P(Waiting, ABurstBeyondTheBatchWithNoHotRoundsIsDeliveredToo) {
  config_.pollers[0].hot_rounds = 0;
  begin();
  auto source = std::make_shared<SyntheticSource>();
  attach(source);
  for (int burst = 1; burst <= 20; ++burst) {
    for (std::uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(source->complete(1, i));
    run_and_sleep_until_quiet();
    ASSERT_EQ(handled_, 100U * static_cast<unsigned>(burst));
  }
}

// W5: no window in which a completion can slip in unseen: one arrives at each point of the way to
// sleep in turn, and nothing comes after it that could wake anybody.
TEST_P(Waiting, ACompletionInAnyWindowOfTurningColdIsDelivered) {
  for (const Order order : {Order::inlined, Order::none, Order::per_connection}) {
    bool reached = true;
    for (int window = 0; reached && window < 200; ++window) {
      SCOPED_TRACE(std::string(to_string(order)) + ", window " + std::to_string(window));
      config_.pollers[0].hot_rounds = 2;
      begin();
      auto source = std::make_shared<SyntheticSource>();
      int passed = 0;
      reached = false;
      source->set_hook([&](Point) {
        if (passed++ == window) {
          reached = true;
          ASSERT_TRUE(source->complete(1, 1));
        }
      });
      handled_ = 0;
      auto handle =
          dispatcher_->attach(source, {.order = order, .single_connection = true},
                              [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                handled_ += batch.size();
                              });
      ASSERT_TRUE(handle.ok());
      run_and_sleep_until_quiet();
      while (dispatcher_->worker(0).run_once() > 0) {
      }
      source->set_hook({});
      ASSERT_EQ(handled_, reached ? 1u : 0u) << "asleep, and a completion was not seen";
    }
    EXPECT_FALSE(reached) << "more windows than were tried";
  }
}

// W5 with threads: completions one by one, each after the last was handled, at ever different
// distances from the poller's way to sleep.
TEST_P(WaitingThreads, CompletionsInAnyWindowAreDeliveredUnderHammering) {
  for (const std::uint32_t hot_rounds : {0U, 1U, 64U}) {
    DispatcherConfig config = threads_config(1);
    config.pollers[0].hot_rounds = hot_rounds;
    config.pools[0].spin_rounds = hot_rounds;
    auto dispatcher = start(config);
    auto source = std::make_shared<SyntheticSource>();
    std::atomic<std::uint64_t> handled{0};
    auto handle = dispatcher->attach(
        source, {.single_connection = true},
        [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
    ASSERT_TRUE(handle.ok());
    for (std::uint64_t i = 0; i < 3000; ++i) {
      ASSERT_TRUE(source->complete(1, i));
      for (std::uint64_t spin = 0; spin < i % 97; ++spin) cpu_relax();
      ASSERT_TRUE(eventually([&] { return handled == i + 1; }))
          << "completion " << i << " was not seen, " << source->pending() << " pending";
    }
    EXPECT_GT(dispatcher->counters().pollers[0].sleeps, 0u);
  }
}

// W7: a signal interrupts the wait.
TEST_P(WaitingThreads, SignalsInterruptEveryWaitAndNothingIsLost) {
  struct sigaction quiet {};
  quiet.sa_handler = [](int) {};  // no SA_RESTART: the waits do end
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGUSR1, &quiet, &before), 0);
  DispatcherConfig config = threads_config(2);
  config.pollers[0].hot_rounds = 1;
  config.pools[0].spin_rounds = 1;
  auto dispatcher = start(config);
  auto source = std::make_shared<SyntheticSource>();
  std::atomic<std::uint64_t> handled{0};
  auto handle = dispatcher->attach(
      source, {.single_connection = true},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
  ASSERT_TRUE(handle.ok());
  std::atomic<bool> end{false};
  std::thread pest([&] {
    const long self = ::syscall(SYS_gettid);
    while (!end) {
      DIR* const tasks = ::opendir("/proc/self/task");
      while (const dirent* const task = ::readdir(tasks)) {
        const long id = std::strtol(task->d_name, nullptr, 10);
        if (id > 0 && id != self) ::syscall(SYS_tgkill, ::getpid(), id, SIGUSR1);
      }
      ::closedir(tasks);
    }
  });
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_TRUE(source->complete(1, i));
    EXPECT_TRUE(eventually([&] { return handled == i + 1; })) << "completion " << i;
    if (HasFailure()) break;
  }
  auto report = (*handle)->detach(kGenerous);
  EXPECT_TRUE(report.ok() && report->clean);
  EXPECT_TRUE(dispatcher->stop(kGenerous).ok());
  end = true;
  pest.join();
  ::sigaction(SIGUSR1, &before, nullptr);
}

// W8: re-arming fails.
TEST_P(WaitingFaults, AFailedRearmIsReportedAndTheSourcePolledForGood) {
  std::atomic<int> reports{0};
  std::atomic<SourceId> about{SourceId::none};
  DispatcherCallbacks callbacks;
  callbacks.on_source_failed = [&](SourceId id, const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::device_failed);
    EXPECT_NE(status.message().find("lame"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("rearm_failed"), std::string::npos) << status.message();
    about = id;
    ++reports;
  };
  DispatcherConfig config = threads_config(1);
  config.pollers[0].hot_rounds = 2;
  auto dispatcher = start(config, callbacks);
  auto source = std::make_shared<SyntheticSource>(64, "lame");
  std::atomic<std::uint64_t> handled{0};
  auto handle = dispatcher->attach(
      source, {.order = Order::none},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
  ASSERT_TRUE(handle.ok());
  ASSERT_TRUE(eventually([&] { return dispatcher->counters().pollers[0].turned_cold > 0; }));
  source->fail_next_rearm();
  for (std::uint64_t i = 0; i < 500; ++i) {
    complete_when_room(*source, 1, i);
    ASSERT_TRUE(eventually([&] { return handled == i + 1; }))
        << "completion " << i << " after a failed re-arm";
  }
  EXPECT_TRUE(eventually([&] { return reports == 1; }));
  EXPECT_EQ(about, (*handle)->id());
  const auto counters = dispatcher->counters().pollers[0];
  EXPECT_EQ(counters.failed_sources, 1u);
  EXPECT_EQ(counters.hot_sources, 1u) << "it must never be slept on";
  auto report = (*handle)->detach(kGenerous);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->clean);
}

TEST_P(WaitingFaults, AFailedPollIsReportedAndTheSourceLeftAlone) {
  std::atomic<int> reports{0};
  DispatcherCallbacks callbacks;
  callbacks.on_source_failed = [&](SourceId, const Status& status) {
    EXPECT_NE(status.message().find("poll_failed"), std::string::npos) << status.message();
    ++reports;
  };
  auto dispatcher = start(threads_config(1), callbacks);
  auto broken = std::make_shared<SyntheticSource>(), sound = std::make_shared<SyntheticSource>();
  std::atomic<std::uint64_t> handled{0};
  const auto handler = [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
    handled += batch.size();
  };
  auto a = dispatcher->attach(broken, {.order = Order::inlined}, handler);
  auto b = dispatcher->attach(sound, {.order = Order::inlined}, handler);
  ASSERT_TRUE(a.ok() && b.ok());
  broken->fail_next_poll(SourceFault::poll_failed);
  ASSERT_TRUE(broken->complete(1, 1));
  EXPECT_TRUE(eventually([&] { return reports == 1; }));
  ASSERT_TRUE(broken->complete(1, 2));
  ASSERT_TRUE(sound->complete(1, 3));
  EXPECT_TRUE(eventually([&] { return handled == 1; }));
  EXPECT_EQ(broken->pending(), 2u);
  EXPECT_EQ(dispatcher->counters().pollers[0].failed_sources, 1u);
  auto report = (*a)->detach(kGenerous);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->clean);
  EXPECT_EQ(reports, 1);
}

// W11: an inner call on another thread eats the completion: one owner polls.
TEST(WaitingOwner, ASecondAttachOfOneSourceIsRefused) {
  auto first = start(small_config(1)), second = start(small_config(1));
  auto source = std::make_shared<SyntheticSource>(64, "contested");
  const auto ignore = [](auto, const auto&) noexcept {};
  auto mine = first->attach(source, {}, ignore);
  ASSERT_TRUE(mine.ok());
  for (Dispatcher* dispatcher : {first.get(), second.get()}) {
    auto refused = dispatcher->attach(source, {}, ignore);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::already_owned);
    EXPECT_NE(refused.status().message().find("contested"), std::string::npos);
  }
  ASSERT_TRUE((*mine)->detach(kGenerous).ok());
  EXPECT_TRUE(second->attach(source, {}, ignore).ok());
}

// W9: shutdown while every poller sleeps and no completion will ever come.
TEST_P(WaitingThreads, StopReturnsAtOnceWhileEverythingSleeps) {
  for (int i = 0; i < 50; ++i) {
    DispatcherConfig config = threads_config(4);
    config.pollers[0].count = 3;
    config.pollers[0].hot_rounds = 1;
    config.pools[0].spin_rounds = 1;
    config.stall_threshold = std::chrono::milliseconds(0);  // nothing wakes the control by itself
    auto dispatcher = start(config);
    ASSERT_TRUE(eventually([&] {
      const auto counters = dispatcher->counters();
      return std::all_of(counters.pollers.begin(), counters.pollers.end(),
                         [](auto& p) { return p.sleeps > 0; }) &&
             std::all_of(counters.workers.begin(), counters.workers.end(),
                         [](auto& w) { return w.parks > 0; });
    }));
    const auto begin = std::chrono::steady_clock::now();
    const Status status = dispatcher->stop(kGenerous);
    EXPECT_TRUE(status.ok()) << status.to_string();
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << "round " << i;
  }
}

// W9 without waiting for the sleep first: the stop meets the threads on their way there.
TEST_P(WaitingThreads, TwoHundredStartsAndStopsEndAtOnce) {
  for (int i = 0; i < 200; ++i) {
    DispatcherConfig config = threads_config(2);
    config.pollers[0].hot_rounds = 1;
    config.pools[0].spin_rounds = static_cast<std::uint32_t>(i % 3);
    config.stall_threshold = std::chrono::milliseconds(0);
    auto dispatcher = start(config);
    auto source = std::make_shared<SyntheticSource>();
    if (i % 2 == 0) {
      ASSERT_TRUE(dispatcher->attach(source, {}, [](auto, const auto&) noexcept {}).ok());
    }
    for (int spin = 0; spin < i * 50; ++spin) cpu_relax();
    const auto begin = std::chrono::steady_clock::now();
    const Status status = dispatcher->stop(kGenerous);
    EXPECT_TRUE(status.ok()) << status.to_string();
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << "cycle " << i;
    EXPECT_TRUE(dispatcher->stop(kGenerous).ok());
  }
}

// S2: something counts as work that is none (a stale event); idling never starts.
TEST_P(Waiting, StaleWakesAreNoWorkAndThePollerGoesBackToSleep) {
  std::vector<std::shared_ptr<SyntheticSource>> sources;
  for (int i = 0; i < 5; ++i) attach(sources.emplace_back(std::make_shared<SyntheticSource>()));
  run_and_sleep_until_quiet();
  for (int wake = 0; wake < 20; ++wake) {
    const auto before = count();
    for (const auto& source : sources) source->make_stale_wake();
    ASSERT_TRUE(run_to_sleep_without_work());
    EXPECT_FALSE(readable(poller().wait_fd()));
    poller().finish_wait();
    EXPECT_EQ(count().completions, before.completions);
    EXPECT_EQ(count().batches, before.batches);
  }
}

// S3: under steady traffic the idle branch never runs, and with it no housekeeping.
TEST_P(WaitingThreads, CommandsAndControlRunUnderSteadyTraffic) {
  for (const Order order : {Order::inlined, Order::none, Order::per_connection}) {
    SCOPED_TRACE(to_string(order));
    std::atomic<bool> end{false};
    auto dispatcher = start(threads_config(1));
    auto busy = std::make_shared<SyntheticSource>(512);
    // The source refills itself: the poller is never without work.
    SyntheticSource* const self = busy.get();
    busy->set_hook([self, &end](Point point) {
      while (point == Point::before_poll && !end && self->pending() < 64 && self->complete(1, 0)) {
      }
    });
    std::atomic<std::uint64_t> handled{0};
    auto handle = dispatcher->attach(
        busy, {.order = order, .single_connection = true},
        [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
    ASSERT_TRUE(handle.ok());
    ASSERT_TRUE(eventually([&] { return handled > 1000; }));
    for (int i = 0; i < 20; ++i) {
      auto other = std::make_shared<SyntheticSource>();
      std::atomic<bool> seen{false};
      auto attached = dispatcher->attach(
          other, {.order = Order::inlined},
          [&](std::span<const ibv_wc>, const BatchInfo&) noexcept { seen = true; });
      ASSERT_TRUE(attached.ok());
      ASSERT_TRUE(other->complete(1, 1));
      EXPECT_TRUE(eventually([&] { return seen.load(); }));
      auto report = (*attached)->detach(kGenerous);
      ASSERT_TRUE(report.ok());
      EXPECT_TRUE(report->clean);
    }
    // A cold source is looked at, too.
    auto report = (*handle)->detach(kGenerous);
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(report->clean) << report->to_string();
    end = true;
  }
}

TEST_P(WaitingThreads, AColdSourceIsSeenUnderAnothersSteadyTraffic) {
  std::atomic<bool> end{false};
  auto dispatcher = start(threads_config(1));
  auto busy = std::make_shared<SyntheticSource>(512), cold = std::make_shared<SyntheticSource>();
  SyntheticSource* const self = busy.get();
  busy->set_hook([self, &end](Point point) {
    while (point == Point::before_poll && !end && self->pending() < 64 && self->complete(1, 0)) {
    }
  });
  std::atomic<std::uint64_t> seen{0};
  auto b = dispatcher->attach(
      cold, {.order = Order::inlined},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { seen += batch.size(); });
  ASSERT_TRUE(b.ok());
  ASSERT_TRUE(eventually([&] { return dispatcher->counters().pollers[0].turned_cold == 1; }));
  auto a = dispatcher->attach(busy, {.order = Order::inlined}, [](auto, const auto&) noexcept {});
  ASSERT_TRUE(a.ok());
  ASSERT_TRUE(eventually([&] { return dispatcher->counters().pollers[0].completions > 1000; }));
  ASSERT_TRUE(cold->complete(1, 1));
  EXPECT_TRUE(eventually([&] { return seen == 1; }));
  end = true;
}

// S5: one part that cannot sleep keeps its poller awake, and it shows.
TEST_P(Waiting, ASourceThatCannotBeWaitedForKeepsItsPollerAwake) {
  auto source = std::make_shared<SyntheticSource>();
  source->forbid_waiting();
  auto handle = attach(source);
  for (int i = 0; i < 1000; ++i) {
    poller().run_once();
    ASSERT_FALSE(poller().prepare_to_wait()) << "asleep on a source that cannot be waited for";
  }
  EXPECT_EQ(count().hot_sources, 1u);
  EXPECT_EQ(count().sleeps, 0u);
  ASSERT_TRUE(source->complete(1, 1));
  poller().run_once();
  EXPECT_EQ(handled_, 1u);
  EXPECT_TRUE(detach_by_running(*dispatcher_, *handle).clean);
  EXPECT_TRUE(run_to_sleep());
  poller().finish_wait();
}

// R2: a handler blocks inside the poller.
TEST(Stalls, ABlockedInlineHandlerIsReportedAndCounted) {
  std::atomic<int> inlined{0}, on_worker{0};
  std::atomic<SourceId> about{SourceId::none};
  std::atomic<std::int64_t> running_ms{0};
  DispatcherCallbacks callbacks;
  callbacks.on_stall = [&](SourceId id, bool on_poller, std::chrono::nanoseconds running) {
    about = id;
    running_ms = std::chrono::duration_cast<std::chrono::milliseconds>(running).count();
    ++(on_poller ? inlined : on_worker);
  };
  DispatcherConfig config = small_config(1);
  config.stall_threshold = std::chrono::milliseconds(20);
  auto dispatcher = start(config, callbacks);
  for (const Order order : {Order::inlined, Order::none}) {
    auto source = std::make_shared<SyntheticSource>();
    Gate gate;
    auto handle = dispatcher->attach(
        source, {.order = order},
        [&](std::span<const ibv_wc>, const BatchInfo&) noexcept { gate.pass(); });
    ASSERT_TRUE(handle.ok());
    ASSERT_TRUE(source->complete(1, 1));
    auto& reported = order == Order::inlined ? inlined : on_worker;
    EXPECT_TRUE(eventually([&] { return reported == 1; }));
    EXPECT_EQ(about, (*handle)->id());
    EXPECT_GE(running_ms, 20);
    gate.open();
    ASSERT_TRUE((*handle)->detach(kGenerous).ok());
    EXPECT_EQ(reported, 1) << "one stall, one report";
  }
  EXPECT_EQ(dispatcher->counters().pollers[0].inline_stalls, 1u);
  EXPECT_EQ(dispatcher->counters().workers[0].stalls, 1u);
}

TEST(Stalls, QuickHandlersAreNeverReported) {
  std::atomic<int> reports{0};
  DispatcherCallbacks callbacks;
  callbacks.on_stall = [&](SourceId, bool, std::chrono::nanoseconds) { ++reports; };
  DispatcherConfig config = small_config(1);
  config.stall_threshold = std::chrono::milliseconds(2000);
  auto dispatcher = start(config, callbacks);
  auto source = std::make_shared<SyntheticSource>();
  std::atomic<std::uint64_t> handled{0};
  auto handle = dispatcher->attach(
      source, {.order = Order::inlined},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
  ASSERT_TRUE(handle.ok());
  for (std::uint64_t i = 0; i < 2000; ++i) complete_when_room(*source, 1, i);
  EXPECT_TRUE(eventually([&] { return handled == 2000; }));
  EXPECT_EQ(reports, 0);
}

// C2: an empty pool of buffers is backpressure: completions stay in the CQ, the poller sleeps
// instead of spinning, and goes on with nothing lost.
class Backpressure : public ::testing::TestWithParam<Order> {};
INSTANTIATE_TEST_SUITE_P(Orders, Backpressure,
                         ::testing::Values(Order::none, Order::per_connection),
                         [](const auto& param) { return std::string(to_string(param.param)); });

TEST_P(Backpressure, WithoutBuffersThePollerSleepsAndResumesWithNothingLost) {
  DispatcherConfig config = small_config(2);
  config.pollers[0].batch_count = 4;
  config.pollers[0].hot_rounds = 2;
  auto dispatcher = start(config);
  auto source = std::make_shared<SyntheticSource>(512);
  for (int round = 0; round < 20; ++round) {
    Gate gate;
    std::atomic<std::uint64_t> handled{0};
    auto handle = dispatcher->attach(source, {.order = GetParam(), .single_connection = true},
                                     [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                       gate.pass();
                                       handled += batch.size();
                                     });
    ASSERT_TRUE(handle.ok());
    // More than all buffers hold, one poll at a time.
    const std::uint64_t put_off_before = dispatcher->counters().pollers[0].backpressure;
    std::uint64_t made = 0;
    const auto is_full = [&] {
      if (source->complete(1, made)) {
        ++made;
        return false;
      }
      return source->pending() == 512;
    };
    ASSERT_TRUE(eventually([&] {
      for (int i = 0; i < 64; ++i) {
        if (is_full()) break;
      }
      return gate.waiting() > 0 && is_full() &&
             dispatcher->counters().pollers[0].backpressure > put_off_before;
    }));
    // It sleeps: no round is run any more.
    EXPECT_TRUE(eventually([&] {
      const auto before = dispatcher->counters().pollers[0].rounds;
      std::this_thread::sleep_for(
          std::chrono::milliseconds(20));  // a measurement, not a synchronisation
      return dispatcher->counters().pollers[0].rounds == before;
    })) << "it spins while no buffer is free";
    EXPECT_GT(source->pending(), 0u);
    gate.open();
    EXPECT_TRUE(eventually([&] { return handled == made; })) << handled << " of " << made;
    auto report = (*handle)->detach(kGenerous);
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(report->clean);
  }
}

// The same under fire: buffers go and come at every moment of the way to sleep.
TEST_P(Backpressure, BuffersComingBackAtAnyMomentWakeAStarvedPoller) {
  DispatcherConfig config = small_config(2);
  config.pollers[0].batch_count = 2;
  config.pollers[0].hot_rounds = 0;
  config.pools[0].spin_rounds = 0;
  auto dispatcher = start(config);
  auto source = std::make_shared<SyntheticSource>(4);  // four segments
  std::atomic<std::uint64_t> handled{0};
  auto handle = dispatcher->attach(source, {.order = GetParam(), .single_connection = true},
                                   [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                     for (int i = 0; i < 20; ++i) cpu_relax();
                                     handled += batch.size();
                                   });
  ASSERT_TRUE(handle.ok());
  constexpr std::uint64_t kMany = 20000;
  for (std::uint64_t i = 0; i < kMany; ++i) complete_when_room(*source, 1, i);
  EXPECT_TRUE(eventually([&] { return handled == kMany; })) << handled << " of " << kMany;
}

// A detach has to poll its source to empty, for which it needs buffers, too; and a cold source
// whose buffers are all out must not be forgotten, nor spun for.
TEST_P(Backpressure, ADetachThatWaitsForBuffersNeitherSpinsNorHangs) {
  DispatcherConfig config = small_config(2);
  config.pollers[0].batch_count = 2;
  config.pollers[0].hot_rounds = 0;
  auto dispatcher = start(config);
  auto source = std::make_shared<SyntheticSource>(2);
  Gate gate;
  std::atomic<std::uint64_t> handled{0};
  auto handle = dispatcher->attach(source, {.order = GetParam(), .single_connection = true},
                                   [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                     gate.pass();
                                     handled += batch.size();
                                   });
  ASSERT_TRUE(handle.ok());
  for (std::uint64_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(source->complete(1, i));
    ASSERT_TRUE(eventually([&] { return source->pending() == 0; }));
  }
  std::atomic<bool> detached{false};
  std::thread detacher([&] {
    auto report = (*handle)->detach(kGenerous);
    EXPECT_TRUE(report.ok() && report->clean);
    detached = true;
  });
  ASSERT_TRUE(eventually([&] { return dispatcher->counters().pollers[0].commands == 2; }));
  EXPECT_TRUE(eventually([&] {
    const auto before = dispatcher->counters().pollers[0].rounds;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a measurement
    return dispatcher->counters().pollers[0].rounds == before;
  })) << "it spins while a removal waits for buffers";
  EXPECT_FALSE(detached);
  gate.open();
  detacher.join();
  EXPECT_EQ(handled, 2u);
}

}  // namespace
}  // namespace sluice::testing
