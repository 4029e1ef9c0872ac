// SPDX-License-Identifier: BSD-3-Clause
#include "resp/durability.hpp"

#include "resp/text.hpp"

namespace sluice::kv {

std::string_view to_string(Durability level) noexcept {
  return kDurabilityNames[static_cast<std::size_t>(level)];
}

std::optional<Durability> parse_durability(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kDurabilityNames.size(); ++i)
    if (same_word(name, kDurabilityNames[i])) return static_cast<Durability>(i);
  return {};
}

}  // namespace sluice::kv
