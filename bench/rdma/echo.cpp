// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../figures/samples.hpp"
#include "../figures/stamp.hpp"
#include "../harness/threads.hpp"
#include "processes.hpp"
#include "rdma.hpp"
#include "sluice/dispatch/dispatcher.hpp"

namespace sluice::bench {
namespace {

constexpr std::uint32_t kReceives = 1024;
constexpr std::uint32_t kSlots = 256;  ///< send buffers; a window is far smaller
/// Every so many sends one is signalled: their credits come back together.
constexpr std::uint32_t kSignalEvery = 16;
constexpr std::chrono::seconds kPatience{20};
constexpr std::uint16_t kFirstPort = 20000, kPorts = 20000;
constexpr int kPortsTried = 50;

/// One process's end: a busy poller that handles inline, an SRQ, one connection.
class End {
 public:
  Status open(const std::string& address) {
    DispatcherConfig config;
    config.pollers[0].wait = WaitMode::busy;
    config.connections_max = 4;
    auto dispatcher = Dispatcher::start(std::move(config));
    if (!dispatcher) return dispatcher.status();
    dispatcher_ = std::move(*dispatcher);
    auto peer = rpma::Peer::listen_on(address);
    if (!peer) return peer.status();
    peer_ = std::move(*peer);
    auto queue = rpma::SharedReceiveQueue::create(peer_, {.depth = kReceives});
    if (!queue) return queue.status();
    queue_ = std::move(*queue);
    auto pool = queue_->stock(kReceives, kMessageSize);
    if (!pool) return pool.status();
    pool_ = *pool;
    auto memory =
        rpma::MemoryRegion::allocate(peer_, std::size_t{kSlots} * kMessageSize, RPMA_MR_USAGE_SEND);
    if (!memory) return memory.status();
    memory_ = std::move(*memory);
    auto source =
        dispatcher_->attach(queue_->receive_cq(), {.order = Order::inlined, .receive_pool = pool_},
                            [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                              for (const ibv_wc& wc : batch) receive(wc);
                            });
    if (!source) return source.status();
    source_ = std::move(*source);
    return {};
  }

  [[nodiscard]] rpma::ConnectionConfig connection_config() const {
    return {.send_queue_size = 2 * kSlots, .srq = queue_};
  }
  [[nodiscard]] ConnectionOptions connection_options() {
    ConnectionOptions options;
    options.order = Order::inlined;
    options.handler = [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
      for (const ibv_wc& wc : batch) failed_ = failed_ || wc.status != IBV_WC_SUCCESS;
    };
    return options;
  }
  void use(std::shared_ptr<ConnectionHandle> handle) {
    handle_ = std::move(handle);
    connection_.store(&handle_->connection(), std::memory_order_release);  // (1) pairs with (2)
  }
  [[nodiscard]] Dispatcher& dispatcher() noexcept { return *dispatcher_; }
  [[nodiscard]] const std::shared_ptr<rpma::Peer>& peer() const noexcept { return peer_; }

  /// Sends a message that begins with this.
  void send(std::uint64_t value) noexcept {
    const std::size_t offset = std::size_t{sent_ % kSlots} * kMessageSize;
    std::memcpy(memory_->memory().data() + offset, &value, sizeof value);
    rpma::Connection* const connection =
        connection_.load(std::memory_order_acquire);  // (2) pairs with (1)
    const bool signalled = ++sent_ % kSignalEvery == 0;
    if (connection == nullptr ||
        !connection->send(memory_.get(), offset, kMessageSize, sent_, signalled).ok()) {
      failed_ = true;
    }
  }
  /// What to do with a message that begins with this; on the poller.
  std::function<void(std::uint64_t)> on_message;
  [[nodiscard]] bool failed() const noexcept { return failed_; }

  ~End() {
    if (!dispatcher_) return;
    static_cast<void>(dispatcher_->stop(kPatience));
    handle_.reset();
    source_.reset();
  }

 private:
  void receive(const ibv_wc& wc) noexcept {
    std::uint64_t value = 0;
    {
      const ReceivedBuffer buffer = pool_->take(wc);
      if (wc.status != IBV_WC_SUCCESS || buffer.bytes().size() != kMessageSize) {
        failed_ = true;
        return;
      }
      std::memcpy(&value, buffer.bytes().data(), sizeof value);
    }
    on_message(value);
  }

