// SPDX-License-Identifier: BSD-3-Clause
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../harness/cpu_time.hpp"
#include "rdma.hpp"
#include "sluice/core/verbs/cq_group.hpp"
#include "sluice/dispatch/dispatcher.hpp"

namespace sluice::bench {
namespace {

constexpr std::uint32_t kPollers = 3;
constexpr std::uint32_t kConnections = 100;  ///< each with two ends here
constexpr std::uint32_t kSources = 1000;
constexpr std::uint32_t kReceives = 256;
constexpr std::chrono::seconds kPatience{20};
constexpr std::uint16_t kFirstPort = 20000, kPorts = 20000;

constexpr auto ignore = [](std::span<const ibv_wc>, const BatchInfo&) noexcept {};

/// Waits until this holds, as long as is reasonable.
template <typename Condition>
bool eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

Result<double> rdma_idle(const std::string& address, double seconds) {
  auto peer = rpma::Peer::listen_on(address);
  if (!peer) return peer.status();
  DispatcherConfig config;
  config.pollers[0].count = kPollers;
  config.pollers[0].wait = WaitMode::event;
  config.pools[0].workers = 4;
  config.connections_max = 2 * kConnections + 8;
  // What is attached goes before the dispatcher that polls it is let go of, and after it stopped.
  std::vector<std::shared_ptr<ConnectionHandle>> handles;
  std::mutex accepted_mutex;
  auto started = Dispatcher::start(std::move(config));
  if (!started) return started.status();
  Dispatcher& dispatcher = **started;
  std::uint32_t attached = 0;

  std::array<std::shared_ptr<rpma::SharedReceiveQueue>, kPollers> queues;
  std::array<std::shared_ptr<SourceHandle>, kPollers> receives;
  for (std::uint32_t i = 0; i < kPollers; ++i, ++attached) {
    auto queue = rpma::SharedReceiveQueue::create(*peer, {.depth = kReceives});
    if (!queue) return queue.status();
    queues[i] = *queue;
    auto pool = queues[i]->stock(kReceives, kMessageSize);
    if (!pool) return pool.status();
    auto source =
        dispatcher.attach(queues[i]->receive_cq(), {.poller = i, .receive_pool = *pool}, ignore);
    if (!source) return source.status();
    receives[i] = *source;
  }
  const auto options_for = [&](std::uint32_t poller) {
    ConnectionOptions options;
    options.receive_source = receives[poller];
    options.handler = ignore;
    return options;
  };
  std::unique_ptr<rpma::Endpoint> endpoint;
  std::string port;
  for (std::uint32_t i = 0; i < 50 && !endpoint; ++i) {
    port = std::to_string(kFirstPort +
                          (static_cast<std::uint32_t>(::getpid()) * 7 + i * 131) % kPorts);
    auto listening = rpma::Endpoint::listen(*peer, address, port);
    if (listening) {
      endpoint = std::move(*listening);
    } else if (listening.status().code() != StatusCode::address_in_use) {
      return listening.status();
    }
  }
  if (!endpoint) return Status(StatusCode::address_in_use, "no port is free");
  std::atomic<std::uint32_t> accepted{0};
  ListenOptions listen;
  listen.config.srq = queues[0];
  listen.on_request = [&](std::span<const std::byte>) { return std::optional(options_for(0)); };
  listen.on_connected = [&](std::shared_ptr<ConnectionHandle> handle) {
    const std::scoped_lock lock(accepted_mutex);
    handles.push_back(std::move(handle));
    ++accepted;
  };
  auto listener = dispatcher.listen(std::move(endpoint), std::move(listen));
  if (!listener) return listener.status();
  for (std::uint32_t i = 0; i < kConnections; ++i) {
    const std::uint32_t poller = i % kPollers;
    auto handle = dispatcher.connect(*peer, address, port, {.srq = queues[poller]}, {},
                                     options_for(poller), kPatience);
    if (!handle) return handle.status();
    const std::scoped_lock lock(accepted_mutex);
    handles.push_back(std::move(*handle));
  }
  if (!eventually([&] { return accepted == kConnections; }))
    return Status(StatusCode::timed_out, "not all connections were accepted");
  attached += 2 * kConnections;
  for (; attached < kSources; ++attached) {
    auto group = verbs::CqGroup::create((*peer)->context(), {.cq_count = 1, .cq_size = 16},
                                        "idle-" + std::to_string(attached));
    if (!group) return group.status();
    auto source = dispatcher.attach(std::move(*group), {.order = Order::none}, ignore);
    if (!source) return source.status();
  }
  std::uint64_t hot = 0, known = 0;
  const bool asleep = eventually([&] {
    hot = known = 0;
    for (const PollerCounters& poller : dispatcher.counters().pollers) {
      hot += poller.hot_sources;
      known += poller.sources;
    }
    return known == kSources && hot == 0;
  });
  if (!asleep) {
    return Status(StatusCode::internal,
                  std::to_string(hot) + " of " + std::to_string(known) + " sources are hot");
  }

  const auto begin = std::chrono::steady_clock::now();
  const double cpu = process_cpu_seconds();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const double used = process_cpu_seconds() - cpu;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  (*listener)->close();
  if (const Status status = dispatcher.stop(kPatience); !status.ok()) return status;
  return 100 * used / took.count();
}

}  // namespace sluice::bench
