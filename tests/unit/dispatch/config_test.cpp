// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/dispatch/config.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "sluice/topology/cpus.hpp"
#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::testing {
namespace {

void expect_says(const Status& status, const std::vector<const char*>& words) {
  for (const char* word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos)
        << "'" << word << "' is missing in: " << status.message();
  }
}

struct BadValue {
  const char* name;
  std::function<void(DispatcherConfig&)> spoil;
  std::vector<const char*> says;
};

TEST(DispatcherConfig, DefaultsAreValid) {
  EXPECT_TRUE(DispatcherConfig{}.validate().ok());
}

TEST(DispatcherConfig, EachBadValueIsRefusedByFieldValueAndRange) {
  using C = DispatcherConfig;
  const BadValue bad_values[] = {
      {"no poller", [](C& c) { c.pollers[0].count = 0; }, {"pollers.count", " 0", "1", "64"}},
      {"pollers", [](C& c) { c.pollers[0].count = 65; }, {"pollers.count", "65", "1", "64"}},
      {"batches low",
       [](C& c) { c.pollers[0].batch_count = 1; },
       {"pollers.batch_count", " 1;", "2", "65536"}},
      {"batches high",
       [](C& c) { c.pollers[0].batch_count = 65537; },
       {"pollers.batch_count", "65537", "65536"}},
      {"hot rounds",
       [](C& c) { c.pollers[0].hot_rounds = (1U << 20) + 1; },
       {"pollers.hot_rounds", "1048577", "1048576"}},
      {"a latency target of more than a second",
       [](C& c) { c.pollers[0].latency_target = std::chrono::milliseconds(1001); },
       {"pollers.latency_target", "1001000000 ns", "1000000000 ns"}},
      {"a latency target before the cause",
       [](C& c) { c.pollers[0].latency_target = std::chrono::nanoseconds(-1); },
       {"pollers.latency_target", "-1 ns"}},
      {"a cap above one CPU",
       [](C& c) { c.pollers[0].cpu_cap = 1.5; },
       {"pollers.cpu_cap", "1.5", "between 0 and 1"}},
      {"a cap below none", [](C& c) { c.pollers[0].cpu_cap = -0.5; }, {"pollers.cpu_cap", "-0.5"}},
      {"a cap that is no number",
       [](C& c) { c.pollers[0].cpu_cap = std::nan(""); },
       {"pollers.cpu_cap", "nan"}},
      {"no sources",
       [](C& c) { c.pollers[0].sources_max = 0; },
       {"pollers.sources_max", " 0;", "1"}},
      {"sources",
       [](C& c) { c.pollers[0].sources_max = (1U << 20) + 1; },
       {"pollers.sources_max", "1048577"}},
      {"connections",
       [](C& c) { c.connections_max = (1U << 20) + 1; },
       {"connections_max", "1048577", "1048576"}},
      {"no pools", [](C& c) { c.pools.clear(); }, {"pools", " 0;", "1", "64"}},
      {"too many pools",
       [](C& c) {
         c.pools.clear();
         for (int i = 0; i < 65; ++i) {
           c.pools.emplace_back();
           c.pools.back().name = std::to_string(i);
         }
       },
       {"pools", "65", "64"}},
      {"no worker",
       [](C& c) { c.pools[0].workers = 0; },
       {"workers", "'default'", " 0;", "1", "58"}},
      {"workers", [](C& c) { c.pools[0].workers = 59; }, {"workers", "'default'", "59", "58"}},
      {"spin",
       [](C& c) { c.pools[0].spin_rounds = (1U << 20) + 1; },
       {"spin_rounds", "'default'", "1048577"}},
      {"nameless pool", [](C& c) { c.pools[0].name.clear(); }, {"pool name", "''", "empty"}},
      {"pool twice", [](C& c) { c.pools.push_back(c.pools[0]); }, {"'default'", "twice"}},
      {"stall",
       [](C& c) { c.stall_threshold = std::chrono::milliseconds(-5); },
       {"stall_threshold", "-5", "0"}},
      {"grace",
       [](C& c) { c.last_wqe_grace = std::chrono::milliseconds(-7); },
       {"last_wqe_grace", "-7", "0"}},
  };
  for (const BadValue& bad : bad_values) {
    SCOPED_TRACE(bad.name);
    DispatcherConfig config;
    bad.spoil(config);
    const Status status = config.validate();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    expect_says(status, bad.says);
    const auto started = Dispatcher::start(config);
    ASSERT_FALSE(started.ok());
    EXPECT_EQ(started.status().code(), StatusCode::invalid_argument);
  }
}

