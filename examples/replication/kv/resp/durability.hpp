// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sluice::kv {

/// What must hold of a write before its client is answered. The order is from weak to strong.
enum class Durability : std::uint8_t {
  memory,         ///< the primary has it in memory
  local_disk,     ///< the primary has it on disk
  quorum_memory,  ///< a majority has it in memory
  quorum_disk,    ///< a majority has it on disk
  all_disk,       ///< every member of the in-sync set has it on disk
};

inline constexpr std::array<std::string_view, 5> kDurabilityNames{
    "memory", "local_disk", "quorum_memory", "quorum_disk", "all_disk"};

/// The level's name, e.g. "quorum_disk".
[[nodiscard]] std::string_view to_string(Durability level) noexcept;

/// The level of that name, upper or lower case; nothing if there is none.
[[nodiscard]] std::optional<Durability> parse_durability(std::string_view name) noexcept;

}  // namespace sluice::kv
