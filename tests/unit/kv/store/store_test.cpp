// SPDX-License-Identifier: BSD-3-Clause
#include "kv/store/store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "support.hpp"

namespace sluice::kv::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Outcome integer(std::int64_t value) {
  return {Outcome::Kind::integer, value};
}

TEST(Store, ANewOneIsEmpty) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  EXPECT_EQ(store->applied_index(), 0u);
  EXPECT_EQ(store->durable_applied_index().value(), 0u);
  EXPECT_EQ(value_of(*store, "key"), "(none)");
  EXPECT_TRUE(store->health().ok());
  EXPECT_EQ(store->cluster_id(), kCluster);
}

TEST(Store, KeysAndValuesMayBeAnyBytes) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  const std::string odd("\0identity\xff\r\n", 12);
  const std::vector<Write> writes{set("", "of the empty key"), set(odd, odd), set("empty", "")};
  apply_to(*store, writes);
  EXPECT_EQ(value_of(*store, ""), "of the empty key");
  EXPECT_EQ(value_of(*store, odd), odd);
  EXPECT_EQ(value_of(*store, "empty"), "");
  // The store's own keys are not to be seen.
  EXPECT_EQ(value_of(*store, std::string("\0position", 9)), "(none)");
  EXPECT_EQ(value_of(*store, "position"), "(none)");
}

TEST(Store, CommandsOfOneBatchSeeTheEarlierOnes) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  apply_to(*store, set("there", "5"));
  const std::vector<Write> writes{
      incr("n"),       set("n", "10"),    incr("n", -3),
      del({"n", "n"}), incr("n", 2),      del({"there", "n", "nowhere"}),
      del({"there"}),  set("there", "x"), incr("there"),
      incr("m", 9),    set("m", "text"),  incr("m"),
      del({"m"})};
  const Outcome ok, no_number{Outcome::Kind::not_an_integer, 0};
  EXPECT_THAT(apply_to(*store, writes),
              ElementsAre(integer(1), ok, integer(7), integer(1), integer(2), integer(2),
                          integer(0), ok, no_number, integer(9), ok, no_number, integer(1)));
  EXPECT_EQ(value_of(*store, "n"), "(none)");
  EXPECT_EQ(value_of(*store, "there"), "x");
  EXPECT_EQ(value_of(*store, "m"), "(none)");
  EXPECT_EQ(store->applied_index(), 14u);
}

TEST(Store, ExistsCountsAKeyAsOftenAsItIsNamed) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  apply_to(*store, set("a", "1"));
  const std::vector<std::string_view> keys{"a", "b", "a"};
  EXPECT_EQ(store->exists(keys).value(), 2u);
  EXPECT_THAT(store->mget(keys).value(), ElementsAre(std::optional<std::string>("1"), std::nullopt,
                                                     std::optional<std::string>("1")));
  EXPECT_EQ(store->exists({}).value(), 0u);
}

TEST(Store, LargeValuesComeThrough) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  const std::string large(3 << 20, 'x');
  apply_to(*store, set("large", large));
  EXPECT_EQ(value_of(*store, "large"), large);
  ASSERT_TRUE(store->flush(true).ok());
  EXPECT_EQ(value_of(*store, "large"), large);
}

TEST(Store, WhatDoesNotFollowIsRefusedAndChangesNothing) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  apply_to(*store, std::vector<Write>{set("a", "1"), set("b", "1")});
  const auto payload = set("a", "2").encode();
  const auto refused = [&](std::vector<Store::Entry> entries) {
    const auto result = store->apply(entries);
    EXPECT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), StatusCode::internal);
    EXPECT_THAT(result.status().message(), HasSubstr("does not follow"));
    EXPECT_EQ(store->applied_index(), 2u);
    EXPECT_EQ(value_of(*store, "a"), "1");
  };
  refused({{1, 2, payload}});                   // again
  refused({{1, 4, payload}});                   // a gap
  refused({{1, 3, payload}, {1, 5, payload}});  // a gap within
  refused({{1, 3, payload}, {1, 3, payload}});  // twice
  refused({{0, 3, payload}});                   // epochs begin with 1
  const Store::Entry raised[] = {{5, 3, payload}};
  ASSERT_TRUE(store->apply(raised).ok());
  const Store::Entry fallen[] = {{4, 4, payload}};
  EXPECT_FALSE(store->apply(fallen).ok());
  EXPECT_EQ(store->applied(), (Store::Position{5, 3}));
}

