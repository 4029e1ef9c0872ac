// SPDX-License-Identifier: BSD-3-Clause
// A thread that stands still at any step of any operation of SpmcRing holds up nobody, and what it
// has taken is all that is missing.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

#include "freeze_hooks.hpp"
#include "sluice/core/spmc_ring.hpp"

namespace sluice {
namespace {

using test::FreezeCase;
using test::FrozenThread;
using test::kWhileFrozen;
using Ring = SpmcRing<std::uint64_t, test::FreezeHooks>;

const std::vector<FreezeCase> kCases = {
    {"push", "spmc.push.head_read"},
    {"push", "spmc.push.slot_stored"},
    {"push", "spmc.push.all_stored"},
    {"push", "spmc.push.published"},
    {"push_bulk", "spmc.push.head_read"},
    {"push_bulk", "spmc.push.slot_stored"},
    {"push_bulk", "spmc.push.all_stored"},
    {"push_bulk", "spmc.push.published"},
    {"append", "spmc.append.head_read"},
    {"append", "spmc.append.slot_stored"},
    {"append", "spmc.append.published"},
    {"announce", "spmc.announced"},
    {"pop", "spmc.pop.head_read"},
    {"pop", "spmc.pop.seen_tail_read"},
    {"pop", "spmc.pop.tail_read"},
    {"pop", "spmc.pop.seen_tail_stored"},
    {"pop", "spmc.pop.slot_read"},
    {"pop", "spmc.pop.all_read"},
    {"pop", "spmc.pop.claimed"},
    {"pop_bulk", "spmc.pop.head_read"},
    {"pop_bulk", "spmc.pop.seen_tail_read"},
    {"pop_bulk", "spmc.pop.tail_read"},
    {"pop_bulk", "spmc.pop.seen_tail_stored"},
    {"pop_bulk", "spmc.pop.slot_read"},
    {"pop_bulk", "spmc.pop.all_read"},
    {"pop_bulk", "spmc.pop.claimed"},
    {"empty_seq_cst", "spmc.empty.head_read"},
};

TEST(SpmcRingFreezeCases, EveryPointOfTheRingHasItsCase) {
  EXPECT_EQ(test::points_of(kCases), test::points_in({"core/include/sluice/core/spmc_ring.hpp"}));
}

class SpmcRingFrozen : public ::testing::TestWithParam<FreezeCase> {
 protected:
  [[nodiscard]] bool operation_is(std::string_view name) const {
    return GetParam().operation == name;
  }
  [[nodiscard]] bool frozen_at(std::string_view point) const { return GetParam().point == point; }
};

/// The producer stands still. Consumers take all that it had published.
class SpmcRingFrozenProducer : public SpmcRingFrozen {};
TEST_P(SpmcRingFrozenProducer, HoldsUpNoConsumer) {
  constexpr std::uint64_t kCapacity = 16384;
  static_assert(kCapacity > kWhileFrozen + 100);
  Ring ring(kCapacity);
  std::vector<std::uint64_t> items(kCapacity);
  std::iota(items.begin(), items.end(), 0);
  ASSERT_EQ(ring.push_bulk(items), kCapacity);
  // So that the producer's copy of the head says "full", and it looks at the real one.
  std::uint64_t next_out = 0;
  for (std::uint64_t out = 0; next_out < 100; ++next_out) {
    ASSERT_TRUE(ring.pop(out));
    ASSERT_EQ(out, next_out);
  }
  const std::array<std::uint64_t, 3> late{kCapacity, kCapacity + 1, kCapacity + 2};
  const std::size_t late_count = operation_is("push_bulk") ? late.size() : 1;
  std::size_t pushed = 0;
  FrozenThread frozen(GetParam().point, [&] {
    if (operation_is("push_bulk")) {
      pushed = ring.push_bulk(late);
    } else if (operation_is("push")) {
      pushed = ring.push(late[0]);
    } else {
      pushed = ring.append(late[0]);
      ring.announce();
    }
  });
  ASSERT_TRUE(frozen.reached());

  const bool is_published = frozen_at("spmc.push.published") ||
                            frozen_at("spmc.append.published") || frozen_at("spmc.announced");
  const std::uint64_t published = kCapacity + (is_published ? late_count : 0);
  std::array<std::uint64_t, 7> out{};
  const std::uint64_t first_while_frozen = next_out;
  while (next_out < published) {
    const std::size_t count = ring.pop_bulk(std::span(out).first(1 + next_out % out.size()));
    ASSERT_GT(count, 0u) << "of " << published << " only " << next_out << " came";
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], next_out++);
  }
  EXPECT_GE(next_out - first_while_frozen, kWhileFrozen);
  EXPECT_EQ(ring.pop_bulk(out), 0u);
  EXPECT_TRUE(ring.empty_seq_cst());

