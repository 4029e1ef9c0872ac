// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "files.hpp"
#include "latency.hpp"
#include "options.hpp"
#include "protocol.hpp"
#include "sha256.hpp"
#include "sluice/dispatch/counters.hpp"

namespace replicate {

/// The dispatcher's counters, as far as the summary shows them.
[[nodiscard]] Load load_of(const sluice::DispatcherCounters& counters);

/// All that is shown at the end, as text and as JSON.
struct Summary {
  bool shipped = false;  ///< it came to shipping: all replicas were connected
  std::string input_path;
  std::uint64_t input_bytes = 0;
  std::optional<Digest> input_digest;  ///< when all of it was read
  std::uint64_t records = 0;
  std::uint64_t committed = 0;
  double seconds = 0;  ///< from the first record's send to the last one's commit
  LatencyHistogram latencies;
  Load load;  ///< the primary's

  struct Replica {
    std::string name;
    std::uint64_t appended = 0;  ///< records it is known to have
    std::optional<Report> report;
    std::string lost;  ///< why it is down; empty: it is up
    std::string copy;  ///< where its copy is; empty: not known, or removed
  };
  std::vector<Replica> replicas;
  std::string failure;  ///< empty: all went well
};

/// For people: some lines ending in a verdict.
[[nodiscard]] std::string to_text(const Summary& summary, const Options& options);
/// For programs: one object. Times in microseconds, sizes in bytes.
[[nodiscard]] std::string to_json(const Summary& summary, const Options& options);

/// "8.4 MiB", "16 KiB", "700 B".
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);
/// "850 ns", "12.3 us", "4.56 ms", "1.2 s".
[[nodiscard]] std::string human_time(std::uint64_t nanoseconds);

}  // namespace replicate
