// SPDX-License-Identifier: BSD-3-Clause
// EtcdMembership in this process, against real etcd processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <future>
#include <string>

#include "kv/cluster/etcd_membership.hpp"
#include "recorder.hpp"
#include "relay.hpp"
#include "sluice_test/etcd_server.hpp"

namespace {

using namespace sluice;
using namespace sluice::kv;
using namespace std::chrono_literals;
using kv::test::Recorder;
using kv::test::Relay;
using sluice::test::EtcdServers;
using sluice::test::kPatience;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Clock = EtcdClient::Clock;

constexpr std::uint32_t kLeaseSeconds = 1;
constexpr auto kLease = std::chrono::seconds(kLeaseSeconds);

/// One node in this process.
struct Node {
  Recorder recorder;
  std::unique_ptr<EtcdMembership> membership;
};

class Cluster : public testing::Test {
 protected:
  EtcdMembershipConfig config(const std::string& node) const {
    return {.cluster_id = "test",
            .self = {node, node + ":1", node + ":2"},
            .endpoints = etcd_.endpoints(),
            .lease_s = kLeaseSeconds,
            .initial_members = {"c", "a", "b"}};
  }
  Node& start(EtcdMembershipConfig with) {
    Node& node = nodes_.emplace_back();
    auto membership = EtcdMembership::start(std::move(with), node.recorder.events());
    EXPECT_TRUE(membership) << membership.status().to_string();
    node.membership = std::move(*membership);
    return node;
  }
  Node& start(const std::string& node) { return start(config(node)); }
  /// Waits until it leads; the epoch.
  static std::uint64_t leads(Node& node, std::size_t from = 0) {
    const auto gained = node.recorder.wait_for<event::RoleGained>(
        [](const event::RoleGained&) { return true; }, from);
    EXPECT_TRUE(gained) << node.recorder.text();
    return gained ? gained->epoch : 0;
  }
  std::unique_ptr<EtcdClient> client() const {
    return std::move(*EtcdClient::create({.endpoints = etcd_.endpoints(), .attempt_limit = 5s}));
  }
  static Clock::time_point soon() { return Clock::now() + kPatience; }
  std::optional<etcd::KeyValue> key(const std::string& name) const {
    const auto answer = client()->range({.key = name}, soon());
    EXPECT_TRUE(answer);
    return answer && !answer->kvs.empty() ? std::optional(answer->kvs[0]) : std::nullopt;
  }

