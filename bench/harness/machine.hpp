// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sluice::bench {

/// What the numbers were taken on, as words: ("cpu", "..."), ("kernel", "..."), ... "unknown" where
/// the system does not tell.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> machine_facts();

}  // namespace sluice::bench
