// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/owner_thread.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::testing {
namespace {

class WrongThreadDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  /// This thread runs one part, then another thread does `wrong` to it.
  template <typename Pick, typename Wrong>
  static void run_here_then_elsewhere(Pick pick, Wrong wrong) {
    auto dispatcher = start(small_config(1, WaitMode::event, Drive::host));
    Runnable& part = pick(*dispatcher);
    part.run_once();
    std::thread([&] { wrong(part); }).join();
  }
  static void run_once(Runnable& part) { part.run_once(); }
};

// R6: the loop's function is called on the wrong thread and loses requests silently.
TEST_F(WrongThreadDeathTest, RunningAPollerOnAnotherThreadStopsTheProgram) {
  EXPECT_DEATH(
      run_here_then_elsewhere([](Dispatcher& d) -> Runnable& { return d.poller(0); }, run_once),
      "a poller is driven by one thread");
}
TEST_F(WrongThreadDeathTest, RunningAWorkerOnAnotherThreadStopsTheProgram) {
  EXPECT_DEATH(
      run_here_then_elsewhere([](Dispatcher& d) -> Runnable& { return d.worker(0); }, run_once),
      "a worker is driven by one thread");
}
TEST_F(WrongThreadDeathTest, RunningTheControlOnAnotherThreadStopsTheProgram) {
  EXPECT_DEATH(
      run_here_then_elsewhere([](Dispatcher& d) -> Runnable& { return d.control(); }, run_once),
      "the control is driven by one thread");
}
TEST_F(WrongThreadDeathTest, PreparingToWaitOnAnotherThreadStopsTheProgram) {
  EXPECT_DEATH(
      run_here_then_elsewhere([](Dispatcher& d) -> Runnable& { return d.poller(0); },
                              [](Runnable& part) { static_cast<void>(part.prepare_to_wait()); }),
      "a poller is driven by one thread");
}
TEST_F(WrongThreadDeathTest, FinishingAWaitOnAnotherThreadStopsTheProgram) {
  EXPECT_DEATH(run_here_then_elsewhere([](Dispatcher& d) -> Runnable& { return d.poller(0); },
                                       [](Runnable& part) { part.finish_wait(); }),
               "a poller is driven by one thread");
}
// Else the guard could be taken off by the very mistake that it is there for.
TEST_F(WrongThreadDeathTest, ReleasingAnothersThreadStopsTheProgram) {
  EXPECT_DEATH(run_here_then_elsewhere([](Dispatcher& d) -> Runnable& { return d.poller(0); },
                                       [](Runnable& part) { part.release_thread(); }),
               "released by");
}
TEST_F(WrongThreadDeathTest, PartsOfOwnThreadsAreNotTheHosts) {
  EXPECT_DEATH(
      {
        auto dispatcher = start(small_config(1));
        dispatcher->poller(0).run_once();
      },
      "drives its own threads");
}

TEST(OwnerThread, FirstCallerOwnsUntilItReleases) {
  detail::OwnerThread owner;
  owner.check("free");
  owner.check("mine");
  EXPECT_TRUE(owner.is_self());
  std::thread([&] { EXPECT_FALSE(owner.is_self()); }).join();
  owner.release();
  std::thread([&] {
    owner.check("free again");
    EXPECT_TRUE(owner.is_self());
    owner.release();
  }).join();
  owner.check("and back");
}

TEST(OwnerThread, PartsMoveFromThreadToThreadByRelease) {
  auto dispatcher = start(small_config(1, WaitMode::event, Drive::host));
  const auto run_and_release = [&] {
    run_all_once(*dispatcher);
    dispatcher->poller(0).release_thread();
    dispatcher->worker(0).release_thread();
    dispatcher->control().release_thread();
  };
  run_and_release();
  for (int i = 0; i < 3; ++i) std::thread(run_and_release).join();
  run_all_once(*dispatcher);
}

}  // namespace
}  // namespace sluice::testing
