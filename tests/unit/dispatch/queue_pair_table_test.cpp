// SPDX-License-Identifier: BSD-3-Clause
#include "queue_pair_table.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <unordered_map>
#include <vector>

#include "state.hpp"

namespace sluice::detail {
namespace {

std::array<ConnectionState, 64> connections;

/// Few numbers, so that they collide, and numbers that differ in high bits only.
rc::Gen<std::uint32_t> qp_numbers() {
  return rc::gen::oneOf(rc::gen::inRange<std::uint32_t>(0, 24),
                        rc::gen::inRange<std::uint32_t>(0, 1U << 24),
                        rc::gen::map(rc::gen::inRange<std::uint32_t>(0, 16),
                                     [](std::uint32_t i) { return i << 20; }));
}

RC_GTEST_PROP(QueuePairTableProperty, IsAMapFromNumbersToConnections, ()) {
  constexpr std::size_t kEntriesMax = 12;
  QueuePairTable table(kEntriesMax);
  std::unordered_map<std::uint32_t, ConnectionState*> model;
  std::vector<std::uint32_t> used;
  const int steps = *rc::gen::inRange(0, 200);
  for (int i = 0; i < steps; ++i) {
    const std::uint32_t qp_num =
        !used.empty() && *rc::gen::arbitrary<bool>() ? *rc::gen::elementOf(used) : *qp_numbers();
    used.push_back(qp_num);
    ConnectionState* const connection =
        &connections[*rc::gen::inRange<std::size_t>(0, connections.size())];
    switch (*rc::gen::inRange(0, 4)) {
      case 0:
      case 1:
        if (model.size() == kEntriesMax && !model.contains(qp_num)) break;
        table.insert(qp_num, connection);
        model[qp_num] = connection;
        break;
      case 2: {  // of whatever is there
        const auto found = model.find(qp_num);
        table.erase(qp_num, found != model.end() ? found->second : connection);
        if (found != model.end()) model.erase(found);
        break;
      }
      case 3:  // of a connection that may have had the number before
        table.erase(qp_num, connection);
        if (const auto found = model.find(qp_num);
            found != model.end() && found->second == connection) {
          model.erase(found);
        }
        break;
    }
    RC_ASSERT(table.size() == model.size());
    for (const std::uint32_t number : used) {
      const auto found = model.find(number);
      RC_ASSERT(table.find(number) == (found == model.end() ? nullptr : found->second));
    }
  }
}

/// All 32 bits, the ends, and what an empty slot holds for a number: nobody must be taken for one.
rc::Gen<std::uint32_t> any_numbers() {
  constexpr std::uint32_t kInverse = 0x0E8B2F51;  // of the hash's multiplier
  return rc::gen::oneOf(
      rc::gen::resize(100, rc::gen::arbitrary<std::uint32_t>()),
      rc::gen::element<std::uint32_t>(0, 1, ~0U, ~0U - 1, 1U << 31, (1U << 31) - 1, 1U << 24),
      rc::gen::map(rc::gen::inRange<std::uint32_t>(0, 160),
                   [](std::uint32_t slot) { return (slot << 4) * kInverse; }));
}

RC_GTEST_PROP(QueuePairTableProperty, TakesNumbersOfAllBitsInTablesOfAllSizes, ()) {
  const std::size_t entries_max = *rc::gen::inRange<std::size_t>(0, 65);
  QueuePairTable table(entries_max);
  std::unordered_map<std::uint32_t, ConnectionState*> model;
  const auto pool = *rc::gen::container<std::vector<std::uint32_t>>(100, any_numbers());
  const auto check = [&] {
    const QueuePairTable::View view = table.view();
    std::size_t at_home = 0;
    for (const std::uint32_t number : pool) {
      const auto found = model.find(number);
      ConnectionState* const expected = found == model.end() ? nullptr : found->second;
      RC_ASSERT(table.find(number) == expected);
      RC_ASSERT(view.find(number) == expected);
      // At home or elsewhere, and never another's.
      ConnectionState* const there = view.at_home(number);
      RC_ASSERT(there == nullptr || there == expected);
      at_home += there != nullptr;
    }
    RC_ASSERT(table.size() == model.size());
    // The first of a cluster is at home: were none, at_home() would find nothing at all.
    RC_ASSERT(model.empty() || at_home > 0);
  };
  check();  // an empty table knows nobody
  const int steps = *rc::gen::inRange(0, 150);
  for (int i = 0; i < steps; ++i) {
    const std::uint32_t qp_num = *rc::gen::elementOf(pool);
    ConnectionState* const connection =
        &connections[*rc::gen::inRange<std::size_t>(0, connections.size())];
    const auto known = model.find(qp_num);
    if (*rc::gen::inRange(0, 3) > 0) {
      if (known == model.end() && model.size() == entries_max) continue;
      table.insert(qp_num, connection);
      model[qp_num] = connection;
    } else {
      table.erase(qp_num, known == model.end() ? connection : known->second);
      if (known != model.end()) model.erase(known);
    }
    check();
  }
}

TEST(QueuePairTable, ReusedNumberIsNotErasedByItsFormerConnection) {
  QueuePairTable table(4);
  table.insert(7, &connections[0]);
  table.insert(7, &connections[1]);
  EXPECT_EQ(table.size(), 1u);
  table.erase(7, &connections[0]);
  EXPECT_EQ(table.find(7), &connections[1]);
  table.erase(7, &connections[1]);
  EXPECT_EQ(table.find(7), nullptr);
  EXPECT_EQ(table.size(), 0u);
}

TEST(QueuePairTable, HoldsAsManyAsItWasMadeFor) {
  constexpr std::uint32_t kMany = 4096;
  QueuePairTable table(kMany);
  for (std::uint32_t i = 0; i < kMany; ++i) table.insert(i * 3 + 1, &connections[i % 64]);
  for (std::uint32_t i = 0; i < kMany; ++i) ASSERT_EQ(table.find(i * 3 + 1), &connections[i % 64]);
  EXPECT_EQ(table.find(0), nullptr);
}

TEST(QueuePairTableDeathTest, MoreThanItWasMadeForStopsTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        QueuePairTable table(1);
        for (std::uint32_t i = 0; i < 8; ++i) table.insert(i, &connections[0]);
      },
      "more queue pairs than connections_max");
}

}  // namespace
}  // namespace sluice::detail
