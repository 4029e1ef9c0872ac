// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sluice_test/process.hpp"

namespace sluice::test {

using Environment = std::vector<std::pair<std::string, std::string>>;

/// Runs sluice-plan to its end, in a folder, without any SLUICE_ variable but those given.
/// `out`: where standard output goes instead of Ended::out; "closed" for nowhere at all,
/// "broken pipe" for a reader that has gone.
Ended run_plan(const std::vector<std::string>& arguments, const Environment& environment = {},
               const std::string& out = {});

[[nodiscard]] std::size_t lines_of(const std::string& text);

}  // namespace sluice::test
