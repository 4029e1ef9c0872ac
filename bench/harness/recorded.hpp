// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/core/status.hpp"

namespace sluice::bench {

/// Gaps between completions as a program of one's own has met them.
struct RecordedTrace {
  static constexpr std::size_t kGapsMax = 10'000'000;

  std::string name;             ///< the file's, without folder and ending; for a figure's name
  std::vector<double> gaps_ns;  ///< >= 0; not empty
};

/// What the figures of a recorded trace are called.
[[nodiscard]] std::string recorded_name(std::string_view path);

/// Reads a text file: a gap in nanoseconds (a number >= 0) on each line; empty lines and those that
/// begin with '#' are passed over. Errors: io_error; invalid_argument with the line, also for a
/// file without gaps or with more than kGapsMax.
[[nodiscard]] Result<RecordedTrace> read_trace(const std::string& path);

}  // namespace sluice::bench
