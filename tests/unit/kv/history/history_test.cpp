// SPDX-License-Identifier: BSD-3-Clause
// What the checker of clients' histories says about small ones, and how it says it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "history.hpp"

namespace sluice::kv::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using History = std::vector<Operation>;

Operation set(std::string value, std::int64_t from, std::int64_t to,
              Outcome outcome = Outcome::ok) {
  return {1, Kind::set, outcome, "k", std::move(value), from, to};
}
Operation get(std::optional<std::string> value, std::int64_t from, std::int64_t to) {
  return {2, Kind::get, Outcome::ok, "k", std::move(value), from, to};
}
Operation incr(std::optional<std::string> value, std::int64_t from, std::int64_t to) {
  const Outcome outcome = value ? Outcome::ok : Outcome::unknown;
  return {3, Kind::incr, outcome, "k", std::move(value), from, to};
}
Operation del(std::optional<std::string> removed, std::int64_t from, std::int64_t to) {
  const Outcome outcome = removed ? Outcome::ok : Outcome::unknown;
  return {4, Kind::del, outcome, "k", std::move(removed), from, to};
}

/// Both ways to judge a register must say this.
void expect_register(const History& history, bool linearizable) {
  ASSERT_TRUE(has_unique_writes(history));
  bool undecided = false;
  const auto by_zones = zones(history), by_search = search(history, undecided);
  EXPECT_FALSE(undecided);
  EXPECT_EQ(!by_zones, linearizable) << (by_zones ? by_zones->to_string() : "by zones");
  EXPECT_EQ(!by_search, linearizable) << (by_search ? by_search->to_string() : "by search");
}

void expect_searched(const History& history, bool linearizable) {
  bool undecided = false;
  const auto found = search(history, undecided);
  EXPECT_FALSE(undecided);
  EXPECT_EQ(!found, linearizable) << (found ? found->to_string() : "accepted");
}

// --- registers ---------------------------------------------------------------------------------

TEST(HistoryOfARegister, NothingAtAllIsRight) {
  EXPECT_TRUE(check({}).linearizable());
  expect_register({get({}, 0, 1)}, true);
}

TEST(HistoryOfARegister, OneAfterTheOther) {
  expect_register({get({}, 0, 1), set("a", 2, 3), get("a", 4, 5), set("b", 6, 7), get("b", 8, 9)},
                  true);
}

TEST(HistoryOfARegister, AReadDuringAWriteMaySeeEither) {
  for (const char* seen : {"a", "b"})
    expect_register({set("a", 0, 1), set("b", 2, 10), get(seen, 3, 4)}, true);
  expect_register({set("a", 0, 1), set("b", 2, 10), get("a", 3, 4), get("b", 5, 6)}, true);
}

TEST(HistoryOfARegister, ANewValueIsNotFollowedByTheOldOne) {
  expect_register({set("a", 0, 1), set("b", 2, 10), get("b", 3, 4), get("a", 5, 6)}, false);
}

TEST(HistoryOfARegister, AStaleReadIsFound) {
  expect_register({set("a", 0, 1), set("b", 2, 3), get("a", 4, 5)}, false);
  expect_register({set("a", 0, 1), get({}, 2, 3)}, false);
}

TEST(HistoryOfARegister, WhatOnlyTouchesMayOverlap) {
  expect_register({set("a", 0, 5), set("b", 5, 6), get("a", 8, 9)}, true);
  expect_register({set("a", 0, 1), set("b", 1, 2), get("a", 2, 3)}, true);
}

TEST(HistoryOfARegister, AWriteOfUnknownOutcomeMayComeLateOrNever) {
  const Operation lost = set("x", 2, 3, Outcome::unknown);
  expect_register({set("a", 0, 1), lost, get("a", 4, 5)}, true);
  expect_register({set("a", 0, 1), lost, get("a", 4, 5), get("x", 6, 7)}, true);
  expect_register({set("a", 0, 1), lost, set("b", 4, 5), get("b", 6, 7), get("x", 8, 9)}, true);
  expect_register({set("a", 0, 1), lost, get("x", 6, 7), get("a", 8, 9)}, false);
  expect_register({get("x", 0, 1), lost}, false);
}

TEST(HistoryOfARegister, ARefusedWriteIsNeverSeen) {
  const Operation refused = set("x", 2, 3, Outcome::failed);
  expect_register({set("a", 0, 1), refused, get("a", 4, 5)}, true);
  const History seen{set("a", 0, 1), refused, get("x", 4, 5)};
  expect_register(seen, false);
  EXPECT_THAT(zones(seen)->to_string(), HasSubstr("refused was read"));
}

