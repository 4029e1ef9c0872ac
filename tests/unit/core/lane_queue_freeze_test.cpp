// SPDX-License-Identifier: BSD-3-Clause
// A thread that stands still at any step of any operation of LaneQueue: producers always go on; the
// lane does, unless the frozen thread has it in its hands.
#include <gtest/gtest.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "freeze_hooks.hpp"
#include "sluice/core/lane_queue.hpp"

namespace sluice {
namespace {

using test::FreezeCase;
using test::FrozenThread;
using test::kWhileFrozen;

struct Entry {
  int id = 0;
  Entry* next = nullptr;
};
using Lane = LaneQueue<Entry, &Entry::next, test::FreezeHooks>;

// Variants: the lane was idle, or in the others' hands, when the frozen operation began.
const std::vector<FreezeCase> kCases = {
    {"push", "lane.push.head_read", "idle"},       {"push", "lane.push.linked", "idle"},
    {"push", "lane.push.linked_in", "idle"},       {"push", "lane.push.head_read", "held"},
    {"push", "lane.push.linked", "held"},          {"push", "lane.push.linked_in", "held"},
    {"push_chain", "lane.push.head_read", "idle"}, {"push_chain", "lane.push.linked", "idle"},
    {"push_chain", "lane.push.linked_in", "idle"}, {"push_chain", "lane.push.head_read", "held"},
    {"push_chain", "lane.push.linked", "held"},    {"push_chain", "lane.push.linked_in", "held"},
    {"take_all", "lane.take_all.looked"},          {"take_all", "lane.take_all.taken"},
    {"try_idle", "lane.try_idle.begun"},           {"try_idle", "lane.try_idle.decided"},
};

TEST(LaneQueueFreezeCases, EveryPointOfTheLaneHasItsCase) {
  EXPECT_EQ(test::points_of(kCases), test::points_in({"core/include/sluice/core/lane_queue.hpp"}));
}

class LaneQueueFrozen : public ::testing::TestWithParam<FreezeCase> {
 protected:
  [[nodiscard]] static bool operation_is(std::string_view name) {
    return GetParam().operation == name;
  }
  [[nodiscard]] static bool frozen_at(std::string_view point) { return GetParam().point == point; }

  /// Takes a list, counts, and checks the order of the others' entries; ids below 0 are the frozen
  /// thread's.
  void take(const Entry* list) {
    for (; list != nullptr; list = list->next) {
      if (list->id < 0) {
        late_.push_back(list->id);
      } else {
        ASSERT_EQ(list->id, next_out_++);
      }
    }
  }

  /// The others push entry after entry and never schedule, since somebody holds the lane.
  void push_to_a_held_lane() {
    for (std::size_t i = 0; i < kWhileFrozen; ++i) {
      ASSERT_FALSE(lane_.push(&entries_.at(next_in_)));
      ++next_in_;
    }
  }
  /// The others have the lane to themselves: it wakes, is emptied, and is idle again.
  void live_with_an_idle_lane() {
    for (std::size_t i = 0; i < kWhileFrozen; ++i) {
      ASSERT_TRUE(lane_.push(&entries_.at(next_in_++)));
      ASSERT_NO_FATAL_FAILURE(take(lane_.take_all()));
      ASSERT_EQ(next_out_, static_cast<int>(next_in_));
      ASSERT_TRUE(lane_.try_idle());
    }
  }
  /// The others hold it, push, take, and may not let go while there is something in it.
  void live_with_a_held_lane() {
    for (std::size_t i = 0; i < kWhileFrozen; ++i) {
      ASSERT_FALSE(lane_.push(&entries_.at(next_in_++)));
      ASSERT_FALSE(lane_.try_idle());
      ASSERT_NO_FATAL_FAILURE(take(lane_.take_all()));
      ASSERT_EQ(next_out_, static_cast<int>(next_in_));
    }
  }

  void SetUp() override {
    for (std::size_t i = 0; i < entries_.size(); ++i) entries_[i].id = static_cast<int>(i);
  }

