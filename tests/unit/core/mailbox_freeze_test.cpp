// SPDX-License-Identifier: BSD-3-Clause
// A thread that stands still at any step of Mailbox beyond its ring's (those are in
// scq_ring_freeze_test.cpp) delays its own mail at most.
#include <gtest/gtest.h>
#include <poll.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "freeze_hooks.hpp"
#include "sluice/core/mailbox.hpp"

namespace sluice {
namespace {

using test::FreezeCase;
using test::FrozenThread;
using test::kWhileFrozen;
using Box = Mailbox<int, 0, test::FreezeHooks>;

constexpr int kLate = -1;

const std::vector<FreezeCase> kCases = {
    {"post", "mailbox.post.pushed"},
    {"post", "mailbox.post.seen_asleep"},
    {"post", "mailbox.post.signalled"},
    // The ring's points at which the mail is not yet in, and at which it is.
    {"post", "scq.dequeue.ticket"},
    {"post", "scq.enqueue.ticket"},
    {"post", "scq.enqueue.filled"},
    {"take", "scq.dequeue.ticket"},
    {"take", "scq.enqueue.ticket"},
    {"prepare_to_sleep", "mailbox.sleep.marked"},
    {"prepare_to_sleep", "scq.empty.head_read"},
    {"prepare_to_sleep", "mailbox.sleep.refused"},
};

TEST(MailboxFreezeCases, EveryPointOfTheMailboxHasItsCase) {
  std::set<std::string> own;
  for (const std::string& point : test::points_of(kCases)) {
    if (point.starts_with("mailbox.")) own.insert(point);
  }
  EXPECT_EQ(own, test::points_in({"core/include/sluice/core/mailbox.hpp"}));
}

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

/// A poster stands still while the consumer sleeps. Each of the others' posts wakes the consumer.
class MailboxFrozenPoster : public ::testing::TestWithParam<FreezeCase> {};
TEST_P(MailboxFrozenPoster, DelaysNobodysMailButItsOwn) {
  Box box(8);
  ASSERT_TRUE(box.status().ok());
  ASSERT_TRUE(box.prepare_to_sleep());
  FrozenThread frozen(GetParam().point, [&] { EXPECT_TRUE(box.post(kLate)); });
  ASSERT_TRUE(frozen.reached());
  EXPECT_EQ(readable(box.fd()), std::string_view(GetParam().point) == "mailbox.post.signalled");
  int late_seen = 0;
  int out = 0;
  for (int i = 0; i < static_cast<int>(kWhileFrozen); ++i) {
    ASSERT_TRUE(box.post(i));
    ASSERT_TRUE(readable(box.fd())) << "a post did not wake the sleeping consumer";
    box.finish_sleep();
    box.drain_fd();
    ASSERT_TRUE(box.take(out));
    if (out == kLate) {
      ++late_seen;
      ASSERT_TRUE(box.take(out));
    }
    ASSERT_EQ(out, i);
    ASSERT_FALSE(box.take(out));
    ASSERT_TRUE(box.prepare_to_sleep());
  }
  frozen.thaw();
  if (late_seen == 0) {
    EXPECT_TRUE(readable(box.fd()));  // asleep to the end, and woken for it
    ASSERT_TRUE(box.take(out));
    EXPECT_EQ(out, kLate);
  }
  EXPECT_LE(late_seen, 1);
  EXPECT_FALSE(box.take(out));
}

/// The consumer stands still. Posters go on until the box is full; nothing is lost.
class MailboxFrozenConsumer : public ::testing::TestWithParam<FreezeCase> {};
TEST_P(MailboxFrozenConsumer, HoldsUpNoPoster) {
  const std::string_view operation = GetParam().operation;
  Box box(kWhileFrozen + 2);
  ASSERT_TRUE(box.status().ok());
  int next_in = 0;
  // Something to take; or to refuse the sleep for. Without it the scan goes on to its end.
  if (operation == "take" || std::string_view(GetParam().point).ends_with("refused")) {
    ASSERT_TRUE(box.post(next_in++));
  } else {  // the ring has been used, or its scan ends at the first look
    int out = 0;
    ASSERT_TRUE(box.post(0));
    ASSERT_TRUE(box.take(out));
  }
  int late = kLate;
  bool may_sleep = false;
  FrozenThread frozen(GetParam().point, [&] {
    if (operation == "take") {
      EXPECT_TRUE(box.take(late));
    } else {
      may_sleep = box.prepare_to_sleep();
    }
  });
  ASSERT_TRUE(frozen.reached());
  for (std::size_t i = 0; i < kWhileFrozen; ++i) ASSERT_TRUE(box.post(next_in++)) << i;
  frozen.thaw();
  // It may go to sleep only if the posts will wake it.
  EXPECT_TRUE(!may_sleep || readable(box.fd()));
  int expected = 0;
  if (operation == "take") {
    EXPECT_EQ(late, expected++);
  }
  for (int out = 0; box.take(out);) ASSERT_EQ(out, expected++);
  EXPECT_EQ(expected, next_in);
}

std::vector<FreezeCase> cases_of(bool poster) {
  std::vector<FreezeCase> result;
  for (const FreezeCase& one : kCases) {
    if ((std::string_view(one.operation) == "post") == poster) result.push_back(one);
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(At, MailboxFrozenPoster, ::testing::ValuesIn(cases_of(true)),
                         test::case_name);
INSTANTIATE_TEST_SUITE_P(At, MailboxFrozenConsumer, ::testing::ValuesIn(cases_of(false)),
                         test::case_name);

}  // namespace
}  // namespace sluice
