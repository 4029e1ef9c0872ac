// SPDX-License-Identifier: BSD-3-Clause
#include "wake_probe.hpp"

#include <sys/timerfd.h>
#include <unistd.h>

#include <chrono>

namespace sluice::detail {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
/// How long a probed sleep is: as long as the gaps for which it matters what a wake costs.
constexpr std::int64_t kSleepNs = 100'000;
/// As many as the controller takes the median of are made as soon as there is time to sleep.
constexpr std::uint32_t kFirst = 31;
constexpr std::int64_t kPeriodNs = kSecondNs;

}  // namespace

std::int64_t steady_ns() noexcept {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

WakeProbe::~WakeProbe() {
  if (fd_ >= 0) ::close(fd_);
}

bool WakeProbe::open() noexcept {
  // CLOCK_MONOTONIC is what steady_clock reads.
  fd_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  return fd_ >= 0;
}

void WakeProbe::set(std::int64_t at_ns) noexcept {
  itimerspec at{};
  at.it_value.tv_sec = at_ns / kSecondNs;
  at.it_value.tv_nsec = at_ns % kSecondNs;
  ::timerfd_settime(fd_, TFD_TIMER_ABSTIME, &at, nullptr);
}

bool WakeProbe::begin() noexcept {
  if (fd_ < 0) return false;
  const std::int64_t now_ns = steady_ns();
  if (now_ns < next_ns_) return false;
  fires_ns_ = now_ns + kSleepNs;
  set(fires_ns_);
  return true;
}

std::optional<std::int64_t> WakeProbe::finish() noexcept {
  const std::int64_t now_ns = steady_ns();
  std::uint64_t times = 0;
  if (::read(fd_, &times, sizeof times) != static_cast<ssize_t>(sizeof times)) {
    set(0);  // something else ended the sleep; the timer must not end the next one
    return std::nullopt;
  }
  if (++fired_ >= kFirst) next_ns_ = now_ns + kPeriodNs;
  return now_ns - fires_ns_;
}

}  // namespace sluice::detail
