// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sluice/topology/config.hpp"

/// Every key there is: the one table that reading, writing, diff and the documentation share.
namespace sluice::topology::configuration {

inline constexpr std::uint64_t kPollersMax = 64;  ///< in all groups together
inline constexpr std::size_t kGroupsMax = 256;    ///< of one section
inline constexpr std::size_t kVectorsMax = 1024;  ///< completion vectors that a group can name
inline constexpr std::string_view kAuto = "auto";

enum class Section : std::uint8_t { pollers, pools, srq, routes, memory, dispatcher };

struct SectionSpec {
  Section section;
  std::string_view name;
  bool grouped;  ///< [name.GROUP], any number of them
  std::string_view doc;
};
/// In the order of the documentation.
[[nodiscard]] const std::array<SectionSpec, 6>& sections() noexcept;
[[nodiscard]] const SectionSpec* find_section(std::string_view name) noexcept;
[[nodiscard]] const SectionSpec& spec_of(Section section) noexcept;

/// How a value is written.
enum class Kind : std::uint8_t {
  count,     ///< a whole number
  size,      ///< bytes: a number, or "4KiB"
  duration,  ///< "200ms"; a number of ns in a Setting
  fraction,  ///< a number from 0 to 1
  choice,    ///< one of some words; its index in a Setting
  cpus,      ///< a place for threads
  device,    ///< an RDMA device's name
  group,     ///< the name of another group; "": its first
  vectors,   ///< different small numbers
  node,      ///< "poller", or a NUMA node's OS index
};

struct Auto {
  friend bool operator==(Auto, Auto) noexcept { return true; }
};
/// The value of any key. As `Kind` says; Auto for "auto" of what is no text.
using Setting = std::variant<Auto, std::uint64_t, double, std::string, std::vector<std::uint32_t>>;

struct KeySpec {
  Section section;
  std::string_view name;  ///< within its table: "workers", "wait.mode"
  Kind kind;
  std::uint64_t min;  ///< of count, size, duration, and what is in vectors
  std::uint64_t max;
  bool auto_allowed;
  std::vector<std::string_view> choices;  ///< of a choice; of a group: the section it is in
  std::string_view doc;
  Setting (*get)(const Config& config, std::size_t group);
  void (*set)(Config& config, std::size_t group, const Setting& setting);
};
/// In the order of the documentation.
[[nodiscard]] const std::vector<KeySpec>& keys();
[[nodiscard]] const KeySpec* find_key(Section section, std::string_view name);

/// How many groups there are: 1 for a section without groups.
[[nodiscard]] std::size_t group_count(const Config& config, Section section) noexcept;
[[nodiscard]] const std::string& group_name(const Config& config, Section section,
                                            std::size_t group);
/// Appends a group with its defaults.
void add_group(Config& config, Section section, const std::string& name);
/// "pools.apply", or "memory".
[[nodiscard]] std::string path_of_table(const Config& config, Section section, std::size_t group);
[[nodiscard]] std::string path_of(const Config& config, const KeySpec& key, std::size_t group);

/// A setting as TOML.
[[nodiscard]] std::string format(const KeySpec& key, const Setting& setting);
/// What a key takes, for people: "a whole number from 1 to 58, or "auto"".
[[nodiscard]] std::string expectation(const KeySpec& key);

}  // namespace sluice::topology::configuration