TEST(HistoryOfARegister, AValueFromNowhereAndOneFromTheFutureAreFound) {
  expect_register({get("x", 0, 1)}, false);
  expect_register({get("a", 0, 1), set("a", 2, 3)}, false);
}

TEST(HistoryOfARegister, AWriteWithinTheTimeOfAnotherValueIsFound) {
  // b took effect between 3 and 4, when a was there before and after.
  expect_register({set("a", 0, 1), set("b", 3, 4), get("a", 2, 10), get("a", 6, 7)}, false);
  expect_register({set("a", 0, 1), set("b", 3, 6), get("a", 2, 10), get("a", 5, 7)}, true);
}

TEST(HistoryOfARegister, AReadWithoutAnAnswerSaysNothing) {
  Operation read = get("zzz", 2, 3);
  read.outcome = Outcome::unknown;
  expect_register({set("a", 0, 1), read, get("a", 4, 5)}, true);
}

TEST(HistoryOfARegister, TheExplanationIsShortAndNamesWhatIsConcerned) {
  History history;
  for (int i = 0; i < 1000; ++i) {
    history.push_back(set("v" + std::to_string(i), 4 * i, 4 * i + 1));
    history.push_back(get("v" + std::to_string(i == 700 ? 698 : i), 4 * i + 2, 4 * i + 3));
  }
  const Verdict verdict = check(history);
  ASSERT_TRUE(verdict.violation);
  EXPECT_EQ(verdict.violation->key, "k");
  EXPECT_LE(verdict.violation->operations.size(), 4U);
  const std::string text = verdict.to_string();
  EXPECT_THAT(text, HasSubstr("GET k -> v698"));
  EXPECT_THAT(text, HasSubstr("2000 operations on 1 keys; not linearizable: key k"));
  EXPECT_THAT(listing(history, "k", 3), HasSubstr("1997 before these\n"));
}

TEST(HistoryOfARegister, OfTwoViolationsTheFirstIsTold) {
  History history{set("a", 0, 1), set("b", 2, 3), get("a", 4, 5)};
  for (Operation operation : History(history)) {
    operation.key = "another";  // which comes before k in the alphabet
    operation.invoked += 100;
    operation.returned += 100;
    history.push_back(operation);
  }
  const Verdict verdict = check(history);
  ASSERT_TRUE(verdict.violation);
  EXPECT_EQ(verdict.violation->key, "k");
  EXPECT_EQ(verdict.keys, 2U);
}

TEST(HistoryOfARegister, ManyOperationsOfManyClientsAreJudged) {
  // Each write overlaps the next three; with reads of all that may be seen.
  History history;
  for (std::int64_t i = 0; i < 100'000; ++i) {
    history.push_back(set(std::to_string(i), 10 * i, 10 * i + 35));
    history.push_back(get(std::to_string(i), 10 * i + 5, 10 * i + 9));
  }
  EXPECT_TRUE(check(history).linearizable());
  history.push_back(get("50000", 2'000'000, 2'000'001));
  EXPECT_FALSE(check(history).linearizable());
}

// --- counters, removals ------------------------------------------------------------------------

TEST(HistoryOfACounter, EachNumberOnce) {
  expect_searched({incr("1", 0, 1), incr("2", 2, 3), get("2", 4, 5)}, true);
  expect_searched({incr("2", 0, 10), incr("1", 1, 9), get("1", 2, 3)}, true);
  expect_searched({incr("1", 0, 1), incr("1", 2, 3)}, false);
  expect_searched({incr("2", 0, 1), incr("1", 2, 3)}, false);
  expect_searched({set("41", 0, 1), incr("42", 2, 3)}, true);
}

TEST(HistoryOfACounter, AnUnknownIncrementMayFillAGapOnce) {
  expect_searched({incr({}, 0, 1), incr("2", 2, 3)}, true);
  expect_searched({incr({}, 0, 1), incr("1", 2, 3), get("2", 4, 5)}, true);
  expect_searched({incr({}, 0, 1), incr("3", 2, 3)}, false);
  expect_searched({incr("2", 0, 1), incr({}, 2, 3)}, false);
}

TEST(HistoryOfACounter, OfUnknownOnesThatDifferAnyMayBeTheOne) {
  const Operation unknown = set("5", 0, 0, Outcome::unknown);
  expect_searched({unknown, incr({}, 1, 1), get("1", 2, 3)}, true);
  expect_searched({unknown, incr({}, 1, 1), get("6", 2, 3)}, true);
  expect_searched({incr({}, 0, 0), incr({}, 1, 1), get("3", 2, 3)}, false);
}