  EtcdServers etcd_;
  std::deque<Node> nodes_;
  const ClusterKeys keys_{"/sluice/kv/"};
};

TEST_F(Cluster, OneOfThreeLeadsAndAllHearOfItOnceAndInOrder) {
  for (const char* node : {"a", "b", "c"}) start(node);
  std::uint64_t epoch = 0;
  for (Node& node : nodes_) {
    const auto leader = node.recorder.wait_for<event::LeaderChanged>(
        [](const auto& e) { return e.leader.has_value(); });
    ASSERT_TRUE(leader) << node.recorder.text();
    if (epoch == 0) epoch = leader->leader->epoch;
    EXPECT_EQ(leader->leader->epoch, epoch);
    EXPECT_EQ(leader->leader->who.client, leader->leader->who.node + ":1");
    EXPECT_EQ(leader->leader->who.replication, leader->leader->who.node + ":2");
    for (const char* other : {"a", "b", "c"})
      EXPECT_TRUE(node.recorder.wait_for<event::MemberJoined>(
          [&](const auto& e) { return e.member.node == other; }));
    const auto in_sync = node.recorder.wait_for<event::InSyncChanged>();
    ASSERT_TRUE(in_sync);
    EXPECT_THAT(in_sync->in_sync.members, ElementsAre("a", "b", "c"));
    EXPECT_EQ(in_sync->in_sync.epoch, 0U);
  }
  // The epoch is the leader key's create_revision.
  EXPECT_EQ(key(keys_.leader)->create_revision, static_cast<std::int64_t>(epoch));
  std::size_t leaders = 0;
  for (Node& node : nodes_) {
    leaders += node.recorder.count_of<event::RoleGained>();
    EXPECT_EQ(node.recorder.count_of<event::MemberJoined>(), 3U) << node.recorder.text();
    EXPECT_EQ(node.recorder.count_of<event::LeaderChanged>(), 1U) << node.recorder.text();
    EXPECT_EQ(node.recorder.count_of<event::InSyncChanged>(), 1U) << node.recorder.text();
    EXPECT_EQ(node.membership->leads(epoch), node.membership->state().leads_epoch == epoch);
    EXPECT_FALSE(node.membership->leads(epoch - 1));
    EXPECT_FALSE(node.membership->leads(epoch + 1));
  }
  EXPECT_EQ(leaders, 1U);
}

TEST_F(Cluster, TheDeadlineMovesOnAndStaysWithinALease) {
  Node& node = start("a");
  const auto epoch = leads(node);
  const auto first = node.membership->leader_until();
  auto last = first;
  const auto deadline = Clock::now() + kPatience;
  // Two leases on: kept alive in between.
  while (last < first + 2 * kLease && Clock::now() < deadline) {
    const auto until = node.membership->leader_until(epoch);
    ASSERT_NE(until, LeaseClock::time_point::min()) << node.recorder.text();
    ASSERT_LT(until, LeaseClock::now() + kLease) << "later than etcd can be trusted with";
    last = until;
  }
  EXPECT_GE(last, first + 2 * kLease);
  EXPECT_EQ(node.recorder.count_of<event::RoleGained>(), 1U);
}

TEST_F(Cluster, AGracefulStopHandsOverAtOnce) {
  auto with = config("a");
  with.lease_s = 60;  // nobody waits for that to expire
  Node& a = start(with);
  const auto first = leads(a);
  with = config("b");
  with.lease_s = 60;
  Node& b = start(with);
  ASSERT_TRUE(b.recorder.wait_for<event::LeaderChanged>());
  a.membership->stop();
  const auto lost = a.recorder.wait_for<event::RoleLost>();
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->epoch, first);
  EXPECT_EQ(lost->why.code(), StatusCode::cancelled);
  EXPECT_EQ(a.membership->leader_until(), LeaseClock::time_point::min());
  EXPECT_GT(leads(b), first);
  EXPECT_TRUE(
      b.recorder.wait_for<event::MemberLeft>([](const auto& e) { return e.member.node == "a"; }));
  // In order: no leader, then the new one.
  std::vector<std::string> leaders;
  ASSERT_TRUE(b.recorder.wait_for<event::LeaderChanged>(
      [](const auto& e) { return e.leader && e.leader->who.node == "b"; }));
  for (const auto& event : b.recorder.all())
    if (const auto* const changed = std::get_if<event::LeaderChanged>(&event))
      leaders.push_back(changed->leader ? changed->leader->who.node : "none");
  EXPECT_THAT(leaders, ElementsAre("a", "none", "b"));
}

TEST_F(Cluster, AnUnwillingNodeStepsDownAndDoesNotComeBackUntilItIsWilling) {
  Node& a = start("a");
  const auto first = leads(a);
  Node& b = start("b");
  ASSERT_TRUE(
      b.recorder.wait_for<event::MemberJoined>([](const auto& e) { return e.member.node == "b"; }));
  a.membership->set_willing(false);
  const auto second = leads(b);
  EXPECT_GT(second, first);
  EXPECT_FALSE(a.membership->leads(first));
  ASSERT_TRUE(a.recorder.wait_for<event::LeaderChanged>(
      [&](const auto& e) { return e.leader && e.leader->epoch == second; }));
  const auto before = a.recorder.count();
  b.membership->stop();
  // Nobody leads now, though "a" could.
  ASSERT_TRUE(
      a.recorder.wait_for<event::LeaderChanged>([](const auto& e) { return !e.leader; }, before));
  auto observer = client();
  observer->watch(keys_.leader, "", static_cast<std::int64_t>(second) + 1);
  const auto a_lease_on = Clock::now() + kLease;
  while (Clock::now() < a_lease_on)
    for (const auto& event : observer->watch_news(a_lease_on).events)
      EXPECT_TRUE(event.deleted) << "somebody led: " << event.kv.value;
  EXPECT_FALSE(key(keys_.leader));
  const auto from = a.recorder.count();
  a.membership->set_willing(true);
  EXPECT_GT(leads(a, from), second);
}

