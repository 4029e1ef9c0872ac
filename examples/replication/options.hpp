// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/core/status.hpp"
#include "sluice/dispatch/config.hpp"

namespace replicate {

/// What one process does.
enum class Role : std::uint8_t {
  all,      ///< the default: starts the replicas here, then is their primary
  primary,  ///< ships a file to replicas that somebody started
  replica,  ///< takes one copy
};

/// Everything the command line says; see --help for the meaning and validate() for the ranges.
struct Options {
  Role role = Role::all;

  // The primary's.
  std::string file;  ///< empty: find_default_input()
  std::uint32_t replicas = 2;
  std::optional<std::uint32_t> quorum;  ///< unset: default_quorum()
  std::uint32_t connections = 1;
  std::optional<std::uint32_t>
      window;              ///< records in flight per connection; unset: 2..64, in 8 MiB
  std::uint16_t port = 0;  ///< of replica 0, the next for replica 1, ...; 0: any that are free
  std::string output_dir;
  bool keep = false;
  bool kill_one = false;
  std::string json;
  std::vector<std::string> replica_addresses;

  // A replica's.
  std::string listen;
  std::string output;
  std::uint32_t connections_max = 16;
  std::optional<std::uint32_t> receive_depth;  ///< unset: as many as fit into 8 MiB, 16..512
  int control_fd = -1;  ///< the starter's end of the socket pair; -1: started by hand

  // Everybody's.
  std::string address;
  std::uint64_t record_size = 16 * 1024;
  std::uint32_t workers = 1;
  std::uint32_t pollers = 1;
  sluice::WaitMode wait = sluice::WaitMode::event;
  bool fsync = false;
  std::uint32_t timeout_s = 10;

  [[nodiscard]] std::chrono::seconds timeout() const { return std::chrono::seconds(timeout_s); }
  /// The window with the default filled in.
  [[nodiscard]] std::uint32_t effective_window() const;
  [[nodiscard]] std::uint32_t effective_receive_depth() const;
  /// The same for both sides.
  [[nodiscard]] sluice::DispatcherConfig dispatcher_config(std::uint32_t connections_in_all) const;
};

/// Options, or the exit code of a program that has said what it had to say (help, a usage error).
struct ParsedOptions {
  std::optional<Options> options;
  int exit_code = 0;
};
[[nodiscard]] ParsedOptions parse_options(int argc, char** argv);

/// Half of the replicas, rounded up: together with the primary's own file that is a majority of all
/// copies, so a committed record outlives the loss of any one. 1 of 1, 1 of 2, 2 of 3, 2 of 4, 3
/// of 5.
[[nodiscard]] constexpr std::uint32_t default_quorum(std::uint32_t replicas) {
  return (replicas + 1) / 2;
}

/// Fills in the defaults that depend on others and checks every value; the message names the
/// option, its value, and what would do.
[[nodiscard]] sluice::Status complete_and_validate(Options& options);

/// "HOST:PORT" or "[V6]:PORT".
struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
[[nodiscard]] sluice::Result<HostPort> parse_host_port(const std::string& text,
                                                       bool port_0_allowed);

/// Raises the soft descriptor limit as far as allowed and checks that `connections` will fit.
[[nodiscard]] sluice::Status ensure_descriptors(std::uint64_t connections);

}  // namespace replicate
