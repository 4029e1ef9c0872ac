// SPDX-License-Identifier: BSD-3-Clause
// A pool of one worker needs no lanes: batches are sorted by connection and handed over whole.
// Stepped, so that each test knows what lies where.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::testing {
namespace {

/// A queue without events that says where the poller wanted its completions.
class WatchedSource final : public CompletionSource {
 public:
  void complete(std::uint32_t qp_num, std::uint64_t wr_id) {
    ibv_wc wc{};
    wc.qp_num = qp_num;
    wc.wr_id = wr_id;
    queue_.push_back(wc);
  }
  [[nodiscard]] const std::vector<const ibv_wc*>& polled_to() const { return polled_to_; }

  PollOutcome poll(std::span<ibv_wc> out) noexcept override {
    std::uint32_t count = 0;
    for (; count < out.size() && !queue_.empty(); ++count) {
      out[count] = queue_.front();
      queue_.pop_front();
    }
    if (count > 0) polled_to_.push_back(out.data());
    return {count, SourceFault::none, 0};
  }
  EventOutcome consume_event() noexcept override { return {}; }
  [[nodiscard]] int wait_fd() const noexcept override { return -1; }
  [[nodiscard]] std::uint32_t capacity() const noexcept override { return 256; }
  [[nodiscard]] std::string_view name() const noexcept override { return "watched"; }

 private:
  std::deque<ibv_wc> queue_;
  std::vector<const ibv_wc*> polled_to_;
};

/// Calls back at each poll, and never has anything.
class CallbackSource final : public CompletionSource {
 public:
  explicit CallbackSource(std::function<void()> at_poll) : at_poll_(std::move(at_poll)) {}
  PollOutcome poll(std::span<ibv_wc>) noexcept override {
    at_poll_();
    return {};
  }
  EventOutcome consume_event() noexcept override { return {}; }
  [[nodiscard]] int wait_fd() const noexcept override { return -1; }
  [[nodiscard]] std::uint32_t capacity() const noexcept override { return 1; }
  [[nodiscard]] std::string_view name() const noexcept override { return "callback"; }

 private:
  const std::function<void()> at_poll_;
};

/// One call of a handler.
struct Call {
  ConnectionId connection = ConnectionId::none;
  void* context = nullptr;
  const ibv_wc* data = nullptr;
  std::vector<std::uint64_t> wr_ids;
};

class OneWorker : public ::testing::Test {
 protected:
  void start_with(std::uint32_t batch_count, std::uint32_t batch_size,
                  std::shared_ptr<CompletionSource> source) {
    DispatcherConfig config = small_config(1, WaitMode::event, Drive::host);
    config.pollers[0].batch_count = batch_count;
    config.pollers[0].batch_size = batch_size;
    DispatcherCallbacks callbacks;
    callbacks.on_orphans = [this](SourceId, std::span<const ibv_wc> batch) {
      for (const ibv_wc& wc : batch) orphans_.push_back(wc.wr_id);
    };
    dispatcher_ = start(config, callbacks);
    if (polled_first_ != nullptr) {
      ASSERT_TRUE(dispatcher_
                      ->attach(polled_first_, {.order = Order::inlined},
                               [](auto, const BatchInfo&) noexcept {})
                      .ok());
    }
    auto receive =
        dispatcher_->attach(std::move(source), {},
                            [this](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
                              Call call{info.connection, info.context, batch.data(), {}};
                              for (const ibv_wc& wc : batch) {
                                call.wr_ids.push_back(wc.wr_id);
                                handled_[wc.qp_num].push_back(wc.wr_id);
                              }
                              calls_.push_back(std::move(call));
                            });
    ASSERT_TRUE(receive.ok());
    receive_ = *receive;
    run();
  }
  void start_with(std::uint32_t batch_count, std::uint32_t batch_size, std::uint32_t capacity) {
    source_ = std::make_shared<SyntheticSource>(capacity);
    start_with(batch_count, batch_size, source_);
  }
  std::shared_ptr<ConnectionHandle> attach(std::uint32_t qp_num, void* context = nullptr) {
    auto connection =
        dispatcher_->attach_queue_pair(qp_num, {.context = context, .receive_source = receive_});
    EXPECT_TRUE(connection.ok()) << connection.status().to_string();
    return *connection;
  }
  void run(int rounds = 50) {
    for (int i = 0; i < rounds; ++i) run_all_once(*dispatcher_);
  }
  void run_poller(int rounds = 50) {
    for (int i = 0; i < rounds; ++i) dispatcher_->poller(0).run_once();
  }
  static std::vector<std::uint64_t> numbers(std::uint64_t count) {
    std::vector<std::uint64_t> all(count);
    for (std::uint64_t i = 0; i < count; ++i) all[i] = i;
    return all;
  }