TEST_F(Cluster, ANodeOutsideTheInSyncSetNeverLeadsEvenAlone) {
  Node& a = start("a");
  const auto first = leads(a);
  Node& b = start("b");
  const auto base = a.membership->state().in_sync->revision;
  const auto changed = a.membership->change_in_sync({first, base, {"a"}});
  ASSERT_TRUE(changed) << changed.status().to_string();
  EXPECT_EQ(changed->epoch, first);
  EXPECT_GT(changed->revision, base);
  ASSERT_TRUE(b.recorder.wait_for<event::InSyncChanged>(
      [&](const auto& e) { return e.in_sync == *changed; }));
  a.membership->stop();
  ASSERT_TRUE(b.recorder.wait_for<event::LeaderChanged>([](const auto& e) { return !e.leader; }));
  // It is asked to campaign over and over, for three leases: by the watch, and by reading all.
  auto observer = client();
  observer->watch(keys_.leader, "", static_cast<std::int64_t>(first) + 1);
  const auto deadline = Clock::now() + 3 * kLease;
  while (Clock::now() < deadline)
    for (const auto& event : observer->watch_news(deadline).events)
      EXPECT_TRUE(event.deleted) << "somebody led: " << event.kv.value;
  EXPECT_EQ(b.recorder.count_of<event::RoleGained>(), 0U);
  // The member that was left comes back, leads, and takes it in again.
  Node& again = start("a");
  const auto second = leads(again);
  const auto grown = again.membership->change_in_sync({second, changed->revision, {"a", "b"}});
  ASSERT_TRUE(grown) << grown.status().to_string();
  again.membership->stop();
  EXPECT_GT(leads(b), second);
}

TEST_F(Cluster, TheCampaignItselfComparesTheSetThatItsNodeSaw) {
  // "b" is held up in the very event after which it campaigns; meanwhile the set changes, and "b"
  // is no longer in it. It does not know that when it goes on: etcd must refuse.
  Node& a = start("a");
  const auto first = leads(a);
  struct HeldUp {
    std::promise<void> reached, released;
    std::atomic<bool> armed{false};
  };
  const auto held_up = std::make_shared<HeldUp>();  // "b" outlives this function
  Node& b = nodes_.emplace_back();
  auto started = EtcdMembership::start(
      config("b"), [note = b.recorder.events(), held_up](const MembershipEvent& event) {
        note(event);
        const auto* const changed = std::get_if<event::LeaderChanged>(&event);
        if (changed == nullptr || changed->leader || !held_up->armed.exchange(false)) return;
        held_up->reached.set_value();
        held_up->released.get_future().wait();
      });
  ASSERT_TRUE(started);
  b.membership = std::move(*started);
  ASSERT_TRUE(
      b.recorder.wait_for<event::MemberJoined>([](const auto& e) { return e.member.node == "b"; }));
  held_up->armed = true;
  a.membership->stop();
  ASSERT_EQ(held_up->reached.get_future().wait_for(kPatience), std::future_status::ready);
  const auto put = client()->put({keys_.in_sync, encode(InSyncSet{first, {"a"}, 0})}, soon());
  held_up->released.set_value();
  ASSERT_TRUE(put);
  ASSERT_TRUE(b.recorder.wait_for<event::InSyncChanged>(
      [&](const auto& e) { return e.in_sync.revision == put->header.revision; }));
  EXPECT_EQ(b.recorder.count_of<event::RoleGained>(), 0U) << b.recorder.text();
  EXPECT_FALSE(key(keys_.leader));
}

