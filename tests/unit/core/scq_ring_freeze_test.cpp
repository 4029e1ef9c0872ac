// SPDX-License-Identifier: BSD-3-Clause
// A thread that stands still at any step of any operation of ScqRing holds up nobody, and what it
// has taken, one slot, is all that is missing. Each push is a dequeue of ScqIndexRing (of a free
// slot) and an enqueue, each pop the same in turn, so both rings' operations are met in both roles.
#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "freeze_hooks.hpp"
#include "sluice/core/scq_ring.hpp"

namespace sluice {
namespace {

using test::FreezeCase;
using test::FrozenThread;
using test::kWhileFrozen;
using test::Provocation;
using Ring = ScqRing<std::uint64_t, test::FreezeHooks>;

constexpr std::uint64_t kCapacity = 4;
constexpr std::uint64_t kLate = 1000000000;  ///< what the frozen push brings

// Variants: how the rare ways are brought about.
//   drained   the others empty the index ring between the look and the ticket: the ticket is in
//             vain, and the entry is moved on
//   hole      the same, and they enqueue before the tail is read: another ticket is tried
//   overtaken the same, after the tail was read: bringing the tail along fails
//   lowered   a ticket in vain has lowered the threshold before
//   unsafe    an entry was marked unsafe before
const std::vector<FreezeCase> kCases = {
    {"push", "scq.empty.threshold_read"},
    {"push", "scq.empty.head_read"},
    {"push", "scq.empty.entry_read", "full"},
    {"push", "scq.dequeue.begun"},
    {"push", "scq.dequeue.ticket"},
    {"push", "scq.dequeue.entry_read"},
    {"push", "scq.dequeue.entry_read", "drained"},
    {"push", "scq.dequeue.entry_done"},
    {"push", "scq.dequeue.entry_done", "drained"},
    {"push", "scq.dequeue.tail_read", "drained"},
    {"push", "scq.dequeue.caught_up", "drained"},
    {"push", "scq.dequeue.lowered", "hole"},
    {"push", "scq.catch_up.overtaken", "overtaken"},
    {"push", "scq.catch_up.head_read", "overtaken"},
    {"push", "scq.push.slot"},
    {"push", "scq.push.stored"},
    {"push", "scq.enqueue.ticket"},
    {"push", "scq.enqueue.entry_read"},
    {"push", "scq.enqueue.unsafe_head_read", "unsafe"},
    {"push", "scq.enqueue.filled"},
    {"push", "scq.enqueue.threshold_low"},
    {"push", "scq.enqueue.done"},
    {"pop", "scq.empty.threshold_read"},
    {"pop", "scq.empty.head_read"},
    {"pop", "scq.empty.entry_read", "empty"},
    {"pop", "scq.dequeue.begun"},
    {"pop", "scq.dequeue.ticket"},
    {"pop", "scq.dequeue.entry_read"},
    {"pop", "scq.dequeue.entry_read", "drained"},
    {"pop", "scq.dequeue.entry_done"},
    {"pop", "scq.dequeue.entry_done", "drained"},
    {"pop", "scq.dequeue.tail_read", "drained"},
    {"pop", "scq.dequeue.caught_up", "drained"},
    {"pop", "scq.dequeue.lowered", "hole"},
    {"pop", "scq.catch_up.overtaken", "overtaken"},
    {"pop", "scq.catch_up.head_read", "overtaken"},
    {"pop", "scq.pop.slot"},
    {"pop", "scq.pop.moved_out"},
    {"pop", "scq.enqueue.ticket"},
    {"pop", "scq.enqueue.entry_read"},
    {"pop", "scq.enqueue.filled"},
    {"pop", "scq.enqueue.threshold_low", "lowered"},
    {"pop", "scq.enqueue.done"},
    {"empty_seq_cst", "scq.empty.threshold_read"},
    {"empty_seq_cst", "scq.empty.head_read"},
    {"empty_seq_cst", "scq.empty.entry_read", "empty"},
};

TEST(ScqRingFreezeCases, EveryPointOfTheRingHasItsCase) {
  EXPECT_EQ(test::points_of(kCases), test::points_in({"core/include/sluice/core/scq_ring.hpp"}));
}

class ScqRingFrozen : public ::testing::TestWithParam<FreezeCase> {
 protected:
  [[nodiscard]] static bool variant_is(std::string_view name) { return GetParam().variant == name; }
  [[nodiscard]] static bool operation_is(std::string_view name) {
    return GetParam().operation == name;
  }

