// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice::kv {

/// RFC 4648 base64 with padding: how etcd's JSON gateway carries bytes.
[[nodiscard]] std::string base64_encode(std::string_view bytes);

/// The bytes; nothing for text that base64_encode() would not have produced (another alphabet,
/// white space, missing padding, stray bits).
[[nodiscard]] std::optional<std::string> base64_decode(std::string_view text);

}  // namespace sluice::kv
