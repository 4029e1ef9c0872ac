// SPDX-License-Identifier: BSD-3-Clause
#include "kv/replication/quorum.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace sluice::kv {
namespace {

using Kind = ElectionVerdict::Kind;

std::string name(std::size_t i) {
  return std::string(1, static_cast<char>('a' + i));
}

TEST(Quorum, EveryQuorumHasSomebodyAmongThoseHeard) {
  for (std::size_t members = 1; members <= 9; ++members)
    EXPECT_GT(quorum_of(members) + hearing_of(members), members) << members << " members";
}

TEST(Quorum, LevelsOfThreeNodes) {
  const Progress self{"a", 10, 7};
  const Progress others[] = {{"b", 9, 8}, {"c", 5, 2}};
  const Reached reached = count_acknowledgements(self, others, {"a", "b", "c"}, nullptr);
  EXPECT_EQ(reached.at(Durability::memory), 10U);
  EXPECT_EQ(reached.at(Durability::local_disk), 7U);
  EXPECT_EQ(reached.at(Durability::quorum_memory), 9U);
  EXPECT_EQ(reached.at(Durability::quorum_disk), 7U);
  EXPECT_EQ(reached.at(Durability::all_disk), 2U);
}

TEST(Quorum, OnlyMembersOfTheSetCount) {
  const Progress self{"a", 10, 10};
  const Progress others[] = {{"b", 3, 3}, {"x", 10, 10}, {"y", 10, 10}};
  EXPECT_EQ(count_acknowledgements(self, others, {"a", "b"}, nullptr).at(Durability::quorum_memory),
            3U);
}

TEST(Quorum, AMemberThatNobodyKnowsHasNothing) {
  const Progress self{"a", 10, 10};
  const Reached reached = count_acknowledgements(self, {}, {"a", "b"}, nullptr);
  EXPECT_EQ(reached.at(Durability::quorum_memory), 0U);
  EXPECT_EQ(reached.at(Durability::all_disk), 0U);
  EXPECT_EQ(reached.at(Durability::memory), 10U);
}

TEST(Quorum, ANodeAloneIsItsOwnQuorum) {
  const Reached reached = count_acknowledgements({"a", 5, 4}, {}, {"a"}, nullptr);
  EXPECT_EQ(reached.at(Durability::quorum_memory), 5U);
  EXPECT_EQ(reached.at(Durability::all_disk), 4U);
}

TEST(Quorum, WhileTheSetChangesBothHaveToAgree) {
  const Progress self{"a", 10, 10};
  const Progress others[] = {{"b", 10, 10}, {"c", 4, 4}};
  const std::vector<std::string> without_b = {"a", "c"};
  EXPECT_EQ(
      count_acknowledgements(self, others, {"a", "b", "c"}, &without_b).at(Durability::quorum_disk),
      4U);
}

/// What the whole of it is for: an entry that was acknowledged while the set was changed from one
/// to another is known to a new primary whichever of the two is in force by then.
RC_GTEST_PROP(QuorumProperty, WhatWasAcknowledgedIsHeardOf, ()) {
  const auto nodes = *rc::gen::inRange<std::size_t>(1, 7);
  std::vector<Progress> all;
  for (std::size_t i = 0; i < nodes; ++i) {
    const auto durable = *rc::gen::inRange<std::uint64_t>(0, 20);
    all.push_back({name(i), durable + *rc::gen::inRange<std::uint64_t>(0, 5), durable});
  }
  const auto some_set = [&] {
    std::vector<std::string> set = {name(0)};  // the primary
    for (std::size_t i = 1; i < nodes; ++i)
      if (*rc::gen::arbitrary<bool>()) set.push_back(name(i));
    return set;
  };
  const auto before = some_set(), after = some_set();
  const Reached reached = count_acknowledgements(all[0], std::span(all).subspan(1), before, &after);
  const auto& set = *rc::gen::arbitrary<bool>() ? before : after;

  // Any of those that a new primary may hear: as few as it is content with.
  auto heard = *rc::gen::map(rc::gen::arbitrary<std::uint32_t>(), [&](std::uint32_t seed) {
    auto shuffled = set;
    for (std::size_t i = shuffled.size(); i > 1; --i)
      std::swap(shuffled[i - 1], shuffled[(seed = seed * 1664525U + 1013904223U) / 65536U % i]);
    shuffled.resize(hearing_of(set.size()));
    return shuffled;
  });
  std::uint64_t durable = 0, memory = 0;
  for (const Progress& node : all) {
    if (std::ranges::find(heard, node.node) == heard.end()) continue;
    durable = std::max(durable, node.durable);
    memory = std::max(memory, node.memory);
  }
  RC_ASSERT(durable >= reached.at(Durability::quorum_disk));
  RC_ASSERT(memory >= reached.at(Durability::quorum_memory));
}

TEST(Election, WaitsUntilEnoughAreHeard) {
  const auto verdict = judge_election({"a", 1, 1}, {}, 3, true);
  EXPECT_EQ(verdict.kind, Kind::wait);
  EXPECT_EQ(verdict.missing, 1U);
  EXPECT_EQ(judge_election({"a", 1, 1}, {}, 1, true).kind, Kind::lead);
  EXPECT_EQ(judge_election({"a", 1, 1}, {}, 2, true).kind, Kind::lead);
}

TEST(Election, ANodeOutsideTheSetDoesNotCountItself) {
  EXPECT_EQ(judge_election({"x", 9, 9}, {}, 1, false).kind, Kind::wait);
}

TEST(Election, WhoHasALaterEpochHasMore) {
  const Position other[] = {{"b", 2, 5}};
  EXPECT_EQ(judge_election({"a", 1, 100}, other, 3, true).kind, Kind::yield);
  EXPECT_EQ(judge_election({"a", 1, 100}, other, 3, true).to, "b");
  EXPECT_EQ(judge_election({"a", 3, 1}, other, 3, true).kind, Kind::lead);
}

TEST(Election, OfOneEpochTheLongerLogHasMoreAndATieIsTakenHere) {
  const Position other[] = {{"b", 2, 5}};
  EXPECT_EQ(judge_election({"a", 2, 4}, other, 3, true).kind, Kind::yield);
  EXPECT_EQ(judge_election({"a", 2, 5}, other, 3, true).kind, Kind::lead);
  EXPECT_EQ(judge_election({"a", 2, 6}, other, 3, true).kind, Kind::lead);
}

}  // namespace
}  // namespace sluice::kv
