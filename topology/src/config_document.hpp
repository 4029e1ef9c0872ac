// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// The text of a configuration as a tree, apart from what it means.
namespace sluice::topology::configuration {

/// 1-based; line 0: nowhere in a file.
struct Place {
  unsigned line = 0;
  unsigned column = 0;
};

enum class NodeKind : std::uint8_t { string, integer, real, boolean, date, array, table };

/// A value, with its key where it is in a table. A table's children are in the order of the file,
/// which is not TOML's: the first group of a section is its default.
struct Node {
  std::string key;
  Place key_at;
  NodeKind kind = NodeKind::string;
  Place at;
  std::string text;  ///< of a string; a date as it was written
  std::int64_t integer = 0;
  double real = 0;
  bool boolean = false;
  std::vector<Node> children;

  [[nodiscard]] const Node* find(std::string_view name) const noexcept;
};

struct SyntaxError {
  std::string message;
  Place at;
};

/// A TOML document. Safe for any bytes: nesting and the parts of a key are bounded.
[[nodiscard]] std::variant<Node, SyntaxError> parse_document(std::string_view text);

/// One value of one line, as it stands behind a '='.
[[nodiscard]] std::variant<Node, SyntaxError> parse_value(std::string_view text);

/// A value as people write it, for messages: escaped, and cut where it is long.
[[nodiscard]] std::string describe(const Node& node);

}  // namespace sluice::topology::configuration