TEST(Store, AMalformedEntryLeavesTheWholeBatchOut) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  const auto good = set("a", "1").encode();
  auto bad = good, newer = good;
  bad.resize(3);
  newer[0] = std::byte{9};
  const Store::Entry entries[] = {{1, 1, good}, {1, 2, bad}};
  const auto result = store->apply(entries);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(result.status().message(), HasSubstr("entry 2 of epoch 1: a malformed command"));
  EXPECT_EQ(store->applied_index(), 0u);
  EXPECT_EQ(value_of(*store, "a"), "(none)");
  const Store::Entry later[] = {{1, 1, newer}};
  EXPECT_EQ(store->apply(later).status().code(), StatusCode::not_supported);
}

TEST(Store, WhatIsAppliedComesBackAfterAClose) {
  TemporaryFolder folder;
  {
    const auto store = open(folder / "data");
    for (int i = 0; i < 10; ++i) apply_to(*store, incr("n"));
    EXPECT_EQ(store->durable_applied_index().value(), 0u) << "nothing was flushed yet";
  }
  const auto store = open(folder / "data");
  EXPECT_EQ(store->applied(), (Store::Position{1, 10}));
  EXPECT_EQ(store->durable_applied_index().value(), 10u) << "a close flushes";
  EXPECT_EQ(value_of(*store, "n"), "10");
}

TEST(Store, OnlyWhatIsInFilesIsDurable) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  apply_to(*store, set("a", "1"));
  apply_to(*store, set("a", "2"));
  EXPECT_EQ(store->durable_applied_index().value(), 0u);
  ASSERT_TRUE(store->flush(true).ok());
  EXPECT_EQ(store->durable().value(), (Store::Position{1, 2}));
  apply_to(*store, set("a", "3"));
  EXPECT_EQ(store->durable_applied_index().value(), 2u);
  EXPECT_EQ(store->applied_index(), 3u);
}

TEST(Store, AFullMemtableMakesTheLogTrimmableByItself) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  std::uint64_t durable = 0;
  constexpr int kWritesMax = 100'000;
  for (int i = 0; i < kWritesMax && durable == 0; ++i) {
    apply_to(*store, set("key" + std::to_string(i % 40), std::string(1000, 'x')));
    durable = store->durable_applied_index().value();
  }
  EXPECT_GT(durable, 0u);
  EXPECT_LE(durable, store->applied_index());
  EXPECT_GT(store->numbers().file_bytes, 0u);
}

RC_GTEST_PROP(StoreModel, DoesWhatAMapDoes, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  const auto batches = *rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 40));
  TemporaryFolder folder;
  auto store = open(folder / "data");
  Model model;
  std::mt19937_64 random(seed);
  for (const int size : batches) {
    std::vector<Write> writes;
    std::vector<Outcome> expected;
    for (int i = 0; i < size; ++i) {
      writes.push_back(random_write(random, 8000));
      expected.push_back(model.apply(writes.back()));
    }
    RC_ASSERT(apply_to(*store, writes) == expected);
    RC_ASSERT(difference(*store, model) == "");
    if (random() % 16 == 0) {
      RC_ASSERT(store->flush(random() % 2 == 0).ok());
    }
    if (random() % 32 == 0) {
      const std::uint64_t applied = store->applied_index();
      store.reset();
      store = open(folder / "data");
      RC_ASSERT(store->applied_index() == applied);
      RC_ASSERT(difference(*store, model) == "");
    }
  }
}

}  // namespace
}  // namespace sluice::kv::test