  Lane lane_;
  std::vector<Entry> entries_ = std::vector<Entry>(kWhileFrozen + 10);
  std::size_t next_in_ = 0;
  int next_out_ = 0;
  std::vector<int> late_;
};

class LaneQueueFrozenProducer : public LaneQueueFrozen {};
TEST_P(LaneQueueFrozenProducer, HoldsUpNobody) {
  const bool idle = std::string_view(GetParam().variant) == "idle";
  const bool is_in = frozen_at("lane.push.linked_in");
  if (!idle) {
    ASSERT_TRUE(lane_.push(&entries_.at(next_in_++)));
  }
  Entry late[2] = {{-1}, {-2}};
  late[0].next = &late[1];
  bool schedules = false;
  FrozenThread frozen(GetParam().point, [&] {
    schedules = operation_is("push") ? lane_.push(&late[0]) : lane_.push_chain(&late[0], &late[1]);
  });
  ASSERT_TRUE(frozen.reached());
  const std::vector<int> what = operation_is("push") ? std::vector{-1} : std::vector{-1, -2};

  if (!idle) {
    ASSERT_NO_FATAL_FAILURE(live_with_a_held_lane());
    EXPECT_EQ(late_, is_in ? what : std::vector<int>{});
    ASSERT_TRUE(is_in ? lane_.try_idle() : true);
  } else if (!is_in) {
    ASSERT_NO_FATAL_FAILURE(live_with_an_idle_lane());
  } else {
    // It has ended the idleness, and alone may schedule: the lane is in its hands.
    ASSERT_NO_FATAL_FAILURE(push_to_a_held_lane());
  }

  frozen.thaw();
  // Whose the lane is now: the frozen push's, if that has ended an idleness.
  EXPECT_EQ(schedules, idle);
  ASSERT_NO_FATAL_FAILURE(take(is_in && !idle ? nullptr : lane_.take_all()));
  EXPECT_EQ(late_, what);
  EXPECT_EQ(next_out_, static_cast<int>(next_in_));
  if (!is_in || idle) {
    EXPECT_TRUE(lane_.try_idle());
  }
  EXPECT_TRUE(lane_.idle());
}

class LaneQueueFrozenHolder : public LaneQueueFrozen {};
TEST_P(LaneQueueFrozenHolder, HoldsUpNoProducer) {
  ASSERT_TRUE(lane_.push(&entries_.at(next_in_++)));
  if (operation_is("try_idle")) take(lane_.take_all());
  Entry* taken = nullptr;
  bool let_go = false;
  FrozenThread frozen(GetParam().point, [&] {
    if (operation_is("take_all")) {
      taken = lane_.take_all();
    } else {
      let_go = lane_.try_idle();
    }
  });
  ASSERT_TRUE(frozen.reached());

  if (frozen_at("lane.try_idle.decided")) {  // the lane is no longer in its hands
    ASSERT_NO_FATAL_FAILURE(live_with_an_idle_lane());
  } else {
    ASSERT_NO_FATAL_FAILURE(push_to_a_held_lane());
  }

  frozen.thaw();
  ASSERT_NO_FATAL_FAILURE(take(taken));
  EXPECT_EQ(let_go, frozen_at("lane.try_idle.decided"));
  if (!let_go) {
    ASSERT_NO_FATAL_FAILURE(take(lane_.take_all()));
    EXPECT_TRUE(lane_.try_idle());
  }
  EXPECT_EQ(next_out_, static_cast<int>(next_in_));
  EXPECT_TRUE(lane_.idle());
}

std::vector<FreezeCase> cases_of(bool producer) {
  std::vector<FreezeCase> result;
  for (const FreezeCase& one : kCases) {
    if (std::string_view(one.operation).starts_with("push") == producer) result.push_back(one);
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(At, LaneQueueFrozenProducer, ::testing::ValuesIn(cases_of(true)),
                         test::case_name);
INSTANTIATE_TEST_SUITE_P(At, LaneQueueFrozenHolder, ::testing::ValuesIn(cases_of(false)),
                         test::case_name);

}  // namespace
}  // namespace sluice