  /// The others push the next number; they take an element and note it.
  void push() {
    ASSERT_TRUE(ring_.push(next_in_)) << "with " << next_in_ - taken_ << " of the others' inside";
    ++next_in_;
  }
  void pop() {
    std::uint64_t out = 0;
    if (ring_.pop(out)) {
      note(out);
    } else {  // a frozen pop may hold one ticket, and with it the one element that came for it
      ASSERT_TRUE(operation_is("pop"));
      ASSERT_EQ(next_in_ - taken_, 1u);
    }
  }
  void note(std::uint64_t value) {
    if (value == kLate) {
      ++late_seen_;
      return;
    }
    ASSERT_LT(value, next_in_);
    if (value < next_out_) {  // what a frozen pop had taken comes late, once
      ASSERT_EQ(value, missing_);
      missing_ = kNothing;
    } else {
      if (value == next_out_ + 1 && missing_ == kNothing) missing_ = next_out_++;
      ASSERT_EQ(value, next_out_) << "the order is not kept";
      ++next_out_;
    }
    ++taken_;
  }

  void fill(std::uint64_t count) {
    while (next_in_ - taken_ < count) ASSERT_NO_FATAL_FAILURE(push());
  }

  /// Empties, or for a push fills, what the frozen operation's dequeue looks at.
  [[nodiscard]] Provocation drain() {
    return {"scq.dequeue.begun", [this] { operation_is("push") ? push() : pop(); }};
  }
  [[nodiscard]] Provocation put_back(const char* at) {
    return {at, [this] { operation_is("push") ? pop() : push(); }};
  }

  /// How full the ring is when the operation begins, and what is done on the way.
  std::vector<Provocation> prepare() {
    const bool pushing = operation_is("push");
    if (variant_is("full")) {
      fill(kCapacity);
    } else if (variant_is("empty")) {
      fill(1);
      pop();
    } else if (variant_is("drained")) {
      fill(pushing ? kCapacity - 1 : 1);
      return {drain()};
    } else if (variant_is("hole")) {
      fill(pushing ? kCapacity - 1 : 1);
      return {drain(), put_back("scq.dequeue.entry_done")};
    } else if (variant_is("overtaken")) {
      fill(pushing ? kCapacity - 1 : 1);
      return {drain(), put_back("scq.dequeue.tail_read")};
    } else if (variant_is("lowered")) {
      fill(kCapacity - 1);
      EXPECT_TRUE(test::run_provoked({{"scq.dequeue.begun", [this] { push(); }}},
                                     [this] { EXPECT_FALSE(ring_.push(kLate)); }));
    } else if (variant_is("unsafe")) {
      mark_an_entry_unsafe();
    } else if (!pushing) {
      fill(3);
    }
    return {};
  }

  /// A pop stands still with its ticket while the ring goes round once: the next ticket of that
  /// entry finds it still taken.
  void mark_an_entry_unsafe() {
    fill(1);
    std::uint64_t out = 0;
    FrozenThread frozen("scq.dequeue.ticket", [&] { ASSERT_TRUE(ring_.pop(out)); });
    ASSERT_TRUE(frozen.reached());
    for (std::size_t i = 0; i < kEntries + 10; ++i) {
      push();
      pop();
    }
    frozen.thaw();
    note(out);
  }