TEST_F(Cluster, ALeaderWhoseKeyIsTakenAwayStepsDownAtOnce) {
  auto with = config("a");
  with.lease_s = 60;
  Node& a = start(with);
  const auto first = leads(a);
  ASSERT_TRUE(client()->remove({keys_.leader, ""}, soon()));
  const auto lost = a.recorder.wait_for<event::RoleLost>();
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->epoch, first);
  EXPECT_THAT(lost->why.message(), HasSubstr("no longer this node's"));
  EXPECT_TRUE(
      a.recorder.wait_for<event::RoleGained>([&](const auto& e) { return e.epoch > first; }));
  EXPECT_FALSE(a.membership->leads(first));
}

TEST_F(Cluster, AStaleLeadersChangeOfTheSetIsRefused) {
  Node& a = start("a");
  const auto first = leads(a);
  Node& b = start("b");
  ASSERT_TRUE(
      b.recorder.wait_for<event::MemberJoined>([](const auto& e) { return e.member.node == "b"; }));
  a.membership->set_willing(false);
  const auto second = leads(b);
  const auto base = b.membership->state().in_sync->revision;
  const auto stale = a.membership->change_in_sync({first, base, {"a"}});
  EXPECT_EQ(stale.status().code(), StatusCode::rejected);
  EXPECT_THAT(stale.status().message(), HasSubstr("not epoch " + std::to_string(first)));
  // The present one's is taken, once from each state.
  const auto changed = b.membership->change_in_sync({second, base, {"b", "c"}});
  ASSERT_TRUE(changed) << changed.status().to_string();
  const auto late = b.membership->change_in_sync({second, base, {"b"}});
  EXPECT_EQ(late.status().code(), StatusCode::rejected);
  EXPECT_THAT(late.status().message(), HasSubstr("not at " + std::to_string(base)));
  // Asked again after its answer was lost, it is what it was.
  const auto repeated = b.membership->change_in_sync({second, base, {"b", "c"}});
  ASSERT_TRUE(repeated) << repeated.status().to_string();
  EXPECT_EQ(*repeated, *changed);
  EXPECT_EQ(key(keys_.in_sync)->mod_revision, changed->revision);
}

TEST_F(Cluster, AChangeThatCannotBeRightIsRefusedBeforeItIsSent) {
  Node& a = start("a");
  const auto epoch = leads(a);
  const auto base = a.membership->state().in_sync->revision;
  for (const auto& members : std::vector<std::vector<std::string>>{{}, {"b"}, {"a", "no id"}}) {
    const auto changed = a.membership->change_in_sync({epoch, base, members});
    EXPECT_EQ(changed.status().code(), StatusCode::invalid_argument);
  }
  EXPECT_EQ(key(keys_.in_sync)->mod_revision, base);
  a.membership->stop();
  const auto after = a.membership->change_in_sync({epoch, base, {"a"}});
  EXPECT_EQ(after.status().code(), StatusCode::cancelled);
}

TEST_F(Cluster, TheClusterIsCreatedOnceByWhoeverIsFirst) {
  start("a");
  leads(nodes_[0]);
  auto with = config("d");
  with.initial_members = {"d"};  // of no effect: the cluster exists
  Node& d = start(with);
  const auto in_sync = d.recorder.wait_for<event::InSyncChanged>();
  ASSERT_TRUE(in_sync);
  EXPECT_THAT(in_sync->in_sync.members, ElementsAre("a", "b", "c"));
}

