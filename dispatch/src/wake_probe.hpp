// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>

namespace sluice::detail {

/// Measures what a wake takes here, with no help of another thread: a timer of the kernel's that
/// fires while the thread sleeps says when, and the clock after it how late the thread is.
///
/// Threads: one. It is asked at a sleep; most sleeps carry no probe.
class WakeProbe {
 public:
  WakeProbe() noexcept = default;
  ~WakeProbe();
  WakeProbe(const WakeProbe&) = delete;
  WakeProbe& operator=(const WakeProbe&) = delete;

  /// False: there is no timer; then nothing is measured.
  bool open() noexcept;
  /// Readable while a probe is due; to sleep on. -1: not opened.
  [[nodiscard]] int fd() const noexcept { return fd_; }

  /// Before a sleep: arms the timer if a measurement is wanted. True: it did; call finish() after.
  bool begin() noexcept;
  /// After it. How late the thread woke, if the timer has fired.
  std::optional<std::int64_t> finish() noexcept;

 private:
  void set(std::int64_t at_ns) noexcept;

  int fd_ = -1;
  std::int64_t fires_ns_ = 0;
  std::int64_t next_ns_ = 0;  ///< not before this
  std::uint32_t fired_ = 0;
};

/// Nanoseconds of steady_clock.
[[nodiscard]] std::int64_t steady_ns() noexcept;

}  // namespace sluice::detail
