// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "config_document.hpp"
#include "config_report.hpp"
#include "config_schema.hpp"
#include "config_text.hpp"

namespace sluice::topology::configuration {

inline constexpr std::size_t kTextMax = 1U << 20;  ///< bytes of a file

/// What a name that is_group_name() refuses lacks; behind the name.
inline const std::string kNameRule = "is no name for a group: 1 to " + std::to_string(kNameMax) +
                                     " of a-z, 0-9, '_' and '-' make one";

/// Lays file, variables and flags over the defaults, in this order. One use.
class Reader {
 public:
  explicit Reader(const ConfigInput& input);
  [[nodiscard]] ConfigOutcome run();

 private:
  void read_file();
  void read_section(const SectionSpec& section, const Node& table);
  void read_group(const SectionSpec& section, const Node& table);
  void read_table(Section section, std::size_t group, const Node& table);
  /// `wait`: a word, or a table of keys. `origin`: where there is no place in a file.
  void read_inner_table(Section section, std::size_t group, const Node& value,
                        const Origin* origin = nullptr);
  void read_environment();
  void read_variable(const std::string& name, const std::string& value);
  void read_override(const Override& wanted);
  void assign_text(const KeySpec& key, std::string_view group, std::string_view text,
                   const Origin& origin);
  void assign(const KeySpec& key, std::size_t group, const Node& value, const Origin& origin);

  [[nodiscard]] std::optional<std::size_t> find_group(Section section, std::string_view name) const;
  /// Nothing when the section is full, which is then said.
  std::optional<std::size_t> new_group(Section section, const std::string& name,
                                       const Origin& origin);
  /// A group that a variable or flag speaks of.
  std::optional<std::size_t> group_for_text(Section section, std::string_view name,
                                            const Origin& origin);
  void say_unused_variable(const std::string& name, const Origin& origin);
  [[nodiscard]] Origin in_file(Place place) const;

  const ConfigInput& input_;
  Config config_;
  Report report_;
  /// How many groups the file has, by section: what variables and flags are likely to mean.
  std::array<std::size_t, 6> groups_of_file_{};
};

}  // namespace sluice::topology::configuration
