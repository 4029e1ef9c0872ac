// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "options.hpp"
#include "sluice/core/status.hpp"
#include "sluice/topology/plan.hpp"

namespace sluice::plan_tool {

/// Does what was asked for. Returns the exit status; what went wrong has been said.
[[nodiscard]] int run(const Options& options);

/// Whether draw() knows how to write such a file, by its name's end.
[[nodiscard]] Status check_output_name(const std::string& path);
/// Writes a picture of a plan, or the XML for one.
[[nodiscard]] Status draw(const topology::Plan& plan, const std::string& path);

}  // namespace sluice::plan_tool
