// SPDX-License-Identifier: BSD-3-Clause
// What a dispatcher costs while nothing happens.
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../harness/cpu_time.hpp"
#include "figures.hpp"
#include "sluice/dispatch/dispatcher.hpp"
#include "sources.hpp"

namespace sluice::bench {
namespace {

constexpr std::size_t kSources = 1000;
constexpr std::chrono::seconds kLength{10};
constexpr std::chrono::milliseconds kQuickLength{200};

Status run_idle(Bench& bench) {
  DispatcherConfig config;
  config.pollers[0].count = 3;
  config.pollers[0].wait = WaitMode::event;
  config.pools[0].workers = 4;
  config.connections_max = 1;
  auto dispatcher = Dispatcher::start(std::move(config));
  if (!dispatcher) return dispatcher.status();
  for (std::size_t i = 0; i < kSources; ++i) {
    auto source = std::make_shared<EventSource>(4);
    if (!source->usable()) return {StatusCode::resource_exhausted, "no eventfd", errno};
    auto attached = (*dispatcher)
                        ->attach(std::move(source), {.order = Order::none},
                                 [](std::span<const ibv_wc>, const BatchInfo&) noexcept {});
    if (!attached) return attached.status();
  }
  const auto awake = [&] {
    std::uint64_t hot = 0, attached = 0;
    for (const PollerCounters& poller : (*dispatcher)->counters().pollers) {
      hot += poller.hot_sources;
      attached += poller.sources;
    }
    return attached < kSources || hot > 0;
  };
  constexpr int kLooksMax = 3000;
  for (int i = 0; awake() && i < kLooksMax; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (awake()) return {StatusCode::internal, "the sources did not turn cold"};

  const auto begin = std::chrono::steady_clock::now();
  const double cpu = process_cpu_seconds();
  std::this_thread::sleep_for(bench.quick() ? std::chrono::nanoseconds(kQuickLength) : kLength);
  const double used = process_cpu_seconds() - cpu;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  bench.add("idle.cpu_percent", 100 * used / took.count(), "of one CPU");
  return {};
}

}  // namespace

FigureGroup idle() {
  return {"idle", {{"idle.cpu_percent", "percent", at_most(0.5)}}, run_idle};
}

}  // namespace sluice::bench
