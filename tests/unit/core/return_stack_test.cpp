// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/return_stack.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "freeze_hooks.hpp"

namespace sluice {
namespace {

struct Buffer {
  int id = 0;
  Buffer* next = nullptr;
  Buffer* home = nullptr;
};

static_assert(alignof(ReturnStack<Buffer>) == kCacheLine);
static_assert(sizeof(ReturnStack<Buffer>) == kCacheLine);

template <Buffer* Buffer::*Next = &Buffer::next>
std::vector<int> ids(const Buffer* list) {
  std::vector<int> result;
  for (; list != nullptr; list = list->*Next) result.push_back(list->id);
  return result;
}

TEST(ReturnStack, GivesAllBackLastFirst) {
  std::array<Buffer, 3> buffers{{{1}, {2}, {3}}};
  ReturnStack<Buffer> stack;
  EXPECT_TRUE(stack.empty_approx());
  EXPECT_EQ(stack.take_all(), nullptr);
  for (Buffer& buffer : buffers) stack.push(&buffer);
  EXPECT_FALSE(stack.empty_approx());
  EXPECT_EQ(ids(stack.take_all()), (std::vector<int>{3, 2, 1}));
  EXPECT_EQ(stack.take_all(), nullptr);
}

TEST(ReturnStack, TakesChains) {
  std::array<Buffer, 4> buffers{{{1}, {2}, {3}, {4}}};
  ReturnStack<Buffer> stack;
  stack.push(&buffers[0]);
  buffers[1].next = &buffers[2];
  buffers[2].next = &buffers[3];
  stack.push_chain(&buffers[1], &buffers[3]);
  EXPECT_EQ(ids(stack.take_all()), (std::vector<int>{2, 3, 4, 1}));
}

TEST(ReturnStack, LinksByTheMemberItIsGiven) {
  std::array<Buffer, 2> buffers{{{1}, {2}}};
  ReturnStack<Buffer, &Buffer::home> stack;
  for (Buffer& buffer : buffers) stack.push(&buffer);
  EXPECT_EQ(ids<&Buffer::home>(stack.take_all()), (std::vector<int>{2, 1}));
  EXPECT_EQ(buffers[1].next, nullptr);
}

TEST(ReturnStack, APushThatWasOvertakenLosesNobodysBuffer) {
  std::array<Buffer, 3> buffers{{{1}, {2}, {3}}};
  ReturnStack<Buffer, &Buffer::next, test::FreezeHooks> stack;
  stack.push(&buffers[0]);
  test::FrozenThread frozen("return.push.linked", [&] { stack.push(&buffers[2]); });
  ASSERT_TRUE(frozen.reached());
  stack.push(&buffers[1]);
  frozen.thaw();
  EXPECT_EQ(ids(stack.take_all()), (std::vector<int>{3, 2, 1}));
}

// The owner says that it sleeps, then looks; a pusher pushes, then looks whether the owner sleeps.
// One of the two must see the other, though the flag itself is relaxed.
TEST(ReturnStack, AnOrderedTakeAndAPushSeeOneOrTheOther) {
  Buffer buffer;
  ReturnStack<Buffer> stack;
  constexpr int kRounds = 1000;
  std::atomic<int> asleep_in_round{-1};
  std::atomic<int> pusher_saw{-1};
  std::atomic<int> start{-1};
  std::atomic<int> pushed{-1};
  std::thread pusher([&] {
    for (int round = 0; round < kRounds; ++round) {
      while (start.load(std::memory_order_acquire) != round) std::this_thread::yield();
      stack.push(&buffer);
      pusher_saw.store(asleep_in_round.load(std::memory_order_relaxed), std::memory_order_relaxed);
      pushed.store(round, std::memory_order_release);
    }
  });
  int unseen = 0;
  for (int round = 0; round < kRounds; ++round) {
    start.store(round, std::memory_order_release);
    asleep_in_round.store(round, std::memory_order_relaxed);
    const bool taken = stack.take_all_ordered() != nullptr;
    while (pushed.load(std::memory_order_acquire) != round) std::this_thread::yield();
    if (!taken && pusher_saw.load(std::memory_order_relaxed) != round) ++unseen;
    if (!taken) {
      EXPECT_EQ(stack.take_all_ordered(), &buffer);
    }
  }
  pusher.join();
  EXPECT_EQ(unseen, 0);
  EXPECT_EQ(stack.take_all_ordered(), nullptr);
}

// Also the ABA case: while a push is frozen with the head it has read, that head is taken away and
// comes back over another list.
TEST(ReturnStack, APushFrozenInTheMiddleBlocksNobodyAndMeetsNoAba) {
  std::array<Buffer, 4> buffers{{{1}, {2}, {3}, {4}}};
  ReturnStack<Buffer, &Buffer::next, test::FreezeHooks> stack;
  stack.push(&buffers[0]);
  test::FrozenThread frozen("return.push.linked", [&] { stack.push(&buffers[3]); });
  ASSERT_TRUE(frozen.reached());
  EXPECT_EQ(ids(stack.take_all()), (std::vector<int>{1}));
  stack.push(&buffers[1]);
  stack.push(&buffers[2]);
  EXPECT_EQ(ids(stack.take_all()), (std::vector<int>{3, 2}));
  stack.push(&buffers[2]);
  stack.push(&buffers[0]);  // the same head as at first, over another list
  frozen.thaw();
  EXPECT_EQ(ids(stack.take_all()), (std::vector<int>{4, 1, 3}));
}

}  // namespace
}  // namespace sluice
