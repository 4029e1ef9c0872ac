// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "config_document.hpp"
#include "config_schema.hpp"

namespace sluice::topology::configuration {

/// Why a value cannot be taken; reads on behind "pools.apply.workers: ".
struct Problem {
  std::string message;
};

/// The setting that a value means for a key, or why it means none.
[[nodiscard]] std::variant<Setting, Problem> to_setting(const KeySpec& key, const Node& value);

/// The value that a variable or flag holds: TOML, or a bare word.
[[nodiscard]] std::variant<Node, Problem> parse_text_value(const KeySpec& key,
                                                           std::string_view text);

}  // namespace sluice::topology::configuration
