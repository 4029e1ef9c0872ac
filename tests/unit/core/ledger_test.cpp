// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/ledger.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace sluice {
namespace {

TEST(CqLedger, ReservesUpToItsCapacity) {
  const auto ledger = CqLedger::create("cq", 100);
  auto first = ledger->reserve(60, "a connection");
  ASSERT_TRUE(first.ok());
  auto second = ledger->reserve(40, "another");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(ledger->reserved(), 100U);
  EXPECT_EQ(second->credits(), 40U);
}

TEST(CqLedger, TheRefusalNamesEverything) {
  const auto ledger = CqLedger::create("srq-rcq mlx5_0", 100);
  const auto first = ledger->reserve(60, "a connection");
  const auto refused = ledger->reserve(41, "connection 7");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::does_not_fit);
  for (const char* part : {"connection 7", "41", "srq-rcq mlx5_0", "100", "60", "101"}) {
    EXPECT_NE(refused.status().message().find(part), std::string::npos)
        << part << " in: " << refused.status().message();
  }
  EXPECT_EQ(ledger->reserved(), 60U);
}

TEST(CqLedger, NoSumOverflows) {
  const auto ledger = CqLedger::create("cq", 0xffffffffU);
  const auto all = ledger->reserve(0xfffffff0U, "a");
  EXPECT_FALSE(ledger->reserve(0xfffffff0U, "b").ok());
  EXPECT_EQ(ledger->reserved(), 0xfffffff0U);
}

TEST(CqLedger, AReservationGivesBackOnce) {
  const auto ledger = CqLedger::create("cq", 10);
  {
    auto reservation = ledger->reserve(6, "a");
    CqReservation moved(std::move(*reservation));
    CqReservation assigned;
    assigned = std::move(moved);
    EXPECT_EQ(ledger->reserved(), 6U);
    assigned.release();
    EXPECT_EQ(ledger->reserved(), 0U);
    EXPECT_EQ(assigned.credits(), 0U);
  }
  EXPECT_EQ(ledger->reserved(), 0U);
}

TEST(CqLedger, AssigningGivesBackWhatWasHeld) {
  const auto ledger = CqLedger::create("cq", 10);
  auto one = ledger->reserve(6, "a");
  auto two = ledger->reserve(3, "b");
  *one = std::move(*two);
  EXPECT_EQ(ledger->reserved(), 3U);
}

TEST(CqLedger, OutlivesItsMakerInAReservation) {
  auto ledger = CqLedger::create("cq", 10);
  const std::weak_ptr<CqLedger> weak = ledger;
  auto reservation = ledger->reserve(1, "a");
  ledger.reset();
  EXPECT_FALSE(weak.expired());
  reservation->release();
  EXPECT_TRUE(weak.expired());
}

TEST(CqLedger, ThreadsNeverReserveMoreThanThereIs) {
  const auto ledger = CqLedger::create("cq", 10);
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const auto reservation = ledger->reserve(4, "a thread");
        if (ledger->reserved() > 10) exceeded.store(true);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(exceeded.load());
  EXPECT_EQ(ledger->reserved(), 0U);
}

}  // namespace
}  // namespace sluice
