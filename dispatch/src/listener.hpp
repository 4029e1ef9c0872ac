// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

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

  /// Takes what requests there are and moves pending set-ups on. Returns how many it dealt with.
  std::size_t step();
  /// Steps until close(), asleep in between.
  void run();
  void close() noexcept;
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
    Clock::time_point deadline;
  };

  [[nodiscard]] bool accept_one();
  [[nodiscard]] bool settle(Pending& pending);
  void fail(const Status& status) const;

  DispatcherImpl& dispatcher_;
  std::unique_ptr<rpma::Endpoint> endpoint_;
  ListenOptions options_;
  std::vector<Pending> pending_;
  EventFd wake_;
  std::atomic<bool> closed_{false};
};

}  // namespace sluice::detail
