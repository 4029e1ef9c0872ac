// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/resource.h>

namespace sluice::bench {

/// CPU time, user and system, of RUSAGE_SELF (all threads that there are and were) or of
/// RUSAGE_THREAD.
inline double cpu_seconds(int of) noexcept {
  rusage usage{};
  ::getrusage(of, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}
inline double process_cpu_seconds() noexcept {
  return cpu_seconds(RUSAGE_SELF);
}

}  // namespace sluice::bench