TEST_F(Cluster, AnotherClustersIdIsRefused) {
  Node& a = start("a");
  leads(a);
  auto with = config("b");
  with.cluster_id = "other";
  Node& b = start(with);
  const auto refused = b.recorder.wait_for<event::Refused>();
  ASSERT_TRUE(refused) << b.recorder.text();
  EXPECT_THAT(refused->why.message(), HasSubstr("has the id 'test'"));
  EXPECT_THAT(refused->why.message(), HasSubstr("says 'other'"));
  EXPECT_EQ(b.recorder.count(), 1U) << b.recorder.text();
  EXPECT_FALSE(key(keys_.member("b")));
  EXPECT_EQ(b.membership->change_in_sync({1, 1, {"b"}}).status().code(), StatusCode::rejected);
}

TEST_F(Cluster, AnotherProtocolIsRefused) {
  ASSERT_TRUE(client()->put({keys_.cluster, encode(ClusterIdentity{"test", kClusterProtocol + 1})},
                            soon()));
  Node& a = start("a");
  const auto refused = a.recorder.wait_for<event::Refused>();
  ASSERT_TRUE(refused) << a.recorder.text();
  EXPECT_THAT(refused->why.message(), HasSubstr("speaks protocol 2, this program 1"));
}

TEST_F(Cluster, AClusterWithoutItsInSyncSetIsNotMadeAnew) {
  Node& a = start("a");
  leads(a);
  ASSERT_TRUE(client()->remove({keys_.in_sync, ""}, soon()));
  Node& b = start("b");
  const auto refused = b.recorder.wait_for<event::Refused>();
  ASSERT_TRUE(refused) << b.recorder.text();
  EXPECT_THAT(refused->why.message(), HasSubstr("the in-sync set of the cluster 'test' is gone"));
  EXPECT_FALSE(key(keys_.in_sync));
}

TEST_F(Cluster, AnEtcdThatLostItsDataIsRefused) {
  // By a node that was part of the cluster ...
  Node& a = start("a");
  const auto epoch = leads(a);
  ASSERT_TRUE(client()->remove({keys_.prefix, etcd::prefix_end(keys_.prefix)}, soon()));
  auto refused = a.recorder.wait_for<event::Refused>();
  ASSERT_TRUE(refused) << a.recorder.text();
  EXPECT_THAT(refused->why.message(), HasSubstr("is gone"));
  EXPECT_FALSE(a.membership->leads(epoch));
  EXPECT_EQ(a.recorder.count_of<event::RoleLost>(), a.recorder.count_of<event::RoleGained>());
  // ... and by one whose log says so.
  auto with = config("b");
  with.epoch_floor = epoch;
  Node& b = start(with);
  refused = b.recorder.wait_for<event::Refused>();
  ASSERT_TRUE(refused) << b.recorder.text();
  with.epoch_floor = 1000000;
  Node& c = start(with);
  refused = c.recorder.wait_for<event::Refused>();
  ASSERT_TRUE(refused) << c.recorder.text();
  EXPECT_THAT(refused->why.message(), HasSubstr("this node's log at epoch 1000000"));
  EXPECT_FALSE(key(keys_.cluster));
}

TEST_F(Cluster, TwoProcessesUnderOneIdAreFoundOut) {
  Node& first = start("a");
  const auto epoch = leads(first);
  auto with = config("a");
  with.self.client = "elsewhere:1";
  Node& second = start(with);
  const auto problem = second.recorder.wait_for<event::Problem>();
  ASSERT_TRUE(problem) << second.recorder.text();
  EXPECT_THAT(problem->why.message(), HasSubstr("another process is registered as node 'a'"));
  EXPECT_THAT(problem->why.message(), HasSubstr("clients a:1"));
  EXPECT_TRUE(first.membership->leads(epoch));
  // It takes over once the first has gone.
  first.membership->stop();
  EXPECT_GT(leads(second), epoch);
}

