// SPDX-License-Identifier: BSD-3-Clause
#include "kv/cluster/view.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

namespace {

using namespace sluice;
using namespace sluice::kv;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const ClusterKeys kKeys("/k/");

std::string registration(const std::string& node, const std::string& instance = "i") {
  return encode(Registration{{node, node + ":1", node + ":2"}, instance});
}
etcd::WatchEvent put(const std::string& key, const std::string& value, std::int64_t revision,
                     std::int64_t created = 0) {
  return {.deleted = false, .kv = {key, value, created > 0 ? created : revision, revision, 1, 7}};
}
etcd::WatchEvent gone(const std::string& key, std::int64_t revision) {
  return {.deleted = true, .kv = {.key = key, .mod_revision = revision}};
}

class ViewTest : public testing::Test {
 protected:
  std::vector<std::string> apply(const etcd::WatchEvent& change) {
    std::vector<MembershipEvent> events;
    view_.apply(change, events);
    return texts(events);
  }
  std::vector<std::string> replace(std::int64_t revision, std::vector<etcd::WatchEvent> keys) {
    etcd::RangeAnswer answer;
    answer.header.revision = revision;
    for (auto& key : keys) answer.kvs.push_back(key.kv);
    std::vector<MembershipEvent> events;
    view_.replace(answer, events);
    return texts(events);
  }
  static std::vector<std::string> texts(const std::vector<MembershipEvent>& events) {
    std::vector<std::string> texts;
    for (const auto& event : events) texts.push_back(to_string(event));
    return texts;
  }
  View view_{kKeys};
};

TEST_F(ViewTest, EachChangeIsOneEvent) {
  EXPECT_THAT(apply(put(kKeys.in_sync, R"({"epoch":0,"members":["b","a"]})", 2)),
              ElementsAre("in sync: a, b (epoch 0, revision 2)"));
  EXPECT_THAT(apply(put(kKeys.member("a"), registration("a"), 3)),
              ElementsAre("member a (clients a:1, replication a:2) is there"));
  EXPECT_THAT(apply(put(kKeys.leader, registration("a"), 4)),
              ElementsAre("the leader is a (clients a:1, replication a:2), epoch 4"));
  EXPECT_EQ(view_.leader()->lease, 7);
  EXPECT_EQ(view_.leader()->leader.epoch, 4U);
  EXPECT_THAT(apply(gone(kKeys.leader, 5)), ElementsAre("there is no leader"));
  EXPECT_FALSE(view_.leader_key_exists());
  EXPECT_THAT(apply(gone(kKeys.member("a"), 6)), ElementsAre("member a is gone"));
  EXPECT_EQ(view_.revision(), 6);
}

TEST_F(ViewTest, TheEpochIsTheRevisionThatCreatedTheKeyNotTheLastWrite) {
  EXPECT_THAT(apply(put(kKeys.leader, registration("a"), 9, 4)), ElementsAre(HasSubstr("epoch 4")));
}

TEST_F(ViewTest, WhatIsKnownDoesNotComeAgain) {
  EXPECT_THAT(replace(10, {put(kKeys.leader, registration("a"), 4),
                           put(kKeys.member("a"), registration("a"), 3)}),
              ElementsAre(HasSubstr("member a"), HasSubstr("the leader is a")));
  EXPECT_THAT(apply(put(kKeys.member("a"), registration("a"), 3)), IsEmpty());
  EXPECT_THAT(apply(gone(kKeys.leader, 2)), IsEmpty()) << "an old deletion";
  EXPECT_TRUE(view_.leader());
  EXPECT_THAT(apply(put(kKeys.leader, registration("a"), 10, 4)), IsEmpty());
  EXPECT_THAT(replace(9, {}), IsEmpty()) << "older than what is known";
  EXPECT_EQ(view_.revision(), 10);
  // The same member under a new lease is no news.
  EXPECT_THAT(apply(put(kKeys.member("a"), registration("a", "j"), 11)), IsEmpty());
  EXPECT_EQ(view_.members().at("a").instance, "j");
}

TEST_F(ViewTest, AllChangesOfOneRevisionAreTaken) {
  EXPECT_THAT(apply(gone(kKeys.leader, 5)), IsEmpty());
  EXPECT_THAT(apply(put(kKeys.in_sync, R"({"epoch":0,"members":["a"]})", 5)),
              ElementsAre(HasSubstr("in sync: a")));
}

TEST_F(ViewTest, AfterAGapTheDifferenceIsTold) {
  replace(5, {put(kKeys.leader, registration("a"), 4), put(kKeys.member("a"), registration("a"), 3),
              put(kKeys.member("b"), registration("b"), 5)});
  EXPECT_THAT(replace(20, {put(kKeys.leader, registration("c"), 18),
                           put(kKeys.member("c"), registration("c"), 17),
                           put(kKeys.member("b"), registration("b"), 5)}),
              ElementsAre("member a is gone", HasSubstr("member c"),
                          HasSubstr("the leader is c (clients c:1, replication c:2), epoch 18")));
}

TEST_F(ViewTest, ALeaderKeyThatIsNotUnderstoodStillBarsTheWay) {
  EXPECT_THAT(apply(put(kKeys.leader, "x", 4)),
              ElementsAre(HasSubstr("under '/k/leader' is not understood: it is no JSON object")));
  EXPECT_TRUE(view_.leader_key_exists());
  EXPECT_FALSE(view_.leader());
}

TEST_F(ViewTest, AnInSyncSetThatIsNotUnderstoodIsNone) {
  apply(put(kKeys.in_sync, R"({"epoch":0,"members":["a"]})", 2));
  std::int64_t revision = 2;
  for (const char* value :
       {"", "7", "{}", R"({"epoch":1})", R"({"members":["a"]})", R"({"epoch":1,"members":[]})",
        R"({"epoch":-1,"members":["a"]})", R"({"epoch":"1","members":["a"]})",
        R"({"epoch":1,"members":["a","a"]})", R"({"epoch":1,"members":["a/b"]})",
        R"({"epoch":1,"members":[""]})", R"({"epoch":1,"members":[7]})",
        R"({"epoch":18446744073709551615,"members":["a"]})"}) {
    EXPECT_THAT(apply(put(kKeys.in_sync, value, ++revision)),
                ElementsAre(HasSubstr("is not understood")))
        << value;
    EXPECT_FALSE(view_.in_sync());
  }
}

TEST_F(ViewTest, AMemberThatIsNotUnderstoodIsNone) {
  apply(put(kKeys.member("a"), registration("a"), 2));
  EXPECT_THAT(apply(put(kKeys.member("a"), registration("b"), 3)),
              ElementsAre("member a is gone", HasSubstr("it names another node")));
  EXPECT_TRUE(view_.members().empty());
}

TEST_F(ViewTest, ValuesComeBackAsTheyWere) {
  const InSyncSet set{9223372036854775807U, {"a", "b-1", "c.d_e"}, 12};
  const auto parsed = parse_in_sync({.value = encode(set), .mod_revision = 12});
  ASSERT_TRUE(parsed);
  EXPECT_EQ(*parsed, set);
  const auto identity = parse_identity(encode(ClusterIdentity{"x", 4294967295U}));
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->protocol, 4294967295U);
  EXPECT_FALSE(parse_identity(R"({"cluster_id":"x","protocol":4294967296})"));
  EXPECT_FALSE(parse_identity(R"({"cluster_id":7,"protocol":1})"));
}

