// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "figure.hpp"

namespace sluice::bench {

inline constexpr int kBadUsage = 2;  ///< exit status

struct Options {
  Settings settings;
  std::string json;                 ///< where to; empty: nowhere
  bool list = false;                ///< only name the figures
  std::vector<std::string> traces;  ///< files of recorded gaps
};

struct Parsed {
  std::optional<Options> options;  ///< unset: exit with exit_code
  int exit_code = 0;
};

/// The command line, checked against the figures that there are. Says what is wrong on stderr, one
/// line.
[[nodiscard]] Parsed parse_options(int argc, char** argv, std::span<const FigureGroup> groups);

}  // namespace sluice::bench
