// SPDX-License-Identifier: BSD-3-Clause
#include "kv/cluster/static_membership.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "sluice_test/process.hpp"

namespace {

using namespace sluice;
using namespace sluice::kv;
using testing::ElementsAre;
using testing::HasSubstr;

class Static : public testing::Test {
 protected:
  StaticMembershipConfig config(const std::string& self, const std::string& primary = "a") const {
    return {.cluster_id = "test",
            .self = self,
            .primary = primary,
            .members = {{"b", "b:1", "b:2"}, {"a", "a:1", "a:2"}, {"c", "c:1", "c:2"}},
            .file = file_};
  }
  std::unique_ptr<StaticMembership> start(StaticMembershipConfig with) {
    auto membership = StaticMembership::start(
        std::move(with), [this](const MembershipEvent& event) { events_.push_back(event); });
    EXPECT_TRUE(membership) << membership.status().to_string();
    return std::move(*membership);
  }
  Status failure(StaticMembershipConfig with) {
    return StaticMembership::start(std::move(with), [](const MembershipEvent&) {}).status();
  }
  template <typename Event>
  std::optional<Event> last() const {
    std::optional<Event> found;
    for (const auto& event : events_)
      if (const auto* const one = std::get_if<Event>(&event)) found = *one;
    return found;
  }
  void write(const std::string& text) const { std::ofstream(file_, std::ios::binary) << text; }

  sluice::test::TemporaryFolder folder_;
  std::string file_ = folder_ / "membership";
  std::vector<MembershipEvent> events_;
};

TEST_F(Static, ThePrimaryLeadsInALaterEpochEachTimeAndSaysWhatItCannotDo) {
  std::uint64_t before = 0;
  for (int run = 0; run < 3; ++run) {
    const auto a = start(config("a"));
    const auto gained = last<event::RoleGained>();
    ASSERT_TRUE(gained);
    EXPECT_GT(gained->epoch, before);
    before = gained->epoch;
    EXPECT_THAT(gained->in_sync.members, ElementsAre("a", "b", "c"));
    EXPECT_TRUE(a->leads(before));
    EXPECT_FALSE(a->leads(before - 1));
    EXPECT_THAT(a->state().description, HasSubstr("no automatic failover, and no fencing"));
    a->stop();
    EXPECT_FALSE(a->leads(before));
    EXPECT_EQ(last<event::RoleLost>()->epoch, before);
  }
  auto with = config("a");
  with.epoch_floor = 100;
  start(with);
  EXPECT_EQ(last<event::RoleGained>()->epoch, 101U);
}

TEST_F(Static, AReplicaKnowsThePrimaryAndNeverLeads) {
  auto with = config("b");
  with.file.clear();
  const auto b = start(with);
  EXPECT_EQ(last<event::LeaderChanged>()->leader->who.replication, "a:2");
  EXPECT_FALSE(last<event::RoleGained>());
  EXPECT_EQ(b->leader_until(), LeaseClock::time_point::min());
  b->set_willing(true);
  EXPECT_FALSE(last<event::RoleGained>());
  EXPECT_EQ(b->change_in_sync({1, 1, {"b"}}).status().code(), StatusCode::rejected);
}

TEST_F(Static, TheInSyncSetIsKept) {
  const auto first = start(config("a"));
  const auto gained = *last<event::RoleGained>();
  const auto changed =
      first->change_in_sync({gained.epoch, gained.in_sync.revision, {"b", "a", "b"}});
  ASSERT_TRUE(changed) << changed.status().to_string();
  EXPECT_THAT(changed->members, ElementsAre("a", "b"));
  EXPECT_EQ(last<event::InSyncChanged>()->in_sync, *changed);
  EXPECT_EQ(first->change_in_sync({gained.epoch, gained.in_sync.revision, {"a"}}).status().code(),
            StatusCode::rejected);
  EXPECT_EQ(first->change_in_sync({gained.epoch + 1, changed->revision, {"a"}}).status().code(),
            StatusCode::rejected);
  EXPECT_EQ(first->change_in_sync({gained.epoch, changed->revision, {"b"}}).status().code(),
            StatusCode::invalid_argument);
  EXPECT_EQ(first->change_in_sync({gained.epoch, changed->revision, {"a", "x"}}).status().code(),
            StatusCode::invalid_argument);
  first->stop();
  start(config("a"));
  EXPECT_THAT(last<event::RoleGained>()->in_sync.members, ElementsAre("a", "b"));
}

TEST_F(Static, AnUnwillingPrimaryStepsDownAndComesBackInALaterEpoch) {
  const auto a = start(config("a"));
  const auto epoch = last<event::RoleGained>()->epoch;
  a->set_willing(false);
  EXPECT_FALSE(a->leads(epoch));
  EXPECT_FALSE(last<event::LeaderChanged>()->leader);
  a->set_willing(true);
  EXPECT_GT(last<event::RoleGained>()->epoch, epoch);
  EXPECT_FALSE(a->leads(epoch));
}

TEST_F(Static, AFileThatCannotBeUsedIsRefused) {
  start(config("a"));
  const auto good = [&] {
    std::ifstream in(file_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }();
  for (std::size_t length = 0; length + 2 < good.size(); ++length) {
    write(good.substr(0, length));
    const Status why = failure(config("a"));
    EXPECT_EQ(why.code(), StatusCode::rejected) << good.substr(0, length);
    EXPECT_THAT(why.message(), HasSubstr(file_));
  }
  write(good);
  auto other = config("a");
  other.cluster_id = "other";
  EXPECT_THAT(failure(other).message(), HasSubstr("belongs to the cluster 'test'"));
  other = config("a");
  other.file = folder_ / "no/such/folder";
  EXPECT_EQ(failure(other).code(), StatusCode::io_error);
  EXPECT_EQ(failure(other).os_error(), ENOENT);
}

TEST_F(Static, AWrongConfigurationNamesTheSetting) {
  auto with = config("x");
  EXPECT_THAT(failure(with).message(), HasSubstr("this node, 'x'"));
  EXPECT_THAT(failure(config("a", "x")).message(), HasSubstr("the primary, 'x'"));
  with = config("a");
  with.members.push_back({"a", "1", "2"});
  EXPECT_THAT(failure(with).message(), HasSubstr("'a' is named twice"));
  with = config("a");
  with.cluster_id = "a b";
  EXPECT_THAT(failure(with).message(), HasSubstr("cluster id"));
  with = config("a");
  with.file.clear();
  EXPECT_THAT(failure(with).message(), HasSubstr("needs a file"));
}

}  // namespace
