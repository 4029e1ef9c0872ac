// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/spmc_ring.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "freeze_hooks.hpp"

namespace sluice {
namespace {

using Ring = SpmcRing<std::uint64_t>;
using HookedRing = SpmcRing<std::uint64_t, test::FreezeHooks>;

// The producer's and the consumers' words each have their line (asserted inside), and the ring as a
// whole shares none with its neighbours.
static_assert(alignof(Ring) == kCacheLine && sizeof(Ring) % kCacheLine == 0);
static_assert(sizeof(Ring) >= 3 * kCacheLine);

std::vector<std::uint64_t> numbers(std::uint64_t first, std::size_t count) {
  std::vector<std::uint64_t> result(count);
  std::iota(result.begin(), result.end(), first);
  return result;
}

TEST(SpmcRing, RoundsItsCapacityUpToAPowerOfTwo) {
  EXPECT_EQ(Ring(1).capacity(), 1u);
  EXPECT_EQ(Ring(5).capacity(), 8u);
  EXPECT_EQ(Ring(64).capacity(), 64u);
}

TEST(SpmcRing, StartsEmpty) {
  Ring ring(4);
  std::uint64_t out = 77;
  EXPECT_FALSE(ring.pop(out));
  EXPECT_EQ(out, 77u);
  EXPECT_TRUE(ring.empty_seq_cst());
  EXPECT_EQ(ring.size_approx(), 0u);
}

TEST(SpmcRing, TakesOneElementWithCapacityOne) {
  Ring ring(1);
  for (std::uint64_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(ring.push(i));
    EXPECT_FALSE(ring.push(99));
    std::uint64_t out = 0;
    EXPECT_TRUE(ring.pop(out));
    EXPECT_EQ(out, i);
  }
}

TEST(SpmcRing, PushBulkTakesWhatFits) {
  Ring ring(8);
  const auto items = numbers(0, 11);
  EXPECT_EQ(ring.push_bulk(items), 8u);
  EXPECT_EQ(ring.push_bulk(items), 0u);
  EXPECT_EQ(ring.size_approx(), 8u);
  EXPECT_FALSE(ring.empty_seq_cst());
  std::array<std::uint64_t, 3> out{};
  EXPECT_EQ(ring.pop_bulk(out), 3u);
  EXPECT_EQ(out, (std::array<std::uint64_t, 3>{0, 1, 2}));
  EXPECT_EQ(ring.push_bulk(std::span(items).subspan(8)), 3u);
  std::array<std::uint64_t, 16> rest{};
  EXPECT_EQ(ring.pop_bulk(rest), 8u);
  for (std::uint64_t i = 0; i < 8; ++i) EXPECT_EQ(rest[i], i + 3);
}

TEST(SpmcRing, WhatIsAppendedIsThereAtOnceInItsOrder) {
  Ring ring(4);
  std::uint64_t next_in = 0;
  std::uint64_t next_out = 0;
  for (int turn = 0; turn < 10; ++turn) {
    EXPECT_TRUE(ring.append(next_in++));
    EXPECT_TRUE(ring.push(next_in++));
    EXPECT_TRUE(ring.append(next_in++));
    EXPECT_FALSE(ring.empty_seq_cst());
    ring.announce();
    EXPECT_TRUE(ring.append(next_in++));
    EXPECT_FALSE(ring.append(99)) << "it is full";
    ring.announce();
    EXPECT_EQ(ring.size_approx(), 4u);
    for (std::uint64_t out = 0; ring.pop(out);) EXPECT_EQ(out, next_out++);
    EXPECT_EQ(next_out, next_in);
    EXPECT_TRUE(ring.empty_seq_cst());
    ring.announce();
    EXPECT_TRUE(ring.empty_seq_cst());
  }
}

TEST(SpmcRing, EmptySpansAreNoWork) {
  Ring ring(4);
  EXPECT_EQ(ring.push_bulk({}), 0u);
  EXPECT_TRUE(ring.push(1));
  EXPECT_EQ(ring.pop_bulk({}), 0u);
  EXPECT_EQ(ring.size_approx(), 1u);
}

TEST(SpmcRing, SharersGetAFairPart) {
  Ring ring(16);
  ASSERT_EQ(ring.push_bulk(numbers(0, 10)), 10u);
  std::array<std::uint64_t, 16> out{};
  EXPECT_EQ(ring.pop_bulk(out, 4), 3u);    // a quarter of 10, rounded up
  EXPECT_EQ(ring.pop_bulk(out, 100), 1u);  // never nothing while there is something
  EXPECT_EQ(ring.pop_bulk(out, 0), 6u);
}

/// Against a model, at random, over many times the capacity, from where the counters start.
void compare_with_model(std::uint64_t first_index) {
  Ring ring(8, first_index);
  std::mt19937_64 random(first_index + 1);
  std::uint64_t pushed = 0;
  std::uint64_t popped = 0;
  for (int round = 0; round < 2000; ++round) {
    const auto items = numbers(pushed, random() % 12);
    const std::size_t in = ring.push_bulk(items);
    ASSERT_EQ(in, std::min<std::size_t>(items.size(), 8 - (pushed - popped)));
    pushed += in;
    std::array<std::uint64_t, 12> out{};
    const std::size_t taken = ring.pop_bulk(std::span(out).first(random() % 12));
    for (std::size_t i = 0; i < taken; ++i) ASSERT_EQ(out[i], popped + i);
    popped += taken;
    ASSERT_EQ(ring.size_approx(), pushed - popped);
    ASSERT_EQ(ring.empty_seq_cst(), pushed == popped);
  }
  EXPECT_GT(popped, 1000u);
}

TEST(SpmcRing, IsFifoAcrossManyWraps) {
  compare_with_model(0);
}

TEST(SpmcRing, SurvivesTheWrapOfItsCounters) {
  compare_with_model(std::numeric_limits<std::uint64_t>::max() - 100);
}

TEST(SpmcRing, SurvivesTheSignChangeOfItsCounters) {
  compare_with_model((std::uint64_t{1} << 63) - 100);
}

TEST(SpmcRing, AConsumerFrozenBeforeItsClaimBlocksNobody) {
  HookedRing ring(8);
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(ring.push(i));
  std::array<std::uint64_t, 2> late{};
  std::size_t late_count = 0;
  test::FrozenThread frozen("spmc.pop.all_read", [&] { late_count = ring.pop_bulk(late); });
  ASSERT_TRUE(frozen.reached());
  // It has read 0 and 1 and not yet taken them. Everybody else gets on, through many wraps.
  std::uint64_t next = 4;
  for (std::uint64_t expected = 0; expected < 1000; ++expected) {
    std::uint64_t out = 0;
    ASSERT_TRUE(ring.pop(out));
    ASSERT_EQ(out, expected);
    ASSERT_TRUE(ring.push(next++));
  }
  frozen.thaw();  // its CAS fails; it takes what is the oldest now
  ASSERT_EQ(late_count, 2u);
  EXPECT_EQ(late[0], 1000u);
  EXPECT_EQ(late[1], 1001u);
}

TEST(SpmcRing, AConsumerFrozenAfterItsClaimOwesNothing) {
  HookedRing ring(4);
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(ring.push(i));
  std::array<std::uint64_t, 3> late{};
  std::size_t late_count = 0;
  test::FrozenThread frozen("spmc.pop.claimed", [&] { late_count = ring.pop_bulk(late); });
  ASSERT_TRUE(frozen.reached());
  for (std::uint64_t i = 4; i < 7; ++i) EXPECT_TRUE(ring.push(i));  // its slots are free already
  EXPECT_FALSE(ring.push(99));
  for (std::uint64_t i = 3; i < 7; ++i) {
    std::uint64_t out = 0;
    EXPECT_TRUE(ring.pop(out));
    EXPECT_EQ(out, i);
  }
  frozen.thaw();
  ASSERT_EQ(late_count, 3u);
  EXPECT_EQ(late, (std::array<std::uint64_t, 3>{0, 1, 2}));
}

TEST(SpmcRing, AProducerFrozenBeforeItPublishesBlocksNoConsumer) {
  HookedRing ring(4);
  ASSERT_TRUE(ring.push(0));
  test::FrozenThread frozen("spmc.push.all_stored", [&] { (void)ring.push(1); });
  ASSERT_TRUE(frozen.reached());
  std::uint64_t out = 99;
  EXPECT_TRUE(ring.pop(out));
  EXPECT_EQ(out, 0u);
  EXPECT_FALSE(ring.pop(out));
  EXPECT_TRUE(ring.empty_seq_cst());
  frozen.thaw();
  EXPECT_TRUE(ring.pop(out));
  EXPECT_EQ(out, 1u);
}

}  // namespace
}  // namespace sluice
