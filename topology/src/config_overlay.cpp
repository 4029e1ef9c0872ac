// SPDX-License-Identifier: BSD-3-Clause
// What is laid over the file: environment variables and flags.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "config_read.hpp"
#include "config_text.hpp"
#include "config_value.hpp"

namespace sluice::topology::configuration {

namespace {

constexpr std::string_view kPrefix = "SLUICE_";
/// Variables of other parts that begin alike: no keys, and no reason to warn.
constexpr std::array<std::string_view, 2> kOtherVariables = {"SLUICE_CONFIG", "SLUICE_RPMA_LOG"};
/// A warning's nearest name is looked for among the keys of this many groups of a section.
constexpr std::size_t kSuggestedGroupsMax = 8;

/// A key as it is spelled outside of a table: "wait" is short for "wait.mode".
struct Spelling {
  std::string_view name;
  const KeySpec* key;
};

std::vector<Spelling> spellings() {
  std::vector<Spelling> all;
  for (const KeySpec& key : keys()) {
    all.push_back({key.name, &key});
    const std::size_t dot = key.name.rfind(".mode");
    if (dot != std::string_view::npos) all.push_back({key.name.substr(0, dot), &key});
  }
  return all;
}

/// "wait.mode" as "WAIT__MODE".
std::string in_capitals(std::string_view path) {
  std::string out;
  for (const char c : upper_case(path)) out += c == '.' ? "__" : std::string(1, c);
  return out;
}

struct Target {
  const KeySpec* key = nullptr;
  std::string_view group;
};

/// Splits "POOLS__APPLY__WORKERS" or, with `separator` ".", "pools.apply.workers". What is between
/// section and key is the group's name, which may have "__" in it. No key's spelling ends with a
/// separator and another one of its section: at most one fits.
template <typename Spell>
Target resolve(std::string_view path, std::string_view separator, Spell spell) {
  for (const auto& [name, key] : spellings()) {
    const SectionSpec& section = spec_of(key->section);
    const std::string front = spell(section.name) + std::string(separator);
    const std::string back =
        (section.grouped ? std::string(separator) : std::string()) + spell(name);
    if (!path.starts_with(front) || path.size() < front.size() + back.size()) continue;
    const std::string_view rest = path.substr(front.size());
    if (!rest.ends_with(back)) continue;
    const std::string_view group = rest.substr(0, rest.size() - back.size());
    if (group.empty() != section.grouped) return {key, group};
  }
  return {};
}

std::string comparable(std::string_view group) {
  std::string out = lower_case(group);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

}  // namespace

void Reader::read_environment() {
  // Sorted: which group is the first must not hang on the order of an environment.
  std::vector<std::pair<std::string, std::string>> variables;
  for (const auto& variable : input_.environment) {
    if (variable.first.starts_with(kPrefix)) variables.push_back(variable);
  }
  std::stable_sort(variables.begin(), variables.end(),
                   [](const auto& left, const auto& right) { return left.first < right.first; });
  for (const auto& [name, value] : variables) read_variable(name, value);
}

void Reader::read_variable(const std::string& name, const std::string& value) {
  if (std::find(kOtherVariables.begin(), kOtherVariables.end(), name) != kOtherVariables.end())
    return;
  const Origin origin{OriginKind::environment, escaped(name, kValueMax), 0, 0};
  const std::string path = upper_case(std::string_view(name).substr(kPrefix.size()));
  const Target target = resolve(path, "__", in_capitals);
  if (target.key == nullptr) {
    say_unused_variable(name, origin);
    return;
  }
  assign_text(*target.key, target.group, value, origin);
}

void Reader::say_unused_variable(const std::string& name, const Origin& origin) {
  const std::string path = upper_case(std::string_view(name).substr(kPrefix.size()));
  const std::size_t first = path.find("__");
  const std::size_t second = first == std::string::npos ? first : path.find("__", first + 2);
  std::vector<std::string> candidates;
  for (const auto& [key_name, key] : spellings()) {
    const SectionSpec& section = spec_of(key->section);
    const std::string front = std::string(kPrefix) + in_capitals(section.name) + "__";
    const std::string back = in_capitals(key_name);
    if (!section.grouped) {
      candidates.push_back(front + back);
      continue;
    }
    // The group that the variable speaks of, or any there is.
    if (second != std::string::npos)
      candidates.push_back(front + path.substr(first + 2, second - first - 2) + "__" + back);
    const std::size_t groups = std::min(group_count(config_, section.section), kSuggestedGroupsMax);
    for (std::size_t i = 0; i < groups; ++i) {
      std::string group = upper_case(group_name(config_, section.section, i));
      std::replace(group.begin(), group.end(), '-', '_');
      candidates.push_back(front + group + "__" + back);
    }
  }
  for (const std::string_view other : kOtherVariables) candidates.emplace_back(other);
  const std::string near = nearest(name, candidates);
  report_.warning(origin, {},
                  "the variable is unused: it names no key" +
                      (near.empty() ? std::string() : "; did you mean " + near + "?"));
}

void Reader::read_override(const Override& wanted) {
  const std::string flag =
      (wanted.flag.empty() ? "" : wanted.flag + ' ') + escaped(wanted.path, kValueMax);
  const Origin origin{OriginKind::flag, flag, 0, 0};
  const Target target =
      resolve(wanted.path, ".", [](std::string_view name) { return std::string(name); });
  if (target.key != nullptr) {
    assign_text(*target.key, target.group, wanted.value, origin);
    return;
  }
  std::vector<std::string> candidates;
  const std::size_t first = wanted.path.find('.');
  const std::size_t second = first == std::string::npos ? first : wanted.path.find('.', first + 1);
  for (const auto& [name, key] : spellings()) {
    const SectionSpec& section = spec_of(key->section);
    std::string candidate = std::string(section.name) + '.';
    if (section.grouped) {
      candidate += second == std::string::npos ? "default"
                                               : wanted.path.substr(first + 1, second - first - 1);
      candidate += '.';
    }
    candidates.push_back(candidate + std::string(name));
  }
  const std::string near = nearest(wanted.path, candidates);
  report_.error(origin, escaped(wanted.path, kValueMax),
                "there is no key '" + escaped(wanted.path, kValueMax) + "'" +
                    (near.empty() ? std::string() : "; did you mean '" + near + "'?"));
}

void Reader::assign_text(const KeySpec& key, std::string_view group, std::string_view text,
                         const Origin& origin) {
  std::size_t index = 0;
  if (spec_of(key.section).grouped) {
    const auto found = group_for_text(key.section, group, origin);
    if (!found) return;
    index = *found;
  }
  auto value = parse_text_value(key, text);
  if (const auto* problem = std::get_if<Problem>(&value)) {
    const std::string path = path_of(config_, key, index);
    report_.error(origin, path, path + ": " + problem->message);
    return;
  }
  Node& node = std::get<Node>(value);
  if (node.kind != NodeKind::table || !key.name.ends_with(".mode")) {
    assign(key, index, node, origin);
    return;
  }
  node.key = key.name.substr(0, key.name.rfind('.'));
  read_inner_table(key.section, index, node, &origin);
}

std::optional<std::size_t> Reader::group_for_text(Section section, std::string_view name,
                                                  const Origin& origin) {
  if (const auto exact = find_group(section, name)) return exact;
  const bool from_variable = origin.kind == OriginKind::environment;
  const std::string group = from_variable ? lower_case(name) : std::string(name);
  std::optional<std::size_t> alike;
  std::vector<std::string> file_names;
  for (std::size_t i = 0; i < group_count(config_, section); ++i) {
    const std::string& known = group_name(config_, section, i);
    if (known == group) return i;
    if (from_variable && !alike && comparable(known) == comparable(group)) alike = i;
    if (i < groups_of_file_[static_cast<std::size_t>(section)]) file_names.push_back(known);
  }
  if (alike) return alike;
  const std::string table(spec_of(section).name);
  const std::string path = table + '.' + escaped(group, kValueMax);
  if (!is_group_name(group)) {
    report_.error(origin, path, "'" + escaped(group, kValueMax) + "' " + kNameRule);
    return std::nullopt;
  }
  if (file_names.empty()) file_names.emplace_back("default");
  if (const auto near = nearest(group, file_names); !near.empty() && near != group)
    report_.warning(origin, path,
                    "this makes a new group [" + path + "]; did you mean '" + near + "'?");
  return new_group(section, group, origin);
}

}  // namespace sluice::topology::configuration