TEST_F(Cluster, GarbageUnderTheKeysIsSaidAndDoesNoHarm) {
  Node& a = start("a");
  const auto epoch = leads(a);
  ASSERT_TRUE(client()->put({keys_.member("x"), "garbage"}, soon()));
  ASSERT_TRUE(client()->put(
      {keys_.member("y"), R"({"node":"z","client":"1","replication":"2","instance":"3"})"},
      soon()));
  ASSERT_TRUE(client()->put({keys_.prefix + "somebody/elses", "x"}, soon()));
  const auto problem = a.recorder.wait_for<event::Problem>([](const auto& e) {
    return e.why.message().find("names another node") != std::string::npos;
  });
  ASSERT_TRUE(problem) << a.recorder.text();
  EXPECT_THAT(problem->why.message(), HasSubstr(keys_.member("y")));
  EXPECT_TRUE(a.membership->leads(epoch));
  EXPECT_EQ(a.membership->state().members.size(), 1U);
}

TEST_F(Cluster, WithoutEtcdALeaderLeadsToItsDeadlineThenStepsDownAndGoesOnWhenEtcdIsBack) {
  Node& a = start("a");
  const auto first = leads(a);
  Node& b = start("b");
  ASSERT_TRUE(b.recorder.wait_for<event::LeaderChanged>());
  etcd_[0].freeze();
  const auto frozen = LeaseClock::now();
  const auto lost = a.recorder.wait_for<event::RoleLost>();
  const auto told = LeaseClock::now();
  ASSERT_TRUE(lost) << a.recorder.text();
  EXPECT_EQ(lost->why.code(), StatusCode::timed_out);
  EXPECT_THAT(lost->why.message(), HasSubstr(etcd_.endpoints()[0]));
  EXPECT_GT(told, frozen + kLease / 2) << "it gave up before its time";
  EXPECT_LT(told, frozen + 2 * kLease) << "it was told too late";
  EXPECT_FALSE(a.membership->leads(first));
  ASSERT_TRUE(b.recorder.wait_for<event::EtcdUnreachable>());
  EXPECT_FALSE(b.membership->state().etcd_reachable);
  // A change of the set is answered, not kept waiting.
  EXPECT_FALSE(a.membership->change_in_sync({first, 1, {"a"}}));
  const auto from_a = a.recorder.count(), from_b = b.recorder.count();
  etcd_[0].go_on();
  ASSERT_TRUE(a.recorder.wait_for<event::EtcdBack>([](const auto&) { return true; }, from_a));
  ASSERT_TRUE(b.recorder.wait_for<event::EtcdBack>([](const auto&) { return true; }, from_b));
  // Somebody leads, in a later epoch, and both know who.
  for (Node* node : {&a, &b}) {
    const auto leader = node->recorder.wait_for<event::LeaderChanged>(
        [&](const auto& e) { return e.leader && e.leader->epoch > first; });
    EXPECT_TRUE(leader) << node->recorder.text();
  }
  EXPECT_EQ(a.recorder.count_of<event::EtcdUnreachable>(), 1U) << a.recorder.text();
}

TEST_F(Cluster, EtcdKilledAndStartedAgainIsSurvived) {
  Node& a = start("a");
  const auto first = leads(a);
  etcd_[0].kill();
  const auto unreachable = a.recorder.wait_for<event::EtcdUnreachable>();
  ASSERT_TRUE(unreachable);
  EXPECT_THAT(unreachable->why.message(), HasSubstr(etcd_.endpoints()[0] + ": "));
  EXPECT_THAT(to_string(MembershipEvent(*unreachable)), Not(HasSubstr("\n")));
  ASSERT_TRUE(a.recorder.wait_for<event::RoleLost>());
  const auto from = a.recorder.count();
  etcd_.restart(0);
  EXPECT_GT(leads(a, from), first);
  EXPECT_TRUE(a.recorder.wait_for<event::EtcdBack>());
  // And what it watches comes again.
  start("b");
  EXPECT_TRUE(
      a.recorder.wait_for<event::MemberJoined>([](const auto& e) { return e.member.node == "b"; }));
}

