// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace demo {

struct Options {
  std::uint32_t nodes = 3;            ///< of the cluster, 3 to 9
  std::uint32_t requests = 20'000;    ///< SETs of each run of redis-benchmark
  std::uint32_t clients = 32;         ///< its connections
  std::uint32_t bytes = 100;          ///< of a value
  std::uint32_t writers = 4;          ///< whose every acknowledged write is looked for at the end
  std::uint32_t lease_s = 2;          ///< after which a silent primary has lost its leadership
  std::string address = "127.0.0.1";  ///< of the RDMA device
  bool device = false;                ///< a device of the machine, not softrdma
  bool keep = false;                  ///< leave data and messages where they are
};

inline constexpr int kExitLost = 1;   ///< an acknowledged write is gone, or the cluster did not do
inline constexpr int kExitUsage = 2;  ///< the command line

struct Parsed {
  std::optional<Options> options;  ///< unset: exit with exit_code
  int exit_code = 0;
};
/// Says what is wrong on stderr, in one line.
[[nodiscard]] Parsed parse_options(int argc, char** argv);

}  // namespace demo
