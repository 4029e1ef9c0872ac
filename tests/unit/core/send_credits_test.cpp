// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/send_credits.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <random>
#include <thread>

namespace sluice {
namespace {

bool post(SendCredits& credits, bool signalled) {
  SendCredits::Posting posting = credits.take(signalled);
  if (!posting) return false;
  posting.commit();
  return true;
}

TEST(SendCredits, APostThatFailedTakesNone) {
  SendCredits credits(2);
  {
    const auto posting = credits.take(true);
    EXPECT_TRUE(posting);
  }
  EXPECT_EQ(credits.outstanding(), 0U);
}

TEST(SendCredits, ASignalledCompletionRetiresTheUnsignalledOnesBeforeIt) {
  SendCredits credits(8);
  for (const bool signalled : {false, false, true, false, true, false}) {
    EXPECT_TRUE(post(credits, signalled));
  }
  EXPECT_EQ(credits.outstanding(), 6U);
  credits.completed();
  EXPECT_EQ(credits.outstanding(), 3U);
  credits.completed();
  EXPECT_EQ(credits.outstanding(), 1U);
  credits.completed();  // of something posted past this object
  EXPECT_EQ(credits.outstanding(), 1U);
}

TEST(SendCredits, RefusesBeyondTheLimit) {
  SendCredits credits(3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(post(credits, true));
  EXPECT_FALSE(post(credits, true));
  EXPECT_FALSE(post(credits, false));
  credits.completed();
  EXPECT_TRUE(post(credits, true));
}

TEST(SendCredits, UnsignalledOnesAloneCannotStickTheQueuePair) {
  SendCredits credits(3);
  EXPECT_TRUE(post(credits, false));
  EXPECT_TRUE(post(credits, false));
  EXPECT_FALSE(post(credits, false));
  EXPECT_TRUE(post(credits, true));
  credits.completed();
  EXPECT_EQ(credits.outstanding(), 0U);
  SendCredits one(1);
  EXPECT_FALSE(post(one, false));
  EXPECT_TRUE(post(one, true));
}

TEST(SendCredits, AfterAFailureNothingIsGivenBackUntilAbandon) {
  SendCredits credits(4);
  EXPECT_TRUE(post(credits, true));
  EXPECT_TRUE(post(credits, true));
  credits.failed();
  EXPECT_TRUE(credits.closed());
  credits.completed();
  EXPECT_EQ(credits.outstanding(), 2U);
  EXPECT_FALSE(post(credits, true));
  credits.abandon();
  EXPECT_EQ(credits.outstanding(), 0U);
  EXPECT_FALSE(post(credits, true));
}

TEST(SendCredits, AfterCloseWhatIsOutstandingStillRetires) {
  SendCredits credits(4);
  EXPECT_TRUE(post(credits, true));
  credits.close();
  EXPECT_FALSE(post(credits, true));
  credits.completed();
  EXPECT_EQ(credits.outstanding(), 0U);
}

TEST(SendCredits, ClosingWaitsForAPostThatIsUnderWay) {
  SendCredits credits(4);
  std::atomic<bool> closed{false};
  std::thread closer;
  {
    auto posting = credits.take(true);
    ASSERT_TRUE(posting);
    closer = std::thread([&] {
      credits.close();
      closed.store(true);
    });
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    EXPECT_FALSE(closed.load());
    posting.commit();
  }
  closer.join();
  EXPECT_EQ(credits.outstanding(), 1U);
}

// Against a model that remembers each request.
TEST(SendCredits, FollowsTheSendQueueThroughRandomOperations) {
  std::mt19937 random(42);
  constexpr std::uint32_t kLimit = 7;
  SendCredits credits(kLimit);
  std::deque<bool> queue;  // signalled or not
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0) {
      const bool signalled = random() % 3 == 0;
      bool any_signalled = false;
      for (const bool each : queue) any_signalled |= each;
      const bool fits =
          queue.size() < kLimit && (signalled || any_signalled || queue.size() + 1 < kLimit);
      ASSERT_EQ(post(credits, signalled), fits);
      if (fits) queue.push_back(signalled);
    } else {
      credits.completed();
      std::size_t retired = 0;
      while (retired < queue.size() && !queue[retired]) ++retired;
      if (retired < queue.size()) {
        queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(retired) + 1);
      }
    }
    ASSERT_EQ(credits.outstanding(), queue.size());
  }
}

TEST(SendCredits, ThreadsPostWhileOthersRetire) {
  SendCredits credits(16);
  constexpr int kPosts = 20'000;
  std::atomic<int> in_device{0};
  std::atomic<bool> exceeded{false};
  std::atomic<int> done{0};
  std::thread retirer([&] {
    while (done.load() < 2 || in_device.load() > 0) {
      if (in_device.load() == 0) {
        std::this_thread::yield();
        continue;
      }
      in_device.fetch_sub(1);
      credits.completed();
    }
  });
  std::thread posters[2];
  for (std::thread& poster : posters) {
    poster = std::thread([&] {
      for (int i = 0; i < kPosts;) {
        auto posting = credits.take(true);
        if (!posting) {
          std::this_thread::yield();
          continue;
        }
        if (in_device.fetch_add(1) >= 16) exceeded.store(true);
        posting.commit();
        ++i;
      }
      done.fetch_add(1);
    });
  }
  for (std::thread& poster : posters) poster.join();
  retirer.join();
  EXPECT_FALSE(exceeded.load());
  EXPECT_EQ(credits.outstanding(), 0U);
}

TEST(SendCreditsDeathTest, ALimitOfNothingIsAProgrammersError) {
  EXPECT_DEATH(SendCredits(0), "1..2\\^20");
}

}  // namespace
}  // namespace sluice