TEST(HistoryOfACounter, HundredsOfUnknownIncrementsAreNoHardship) {
  History history;
  for (std::int64_t i = 0; i < 300; ++i) history.push_back(incr({}, i, i));
  for (std::int64_t i = 1; i <= 100; ++i)
    history.push_back(incr(std::to_string(4 * i), 1000 + 2 * i, 1001 + 2 * i));
  expect_searched(history, true);
  history.push_back(incr("402", 5000, 5001));
  expect_searched(history, false);
}

TEST(HistoryWithRemovals, WhatARemovalSaysCounts) {
  expect_searched({del("0", 0, 1), set("a", 2, 3), del("1", 4, 5), get({}, 6, 7)}, true);
  expect_searched({set("a", 0, 1), del("0", 2, 3)}, false);
  expect_searched({del("1", 0, 1)}, false);
  expect_searched({set("a", 0, 1), del({}, 2, 3), get("a", 4, 5), get({}, 6, 7)}, true);
  expect_searched({set("a", 0, 1), del({}, 2, 3), get({}, 4, 5), get("a", 6, 7)}, false);
  // A write of unknown outcome that only a removal tells of.
  expect_searched({set("a", 0, 1, Outcome::unknown), del("1", 2, 3)}, true);
}

TEST(HistoryWithRemovals, TheSameValueTwiceIsSearched) {
  const History history{set("a", 0, 1), set("b", 2, 3), set("a", 4, 5), get("a", 6, 7)};
  EXPECT_FALSE(has_unique_writes(history));
  EXPECT_TRUE(check(history).linearizable());
}

TEST(Search, GivesUpAtItsBoundAndSaysSo) {
  History history;
  for (int i = 0; i < 24; ++i) history.push_back(set(std::to_string(i), i, 1000 + i));
  history.push_back(get("nothing like it", 500, 600));
  bool undecided = false;
  EXPECT_FALSE(search(history, undecided, 1000));
  EXPECT_TRUE(undecided);
  Verdict verdict;
  verdict.undecided = {"k"};
  EXPECT_FALSE(verdict.linearizable());
  EXPECT_THAT(verdict.to_string(), HasSubstr("given up on k"));
}

// --- what is there at the end ------------------------------------------------------------------

using AtTheEnd = std::map<std::string, std::optional<std::string>>;

TEST(NothingLost, TheLastWriteIsThere) {
  const History history{set("a", 0, 1), set("b", 2, 3)};
  EXPECT_FALSE(check_nothing_lost(history, AtTheEnd{{"k", "b"}}));
  EXPECT_FALSE(check_nothing_lost(history, AtTheEnd{})) << "a key that was not read";
  EXPECT_FALSE(check_nothing_lost({}, AtTheEnd{{"k", std::nullopt}}));
}

TEST(NothingLost, ALostWriteIsNamed) {
  const History history{set("a", 0, 1), set("b", 2, 3)};
  for (const std::optional<std::string>& left : {std::optional<std::string>("a"), {}}) {
    const auto lost = check_nothing_lost(history, AtTheEnd{{"k", left}});
    ASSERT_TRUE(lost);
    EXPECT_THAT(lost->to_string(), HasSubstr("acknowledged write is lost"));
    EXPECT_THAT(lost->to_string(), HasSubstr("SET k = b"));
  }
  EXPECT_TRUE(check_nothing_lost(history, AtTheEnd{{"k", "nobody's"}}));
}

TEST(NothingLost, OverlappingAndUnknownWritesMayBeLast) {
  const History history{set("a", 0, 5), set("b", 2, 3), set("x", 1, 2, Outcome::unknown)};
  for (const char* left : {"a", "b", "x"})
    EXPECT_FALSE(check_nothing_lost(history, AtTheEnd{{"k", left}})) << left;
  const History unknown{set("x", 1, 2, Outcome::unknown)};
  EXPECT_FALSE(check_nothing_lost(unknown, AtTheEnd{{"k", std::nullopt}}));
  const History refused{set("x", 1, 2, Outcome::failed)};
  EXPECT_TRUE(check_nothing_lost(refused, AtTheEnd{{"k", "x"}}));
}

TEST(NothingLost, CountersHoldEachAcknowledgedIncrement) {
  const History history{incr("1", 0, 1), incr({}, 2, 3), incr("2", 4, 5)};
  for (const char* left : {"2", "3"})
    EXPECT_FALSE(check_nothing_lost(history, AtTheEnd{{"k", left}})) << left;
  for (const char* left : {"1", "4", "x"})
    EXPECT_TRUE(check_nothing_lost(history, AtTheEnd{{"k", left}})) << left;
  EXPECT_TRUE(check_nothing_lost(history, AtTheEnd{{"k", std::nullopt}}));
}

}  // namespace
}  // namespace sluice::kv::test
