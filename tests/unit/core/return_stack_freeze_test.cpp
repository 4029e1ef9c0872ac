// SPDX-License-Identifier: BSD-3-Clause
// A thread that stands still at any step of any operation of ReturnStack holds up nobody, and what
// it has taken is all that is missing.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "freeze_hooks.hpp"
#include "sluice/core/return_stack.hpp"

namespace sluice {
namespace {

using test::FreezeCase;
using test::FrozenThread;
using test::kWhileFrozen;

struct Buffer {
  int id = 0;
  Buffer* next = nullptr;
};
using Stack = ReturnStack<Buffer, &Buffer::next, test::FreezeHooks>;

const std::vector<FreezeCase> kCases = {
    {"push", "return.push.head_read"},
    {"push", "return.push.linked"},
    {"push", "return.push.pushed"},
    {"push_chain", "return.push.head_read"},
    {"push_chain", "return.push.linked"},
    {"push_chain", "return.push.pushed"},
    {"take_all", "return.take_all.looked"},
    {"take_all", "return.take_all.taken"},
    {"take_all_ordered", "return.take_all_ordered.taken"},
};

TEST(ReturnStackFreezeCases, EveryPointOfTheStackHasItsCase) {
  EXPECT_EQ(test::points_of(kCases),
            test::points_in({"core/include/sluice/core/return_stack.hpp"}));
}

class ReturnStackFrozen : public ::testing::TestWithParam<FreezeCase> {};

TEST_P(ReturnStackFrozen, HoldsUpNobody) {
  const std::string_view operation = GetParam().operation;
  const std::string_view point = GetParam().point;
  std::vector<Buffer> buffers{{1}, {2}, {3}, {4}, {5}, {6}};
  Stack stack;
  std::vector<Buffer*> out;  // whatever anybody took, in turn
  const auto note = [&out](Buffer* list) {
    for (; list != nullptr; list = list->next) out.push_back(list);
  };
  stack.push(&buffers[0]);
  stack.push(&buffers[1]);
  buffers[2].next = &buffers[3];
  Buffer* late = nullptr;
  FrozenThread frozen(GetParam().point, [&] {
    if (operation == "push") stack.push(&buffers[2]);
    if (operation == "push_chain") stack.push_chain(&buffers[2], &buffers[3]);
    if (operation == "take_all") late = stack.take_all();
    if (operation == "take_all_ordered") late = stack.take_all_ordered();
  });
  ASSERT_TRUE(frozen.reached());

  // What the others do not find is what the frozen thread has in its hands.
  const bool has_taken = point.ends_with(".taken");
  const std::size_t pushing = operation == "push" ? 1 : operation == "push_chain" ? 2 : 0;
  const std::size_t pushed = point == "return.push.pushed" ? pushing : 0;
  note(stack.take_all());
  EXPECT_EQ(out.size(), (has_taken ? 0 : 2) + pushed);
  for (std::size_t i = 0; i < kWhileFrozen; i += 2) {
    stack.push(&buffers[4]);
    stack.push(&buffers[5]);
    Buffer* const all = i % 4 == 0 ? stack.take_all() : stack.take_all_ordered();
    ASSERT_EQ(all, &buffers[5]);
    ASSERT_EQ(all->next, &buffers[4]);
    ASSERT_EQ(all->next->next, nullptr);
  }
  stack.push(&buffers[4]);

  frozen.thaw();
  note(late);
  note(stack.take_all());
  std::sort(out.begin(), out.end());
  const std::size_t given = 2 + pushing;
  ASSERT_EQ(out.size(), given + 1);
  for (std::size_t i = 0; i < given; ++i) EXPECT_EQ(out[i], &buffers[i]);
  EXPECT_EQ(out[given], &buffers[4]);
  EXPECT_TRUE(stack.empty_approx());
}

INSTANTIATE_TEST_SUITE_P(At, ReturnStackFrozen, ::testing::ValuesIn(kCases), test::case_name);

}  // namespace
}  // namespace sluice
