// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <thread>
#include <vector>

#include "sluice/core/receive_pool.hpp"
#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::testing {
namespace {

/// Completions of queue pairs that nobody has attached (yet), on a host-driven dispatcher.
class EarlyCompletions : public ::testing::Test {
 protected:
  void SetUp() override {
    DispatcherCallbacks callbacks;
    callbacks.on_orphans = [this](SourceId, std::span<const ibv_wc> batch) {
      for (const ibv_wc& wc : batch) orphans_.push_back(wc.wr_id);
    };
    DispatcherConfig config = small_config(1, WaitMode::event, Drive::host);
    config.pollers[0].hot_rounds = 1;
    dispatcher_ = start(config, callbacks);
    source_ = std::make_shared<SyntheticSource>(kCapacity);
    auto receive = dispatcher_->attach(
        source_, {}, [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
          for (const ibv_wc& wc : batch) handled_.push_back(wc.wr_id);
        });
    ASSERT_TRUE(receive.ok());
    receive_ = *receive;
    run();
  }
  void run(int rounds = 50) {
    for (int i = 0; i < rounds; ++i) run_all_once(*dispatcher_);
  }
  /// As a host does: to sleep as soon as it may, and up only if its descriptor says so.
  void run_poller_until_asleep() {
    Runnable& poller = dispatcher_->poller(0);
    for (int i = 0; i < 10000; ++i) {
      if (poller.run_once() > 0 || !poller.prepare_to_wait()) continue;
      const bool woken = readable(poller.wait_fd());
      poller.finish_wait();
      if (!woken) return;
    }
    FAIL() << "never asleep";
  }
  PollerCounters count() { return dispatcher_->counters().pollers[0]; }

