// SPDX-License-Identifier: BSD-3-Clause
// sluice-bench-allocations COUNT: sends COUNT completions of each order through a dispatcher, once
// stepped and once with threads that sleep now and then, and prints how many allocations of the
// whole process that took, first warmed up.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "../figures/sources.hpp"
#include "sluice/dispatch/dispatcher.hpp"
#include "sluice_test/count_allocations.hpp"

namespace sluice::bench {
namespace {

constexpr std::uint32_t kConnections = 8;
constexpr std::uint32_t kWarmUp = 20'000;
/// One burst, then a pause that the threads sleep through, now and then.
constexpr std::uint32_t kBurst = 100, kBurstsAPause = 50;
constexpr std::chrono::microseconds kPause{200};

/// The wrappers are what malloc and operator new come to: a count that cannot count says nothing.
bool counts() {
  counting = true;
  const std::uint64_t before = allocations;
  void* volatile memory = std::malloc(10);
  auto* volatile number = new int(1);
  counting = false;
  std::free(memory);
  delete number;
  return allocations == before + 2;
}

Status flow(Order order, Drive drive, std::uint32_t completions) {
  DispatcherConfig config;
  config.drive = drive;
  config.pollers[0].wait = WaitMode::event;
  config.pollers[0].sources_max = 4;
  config.pools[0].workers = 2;
  config.connections_max = 64;
  auto started = Dispatcher::start(std::move(config));
  if (!started) return started.status();
  Dispatcher& dispatcher = **started;
  auto source = std::make_shared<EventSource>(256);
  std::atomic<std::uint64_t> handled{0};
  auto attached = dispatcher.attach(
      source, {.order = order},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
  if (!attached) return attached.status();
  std::vector<std::shared_ptr<ConnectionHandle>> handles;
  for (std::uint32_t qp = 0; order == Order::per_connection && qp < kConnections; ++qp) {
    auto handle = dispatcher.attach_queue_pair(qp, {.receive_source = *attached});
    if (!handle) return handle.status();
    handles.push_back(std::move(*handle));
  }
  const auto step = [&] {
    if (drive == Drive::own_threads) return std::this_thread::yield();
    dispatcher.poller(0).run_once();
    dispatcher.worker(0).run_once();
    dispatcher.worker(1).run_once();
    dispatcher.control().run_once();
  };
  std::uint64_t given = 0;
  const auto give = [&](std::uint64_t until) {
    for (std::uint32_t burst = 0; given < until; ++burst) {
      for (std::uint32_t i = 0; i < kBurst && given < until; ++i) {
        while (!source->complete(static_cast<std::uint32_t>(given % kConnections))) step();
        ++given;
      }
      while (handled < given) step();
      if (drive == Drive::own_threads && burst % kBurstsAPause == 0)
        std::this_thread::sleep_for(kPause);
    }
  };
  give(kWarmUp);
  counting = true;
  give(kWarmUp + completions);
  counting = false;
  if (drive == Drive::own_threads) return dispatcher.stop(std::chrono::seconds(5));
  for (Runnable* part : {&dispatcher.poller(0), &dispatcher.worker(0), &dispatcher.worker(1),
                         &dispatcher.control()}) {
    part->release_thread();
  }
  return dispatcher.stop(std::chrono::seconds(5));
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice;
  const auto completions =
      static_cast<std::uint32_t>(argc == 2 ? std::strtoul(argv[1], nullptr, 10) : 0);
  if (completions == 0) {
    std::fputs("usage: sluice-bench-allocations COUNT\n", stderr);
    return 2;
  }
  if (!bench::counts()) {
    std::fputs("sluice-bench-allocations: the allocator's functions are not replaced\n", stderr);
    return 1;
  }
  allocations = 0;
  for (const Order order : {Order::inlined, Order::none, Order::per_connection}) {
    for (const Drive drive : {Drive::host, Drive::own_threads}) {
      if (const Status status = bench::flow(order, drive, completions); !status.ok()) {
        std::fprintf(stderr, "sluice-bench-allocations: %s\n", status.to_string().c_str());
        return 1;
      }
    }
  }
  std::printf("allocations %llu\n", static_cast<unsigned long long>(allocations.load()));
  return 0;
}
