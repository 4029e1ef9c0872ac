// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

namespace sluice::kv::test {

/// How a program ended, and all it said, on stdout and stderr.
struct ToolResult {
  int status = -1;  ///< exit status; 128 + signal; -1: it had to be killed since it ran too long
  std::string out;
};

/// Runs a program to its end, with that input.
[[nodiscard]] ToolResult run_tool(const std::vector<std::string>& arguments,
                                  const std::string& input = {});

/// The same on a terminal: each line is typed when the one before it has been answered, that is,
/// when `prompt` has been shown once more.
[[nodiscard]] ToolResult run_on_terminal(const std::vector<std::string>& arguments,
                                         const std::string& prompt,
                                         const std::vector<std::string>& lines);

}  // namespace sluice::kv::test