  std::shared_ptr<rpma::Peer> peer_;
  std::shared_ptr<rpma::SharedReceiveQueue> queue_;
  ReceivePool* pool_ = nullptr;
  std::shared_ptr<rpma::MemoryRegion> memory_;
  std::shared_ptr<SourceHandle> source_;
  std::shared_ptr<ConnectionHandle> handle_;
  std::atomic<rpma::Connection*> connection_{nullptr};
  std::uint32_t sent_ = 0;
  std::atomic<bool> failed_{false};
  std::unique_ptr<Dispatcher> dispatcher_;
};

/// Begins a run: its answer makes the poller send, which nobody else does from then on.
constexpr std::uint64_t kBegin = 0;
/// The first message of the echoing process: it knows its connection.
constexpr std::uint64_t kReady = 1;

int complain(const Status& status) {
  fmt::print(stderr, "sluice-bench-rdma: the echoing process: {}\n", status.to_string());
  return 1;
}

/// The process that sends everything back.
int serve(const EchoOptions& options, const std::function<void(std::uint16_t)>& tell, int end_fd) {
  End end;
  end.on_message = [&end](std::uint64_t value) { end.send(value); };
  if (const Status status = end.open(options.address); !status.ok()) return complain(status);
  std::unique_ptr<rpma::Endpoint> endpoint;
  std::uint16_t port = 0;
  for (int i = 0; i < kPortsTried && !endpoint; ++i) {
    port = static_cast<std::uint16_t>(kFirstPort + (::getpid() * 7 + i * 131) % kPorts);
    auto listening = rpma::Endpoint::listen(end.peer(), options.address, std::to_string(port));
    if (listening) {
      endpoint = std::move(*listening);
    } else if (listening.status().code() != StatusCode::address_in_use) {
      return complain(listening.status());
    }
  }
  if (!endpoint) return complain({StatusCode::address_in_use, "no port is free"});
  ListenOptions listen;
  listen.config = end.connection_config();
  listen.on_request = [&](std::span<const std::byte>) {
    return std::optional(end.connection_options());
  };
  listen.on_connected = [&](std::shared_ptr<ConnectionHandle> handle) {
    end.use(std::move(handle));
    end.send(kReady);  // nothing is to be echoed before that: it would find no connection to go to
  };
  auto listener = end.dispatcher().listen(std::move(endpoint), std::move(listen));
  if (!listener) return complain(listener.status());
  tell(port);
  pollfd wait{end_fd, POLLIN, 0};
  ::poll(&wait, 1, -1);
  (*listener)->close();
  return 0;
}

/// A run of messages, so many in flight: each answer sends the next.
class Run {
 public:
  Run(End& end, std::uint32_t messages, std::uint32_t window, Samples* samples)
      : end_(end), messages_(messages), window_(window), samples_(samples) {}

  /// What it took, in ns; fails when the other side is lost or does not answer in time.
  Result<double> run() {
    end_.on_message = [this](std::uint64_t sent_at) {
      if (sent_at == kBegin) {
        begin_ns_ = now_ns();
        while (sent_ < window_) send_next();
        return;
      }
      if (samples_ != nullptr) samples_->add(sent_at, stamp());
      if (sent_ < messages_) send_next();
      if (++answered_ == messages_) {
        end_ns_ = now_ns();
        done_.store(true, std::memory_order_release);  // (1) release: pairs with (2)
      }
    };
    end_.send(kBegin);
    const auto deadline = std::chrono::steady_clock::now() + 3 * kPatience;
    while (!done_.load(std::memory_order_acquire)) {  // (2)
      if (end_.failed() || std::chrono::steady_clock::now() > deadline)
        return Status(StatusCode::connection_lost, "the echo did not come to its end");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return end_ns_ - begin_ns_;
  }

 private:
  void send_next() {
    ++sent_;
    end_.send(stamp());
  }

  End& end_;
  const std::uint32_t messages_, window_;
  Samples* samples_;
  std::uint32_t sent_ = 0, answered_ = 0;
  double begin_ns_ = 0, end_ns_ = 0;
  std::atomic<bool> done_{false};
};

}  // namespace

Result<EchoResult> rdma_echo(const EchoOptions& options) {
  auto child =
      Child::start([&](const auto& tell, int end_fd) { return serve(options, tell, end_fd); });
  if (!child) return child.status();
  EchoResult result;
  {
    End end;
    std::atomic<bool> ready{false};
    end.on_message = [&ready](std::uint64_t value) { ready = value == kReady; };
    SLUICE_RETURN_IF_ERROR(end.open(options.address));
    auto handle =
        end.dispatcher().connect(end.peer(), options.address, std::to_string(child->port()),
                                 end.connection_config(), {}, end.connection_options(), kPatience);
    if (!handle) return handle.status();
    end.use(*handle);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!ready) {
      if (end.failed() || std::chrono::steady_clock::now() > deadline) {
        return Status(StatusCode::connection_lost, "the echoing process does not begin");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    Samples samples(options.round_trips / 10, options.round_trips - options.round_trips / 10);
    Run one(end, options.round_trips, 1, &samples);
    if (const auto took = one.run(); !took) return took.status();
    Run many(end, options.messages, options.window, nullptr);
    const auto took = many.run();
    if (!took) return took.status();
    result = {samples.quantile_ns(0.5) / 1e3, samples.quantile_ns(0.99) / 1e3,
              options.messages / (*took / 1e9)};
    const auto report = (*handle)->detach(kPatience);
    if (!report) return report.status();
  }
  if (child->finish() != 0) return Status(StatusCode::internal, "the echoing process failed");
  return result;
}

}  // namespace sluice::bench
