// SPDX-License-Identifier: BSD-3-Clause
// A thread that stands still at any step of any operation of ParkingLot: producers publish, and
// workers that are awake find what is published. What the frozen thread holds is a wake, never
// work: it is as good as new once the thread goes on, and is given once.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "../../../core/src/parking_definitions.hpp"
#include "freeze_hooks.hpp"
#include "sluice/core/scq_ring.hpp"

namespace sluice {
namespace {

using namespace std::chrono_literals;
using test::FreezeCase;
using test::FrozenThread;
using test::kWhileFrozen;
using Lot = BasicParkingLot<test::FreezeHooks>;
using Wake = Lot::Wake;
using SleepBy = Lot::SleepBy;

// "late": with a deadline that has passed.
const std::vector<FreezeCase> kCases = {
    {"notify", "parking.notify.word_read"},
    {"notify", "parking.wake.word_read"},
    {"notify", "parking.wake.claimed"},
    {"notify", "parking.wake.how_read"},
    {"notify", "parking.wake.moved_on"},
    {"notify", "parking.wake.done"},
    {"wake", "parking.wake.word_read"},
    {"wake", "parking.wake.claimed"},
    {"wake", "parking.wake.how_read"},
    {"wake", "parking.wake.moved_on"},
    {"wake", "parking.wake.done"},
    {"stop", "parking.stop.told"},
    {"stop", "parking.wake.claimed"},
    {"begin_search", "parking.begin_search.counted"},
    {"found_work", "parking.leave_search.left"},
    {"end_search", "parking.leave_search.left"},
    {"prepare_park", "parking.prepare.begun"},
    {"prepare_park", "parking.prepare.marked"},
    {"prepare_park", "parking.prepare.stop_seen", "stopped"},
    {"prepare_park", "parking.withdraw.word_read", "stopped"},
    {"prepare_park", "parking.withdraw.withdrawn", "stopped"},
    {"cancel_park", "parking.withdraw.word_read"},
    {"cancel_park", "parking.withdraw.withdrawn"},
    {"park", "parking.park.futex_read"},
    {"park", "parking.park.word_read"},
    {"park", "parking.park.futex_read", "late"},
    {"park", "parking.park.word_read", "late"},
    {"park", "parking.withdraw.word_read", "late"},
    {"park", "parking.withdraw.withdrawn", "late"},
    {"finish_wait", "parking.withdraw.word_read"},
    {"finish_wait", "parking.withdraw.withdrawn"},
    {"finish_wait", "parking.finish_wait.withdrawn"},
};

TEST(ParkingFreezeCases, EveryPointOfTheLotHasItsCase) {
  EXPECT_EQ(test::points_of(kCases), test::points_in({"core/include/sluice/core/parking.hpp",
                                                      "core/src/parking_definitions.hpp"}));
}

constexpr unsigned kFrozen = 0;  ///< the worker that the frozen operation is about
constexpr unsigned kOther = 1;   ///< a worker that goes on

class ParkingFrozen : public ::testing::TestWithParam<FreezeCase> {
 protected:
  enum class Is { working, searching, asleep };

  [[nodiscard]] static bool operation_is(std::string_view name) {
    return GetParam().operation == name;
  }
  [[nodiscard]] static bool variant_is(std::string_view name) { return GetParam().variant == name; }

  /// Brings the worker where the operation begins.
  void prepare() {
    if (variant_is("stopped")) lot_.stop();
    if (operation_is("begin_search")) return;
    lot_.begin_search(kFrozen);
    is_ = Is::searching;
    if (operation_is("found_work") || operation_is("end_search") || operation_is("prepare_park")) {
      return;
    }
    const bool by_fd = operation_is("finish_wait");
    if (by_fd) {
      ASSERT_GE(lot_.wait_fd(kFrozen), 0);
    }
    ASSERT_TRUE(lot_.prepare_park(kFrozen, by_fd ? SleepBy::fd : SleepBy::futex));
    is_ = Is::asleep;
  }

