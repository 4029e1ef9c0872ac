// SPDX-License-Identifier: BSD-3-Clause
#include "config_text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

namespace sluice::topology::configuration {

namespace {

/// Longer names are no typing mistakes, and the distance costs their product.
constexpr std::size_t kDistanceLengthMax = 128;

bool is_digit(char c) noexcept {
  return c >= '0' && c <= '9';
}
bool is_control(char c) noexcept {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
}
bool is_continuation(char c) noexcept {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

/// Bytes of the UTF-8 character at the front; 0: there is none, or a control character.
std::size_t printable_length(std::string_view text) noexcept {
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return is_control(text.front()) ? 0 : 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (!is_continuation(text[i])) return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool no_character = (first == 0xED && second > 0x9F) || (first == 0xF4 && second > 0x8F);
  const bool control = first == 0xC2 && second < 0xA0;
  return overlong || no_character || control ? 0 : length;
}

std::string hex(char c, std::string_view prefix) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  return std::string(prefix) + kDigits[byte >> 4U] + kDigits[byte & 15U];
}

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};
/// Ascending.
constexpr std::array<Unit, 4> kTimes = {
    {{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}}};
constexpr std::array<Unit, 4> kSizes = {
    {{"B", 1}, {"KiB", 1U << 10U}, {"MiB", 1U << 20U}, {"GiB", 1U << 30U}}};

std::optional<std::uint64_t> parse_with_unit(std::string_view text,
                                             const std::array<Unit, 4>& units) noexcept {
  const auto digits =
      static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin());
  const auto number = parse_whole_number(text.substr(0, digits));
  std::string_view unit = text.substr(digits);
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const Unit& known : units) {
    if (!number || unit != known.name) continue;
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (*number > kMax / known.factor) return std::nullopt;
    return *number * known.factor;
  }
  return std::nullopt;
}

const Unit& largest_exact(std::uint64_t value, const std::array<Unit, 4>& units) noexcept {
  const Unit* best = &units.front();
  for (const Unit& unit : units) {
    if (value != 0 && value % unit.factor == 0) best = &unit;
  }
  return *best;
}

std::string problem_of_cpu_range(std::string_view range) {
  const std::string shown = "'" + escaped(range, kValueMax) + "'";
  const std::size_t dash = range.find('-');
  const auto first = parse_whole_number(range.substr(0, dash));
  const auto last =
      dash == std::string_view::npos ? first : parse_whole_number(range.substr(dash + 1));
  if (!first || !last) return shown + " is neither a CPU's number nor a range like 0-3";
  if (*first > *last) return shown + " runs backwards";
  if (*last > kCpuIndexMax)
    return shown + " is beyond the last possible CPU, " + std::to_string(kCpuIndexMax);
  return {};
}

std::size_t distance(std::string_view left, std::string_view right) {
  std::vector<std::size_t> before_last(right.size() + 1);
  std::vector<std::size_t> last(right.size() + 1);
  std::vector<std::size_t> row(right.size() + 1);
  for (std::size_t j = 0; j <= right.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= left.size(); ++i) {
    before_last = std::exchange(last, std::exchange(row, before_last));
    row[0] = i;
    for (std::size_t j = 1; j <= right.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (left[i - 1] == right[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      const bool swapped =
          i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[right.size()];
}

}  // namespace

std::string cut(std::string_view text, std::size_t max) {
  if (text.size() <= max) return std::string(text);
  std::size_t end = max;
  while (end > 0 && is_continuation(text[end])) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string escaped(std::string_view text, std::size_t max) {
  std::string out;
  while (!text.empty() && out.size() < max) {
    const std::size_t length = printable_length(text);
    out += length == 0 ? hex(text.front(), "\\x") : std::string(text.substr(0, length));
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return text.empty() ? out : out + "...";
}

std::string quoted_for_message(std::string_view text) {
  return '"' + escaped(text, kValueMax) + '"';
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (is_control(c)) {
      out += hex(c, "\\u00");
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + '"';
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string upper_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return out;
}

bool is_group_name(std::string_view text) noexcept {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || is_digit(c) || c == '_' || c == '-';
  };
  return !text.empty() && text.size() <= kNameMax && std::all_of(text.begin(), text.end(), fits);
}

bool is_printable_ascii(std::string_view text) noexcept {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
}

std::optional<std::uint64_t> parse_whole_number(std::string_view text) noexcept {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  if (text.empty() || !is_digit(text.front())) return std::nullopt;
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return number;
}

std::optional<std::uint64_t> parse_duration(std::string_view text) noexcept {
  if (text == "0") return 0;
  return parse_with_unit(text, kTimes);
}

std::string format_duration(std::uint64_t nanoseconds) {
  if (nanoseconds == 0) return "\"0\"";
  const Unit& unit = largest_exact(nanoseconds, kTimes);
  return '"' + std::to_string(nanoseconds / unit.factor) + std::string(unit.name) + '"';
}

std::string format_fraction(double fraction) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), fraction).ptr;
  std::string number(text.data(), end);
  // TOML tells a real number from a whole one by this.
  if (number.find_first_of(".e") == std::string::npos) number += ".0";
  return number;
}

std::optional<std::uint64_t> parse_size(std::string_view text) noexcept {
  return parse_with_unit(text, kSizes);
}

std::string format_size(std::uint64_t bytes) {
  const Unit& unit = largest_exact(bytes, kSizes);
  if (unit.factor == 1) return std::to_string(bytes);
  return '"' + std::to_string(bytes / unit.factor) + std::string(unit.name) + '"';
}

std::string problem_of_cpus(std::string_view text) {
  bool any = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(" +"), text.size());
    std::string_view part = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (part.empty()) continue;
    any = true;
    const bool list_like = part.find_first_not_of("0123456789,-") == std::string_view::npos;
    if (!list_like && !is_digit(part.front())) continue;
    for (std::size_t from = 0; from <= part.size();) {
      const std::size_t comma = std::min(part.find(',', from), part.size());
      if (auto problem = problem_of_cpu_range(part.substr(from, comma - from)); !problem.empty())
        return problem;
      from = comma + 1;
    }
  }
  return any ? "" : "it names no CPUs";
}

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  if (name.size() > kDistanceLengthMax) return {};
  const std::string wanted = lower_case(name);
  std::size_t best_distance = std::max<std::size_t>(1, name.size() / 3) + 1;
  std::string best;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kDistanceLengthMax) continue;
    const std::size_t mistakes = distance(wanted, lower_case(candidate));
    if (mistakes >= best_distance) continue;
    best_distance = mistakes;
    best = candidate;
  }
  return best;
}

}  // namespace sluice::topology::configuration
