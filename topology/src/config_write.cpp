// SPDX-License-Identifier: BSD-3-Clause
// A configuration as text: its values, a file that means it, and the documented defaults.
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config_schema.hpp"
#include "config_text.hpp"
#include "sluice/topology/config.hpp"

namespace sluice::topology {

namespace {

using namespace configuration;

constexpr std::size_t kLineMax = 100;

std::string header(const SectionSpec& section, std::string_view group) {
  std::string out = '[' + std::string(section.name);
  if (section.grouped)
    out += '.' + (is_group_name(group) ? std::string(group) : toml_string(group));
  return out + ']';
}

/// Comment lines, broken at blanks.
std::string comment(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    std::size_t end = text.size();
    if (end > kLineMax - 2) {
      end = text.rfind(' ', kLineMax - 2);
      if (end == std::string_view::npos || end == 0) end = text.size();
    }
    out += "# " + std::string(text.substr(0, end)) + '\n';
    text.remove_prefix(end);
    while (text.starts_with(' ')) text.remove_prefix(1);
  }
  return out;
}

void append_documented_table(std::string& out, const Config& defaults, const SectionSpec& section) {
  // What there is none of by default is shown without effect.
  const bool absent = group_count(defaults, section.section) == 0;
  Config shown = defaults;
  if (absent) add_group(shown, section.section, "example");
  const std::string lead = absent ? "#" : "";
  out += '\n' + comment(section.doc);
  out += lead + header(section, group_name(shown, section.section, 0)) + '\n';
  for (const KeySpec& key : keys()) {
    if (key.section != section.section) continue;
    out += '\n' + comment(key.doc) + comment("Takes " + expectation(key) + '.');
    out += lead + std::string(key.name) + " = " + format(key, key.get(shown, 0)) + '\n';
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Config::values() const {
  std::vector<std::pair<std::string, std::string>> all;
  for (const SectionSpec& section : sections()) {
    for (std::size_t group = 0; group < group_count(*this, section.section); ++group) {
      for (const KeySpec& key : keys()) {
        if (key.section != section.section) continue;
        all.emplace_back(path_of(*this, key, group), format(key, key.get(*this, group)));
      }
    }
  }
  return all;
}

std::string Config::to_toml(bool with_origins) const {
  std::string out;
  for (const SectionSpec& section : sections()) {
    for (std::size_t group = 0; group < group_count(*this, section.section); ++group) {
      out += (out.empty() ? "" : "\n") +
             header(section, group_name(*this, section.section, group)) + '\n';
      for (const KeySpec& key : keys()) {
        if (key.section != section.section) continue;
        out += std::string(key.name) + " = " + format(key, key.get(*this, group));
        if (with_origins) {
          const Origin origin = origin_of(path_of(*this, key, group));
          out += "  # " + escaped(origin.to_string(), 4 * kValueMax);
        }
        out += '\n';
      }
    }
  }
  return out;
}

std::string Config::documented_defaults() {
  std::string out = comment(
      "Every key of Sluice's configuration, with its default. Nothing here needs to be written: an "
      "empty file means the same.");
  out += comment(
      "A variable wins over the file (SLUICE_POOLS__DEFAULT__WORKERS=6 is workers of "
      "[pools.default]), and a flag wins over both (--set pools.default.workers=6).");
  const Config defaults;
  for (const SectionSpec& section : sections()) append_documented_table(out, defaults, section);
  return out;
}

}  // namespace sluice::topology
