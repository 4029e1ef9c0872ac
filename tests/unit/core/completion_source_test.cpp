// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/completion_source.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <set>
#include <thread>
#include <vector>

namespace sluice {
namespace {

class SilentSource : public CompletionSource {
 public:
  PollOutcome poll(std::span<ibv_wc>) noexcept override { return {}; }
  EventOutcome consume_event() noexcept override { return {}; }
  int wait_fd() const noexcept override { return -1; }
  std::uint32_t capacity() const noexcept override { return 1; }
  std::string_view name() const noexcept override { return "silent"; }
};

class RetiringSource final : public SilentSource {
 public:
  void retire(std::span<const ibv_wc> completions) noexcept override {
    retired += completions.size();
    ++calls;
    if (no_more) CompletionSource::retire(completions);
  }
  std::size_t retired = 0;
  int calls = 0;
  bool no_more = false;
};

TEST(CompletionSource, WhatItsHandlerIsDoneWithIsToldAsLongAsItWantsToKnow) {
  const std::vector<ibv_wc> completions(3);
  RetiringSource source;
  for (std::size_t i = 1; i <= 4; ++i) {
    source.retire_if_wanted(completions);
    EXPECT_EQ(source.retired, 3 * i);
  }
  source.no_more = true;
  source.retire_if_wanted(completions);
  EXPECT_EQ(source.calls, 5);
  source.retire_if_wanted(completions);
  EXPECT_EQ(source.calls, 5);
  SilentSource silent;
  silent.retire_if_wanted(completions);
  silent.retire_if_wanted(completions);
}

TEST(SourceOwnership, ASecondTakerIsRefusedAndToldWhoAsked) {  // W11
  SilentSource source;
  auto first = source.take_ownership("poller 1");
  ASSERT_TRUE(first.ok());
  const auto second = source.take_ownership("poller 2");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::already_owned);
  EXPECT_NE(second.status().message().find("poller 2"), std::string::npos);
  EXPECT_NE(second.status().message().find("silent"), std::string::npos);
}

TEST(SourceOwnership, TheEpochIsOddWhileOwnedAndNeverComesAgain) {
  SilentSource source;
  std::set<std::uint64_t> epochs;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(source.ownership_epoch() & 1, 0U);
    auto ownership = source.take_ownership("a poller");
    ASSERT_TRUE(ownership.ok());
    EXPECT_EQ(source.ownership_epoch(), ownership->epoch());
    EXPECT_EQ(ownership->epoch() & 1, 1U);
    EXPECT_TRUE(epochs.insert(ownership->epoch()).second);
  }
}

TEST(SourceOwnership, MovingKeepsOneOwner) {
  SilentSource source;
  SourceOwnership kept;
  {
    auto ownership = source.take_ownership("a poller");
    ASSERT_TRUE(ownership.ok());
    kept = *std::move(ownership);
  }
  EXPECT_TRUE(kept.held());
  EXPECT_FALSE(source.take_ownership("another").ok());
  SourceOwnership moved(std::move(kept));
  EXPECT_TRUE(moved.held());
  moved.release();
  EXPECT_FALSE(moved.held());
  EXPECT_TRUE(source.take_ownership("another").ok());
}

TEST(SourceOwnershipDeathTest, ASourceIsNotDestroyedUnderItsOwner) {
  EXPECT_DEATH(
      {
        auto source = std::make_unique<SilentSource>();
        auto ownership = source->take_ownership("a poller");
        source.reset();
      },
      "somebody still owns it");
}

TEST(SourceOwnership, OfManyThreadsOneOwnsAtATime) {
  SilentSource source;
  std::atomic<int> owners{0};
  std::atomic<int> taken{0};
  std::atomic<bool> shared{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (taken.load() < 2000) {
        auto ownership = source.take_ownership("a thread");
        if (!ownership.ok()) continue;
        if (owners.fetch_add(1) != 0) shared.store(true);
        taken.fetch_add(1);
        owners.fetch_sub(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(shared.load());
}

TEST(ClearInvalidFields, LeavesWhatIsValidInAFailure) {
  ibv_wc wc;
  std::memset(&wc, 0xa5, sizeof wc);
  wc.wr_id = 1;
  wc.status = IBV_WC_RETRY_EXC_ERR;
  wc.qp_num = 2;
  wc.vendor_err = 3;
  clear_invalid_fields(wc);
  ibv_wc expected{};
  expected.wr_id = 1;
  expected.status = IBV_WC_RETRY_EXC_ERR;
  expected.qp_num = 2;
  expected.vendor_err = 3;
  EXPECT_EQ(std::memcmp(&wc, &expected, sizeof wc), 0);
}

TEST(ClearInvalidFields, LeavesASuccessAlone) {
  ibv_wc wc;
  std::memset(&wc, 0xa5, sizeof wc);
  wc.status = IBV_WC_SUCCESS;
  const ibv_wc before = wc;
  clear_invalid_fields(wc);
  EXPECT_EQ(std::memcmp(&wc, &before, sizeof wc), 0);
}

TEST(SourceFault, EachHasAName) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(SourceFault::cq_error); ++i) {
    names.insert(to_string(static_cast<SourceFault>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(SourceFault::cq_error) + 1);
}

}  // namespace
}  // namespace sluice