TEST_F(Cluster, ACompactionInAnOutageLosesNoChange) {
  Node& a = start("a");
  leads(a);
  Node& b = start("b");
  ASSERT_TRUE(
      a.recorder.wait_for<event::MemberJoined>([](const auto& e) { return e.member.node == "b"; }));
  // The history is always cut off just behind what is written, so that every watch that is resumed
  // asks for what is no more.
  auto other = client();
  etcd_[0].kill();
  etcd_.restart(0);
  std::int64_t last = 0;
  for (int i = 0; i < 20; ++i) {
    const auto put = other->put({keys_.member("x" + std::to_string(i)),
                                 encode(Registration{{"x" + std::to_string(i), "1", "2"}, "i"})},
                                soon());
    ASSERT_TRUE(put) << put.status().to_string();
    last = put->header.revision;
  }
  ASSERT_TRUE(other->compact(last, soon()).ok());
  for (Node* node : {&a, &b})
    for (int i = 0; i < 20; ++i)
      EXPECT_TRUE(node->recorder.wait_for<event::MemberJoined>([&](const auto& e) {
        return e.member.node == "x" + std::to_string(i);
      })) << node->recorder.text();
}

TEST_F(Cluster, ARenewalThatNoQuorumConfirmsAfterwardsDoesNotCount) {
  Relay relay(etcd_.endpoints()[0]);
  relay.stale_keep_alives = true;
  auto with = config("a");
  with.endpoints = {relay.url()};
  Node& a = start(with);
  // It gets the key, and keeps it, and may not act on it.
  auto observer = client();
  observer->watch(keys_.leader, "", 1);
  const auto deadline = soon();
  while (observer->watch_news(deadline).events.empty() && Clock::now() < deadline) {
  }
  const auto two_leases_on = Clock::now() + 2 * kLease;
  while (Clock::now() < two_leases_on)
    EXPECT_TRUE(observer->watch_news(two_leases_on).events.empty());
  EXPECT_EQ(a.recorder.count_of<event::RoleGained>(), 0U) << a.recorder.text();
  EXPECT_EQ(a.membership->leader_until(), LeaseClock::time_point::min());
  relay.stale_keep_alives = false;
  const auto epoch = leads(a);
  EXPECT_EQ(key(keys_.leader)->create_revision, static_cast<std::int64_t>(epoch));
  // Nor is a deadline moved by one.
  relay.stale_keep_alives = true;
  const auto lost = a.recorder.wait_for<event::RoleLost>();
  ASSERT_TRUE(lost) << a.recorder.text();
  EXPECT_EQ(lost->why.code(), StatusCode::timed_out);
}

TEST_F(Cluster, AWatchThatHasFallenSilentIsMadeUpFor) {
  Relay relay(etcd_.endpoints()[0]);
  auto with = config("a");
  with.endpoints = {relay.url()};
  Node& a = start(with);
  leads(a);
  ASSERT_TRUE(a.recorder.wait_for<event::LeaderChanged>());  // the watch speaks
  relay.silent_watches = true;
  start("b");
  EXPECT_TRUE(
      a.recorder.wait_for<event::MemberJoined>([](const auto& e) { return e.member.node == "b"; }));
  EXPECT_EQ(a.recorder.count_of<event::RoleLost>(), 0U) << a.recorder.text();
}

TEST_F(Cluster, ALeaderThatIsCutOffHasStoppedBeforeAnotherBegins) {
  Relay relay(etcd_.endpoints()[0]);
  auto with = config("a");
  with.endpoints = {relay.url()};
  Node& a = start(with);
  const auto first = leads(a);
  Node& b = start("b");
  ASSERT_TRUE(
      b.recorder.wait_for<event::MemberJoined>([](const auto& e) { return e.member.node == "b"; }));
  relay.cut_off = true;
  auto until = a.membership->leader_until(first);
  while (!a.recorder.wait_for<event::RoleLost>([](const auto&) { return true; }, 0, 5ms))
    until = std::max(until, a.membership->leader_until(first));  // an answer was under way
  const auto second = leads(b);
  EXPECT_GT(second, first);
  EXPECT_GT(b.membership->leader_until(second), until + kLease / 2);
  relay.cut_off = false;
  EXPECT_TRUE(a.recorder.wait_for<event::LeaderChanged>([&](const auto& e) {
    return e.leader && e.leader->epoch == second;
  })) << a.recorder.text();
}

