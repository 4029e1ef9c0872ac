// SPDX-License-Identifier: BSD-3-Clause
#include "config_value.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "config_text.hpp"

namespace sluice::topology::configuration {

namespace {

constexpr std::size_t kTextValueMax = 4096;  ///< bytes of a variable's or flag's value
constexpr std::size_t kCpusMax = 1024;       ///< bytes of a place for threads
constexpr std::size_t kDeviceMax = 63;       ///< IBV_SYSFS_NAME_MAX less the NUL

using Outcome = std::variant<Setting, Problem>;

bool is_string(const Node& value) noexcept {
  return value.kind == NodeKind::string;
}

Problem unfit(const KeySpec& key, const Node& value) {
  std::string message = describe(value) + " is not possible; it takes " + expectation(key);
  if (!is_string(value)) return {message};
  std::vector<std::string> words;
  if (key.auto_allowed) words.emplace_back(kAuto);
  if (key.kind == Kind::choice) words.insert(words.end(), key.choices.begin(), key.choices.end());
  if (const auto word = nearest(value.text, words); !word.empty())
    message += "; did you mean \"" + word + "\"?";
  else if ((key.kind == Kind::count && parse_whole_number(value.text)) ||
           (key.kind == Kind::fraction && value.text.starts_with("0.")))
    message += "; write it without quotes";
  return {message};
}

bool within(const KeySpec& key, std::int64_t number) noexcept {
  return number >= 0 && static_cast<std::uint64_t>(number) >= key.min &&
         static_cast<std::uint64_t>(number) <= key.max;
}

Outcome number_setting(const KeySpec& key, const Node& value) {
  if (value.kind == NodeKind::integer && within(key, value.integer)) {
    const bool unit_missing = key.kind == Kind::duration && value.integer != 0;
    if (!unit_missing) return static_cast<std::uint64_t>(value.integer);
  }
  std::optional<std::uint64_t> parsed;
  if (is_string(value) && key.kind == Kind::size) parsed = parse_size(value.text);
  if (is_string(value) && key.kind == Kind::duration) parsed = parse_duration(value.text);
  if (parsed && *parsed >= key.min && *parsed <= key.max) return *parsed;
  return unfit(key, value);
}

Outcome fraction_setting(const KeySpec& key, const Node& value) {
  double number = -1;
  if (value.kind == NodeKind::real) number = value.real;
  if (value.kind == NodeKind::integer) number = static_cast<double>(value.integer);
  const bool within_one = number >= 0 && number <= 1;  // not a number is neither
  if (!within_one) return unfit(key, value);
  return number == 0 ? 0.0 : number;  // -0.0 is 0
}

Outcome choice_setting(const KeySpec& key, const Node& value) {
  if (!is_string(value)) return unfit(key, value);
  const auto found = std::find(key.choices.begin(), key.choices.end(), value.text);
  if (found != key.choices.end()) return static_cast<std::uint64_t>(found - key.choices.begin());
  return unfit(key, value);
}

Outcome cpus_setting(const KeySpec& key, const Node& value) {
  const bool single = value.kind == NodeKind::integer && value.integer >= 0;
  const std::string text = single ? std::to_string(value.integer) : value.text;
  if ((!single && !is_string(value)) || text.empty()) return unfit(key, value);
  if (text.size() > kCpusMax || !is_printable_ascii(text)) return unfit(key, value);
  if (const auto problem = problem_of_cpus(text); !problem.empty())
    return Problem{describe(value) + " is not possible: " + problem + "; it takes " +
                   expectation(key)};
  // A word alone that is next to "auto" is a mistake; others are for the machine to judge.
  if (text != kAuto && text.find_first_of(":= +") == std::string::npos &&
      nearest(text, {std::string(kAuto)}) == kAuto && text.size() > 2)
    return unfit(key, value);
  return text;
}

Outcome device_setting(const KeySpec& key, const Node& value) {
  const bool fits = is_string(value) && !value.text.empty() && value.text.size() <= kDeviceMax &&
                    is_printable_ascii(value.text) &&
                    value.text.find_first_of(" /\"\\") == std::string::npos;
  if (!fits) return unfit(key, value);
  return value.text;
}

Outcome group_setting(const KeySpec& key, const Node& value) {
  if (!is_string(value) || (!value.text.empty() && !is_group_name(value.text)))
    return unfit(key, value);
  return value.text;
}

Outcome vectors_setting(const KeySpec& key, const Node& value) {
  if (value.kind != NodeKind::array || value.children.empty()) return unfit(key, value);
  if (value.children.size() > kVectorsMax)
    return Problem{"the list has " + std::to_string(value.children.size()) + " entries; " +
                   std::to_string(kVectorsMax) + " are the most"};
  std::vector<std::uint32_t> vectors;
  std::set<std::int64_t> seen;
  for (const Node& item : value.children) {
    if (item.kind != NodeKind::integer || !within(key, item.integer)) return unfit(key, value);
    if (!seen.insert(item.integer).second) return unfit(key, value);
    vectors.push_back(static_cast<std::uint32_t>(item.integer));
  }
  return vectors;
}

Outcome node_setting(const KeySpec& key, const Node& value) {
  if (value.kind == NodeKind::integer && within(key, value.integer))
    return std::to_string(value.integer);
  if (!is_string(value)) return unfit(key, value);
  if (value.text == "poller") return value.text;
  const auto number = parse_whole_number(value.text);
  if (!number || *number > key.max) return unfit(key, value);
  return std::to_string(*number);
}

std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// Of these kinds nothing but text makes sense: CPU "3" is a place, a pool may be called "5".
bool is_text_kind(Kind kind) noexcept {
  return kind == Kind::cpus || kind == Kind::device || kind == Kind::group ||
         kind == Kind::choice || kind == Kind::node;
}

}  // namespace

std::variant<Setting, Problem> to_setting(const KeySpec& key, const Node& value) {
  const bool text_kind = is_text_kind(key.kind);
  if (key.auto_allowed && !text_kind && is_string(value) && value.text == kAuto) return Auto{};
  switch (key.kind) {
    case Kind::count:
    case Kind::size:
    case Kind::duration: return number_setting(key, value);
    case Kind::fraction: return fraction_setting(key, value);
    case Kind::choice: return choice_setting(key, value);
    case Kind::cpus: return cpus_setting(key, value);
    case Kind::device: return device_setting(key, value);
    case Kind::group: return group_setting(key, value);
    case Kind::vectors: return vectors_setting(key, value);
    case Kind::node: return node_setting(key, value);
  }
  return unfit(key, value);
}

std::variant<Node, Problem> parse_text_value(const KeySpec& key, std::string_view text) {
  text = trimmed(text);
  if (text.empty()) return Problem{"the value is empty; it takes " + expectation(key)};
  if (text.size() > kTextValueMax)
    return Problem{"the value is longer than " + std::to_string(kTextValueMax) + " bytes"};
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 && c != '\t'; };
  if (std::any_of(text.begin(), text.end(), is_control))
    return Problem{quoted_for_message(text) + " has control characters"};
  const bool toml_only = std::string_view("\"'[{").find(text.front()) != std::string_view::npos;
  Node word;
  word.text = std::string(text);
  if (!toml_only && is_text_kind(key.kind)) return word;
  auto parsed = parse_value(text);
  if (auto* node = std::get_if<Node>(&parsed)) return std::move(*node);
  if (!toml_only) return word;
  return Problem{quoted_for_message(text) +
                 " is no TOML value: " + std::get<SyntaxError>(parsed).message};
}

}  // namespace sluice::topology::configuration
