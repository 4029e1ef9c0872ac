// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/cluster/membership.hpp"
#include "kv/store/store.hpp"
#include "resp/durability.hpp"
#include "sluice/core/status.hpp"

namespace sluice::kv {

struct Options {
  std::string data;
  std::string bind = "127.0.0.1";
  std::uint16_t port = 6379;
  std::string announce;  ///< HOST:PORT; empty: what it listens on
  std::string requirepass;
  std::string topology;  ///< a file; empty: none
  std::optional<Durability> durability;

  std::string node = "node";
  std::string cluster = "sluice";
  std::string replication;  ///< HOST:PORT; empty: alone

  std::vector<std::string> etcd;
  std::string etcd_prefix = "/sluice/kv/";
  std::uint32_t lease_s = 3;
  std::vector<std::string> members;  ///< of the first in-sync set

  std::vector<Member> fixed;  ///< --static
  std::string primary;

  std::optional<std::size_t> min_in_sync;
  std::chrono::milliseconds replica_timeout{1000};
  std::uint64_t segment_bytes = std::uint64_t{64} << 20;
  std::uint64_t log_keep_bytes = std::uint64_t{256} << 20;
  std::uint64_t write_buffer_bytes = StoreOptions().write_buffer_bytes;
  std::uint64_t block_cache_bytes = StoreOptions().block_cache_bytes;
  std::uint64_t ring_bytes = std::uint64_t{16} << 20;

  [[nodiscard]] bool alone() const noexcept { return etcd.empty() && fixed.empty(); }
  [[nodiscard]] Durability effective_durability() const noexcept {
    return durability.value_or(alone() ? Durability::local_disk : Durability::quorum_disk);
  }
  /// The majority of those that the cluster begins with.
  [[nodiscard]] std::size_t effective_min_in_sync() const noexcept;
  /// What one entry may hold: a request that is larger is refused.
  [[nodiscard]] std::size_t entry_bytes_max() const noexcept;
};

/// What the command line says, or how the program ends instead.
struct ParsedOptions {
  std::optional<Options> options;
  int exit_code = 0;
};
/// Prints --help, --version and errors itself.
[[nodiscard]] ParsedOptions parse_options(int argc, char** argv);

}  // namespace sluice::kv
