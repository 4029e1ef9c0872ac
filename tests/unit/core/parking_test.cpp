// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/parking.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace sluice {
namespace {

using namespace std::chrono_literals;
using Wake = ParkingLot::Wake;
using SleepBy = ParkingLot::SleepBy;

static_assert(alignof(ParkingLot) == kCacheLine);

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

/// Most of the protocol can be stepped through on one thread: every call is one step of it.
struct Stepped : ::testing::Test {
  ParkingLot lot{3};

  void sleep(unsigned id) {
    lot.begin_search(id);
    ASSERT_TRUE(lot.prepare_park(id));
  }
};

TEST_F(Stepped, ANotifyWithoutSleepersDoesNothing) {
  EXPECT_FALSE(lot.notify_published());
  lot.begin_search(0);
  EXPECT_FALSE(lot.notify_published());
  EXPECT_EQ(lot.searchers(), 1u);
  EXPECT_EQ(lot.sleepers(), 0u);
}

TEST_F(Stepped, ANotifyWakesOneSleeperWhichIsASearcherFromThenOn) {
  sleep(2);
  sleep(1);
  EXPECT_EQ(lot.sleepers(), 2u);
  EXPECT_TRUE(lot.notify_published());
  EXPECT_EQ(lot.sleepers(), 1u);
  EXPECT_EQ(lot.searchers(), 1u);
  EXPECT_FALSE(lot.notify_published());    // somebody is on the way
  EXPECT_EQ(lot.park(1), Wake::notified);  // the lowest; does not block, the wake is there
  EXPECT_EQ(lot.counters(1).wakes, 1u);
  EXPECT_EQ(lot.counters(2).wakes, 0u);
}

TEST_F(Stepped, ASearcherKeepsProducersFromWaking) {
  sleep(0);
  lot.begin_search(1);
  EXPECT_FALSE(lot.notify_published());
  EXPECT_TRUE(lot.found_work(1));  // the last searcher, others asleep: it must look again
  EXPECT_TRUE(lot.notify_published());
}

TEST_F(Stepped, OnlyTheLastSearcherMustLookAgainAndOnlyIfOthersSleep) {
  lot.begin_search(0);
  lot.begin_search(1);
  EXPECT_FALSE(lot.found_work(0));
  EXPECT_FALSE(lot.found_work(1));  // the last, but nobody is asleep
  sleep(2);
  lot.begin_search(0);
  lot.begin_search(1);
  EXPECT_FALSE(lot.found_work(0));
  EXPECT_TRUE(lot.end_search(1));
}

TEST_F(Stepped, WorkFoundInTheLastScanCancelsTheSleep) {
  sleep(0);
  EXPECT_TRUE(lot.cancel_park(0));
  EXPECT_EQ(lot.sleepers(), 0u);
  EXPECT_EQ(lot.searchers(), 1u);
  EXPECT_EQ(lot.counters(0).parks_cancelled, 1u);
  EXPECT_EQ(lot.counters(0).parks, 0u);
  EXPECT_EQ(lot.counters(0).wakes, 0u);
  EXPECT_FALSE(lot.found_work(0));
  EXPECT_EQ(lot.searchers(), 0u);
}

TEST_F(Stepped, AWakeThatComesDuringTheLastScanIsConsumedByTheCancel) {
  sleep(0);
  EXPECT_TRUE(lot.notify_published());
  EXPECT_FALSE(lot.cancel_park(0));
  EXPECT_EQ(lot.searchers(), 1u);  // counted once, not twice
  EXPECT_EQ(lot.counters(0).wakes, 1u);
  EXPECT_FALSE(lot.found_work(0));
  EXPECT_EQ(lot.searchers(), 0u);
  // Nothing of it is left over: the next sleep lasts.
  sleep(0);
  EXPECT_EQ(lot.park(0, ParkingLot::Clock::now() + 5ms), Wake::timed_out);
}

TEST_F(Stepped, PreWakeWakesOneUnlessSomebodySearches) {
  sleep(0);
  sleep(1);
  EXPECT_TRUE(lot.pre_wake());
  EXPECT_FALSE(lot.pre_wake());
  EXPECT_EQ(lot.park(0), Wake::notified);
  ASSERT_TRUE(lot.prepare_park(0));  // found nothing
  EXPECT_EQ(lot.counters(0).spurious_wakes, 1u);
  EXPECT_EQ(lot.sleepers(), 2u);
  EXPECT_EQ(lot.searchers(), 0u);
}

TEST_F(Stepped, AProductiveWakeIsNotSpurious) {
  sleep(0);
  EXPECT_TRUE(lot.notify_published());
  EXPECT_EQ(lot.park(0), Wake::notified);
  EXPECT_FALSE(lot.found_work(0));
  sleep(0);
  EXPECT_EQ(lot.counters(0).spurious_wakes, 0u);
}

TEST_F(Stepped, WakeByIdReachesThatWorkerOnly) {
  sleep(0);
  sleep(1);
  lot.begin_search(2);
  EXPECT_FALSE(lot.wake(2));  // awake
  EXPECT_TRUE(lot.wake(1));   // also while somebody searches
  EXPECT_FALSE(lot.wake(1));
  EXPECT_EQ(lot.park(1), Wake::notified);
  EXPECT_EQ(lot.sleepers(), 1u);
}

TEST_F(Stepped, ADeadlineEndsTheSleep) {
  sleep(0);
  EXPECT_EQ(lot.park(0, ParkingLot::Clock::now() - 1s), Wake::timed_out);
  EXPECT_EQ(lot.searchers(), 1u);
  EXPECT_EQ(lot.sleepers(), 0u);
  EXPECT_EQ(lot.counters(0).timeouts, 1u);
  const auto start = ParkingLot::Clock::now();
  ASSERT_TRUE(lot.prepare_park(0));
  EXPECT_EQ(lot.park(0, start + 20ms), Wake::timed_out);
  EXPECT_GE(ParkingLot::Clock::now() - start, 20ms);
}

TEST_F(Stepped, StopWakesAllAndNobodySleepsAgain) {
  sleep(0);
  sleep(1);
  lot.stop();
  EXPECT_TRUE(lot.stopping());
  EXPECT_EQ(lot.park(0), Wake::stopped);
  EXPECT_EQ(lot.park(1), Wake::stopped);
  EXPECT_FALSE(lot.prepare_park(0));
  EXPECT_EQ(lot.searchers(), 2u);
  EXPECT_EQ(lot.sleepers(), 0u);
  EXPECT_FALSE(lot.found_work(0));
}

TEST_F(Stepped, WakeAllLeavesNoSleeper) {
  for (unsigned id = 0; id < 3; ++id) sleep(id);
  lot.wake_all();
  EXPECT_EQ(lot.sleepers(), 0u);
  EXPECT_EQ(lot.searchers(), 3u);
  for (unsigned id = 0; id < 3; ++id) EXPECT_EQ(lot.park(id), Wake::notified);
}

TEST_F(Stepped, AHostSleepsOnADescriptor) {
  const int fd = lot.wait_fd(0);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(lot.wait_fd(0), fd);
  lot.begin_search(0);
  ASSERT_TRUE(lot.prepare_park(0, SleepBy::fd));
  EXPECT_FALSE(readable(fd));
  EXPECT_TRUE(lot.notify_published());
  EXPECT_TRUE(readable(fd));
  EXPECT_TRUE(lot.finish_wait(0));
  EXPECT_FALSE(readable(fd));
  EXPECT_EQ(lot.searchers(), 1u);
  // Not woken: the host came back for another reason.
  ASSERT_TRUE(lot.prepare_park(0, SleepBy::fd));
  EXPECT_FALSE(lot.finish_wait(0));
  EXPECT_EQ(lot.searchers(), 1u);
  EXPECT_EQ(lot.sleepers(), 0u);
  // And by futex again: the descriptor stays quiet.
  ASSERT_TRUE(lot.prepare_park(0));
  EXPECT_TRUE(lot.notify_published());
  EXPECT_FALSE(readable(fd));
  EXPECT_EQ(lot.park(0), Wake::notified);
}

TEST(ParkingLot, HoldsItsMaximumOfWorkers) {
  ParkingLot lot(ParkingLot::kMaxWorkers);
  for (unsigned id = 0; id < lot.workers(); ++id) lot.begin_search(id);
  EXPECT_EQ(lot.searchers(), ParkingLot::kMaxWorkers);
  for (unsigned id = 0; id < lot.workers(); ++id) ASSERT_TRUE(lot.prepare_park(id));
  EXPECT_EQ(lot.sleepers(), ParkingLot::kMaxWorkers);
  EXPECT_EQ(lot.searchers(), 0u);
  lot.wake_all();
  EXPECT_EQ(lot.searchers(), ParkingLot::kMaxWorkers);
  EXPECT_EQ(lot.sleepers(), 0u);
}

TEST(ParkingLotDeathTest, WrongUseStopsTheProgram) {
  EXPECT_DEATH(ParkingLot{0}, "1 to 58 workers");
  EXPECT_DEATH(ParkingLot{ParkingLot::kMaxWorkers + 1}, "1 to 58 workers");
  ParkingLot lot(1);
  EXPECT_DEATH((void)lot.prepare_park(0), "wrong state");
  EXPECT_DEATH(lot.begin_search(1), "no such worker");
  lot.begin_search(0);
  EXPECT_DEATH(lot.begin_search(0), "wrong state");
  EXPECT_DEATH((void)lot.prepare_park(0, SleepBy::fd), "without a wait_fd");
}

TEST(ParkingLot, ABlockedSleeperIsWoken) {
  ParkingLot lot(1);
  std::thread sleeper([&] {
    lot.begin_search(0);
    ASSERT_TRUE(lot.prepare_park(0));
    EXPECT_EQ(lot.park(0, ParkingLot::Clock::now() + 20s), Wake::notified);
  });
  while (!lot.notify_published()) std::this_thread::yield();
  sleeper.join();
  EXPECT_EQ(lot.counters(0).wakes, 1u);
}

// A worker frozen between its mark and its sleep (here: by simply not calling on) is woken like one
// that sleeps, and keeps neither producers nor other workers from going on.
TEST(ParkingLot, AWorkerFrozenOnItsWayToSleepBlocksNobody) {
  ParkingLot lot(2);
  lot.begin_search(0);
  ASSERT_TRUE(lot.prepare_park(0));
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) {
      lot.begin_search(1);
      ASSERT_TRUE(lot.prepare_park(1));
      ASSERT_TRUE(lot.wake(1));
      ASSERT_EQ(lot.park(1), Wake::notified);
      ASSERT_TRUE(lot.found_work(1));
    }
  });
  other.join();
  EXPECT_TRUE(lot.notify_published());
  EXPECT_FALSE(lot.cancel_park(0));
}

