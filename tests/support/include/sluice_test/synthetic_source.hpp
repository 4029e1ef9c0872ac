// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sluice/core/completion_source.hpp"
#include "sluice/core/mailbox.hpp"

namespace sluice::testing {

/// A completion source without a device: completions at will, and a device's rules for events. One
/// event per arm; arming takes no notice of what is already there; events coalesce. Allocates
/// nothing after construction.
///
/// Thread-safety: `complete` and the switches by any thread, the rest by the owner.
class SyntheticSource final : public CompletionSource {
 public:
  /// Where the owner's calls let a test in: a completion may arrive at each of them.
  enum class Point : std::uint8_t {
    before_poll,
    after_poll,
    before_consume,
    after_consume,
    wait_fd
  };

  explicit SyntheticSource(std::uint32_t capacity = 1024, std::string name = "synthetic")
      : capacity_(capacity), name_(std::move(name)), ring_(capacity) {}

  /// The device completes work requests of one queue pair. False: the CQ would have overflowed.
  [[nodiscard]] bool complete(std::span<const ibv_wc> completions) {
    const std::scoped_lock lock(mutex_);
    if (count_ + completions.size() > capacity_) return false;
    for (const ibv_wc& wc : completions) ring_[(first_ + count_++) % capacity_] = wc;
    if (!completions.empty() && armed_) {
      armed_ = false;
      ++events_;
      event_.signal();
    }
    return true;
  }
  [[nodiscard]] bool complete(std::uint32_t qp_num, std::uint64_t wr_id,
                              ibv_wc_status status = IBV_WC_SUCCESS) {
    ibv_wc wc{};
    wc.wr_id = wr_id;
    wc.qp_num = qp_num;
    wc.status = status;
    wc.opcode = IBV_WC_RECV;
    return complete({&wc, 1});
  }

  void fail_next_poll(SourceFault fault) {
    const std::scoped_lock lock(mutex_);
    poll_fault_ = fault;
  }
  void fail_next_rearm() {
    const std::scoped_lock lock(mutex_);
    rearm_fails_ = true;
  }
  /// A readable descriptor without an event behind it.
  void make_stale_wake() const { event_.signal(); }
  /// It cannot be waited for from now on (before it is attached).
  void forbid_waiting() { waitable_ = false; }
  /// Called by the owner at each Point (set before it is attached).
  void set_hook(std::function<void(Point)> hook) { hook_ = std::move(hook); }

  [[nodiscard]] std::uint64_t retired() const { return retired_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::size_t pending() const {
    const std::scoped_lock lock(mutex_);
    return count_;
  }
  /// It is armed, or an event waits to be taken (INV-ARM).
  [[nodiscard]] bool armed_or_signalled() const {
    const std::scoped_lock lock(mutex_);
    return armed_ || events_ > 0;
  }

  PollOutcome poll(std::span<ibv_wc> out) noexcept override {
    at(Point::before_poll);
    const PollOutcome outcome = take(out);
    at(Point::after_poll);
    return outcome;
  }

  EventOutcome consume_event() noexcept override {
    at(Point::before_consume);
    const EventOutcome outcome = take_event();
    at(Point::after_consume);
    return outcome;
  }

  [[nodiscard]] int wait_fd() const noexcept override {
    at(Point::wait_fd);
    return waitable_ ? event_.fd() : -1;
  }
  [[nodiscard]] std::uint32_t capacity() const noexcept override { return capacity_; }
  void retire(std::span<const ibv_wc> completions) noexcept override {
    retired_.fetch_add(completions.size(), std::memory_order_relaxed);
  }
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }

 private:
  void at(Point point) const {
    if (hook_) hook_(point);
  }

  PollOutcome take(std::span<ibv_wc> out) {
    const std::scoped_lock lock(mutex_);
    if (const SourceFault fault = std::exchange(poll_fault_, SourceFault::none);
        fault != SourceFault::none) {
      return {0, fault, EIO};
    }
    const std::size_t count = std::min(out.size(), count_);
    for (std::size_t i = 0; i < count; ++i) out[i] = ring_[(first_ + i) % capacity_];
    first_ = (first_ + count) % capacity_;
    count_ -= count;
    return {static_cast<std::uint32_t>(count), SourceFault::none, 0};
  }

  EventOutcome take_event() {
    const std::scoped_lock lock(mutex_);
    event_.drain();
    if (events_ == 0) return {};
    --events_;
    if (events_ > 0) event_.signal();
    if (std::exchange(rearm_fails_, false)) {
      return {EventOutcome::Kind::failed, SourceFault::rearm_failed, EIO};
    }
    armed_ = true;
    return {EventOutcome::Kind::consumed, SourceFault::none, 0};
  }

  const std::uint32_t capacity_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::vector<ibv_wc> ring_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  EventFd event_;
  std::uint32_t events_ = 0;
  bool armed_ = true;
  bool waitable_ = true;
  bool rearm_fails_ = false;
  SourceFault poll_fault_ = SourceFault::none;
  std::function<void(Point)> hook_;
  std::atomic<std::uint64_t> retired_{0};
};

}  // namespace sluice::testing