  frozen.thaw();
  EXPECT_EQ(pushed, late_count);
  while (next_out < kCapacity + late_count) {
    std::uint64_t value = 0;
    ASSERT_TRUE(ring.pop(value));
    EXPECT_EQ(value, next_out++);
  }
  EXPECT_TRUE(ring.empty_seq_cst());
}

/// A consumer stands still. The producer and the other consumers go round the ring many times.
class SpmcRingFrozenConsumer : public SpmcRingFrozen {};
TEST_P(SpmcRingFrozenConsumer, HoldsUpNeitherTheProducerNorOtherConsumers) {
  Ring ring(8);
  std::uint64_t next_in = 0;
  while (next_in < 4) ASSERT_TRUE(ring.push(next_in++));
  std::array<std::uint64_t, 3> late{};
  const std::size_t wanted = operation_is("pop") ? 1 : late.size();
  std::size_t late_count = 0;
  FrozenThread frozen(GetParam().point, [&] {
    if (operation_is("empty_seq_cst")) {
      static_cast<void>(ring.empty_seq_cst());
    } else {
      late_count = operation_is("pop") ? ring.pop(late[0]) : ring.pop_bulk(late);
    }
  });
  ASSERT_TRUE(frozen.reached());

  // What it has claimed is all that is missing.
  const std::uint64_t claimed = frozen_at("spmc.pop.claimed") ? wanted : 0;
  std::uint64_t next_out = claimed;
  for (std::size_t i = 0; i < kWhileFrozen; ++i) {
    std::uint64_t out = 0;
    ASSERT_TRUE(ring.push(next_in++));
    ASSERT_TRUE(ring.pop(out));
    ASSERT_EQ(out, next_out++);
  }
  // Neither are the slots of what it has claimed out of use.
  while (next_in - next_out < ring.capacity()) ASSERT_TRUE(ring.push(next_in++));
  EXPECT_FALSE(ring.push(next_in));

  frozen.thaw();
  ASSERT_EQ(late_count, operation_is("empty_seq_cst") ? 0 : wanted);
  if (claimed == 0) {  // it takes what is the oldest by now
    for (std::size_t i = 0; i < late_count; ++i) EXPECT_EQ(late[i], next_out++);
  } else {
    for (std::size_t i = 0; i < late_count; ++i) EXPECT_EQ(late[i], i);
  }
  while (next_out < next_in) {
    std::uint64_t out = 0;
    ASSERT_TRUE(ring.pop(out));
    ASSERT_EQ(out, next_out++);
  }
  EXPECT_TRUE(ring.empty_seq_cst());
}

std::vector<FreezeCase> cases_of(bool producer) {
  std::vector<FreezeCase> result;
  for (const FreezeCase& one : kCases) {
    const bool consumes = std::string_view(one.operation).starts_with("pop") ||
                          one.operation == std::string_view("empty_seq_cst");
    if (consumes != producer) result.push_back(one);
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(At, SpmcRingFrozenProducer, ::testing::ValuesIn(cases_of(true)),
                         test::case_name);
INSTANTIATE_TEST_SUITE_P(At, SpmcRingFrozenConsumer, ::testing::ValuesIn(cases_of(false)),
                         test::case_name);

}  // namespace
}  // namespace sluice
