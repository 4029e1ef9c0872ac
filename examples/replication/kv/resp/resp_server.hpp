// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "resp/command_handler.hpp"
#include "resp/server_options.hpp"
#include "sluice/core/status.hpp"

namespace sluice::kv {

/// Sums over all I/O threads. They are read while they change: each is exact, all together are not
/// of one moment.
struct ServerStats {
  std::uint64_t clients = 0;          ///< connected now
  std::uint64_t accepted = 0;         ///< connections, ever
  std::uint64_t refused = 0;          ///< connections above clients_max, or without a descriptor
  std::uint64_t requests = 0;         ///< well-formed ones
  std::uint64_t protocol_errors = 0;  ///< connections closed for malformed requests
  std::uint64_t slow_readers = 0;     ///< connections closed at output_bytes_max
  std::uint64_t in_flight = 0;        ///< tickets that the handler has now
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  std::uint64_t sends = 0;  ///< system calls; requests / sends shows the batching
};

/// A TCP front end that speaks RESP2: it parses requests, answers those about the connection
/// itself, hands the others to a CommandHandler, and sends the replies in order.
///
/// Threads: start() makes io_threads threads, the first of which also accepts. All calls: any
/// thread but those; stop() once.
class RespServer {
 public:
  /// Listens, and is ready for clients on return. The handler must outlive the server.
  /// Errors: invalid_argument (an option, an address), address_in_use, permission_denied,
  /// resource_exhausted, io_error; one line each.
  [[nodiscard]] static Result<std::unique_ptr<RespServer>> start(ServerOptions options,
                                                                 CommandHandler& handler);
  /// stop(0 s) if there was none; then waits until the handler has completed or dropped every
  /// ticket, since each of them points into this server. A message says so if that takes long.
  ~RespServer();
  RespServer(const RespServer&) = delete;
  RespServer& operator=(const RespServer&) = delete;

  /// The port it listens on.
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// "127.0.0.1:6379".
  [[nodiscard]] std::string listening_on() const;
  [[nodiscard]] ServerStats stats() const noexcept;

  /// Takes no more clients and requests, waits until those it has taken are answered and sent, and
  /// closes. timed_out: at the deadline some were not; those connections were cut.
  [[nodiscard]] Status stop(std::chrono::milliseconds deadline);

 private:
  struct Impl;
  explicit RespServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::kv
