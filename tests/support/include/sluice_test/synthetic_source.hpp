// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>

#include "sluice/core/completion_source.hpp"
#include "sluice/core/mailbox.hpp"

namespace sluice::testing {

/// A completion source without a device: completions at will, and a device's rules for events. One
/// event per arm; arming takes no notice of what is already there; events coalesce.
///
/// Thread-safety: `complete` and the switches by any thread, the rest by the owner.
class SyntheticSource final : public CompletionSource {
 public:
  explicit SyntheticSource(std::uint32_t capacity = 1024, std::string name = "synthetic")
      : capacity_(capacity), name_(std::move(name)) {}

  /// The device completes work requests of one queue pair. False: the CQ would have overflowed.
  [[nodiscard]] bool complete(std::span<const ibv_wc> completions) {
    const std::scoped_lock lock(mutex_);
    if (completions_.size() + completions.size() > capacity_) return false;
    completions_.insert(completions_.end(), completions.begin(), completions.end());
    if (armed_) {
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

  [[nodiscard]] std::uint64_t retired() const {
    return retired_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::size_t pending() const {
    const std::scoped_lock lock(mutex_);
    return completions_.size();
  }

  PollOutcome poll(std::span<ibv_wc> out) noexcept override {
    const std::scoped_lock lock(mutex_);
    if (const SourceFault fault = std::exchange(poll_fault_, SourceFault::none);
        fault != SourceFault::none) {
      return {0, fault, EIO};
    }
    const std::size_t count = std::min(out.size(), completions_.size());
    std::copy_n(completions_.begin(), count, out.begin());
    completions_.erase(completions_.begin(),
                       completions_.begin() + static_cast<std::ptrdiff_t>(count));
    return {static_cast<std::uint32_t>(count), SourceFault::none, 0};
  }

  EventOutcome consume_event() noexcept override {
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

  [[nodiscard]] int wait_fd() const noexcept override { return waitable_ ? event_.fd() : -1; }
  [[nodiscard]] std::uint32_t capacity() const noexcept override { return capacity_; }
  void retire(std::span<const ibv_wc> completions) noexcept override {
    retired_.fetch_add(completions.size(), std::memory_order_relaxed);
  }
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }

 private:
  const std::uint32_t capacity_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::deque<ibv_wc> completions_;
  EventFd event_;
  std::uint32_t events_ = 0;
  bool armed_ = true;
  bool waitable_ = true;
  bool rearm_fails_ = false;
  SourceFault poll_fault_ = SourceFault::none;
  std::atomic<std::uint64_t> retired_{0};
};

}  // namespace sluice::testing