TEST(DispatcherConfig, ExtremesOfTheRangesAreTaken) {
  DispatcherConfig config;
  config.pollers[0].count = 64;
  config.pollers[0].batch_count = 2;
  config.pollers[0].hot_rounds = 0;
  config.pollers[0].sources_max = 1;
  config.pools[0].workers = 58;
  config.pools[0].spin_rounds = 0;
  config.stall_threshold = std::chrono::milliseconds(0);
  EXPECT_TRUE(config.validate().ok());
}

TEST(DispatcherStart, CpuOutsideTheAllowedSetIsRefusedByName) {
  auto allowed = topology::allowed_cpus();
  ASSERT_TRUE(allowed.ok());
  const unsigned outside = allowed->back() + 1;
  DispatcherConfig config = small_config(1);
  config.pollers[0].cpus = {allowed->front(), outside};
  auto started = Dispatcher::start(config);
  ASSERT_FALSE(started.ok());
  EXPECT_EQ(started.status().code(), StatusCode::invalid_argument);
  const std::string number = std::to_string(outside), may = std::to_string(allowed->front());
  expect_says(started.status(), {"pollers.cpus", number.c_str(), may.c_str()});

  config = small_config(1);
  config.pools[0].cpus = {outside};
  started = Dispatcher::start(config);
  ASSERT_FALSE(started.ok());
  expect_says(started.status(), {"pool 'default'", number.c_str()});
}

TEST(DispatcherStart, PinsPollersAndWorkersWhereTheConfigSays) {
  auto allowed = topology::allowed_cpus();
  ASSERT_TRUE(allowed.ok());
  DispatcherConfig config = small_config(1);
  config.pollers[0].cpus = {allowed->back()};
  config.pools[0].cpus = {allowed->front()};
  auto dispatcher = start(config);
  ASSERT_NE(dispatcher, nullptr);
  std::atomic<int> cpu_of_poller{-1}, cpu_of_worker{-1};
  const auto where = [](std::atomic<int>& out) {
    return [&out](std::span<const ibv_wc>, const BatchInfo&) noexcept {
      cpu_set_t set;
      CPU_ZERO(&set);
      if (::sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == 1)
        out = ::sched_getcpu();
    };
  };
  auto on_poller = std::make_shared<SyntheticSource>(),
       on_worker = std::make_shared<SyntheticSource>();
  ASSERT_TRUE(dispatcher->attach(on_poller, {.order = Order::inlined}, where(cpu_of_poller)).ok());
  ASSERT_TRUE(dispatcher->attach(on_worker, {.order = Order::none}, where(cpu_of_worker)).ok());
  ASSERT_TRUE(on_poller->complete(1, 1));
  ASSERT_TRUE(on_worker->complete(1, 1));
  EXPECT_TRUE(eventually([&] { return cpu_of_poller >= 0 && cpu_of_worker >= 0; }));
  EXPECT_EQ(cpu_of_poller, static_cast<int>(allowed->back()));
  EXPECT_EQ(cpu_of_worker, static_cast<int>(allowed->front()));
}

TEST(DispatcherStart, DescriptorLimitTooLowIsSaidAtStart) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 300;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  DispatcherConfig config = small_config(1);
  config.connections_max = 1000;
  auto refused = Dispatcher::start(config);
  config.connections_max = 20;
  auto fits = Dispatcher::start(config);
  config.connections_max = 0;  // as many as fit
  auto automatic = Dispatcher::start(config);
  low.rlim_cur = 64;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  auto none_fits = Dispatcher::start(config);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::resource_exhausted);
  expect_says(refused.status(), {"1000", "300", "ulimit -n", "connections_max"});
  EXPECT_TRUE(fits.ok()) << fits.status().to_string();
  EXPECT_TRUE(automatic.ok()) << automatic.status().to_string();
  ASSERT_FALSE(none_fits.ok());
  expect_says(none_fits.status(), {"64", "ulimit -n"});
}