/// However the same history reaches a view, change by change or with gaps, it ends the same, and
/// the last event of each kind tells what is.
TEST_F(ViewTest, AnyMixOfReadingAndWatchingEndsTheSame) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<etcd::WatchEvent> history;
    std::map<std::string, etcd::WatchEvent> present;
    const std::string keys[] = {kKeys.leader, kKeys.member("a"), kKeys.member("b"), kKeys.in_sync};
    View reader{kKeys}, watcher{kKeys};
    std::vector<MembershipEvent> read, watched;
    for (std::int64_t revision = 2; revision < 40; ++revision) {
      const std::string& key = keys[random() % 4];
      etcd::WatchEvent change;
      if (present.contains(key) && random() % 2 == 0 && key != kKeys.in_sync) {
        change = gone(key, revision);
        present.erase(key);
      } else {
        const bool there = present.contains(key);
        const auto created = there ? present[key].kv.create_revision : revision;
        const std::string value = key == kKeys.in_sync       ? R"({"epoch":1,"members":["a"]})"
                                  : key == kKeys.member("b") ? registration("b")
                                                             : registration("a");
        change = put(key, value, revision, created);
        present[key] = change;
      }
      history.push_back(change);
      watcher.apply(change, watched);
      if (random() % 5 == 0) {
        etcd::RangeAnswer all;
        all.header.revision = revision;
        for (const auto& [unused, event] : present) all.kvs.push_back(event.kv);
        reader.replace(all, read);
        // And late, what the watch had under way.
        for (std::size_t i = history.size() - random() % history.size(); i < history.size(); ++i)
          reader.apply(history[i], read);
      }
    }
    for (const auto& change : history) reader.apply(change, read);
    ASSERT_EQ(reader.revision(), watcher.revision());
    ASSERT_EQ(reader.leader().has_value(), watcher.leader().has_value()) << seed;
    if (reader.leader()) {
      ASSERT_EQ(reader.leader()->leader, watcher.leader()->leader);
    }
    ASSERT_EQ(reader.in_sync(), watcher.in_sync());
    ASSERT_EQ(reader.members().size(), watcher.members().size());
    std::optional<Leader> told;
    for (const auto& event : read)
      if (const auto* const changed = std::get_if<event::LeaderChanged>(&event)) {
        ASSERT_NE(told, changed->leader) << "told twice, seed " << seed;
        told = changed->leader;
      }
    ASSERT_EQ(told.has_value(), reader.leader().has_value());
  }
}

}  // namespace
