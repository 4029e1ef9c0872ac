// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "protocol.hpp"
#include "sluice/core/mailbox.hpp"
#include "sluice/core/uring/ring.hpp"
#include "sluice/dispatch/dispatcher.hpp"
#include "sluice/dispatch/uring.hpp"

namespace embedded {

/// A storage engine with two threads of its own, each in an epoll loop of its own, that drive a
/// Dispatcher beside whatever else they do. Records come in over RDMA, go to a log per connection
/// through io_uring, and are acknowledged in order when the disk has them.
///
/// | thread   | drives                          | submits to |
/// |----------|---------------------------------|------------|
/// | engine-0 | poller(0), control(), worker(0) | ring 0     |
/// | engine-1 | worker(1)                       | ring 1     |
///
/// A connection's state needs no lock: its receives and what the rings say of its log have one key,
/// so one lane, and the handlers of a lane never run on two threads at once.
class Engine {
 public:
  /// `folder`: where the logs go, "connection-0.log" and so on.
  Engine(std::string folder, std::string address);
  ~Engine();

  /// Opens device, dispatcher, rings and logs, and listens on a free port. Starts no thread.
  [[nodiscard]] sluice::Status start();
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  /// Runs the engine's threads until all connections of the sender that came are closed. `stop_fd`,
  /// a signalfd, ends it earlier; SIGCHLD, if no connection was made yet.
  [[nodiscard]] sluice::Status run(int stop_fd);

  struct Log {
    std::uint32_t received = 0, durable = 0, total = 0;
    bool verified = false;  ///< read back from the file: each durable record is in its place
  };
  struct Summary {
    std::array<Log, kConnections> logs;
    std::uint64_t sleeps = 0;  ///< of the engine's loops, with nothing to do for the dispatcher
    std::uint64_t engine_events = 0;  ///< of the engine's own, in the same loops
    std::size_t threads_engine = 0, threads_device = 0, threads_kernel = 0;
    std::size_t threads_dispatcher = 0;  ///< must be 0
    [[nodiscard]] std::uint64_t durable() const noexcept;
    [[nodiscard]] std::uint64_t total() const noexcept;
  };
  /// After run().
  [[nodiscard]] Summary summary() const;

 private:
  struct Link;
  struct Loop;
  [[nodiscard]] sluice::Status open_logs();
  [[nodiscard]] sluice::Status attach_rings();
  [[nodiscard]] sluice::Status listen();
  [[nodiscard]] std::optional<sluice::ConnectionOptions> on_request(
      std::span<const std::byte> hello);
  void on_connected(std::shared_ptr<sluice::ConnectionHandle> handle);
  // Handlers: on whichever engine thread runs the worker.
  void on_completions(Link& link, std::span<const ibv_wc> batch, std::uint32_t worker) noexcept;
  void on_written(std::span<const io_uring_cqe> cqes) noexcept;
  void write(Link& link, sluice::uring::Ring& ring, const ibv_wc& wc) noexcept;
  void acknowledge(Link& link) noexcept;
  void fail(Link& link, std::string why) noexcept;
  // The loops.
  void run_loop(Loop& loop, std::span<sluice::Runnable* const> parts);
  void look_at_own_events(Loop& loop);
  void stop_early() noexcept;
  void end_if_all_is_done() noexcept;
  void count_threads();

  const std::string folder_, address_;
  std::uint16_t port_ = 0;
  std::shared_ptr<sluice::rpma::Peer> peer_;
  std::vector<int> threads_before_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::shared_ptr<sluice::uring::Ring>> rings_;
  std::vector<std::shared_ptr<sluice::SourceHandle>> ring_sources_;
  std::unique_ptr<sluice::Dispatcher> dispatcher_;
  std::unique_ptr<sluice::Dispatcher::Listener> listener_;
  std::vector<std::unique_ptr<Loop>> loops_;
  int stop_fd_ = -1;
  std::atomic<std::uint32_t> taken_{0}, closed_{0};  ///< connections
  std::atomic<bool> stopping_{false};                ///< nothing new goes to the logs
  std::atomic<bool> counted_{false};                 ///< whoever sets it ends the loops
  std::atomic<bool> ending_{false};                  ///< the loops end
  std::atomic<bool> by_signal_{false}, sender_gone_{false}, failed_{false};
  Summary summary_;
};

}  // namespace embedded
