// SPDX-License-Identifier: BSD-3-Clause
// A process that applies is killed somewhere, over and over; what it leaves is the state after some
// entry, the one that it says, and no earlier one than was promised to be durable.
#include <gtest/gtest.h>
#include <signal.h>

#include <random>

#include "support.hpp"

namespace sluice::kv::test {
namespace {

constexpr std::size_t kValueBytesMax = 12'000;  ///< what memory holds fills up quickly

std::uint64_t number_after(const std::string& line, const std::string& word) {
  return line.starts_with(word + " ") ? std::stoull(line.substr(word.size() + 1)) : 0;
}

TEST(Crash, WhatIsLeftIsTheStateAfterTheEntryItNamesAndNothingDurableIsLost) {
  TemporaryFolder folder;
  constexpr int kRounds = 12;
  std::mt19937_64 random(20240229);
  const std::uint64_t seed = random();
  std::uint64_t rounds_with_loss = 0, rounds_with_gain = 0, left_before = 0;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    std::uint64_t applied = 0, durable = 0;
    Child child({"apply", folder / "data", std::to_string(seed), std::to_string(kValueBytesMax)});
    // In lines, not in time: so the machine's speed does not matter. Some of what it says after the
    // last line that is read here is in the pipe.
    const std::uint64_t lines = 1 + random() % 400;
    std::string line;
    for (std::uint64_t i = 0; i < lines; ++i) {
      line = child.line();
      ASSERT_FALSE(line.empty()) << "it ended by itself";
      applied = std::max(applied, number_after(line, "applied"));
      durable = std::max(durable, number_after(line, "durable"));
    }
    child.kill();
    for (line = child.line(); !line.empty(); line = child.line()) {
      applied = std::max(applied, number_after(line, "applied"));
      durable = std::max(durable, number_after(line, "durable"));
    }
    EXPECT_EQ(child.wait(), 128 + SIGKILL);

    const auto store = open(folder / "data");
    const std::uint64_t left = store->applied_index();
    EXPECT_GE(left, durable);
    constexpr std::uint64_t kBatchMax = 16;  // one may have been applied that was not told yet
    EXPECT_LE(left, applied + kBatchMax);
    EXPECT_EQ(store->applied().epoch, left == 0 ? 0 : epoch_at(left));
    EXPECT_EQ(store->durable_applied_index().value(), left);
    EXPECT_EQ(difference(*store, model_at(seed, left, kValueBytesMax)), "")
        << "after entry " << left;
    rounds_with_loss += left < applied;
    rounds_with_gain += left > left_before;
    left_before = left;
  }
  // Else nothing was tried.
  EXPECT_GT(rounds_with_loss, 0u);
  EXPECT_GT(rounds_with_gain, 0u);
}

TEST(Crash, AStoreThatWasBeingMadeIsMadeAnew) {
  for (const char* step : {"create the database", "name the database"}) {
    SCOPED_TRACE(step);
    TemporaryFolder folder;
    Child child({"create", folder / "data", step});
    EXPECT_EQ(child.wait(), 128 + SIGKILL);
    const auto store = open(folder / "data");
    EXPECT_EQ(store->applied_index(), 0u);
    apply_to(*store, set("a", "1"));
    EXPECT_EQ(value_of(*store, "a"), "1");
  }
}

}  // namespace
}  // namespace sluice::kv::test
