// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>

#include "sluice/core/status.hpp"

namespace sluice::bench {

using Numbers = std::map<std::string, double>;

/// Where a program of the bench lies: beside this one.
[[nodiscard]] std::string program_path(const char* name);

/// Runs a program of the bench, under `launcher` unless that is empty, and reads the "name value"
/// lines that it prints. Fails when it does, or prints none.
[[nodiscard]] Result<Numbers> run_program(const std::string& launcher, const std::string& program,
                                          const std::string& arguments);

}  // namespace sluice::bench
