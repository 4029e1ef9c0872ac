// SPDX-License-Identifier: BSD-3-Clause
#include "kv/cluster/membership.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <future>

namespace sluice::kv {
namespace {

std::string describe(const InSyncSet& set) {
  return fmt::format("in sync: {} (epoch {}, revision {})", fmt::join(set.members, ", "), set.epoch,
                     set.revision);
}

std::string describe(const Member& member) {
  return fmt::format("{} (clients {}, replication {})", member.node, member.client,
                     member.replication);
}

struct Describe {
  std::string operator()(const event::RoleGained& e) const {
    return fmt::format("leads, epoch {}; {}", e.epoch, describe(e.in_sync));
  }
  std::string operator()(const event::RoleLost& e) const {
    return fmt::format("leads no more, epoch {}: {}", e.epoch, e.why.to_string());
  }
  std::string operator()(const event::LeaderChanged& e) const {
    return e.leader
               ? fmt::format("the leader is {}, epoch {}", describe(e.leader->who), e.leader->epoch)
               : std::string("there is no leader");
  }
  std::string operator()(const event::MemberJoined& e) const {
    return fmt::format("member {} is there", describe(e.member));
  }
  std::string operator()(const event::MemberLeft& e) const {
    return fmt::format("member {} is gone", e.member.node);
  }
  std::string operator()(const event::InSyncChanged& e) const { return describe(e.in_sync); }
  std::string operator()(const event::EtcdUnreachable& e) const {
    return fmt::format("etcd cannot be used: {}", e.why.to_string());
  }
  std::string operator()(const event::EtcdBack&) const { return "etcd answers"; }
  std::string operator()(const event::Problem& e) const { return e.why.to_string(); }
  std::string operator()(const event::Refused& e) const {
    return fmt::format("cannot be part of this cluster: {}", e.why.to_string());
  }
};

}  // namespace

bool InSyncSet::contains(const std::string& node) const {
  return std::ranges::binary_search(members, node);
}

std::string to_string(const MembershipEvent& event) {
  return std::visit(Describe{}, event);
}

LeaseClock::time_point Membership::leader_until() const noexcept {
  // Relaxed: it is a number that means something by itself.
  return LeaseClock::time_point(LeaseClock::duration(until_ns_.load(std::memory_order_relaxed)));
}

LeaseClock::time_point Membership::leader_until(std::uint64_t epoch) const noexcept {
  // The deadline first: whoever sees a later leadership's deadline also sees its epoch, and
  // refuses; epochs never come again. (1) acquire: pairs with release (2) in publish_leadership().
  const auto until = until_ns_.load(std::memory_order_acquire);
  if (epoch_.load(std::memory_order_relaxed) != epoch) return LeaseClock::time_point::min();
  return LeaseClock::time_point(LeaseClock::duration(until));
}

void Membership::publish_leadership(std::uint64_t epoch, LeaseClock::time_point until) noexcept {
  SLUICE_CHECK(epoch > epoch_.load(std::memory_order_relaxed), "an epoch that is not later");
  epoch_.store(epoch, std::memory_order_relaxed);
  // (2) release: pairs with acquire (1) in leader_until(epoch).
  until_ns_.store(until.time_since_epoch().count(), std::memory_order_release);
}

void Membership::extend_leadership(LeaseClock::time_point until) noexcept {
  const auto ns = until.time_since_epoch().count();
  // Relaxed: the epoch is the one published before.
  if (ns > until_ns_.load(std::memory_order_relaxed))
    until_ns_.store(ns, std::memory_order_relaxed);
}

void Membership::end_leadership() noexcept {
  until_ns_.store(kNever, std::memory_order_relaxed);
}

Result<InSyncSet> Membership::change_in_sync(Change change) {
  SLUICE_CHECK(!on_own_thread(), "change_in_sync() from an event: use request_in_sync()");
  std::promise<Result<InSyncSet>> promise;
  auto result = promise.get_future();
  request_in_sync(std::move(change),
                  [&](const Result<InSyncSet>& changed) { promise.set_value(changed); });
  return result.get();
}

}  // namespace sluice::kv