// A sanitizer's own memory fits no limit.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
[[noreturn]] void start_with_little_memory() {
  const rlimit little{512UL << 20, 512UL << 20};
  ::setrlimit(RLIMIT_AS, &little);
  DispatcherConfig config = small_config(1);
  config.pools[0].workers = 58;
  for (int i = 1; i < 4; ++i) {
    config.pools.push_back(config.pools[0]);
    config.pools.back().name = std::to_string(i);
  }
  auto started = Dispatcher::start(config);
  std::_Exit(!started.ok() && started.status().code() == StatusCode::resource_exhausted ? 0 : 1);
}

TEST(DispatcherStart, MoreThreadsThanTheSystemGivesIsAFailureAndNoCrash) {
  // Threads need memory for their stacks: with little address space there is none. In a process of
  // its own.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(start_with_little_memory(), ::testing::ExitedWithCode(0), "");
}
#endif

TEST(DispatcherAttach, UnknownPoolIsRefusedWithThoseThereAre) {
  DispatcherConfig config = small_config(1, WaitMode::event, Drive::host);
  config.pools[0].name = "apply";
  config.pools.push_back(config.pools[0]);
  config.pools[1].name = "ack";
  auto dispatcher = start(config);
  auto source = std::make_shared<SyntheticSource>();
  auto attached = dispatcher->attach(source, {.pool = "aply"}, [](auto, const auto&) noexcept {});
  ASSERT_FALSE(attached.ok());
  EXPECT_EQ(attached.status().code(), StatusCode::invalid_argument);
  expect_says(attached.status(), {"'aply'", "apply", "ack"});
  EXPECT_EQ(source->ownership_epoch() % 2, 0u) << "a refused attach kept the source";
  EXPECT_TRUE(dispatcher->attach(source, {.pool = "ack"}, [](auto, const auto&) noexcept {}).ok());
}

TEST(DispatcherAttach, WithoutSourceOrHandlerOrPollerIsRefused) {
  auto dispatcher = start(small_config(1, WaitMode::event, Drive::host));
  auto source = std::make_shared<SyntheticSource>();
  const auto ignore = [](auto, const auto&) noexcept {};
  EXPECT_EQ(dispatcher->attach(nullptr, {}, ignore).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(dispatcher->attach(source, {}, Handler{}).status().code(),
            StatusCode::invalid_argument);
  const auto no_poller = dispatcher->attach(source, {.poller = 7}, ignore);
  ASSERT_FALSE(no_poller.ok());
  expect_says(no_poller.status(), {"7"});
  EXPECT_FALSE(dispatcher->attach_queue_pair(1, {}).ok());
}

TEST(DispatcherAttach, BeyondSourcesMaxAndConnectionsMaxIsRefused) {
  DispatcherConfig config = small_config(1, WaitMode::event, Drive::host);
  config.pollers[0].sources_max = 4;
  config.connections_max = 2;
  auto dispatcher = start(config);
  const auto ignore = [](auto, const auto&) noexcept {};
  std::vector<std::shared_ptr<SourceHandle>> handles;
  auto receive = dispatcher->attach(std::make_shared<SyntheticSource>(), {}, ignore);
  ASSERT_TRUE(receive.ok());
  std::vector<std::shared_ptr<ConnectionHandle>> connections;
  for (std::uint32_t qp = 1; qp <= 2; ++qp) {
    auto connection = dispatcher->attach_queue_pair(qp, {.receive_source = *receive});
    ASSERT_TRUE(connection.ok()) << connection.status().to_string();
    connections.push_back(*connection);
  }
  EXPECT_EQ(dispatcher->attach_queue_pair(3, {.receive_source = *receive}).status().code(),
            StatusCode::does_not_fit);
  for (int i = 0; i < 3; ++i) {
    auto attached = dispatcher->attach(std::make_shared<SyntheticSource>(), {}, ignore);
    ASSERT_TRUE(attached.ok()) << attached.status().to_string();
  }
  EXPECT_EQ(dispatcher->attach(std::make_shared<SyntheticSource>(), {}, ignore).status().code(),
            StatusCode::resource_exhausted);
  // Room again after a detach.
  EXPECT_TRUE(detach_by_running(*dispatcher, *connections[0]).clean);
}

}  // namespace
}  // namespace sluice::testing