TEST(WithoutEtcd, WrongEndpointsAreOneLineAndStopIsQuick) {
  const sluice::test::ReservedPort nobody;
  Recorder recorder;
  auto membership = EtcdMembership::start({.cluster_id = "test",
                                           .self = {"a", "a:1", "a:2"},
                                           .endpoints = {nobody.url()},
                                           .lease_s = kLeaseSeconds,
                                           .initial_members = {"a"}},
                                          recorder.events());
  ASSERT_TRUE(membership);
  const auto unreachable = recorder.wait_for<event::EtcdUnreachable>();
  ASSERT_TRUE(unreachable);
  const std::string line = to_string(MembershipEvent(*unreachable));
  EXPECT_THAT(line, HasSubstr("etcd cannot be used"));
  EXPECT_THAT(line, HasSubstr(nobody.url()));
  EXPECT_THAT(line, HasSubstr("Connection refused"));
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  EXPECT_EQ((*membership)->leader_until(), LeaseClock::time_point::min());
  (*membership)->stop();
  EXPECT_EQ(recorder.count(), 1U) << recorder.text();
}

TEST(WithoutEtcd, AWrongConfigurationNamesTheSetting) {
  const EtcdMembershipConfig good{.cluster_id = "test",
                                  .self = {"a", "a:1", "a:2"},
                                  .endpoints = {"http://127.0.0.1:1"},
                                  .initial_members = {"a"}};
  const auto why = [&](auto change) {
    auto config = good;
    change(config);
    const auto started = EtcdMembership::start(config, [](const MembershipEvent&) {});
    EXPECT_EQ(started.status().code(), StatusCode::invalid_argument);
    return started.status().message();
  };
  using C = EtcdMembershipConfig;
  EXPECT_THAT(why([](C& c) { c.cluster_id = ""; }), HasSubstr("cluster id"));
  EXPECT_THAT(why([](C& c) { c.self.node = "a/b"; }), HasSubstr("node id"));
  EXPECT_THAT(why([](C& c) { c.self.client = ""; }), HasSubstr("client address"));
  EXPECT_THAT(why([](C& c) { c.self.replication = "a\n:1"; }), HasSubstr("replication address"));
  EXPECT_THAT(why([](C& c) { c.lease_s = 0; }), HasSubstr("a lease of 0 s"));
  EXPECT_THAT(why([](C& c) { c.lease_s = 61; }), HasSubstr("a lease of 61 s"));
  EXPECT_THAT(why([](C& c) { c.prefix = "x/"; }), HasSubstr("prefix"));
  EXPECT_THAT(why([](C& c) { c.initial_members.clear(); }), HasSubstr("initial member"));
  EXPECT_THAT(why([](C& c) { c.endpoints.clear(); }), HasSubstr("no etcd endpoint"));
  EXPECT_THAT(why([](C& c) { c.endpoints = {"127.0.0.1:2379"}; }), HasSubstr("no http://"));
  EXPECT_THAT(why([](C& c) { c.endpoints = {"ftp://a:1"}; }), HasSubstr("'ftp'"));
  EXPECT_THAT(why([](C& c) { c.endpoints = {"http://a"}; }), HasSubstr("no port"));
  EXPECT_THAT(why([](C& c) { c.endpoints = {"http://a:0"}; }), HasSubstr("1 to 65535"));
  EXPECT_THAT(why([](C& c) { c.endpoints = {"http://:1"}; }), HasSubstr("no host"));
  EXPECT_THAT(why([](C& c) { c.endpoints = {"http://a:1/v3"}; }), HasSubstr("only a host"));
}

}  // namespace
