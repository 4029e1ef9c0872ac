// SPDX-License-Identifier: BSD-3-Clause
#include "kv/replication/transport.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <utility>

#include "sluice/topology/plan.hpp"

namespace sluice::kv {
namespace {

using namespace std::chrono_literals;

/// Two: one may wait for the log's writes, which the other one takes (Journal::wait_until_idle).
constexpr std::uint32_t kWorkersMin = 2;
/// Frames of a primary and of one that was deposed, and acknowledgements of some replicas.
constexpr std::uint32_t kReceives = 1024;
constexpr std::uint32_t kConnectionsMax = 128;
constexpr auto kSetupTimeout = 1000ms;
constexpr auto kDropTimeout = 2s;
constexpr auto kStopTimeout = 5s;

}  // namespace

Result<HostPort> parse_host_port(const std::string& text) {
  const auto bad = [&] {
    return Status(StatusCode::invalid_argument,
                  "'" + text + "' is no HOST:PORT, e.g. 127.0.0.1:7000 or [::1]:7000");
  };
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad();
  HostPort out;
  out.host = text.substr(0, colon);
  if (out.host.front() == '[') {
    if (out.host.back() != ']' || out.host.size() < 3) return bad();
    out.host = out.host.substr(1, out.host.size() - 2);
  } else if (out.host.find(':') != std::string::npos) {
    return bad();
  }
  const char* const begin = text.data() + colon + 1;
  const char* const end = text.data() + text.size();
  unsigned port = 0;
  const auto [stopped, error] = std::from_chars(begin, end, port);
  if (error != std::errc{} || stopped != end || port > 65535) return bad();
  out.port = static_cast<std::uint16_t>(port);
  return out;
}

Result<std::unique_ptr<Transport>> Transport::start_alone(const std::string& topology) {
  auto transport = std::unique_ptr<Transport>(new Transport);
  SLUICE_RETURN_IF_ERROR(transport->start_dispatcher(topology));
  return transport;
}

Result<std::unique_ptr<Transport>> Transport::start(const std::string& host,
                                                    const std::string& topology) {
  auto transport = std::unique_ptr<Transport>(new Transport);
  auto peer = rpma::Peer::listen_on(host);
  if (!peer)
    return Status(StatusCode::unreachable,
                  "no RDMA device has the address " + host + " (" + peer.status().message() +
                      "): run this under softrdma-run, or give the address of a device that has "
                      "one (rdma link)");
  transport->peer_ = std::move(*peer);
  auto srq = rpma::SharedReceiveQueue::create(transport->peer_,
                                              {.depth = kReceives, .receive_cq_size = {}});
  if (!srq) return srq.status();
  transport->srq_ = std::move(*srq);
  auto pool = transport->srq_->stock(kReceives, wire::kMessageBytesMax);
  if (!pool) return pool.status();
  transport->pool_ = *pool;
  SLUICE_RETURN_IF_ERROR(transport->start_dispatcher(topology));
  auto source = transport->dispatcher_->attach(
      transport->srq_->receive_cq(),
      {.order = Order::per_connection, .receive_pool = transport->pool_},
      [pool = transport->pool_](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
        static_cast<Channel*>(info.context)->on_receives(batch, *pool);
      });
  if (!source) return source.status();
  transport->receive_source_ = std::move(*source);
  return transport;
}

Transport::~Transport() = default;

Status Transport::start_dispatcher(const std::string& topology) {
  DispatcherCallbacks callbacks;
  callbacks.on_source_failed = [](SourceId, const Status& why) {
    fmt::print(stderr, "sluice-kv: a completion queue has failed: {}\n", why.to_string());
  };
  if (!topology.empty()) return start_as_configured(topology, std::move(callbacks));
  DispatcherConfig config;
  config.pollers[0].name = "kv";
  config.pools[0].name = "kv";
  config.pools[0].workers = kWorkersMin;
  config.connections_max = kConnectionsMax;
  config.stall_threshold = 2000ms;
  auto dispatcher = Dispatcher::start(config, std::move(callbacks));
  if (!dispatcher) return dispatcher.status();
  dispatcher_ = std::move(*dispatcher);
  return {};
}

Status Transport::start_as_configured(const std::string& file, DispatcherCallbacks callbacks) {
  const auto config = Config::load(file);
  if (!config) return config.status();
  auto dispatcher = Dispatcher::start(*config, std::move(callbacks));
  if (!dispatcher) return dispatcher.status().with_context("the topology of " + file);
  dispatcher_ = std::move(*dispatcher);
  const topology::Plan& plan = *dispatcher_->plan();
  // Everything goes to the first pool.
  for (const topology::PlannedPool& pool : plan.pools) {
    if (pool.name != plan.pools.front().name || pool.threads.size() >= kWorkersMin) continue;
    return {
        StatusCode::invalid_argument,
        fmt::format("{}: pool '{}' has {} worker, and a node needs {} at least: one may wait for "
                    "the disk's completions, which another one takes. Set workers = {}",
                    file, pool.name, pool.threads.size(), kWorkersMin, kWorkersMin)};
  }
  for (const std::string& sentence : plan.degraded)
    fmt::print(stderr, "sluice-kv: {}: {}\n", file, sentence);
  return {};
}

rpma::ConnectionConfig Transport::connection_config() const {
  rpma::ConnectionConfig config;
  config.srq = srq_;
  // A credit comes back a little after its handler has run: twice what is in flight.
  config.send_queue_size = 2 * kFramesMax;
  config.timeout = kSetupTimeout;
  return config;
}

ConnectionOptions Transport::options_for(Channel& channel) {
  ConnectionOptions options;
  options.order = Order::per_connection;
  options.context = &channel;
  options.receive_source = receive_source_;
  options.handler = [](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
    static_cast<Channel*>(info.context)->on_sends(batch);
  };
  options.on_event = [&channel](ConnectionId, rpma::ConnectionEvent) { channel.on_closed(); };
  return options;
}

Status Transport::listen(const HostPort& where, Acceptor& acceptor) {
  auto endpoint = rpma::Endpoint::listen(peer_, where.host, std::to_string(where.port));
  if (!endpoint) return endpoint.status();
  ListenOptions options;
  options.config = connection_config();
  options.establish_timeout = kSetupTimeout;
  options.on_request =
      [this, &acceptor](std::span<const std::byte> hello) -> std::optional<ConnectionOptions> {
    const auto channel = acceptor.on_request(hello);
    if (channel == nullptr) return std::nullopt;
    keep(channel);  // the acceptor lets go of it when it is established and gone again
    return options_for(*channel);
  };
  options.on_connected = [&acceptor](std::shared_ptr<ConnectionHandle> handle) {
    Channel& channel = *static_cast<Channel*>(handle->context());
    acceptor.on_connected(std::move(handle), channel);
  };
  options.on_failed = [](const Status&) {};  // the other side sees it, and tries again
  auto listener = dispatcher_->listen(std::move(*endpoint), std::move(options));
  if (!listener) return listener.status();
  listener_ = std::move(*listener);
  return {};
}

Result<std::shared_ptr<ConnectionHandle>> Transport::connect(const HostPort& where,
                                                             const wire::Hello& hello,
                                                             Channel& channel) {
  return dispatcher_->connect(peer_, where.host, std::to_string(where.port), connection_config(),
                              wire::encode(hello), options_for(channel), kSetupTimeout);
}

void Transport::keep(std::shared_ptr<const void> memory) {
  const std::lock_guard lock(kept_mutex_);
  kept_.push_back(std::move(memory));
}

void Transport::drop(const std::shared_ptr<ConnectionHandle>& handle,
                     std::shared_ptr<const void> memory) {
  const auto report = handle->detach(kDropTimeout);
  if (!report || !report->clean) keep(std::move(memory));
}

void Transport::drop_async(const std::shared_ptr<ConnectionHandle>& handle,
                           std::shared_ptr<const void> memory) {
  handle->detach_async(kDropTimeout, [this, memory](const DetachReport& report) {
    if (!report.clean) return;
    const std::lock_guard lock(kept_mutex_);
    std::erase(kept_, memory);
  });
}

void Transport::stop_listening() {
  listener_.reset();
}

Status Transport::stop() {
  stop_listening();
  return dispatcher_->stop(kStopTimeout);
}

}  // namespace sluice::kv
