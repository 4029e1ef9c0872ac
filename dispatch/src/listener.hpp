// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "registry.hpp"
#include "sluice/core/mailbox.hpp"
#include "sluice/dispatch/dispatcher.hpp"

namespace sluice::detail {

class DispatcherImpl;

/// Accepts connections of one endpoint. On a set-up thread of its own (run()), or stepped by a
/// host-driven control; no step blocks, so one peer's slow set-up stalls no other's.
class ListenerState {
 public:
  ListenerState(DispatcherImpl& dispatcher, std::unique_ptr<rpma::Endpoint> endpoint,
                ListenOptions options);
  ListenerState(const ListenerState&) = delete;
  ListenerState& operator=(const ListenerState&) = delete;
  ~ListenerState();
  [[nodiscard]] Status open();  ///< makes the descriptors; once, before anything else

  /// Readable when step() may have something to do, but for a set-up that runs out of time.
  [[nodiscard]] int wait_fd() const noexcept { return epoll_fd_; }
  /// Takes what requests there are and moves pending set-ups on. Returns how many it dealt with.
  std::size_t step();
  /// Steps until close(), asleep in between.
  void run();
  void close() noexcept;
  /// Lets go of the endpoint and of what is half made; by the thread that steps, once closed().
  void finish() noexcept;
  [[nodiscard]] bool closed() const noexcept {
    return closed_.load(std::memory_order_acquire);  // (1) acquire: pairs with (2)
  }

  std::thread thread;

 private:
  using Clock = std::chrono::steady_clock;
  /// Accepted, not yet established.
  struct Pending {
    std::shared_ptr<rpma::Connection> connection;
    ConnectionOptions options;
    SetupTicket ticket;
    ConnectionReservation reservation;
    Clock::time_point deadline;
  };

  [[nodiscard]] bool watch(int fd) const noexcept;
  [[nodiscard]] bool accept_one();
  [[nodiscard]] bool settle(Pending& pending);
  void fail(const Status& status) const;

  DispatcherImpl& dispatcher_;
  std::unique_ptr<rpma::Endpoint> endpoint_;
  ListenOptions options_;
  std::vector<Pending> pending_;
  int epoll_fd_ = -1;  ///< the endpoint, the pending connections, and wake_
  EventFd wake_;
  std::atomic<bool> closed_{false};
};

}  // namespace sluice::detail
