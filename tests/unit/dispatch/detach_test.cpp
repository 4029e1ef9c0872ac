// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::testing {
namespace {

class Detach : public ::testing::TestWithParam<Order> {};
INSTANTIATE_TEST_SUITE_P(Orders, Detach,
                         ::testing::Values(Order::inlined, Order::none, Order::per_connection),
                         [](const auto& param) { return std::string(to_string(param.param)); });

AttachOptions options(Order order) {
  return {.order = order, .single_connection = true};
}

// E4: the poller keeps a pointer to a freed connection. ASan and TSan are the judges.
TEST_P(Detach, HandlerStateMayBeFreedRightAfterwards) {
  auto dispatcher = start(small_config(3));
  for (int round = 0; round < 100; ++round) {
    auto source = std::make_shared<SyntheticSource>(256);
    auto state = std::make_unique<std::vector<std::uint64_t>>(16, 0);
    auto handle = dispatcher->attach(
        source, options(GetParam()),
        [at = state.get()](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
          // Each worker its own element: nothing here is atomic.
          (*at)[info.worker == BatchInfo::kOnPoller ? 8 : info.worker] += batch.size();
        });
    ASSERT_TRUE(handle.ok());
    std::atomic<bool> end{false};
    std::thread feeder([&] {
      std::uint64_t i = 0;
      while (!end) static_cast<void>(source->complete(1, i++));
    });
    ASSERT_TRUE(eventually([&] { return source->retired() > 64; }));
    auto report = (*handle)->detach(kGenerous);
    std::uint64_t handled = 0;
    for (const auto count : *state) handled += count;  // TSan: ordered after every handler call
    state.reset();
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(report->clean) << report->to_string();
    EXPECT_EQ(report->completions_abandoned, 0u);
    const std::uint64_t retired = source->retired();
    EXPECT_EQ(handled, retired) << "retired other than once per completion";
    EXPECT_EQ(source->ownership_epoch() % 2, 0u);
    end = true;
    feeder.join();
    EXPECT_EQ(source->retired(), retired);
  }
}

TEST_P(Detach, WhatWasThereBeforeItIsHandledFirst) {
  auto dispatcher = start(small_config(2));
  for (int round = 0; round < 100; ++round) {
    auto source = std::make_shared<SyntheticSource>(128);
    std::atomic<std::uint64_t> handled{0};
    auto handle = dispatcher->attach(
        source, options(GetParam()),
        [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
    ASSERT_TRUE(handle.ok());
    for (std::uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(source->complete(1, i));
    auto report = (*handle)->detach(kGenerous);
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(handled, 100u);
    EXPECT_EQ(source->pending(), 0u);
  }
}

// E3's kind: what a handler keeps is not waited for beyond the deadline, and reported.
TEST_P(Detach, AtTheDeadlineAStuckHandlersWorkIsReportedAndQuarantined) {
  auto dispatcher = start(small_config(2));
  auto source = std::make_shared<SyntheticSource>();
  auto gate = std::make_shared<Gate>();
  std::atomic<std::uint64_t> handled{0};
  auto handle = dispatcher->attach(
      source, options(GetParam()),
      [gate, &handled](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
        gate->pass();
        handled += batch.size();
      });
  ASSERT_TRUE(handle.ok());
  std::vector<ibv_wc> three(3);
  ASSERT_TRUE(source->complete(three));
  ASSERT_TRUE(eventually([&] { return gate->waiting() == 1; }));
  const auto begin = std::chrono::steady_clock::now();
  auto report = (*handle)->detach(std::chrono::milliseconds(50));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->clean);
  EXPECT_TRUE(report->quarantined);
  EXPECT_EQ(report->completions_abandoned, 3u);
  EXPECT_NE(report->to_string().find("3"), std::string::npos) << report->to_string();
  EXPECT_EQ(dispatcher->counters().control.quarantined, 1u);
  // The handler's state lives, and its return harms nothing.
  gate->open();
  EXPECT_TRUE(eventually([&] { return handled == 3; }));
  EXPECT_TRUE(eventually([&] { return source->retired() == 3; }));
  const Status status = dispatcher->stop(kGenerous);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST_P(Detach, FromInsideAHandlerIsRefusedAndTheAsynchronousOneWorks) {
  auto dispatcher = start(small_config(2));
  auto source = std::make_shared<SyntheticSource>();
  std::shared_ptr<SourceHandle> handle;
  std::promise<StatusCode> blocking, stopping;
  std::promise<DetachReport> done;
  std::atomic<bool> first{true}, attached{false};
  auto made = dispatcher->attach(
      source, options(GetParam()), [&](std::span<const ibv_wc>, const BatchInfo&) noexcept {
        if (!first.exchange(false)) return;
        while (!attached.load()) cpu_relax();
        blocking.set_value(handle->detach(kGenerous).status().code());
        stopping.set_value(dispatcher->stop(kGenerous).code());
        handle->detach_async(kGenerous,
                             [&](const DetachReport& report) { done.set_value(report); });
      });
  ASSERT_TRUE(made.ok());
  handle = *made;
  attached = true;
  ASSERT_TRUE(source->complete(1, 1));
  EXPECT_EQ(blocking.get_future().get(), StatusCode::invalid_argument);
  EXPECT_EQ(stopping.get_future().get(), StatusCode::invalid_argument);
  EXPECT_TRUE(done.get_future().get().clean);
}

TEST_P(Detach, TwiceIsHarmless) {
  auto dispatcher = start(small_config(2));
  auto source = std::make_shared<SyntheticSource>();
  auto handle = dispatcher->attach(source, options(GetParam()), [](auto, const auto&) noexcept {});
  ASSERT_TRUE(handle.ok());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      auto report = (*handle)->detach(kGenerous);
      EXPECT_TRUE(report.ok() && report->clean);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE((*handle)->detach(kGenerous)->clean);
  EXPECT_TRUE(dispatcher->stop(kGenerous).ok());
  EXPECT_TRUE((*handle)->detach(kGenerous)->clean);
}

TEST(DetachCallbacks, FromTheControlsOwnCallbackIsRefused) {
  DispatcherCallbacks callbacks;
  std::shared_ptr<SourceHandle> handle;
  std::atomic<bool> set{false};
  std::promise<StatusCode> code;
  callbacks.on_source_failed = [&](SourceId, const Status&) {
    while (!set.load()) cpu_relax();
    code.set_value(handle->detach(kGenerous).status().code());
  };
  auto dispatcher = start(small_config(1), callbacks);
  auto source = std::make_shared<SyntheticSource>();
  source->fail_next_poll(SourceFault::poll_failed);
  auto made = dispatcher->attach(source, {}, [](auto, const auto&) noexcept {});
  ASSERT_TRUE(made.ok());
  handle = *made;
  set = true;
  EXPECT_EQ(code.get_future().get(), StatusCode::invalid_argument);
}

TEST(DetachReceiveSource, IsRefusedWhileItServesConnections) {
  auto dispatcher = start(small_config(1));
  auto receive = dispatcher->attach(std::make_shared<SyntheticSource>(64, "shared"), {},
                                    [](auto, const auto&) noexcept {});
  ASSERT_TRUE(receive.ok());
  auto connection = dispatcher->attach_queue_pair(1, {.receive_source = *receive});
  ASSERT_TRUE(connection.ok());
  auto refused = (*receive)->detach(kGenerous);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("shared"), std::string::npos);
  EXPECT_TRUE((*connection)->detach(kGenerous)->clean);
  EXPECT_TRUE((*receive)->detach(kGenerous)->clean);
}

// The asynchronous one cannot refuse: it waits for the connections, whose lanes hold its handler.
TEST(DetachReceiveSource, AsynchronouslyWaitsForItsConnections) {
  auto dispatcher = start(small_config(2));
  auto source = std::make_shared<SyntheticSource>();
  Gate gate;
  auto state = std::make_unique<std::uint64_t>(0);
  auto receive = dispatcher->attach(
      source, {},
      [&gate, at = state.get()](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
        gate.pass();
        *at += batch.size();
      });
  ASSERT_TRUE(receive.ok());
  auto connection = dispatcher->attach_queue_pair(1, {.receive_source = *receive});
  ASSERT_TRUE(connection.ok());
  ASSERT_TRUE(eventually([&] { return dispatcher->counters().pollers[0].commands == 2; }));
  ASSERT_TRUE(source->complete(1, 1));
  ASSERT_TRUE(eventually([&] { return gate.waiting() == 1; }));
  std::promise<DetachReport> of_source;
  auto source_done = of_source.get_future();
  (*receive)->detach_async(kGenerous,
                           [&](const DetachReport& report) { of_source.set_value(report); });
  EXPECT_EQ(source_done.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout)
      << "it was let go while its handler runs";
  // Nobody new may come in meanwhile.
  EXPECT_FALSE(dispatcher->attach_queue_pair(2, {.receive_source = *receive}).ok());
  gate.open();
  EXPECT_TRUE((*connection)->detach(kGenerous)->clean);
  EXPECT_TRUE(source_done.get().clean);
  EXPECT_EQ(*state, 1u);
  state.reset();
}

// A connection's drain ran out of time; its handler is the receive source's and still runs. The
// source's own detach must not call itself clean over that.
TEST(DetachReceiveSource, AfterAnAbandonedConnectionKnowsThatItsHandlerStillRuns) {
  auto dispatcher = start(small_config(2));
  auto source = std::make_shared<SyntheticSource>();
  Gate gate;
  auto state = std::make_shared<std::uint64_t>(0);
  const std::weak_ptr<std::uint64_t> alive = state;
  auto receive = dispatcher->attach(
      source, {},
      [&gate, at = std::move(state)](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
        gate.pass();
        *at += batch.size();
      });
  ASSERT_TRUE(receive.ok());
  auto connection = dispatcher->attach_queue_pair(1, {.receive_source = *receive});
  ASSERT_TRUE(connection.ok());
  ASSERT_TRUE(eventually([&] { return dispatcher->counters().pollers[0].commands == 2; }));
  ASSERT_TRUE(source->complete(1, 1));
  ASSERT_TRUE(eventually([&] { return gate.waiting() == 1; }));
  auto abandoned = (*connection)->detach(std::chrono::milliseconds(10));
  ASSERT_TRUE(abandoned.ok());
  EXPECT_FALSE(abandoned->clean);
  EXPECT_EQ(abandoned->completions_abandoned, 1u);
  auto report = (*receive)->detach(std::chrono::milliseconds(10));
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->clean) << "clean, while its handler runs";
  EXPECT_FALSE(alive.expired()) << "the running handler was destroyed";
  gate.open();
  ASSERT_TRUE(eventually([&] { return source->retired() == 1; }));
  EXPECT_TRUE(dispatcher->stop(kGenerous).ok());
}

// With room for few, detaching past a stuck handler again and again must end in a refusal, not in a
// full ring of lanes.
TEST(DetachReceiveSource, AbandonedConnectionsCountUntilTheDispatcherGoes) {
  DispatcherConfig config = small_config(1);
  config.connections_max = 4;
  config.pollers[0].sources_max = 4;
  auto dispatcher = start(config);
  auto source = std::make_shared<SyntheticSource>();
  Gate gate;
  std::atomic<std::uint64_t> handled{0};
  auto receive =
      dispatcher->attach(source, {}, [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
        gate.pass();
        handled += batch.size();
      });
  ASSERT_TRUE(receive.ok());
  std::uint64_t made = 0;
  for (std::uint32_t qp = 1; qp <= 20; ++qp) {
    auto connection = dispatcher->attach_queue_pair(qp, {.receive_source = *receive});
    if (!connection.ok()) {
      EXPECT_EQ(connection.status().code(), StatusCode::does_not_fit)
          << connection.status().to_string();
      continue;
    }
    ASSERT_TRUE(source->complete(qp, 1));
    ++made;
    ASSERT_TRUE(eventually([&] { return source->pending() == 0; }));
    EXPECT_FALSE((*connection)->detach(std::chrono::milliseconds(5))->clean);
  }
  EXPECT_EQ(made, 4u);
  gate.open();
  EXPECT_TRUE(
      eventually([&] { return handled + dispatcher->counters().pollers[0].orphans == made; }));
  EXPECT_EQ(dispatcher->counters().pollers[0].connections, 0u);
}

TEST(Stop, DetachesEverythingAndHandlesWhatWasThere) {
  auto dispatcher = start(small_config(2));
  auto source = std::make_shared<SyntheticSource>();
  std::atomic<std::uint64_t> handled{0};
  auto handle = dispatcher->attach(
      source, {.order = Order::none},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
  ASSERT_TRUE(handle.ok());
  for (std::uint64_t i = 0; i < 500; ++i) ASSERT_TRUE(source->complete(1, i));
  EXPECT_TRUE(dispatcher->stop(kGenerous).ok());
  EXPECT_EQ(handled, 500u);
  EXPECT_EQ(source->ownership_epoch() % 2, 0u);
  auto late = dispatcher->attach(source, {}, [](auto, const auto&) noexcept {});
  EXPECT_EQ(late.status().code(), StatusCode::cancelled);
}

TEST(Stop, PastAStuckHandlerReturnsWithAClearStatus) {
  Gate gate;
  std::atomic<std::uint64_t> handled{0};
  auto source = std::make_shared<SyntheticSource>();
  {
    DispatcherConfig config = small_config(1);
    config.pools[0].name = "apply";
    auto dispatcher = start(config);
    auto handle = dispatcher->attach(source, {.order = Order::none},
                                     [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                       gate.pass();
                                       handled += batch.size();
                                     });
    ASSERT_TRUE(handle.ok());
    ASSERT_TRUE(source->complete(1, 1));
    ASSERT_TRUE(eventually([&] { return gate.waiting() == 1; }));
    const auto begin = std::chrono::steady_clock::now();
    const Status status = dispatcher->stop(std::chrono::milliseconds(50));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    EXPECT_EQ(status.code(), StatusCode::timed_out);
    EXPECT_NE(status.message().find("apply-0"), std::string::npos) << status.message();
    // Said again, it does not become better.
    EXPECT_EQ(dispatcher->stop(kGenerous).code(), StatusCode::timed_out);
  }
  // The dispatcher is gone, its thread is not; its return harms nothing.
  gate.open();
  EXPECT_TRUE(eventually([&] { return handled == 1; }));
  EXPECT_TRUE(eventually([&] { return source.use_count() == 1; }))
      << "what was abandoned was never let go";
}

TEST(StopDeathTest, PastAStuckHandlerTheProcessCanStillEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static Gate gate;
        auto source = std::make_shared<SyntheticSource>();
        auto dispatcher = start(small_config(1));
        auto handle = dispatcher->attach(
            source, {.order = Order::none},
            [](std::span<const ibv_wc>, const BatchInfo&) noexcept { gate.pass(); });
        const bool ready =
            source->complete(1, 1) && eventually([&] { return gate.waiting() == 1; });
        const Status status = dispatcher->stop(std::chrono::milliseconds(20));
        dispatcher.reset();
        std::quick_exit(ready && status.code() == StatusCode::timed_out ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

// A detach with all the time in the world is under way when the dispatcher is stopped.
TEST(Stop, CutsShortADetachThatWouldOutlastIt) {
  auto dispatcher = start(small_config(1));
  auto source = std::make_shared<SyntheticSource>();
  Gate gate;
  auto handle =
      dispatcher->attach(source, {.order = Order::none},
                         [&](std::span<const ibv_wc>, const BatchInfo&) noexcept { gate.pass(); });
  ASSERT_TRUE(handle.ok());
  ASSERT_TRUE(source->complete(1, 1));
  ASSERT_TRUE(eventually([&] { return gate.waiting() == 1; }));
  auto pending =
      std::async(std::launch::async, [&] { return (*handle)->detach(std::chrono::hours(1)); });
  ASSERT_TRUE(eventually([&] { return dispatcher->counters().pollers[0].commands == 2; }));
  const Status status = dispatcher->stop(std::chrono::milliseconds(50));
  EXPECT_EQ(status.code(), StatusCode::timed_out) << status.to_string();
  ASSERT_EQ(pending.wait_for(kGenerous), std::future_status::ready) << "the detach waits for ever";
  auto report = pending.get();
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->clean);
  gate.open();
  ASSERT_TRUE(eventually([&] { return gate.waiting() == 0; }));
}

TEST(Stop, MeetsAttachesFromOtherThreadsAndEndsAtOnce) {
  for (int round = 0; round < 60; ++round) {
    auto dispatcher = start(small_config(1));
    std::atomic<int> threads_ready{0};
    std::vector<std::thread> attachers;
    for (int t = 0; t < 2; ++t) {
      attachers.emplace_back([&] {
        ++threads_ready;
        for (std::uint32_t i = 0; i < 100; ++i) {
          auto source = std::make_shared<SyntheticSource>(8);
          auto handle = dispatcher->attach(source, {}, [](auto, const auto&) noexcept {});
          if (!handle.ok()) return;
          auto connection = dispatcher->attach_queue_pair(i, {.receive_source = *handle});
          if (!connection.ok()) return;
        }
      });
    }
    ASSERT_TRUE(eventually([&] { return threads_ready == 2; }));
    for (int spin = 0; spin < round * 100; ++spin) cpu_relax();
    const auto begin = std::chrono::steady_clock::now();
    const Status status = dispatcher->stop(kGenerous);
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    for (std::thread& attacher : attachers) attacher.join();
    if (HasFailure()) return;
  }
}

// The poller gave up polling to empty whenever buffers ran short, and began anew the next time.
TEST(Detach, EndsUnderOverload) {
  constexpr std::uint32_t kConnections = 100;
  for (const std::uint32_t workers : {1U, 2U}) {
    auto dispatcher = start(small_config(workers, WaitMode::event, Drive::host));
    auto source = std::make_shared<SyntheticSource>(4096);
    auto receive = dispatcher->attach(source, {}, [](auto, const auto&) noexcept {});
    ASSERT_TRUE(receive.ok());
    std::vector<std::shared_ptr<ConnectionHandle>> connections;
    for (std::uint32_t qp_num = 0; qp_num < kConnections; ++qp_num) {
      auto connection = dispatcher->attach_queue_pair(qp_num, {.receive_source = *receive});
      ASSERT_TRUE(connection.ok());
      connections.push_back(*connection);
    }
    run_all_once(*dispatcher);
    std::optional<DetachReport> report;
    std::uint32_t qp_num = 1;  // 0 is quiet, and is detached
    const auto step = [&] {
      while (source->complete(qp_num, 0)) qp_num = qp_num % (kConnections - 1) + 1;
      dispatcher->poller(0).run_once();
      dispatcher->worker(0).run_once();  // one of them alone does not keep up
      dispatcher->control().run_once();
    };
    for (int round = 0; round < 100; ++round) step();
    connections[0]->detach_async(kGenerous, [&](const DetachReport& r) { report = r; });
    const auto end = std::chrono::steady_clock::now() + 2 * kGenerous;
    while (!report && std::chrono::steady_clock::now() < end) step();
    ASSERT_TRUE(report.has_value());
    EXPECT_TRUE(report->clean) << workers << " workers: " << report->to_string();
  }
}

}  // namespace
}  // namespace sluice::testing