TEST(ParkingLot, ASignalDoesNotEndTheSleep) {  // W7
  struct sigaction action {};
  struct sigaction previous {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &previous), 0);
  ParkingLot lot(1);
  std::atomic<bool> up{false};
  std::thread sleeper([&] {
    lot.begin_search(0);
    ASSERT_TRUE(lot.prepare_park(0));
    EXPECT_EQ(lot.park(0, ParkingLot::Clock::now() + 20s), Wake::notified);
    up.store(true);
  });
  while (lot.counters(0).parks == 0) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) {
    ::pthread_kill(sleeper.native_handle(), SIGUSR1);
    std::this_thread::yield();
  }
  EXPECT_FALSE(up.load());
  EXPECT_TRUE(lot.notify_published());
  sleeper.join();
  ::sigaction(SIGUSR1, &previous, nullptr);
}

TEST(ParkingLot, StopReturnsWhileEverybodySleeps) {  // W9
  constexpr unsigned kWorkers = 4;
  ParkingLot lot(kWorkers);
  std::vector<std::thread> sleepers;
  for (unsigned id = 0; id < kWorkers; ++id) {
    sleepers.emplace_back([&lot, id] {
      lot.begin_search(id);
      while (lot.prepare_park(id)) (void)lot.park(id);
    });
  }
  while (lot.sleepers() != kWorkers) std::this_thread::yield();
  lot.stop();
  for (std::thread& sleeper : sleepers) sleeper.join();
}

}  // namespace
}  // namespace sluice
