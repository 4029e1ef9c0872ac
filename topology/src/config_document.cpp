// SPDX-License-Identifier: BSD-3-Clause
#include "config_document.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <sstream>
#include <utility>

#include "config_text.hpp"

// toml++ as headers, in this file only: it is slow to compile, and who links Sluice does not need
// its library. Without exceptions a syntax error is a value.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_MAX_NESTED_VALUES 32
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

namespace sluice::topology::configuration {

namespace {

/// toml++ bounds the nesting of values, but each part of a dotted key is a table as well, and it
/// frees tables by recursion: without a bound a long key would overflow the stack.
constexpr unsigned kKeyPartsMax = 16;

struct Fault {
  std::size_t offset;
  std::string message;
};

/// Refuses what toml++ 3.3 must not see. It walks over the text only as far as is needed to tell
/// keys from strings and comments; as toml++ stops at the first error, both agree up to there.
///
/// Beside long keys these are characters beyond ASCII where toml++ asks whether they are blanks:
/// outside of strings and comments (where TOML has none), and behind a '\' at the end of a line in
/// a """ string. is_non_ascii_horizontal_whitespace() then reaches its TOML_UNREACHABLE for most of
/// U+00A0 to U+0499, which is undefined behaviour.
class Guard {
 public:
  explicit Guard(std::string_view text) : text_(text) {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;  // a byte order mark
  }

  [[nodiscard]] std::optional<Fault> find_fault() {
    unsigned dots = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        if (!skip_string(c))
          return Fault{at_, "a string in \"\"\" may have no characters beyond ASCII"};
        continue;
      }
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
        continue;
      }
      if (!is_ascii(c)) return Fault{at_, "characters beyond ASCII belong in strings and comments"};
      if (std::string_view("=,{}[]\n").find(c) != std::string_view::npos) dots = 0;
      if (c == '.' && ++dots >= kKeyPartsMax)
        return Fault{at_, "a key has more than " + std::to_string(kKeyPartsMax) + " parts"};
      ++at_;
    }
    return std::nullopt;
  }

 private:
  static bool is_ascii(char c) noexcept { return static_cast<unsigned char>(c) < 0x80; }

  /// False: it stands at a character that must not be there.
  bool skip_string(char quote) {
    const std::string triple(3, quote);
    if (text_.substr(at_, 3) != triple) {
      skip_line_string(quote);
      return true;
    }
    at_ += 3;
    while (at_ < text_.size()) {
      if (quote == '"' && !is_ascii(text_[at_])) return false;
      if (text_.substr(at_, 3) == triple) {
        at_ += 3;
        // Up to two quotes may stand right before the closing three.
        for (int extra = 0; extra < 2 && at_ < text_.size() && text_[at_] == quote; ++extra) ++at_;
        return true;
      }
      const bool escape = quote == '"' && text_[at_] == '\\' && at_ + 1 < text_.size();
      at_ += escape && is_ascii(text_[at_ + 1]) ? 2 : 1;
    }
    return true;
  }

  void skip_line_string(char quote) {
    ++at_;
    while (at_ < text_.size() && text_[at_] != '\n') {
      const char c = text_[at_];
      at_ += quote == '"' && c == '\\' && at_ + 1 < text_.size() ? 2 : 1;
      if (c == quote) return;
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

/// Columns count characters, as those of toml++ do.
Place place_of_offset(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const std::string_view line = before.substr(before.rfind('\n') + 1);  // npos + 1 == 0
  const auto characters = std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  });
  return {static_cast<unsigned>(lines) + 1, static_cast<unsigned>(characters) + 1};
}

Place place_of(const toml::source_region& region) {
  return {region.begin.line, region.begin.column};
}

bool is_before(const Node& left, const Node& right) {
  return std::pair(left.key_at.line, left.key_at.column) <
         std::pair(right.key_at.line, right.key_at.column);
}

template <typename Date>
std::string written(const Date& date) {
  std::ostringstream out;
  out << date;
  return std::move(out).str();
}

/// Recursion is bounded by TOML_MAX_NESTED_VALUES * kKeyPartsMax.
Node converted(const toml::node& from) {
  Node to;
  to.at = place_of(from.source());
  if (const auto* table = from.as_table()) {
    to.kind = NodeKind::table;
    for (const auto& [key, child] : *table) {
      Node& added = to.children.emplace_back(converted(child));
      added.key = std::string(key.str());
      added.key_at = place_of(key.source());
    }
    std::stable_sort(to.children.begin(), to.children.end(), is_before);
  } else if (const auto* array = from.as_array()) {
    to.kind = NodeKind::array;
    for (const auto& child : *array) to.children.push_back(converted(child));
  } else if (const auto* string = from.as_string()) {
    to.text = string->get();
  } else if (const auto* integer = from.as_integer()) {
    to.kind = NodeKind::integer;
    to.integer = integer->get();
  } else if (const auto* real = from.as_floating_point()) {
    to.kind = NodeKind::real;
    to.real = real->get();
  } else if (const auto* boolean = from.as_boolean()) {
    to.kind = NodeKind::boolean;
    to.boolean = boolean->get();
  } else {
    to.kind = NodeKind::date;
    if (const auto* date = from.as_date()) to.text = written(date->get());
    if (const auto* time = from.as_time()) to.text = written(time->get());
    if (const auto* both = from.as_date_time()) to.text = written(both->get());
  }
  return to;
}

}  // namespace

const Node* Node::find(std::string_view name) const noexcept {
  const auto found = std::find_if(children.begin(), children.end(),
                                  [&](const Node& child) { return child.key == name; });
  return found == children.end() ? nullptr : &*found;
}

std::variant<Node, SyntaxError> parse_document(std::string_view text) {
  if (const auto fault = Guard(text).find_fault())
    return SyntaxError{fault->message, place_of_offset(text, fault->offset)};
  const toml::parse_result result = toml::parse(text);
  if (!result) {
    const toml::parse_error& error = result.error();
    return SyntaxError{escaped(error.description(), kMessageMax), place_of(error.source())};
  }
  return converted(result.table());
}

std::variant<Node, SyntaxError> parse_value(std::string_view text) {
  static constexpr std::string_view kKey = "value";
  auto document = parse_document(std::string(kKey) + " = " + std::string(text));
  if (const auto* error = std::get_if<SyntaxError>(&document)) return *error;
  Node& root = std::get<Node>(document);
  if (root.children.size() != 1 || root.children.front().key != kKey)
    return SyntaxError{"it is more than one value", {}};
  return std::move(root.children.front());
}

std::string describe(const Node& node) {
  switch (node.kind) {
    case NodeKind::string: return quoted_for_message(node.text);
    case NodeKind::integer: return std::to_string(node.integer);
    case NodeKind::real: return written(node.real);
    case NodeKind::boolean: return node.boolean ? "true" : "false";
    case NodeKind::date: return escaped(node.text, kValueMax);
    case NodeKind::table: return "a table";
    case NodeKind::array: break;
  }
  std::string list = "[";
  for (const Node& item : node.children) {
    if (list.size() > kValueMax) break;
    list += (list.size() > 1 ? ", " : "") + describe(item);
  }
  return cut(list + "]", kValueMax);
}

}  // namespace sluice::topology::configuration
