// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace replicate {

using Digest = std::array<std::byte, 32>;

/// SHA-256 bit by bit, over OpenSSL's libcrypto. One thread at a time.
class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> data) noexcept;
  /// The digest of all that was given; the object is used up.
  [[nodiscard]] Digest finish() noexcept;

 private:
  struct Free {
    void operator()(void* context) const noexcept;
  };
  std::unique_ptr<void, Free> context_;
};

/// 64 lower-case hexadecimal digits.
[[nodiscard]] std::string to_hex(const Digest& digest);

}  // namespace replicate
