// SPDX-License-Identifier: BSD-3-Clause
// EtcdClient against real etcd processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kv/cluster/etcd_client.hpp"
#include "sluice_test/etcd_server.hpp"

namespace {

using namespace sluice;
using namespace sluice::kv;
using namespace std::chrono_literals;
using test::EtcdServers;
using test::kPatience;
using testing::HasSubstr;
using testing::Not;
using Clock = EtcdClient::Clock;

Clock::time_point soon() {
  return Clock::now() + kPatience;
}

std::unique_ptr<EtcdClient> client_of(std::vector<std::string> endpoints,
                                      std::chrono::milliseconds attempt = 5s) {
  auto client = EtcdClient::create({.endpoints = std::move(endpoints), .attempt_limit = attempt});
  EXPECT_TRUE(client) << client.status().to_string();
  return std::move(*client);
}

/// All that a watch brings until `count` events are there, or something else is.
WatchNews events_of(EtcdClient& client, std::size_t count) {
  WatchNews all;
  const auto deadline = soon();
  while (all.events.size() < count && all.compacted_to == 0 && Clock::now() < deadline) {
    auto news = client.watch_news(deadline);
    for (auto& event : news.events) all.events.push_back(std::move(event));
    all.compacted_to = news.compacted_to;
    if (!news.cut.ok()) all.cut = news.cut;
  }
  return all;
}

class OneEtcd : public testing::Test {
 protected:
  EtcdServers etcd_;
  std::unique_ptr<EtcdClient> client_ = client_of(etcd_.endpoints());
  std::int64_t put(const std::string& key, const std::string& value) {
    const auto answer = client_->put({key, value}, soon());
    EXPECT_TRUE(answer) << answer.status().to_string();
    return answer ? answer->header.revision : 0;
  }
};

TEST_F(OneEtcd, KeysAndValuesAreBytes) {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  const auto revision = put(all, all);
  EXPECT_EQ(put(all, all + "x"), revision + 1);
  const auto answer = client_->range({.key = all}, soon());
  ASSERT_TRUE(answer) << answer.status().to_string();
  ASSERT_EQ(answer->kvs.size(), 1U);
  EXPECT_EQ(answer->kvs[0].key, all);
  EXPECT_EQ(answer->kvs[0].value, all + "x");
  EXPECT_EQ(answer->kvs[0].create_revision, revision);
  EXPECT_EQ(answer->kvs[0].mod_revision, revision + 1);
  EXPECT_EQ(answer->kvs[0].version, 2);
  EXPECT_EQ(answer->kvs[0].lease, 0);
}

TEST_F(OneEtcd, APrefixIsARangeAndALimitSaysThatThereIsMore) {
  for (const char* key : {"/a/1", "/a/2", "/a/3", "/b/1"}) put(key, key);
  const auto all = client_->range({.key = "/a/", .range_end = etcd::prefix_end("/a/")}, soon());
  ASSERT_TRUE(all);
  EXPECT_EQ(all->kvs.size(), 3U);
  EXPECT_FALSE(all->more);
  const auto some =
      client_->range({.key = "/a/", .range_end = etcd::prefix_end("/a/"), .limit = 2}, soon());
  ASSERT_TRUE(some);
  EXPECT_EQ(some->kvs.size(), 2U);
  EXPECT_EQ(some->count, 3);
  EXPECT_TRUE(some->more);
  const auto removed = client_->remove({"/a/", etcd::prefix_end("/a/")}, soon());
  ASSERT_TRUE(removed);
  EXPECT_EQ(removed->deleted, 3);
}

TEST_F(OneEtcd, ATransactionComparesEachTarget) {
  const auto revision = put("k", "v");
  put("k", "w");
  using C = etcd::Compare;
  const auto holds = [&](C compare) {
    const auto answer = client_->txn(
        {.compare = {compare}, .success = {}, .failure = {etcd::RangeRequest{"k"}}}, soon());
    EXPECT_TRUE(answer) << answer.status().to_string();
    if (!answer->succeeded) {
      const auto& range = std::get<etcd::RangeAnswer>(answer->responses.at(0));
      EXPECT_EQ(range.kvs.at(0).value, "w");
    }
    return answer->succeeded;
  };
  EXPECT_TRUE(holds(C::absent("other")));
  EXPECT_FALSE(holds(C::absent("k")));
  EXPECT_TRUE(holds(C::created_at("k", revision)));
  EXPECT_FALSE(holds(C::created_at("k", revision + 1)));
  EXPECT_TRUE(holds(C::modified_at("k", revision + 1)));
  EXPECT_FALSE(holds(C::modified_at("k", revision)));
  EXPECT_TRUE(holds({"k", C::Target::version, C::Relation::equal, 2, {}}));
  EXPECT_FALSE(holds({"k", C::Target::version, C::Relation::equal, 1, {}}));
  EXPECT_TRUE(holds({"k", C::Target::version, C::Relation::greater, 1, {}}));
  EXPECT_FALSE(holds({"k", C::Target::version, C::Relation::less, 2, {}}));
  EXPECT_TRUE(holds({"k", C::Target::value, C::Relation::equal, 0, "w"}));
  EXPECT_FALSE(holds({"k", C::Target::value, C::Relation::equal, 0, "v"}));
  EXPECT_TRUE(holds({"k", C::Target::value, C::Relation::not_equal, 0, "v"}));
}

TEST_F(OneEtcd, ATransactionAnswersEachOperationInOrder) {
  put("old", "1");
  const auto answer =
      client_->txn({.compare = {etcd::Compare::absent("new")},
                    .success = {etcd::PutRequest{"new", "2"}, etcd::RangeRequest{"old"},
                                etcd::DeleteRequest{"old", ""}},
                    .failure = {}},
                   soon());
  ASSERT_TRUE(answer) << answer.status().to_string();
  ASSERT_TRUE(answer->succeeded);
  ASSERT_EQ(answer->responses.size(), 3U);
  EXPECT_TRUE(std::holds_alternative<etcd::PutAnswer>(answer->responses[0]));
  EXPECT_EQ(std::get<etcd::RangeAnswer>(answer->responses[1]).kvs.at(0).value, "1");
  EXPECT_EQ(std::get<etcd::DeleteAnswer>(answer->responses[2]).deleted, 1);
}

TEST_F(OneEtcd, ALeaseTakesItsKeysWithIt) {
  const auto lease = client_->grant(60, soon());
  ASSERT_TRUE(lease) << lease.status().to_string();
  EXPECT_EQ(lease->ttl_s, 60);
  ASSERT_TRUE(client_->put({"k", "v", lease->id}, soon()));
  EXPECT_EQ(client_->range({.key = "k"}, soon())->kvs.at(0).lease, lease->id);
  const auto kept = client_->keep_alive(lease->id, soon());
  ASSERT_TRUE(kept) << kept.status().to_string();
  EXPECT_EQ(kept->ttl_s, 60);
  EXPECT_NE(kept->header.raft_term, 0U);
  EXPECT_TRUE(client_->revoke(lease->id, soon()).ok());
  EXPECT_TRUE(client_->range({.key = "k"}, soon())->kvs.empty());
}

TEST_F(OneEtcd, ALeaseThatIsNoMoreIsToldApartFromAFailure) {
  const auto kept = client_->keep_alive(1234, soon());
  ASSERT_TRUE(kept) << kept.status().to_string();
  EXPECT_EQ(kept->ttl_s, 0);
  EXPECT_TRUE(client_->revoke(1234, soon()).ok());
  const auto put = client_->put({"k", "v", 1234}, soon());
  EXPECT_EQ(put.status().code(), StatusCode::rejected);
  EXPECT_THAT(put.status().message(), HasSubstr("lease not found"));
}

TEST_F(OneEtcd, AWatchBringsTheHistoryAndThenTheNews) {
  const auto first = put("/w/a", "1");
  put("/other", "x");
  put("/w/b", "2");
  client_->watch("/w/", etcd::prefix_end("/w/"), first);
  auto news = events_of(*client_, 2);
  ASSERT_EQ(news.events.size(), 2U);
  EXPECT_EQ(news.events[0].kv.value, "1");
  EXPECT_EQ(news.events[1].kv.key, "/w/b");
  ASSERT_TRUE(client_->remove({"/w/a", ""}, soon()));
  put("/w/a", "3");
  news = events_of(*client_, 2);
  ASSERT_EQ(news.events.size(), 2U);
  EXPECT_TRUE(news.events[0].deleted);
  EXPECT_EQ(news.events[0].kv.key, "/w/a");
  EXPECT_FALSE(news.events[1].deleted);
  EXPECT_EQ(news.events[1].kv.version, 1);
  EXPECT_TRUE(news.cut.ok()) << news.cut.to_string();
}

TEST_F(OneEtcd, AWatchIsServedWhileRequestsAreMade) {
  client_->watch("/w/", etcd::prefix_end("/w/"), 1);
  constexpr int kPuts = 200;
  for (int i = 0; i < kPuts; ++i) put("/w/k", std::to_string(i));
  const auto news = events_of(*client_, kPuts);
  ASSERT_EQ(news.events.size(), static_cast<std::size_t>(kPuts));
  for (int i = 0; i < kPuts; ++i) EXPECT_EQ(news.events[i].kv.value, std::to_string(i));
}

TEST_F(OneEtcd, AWatchThatAsksForCompactedHistorySaysSo) {
  const auto first = put("k", "1");
  put("k", "2");
  const auto last = put("k", "3");
  ASSERT_TRUE(client_->compact(last, soon()).ok());
  client_->watch("k", "", first);
  const auto news = events_of(*client_, 1);
  EXPECT_TRUE(news.events.empty());
  EXPECT_EQ(news.compacted_to, last);
  // It has ended: what it is asked then is not answered by a hang.
  EXPECT_TRUE(client_->watch_news(Clock::now() + 1ms).events.empty());
  client_->watch("k", "", last);
  EXPECT_EQ(events_of(*client_, 1).events.at(0).kv.value, "3");
}

TEST_F(OneEtcd, AWatchIsResumedWhereItWasCut) {
  const auto first = put("/w/0", "before");
  client_->watch("/w/", etcd::prefix_end("/w/"), first);
  ASSERT_EQ(events_of(*client_, 1).events.size(), 1U);
  put("/w/1", "seen by the first stream");
  ASSERT_EQ(events_of(*client_, 1).events.size(), 1U);
  etcd_[0].kill();
  etcd_.restart(0);
  auto writer = client_of(etcd_.endpoints());
  for (int i = 2; i < 5; ++i)
    ASSERT_TRUE(writer->put({"/w/" + std::to_string(i), "after"}, soon()));
  const auto news = events_of(*client_, 3);
  EXPECT_FALSE(news.cut.ok());
  ASSERT_EQ(news.events.size(), 3U);
  for (int i = 2; i < 5; ++i) EXPECT_EQ(news.events[i - 2].kv.key, "/w/" + std::to_string(i));
}

TEST_F(OneEtcd, AWaitIsEndedByAWake) {
  put("/w/1", "x");
  client_->watch("/w/", etcd::prefix_end("/w/"), 1);
  ASSERT_EQ(events_of(*client_, 1).events.size(), 1U);  // from here on it is silent
  std::thread waker([&] { client_->wake(); });
  const auto begun = Clock::now();
  (void)client_->watch_news(soon());
  EXPECT_LT(Clock::now() - begun, kPatience);
  waker.join();
  // One that came while a request was under way is not lost.
  client_->wake();
  ASSERT_TRUE(client_->range({.key = "k"}, soon()));
  (void)client_->watch_news(soon());
  EXPECT_LT(Clock::now() - begun, kPatience);
}

TEST_F(OneEtcd, AFrozenEtcdIsATimeOutWithItsNameAndWhatWasTried) {
  client_ = client_of(etcd_.endpoints(), 100ms);
  etcd_[0].freeze();
  const auto read = client_->range({.key = "some key"}, soon());
  EXPECT_EQ(read.status().code(), StatusCode::timed_out);
  EXPECT_THAT(read.status().message(), HasSubstr(etcd_.endpoints()[0]));
  EXPECT_THAT(read.status().message(), HasSubstr("reading 'some key'"));
  EXPECT_THAT(read.status().message(), Not(HasSubstr("\n")));
  // What changes something may have happened, and it says so.
  const auto written = client_->put({"k", "v"}, soon());
  EXPECT_EQ(written.status().code(), StatusCode::timed_out);
  EXPECT_THAT(written.status().message(), HasSubstr("it may have been carried out"));
  etcd_[0].go_on();
  client_ = client_of(etcd_.endpoints());
  EXPECT_TRUE(client_->range({.key = "k"}, soon()));
}

TEST(Endpoints, AnEndpointWhereNobodyListensIsPassedOver) {
  EtcdServers etcd;
  const test::ReservedPort nobody;
  auto client = client_of({nobody.url(), etcd.endpoints()[0]});
  // Nothing was sent to the first one, so the second one may be asked for anything.
  ASSERT_TRUE(client->put({"k", "v"}, soon()));
  EXPECT_EQ(client->endpoint(), etcd.endpoints()[0]);
  client->watch("k", "", 1);
  EXPECT_EQ(events_of(*client, 1).events.size(), 1U);
}

TEST(Endpoints, AllOfThemWrongIsOneClearLine) {
  const test::ReservedPort one, two;
  auto client = client_of({one.url(), two.url()});
  const auto answer = client->range({.key = "k"}, soon());
  EXPECT_EQ(answer.status().code(), StatusCode::unreachable);
  EXPECT_EQ(answer.status().os_error(), ECONNREFUSED);
  EXPECT_THAT(answer.status().message(), HasSubstr(one.url() + ": Failed to connect"));
  EXPECT_THAT(answer.status().message(), HasSubstr(two.url() + ": Failed to connect"));
  EXPECT_THAT(answer.status().message(), Not(HasSubstr("\n")));
}

TEST(Endpoints, AWriteIsNotRepeatedElsewhereWhenItMayHaveBeenDone) {
  EtcdServers etcd(3);
  ASSERT_TRUE(client_of(etcd.endpoints())->put({"k", "1"}, soon()));
  etcd[0].freeze();
  auto client = client_of(etcd.endpoints(), 500ms);
  const auto written = client->put({"k", "2"}, soon());
  EXPECT_FALSE(written);
  EXPECT_THAT(written.status().message(), HasSubstr("it may have been carried out"));
  EXPECT_THAT(written.status().message(), Not(HasSubstr(etcd.endpoints()[1])));
  EXPECT_NE(client->endpoint(), etcd.endpoints()[0]) << "the next request goes elsewhere";
  etcd[0].go_on();
}

TEST(ThreeEtcds, TheClientAndItsWatchGoOnWithoutOneOfThem) {
  EtcdServers etcd(3);
  auto client = client_of(etcd.endpoints(), 1s);
  client->watch("/w/", etcd::prefix_end("/w/"), 1);
  auto writer = client_of({etcd.endpoints()[1], etcd.endpoints()[2]}, 5s);
  ASSERT_TRUE(writer->put({"/w/1", "x"}, soon()));
  ASSERT_EQ(events_of(*client, 1).events.size(), 1U);
  EXPECT_EQ(client->endpoint(), etcd.endpoints()[0]);
  // Frozen, not killed: its connections stay open and say nothing, the watch's among them. A read
  // finds out, and the watch follows it. (An election may be needed first.)
  etcd[0].freeze();
  const auto deadline = soon();
  Result<etcd::RangeAnswer> read = client->range({.key = "/w/1"}, deadline);
  while (!read && Clock::now() < deadline) read = client->range({.key = "/w/1"}, deadline);
  ASSERT_TRUE(read) << read.status().to_string();
  EXPECT_NE(client->endpoint(), etcd.endpoints()[0]);
  ASSERT_TRUE(writer->put({"/w/2", "y"}, soon()));
  const auto news = events_of(*client, 1);
  ASSERT_EQ(news.events.size(), 1U);
  EXPECT_EQ(news.events[0].kv.key, "/w/2");
  etcd[0].go_on();
}

TEST(ThreeEtcds, WithoutAQuorumItSaysSoAndTheWatchIsEndedRatherThanSilent) {
  EtcdServers etcd(3);
  auto client = client_of({etcd.endpoints()[0]}, 1s);
  client->watch("/w/", etcd::prefix_end("/w/"), 1);
  ASSERT_TRUE(client->put({"/w/1", "x"}, soon()));
  ASSERT_EQ(events_of(*client, 1).events.size(), 1U);
  etcd[1].kill();
  etcd[2].kill();
  const auto deadline = soon();
  WatchNews news;
  while (news.cut.ok() && Clock::now() < deadline) news = client->watch_news(deadline);
  EXPECT_FALSE(news.cut.ok()) << "the watch went silent";
  const auto read = client->range({.key = "/w/1"}, soon());
  EXPECT_FALSE(read);
  etcd.start(1);
  etcd.start(2);
  etcd.wait_until_ready(1);
  const auto after = client->put({"/w/2", "y"}, soon());
  ASSERT_TRUE(after) << after.status().to_string();
  EXPECT_EQ(events_of(*client, 1).events.at(0).kv.key, "/w/2");
}

}  // namespace
