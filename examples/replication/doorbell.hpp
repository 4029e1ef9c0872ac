// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "sluice/core/status.hpp"

namespace replicate {

/// Wakes the main thread, which sleeps in poll(2) on this, on signals and on its children.
/// Handlers ring it for each batch, so ringing costs no system call unless the main thread sleeps.
///
///   main thread:   prepare_to_sleep(); if (!news) poll(fd()); awake();
///   other threads: make the news visible; ring();
class Doorbell {
 public:
  Doorbell() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    SLUICE_CHECK(fd_ >= 0, "no descriptor is left for an eventfd");
  }
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;
  ~Doorbell() { close(fd_); }

  [[nodiscard]] int fd() const noexcept { return fd_; }

  void ring() noexcept {
    // (1) acq_rel. Both ends exchange, so one comes first: after (2), this sees `true` and writes;
    // before (2), (2) acquires what this releases, and the main thread sees the news and stays up.
    if (!asleep_.exchange(false, std::memory_order_acq_rel)) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof one);  // full: readable anyway
  }

  /// Main thread: look for news after this and before sleeping.
  void prepare_to_sleep() noexcept {
    asleep_.exchange(true, std::memory_order_acq_rel);  // (2) acq_rel: pairs with (1)
  }

  /// Main thread, after sleeping or deciding not to.
  void awake() noexcept {
    asleep_.store(false,
                  std::memory_order_relaxed);  // a ring that comes in between is a spare wake
    std::uint64_t count;
    [[maybe_unused]] const ssize_t got = read(fd_, &count, sizeof count);
  }

 private:
  const int fd_;
  std::atomic<bool> asleep_{false};
};

}  // namespace replicate
