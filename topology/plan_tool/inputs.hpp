// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "options.hpp"
#include "sluice/core/status.hpp"
#include "sluice/topology/config.hpp"
#include "sluice/topology/machine.hpp"

namespace sluice::plan_tool {

/// The file of the options: CONFIG, $SLUICE_CONFIG, or empty for none.
[[nodiscard]] std::string config_file(const Options& options);
/// Reads it with the environment and --set. A failure is a file that cannot be read; what is wrong
/// in it are diagnostics.
[[nodiscard]] Result<topology::ConfigOutcome> read_config(const Options& options);
/// A file by itself, with the environment: what a program that was started with it has.
[[nodiscard]] Result<topology::ConfigOutcome> read_config(const std::string& file);
/// --topology and the what-ifs. A failure is an option that cannot work.
[[nodiscard]] Result<topology::Machine> read_machine(const Options& options);
/// Whether each --set has a path and a value.
[[nodiscard]] Status check_sets(const Options& options);

}  // namespace sluice::plan_tool
