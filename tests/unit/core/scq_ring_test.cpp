// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/scq_ring.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <string>

#include "freeze_hooks.hpp"

namespace sluice {
namespace {

using Ring = ScqRing<std::uint64_t>;
using HookedRing = ScqRing<std::uint64_t, test::FreezeHooks>;

// Head, tail and threshold of both index rings have a line each (asserted inside).
static_assert(alignof(Ring) == kCacheLine && sizeof(Ring) % kCacheLine == 0);
static_assert(sizeof(Ring) >= 2 * 4 * kCacheLine);

TEST(ScqRing, KeepsItsCapacityExactly) {
  for (const std::size_t capacity : {1u, 3u, 64u, 127u, 128u, 129u, 1000u}) {
    Ring ring(capacity);
    EXPECT_EQ(ring.capacity(), capacity);
    for (int round = 0; round < 3; ++round) {
      for (std::uint64_t i = 0; i < capacity; ++i) ASSERT_TRUE(ring.push(i)) << capacity;
      EXPECT_FALSE(ring.push(99));
      EXPECT_EQ(ring.size_approx(), capacity);
      std::uint64_t out = 0;
      for (std::uint64_t i = 0; i < capacity; ++i) {
        EXPECT_FALSE(ring.empty_seq_cst());
        ASSERT_TRUE(ring.pop(out));
        ASSERT_EQ(out, i);
      }
      EXPECT_FALSE(ring.pop(out));
      EXPECT_TRUE(ring.empty_seq_cst());
    }
  }
}

TEST(ScqRing, IsEmptyAtTheStart) {
  Ring ring(4);
  std::uint64_t out = 7;
  EXPECT_TRUE(ring.empty_seq_cst());
  EXPECT_FALSE(ring.pop(out));
  EXPECT_EQ(out, 7u);
}

TEST(ScqRing, PollingItEmptyForLongDoesNotWearItOut) {
  Ring ring(4);
  std::uint64_t out = 0;
  for (std::uint64_t round = 0; round < 100; ++round) {
    for (int i = 0; i < 1000; ++i) ASSERT_FALSE(ring.pop(out));
    ASSERT_TRUE(ring.push(round));
    ASSERT_TRUE(ring.pop(out));
    ASSERT_EQ(out, round);
  }
}

void compare_with_model(std::uint64_t first_ticket) {
  Ring ring(5, first_ticket);
  std::deque<std::uint64_t> model;
  std::mt19937_64 random(first_ticket + 1);
  std::uint64_t next = 0;
  for (int round = 0; round < 20000; ++round) {
    // Phases that lean to full and to empty, so that both edges are met often.
    const bool lean_to_push = (round / 50) % 2 == 0;
    if (random() % 4 < (lean_to_push ? 3u : 1u)) {
      const bool fits = model.size() < 5;
      ASSERT_EQ(ring.push(next), fits);
      if (fits) model.push_back(next++);
    } else {
      std::uint64_t out = 0;
      ASSERT_EQ(ring.pop(out), !model.empty());
      if (!model.empty()) {
        ASSERT_EQ(out, model.front());
        model.pop_front();
      }
    }
    ASSERT_EQ(ring.empty_seq_cst(), model.empty());
  }
  EXPECT_GT(next, 5000u);
}

TEST(ScqRing, IsFifoAcrossManyCycles) {
  compare_with_model(0);
}
TEST(ScqRing, SurvivesTheWrapOfItsTickets) {
  compare_with_model(std::numeric_limits<std::uint64_t>::max() - 2000);
}
TEST(ScqRing, SurvivesTheWrapOfItsCycles) {
  compare_with_model((std::uint64_t{1} << 63) - 2000);
}
TEST(ScqRing, SurvivesTheSignChangeOfItsCycles) {
  compare_with_model((std::uint64_t{1} << 62) - 2000);
}

TEST(ScqRing, CarriesMovableElementsAndKeepsNoneAlive) {
  ScqRing<std::shared_ptr<int>> ring(2);
  auto element = std::make_shared<int>(5);
  ASSERT_TRUE(ring.push(element));
  EXPECT_EQ(element.use_count(), 2);
  std::shared_ptr<int> out;
  ASSERT_TRUE(ring.pop(out));
  out.reset();
  EXPECT_EQ(element.use_count(), 1);

  ScqRing<std::unique_ptr<int>> owning(1);
  ASSERT_TRUE(owning.push(std::make_unique<int>(1)));
  auto refused = std::make_unique<int>(2);
  EXPECT_FALSE(owning.push(std::move(refused)));
  ASSERT_NE(refused, nullptr);  // NOLINT: a refused push leaves it alone
  EXPECT_EQ(*refused, 2);
}

/// Freezes one thread at `point` of a push, and shows that others get on: for so few rounds that
/// the frozen thread's entry is still in its cycle when it goes on, or for many cycles.
void others_get_on_beside_a_frozen_push(const char* point, std::uint64_t rounds) {
  SCOPED_TRACE(point);
  HookedRing ring(4);
  test::FrozenThread frozen(point, [&] { ASSERT_TRUE(ring.push(1000000)); });
  ASSERT_TRUE(frozen.reached());
  int seen_frozen = 0;
  std::uint64_t expected = 0;
  for (std::uint64_t i = 0; i < rounds; ++i) {
    // Its slot may be out of use, no more than that one. Where its element is in already, it is
    // taken like any other.
    ASSERT_TRUE(ring.push(i));
    std::uint64_t out = 0;
    ASSERT_TRUE(ring.pop(out));
    if (out == 1000000) {
      ++seen_frozen;
      ASSERT_TRUE(ring.pop(out));
    }
    ASSERT_EQ(out, expected++);
  }
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_TRUE(ring.push(i));
  std::uint64_t out = 0;
  for (std::uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(ring.pop(out));
    EXPECT_EQ(out, i);
  }
  EXPECT_FALSE(ring.pop(out));
  // A frozen push must not make the ring look full of work, or a worker would never sleep.
  EXPECT_TRUE(ring.empty_seq_cst());
  frozen.thaw();
  if (seen_frozen == 0) {
    ASSERT_TRUE(ring.pop(out));
    EXPECT_EQ(out, 1000000u);
  } else {
    EXPECT_EQ(seen_frozen, 1);
  }
  EXPECT_FALSE(ring.pop(out));
}

TEST(ScqRing, APushFrozenAnywhereBlocksNobody) {
  for (const char* point : {"scq.push.slot", "scq.enqueue.ticket", "scq.enqueue.entry_read",
                            "scq.enqueue.filled", "scq.dequeue.ticket"}) {
    for (const std::uint64_t rounds : {1u, 5u, 3000u}) {
      others_get_on_beside_a_frozen_push(point, rounds);
    }
  }
}

void others_get_on_beside_a_frozen_pop(const char* point, std::uint64_t rounds) {
  SCOPED_TRACE(point);
  HookedRing ring(4);
  ASSERT_TRUE(ring.push(1000000));
  std::uint64_t late = 0;
  test::FrozenThread frozen(point, [&] { ASSERT_TRUE(ring.pop(late)); });
  ASSERT_TRUE(frozen.reached());
  std::uint64_t out = 0;
  for (std::uint64_t i = 0; i < rounds; ++i) {
    for (std::uint64_t k = 0; k < 3; ++k) ASSERT_TRUE(ring.push(3 * i + k)) << i;
    for (std::uint64_t k = 0; k < 3; ++k) {
      ASSERT_TRUE(ring.pop(out));
      ASSERT_EQ(out, 3 * i + k);
    }
    ASSERT_FALSE(ring.pop(out));
  }
  frozen.thaw();
  EXPECT_EQ(late, 1000000u);
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(ring.push(i));  // its slot is back
  EXPECT_FALSE(ring.push(9));
}

TEST(ScqRing, APopFrozenAnywhereBlocksNobody) {
  for (const char* point : {"scq.dequeue.ticket", "scq.pop.slot", "scq.enqueue.ticket",
                            "scq.enqueue.entry_read", "scq.enqueue.filled"}) {
    for (const std::uint64_t rounds : {1u, 5u, 3000u}) {
      others_get_on_beside_a_frozen_pop(point, rounds);
    }
  }
}

// The ring of runnable lanes: as many slots as lanes, so putting one back cannot fail, even while a
// pop is frozen in the middle.
TEST(ScqRing, APutBackNeverFailsWithAsManySlotsAsLanes) {
  HookedRing ring(3);
  for (std::uint64_t lane = 0; lane < 3; ++lane) ASSERT_TRUE(ring.push(lane));
  std::uint64_t held = 0;
  test::FrozenThread frozen("scq.pop.slot", [&] { ASSERT_TRUE(ring.pop(held)); });
  ASSERT_TRUE(frozen.reached());
  for (int i = 0; i < 2000; ++i) {
    std::uint64_t first = 0;
    std::uint64_t second = 0;
    ASSERT_TRUE(ring.pop(first));
    ASSERT_TRUE(ring.pop(second));
    ASSERT_TRUE(ring.push(first));
    ASSERT_TRUE(ring.push(second));
  }
  frozen.thaw();
  EXPECT_EQ(held, 0u);
  EXPECT_TRUE(ring.push(held));
}

}  // namespace
}  // namespace sluice
