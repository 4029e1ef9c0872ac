// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "resp/command_handler.hpp"

namespace sluice::kv::test {

/// Bound for what must come; it only ends a hang.
inline constexpr std::chrono::seconds kHangLimit{60};

/// Waits for what another thread brings about and nothing announces.
template <typename Predicate>
[[nodiscard]] bool eventually(Predicate&& holds) {
  const auto until = std::chrono::steady_clock::now() + kHangLimit;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

/// Answers at once, on the I/O thread, with the last word of the request.
class EchoHandler : public CommandHandler {
 public:
  void handle(const Request& request, Ticket ticket) noexcept override {
    ticket.reply().bulk(request.words.back());
    std::move(ticket).complete();
    in_round_.fetch_add(1, std::memory_order_relaxed);
  }
  void round_done() noexcept override {
    if (in_round_.exchange(0, std::memory_order_relaxed) == 0)
      empty_rounds.fetch_add(1, std::memory_order_relaxed);
    rounds.fetch_add(1, std::memory_order_relaxed);
  }

  std::atomic<std::uint64_t> rounds{0}, empty_rounds{0};

 private:
  std::atomic<std::uint64_t> in_round_{0};
};

/// Keeps each request until the test, or a thread of its own, takes it.
class HoldingHandler : public CommandHandler {
 public:
  struct Held {
    std::string last_word;
    Ticket ticket;
  };

  void handle(const Request& request, Ticket ticket) noexcept override {
    const std::lock_guard lock(mutex_);
    held_.push_back({std::string(request.words.back()), std::move(ticket)});
    came_.notify_all();
  }

  /// Waits until that many are held, and takes all.
  [[nodiscard]] std::vector<Held> take(std::size_t at_least) {
    std::unique_lock lock(mutex_);
    came_.wait_for(lock, kHangLimit, [&] { return held_.size() >= at_least || ended_; });
    return std::exchange(held_, {});
  }
  [[nodiscard]] std::size_t count() {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }
  /// take() waits no more.
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    came_.notify_all();
  }
  [[nodiscard]] bool ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<Held> held_;
  bool ended_ = false;
};

}  // namespace sluice::kv::test
