// SPDX-License-Identifier: BSD-3-Clause
// Order per_key: what has the same key is handled in its order, on one worker at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <thread>
#include <vector>

#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::testing {
namespace {

// A wr_id says which source (its top byte), which key, and the how manyeth of that key there.
std::uint64_t wr_id_of(std::uint64_t source, std::uint64_t key, std::uint64_t sequence) {
  return source << 56 | key << 32 | sequence;
}
std::uint64_t key_of(const ibv_wc& wc) noexcept {
  return wc.wr_id >> 32 & 0xFFFFFF;
}

constexpr std::uint32_t kSources = 4;

/// What the handlers of one key saw.
struct KeyLog {
  std::atomic<std::uint64_t> count{0};
  std::atomic<std::uint32_t> inside{0};
  std::atomic<std::uint32_t> overlaps{0}, out_of_order{0};
  std::array<std::uint64_t, kSources> next{};  ///< of each source; only touched inside a call

  void note(const ibv_wc& wc) {
    if (inside.fetch_add(1, std::memory_order_acq_rel) != 0) overlaps.fetch_add(1);
    std::uint64_t& expected = next.at(wc.wr_id >> 56);
    if ((wc.wr_id & 0xFFFFFFFF) != expected) out_of_order.fetch_add(1);
    expected = (wc.wr_id & 0xFFFFFFFF) + 1;
    if (wc.wr_id % 8 == 0) std::this_thread::yield();  // with the door open for another worker
    inside.fetch_sub(1, std::memory_order_acq_rel);
    count.fetch_add(1, std::memory_order_release);
  }
  void expect_in_order() const {
    EXPECT_EQ(overlaps, 0u) << "one key's handler ran on two workers at once";
    EXPECT_EQ(out_of_order, 0u);
  }
};

class KeyOrder : public ::testing::TestWithParam<Drive> {
 protected:
  template <typename Condition>
  [[nodiscard]] bool work_until(Dispatcher& dispatcher, Condition condition) {
    if (GetParam() == Drive::host) return run_until(dispatcher, condition);
    return eventually(condition);
  }
  /// Several sources on two pollers, fed in turn, all keys through `key_lanes`.
  void expect_order(std::uint32_t workers, std::uint32_t key_lanes, std::uint64_t keys) {
    constexpr std::uint64_t kEach = 300;  // completions of each key on each source
    DispatcherConfig config = small_config(workers, WaitMode::event, GetParam());
    config.pollers[0].count = 2;
    config.pools[0].key_lanes = key_lanes;
    std::vector<KeyLog> logs(keys);
    std::array<std::shared_ptr<SyntheticSource>, kSources> sources;
    auto dispatcher = start(config);
    for (std::uint32_t i = 0; i < kSources; ++i) {
      sources[i] = std::make_shared<SyntheticSource>(200);
      const auto handle =
          dispatcher->attach(sources[i], {.order = Order::per_key, .poller = i % 2, .key = key_of},
                             [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                               for (const ibv_wc& wc : batch) logs[key_of(wc)].note(wc);
                             });
      ASSERT_TRUE(handle.ok()) << handle.status().to_string();
    }
    for (std::uint64_t sequence = 0; sequence < kEach; ++sequence) {
      for (std::uint64_t key = 0; key < keys; ++key) {
        for (std::uint32_t i = 0; i < kSources; ++i) {
          ASSERT_TRUE(work_until(
              *dispatcher, [&] { return sources[i]->complete(i, wr_id_of(i, key, sequence)); }));
        }
      }
    }
    ASSERT_TRUE(work_until(*dispatcher, [&] {
      return std::all_of(logs.begin(), logs.end(),
                         [](const KeyLog& log) { return log.count == kEach * kSources; });
    }));
    for (const KeyLog& log : logs) log.expect_in_order();
    for (const auto& source : sources)
      EXPECT_TRUE(work_until(*dispatcher, [&] { return source->retired() == kEach * keys; }));
  }
};
INSTANTIATE_TEST_SUITE_P(Drives, KeyOrder, ::testing::Values(Drive::own_threads, Drive::host),
                         [](const auto& param) {
                           return std::string(param.param == Drive::host ? "host" : "threads");
                         });

TEST_P(KeyOrder, HoldsAcrossSourcesAndPollers) {
  expect_order(4, 256, 7);
}
TEST_P(KeyOrder, HoldsWhereKeysShareLanes) {
  expect_order(4, 3, 11);
}
TEST_P(KeyOrder, HoldsWithASingleLane) {
  expect_order(3, 1, 5);
}
TEST_P(KeyOrder, HoldsInAPoolOfOneWorker) {
  expect_order(1, 256, 7);
}

// With a worker free for each lane, one source's handler is called for two keys at once.
TEST(Keys, OtherKeysGoOnWhileOneKeysHandlerIsBlocked) {
  auto dispatcher = start(small_config(2));
  auto source = std::make_shared<SyntheticSource>(256);
  Gate gate;
  std::atomic<std::uint64_t> slow{0}, quick{0};
  auto handle = dispatcher->attach(source, {.order = Order::per_key, .key = key_of},
                                   [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                     for (const ibv_wc& wc : batch) {
                                       if (key_of(wc) == 1) gate.pass();
                                       ++(key_of(wc) == 1 ? slow : quick);
                                     }
                                   });
  ASSERT_TRUE(handle.ok());
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(source->complete(1, wr_id_of(0, 1, i)));
  ASSERT_TRUE(eventually([&] { return gate.waiting() == 1; }));
  for (std::uint64_t i = 0; i < 2000; ++i) complete_when_room(*source, 1, wr_id_of(0, 2, i));
  EXPECT_TRUE(eventually([&] { return quick == 2000; })) << quick;
  EXPECT_EQ(slow, 0u);
  EXPECT_EQ(gate.waiting(), 1u);
  gate.open();
  EXPECT_TRUE(eventually([&] { return slow == 100; }));
}

// The same key waits, also if it comes from another source on another poller.
TEST(Keys, ABlockedKeyIsBlockedForEverySource) {
  DispatcherConfig config = small_config(3);
  config.pollers[0].count = 2;
  auto dispatcher = start(config);
  std::array<std::shared_ptr<SyntheticSource>, 2> sources;
  Gate gate;
  std::atomic<std::uint64_t> same{0}, other{0};
  for (std::uint32_t i = 0; i < 2; ++i) {
    sources[i] = std::make_shared<SyntheticSource>();
    auto handle =
        dispatcher->attach(sources[i], {.order = Order::per_key, .poller = i, .key = key_of},
                           [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                             for (const ibv_wc& wc : batch) {
                               if (key_of(wc) == 1) gate.pass();
                               ++(key_of(wc) == 1 ? same : other);
                             }
                           });
    ASSERT_TRUE(handle.ok());
  }
  ASSERT_TRUE(sources[0]->complete(1, wr_id_of(0, 1, 0)));
  ASSERT_TRUE(eventually([&] { return gate.waiting() == 1; }));
  ASSERT_TRUE(sources[1]->complete(1, wr_id_of(1, 1, 0)));
  ASSERT_TRUE(sources[1]->complete(1, wr_id_of(1, 2, 0)));
  // What came behind it from there has been handled: a free worker would have taken both.
  ASSERT_TRUE(eventually([&] { return other == 1; }));
  EXPECT_EQ(gate.waiting(), 1u);
  EXPECT_EQ(same, 0u);
  gate.open();
  EXPECT_TRUE(eventually([&] { return same == 2; }));
}

// Of a failed completion little is valid: the key function never sees one.
TEST_P(KeyOrder, FailedCompletionsFollowTheirQueuePair) {
  constexpr std::uint32_t kQueuePair = 5;
  constexpr std::uint64_t kMany = 600;
  for (const std::uint32_t workers : {1U, 3U}) {
    auto dispatcher = start(small_config(workers, WaitMode::event, GetParam()));
    auto source = std::make_shared<SyntheticSource>(128);
    std::atomic<std::uint64_t> shown{0}, failed_shown{0};
    KeyLog log;
    auto handle = dispatcher->attach(source,
                                     {.order = Order::per_key,
                                      .key =
                                          [&](const ibv_wc& wc) noexcept {
                                            ++(wc.status == IBV_WC_SUCCESS ? shown : failed_shown);
                                            return std::uint64_t{kQueuePair};
                                          }},
                                     [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                       for (const ibv_wc& wc : batch) log.note(wc);
                                     });
    ASSERT_TRUE(handle.ok());
    // Its key is its qp_num, so the two kinds have one order.
    for (std::uint64_t i = 0; i < kMany; ++i) {
      const bool fails = i % 3 == 2;
      ASSERT_TRUE(work_until(*dispatcher, [&] {
        return source->complete(fails ? kQueuePair : 99, wr_id_of(0, 0, i),
                                fails ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS);
      }));
    }
    ASSERT_TRUE(work_until(*dispatcher, [&] { return log.count == kMany; }));
    log.expect_in_order();
    EXPECT_EQ(failed_shown, 0u);
    EXPECT_EQ(shown, workers == 1 ? 0 : kMany - kMany / 3) << "one worker needs no key";
  }
}

// Detach: everything that lies in lanes is handled first. Stepped, so that "first" is certain.
TEST(Keys, ADetachWaitsForWhatLiesInLanes) {
  auto dispatcher = start(small_config(2, WaitMode::event, Drive::host));
  auto source = std::make_shared<SyntheticSource>(64);
  std::uint64_t handled = 0;
  auto handle = dispatcher->attach(
      source, {.order = Order::per_key, .key = key_of},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
  ASSERT_TRUE(handle.ok());
  for (std::uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(source->complete(1, wr_id_of(0, i, 0)));
  bool done = false;
  DetachReport report;
  (*handle)->detach_async(kGenerous, [&](const DetachReport& r) {
    report = r;
    done = true;
  });
  for (int i = 0; i < 100; ++i) {
    dispatcher->poller(0).run_once();
    dispatcher->control().run_once();
  }
  EXPECT_EQ(source->pending(), 0u);
  EXPECT_FALSE(done) << "completions lie in lanes";
  ASSERT_TRUE(run_until(*dispatcher, [&] { return done; }));
  EXPECT_TRUE(report.clean) << report.to_string();
  EXPECT_EQ(handled, 40u);
  EXPECT_EQ(source->retired(), 40u);
}

TEST(Keys, ADetachAtItsDeadlineSaysHowManyWereLeftInLanes) {
  auto dispatcher = start(small_config(2));
  auto source = std::make_shared<SyntheticSource>(64);
  Gate gate;
  std::atomic<std::uint64_t> handled{0};
  auto handle = dispatcher->attach(source, {.order = Order::per_key, .key = key_of},
                                   [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                     gate.pass();
                                     handled += batch.size();
                                   });
  ASSERT_TRUE(handle.ok());
  for (std::uint64_t i = 0; i < 30; ++i) ASSERT_TRUE(source->complete(1, wr_id_of(0, 3, i)));
  ASSERT_TRUE(eventually([&] { return gate.waiting() == 1 && source->pending() == 0; }));
  const auto report = (*handle)->detach(std::chrono::milliseconds(1));
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->clean);
  EXPECT_EQ(report->completions_abandoned, 30u);
  gate.open();
  EXPECT_TRUE(eventually([&] { return handled == 30; }));
}

// --- what is refused

void ignore(std::span<const ibv_wc>, const BatchInfo&) noexcept {}

TEST(KeysRefused, WithoutAKeyFunction) {
  auto dispatcher = start(small_config(2, WaitMode::event, Drive::host));
  const std::string message =
      "the order per_key needs a key function (AttachOptions::key, ConnectionOptions::key)";
  auto source = std::make_shared<SyntheticSource>();
  const auto refused = dispatcher->attach(source, {.order = Order::per_key}, ignore);
  EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(refused.status().message(), message);
  // Nothing of it is left behind.
  EXPECT_TRUE(dispatcher->attach(source, {.order = Order::per_key, .key = key_of}, ignore).ok());
}

TEST(KeysRefused, ARouteOfThatOrderWithoutAKeyFunction) {
  DispatcherConfig config = small_config(2, WaitMode::event, Drive::host);
  config.routes.push_back({.name = "by-account", .order = Order::per_key});
  auto dispatcher = start(config);
  auto source = std::make_shared<SyntheticSource>();
  const auto refused = dispatcher->attach(source, {.route = "by-account"}, ignore);
  EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(refused.status().message(),
            "the order per_key needs a key function (AttachOptions::key, ConnectionOptions::key)");
  EXPECT_TRUE(dispatcher->attach(source, {.route = "by-account", .key = key_of}, ignore).ok());
}

TEST(KeysRefused, AsReceiveSourceOfAConnection) {
  auto dispatcher = start(small_config(2, WaitMode::event, Drive::host));
  auto handle = dispatcher->attach(std::make_shared<SyntheticSource>(),
                                   {.order = Order::per_key, .key = key_of}, ignore);
  ASSERT_TRUE(handle.ok());
  const auto refused = dispatcher->attach_queue_pair(7, {.receive_source = *handle});
  EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(refused.status().message().find("per_connection"), std::string::npos)
      << refused.status().message();
}

TEST(KeysRefused, LanesOutOfRange) {
  for (const std::uint32_t lanes : {0U, (1U << 20) + 1}) {
    DispatcherConfig config = small_config();
    config.pools[0].key_lanes = lanes;
    const Status status = config.validate();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find("key_lanes"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace sluice::testing
