// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::kv {

/// ASCII only, whatever the locale is.
[[nodiscard]] constexpr char lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

/// The same word but for upper and lower case.
[[nodiscard]] constexpr bool same_word(std::string_view a, std::string_view b) noexcept {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (lower(a[i]) != lower(b[i])) return false;
  return true;
}

/// A client's word as part of an error: cut to what a person needs to recognise it.
[[nodiscard]] inline std::string quoted(std::string_view word) {
  constexpr std::size_t kShownMax = 64;
  std::string out = "'";
  out.append(word.substr(0, kShownMax));
  if (word.size() > kShownMax) out.append("...");
  return out += "'";
}

/// Empties it and gives its memory back. (Assigning an empty string may keep the memory.)
inline void release_memory(std::string& text) noexcept {
  std::string().swap(text);
}

}  // namespace sluice::kv
