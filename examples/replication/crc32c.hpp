// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace replicate {

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4). `crc` is the result for what came before, 0 at the
/// start: crc32c(b, crc32c(a)) == crc32c(ab). Uses the CPU's instruction where it has one; that is
/// decided when the program runs, so the binary needs no special CPU. Any thread.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc = 0) noexcept;

/// The same with tables alone: what crc32c() falls back to. For tests to compare with.
[[nodiscard]] std::uint32_t crc32c_portable(std::span<const std::byte> data,
                                            std::uint32_t crc = 0) noexcept;

}  // namespace replicate
