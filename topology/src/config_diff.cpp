// SPDX-License-Identifier: BSD-3-Clause
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config_schema.hpp"
#include "config_text.hpp"
#include "sluice/topology/config.hpp"

namespace sluice::topology {

namespace {

using namespace configuration;

std::map<std::string, std::size_t> groups_by_name(const Config& config, Section section) {
  std::map<std::string, std::size_t> groups;
  for (std::size_t i = 0; i < group_count(config, section); ++i)
    groups.emplace(group_name(config, section, i), i);
  return groups;
}

/// A group as an inline table of what is no default in it.
std::string whole_group(const Config& config, Section section, std::size_t group) {
  Config defaults;
  add_group(defaults, section, {});
  const std::size_t fresh = group_count(defaults, section) - 1;
  std::string inside;
  for (const KeySpec& key : keys()) {
    if (key.section != section) continue;
    const std::string value = format(key, key.get(config, group));
    if (value == format(key, key.get(defaults, fresh))) continue;
    inside += (inside.empty() ? "" : ", ") + std::string(key.name) + " = " + value;
  }
  return inside.empty() ? "{}" : "{ " + inside + " }";
}

void append_values(std::vector<ConfigChange>& changes, Section section, const Config& running,
                   std::size_t before, const Config& wanted, std::size_t after) {
  for (const KeySpec& key : keys()) {
    if (key.section != section) continue;
    ConfigChange change{path_of(wanted, key, after), format(key, key.get(running, before)),
                        format(key, key.get(wanted, after))};
    if (change.before != change.after) changes.push_back(std::move(change));
  }
}

/// Whether it matters which group of a section is the first.
bool first_is_default(Section section) noexcept {
  return section == Section::pollers || section == Section::pools;
}

void append_groups(std::vector<ConfigChange>& changes, Section section, const Config& running,
                   const Config& wanted) {
  const auto before = groups_by_name(running, section);
  const auto after = groups_by_name(wanted, section);
  if (first_is_default(section) && !before.empty() && !after.empty() &&
      group_name(running, section, 0) != group_name(wanted, section, 0)) {
    changes.push_back({std::string(spec_of(section).name),
                       toml_string(group_name(running, section, 0)),
                       toml_string(group_name(wanted, section, 0))});
  }
  for (std::size_t i = 0; i < group_count(wanted, section); ++i) {
    const auto old = before.find(group_name(wanted, section, i));
    if (old != before.end())
      append_values(changes, section, running, old->second, wanted, i);
    else
      changes.push_back({path_of_table(wanted, section, i), {}, whole_group(wanted, section, i)});
  }
  for (std::size_t i = 0; i < group_count(running, section); ++i) {
    if (after.contains(group_name(running, section, i))) continue;
    changes.push_back({path_of_table(running, section, i), whole_group(running, section, i), {}});
  }
}

}  // namespace

std::vector<ConfigChange> diff(const Config& running, const Config& wanted) {
  std::vector<ConfigChange> changes;
  for (const SectionSpec& section : sections()) {
    if (section.grouped)
      append_groups(changes, section.section, running, wanted);
    else
      append_values(changes, section.section, running, 0, wanted, 0);
  }
  return changes;
}

std::string ConfigChange::to_string() const {
  const std::string restart = " (needs a restart)";
  if (before.empty()) return path + ": added, " + after + restart;
  if (after.empty()) return path + ": removed, was " + before + restart;
  const bool order = find_section(path) != nullptr;
  return (order ? "the first of [" + path + "], meant where none is named" : path) + ": " + before +
         " -> " + after + restart;
}

}  // namespace sluice::topology
