// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/replication/wire.hpp"
#include "sluice/core/receive_pool.hpp"
#include "sluice/core/rpma/handles.hpp"
#include "sluice/core/status.hpp"
#include "sluice/dispatch/dispatcher.hpp"

namespace sluice::kv {

/// One end of a connection between two nodes: its address is the context of its completions.
/// All three are called by the dispatcher; the first two on workers, one call at a time for each
/// connection, the third on the control thread.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual void on_receives(std::span<const ibv_wc> batch, ReceivePool& pool) noexcept = 0;
  virtual void on_sends(std::span<const ibv_wc> batch) noexcept = 0;
  virtual void on_closed() noexcept = 0;
};

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
/// "127.0.0.1:7000", "[::1]:7000", "name:7000". invalid_argument says what is wrong.
[[nodiscard]] Result<HostPort> parse_host_port(const std::string& text);

/// The dispatcher of a node, and in a cluster its RDMA device, with one shared receive queue for
/// all connections: one source, one handler, memory for the messages handed out, not for each
/// connection's worst case.
class Transport {
 public:
  /// Threads only: for a node that is alone.
  /// `topology`: the configuration file that places pollers and workers (its first pool, of two at
  /// least, gets everything); empty: one poller and two workers, where the kernel puts them.
  static Result<std::unique_ptr<Transport>> start_alone(const std::string& topology);
  /// With the device of this address.
  static Result<std::unique_ptr<Transport>> start(const std::string& host,
                                                  const std::string& topology);
  ~Transport();

  [[nodiscard]] Dispatcher& dispatcher() noexcept { return *dispatcher_; }
  [[nodiscard]] const std::shared_ptr<rpma::Peer>& peer() const noexcept { return peer_; }

  /// Takes connections of other nodes. `listener` decides, and gets what was made, on the set-up
  /// thread.
  class Acceptor {
   public:
    virtual ~Acceptor() = default;
    virtual std::shared_ptr<Channel> on_request(std::span<const std::byte> hello) = 0;
    virtual void on_connected(std::shared_ptr<ConnectionHandle> handle, Channel& channel) = 0;
  };
  [[nodiscard]] Status listen(const HostPort& where, Acceptor& acceptor);
  /// Connects to another node. Blocks. `channel` has to live until the handle is detached.
  [[nodiscard]] Result<std::shared_ptr<ConnectionHandle>> connect(const HostPort& where,
                                                                  const wire::Hello& hello,
                                                                  Channel& channel);
  /// Detaches, and keeps alive what the device may still write into if that is not clean. Blocks;
  /// not on a worker.
  void drop(const std::shared_ptr<ConnectionHandle>& handle, std::shared_ptr<const void> memory);
  /// The same without blocking, from any thread but a set-up thread's callers: `memory` is kept as
  /// long as it has to be.
  void drop_async(const std::shared_ptr<ConnectionHandle>& handle,
                  std::shared_ptr<const void> memory);
  void stop_listening();
  /// Ends all threads. No handler runs after it.
  [[nodiscard]] Status stop();

  /// Writes of a primary that are not consumed, at most, for each connection.
  static constexpr std::uint32_t kFramesMax = 128;

 private:
  Transport() = default;
  [[nodiscard]] Status start_dispatcher(const std::string& topology);
  [[nodiscard]] Status start_as_configured(const std::string& file, DispatcherCallbacks callbacks);
  [[nodiscard]] ConnectionOptions options_for(Channel& channel);
  [[nodiscard]] rpma::ConnectionConfig connection_config() const;
  void keep(std::shared_ptr<const void> memory);

  // The device may write into memory until the last queue pair is gone: what is declared first goes
  // last.
  std::mutex kept_mutex_;
  std::vector<std::shared_ptr<const void>> kept_;
  std::shared_ptr<rpma::Peer> peer_;
  std::shared_ptr<rpma::SharedReceiveQueue> srq_;
  ReceivePool* pool_ = nullptr;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::shared_ptr<SourceHandle> receive_source_;
  std::unique_ptr<Dispatcher::Listener> listener_;
};

}  // namespace sluice::kv
