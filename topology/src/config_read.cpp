// SPDX-License-Identifier: BSD-3-Clause
#include "config_read.hpp"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "config_text.hpp"
#include "config_value.hpp"

namespace sluice::topology::configuration {

namespace {

std::string shown(std::string_view name) {
  return escaped(name, kValueMax);
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string near = nearest(name, candidates);
  return near.empty() ? "" : "; did you mean '" + near + "'?";
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const SectionSpec& section : sections()) names.emplace_back(section.name);
  return names;
}

/// The keys of a section's tables, or of a table in these: below "wait." there is "mode".
std::vector<std::string> key_names(Section section, std::string_view below = {}) {
  std::vector<std::string> names;
  for (const KeySpec& key : keys()) {
    if (key.section != section || !key.name.starts_with(below)) continue;
    const std::string_view rest = key.name.substr(below.size());
    names.emplace_back(rest.substr(0, rest.find('.')));
  }
  return names;
}

bool has_inner_table(Section section, std::string_view name) {
  const std::string below = std::string(name) + '.';
  return !key_names(section, below).empty();
}

/// What to say of a key that a table does not have.
std::string unknown_key(Section section, std::string_view name, const std::string& table,
                        std::string_view below = {}) {
  std::string message = "there is no key '" + shown(name) + "' in [" + table + ']';
  if (const auto near = did_you_mean(name, key_names(section, below)); !near.empty())
    return message + near;
  for (const KeySpec& key : keys()) {
    if (key.section == section && key.name.ends_with('.' + std::string(name)))
      return message + "; write " + std::string(key.name);
  }
  for (const SectionSpec& other : sections()) {
    if (find_key(other.section, name) == nullptr) continue;
    return message + "; it is one of [" + std::string(other.name) +
           (other.grouped ? ".NAME]" : "]");
  }
  return message;
}

}  // namespace

Reader::Reader(const ConfigInput& input) : input_(input) {
  // To name a group replaces the default one.
  config_.pollers.clear();
  config_.pools.clear();
}

ConfigOutcome Reader::run() {
  read_file();
  for (const SectionSpec& section : sections()) {
    groups_of_file_[static_cast<std::size_t>(section.section)] =
        group_count(config_, section.section);
  }
  read_environment();
  for (const Override& wanted : input_.overrides) read_override(wanted);
  if (config_.pollers.empty()) add_group(config_, Section::pollers, "default");
  if (config_.pools.empty()) add_group(config_, Section::pools, "default");
  check_together(config_, report_);
  return {std::move(config_), report_.take()};
}

Origin Reader::in_file(Place place) const {
  return {OriginKind::file, input_.file, place.line, place.column};
}

void Reader::read_file() {
  if (input_.text.size() > kTextMax) {
    report_.error(in_file({}), {},
                  "the text has " + std::to_string(input_.text.size()) + " bytes; " +
                      std::to_string(kTextMax) + " are the most");
    return;
  }
  const auto document = parse_document(input_.text);
  if (const auto* error = std::get_if<SyntaxError>(&document)) {
    report_.error(in_file(error->at), {}, "this is not TOML: " + error->message);
    return;
  }
  for (const Node& child : std::get<Node>(document).children) {
    if (const SectionSpec* section = find_section(child.key)) {
      read_section(*section, child);
      continue;
    }
    std::string message = "there is no table [" + shown(child.key) + "]";
    if (child.kind != NodeKind::table) message = "there is no key '" + shown(child.key) + "' here";
    report_.error(in_file(child.key_at), shown(child.key),
                  message + did_you_mean(child.key, section_names()));
  }
}

void Reader::read_section(const SectionSpec& section, const Node& table) {
  const std::string name(section.name);
  if (table.kind != NodeKind::table) {
    report_.error(in_file(table.at), name,
                  name + " is a table: write [" + name + (section.grouped ? ".NAME]" : "]"));
    return;
  }
  if (!section.grouped) {
    read_table(section.section, 0, table);
    return;
  }
  for (const Node& group : table.children) read_group(section, group);
}

void Reader::read_group(const SectionSpec& section, const Node& table) {
  const std::string name(section.name);
  const std::string path = name + '.' + shown(table.key);
  if (table.kind != NodeKind::table) {
    const bool is_key = find_key(section.section, table.key) != nullptr ||
                        has_inner_table(section.section, table.key);
    report_.error(in_file(table.key_at), path,
                  is_key ? "the key '" + shown(table.key) + "' belongs to a group: write [" + name +
                               ".NAME] above it"
                         : path + " is a group, a table: write [" + path + "]");
    return;
  }
  if (!is_group_name(table.key))
    report_.error(in_file(table.key_at), path, "'" + shown(table.key) + "' " + kNameRule);
  if (const auto group = new_group(section.section, table.key, in_file(table.key_at)))
    read_table(section.section, *group, table);
}

void Reader::read_table(Section section, std::size_t group, const Node& table) {
  const std::string path = escaped(path_of_table(config_, section, group), kValueMax);
  for (const Node& value : table.children) {
    if (const KeySpec* key = find_key(section, value.key)) {
      assign(*key, group, value, in_file(value.at));
    } else if (has_inner_table(section, value.key)) {
      read_inner_table(section, group, value);
    } else {
      report_.error(in_file(value.key_at), path + '.' + shown(value.key),
                    unknown_key(section, value.key, path));
    }
  }
}

void Reader::read_inner_table(Section section, std::size_t group, const Node& value,
                              const Origin* origin) {
  const auto origin_at = [&](Place place) { return origin == nullptr ? in_file(place) : *origin; };
  const std::string path =
      escaped(path_of_table(config_, section, group), kValueMax) + '.' + value.key;
  const std::string below = value.key + '.';
  const KeySpec& mode = *find_key(section, below + "mode");
  if (value.kind != NodeKind::table) {
    assign(mode, group, value, origin_at(value.at));
    return;
  }
  for (const Node& child : value.children) {
    if (const KeySpec* key = find_key(section, below + child.key)) {
      assign(*key, group, child, origin_at(child.at));
      continue;
    }
    report_.error(origin_at(child.key_at), path + '.' + shown(child.key),
                  unknown_key(section, child.key, path, below));
  }
}

void Reader::assign(const KeySpec& key, std::size_t group, const Node& value,
                    const Origin& origin) {
  const std::string path = path_of(config_, key, group);
  auto setting = to_setting(key, value);
  if (const auto* problem = std::get_if<Problem>(&setting)) {
    const std::string safe_path = escaped(path, 2 * kValueMax);
    report_.error(origin, safe_path, safe_path + ": " + problem->message);
    return;
  }
  key.set(config_, group, std::get<Setting>(setting));
  config_.origins[path] = origin;
}

std::optional<std::size_t> Reader::find_group(Section section, std::string_view name) const {
  for (std::size_t i = 0; i < group_count(config_, section); ++i) {
    if (group_name(config_, section, i) == name) return i;
  }
  return std::nullopt;
}

std::optional<std::size_t> Reader::new_group(Section section, const std::string& name,
                                             const Origin& origin) {
  const std::size_t count = group_count(config_, section);
  if (count >= kGroupsMax) {
    const std::string table(spec_of(section).name);
    report_.error(origin, table,
                  "there are more than " + std::to_string(kGroupsMax) + " groups of [" + table +
                      "], which are the most");
    return std::nullopt;
  }
  add_group(config_, section, name);
  return count;
}

}  // namespace sluice::topology::configuration
