// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <array>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::testing {
namespace {

struct Mode {
  Drive drive;
  WaitMode wait;
};
std::string name_of(const ::testing::TestParamInfo<Mode>& info) {
  return std::string(info.param.drive == Drive::host ? "host" : "threads") + "_" +
         to_string(info.param.wait);
}

class Routing : public ::testing::TestWithParam<Mode> {
 protected:
  std::unique_ptr<Dispatcher> start_with(std::uint32_t workers) {
    return start(small_config(workers, GetParam().wait, GetParam().drive));
  }
  /// Lets the dispatcher work until the condition holds.
  template <typename Condition>
  [[nodiscard]] bool work_until(Dispatcher& dispatcher, Condition condition) {
    if (GetParam().drive == Drive::host) return run_until(dispatcher, condition);
    return eventually(condition);
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, Routing,
                         ::testing::Values(Mode{Drive::own_threads, WaitMode::event},
                                           Mode{Drive::own_threads, WaitMode::busy},
                                           Mode{Drive::own_threads, WaitMode::adaptive},
                                           Mode{Drive::host, WaitMode::event},
                                           Mode{Drive::host, WaitMode::adaptive},
                                           Mode{Drive::host, WaitMode::busy}),
                         name_of);

TEST_P(Routing, InlinedHandlersSeeEverythingInOrderOnThePoller) {
  auto dispatcher = start_with(1);
  auto source = std::make_shared<SyntheticSource>();
  ConnectionLog log;
  std::atomic<int> wrong_place{0};
  int context = 0;
  auto handle = dispatcher->attach(
      source, {.order = Order::inlined, .context = &context},
      [&](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
        if (info.worker != BatchInfo::kOnPoller || info.context != &context || info.poller != 0)
          ++wrong_place;
        log.enter();
        for (const ibv_wc& wc : batch) log.note(wc);
        log.leave();
      });
  ASSERT_TRUE(handle.ok());
  for (std::uint64_t i = 0; i < 500; ++i) ASSERT_TRUE(source->complete(1, i));
  ASSERT_TRUE(work_until(*dispatcher, [&] { return log.count == 500; }));
  EXPECT_EQ(wrong_place, 0);
  log.expect_in_order();
  EXPECT_TRUE(work_until(*dispatcher, [&] { return source->retired() == 500; }));
}

// Full batches in a row are handled in a shorter way than the others: it must not show.
TEST_P(Routing, InlinedHandlersSeeFailedCompletionsAmongFullBatches) {
  constexpr std::uint64_t kCount = 200 * 32 + 7;
  constexpr std::array<std::uint64_t, 4> kFailed{31, 3 * 32, 40 * 32 + 5, kCount - 1};
  auto dispatcher = start_with(1);
  auto source = std::make_shared<SyntheticSource>(kCount);
  ConnectionLog log;
  std::mutex mutex;
  std::vector<std::uint64_t> failed;  // guarded by mutex
  std::atomic<int> wrong{0};
  auto handle = dispatcher->attach(source, {.order = Order::inlined},
                                   [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                     log.enter();
                                     for (const ibv_wc& wc : batch) {
                                       if (wc.status != IBV_WC_SUCCESS) {
                                         if (wc.byte_len != 0) ++wrong;
                                         const std::scoped_lock lock(mutex);
                                         failed.push_back(wc.wr_id);
                                       }
                                       log.note(wc);
                                     }
                                     log.leave();
                                   });
  ASSERT_TRUE(handle.ok());
  std::vector<ibv_wc> completions(kCount);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    completions[i].wr_id = i;
    completions[i].qp_num = 1;
    completions[i].byte_len = 4711;
    if (std::find(kFailed.begin(), kFailed.end(), i) != kFailed.end())
      completions[i].status = IBV_WC_WR_FLUSH_ERR;
  }
  ASSERT_TRUE(source->complete(completions));
  ASSERT_TRUE(work_until(*dispatcher, [&] { return source->retired() == kCount; }));
  EXPECT_EQ(log.count, kCount);
  log.expect_in_order();
  const std::scoped_lock lock(mutex);
  EXPECT_EQ(failed, std::vector<std::uint64_t>(kFailed.begin(), kFailed.end()));
  EXPECT_EQ(wrong, 0) << "fields of a failed completion that are not valid are zeroed";
  EXPECT_TRUE(work_until(*dispatcher, [&] {
    const PollerCounters counters = dispatcher->counters().pollers[0];  // told after a round
    return counters.completions == kCount && counters.batches >= kCount / 32;
  }));
  EXPECT_LE(dispatcher->counters().pollers[0].batches, dispatcher->counters().pollers[0].polls);
}

TEST_P(Routing, WithoutOrderEachCompletionIsHandledOnceOnAWorker) {
  auto dispatcher = start_with(3);
  auto source = std::make_shared<SyntheticSource>();
  std::vector<std::atomic<int>> seen(1000);
  std::atomic<std::uint64_t> count{0};
  std::atomic<int> wrong{0};
  auto handle =
      dispatcher->attach(source, {.order = Order::none},
                         [&](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
                           if (info.worker >= 3 || batch.empty() || batch.size() > 32) ++wrong;
                           for (const ibv_wc& wc : batch) ++seen[wc.wr_id];
                           count += batch.size();
                         });
  ASSERT_TRUE(handle.ok());
  for (std::uint64_t i = 0; i < seen.size(); ++i) ASSERT_TRUE(source->complete(1, i));
  ASSERT_TRUE(work_until(*dispatcher, [&] { return count == seen.size(); }));
  for (const auto& times : seen) EXPECT_EQ(times, 1);
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(work_until(*dispatcher, [&] { return source->retired() == seen.size(); }));
}

// R3: handlers of one connection run out of order once work is spread.
TEST_P(Routing, EachConnectionsOrderHoldsWithSlowHandlersAndSeveralWorkers) {
  constexpr std::uint32_t kConnections = 6;
  constexpr std::uint64_t kEach = 400;
  auto dispatcher = start_with(4);
  auto source = std::make_shared<SyntheticSource>(256);
  std::array<ConnectionLog, kConnections> logs;
  auto handle = dispatcher->attach(
      source, {}, [&](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
        auto& log = *static_cast<ConnectionLog*>(info.context);
        log.enter();
        for (const ibv_wc& wc : batch) {
          log.note(wc);
          if (wc.wr_id % 16 == 0) std::this_thread::yield();
        }
        log.leave();
      });
  ASSERT_TRUE(handle.ok());
  std::vector<std::shared_ptr<ConnectionHandle>> connections;
  for (std::uint32_t qp = 0; qp < kConnections; ++qp) {
    auto connection =
        dispatcher->attach_queue_pair(100 + qp, {.context = &logs[qp], .receive_source = *handle});
    ASSERT_TRUE(connection.ok());
    connections.push_back(*connection);
  }
  if (GetParam().drive == Drive::host) run_all_once(*dispatcher);  // the commands
  ASSERT_TRUE(work_until(
      *dispatcher, [&] { return dispatcher->counters().pollers[0].commands >= 1 + kConnections; }));
  for (std::uint64_t i = 0; i < kEach; ++i) {
    for (std::uint32_t qp = 0; qp < kConnections; ++qp) {
      ASSERT_TRUE(work_until(*dispatcher, [&] { return source->complete(100 + qp, i); }));
    }
  }
  ASSERT_TRUE(work_until(*dispatcher, [&] {
    return std::all_of(logs.begin(), logs.end(),
                       [](const auto& log) { return log.count == kEach; });
  }));
  for (const auto& log : logs) log.expect_in_order();
  EXPECT_TRUE(work_until(*dispatcher, [&] { return source->retired() == kEach * kConnections; }));
  EXPECT_EQ(dispatcher->counters().pollers[0].orphans, 0u);
}

// R3 where a connection has one source for itself alone.
TEST_P(Routing, ASourceOfASingleConnectionKeepsItsOrderWhateverTheNumbers) {
  auto dispatcher = start_with(3);
  auto source = std::make_shared<SyntheticSource>(64);
  ConnectionLog log;
  auto handle = dispatcher->attach(source, {.single_connection = true},
                                   [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                     log.enter();
                                     for (const ibv_wc& wc : batch) log.note(wc);
                                     log.leave();
                                   });
  ASSERT_TRUE(handle.ok());
  for (std::uint64_t i = 0; i < 2000; ++i) {
    ASSERT_TRUE(work_until(*dispatcher,
                           [&] { return source->complete(static_cast<std::uint32_t>(i % 7), i); }));
  }
  ASSERT_TRUE(work_until(*dispatcher, [&] { return log.count == 2000; }));
  log.expect_in_order();
}

// A failed completion: only wr_id, status, qp_num and vendor_err are valid.
TEST_P(Routing, RubbishInFailedCompletionsIsZeroed) {
  auto dispatcher = start_with(1);
  auto source = std::make_shared<SyntheticSource>();
  std::atomic<int> clean{0};
  auto handle = dispatcher->attach(source, {.order = Order::none},
                                   [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                     for (const ibv_wc& wc : batch) {
                                       if (wc.wr_id == 9 && wc.byte_len == 0 && wc.imm_data == 0 &&
                                           wc.vendor_err == 3 && wc.status == IBV_WC_WR_FLUSH_ERR) {
                                         ++clean;
                                       }
                                     }
                                   });
  ASSERT_TRUE(handle.ok());
  ibv_wc wc;
  std::memset(&wc, 0xEE, sizeof wc);
  wc.wr_id = 9;
  wc.status = IBV_WC_WR_FLUSH_ERR;
  wc.vendor_err = 3;
  ASSERT_TRUE(source->complete({&wc, 1}));
  EXPECT_TRUE(work_until(*dispatcher, [&] { return clean == 1; }));
}

TEST(Routing, AFailedCompletionBringsTheConnectionDownAndIsToldOnce) {
  auto dispatcher = start(small_config(2));
  auto source = std::make_shared<SyntheticSource>();
  std::atomic<int> handled{0}, told{0};
  std::atomic<ConnectionId> about{ConnectionId::none};
  auto receive =
      dispatcher->attach(source, {}, [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
        handled += static_cast<int>(batch.size());
      });
  ASSERT_TRUE(receive.ok());
  auto connection = dispatcher->attach_queue_pair(
      5, {.receive_source = *receive, .on_event = [&](ConnectionId id, rpma::ConnectionEvent) {
            about = id;
            ++told;
          }});
  ASSERT_TRUE(connection.ok());
  EXPECT_FALSE((*connection)->down());
  for (std::uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(source->complete(5, i, IBV_WC_WR_FLUSH_ERR));
  EXPECT_TRUE(eventually([&] { return handled == 10 && told > 0; }));
  EXPECT_TRUE((*connection)->down());
  EXPECT_EQ(about, (*connection)->id());
  ASSERT_TRUE((*connection)->detach(kGenerous).ok());
  EXPECT_EQ(told, 1);
}

// A segment that was being filled kept the count of a full one when a whole batch, lent and not
// copied, came behind it in the same burst: its stale rest was handled, too.
TEST(Routing, ABatchLentBehindAPartlyFilledSegmentBringsNothingTwice) {
  constexpr std::uint32_t kTurns = 8;
  auto dispatcher = start(small_config(2, WaitMode::busy, Drive::host));
  auto source = std::make_shared<SyntheticSource>();
  std::array<ConnectionLog, 2> logs;
  auto receive = dispatcher->attach(source, {}, note_in_log);
  ASSERT_TRUE(receive.ok());
  std::vector<std::shared_ptr<ConnectionHandle>> connections;
  for (std::uint32_t i = 0; i < 2; ++i) {
    auto connection =
        dispatcher->attach_queue_pair(1 + i, {.context = &logs[i], .receive_source = *receive});
    ASSERT_TRUE(connection.ok());
    connections.push_back(*connection);
  }
  ASSERT_TRUE(
      run_until(*dispatcher, [&] { return dispatcher->counters().pollers[0].commands >= 3; }));
  // In turn a batch that ends with three of the first connection, and one that is all its own.
  std::array<std::uint64_t, 2> next{};
  const auto complete = [&](std::uint32_t connection, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i)
      ASSERT_TRUE(source->complete(1 + connection, next[connection]++));
  };
  for (std::uint32_t turn = 0; turn < kTurns; ++turn) {
    complete(1, 29);
    complete(0, 3 + 32);
  }
  // The workers lag behind, so that the poller takes several batches before it publishes.
  for (std::uint32_t i = 0; i < 4 * kTurns && source->pending() > 0; ++i)
    dispatcher->poller(0).run_once();
  ASSERT_EQ(source->pending(), 0u);
  ASSERT_TRUE(run_until(*dispatcher, [&] { return source->retired() >= next[0] + next[1]; }));
  for (std::uint32_t i = 0; i < 10; ++i) run_all_once(*dispatcher);
  for (std::uint32_t i = 0; i < 2; ++i) {
    logs[i].expect_in_order();
    EXPECT_EQ(logs[i].count, next[i]) << "connection " << i;
  }
}

// R3: several pollers may feed one lane. A connection by number has one source only, so the second
// one is the lane's own test: two sources, two connections with one log each would prove nothing.
// Here the same qp_num completes on two receive sources of two pollers, each a lane of its own, and
// each lane must keep its order.
TEST(Routing, OneQueuePairOnTwoPollersKeepsTheOrderOfEach) {
  DispatcherConfig config = small_config(3);
  config.pollers[0].count = 2;
  auto dispatcher = start(config);
  std::array<std::shared_ptr<SyntheticSource>, 2> sources;
  std::array<ConnectionLog, 2> logs;
  std::vector<std::shared_ptr<ConnectionHandle>> connections;
  for (std::uint32_t i = 0; i < 2; ++i) {
    sources[i] = std::make_shared<SyntheticSource>(128);
    auto receive = dispatcher->attach(sources[i], {.poller = i}, note_in_log);
    ASSERT_TRUE(receive.ok());
    EXPECT_EQ((*receive)->poller(), i);
    auto connection =
        dispatcher->attach_queue_pair(7, {.context = &logs[i], .receive_source = *receive});
    ASSERT_TRUE(connection.ok());
    connections.push_back(*connection);
  }
  ASSERT_TRUE(eventually([&] {
    const auto counters = dispatcher->counters();
    return counters.pollers[0].commands == 2 && counters.pollers[1].commands == 2;
  }));
  std::vector<std::thread> feeders;
  for (std::uint32_t i = 0; i < 2; ++i) {
    feeders.emplace_back([&, i] {
      for (std::uint64_t n = 0; n < 5000; ++n) complete_when_room(*sources[i], 7, n);
    });
  }
  for (std::thread& feeder : feeders) feeder.join();
  EXPECT_TRUE(eventually([&] { return logs[0].count == 5000 && logs[1].count == 5000; }));
  for (const auto& log : logs) log.expect_in_order();
}

// One connection's slow handler holds up its lane, and nothing else, also behind one receive CQ.
TEST(Routing, ASlowHandlerHoldsUpItsOwnLaneAlone) {
  auto dispatcher = start(small_config(2));
  auto source = std::make_shared<SyntheticSource>(256);
  Gate gate;
  std::atomic<std::uint64_t> slow{0}, quick{0};
  auto receive = dispatcher->attach(
      source, {}, [&](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
        if (info.context == &gate) {
          gate.pass();
          slow += batch.size();
        } else {
          quick += batch.size();
        }
      });
  ASSERT_TRUE(receive.ok());
  auto a = dispatcher->attach_queue_pair(1, {.context = &gate, .receive_source = *receive});
  auto b = dispatcher->attach_queue_pair(2, {.receive_source = *receive});
  ASSERT_TRUE(a.ok() && b.ok());
  ASSERT_TRUE(eventually([&] { return dispatcher->counters().pollers[0].commands == 3; }));
  // The slow one has a long queue; less than all segments, or the shared CQ would have to wait.
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(source->complete(1, i));
  ASSERT_TRUE(eventually([&] { return gate.waiting() == 1; }));
  for (std::uint64_t i = 0; i < 3000; ++i) complete_when_room(*source, 2, i);
  EXPECT_TRUE(eventually([&] { return quick == 3000; })) << quick;
  EXPECT_EQ(slow, 0u);
  EXPECT_EQ(gate.waiting(), 1u);
  gate.open();
  EXPECT_TRUE(eventually([&] { return slow == 100; }));
}

// Work behind a busy worker is taken by a parked one: a handler blocks while its lane, or another,
// is runnable; whichever order they were published in.
TEST(Routing, ParkedWorkersTakeWhatABusyOneLeaves) {
  auto dispatcher = start(small_config(2));
  auto lanes = std::make_shared<SyntheticSource>(512),
       loose = std::make_shared<SyntheticSource>(512);
  std::atomic<std::uint64_t> done{0};
  std::atomic<Gate*> gate{nullptr};
  auto receive = dispatcher->attach(
      lanes, {},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { done += batch.size(); });
  auto plain = dispatcher->attach(loose, {.order = Order::none},
                                  [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                    if (Gate* const at = gate.load()) at->pass();
                                    done += batch.size();
                                  });
  ASSERT_TRUE(receive.ok() && plain.ok());
  auto connection = dispatcher->attach_queue_pair(1, {.receive_source = *receive});
  ASSERT_TRUE(connection.ok());
  ASSERT_TRUE(eventually([&] { return dispatcher->counters().pollers[0].commands == 3; }));
  std::uint64_t expected = 0;
  for (int round = 0; round < 50; ++round) {
    Gate closed;
    gate = &closed;
    std::vector<ibv_wc> many(200);
    for (ibv_wc& wc : many) wc.qp_num = 1;
    ASSERT_TRUE(lanes->complete(many));  // more than a lane's budget: it is put back
    ASSERT_TRUE(loose->complete(1, 0));
    EXPECT_TRUE(eventually([&] { return done == expected + 200; }))
        << "the lane waits behind a busy worker";
    EXPECT_TRUE(eventually([&] { return closed.waiting() == 1; }));
    gate = nullptr;
    closed.open();
    expected += 201;
    ASSERT_TRUE(eventually([&] { return done == expected; }));
    ASSERT_TRUE(eventually([&] { return closed.waiting() == 0; }));
  }
}

TEST(Routing, AHotConnectionDoesNotStarveTheOthers) {
  auto hot = std::make_shared<SyntheticSource>(1024), quiet = std::make_shared<SyntheticSource>(64);
  std::atomic<bool> end{false};
  std::atomic<std::uint64_t> of_hot{0}, of_quiet{0};
  auto dispatcher = start(small_config(1));
  auto a = dispatcher->attach(
      hot, {.single_connection = true},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { of_hot += batch.size(); });
  auto b = dispatcher->attach(
      quiet, {.single_connection = true},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { of_quiet += batch.size(); });
  ASSERT_TRUE(a.ok() && b.ok());
  std::thread feeder([&] {
    std::uint64_t i = 0;
    while (!end) static_cast<void>(hot->complete(1, i++));
  });
  ASSERT_TRUE(eventually([&] { return of_hot > 1000; }));
  for (std::uint64_t i = 0; i < 200; ++i) {
    complete_when_room(*quiet, 2, i);
    EXPECT_TRUE(eventually([&] { return of_quiet == i + 1; }));
    if (HasFailure()) break;
  }
  end = true;
  feeder.join();
}

/// Fills a source up, whatever is taken out of it.
void keep_full(SyntheticSource& source, std::uint32_t& qp_num, std::uint32_t qp_nums) {
  while (source.complete(qp_num, 0)) qp_num = qp_num % qp_nums + 1;
}

// One poller that never runs dry starved the other for good.
TEST(Routing, EachPollerOfAPoolGetsItsTurn) {
  for (const Order order : {Order::none, Order::per_connection}) {
    DispatcherConfig config = small_config(1, WaitMode::busy, Drive::host);
    config.pollers[0].count = 2;
    auto dispatcher = start(config);
    std::array<std::uint64_t, 2> handled{};
    std::array<std::shared_ptr<SyntheticSource>, 2> sources;
    for (std::uint32_t i = 0; i < 2; ++i) {
      sources[i] = std::make_shared<SyntheticSource>(1024);
      ASSERT_TRUE(
          dispatcher
              ->attach(sources[i], {.order = order, .poller = i, .single_connection = true},
                       [&handled, i](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                         handled[i] += batch.size();
                       })
              .ok());
    }
    std::uint32_t qp_num = 1;
    for (int round = 0; round < 1000; ++round) {
      for (std::uint32_t i = 0; i < 2; ++i) {
        keep_full(*sources[i], qp_num, 1);
        dispatcher->poller(i).run_once();
      }
      dispatcher->worker(0).run_once();
    }
    EXPECT_GT(handled[0], (handled[0] + handled[1]) / 3) << to_string(order);
    EXPECT_GT(handled[1], (handled[0] + handled[1]) / 3) << to_string(order);
  }
}

}  // namespace
}  // namespace sluice::testing
