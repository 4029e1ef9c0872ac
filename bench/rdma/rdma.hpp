// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

#include "sluice/core/status.hpp"

namespace sluice::bench {

inline constexpr std::uint32_t kMessageSize = 64;

struct EchoOptions {
  std::string address = "127.0.0.1";  ///< of a device; both processes are on it
  std::uint32_t round_trips = 20000;  ///< one message in flight, for the latency
  std::uint32_t messages = 200000;    ///< `window` in flight, for the rate
  std::uint32_t window = 64;
};

struct EchoResult {
  double p50_us = 0;  ///< of a round trip
  double p99_us = 0;
  double mps = 0;  ///< messages (there and back) per second
};

/// Two processes, both busy, over librpma: receives from an SRQ with its own CQ, handlers inline.
[[nodiscard]] Result<EchoResult> rdma_echo(const EchoOptions& options);
/// The same work over TCP on loopback: two processes, each in a loop of epoll_wait without a
/// time-out, no Nagle.
[[nodiscard]] Result<EchoResult> tcp_echo(const EchoOptions& options);

/// CPU percent of this process (a software device's thread included) while 3 pollers and 4 workers
/// have 1000 sources on a device: 100 connections with themselves (200 CQs of librpma), an SRQ for
/// each poller, the rest raw-verbs CQs.
[[nodiscard]] Result<double> rdma_idle(const std::string& address, double seconds);

}  // namespace sluice::bench
