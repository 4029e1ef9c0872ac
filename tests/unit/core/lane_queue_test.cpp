// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/lane_queue.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "freeze_hooks.hpp"

namespace sluice {
namespace {

struct Entry {
  int id = 0;
  Entry* next = nullptr;
};

using Lane = LaneQueue<Entry>;
using HookedLane = LaneQueue<Entry, &Entry::next, test::FreezeHooks>;

static_assert(alignof(Lane) == kCacheLine && sizeof(Lane) == kCacheLine);

std::vector<int> ids(const Entry* list) {
  std::vector<int> result;
  for (; list != nullptr; list = list->next) result.push_back(list->id);
  return result;
}

TEST(LaneQueue, OnlyThePushThatEndsTheIdlenessSchedules) {
  std::array<Entry, 4> entries{{{1}, {2}, {3}, {4}}};
  Lane lane;
  EXPECT_TRUE(lane.idle());
  EXPECT_TRUE(lane.empty_approx());
  EXPECT_TRUE(lane.push(&entries[0]));
  EXPECT_FALSE(lane.idle());
  EXPECT_FALSE(lane.push(&entries[1]));
  EXPECT_EQ(ids(lane.take_all()), (std::vector<int>{1, 2}));
  EXPECT_TRUE(lane.empty_approx());
  EXPECT_FALSE(lane.idle());             // empty, and still scheduled
  EXPECT_FALSE(lane.push(&entries[2]));  // so the next push does not schedule
  EXPECT_FALSE(lane.try_idle());         // and the holder may not let go
  EXPECT_EQ(ids(lane.take_all()), (std::vector<int>{3}));
  EXPECT_EQ(lane.take_all(), nullptr);
  EXPECT_TRUE(lane.try_idle());
  EXPECT_TRUE(lane.idle());
  EXPECT_TRUE(lane.push(&entries[3]));
}

TEST(LaneQueue, ChainsKeepTheirOrder) {
  std::array<Entry, 5> entries{{{1}, {2}, {3}, {4}, {5}}};
  Lane lane;
  for (std::size_t i = 0; i < 2; ++i) entries[i].next = &entries[i + 1];
  entries[2].next = &entries[4];  // rubbish: the last link is ignored
  EXPECT_TRUE(lane.push_chain(&entries[0], &entries[2]));
  EXPECT_FALSE(lane.push_chain(&entries[3], &entries[3]));
  EXPECT_FALSE(lane.push(&entries[4]));
  EXPECT_EQ(ids(lane.take_all()), (std::vector<int>{1, 2, 3, 4, 5}));
}

TEST(LaneQueueDeathTest, ConsumingWithoutHoldingTheLaneStopsTheProgram) {
  Lane lane;
  EXPECT_DEATH((void)lane.take_all(), "does not hold the lane");
  EXPECT_DEATH((void)lane.try_idle(), "does not hold the lane");
}

TEST(LaneQueue, APushFrozenInTheMiddleBlocksNobody) {
  std::array<Entry, 3> entries{{{1}, {2}, {3}}};
  HookedLane lane;
  bool scheduled = true;
  test::FrozenThread frozen("lane.push.linked", [&] { scheduled = lane.push(&entries[2]); });
  ASSERT_TRUE(frozen.reached());
  for (int round = 0; round < 100; ++round) {
    EXPECT_TRUE(lane.push(&entries[0]));
    EXPECT_FALSE(lane.push(&entries[1]));
    EXPECT_EQ(ids(lane.take_all()), (std::vector<int>{1, 2}));
    EXPECT_TRUE(lane.try_idle());
  }
  EXPECT_TRUE(lane.push(&entries[0]));
  frozen.thaw();  // it had read "idle"; that is no longer so
  EXPECT_FALSE(scheduled);
  EXPECT_EQ(ids(lane.take_all()), (std::vector<int>{1, 3}));
}

// The push is in, its caller has not yet scheduled the lane: others may push, nobody else
// schedules.
TEST(LaneQueue, APushFrozenBeforeItSchedulesLeavesThatToIt) {
  std::array<Entry, 2> entries{{{1}, {2}}};
  HookedLane lane;
  bool scheduled = false;
  test::FrozenThread frozen("lane.push.linked_in", [&] { scheduled = lane.push(&entries[0]); });
  ASSERT_TRUE(frozen.reached());
  EXPECT_FALSE(lane.push(&entries[1]));
  frozen.thaw();
  EXPECT_TRUE(scheduled);
  EXPECT_EQ(ids(lane.take_all()), (std::vector<int>{1, 2}));
}

TEST(LaneQueue, AConsumerFrozenInTheMiddleBlocksNoProducer) {
  std::array<Entry, 3> entries{{{1}, {2}, {3}}};
  HookedLane lane;
  EXPECT_TRUE(lane.push(&entries[0]));
  Entry* taken = nullptr;
  test::FrozenThread frozen("lane.take_all.taken", [&] { taken = lane.take_all(); });
  ASSERT_TRUE(frozen.reached());
  EXPECT_FALSE(lane.push(&entries[1]));  // the lane is in the frozen thread's hands
  EXPECT_FALSE(lane.push(&entries[2]));
  frozen.thaw();
  EXPECT_EQ(ids(taken), (std::vector<int>{1}));
  EXPECT_FALSE(lane.try_idle());
  EXPECT_EQ(ids(lane.take_all()), (std::vector<int>{2, 3}));
  EXPECT_TRUE(lane.try_idle());
}

}  // namespace
}  // namespace sluice
