// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "exit_code.hpp"

namespace sluice::plan_tool {

enum class Command { check, print_config, print_defaults, plan, draw };

struct Options {
  Command command = Command::plan;
  std::string config;   ///< a file; empty: $SLUICE_CONFIG, else everything is a default
  std::string against;  ///< check: what runs now; empty: nothing to compare with
  std::string output;   ///< draw
  bool json = false;
  bool strict = false;
  bool no_machine = false;

  std::string topology;  ///< as Machine::load takes it
  std::vector<std::string> sets;
  std::vector<std::string> nics;
  std::string allowed, affinity, isolated;
};

/// The options, or the exit status when it has all been said (--help, a usage error).
struct ParsedOptions {
  std::optional<Options> options;
  int exit_code = kExitOk;
};
[[nodiscard]] ParsedOptions parse_options(int argc, char** argv);

}  // namespace sluice::plan_tool