  static constexpr std::uint32_t kCapacity = 64;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::shared_ptr<SyntheticSource> source_;
  std::shared_ptr<SourceHandle> receive_;
  std::vector<std::uint64_t> handled_, orphans_;
};

TEST_F(EarlyCompletions, AreHeldAndDeliveredInOrderBeforeLaterOnes) {
  std::optional<SetupTicket> ticket(dispatcher_->expect_connection(*receive_));
  for (std::uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(source_->complete(5, i));
  run();
  EXPECT_TRUE(handled_.empty());
  EXPECT_EQ(count().early, 40u);
  auto connection = dispatcher_->attach_queue_pair(5, {.receive_source = receive_});
  ASSERT_TRUE(connection.ok());
  ticket.reset();
  for (std::uint64_t i = 40; i < 60; ++i) ASSERT_TRUE(source_->complete(5, i));
  run();
  ASSERT_EQ(handled_.size(), 60u);
  for (std::uint64_t i = 0; i < 60; ++i) EXPECT_EQ(handled_[i], i);
  EXPECT_TRUE(orphans_.empty());
  EXPECT_EQ(source_->retired(), 60u);
}

TEST_F(EarlyCompletions, OfSeveralConnectionsAreKeptApart) {
  const SetupTicket first = dispatcher_->expect_connection(*receive_);
  for (std::uint64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(source_->complete(5, i));
    ASSERT_TRUE(source_->complete(6, 100 + i));
  }
  run();
  auto six = dispatcher_->attach_queue_pair(6, {.receive_source = receive_});
  ASSERT_TRUE(six.ok());
  run();
  ASSERT_EQ(handled_.size(), 10u);
  EXPECT_EQ(handled_.front(), 100u);
  auto five = dispatcher_->attach_queue_pair(5, {.receive_source = receive_});
  ASSERT_TRUE(five.ok());
  run();
  ASSERT_EQ(handled_.size(), 20u);
  EXPECT_EQ(handled_.back(), 9u);
}

// E1: a completion arrives for a connection already torn down.
TEST_F(EarlyCompletions, WithoutASetUpPendingAreOrphansCountedOfferedAndRetired) {
  ASSERT_TRUE(source_->complete(5, 1));
  ASSERT_TRUE(source_->complete(5, 2));
  run();
  EXPECT_EQ(orphans_, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(count().orphans, 2u);
  EXPECT_EQ(source_->retired(), 2u);
}

TEST_F(EarlyCompletions, AfterADetachAreOrphans) {
  auto connection = dispatcher_->attach_queue_pair(5, {.receive_source = receive_});
  ASSERT_TRUE(connection.ok());
  ASSERT_TRUE(source_->complete(5, 1));
  EXPECT_TRUE(detach_by_running(*dispatcher_, **connection).clean);
  EXPECT_EQ(handled_, std::vector<std::uint64_t>{1});
  ASSERT_TRUE(source_->complete(5, 2));
  run();
  EXPECT_EQ(orphans_, std::vector<std::uint64_t>{2});
  // The number is used again: the new connection gets what is its.
  auto again = dispatcher_->attach_queue_pair(5, {.receive_source = receive_});
  ASSERT_TRUE(again.ok());
  EXPECT_NE((*again)->id(), (*connection)->id());
  ASSERT_TRUE(source_->complete(5, 3));
  run();
  EXPECT_EQ(handled_, (std::vector<std::uint64_t>{1, 3}));
}

TEST_F(EarlyCompletions, BecomeOrphansWhenTheTicketIsDropped) {
  std::optional<SetupTicket> ticket(dispatcher_->expect_connection(*receive_));
  std::optional<SetupTicket> other(dispatcher_->expect_connection(*receive_));
  ASSERT_TRUE(source_->complete(5, 1));
  run();
  ticket.reset();
  run();
  EXPECT_TRUE(orphans_.empty()) << "another set-up is still pending";
  run_poller_until_asleep();
  other.reset();
  run_poller_until_asleep();
  EXPECT_EQ(orphans_, std::vector<std::uint64_t>{1});
  EXPECT_EQ(source_->retired(), 1u);
}

TEST_F(EarlyCompletions, BeyondTheBoundWaitAndAreNotLost) {
  std::optional<SetupTicket> ticket(dispatcher_->expect_connection(*receive_));
  for (std::uint64_t i = 0; i < kCapacity; ++i) ASSERT_TRUE(source_->complete(5, i));
  run();
  // All segments are spoken for; more completions arrive, and the poller can only leave them.
  for (std::uint64_t i = kCapacity; i < kCapacity + 20; ++i) ASSERT_TRUE(source_->complete(5, i));
  run_poller_until_asleep();
  EXPECT_EQ(orphans_.size(), 0u);
  ticket.reset();
  run_poller_until_asleep();
  EXPECT_EQ(orphans_.size(), kCapacity + 20) << "the poller sleeps with completions in its CQ";
}

// C4: nothing is ever dropped.
TEST_F(EarlyCompletions, OfASourceThatIsDetachedAreOrphansToo) {
  const SetupTicket ticket = dispatcher_->expect_connection(*receive_);
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(source_->complete(5, i));
  run();
  EXPECT_TRUE(detach_by_running(*dispatcher_, *receive_).clean);
  EXPECT_EQ(orphans_.size(), 3u);
  EXPECT_EQ(source_->retired(), 3u);
}

TEST_F(EarlyCompletions, ATicketMayOutliveSourceAndDispatcher) {
  SetupTicket ticket = dispatcher_->expect_connection(*receive_);
  SetupTicket moved(std::move(ticket));
  EXPECT_TRUE(detach_by_running(*dispatcher_, *receive_).clean);
  receive_.reset();
  dispatcher_.reset();
  { const SetupTicket last(std::move(moved)); }
}

TEST_F(EarlyCompletions, AttachAndDetachInOneBreathWhileSomeAreHeld) {
  for (int round = 0; round < 50; ++round) {
    SetupTicket ticket = dispatcher_->expect_connection(*receive_);
    ASSERT_TRUE(source_->complete(5, 1));
    run(2);
    auto connection = dispatcher_->attach_queue_pair(5, {.receive_source = receive_});
    ASSERT_TRUE(connection.ok());
    ASSERT_TRUE(source_->complete(6, 2));
    EXPECT_TRUE(detach_by_running(*dispatcher_, **connection).clean);
  }
  run();
  EXPECT_EQ(handled_.size(), 50u);
  EXPECT_EQ(orphans_.size(), 50u);
}

TEST(EarlyThreads, HeldOnesOfAnAttachThatRacesWithTrafficComeFirst) {
  auto dispatcher = start(small_config(2));
  auto source = std::make_shared<SyntheticSource>(256);
  auto receive = dispatcher->attach(source, {}, note_in_log);
  ASSERT_TRUE(receive.ok());
  for (std::uint32_t qp = 1; qp <= 100; ++qp) {
    ConnectionLog log;
    const SetupTicket ticket = dispatcher->expect_connection(**receive);
    std::thread feeder([&] {
      for (std::uint64_t i = 0; i < 100; ++i) complete_when_room(*source, qp, i);
    });
    auto connection =
        dispatcher->attach_queue_pair(qp, {.context = &log, .receive_source = *receive});
    ASSERT_TRUE(connection.ok());
    feeder.join();
    EXPECT_TRUE(eventually([&] { return log.count == 100; })) << log.count;
    log.expect_in_order();
    ASSERT_TRUE((*connection)->detach(kGenerous).ok());
  }
  EXPECT_EQ(dispatcher->counters().pollers[0].orphans, 0u);
}

/// Never completes anything, and has no descriptor.
class SilentSource final : public CompletionSource {
 public:
  PollOutcome poll(std::span<ibv_wc>) noexcept override { return {}; }
  EventOutcome consume_event() noexcept override { return {}; }
  [[nodiscard]] int wait_fd() const noexcept override { return -1; }
  [[nodiscard]] std::uint32_t capacity() const noexcept override { return 1; }
  [[nodiscard]] std::string_view name() const noexcept override { return "silent"; }
};

// A host that attaches and never runs its poller.
TEST(Mailbox, AnAttachThatFindsItFullSaysSoAndLeavesNothingBehind) {
  DispatcherConfig config = small_config(1, WaitMode::event, Drive::host);
  config.pollers[0].sources_max = 20'000;
  auto dispatcher = start(config);
  const auto ignore = [](auto, const auto&) noexcept {};
  auto source = std::make_shared<SyntheticSource>();
  auto receive = dispatcher->attach(source, {}, ignore);
  ASSERT_TRUE(receive.ok());
  Status refused;
  std::shared_ptr<SilentSource> last;
  for (int i = 0; i < 19'000 && refused.ok(); ++i) {
    last = std::make_shared<SilentSource>();
    refused = dispatcher->attach(last, {.order = Order::inlined}, ignore).status();
  }
  ASSERT_EQ(refused.code(), StatusCode::resource_exhausted);
  EXPECT_NE(refused.message().find("mailbox"), std::string::npos) << refused.message();
  EXPECT_EQ(last->ownership_epoch() % 2, 0u);
  EXPECT_EQ(dispatcher->attach_queue_pair(5, {.receive_source = *receive}).status().code(),
            StatusCode::resource_exhausted);
  ASSERT_TRUE(run_until(*dispatcher, [&] { return dispatcher->poller(0).run_once() == 0; }));
  // The failed attach is no pending set-up, and no connection of the source.
  ASSERT_TRUE(source->complete(5, 1));
  EXPECT_TRUE(
      run_until(*dispatcher, [&] { return dispatcher->counters().pollers[0].orphans == 1; }));
  EXPECT_TRUE(detach_by_running(*dispatcher, **receive).clean);
}

/// Takes every post and remembers it.
class FakePoster final : public ReceivePoster {
 public:
  explicit FakePoster(std::vector<std::uint64_t>& posted) : posted_(posted) {}
  Status post(std::size_t, std::size_t, std::uint64_t wr_id) override {
    posted_.push_back(wr_id);
    return {};
  }
  [[nodiscard]] bool survives_failed_completion() const noexcept override { return true; }

 private:
  std::vector<std::uint64_t>& posted_;
};

// R5: the receive queue runs dry since nobody gives the orphans' buffers back.
TEST(Orphans, WithoutAHandlerForThemAreReposted) {
  std::vector<std::byte> memory(std::size_t{8} * 64);
  std::vector<std::uint64_t> posted;
  auto pool = ReceivePool::create({.depth = 8, .buffer_size = 64}, memory,
                                  std::make_unique<FakePoster>(posted));
  ASSERT_TRUE(pool.ok());
  ASSERT_TRUE((*pool)->post_all().ok());
  ASSERT_EQ(posted.size(), 8u);
  auto dispatcher = start(small_config(1, WaitMode::event, Drive::host));
  auto source = std::make_shared<SyntheticSource>();
  auto receive =
      dispatcher->attach(source, {.receive_pool = pool->get()}, [](auto, const auto&) noexcept {});
  ASSERT_TRUE(receive.ok());
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(source->complete(5, posted[static_cast<std::size_t>(i)],
                                 i % 2 == 0 ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR));
  }
  for (int i = 0; i < 20; ++i) run_all_once(*dispatcher);
  EXPECT_EQ(posted.size(), 16u);
  EXPECT_EQ((*pool)->posted(), 8u);
  EXPECT_EQ(dispatcher->counters().pollers[0].orphans, 8u);
  // The pool's depth bounds what is held early, and beyond it they are orphans.
  const SetupTicket ticket = dispatcher->expect_connection(**receive);
  EXPECT_TRUE(detach_by_running(*dispatcher, **receive).clean);
}

}  // namespace
}  // namespace sluice::testing
