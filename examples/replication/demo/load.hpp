// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

#include "child.hpp"
#include "options.hpp"
#include "sluice/core/status.hpp"

namespace demo {

/// What redis-benchmark has measured.
struct LoadResult {
  double per_second = 0;
  double p50_ms = 0, p99_ms = 0;
};

/// redis-benchmark with SETs of random keys, at the server's own level (quorum_disk in a cluster).
class Load {
 public:
  /// `requests` SETs to the node that clients reach there; what it says goes to the file `log`.
  [[nodiscard]] static sluice::Result<Load> start(const Options& options, std::uint16_t port,
                                                  std::uint64_t requests, std::string log);
  /// Waits for its end. Fails when it did not get an answer to each of them.
  [[nodiscard]] sluice::Result<LoadResult> result(Interrupts& interrupts);
  /// Waits for the end of one whose server is gone: it gives up at its first error.
  [[nodiscard]] sluice::Status wait_until_it_gave_up(Interrupts& interrupts);

 private:
  static constexpr std::chrono::seconds kLimit{100};
  Load(Child process, std::string log) : process_(std::move(process)), log_(std::move(log)) {}
  Child process_;
  std::string log_;
};

}  // namespace demo
