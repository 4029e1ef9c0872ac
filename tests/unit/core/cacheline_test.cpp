// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/cacheline.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <type_traits>

namespace sluice {
namespace {

static_assert(std::has_single_bit(kCacheLine));
static_assert(std::is_empty_v<NoHooks>);
static_assert([] {
  NoHooks::at("anywhere");
  return true;
}());

TEST(CacheLine, IsThatOfTheArchitecture) {
#if defined(__x86_64__)
  EXPECT_EQ(kCacheLine, 64u);
#elif defined(__aarch64__)
  EXPECT_EQ(kCacheLine, 128u);
#endif
  cpu_relax();
}

}  // namespace
}  // namespace sluice
