// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

#include "sluice/core/status.hpp"

namespace sluice::plan_tool {

/// All of it, or why not.
[[nodiscard]] Status write_stdout(std::string_view text);
[[nodiscard]] Status write_file(const std::string& path, std::string_view content);
/// Refuses what is no regular file, and more than any configuration or picture has.
[[nodiscard]] Result<std::string> read_file(const std::string& path);

/// A line of talk on stderr.
void say(std::string_view text);
/// Says what failed, if anything did, each line on its own. Returns 0, or `code` then.
[[nodiscard]] int finish(const Status& outcome, int code);

}  // namespace sluice::plan_tool