  void operate() {
    if (operation_is("notify")) {
      wakes_given_ += lot_.notify_published();
    } else if (operation_is("wake")) {
      wakes_given_ += lot_.wake(kFrozen);
    } else if (operation_is("stop")) {
      lot_.stop();
    } else if (operation_is("begin_search")) {
      lot_.begin_search(kFrozen);
      is_ = Is::searching;
    } else if (operation_is("found_work")) {
      (void)lot_.found_work(kFrozen);
      is_ = Is::working;
    } else if (operation_is("end_search")) {
      (void)lot_.end_search(kFrozen);
      is_ = Is::working;
    } else if (operation_is("prepare_park")) {
      is_ = lot_.prepare_park(kFrozen) ? Is::asleep : Is::searching;
    } else if (operation_is("cancel_park")) {
      woken_ = !lot_.cancel_park(kFrozen);
      is_ = Is::searching;
    } else if (operation_is("park")) {
      const auto deadline = variant_is("late") ? Lot::TimePoint{} : Lot::Clock::now() + 60s;
      woken_ = lot_.park(kFrozen, deadline) == Wake::notified;
      is_ = Is::searching;
    } else {
      woken_ = lot_.finish_wait(kFrozen);
      is_ = Is::searching;
    }
  }

  /// Producers publish and the other worker takes, by each of its ways through the lot.
  void others_go_on() {
    for (std::uint64_t i = 0; i < kWhileFrozen; ++i) {
      ASSERT_TRUE(queue_.push(i));
      wakes_by_others_ += lot_.notify_published();
      lot_.begin_search(kOther);
      if (i % 3 != 0 && lot_.prepare_park(kOther)) {
        ASSERT_FALSE(queue_.empty_seq_cst());
        (void)lot_.cancel_park(kOther);
      }
      std::uint64_t out = 0;
      ASSERT_TRUE(queue_.pop(out));
      ASSERT_EQ(out, i);
      if (lot_.found_work(kOther)) {
        ASSERT_TRUE(queue_.empty_seq_cst());
      }
    }
    // And it may go to sleep with nothing to do, and is up again at its deadline.
    lot_.begin_search(kOther);
    if (lot_.prepare_park(kOther)) (void)lot_.park(kOther, Lot::Clock::now());
    (void)lot_.end_search(kOther);
  }

  Lot lot_{2};
  ScqRing<std::uint64_t> queue_{8};
  Is is_ = Is::working;
  int wakes_given_ = 0;      ///< by the frozen operation
  int wakes_by_others_ = 0;  ///< to the one sleeper that there can be
  bool woken_ = false;
};

TEST_P(ParkingFrozen, HoldsUpNobodyThatIsAwake) {
  ASSERT_NO_FATAL_FAILURE(prepare());
  FrozenThread frozen(GetParam().point, [this] { operate(); });
  ASSERT_TRUE(frozen.reached());
  ASSERT_NO_FATAL_FAILURE(others_go_on());

  frozen.thaw();
  const bool stopped = lot_.stopping();
  if (is_ == Is::asleep) {
    const bool wake_due = wakes_given_ + wakes_by_others_ > 0 || stopped;
    const Wake how = lot_.park(kFrozen, wake_due ? Lot::Clock::now() + 60s : Lot::TimePoint{});
    EXPECT_EQ(how, stopped ? Wake::stopped : wake_due ? Wake::notified : Wake::timed_out);
    woken_ = how == Wake::notified;
    is_ = Is::searching;
  }
  if (!stopped) {
    EXPECT_EQ(wakes_given_ + wakes_by_others_, woken_ ? 1 : 0) << "one sleep, one wake";
    EXPECT_EQ(lot_.counters(kFrozen).wakes, woken_ ? 1u : 0u);
  }
  // Nobody is counted who is not there, and nobody is left out.
  EXPECT_EQ(lot_.searchers(), is_ == Is::searching ? 1u : 0u);
  EXPECT_EQ(lot_.sleepers(), 0u);
  if (is_ == Is::searching) (void)lot_.end_search(kFrozen);
  EXPECT_EQ(lot_.searchers(), 0u);
  if (!stopped) {
    lot_.begin_search(kFrozen);
    ASSERT_TRUE(lot_.prepare_park(kFrozen));
    EXPECT_TRUE(lot_.notify_published());
    EXPECT_FALSE(lot_.notify_published());
    EXPECT_EQ(lot_.park(kFrozen, Lot::Clock::now() + 60s), Wake::notified);
  }
}

INSTANTIATE_TEST_SUITE_P(At, ParkingFrozen, ::testing::ValuesIn(kCases), test::case_name);

}  // namespace
}  // namespace sluice
