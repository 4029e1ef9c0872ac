// SPDX-License-Identifier: BSD-3-Clause
// What a folder holds: found out without changing anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scan.hpp"
#include "segment_files.hpp"

namespace sluice::kv {

/// A segment of the log, as it was found.
struct FoundSegment {
  std::string path;
  format::SegmentHeader header;
  format::Activation activation;
  SegmentScan scan;
  std::uint64_t file_bytes = 0;
};

/// What must be done before the log can be used, and what is lost.
struct Cut {
  std::uint64_t after = 0;         ///< the last entry that is kept
  std::uint64_t known_beyond = 0;  ///< the highest index of which something is left; 0: none
  std::string message;             ///< one line for people
};

struct Findings {
  std::vector<FoundSegment> segments;   ///< of the log, in order
  std::vector<std::string> void_files;  ///< superseded or empty: to be recycled
  std::vector<NamedFile> free_files;
  std::optional<std::pair<std::string, format::SegmentHeader>> spare;
  std::optional<Cut> cut;
  std::uint64_t highest_generation = 0;
};

/// Reads all files and checks each entry. Failures: device_failed: entries that were durable are
/// damaged or missing (the message says where, which, and what to do); rejected: another cluster's;
/// not_supported: a newer version's; and those of system_failure().
/// `cluster_id` empty: any. `settle` has each file's dirty pages written and forgotten first, so
/// that what is read is what the disk has, not what a failed fdatasync left in memory.
[[nodiscard]] Result<Findings> examine(const std::string& folder, const std::string& cluster_id,
                                       bool settle);

}  // namespace sluice::kv