  std::shared_ptr<CompletionSource> polled_first_;  ///< if set: in each pass before the other
  bool worker_runs_ = false;                        ///< at the next poll of that
  std::shared_ptr<SyntheticSource> source_;
  std::shared_ptr<SourceHandle> receive_;
  std::map<std::uint32_t, std::vector<std::uint64_t>> handled_;  ///< by queue pair
  std::vector<Call> calls_;
  std::vector<std::uint64_t> orphans_;
  std::unique_ptr<Dispatcher> dispatcher_;  // goes first
};

TEST_F(OneWorker, InterleavedConnectionsAreSortedAndKeepTheirOrder) {
  start_with(64, 32, 64);
  std::array<int, 5> contexts{};
  std::map<ConnectionId, std::uint32_t> qp_nums;
  std::vector<std::shared_ptr<ConnectionHandle>> connections;
  for (std::uint32_t qp = 0; qp < 5; ++qp) {
    connections.push_back(attach(qp, &contexts[qp]));
    qp_nums[connections.back()->id()] = qp;
  }
  run();
  for (std::uint64_t i = 0; i < 30; ++i)
    ASSERT_TRUE(source_->complete(static_cast<std::uint32_t>(i % 5), i / 5));
  run();
  EXPECT_EQ(calls_.size(), 5u) << "one call for each connection of the batch";
  for (const Call& call : calls_) {
    ASSERT_TRUE(qp_nums.contains(call.connection));
    EXPECT_EQ(call.context, &contexts[qp_nums[call.connection]]);
    EXPECT_EQ(call.wr_ids, numbers(6));
  }
  // Runs of different lengths, over many batches.
  std::array<std::uint64_t, 5> next{6, 6, 6, 6, 6};
  for (std::uint32_t i = 0; i < 2000; ++i) {
    const std::uint32_t qp = (i * i / 7 + i / 3) % 5;
    ASSERT_TRUE(run_until(*dispatcher_, [&] { return source_->complete(qp, next[qp]); }));
    ++next[qp];
  }
  run();
  for (std::uint32_t qp = 0; qp < 5; ++qp) EXPECT_EQ(handled_[qp], numbers(next[qp])) << qp;
  EXPECT_EQ(source_->retired(), 2030u);
  EXPECT_TRUE(orphans_.empty());
  // Each is told its own: none is left in hand.
  for (auto& connection : connections)
    EXPECT_TRUE(detach_by_running(*dispatcher_, *connection).clean);
}

TEST_F(OneWorker, ABatchOfOneConnectionIsHandedOverUncopied) {
  const auto source = std::make_shared<WatchedSource>();
  start_with(8, 32, source);
  const auto a = attach(1), b = attach(2);
  run();
  for (int round = 0; round < 20; ++round) {
    for (std::uint64_t i = 0; i < 10; ++i) source->complete(1, i);
    run(3);
    ASSERT_EQ(calls_.size(), static_cast<std::size_t>(round) + 1);
    EXPECT_EQ(calls_.back().data, source->polled_to().back());
    EXPECT_EQ(calls_.back().wr_ids, numbers(10));
  }
  // Of two it is sorted, into another buffer, and both parts come from one.
  source->complete(1, 0);
  source->complete(2, 0);
  source->complete(1, 1);
  run(3);
  ASSERT_EQ(calls_.size(), 22u);
  EXPECT_NE(calls_[20].data, source->polled_to().back());
  EXPECT_EQ(calls_[20].wr_ids, numbers(2));
  EXPECT_EQ(calls_[21].data, calls_[20].data + 2);
}

TEST_F(OneWorker, ABatchOfWhichEachIsAnotherConnectionsIsHandedOverUncopied) {
  const auto source = std::make_shared<WatchedSource>();
  start_with(8, 32, source);
  std::array<int, 7> contexts{};
  std::vector<std::shared_ptr<ConnectionHandle>> connections;
  for (std::uint32_t qp = 0; qp < contexts.size(); ++qp)
    connections.push_back(attach(qp, &contexts[qp]));
  run();
  for (std::uint64_t round = 0; round < 20; ++round) {
    calls_.clear();
    // Each time in another order.
    const auto qp_at = [&](std::uint64_t i) {
      return static_cast<std::uint32_t>((i * 3 + round) % 7);
    };
    for (std::uint64_t i = 0; i < 7; ++i) source->complete(qp_at(i), round);
    run(3);
    ASSERT_EQ(calls_.size(), 7u);
    for (std::size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(calls_[i].data, source->polled_to().back() + i);
      EXPECT_EQ(calls_[i].context, &contexts[qp_at(i)]);
      EXPECT_EQ(calls_[i].wr_ids, std::vector<std::uint64_t>{round});
    }
  }
  // One of them twice, and it is sorted.
  calls_.clear();
  for (const std::uint32_t qp : {3U, 4U, 3U}) source->complete(qp, 20);
  run(3);
  ASSERT_EQ(calls_.size(), 2u);
  EXPECT_EQ(calls_[0].wr_ids, (std::vector<std::uint64_t>{20, 20}));
  // None is left in hand.
  for (auto& connection : connections)
    EXPECT_TRUE(detach_by_running(*dispatcher_, *connection).clean);
}

TEST_F(OneWorker, BatchSizeBoundsACall) {
  for (const std::uint32_t size : {1U, 5U, 31U}) {
    calls_.clear();
    handled_.clear();
    start_with(16, size, 512);
    const auto a = attach(1), b = attach(2);
    run();
    for (std::uint64_t i = 0; i < 200; ++i) {
      ASSERT_TRUE(source_->complete(1, i));
      if (i % 3 == 0) {
        ASSERT_TRUE(source_->complete(2, i / 3));
      }
    }
    run(200);
    for (const Call& call : calls_) EXPECT_LE(call.wr_ids.size(), size);
    EXPECT_EQ(handled_[1], numbers(200));
    EXPECT_EQ(handled_[2], numbers(67));
  }
}

TEST_F(OneWorker, OrphansAmongKnownOnesAreTakenOut) {
  start_with(64, 32, 128);
  const auto a = attach(1), b = attach(2);
  run();
  for (std::uint64_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(source_->complete(1, i));
    ASSERT_TRUE(source_->complete(9, 1000 + i));  // nobody's
    if (i % 2 == 0) {
      ASSERT_TRUE(source_->complete(2, i / 2));
    }
  }
  run();
  EXPECT_EQ(handled_[1], numbers(40));
  EXPECT_EQ(handled_[2], numbers(20));
  EXPECT_FALSE(handled_.contains(9));
  ASSERT_EQ(orphans_.size(), 40u);
  for (std::uint64_t i = 0; i < 40; ++i) EXPECT_EQ(orphans_[i], 1000 + i);
  EXPECT_EQ(source_->retired(), 100u);
  // A batch of orphans alone gives its buffer back: many more than there are buffers.
  for (std::uint64_t i = 0; i < 5000; ++i)
    ASSERT_TRUE(run_until(*dispatcher_, [&] { return source_->complete(9, i); }));
  run();
  EXPECT_EQ(orphans_.size(), 5040u);
  EXPECT_TRUE(detach_by_running(*dispatcher_, *a).clean);
  EXPECT_TRUE(detach_by_running(*dispatcher_, *b).clean);
  EXPECT_TRUE(detach_by_running(*dispatcher_, *receive_).clean);
}

TEST_F(OneWorker, KnownOnesFlowWhileAlmostAllThatMayBeHeldIs) {
  start_with(64, 32, 64);
  const auto known = attach(1);
  run();
  std::optional<SetupTicket> ticket(dispatcher_->expect_connection(*receive_));
  for (std::uint64_t i = 0; i < 60; ++i) ASSERT_TRUE(source_->complete(5, i));
  run();
  EXPECT_TRUE(calls_.empty());
  for (std::uint64_t i = 0; i < 200; ++i)
    ASSERT_TRUE(run_until(*dispatcher_, [&] { return source_->complete(1, i); }));
  run(100);
  EXPECT_EQ(handled_[1], numbers(200));
  for (const Call& call : calls_) EXPECT_LE(call.wr_ids.size(), 4u) << "more might have been early";
  const auto late = attach(5);
  ticket.reset();
  for (std::uint64_t i = 60; i < 100; ++i) ASSERT_TRUE(source_->complete(5, i));
  run();
  EXPECT_EQ(handled_[5], numbers(100));
  EXPECT_TRUE(orphans_.empty());
}

// A regression: what was held for a connection was handed over only if all of it had batches at
// once. With more held than the poller has batches for, the connection was never added.
TEST_F(OneWorker, MoreHeldThanThereAreBatchesForIsHandedOverBitByBit) {
  start_with(2, 32, 256);
  const SetupTicket ticket = dispatcher_->expect_connection(*receive_);
  for (std::uint64_t i = 0; i < 200; ++i) ASSERT_TRUE(source_->complete(5, i));
  run();
  EXPECT_TRUE(calls_.empty());
  const auto connection = attach(5);
  run_poller(3);
  EXPECT_EQ(source_->retired(), 0u);
  // What comes while its adding is put off goes behind it.
  for (std::uint64_t i = 200; i < 240; ++i) ASSERT_TRUE(source_->complete(5, i));
  run_poller();
  run(200);
  EXPECT_EQ(handled_[5], numbers(240));
  EXPECT_TRUE(detach_by_running(*dispatcher_, *connection).clean);
  EXPECT_TRUE(orphans_.empty());
  EXPECT_EQ(source_->retired(), 240u);
}

// Batches come back after the poller has tried once more to hand over what is held, and before it
// polls: what it then finds must not overtake.
TEST_F(OneWorker, WhatComesBetweenTwoTriesOfAnAddingStaysBehindWhatIsHeld) {
  polled_first_ = std::make_shared<CallbackSource>([this] {
    if (std::exchange(worker_runs_, false)) dispatcher_->worker(0).run_once();
  });
  start_with(2, 32, 256);
  const SetupTicket ticket = dispatcher_->expect_connection(*receive_);
  for (std::uint64_t i = 0; i < 200; ++i) ASSERT_TRUE(source_->complete(5, i));
  run();
  const auto connection = attach(5);
  run_poller(3);
  for (std::uint64_t i = 200; i < 240; ++i) ASSERT_TRUE(source_->complete(5, i));
  worker_runs_ = true;
  run_poller(1);
  EXPECT_EQ(handled_[5], numbers(64)) << "the two batches that there are";
  run(200);
  EXPECT_EQ(handled_[5], numbers(240));
  EXPECT_TRUE(orphans_.empty());
}

// A regression: a removal that arrived while the adding was put off was executed before it, and the
// adding then touched a connection that was gone.
TEST_F(OneWorker, ADetachDoesNotOvertakeAnAddingThatWasPutOff) {
  start_with(2, 32, 256);
  const auto busy = attach(1);
  run();
  const SetupTicket ticket = dispatcher_->expect_connection(*receive_);
  for (std::uint64_t i = 0; i < 200; ++i) ASSERT_TRUE(source_->complete(5, i));
  run();
  ASSERT_TRUE(source_->complete(1, 0));  // takes one of two batches
  run_poller();
  auto connection = attach(5);
  run_poller(1);  // no batches for all of it: the rest is put off
  // The worker gives back what it has: now there would be one for the removal.
  for (int i = 0; i < 5; ++i) dispatcher_->worker(0).run_once();
  ASSERT_LT(handled_[5].size(), 100u);
  bool done = false;
  std::size_t handled_when_done = 0;
  DetachReport report;
  connection->detach_async(kGenerous, [&](const DetachReport& r) {
    done = true;
    report = r;
    handled_when_done = handled_[5].size();
  });
  for (int i = 0; i < 10; ++i) dispatcher_->control().run_once();
  ASSERT_TRUE(run_until(*dispatcher_, [&] { return done; }));
  EXPECT_TRUE(report.clean) << report.to_string();
  EXPECT_EQ(handled_when_done, 200u);
  EXPECT_EQ(handled_[5], numbers(200));
  EXPECT_EQ(handled_[1], numbers(1));
  EXPECT_TRUE(orphans_.empty());
  // And it is not known any more.
  ASSERT_TRUE(source_->complete(5, 200));
  run();
  EXPECT_EQ(handled_[5], numbers(200));
}

TEST(OneWorkerThreads, DetachOfOneConnectionWhileOthersFlow) {
  auto dispatcher = start(small_config(1));
  auto source = std::make_shared<SyntheticSource>(256);
  auto receive = dispatcher->attach(source, {}, note_in_log);
  ASSERT_TRUE(receive.ok());
  std::array<ConnectionLog, 2> steady;
  std::vector<std::shared_ptr<ConnectionHandle>> connections;
  for (std::uint32_t qp = 0; qp < 2; ++qp) {
    auto connection =
        dispatcher->attach_queue_pair(qp + 1, {.context = &steady[qp], .receive_source = *receive});
    ASSERT_TRUE(connection.ok());
    connections.push_back(*connection);
  }
  ASSERT_TRUE(eventually([&] { return dispatcher->counters().pollers[0].commands == 3; }));
  std::atomic<bool> end{false};
  std::uint64_t fed = 0;
  std::thread feeder([&] {
    for (; !end; ++fed) {
      complete_when_room(*source, 1, fed);
      complete_when_room(*source, 2, fed);
    }
  });
  for (int round = 0; round < 50 && !::testing::Test::HasFailure(); ++round) {
    ConnectionLog log;  // gone after the detach: a later call would be seen by a sanitizer
    const SetupTicket ticket = dispatcher->expect_connection(**receive);
    for (std::uint64_t i = 0; i < 20; ++i) complete_when_room(*source, 3, i);
    auto connection =
        dispatcher->attach_queue_pair(3, {.context = &log, .receive_source = *receive});
    EXPECT_TRUE(connection.ok());
    if (!connection.ok()) break;
    for (std::uint64_t i = 20; i < 60; ++i) complete_when_room(*source, 3, i);
    const auto report = (*connection)->detach(kGenerous);
    EXPECT_TRUE(report.ok() && report->clean);
    EXPECT_EQ(log.count, 60u);
    log.expect_in_order();
  }
  end = true;
  feeder.join();
  EXPECT_TRUE(eventually([&] { return steady[0].count == fed && steady[1].count == fed; }));
  for (const auto& log : steady) log.expect_in_order();
  EXPECT_EQ(dispatcher->counters().pollers[0].orphans, 0u);
}

// --- lanes, bursts and lent batches: a pool of two workers

// Half of the batches at most lie in lanes: a slow one leaves the others to its poller's sources
// without order.
TEST(LentBatches, ASlowLaneLeavesHalfOfThemToOtherSources) {
  DispatcherConfig config = small_config(2);
  config.pollers[0].batch_count = 4;
  auto dispatcher = start(config);
  auto slow_source = std::make_shared<SyntheticSource>(1024);
  auto loose_source = std::make_shared<SyntheticSource>(64);
  Gate gate;
  ConnectionLog slow;
  std::atomic<std::uint64_t> loose{0};
  std::vector<ibv_wc> many(1024);
  for (std::size_t i = 0; i < many.size(); ++i) many[i].wr_id = i;
  ASSERT_TRUE(slow_source->complete(many));  // before the attach: every batch is a full one
  auto a = dispatcher->attach(slow_source, {.single_connection = true},
                              [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                gate.pass();
                                slow.enter();
                                for (const ibv_wc& wc : batch) slow.note(wc);
                                slow.leave();
                              });
  ASSERT_TRUE(a.ok());
  ASSERT_TRUE(eventually([&] { return gate.waiting() == 1 && slow_source->pending() == 0; }));
  auto b = dispatcher->attach(
      loose_source, {.order = Order::none},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { loose += batch.size(); });
  ASSERT_TRUE(b.ok());
  for (std::uint64_t i = 0; i < 3000; ++i) complete_when_room(*loose_source, 1, i);
  EXPECT_TRUE(eventually([&] { return loose == 3000; })) << loose;
  EXPECT_EQ(slow.count, 0u);
  gate.open();
  EXPECT_TRUE(eventually([&] { return slow.count == 1024; })) << slow.count;
  slow.expect_in_order();
  EXPECT_TRUE(eventually([&] { return slow_source->retired() == 1024; }));
}

// Batches that are lent, segments that are copied, several polls before a lane is published: one
// order for each connection.
TEST(LentBatches, OrderHoldsWhereRunsOfOneConnectionAndMixturesTakeTurns) {
  for (const Drive drive : {Drive::host, Drive::own_threads}) {
    constexpr std::uint32_t kConnections = 4;
    DispatcherConfig config = small_config(2, WaitMode::event, drive);
    config.pollers[0].batch_count = 4;
    auto dispatcher = start(config);
    auto source = std::make_shared<SyntheticSource>(512);
    auto receive = dispatcher->attach(
        source, {}, [](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
          auto& log = *static_cast<ConnectionLog*>(info.context);
          log.enter();
          for (const ibv_wc& wc : batch) {
            log.note(wc);
            if (wc.wr_id % 64 == 0) std::this_thread::yield();
          }
          log.leave();
        });
    ASSERT_TRUE(receive.ok());
    std::array<ConnectionLog, kConnections> logs;
    std::vector<std::shared_ptr<ConnectionHandle>> connections;
    for (std::uint32_t qp = 0; qp < kConnections; ++qp) {
      auto connection =
          dispatcher->attach_queue_pair(qp, {.context = &logs[qp], .receive_source = *receive});
      ASSERT_TRUE(connection.ok());
      connections.push_back(*connection);
    }
    const auto commands = [&] { return dispatcher->counters().pollers[0].commands; };
    const auto work_until = [&](const auto& condition) {
      return drive == Drive::host ? run_until(*dispatcher, condition) : eventually(condition);
    };
    ASSERT_TRUE(work_until([&] { return commands() == 1 + kConnections; }));
    std::array<std::uint64_t, kConnections> next{};
    for (std::uint32_t run = 0; run < 2000; ++run) {
      const std::uint32_t qp = run * 7 / 3 % kConnections;
      const std::uint32_t length = run % 5 == 0 ? 40 + run % 60 : run % 3 + 1;
      std::vector<ibv_wc> burst(length);
      for (ibv_wc& wc : burst) {
        wc.qp_num = qp;
        wc.wr_id = next[qp]++;
      }
      ASSERT_TRUE(work_until([&] { return source->complete(burst); }));
    }
    for (std::uint32_t qp = 0; qp < kConnections; ++qp) {
      EXPECT_TRUE(work_until([&] { return logs[qp].count == next[qp]; })) << qp;
      logs[qp].expect_in_order();
    }
    EXPECT_EQ(dispatcher->counters().pollers[0].orphans, 0u);
    if (drive == Drive::host) {
      for (auto& connection : connections)
        EXPECT_TRUE(detach_by_running(*dispatcher, *connection).clean);
    }
  }
}

}  // namespace
}  // namespace sluice::testing
