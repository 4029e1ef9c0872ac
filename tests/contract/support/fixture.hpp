// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sluice/core/rpma/handles.hpp"
#include "sluice/core/rpma/sources.hpp"

namespace sluice::contract {

/// How long anything may take before a test gives up. Generous: the device may be emulated on a
/// loaded machine, and nobody waits that long when all is well.
constexpr std::chrono::seconds kPatience{30};

/// What a test cannot go on without: throws, which GoogleTest reports as the test's failure.
void require(const Status& status);
template <typename T>
T require(Result<T> result) {
  require(result.status());
  return std::move(*result);
}

/// Asks `done` until it says yes. Throws "<what> did not happen" after kPatience. Yields the CPU,
/// at first, then pauses a millisecond between two questions.
void await(const std::string& what, const std::function<bool()>& done);

/// Whether the descriptor is readable now.
[[nodiscard]] bool readable(int fd);
void await_readable(int fd, const std::string& what);

/// True when softrdma is in front of the system's libraries.
[[nodiscard]] bool on_softrdma();

/// `count` bytes that depend on `seed`, and a checksum (FNV-1a) of bytes.
void fill(std::span<std::byte> bytes, std::uint64_t seed);
[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes);

struct Pair {
  std::shared_ptr<rpma::Connection> client;
  std::shared_ptr<rpma::Connection> server;
};

/// A connection configuration whose timeouts suit an emulated machine.
[[nodiscard]] rpma::ConnectionConfig patient(std::uint32_t send_queue_size = 128,
                                             std::uint32_t receive_queue_size = 128);

constexpr int kAllUsages = RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST |
                           RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_SEND |
                           RPMA_MR_USAGE_RECV | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY;

/// Where the tests connect: a peer on the device of RXE_ADDR (in the VM) or 127.0.0.1 (softrdma).
class Site {
 public:
  Site();
  const std::string address;
  const std::shared_ptr<rpma::Peer> peer;

  /// Listens on a port that nobody else uses.
  [[nodiscard]] std::unique_ptr<rpma::Endpoint> listen(std::string& port) const;
  /// Both ends of a new connection, established.
  [[nodiscard]] Pair connect(const rpma::ConnectionConfig& server,
                             const rpma::ConnectionConfig& client) const;
  [[nodiscard]] rpma::ConnectionRequest ask(const std::string& port,
                                            const rpma::ConnectionConfig& client) const;
  /// Registered memory for everything.
  [[nodiscard]] std::shared_ptr<rpma::MemoryRegion> memory(std::size_t size) const;
  /// What a remote side would write to.
  [[nodiscard]] static std::shared_ptr<rpma::RemoteRegion> remote(const rpma::MemoryRegion& region);
};

[[nodiscard]] rpma::ConnectionRequest await_request(rpma::Endpoint& endpoint,
                                                    const rpma::ConnectionConfig& config);
/// The next event of the connection, whatever it is.
[[nodiscard]] rpma::ConnectionEvent await_event(rpma::Connection& connection);
/// Waits for `expected`; another event is a failure.
void await_event(rpma::Connection& connection, rpma::ConnectionEvent expected);

/// Polls until there is one completion; sleeps on nothing.
[[nodiscard]] ibv_wc await_completion(CompletionSource& source, const std::string& what);
/// The same for `count` of them, in the order in which they came.
[[nodiscard]] std::vector<ibv_wc> await_completions(CompletionSource& source, std::size_t count,
                                                    const std::string& what);

/// Takes completions as a poller does: sleeps only when the source was polled to empty since its
/// last re-arm (INV-EMPTY), with `budget` completions a poll.
class Collector {
 public:
  Collector(CompletionSource& source, std::uint32_t budget = 32);
  /// Gives each completion to `take` until there were `count`. Throws after kPatience.
  void collect(std::size_t count, const std::function<void(const ibv_wc&)>& take);

 private:
  CompletionSource& source_;
  std::vector<ibv_wc> buffer_;
};

/// Base of all contract tests.
class ContractTest : public ::testing::Test {
 protected:
  Site site_;
};

}  // namespace sluice::contract
