// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "resp/durability.hpp"
#include "resp/request_parser.hpp"

namespace sluice::kv {

/// How a RespServer is set up. Every default is meant to be left alone.
struct ServerOptions {
  std::string address = "127.0.0.1";  ///< a name or a number; "0.0.0.0" or "::" is all interfaces
  std::uint16_t port = 0;             ///< 0: the kernel chooses; RespServer::port() tells
  unsigned io_threads = 1;            ///< 1 to 64
  std::string requirepass;            ///< empty: none is asked for
  Durability durability = Durability::memory;  ///< of a new connection

  std::size_t clients_max = 10'000;
  /// Requests of one connection that have no reply yet; beyond it is not read from.
  std::size_t pipeline_max = 1024;
  /// The same of all connections of an I/O thread.
  std::size_t in_flight_max = 16'384;
  RequestLimits limits;
  /// Memory that requests which are not complete may take in an I/O thread, all its clients
  /// together; beyond it a client that holds much is closed when it sends more.
  std::size_t input_bytes_max = std::size_t{256} << 20;
  /// A client that has this much to fetch is not read from until it fetched half of it.
  std::size_t output_pause_bytes = std::size_t{1} << 20;
  /// A client that has this much to fetch is closed.
  std::size_t output_bytes_max = std::size_t{64} << 20;
  /// After the last reply to a client that is being closed: how long it may go on sending, unread.
  std::chrono::milliseconds linger{1000};

  /// More lines of CONFIG GET, or other values for those that are there.
  std::vector<std::pair<std::string, std::string>> config;
  /// Gets messages for people, one line each, from any thread. Unset: stderr.
  std::function<void(std::string_view)> message;
};

}  // namespace sluice::kv
