// SPDX-License-Identifier: BSD-3-Clause
#include "crc32c.hpp"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

namespace replicate {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, bits reversed

// kTables[k][b]: what byte b does to the CRC when k further bytes follow it in a step of eight.
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
  return tables;
}();

std::uint64_t load64(const std::byte* from) noexcept {
  std::uint64_t value;
  std::memcpy(&value, from, sizeof value);
  if constexpr (std::endian::native == std::endian::big) value = __builtin_bswap64(value);
  return value;
}

/// Eight bytes a step, eight tables: Kounavis and Berry, "Novel Table Lookup-Based Algorithms for
/// High-Performance CRC Generation", 2008 ("slicing-by-8"). `crc` is inverted already.
std::uint32_t update_portable(std::uint32_t crc, const std::byte* at, std::size_t size) noexcept {
  for (; size >= 8; at += 8, size -= 8) {
    const std::uint64_t word = load64(at) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; size > 0; ++at, --size)
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<std::uint32_t>(*at)) & 0xff];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t update_cpu(std::uint32_t crc, const std::byte* at,
                                                           std::size_t size) noexcept {
  std::uint64_t wide = crc;
  for (; size >= 8; at += 8, size -= 8) wide = _mm_crc32_u64(wide, load64(at));
  crc = static_cast<std::uint32_t>(wide);
  for (; size > 0; ++at, --size) crc = _mm_crc32_u8(crc, static_cast<std::uint8_t>(*at));
  return crc;
}
bool cpu_has_crc() noexcept {
  return __builtin_cpu_supports("sse4.2") != 0;
}
#elif defined(__aarch64__)
__attribute__((target("+crc"))) std::uint32_t update_cpu(std::uint32_t crc, const std::byte* at,
                                                         std::size_t size) noexcept {
  for (; size >= 8; at += 8, size -= 8) crc = __crc32cd(crc, load64(at));
  for (; size > 0; ++at, --size) crc = __crc32cb(crc, static_cast<std::uint8_t>(*at));
  return crc;
}
bool cpu_has_crc() noexcept {
  return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}
#else
constexpr auto update_cpu = update_portable;
bool cpu_has_crc() noexcept {
  return false;
}
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc) noexcept {
  static const bool has_instruction = cpu_has_crc();
  if (!has_instruction) return crc32c_portable(data, crc);
  return ~update_cpu(~crc, data.data(), data.size());
}

std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t crc) noexcept {
  return ~update_portable(~crc, data.data(), data.size());
}

}  // namespace replicate
