// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Small notations: names, times, sizes, CPU lists, and text made safe for a terminal.
namespace sluice::topology::configuration {

inline constexpr std::size_t kValueMax = 80;     ///< bytes of a value or name in a message
inline constexpr std::size_t kMessageMax = 240;  ///< bytes of what toml++ says
inline constexpr std::size_t kNameMax = 32;      ///< bytes of a group's name
inline constexpr std::uint64_t kCpuIndexMax = 1U << 20;

/// At most `max` bytes, never half a character, with "..." where something is missing.
[[nodiscard]] std::string cut(std::string_view text, std::size_t max);
/// Control characters and what is not UTF-8 become \xNN; cut to about `max` bytes.
[[nodiscard]] std::string escaped(std::string_view text, std::size_t max);
/// "text" in double quotes, escaped and cut.
[[nodiscard]] std::string quoted_for_message(std::string_view text);
/// A TOML basic string that reads back as `text`, if that is UTF-8.
[[nodiscard]] std::string toml_string(std::string_view text);

[[nodiscard]] std::string lower_case(std::string_view text);
[[nodiscard]] std::string upper_case(std::string_view text);
/// [a-z0-9_-]+, up to kNameMax.
[[nodiscard]] bool is_group_name(std::string_view text) noexcept;
[[nodiscard]] bool is_printable_ascii(std::string_view text) noexcept;
[[nodiscard]] std::optional<std::uint64_t> parse_whole_number(std::string_view text) noexcept;

/// "200ms" in ns; units ns, us, ms, s; "0" needs none. Nothing for anything else, or past 2^63.
[[nodiscard]] std::optional<std::uint64_t> parse_duration(std::string_view text) noexcept;
[[nodiscard]] std::string format_duration(std::uint64_t nanoseconds);
/// The shortest number that reads back the same: 0.5, 1.0.
[[nodiscard]] std::string format_fraction(double fraction);
/// "4KiB" in bytes; units B, KiB, MiB, GiB.
[[nodiscard]] std::optional<std::uint64_t> parse_size(std::string_view text) noexcept;
/// Quoted with a unit where that is exact, else the number.
[[nodiscard]] std::string format_size(std::uint64_t bytes);

/// What can never be a list of CPUs although it looks like one ("3-1", "0,,2"); empty: nothing
/// wrong. Other notations are for Machine::locate. Cost: linear; ranges are not expanded.
[[nodiscard]] std::string problem_of_cpus(std::string_view text);

/// The candidate that a person most likely meant; empty: none is near. Ignores case. Swapped
/// neighbours count as one mistake (optimal string alignment).
[[nodiscard]] std::string nearest(std::string_view name,
                                  const std::vector<std::string>& candidates);

}  // namespace sluice::topology::configuration