  /// The frozen thread's part. For "unsafe" it goes on until it comes to that entry.
  void operate() {
    if (operation_is("empty_seq_cst")) {
      static_cast<void>(ring_.empty_seq_cst());
    } else if (operation_is("pop")) {
      popped_late_ = ring_.pop(late_);
    } else if (!variant_is("unsafe")) {
      pushed_late_ = ring_.push(kLate);
    } else {
      for (std::size_t i = 0; i < 2 * kEntries && test::FreezeHooks::armed != nullptr; ++i) {
        if (pushed_late_) {
          pop();
          --late_seen_;
        }
        pushed_late_ = ring_.push(kLate);
      }
    }
  }

  static constexpr std::uint64_t kNothing = ~std::uint64_t{0};
  static constexpr std::size_t kEntries = 2 * kScqMaxThreads;

  Ring ring_{kCapacity};
  std::uint64_t next_in_ = 0;
  std::uint64_t next_out_ = 0;  ///< what the others expect next
  std::uint64_t taken_ = 0;
  std::uint64_t missing_ = kNothing;  ///< jumped over: it is the frozen thread's
  int late_seen_ = 0;
  bool pushed_late_ = false;
  bool popped_late_ = false;
  std::uint64_t late_ = 0;
};

TEST_P(ScqRingFrozen, HoldsUpNobody) {
  std::vector<Provocation> provocations = prepare();
  ASSERT_FALSE(HasFatalFailure());
  FrozenThread frozen(
      GetParam().point, [this] { operate(); }, std::move(provocations));
  ASSERT_TRUE(frozen.reached());
  ASSERT_FALSE(HasFatalFailure());

  // Everything comes but what a frozen pop has taken.
  std::uint64_t out = 0;
  while (ring_.pop(out)) ASSERT_NO_FATAL_FAILURE(note(out));
  ASSERT_LE(next_in_ - taken_, operation_is("pop") ? 1u : 0u);
  // Neither does it look like work that does not come, or a worker would never sleep.
  EXPECT_TRUE(ring_.empty_seq_cst());
  // One slot may be out of use. The others use all the rest, round and round.
  for (std::size_t i = 0; i < kWhileFrozen; i += 2 * (kCapacity - 1)) {
    for (std::uint64_t k = 0; k < kCapacity - 1; ++k) ASSERT_NO_FATAL_FAILURE(push());
    for (std::uint64_t k = 0; k < kCapacity - 1; ++k) ASSERT_NO_FATAL_FAILURE(pop());
  }
  const bool late_went_in = late_seen_ > 0;
  ASSERT_NO_FATAL_FAILURE(push());

  frozen.thaw();
  ASSERT_FALSE(HasFatalFailure());
  if (popped_late_) {
    ASSERT_NO_FATAL_FAILURE(note(late_));
  }
  while (ring_.pop(out)) ASSERT_NO_FATAL_FAILURE(note(out));
  EXPECT_EQ(taken_, next_in_) << "something is lost";
  EXPECT_EQ(missing_, kNothing) << "something that the frozen thread had taken is lost";
  EXPECT_EQ(late_seen_, pushed_late_ ? 1 : 0);
  EXPECT_TRUE(pushed_late_ || !late_went_in);
  // With no slot taken away meanwhile, a push cannot find the ring full.
  const bool may_be_refused = !operation_is("push") || *GetParam().variant != '\0';
  EXPECT_TRUE(pushed_late_ || may_be_refused);
  EXPECT_TRUE(ring_.empty_seq_cst());
  for (std::uint64_t i = 0; i < kCapacity; ++i) EXPECT_TRUE(ring_.push(i));  // all slots are back
  EXPECT_FALSE(ring_.push(9));
}

INSTANTIATE_TEST_SUITE_P(At, ScqRingFrozen, ::testing::ValuesIn(kCases), test::case_name);

}  // namespace
}  // namespace sluice
