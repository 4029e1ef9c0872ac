// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "figure.hpp"
#include "sluice/core/status.hpp"

namespace sluice::bench {

using Facts = std::vector<std::pair<std::string, std::string>>;

/// The machine and a table of the figures: value, spread, goal, met or not.
[[nodiscard]] std::string table(const Facts& machine, const std::vector<Measured>& results);

/// Makes the file, or says why it cannot be written.
[[nodiscard]] Status write_empty(const std::string& path);

/// {"machine": {..}, "figures": {name: number}, "spread": {name: [low, high]}, "quick": bool}
[[nodiscard]] Status write_json(const std::string& path, const Facts& machine, bool quick,
                                const std::vector<Measured>& results);

}  // namespace sluice::bench
