// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kv/cluster/etcd_client.hpp"
#include "kv/cluster/membership.hpp"
#include "kv/cluster/view.hpp"

namespace sluice::kv {

struct EtcdMembershipConfig {
  std::string cluster_id;  ///< like a node id; etcd's must be the same
  Member self;
  std::vector<std::string> endpoints;  ///< EtcdClientConfig::endpoints
  /// 1 to 60. etcd may give more: its least lease is one and a half times its election timeout.
  std::uint32_t lease_s = 3;
  std::string prefix = "/sluice/kv/";  ///< of all keys; begins and ends with '/'
  /// Node ids of the in-sync set that the cluster begins with, if this node is the first one there.
  std::vector<std::string> initial_members;
  /// The highest epoch in this node's log. An etcd that is not that far is not the one that the log
  /// was written under: the node refuses to join, and never creates a cluster.
  std::uint64_t epoch_floor = 0;
};

/// Membership, leader and fencing from etcd.
///
/// One thread does everything: it keeps the lease alive, watches the keys, campaigns, answers
/// requests and calls the owner. Invariants (numbered in README.md): the deadline is counted from
/// before the keep-alive was sent, and counts only when a quorum has confirmed it afterwards; a
/// deadline that has passed ends the leadership for good; RoleLost has returned before the next
/// RoleGained; the in-sync set is changed by the holder of the leader key alone.
class EtcdMembership final : public Membership {
 public:
  /// invalid_argument names the setting. An etcd that does not answer is no failure here: it is
  /// reported (EtcdUnreachable) and waited for.
  static Result<std::unique_ptr<EtcdMembership>> start(EtcdMembershipConfig config,
                                                       MembershipEvents events);
  ~EtcdMembership() override;

  [[nodiscard]] MembershipState state() const override;
  void request_in_sync(Change change, Changed done) override;
  void set_willing(bool willing) override;
  void stop() override;

 protected:
  [[nodiscard]] bool on_own_thread() const noexcept override;

 private:
  using Time = LeaseClock::time_point;
  using Span = LeaseClock::duration;

  enum class Role : std::uint8_t {
    follower,  ///< does not hold the leader key, or has given it up
    elected,   ///< holds the key; its lease is not yet confirmed, so it may not act. Next: leader
    leader,    ///< RoleGained was sent; acts until leader_until(). Next: follower
  };
  struct Lease {
    std::int64_t id = 0;  ///< 0: none
    Span ttl{};
    Time keep_alive_at{};
  };
  struct Request {
    Change change;
    Changed done;
  };

  EtcdMembership(EtcdMembershipConfig config, MembershipEvents events,
                 std::unique_ptr<EtcdClient> client);

  // The thread's loop, and its phases in the order in which they happen.
  void run();
  void check_deadline();
  void check_willing();
  [[nodiscard]] Status work();
  [[nodiscard]] Status attach();
  [[nodiscard]] Status enrol();
  [[nodiscard]] Status keep_alive();
  [[nodiscard]] Status confirm(const etcd::LeaseAnswer& renewal, Time sent);
  [[nodiscard]] Status ensure_registered();
  [[nodiscard]] Status answer_requests();
  [[nodiscard]] Status resync();
  [[nodiscard]] Status campaign();
  void take_watch();
  void leave();

  [[nodiscard]] Status read_everything();
  [[nodiscard]] Status create_cluster();
  [[nodiscard]] Status check_identity(const etcd::RangeAnswer& answer);
  void take_over_registration(const etcd::KeyValue& found);
  [[nodiscard]] Status change_set(const Request& request);
  [[nodiscard]] Status won(std::uint64_t epoch, InSyncSet set);
  void fail_requests(const Status& why);
  void note_outcome(const Status& outcome);
  void after_changes(std::vector<MembershipEvent>& events);
  void lose_lease(Status why);
  void step_down(Status why);
  void refuse(Status why);

  void emit(const MembershipEvent& event);
  void update_state();
  [[nodiscard]] bool stopping() const;
  [[nodiscard]] bool willing() const;
  [[nodiscard]] EtcdClient::Clock::time_point op_deadline() const;
  [[nodiscard]] EtcdClient::Clock::time_point next_due() const;
  [[nodiscard]] bool could_campaign() const;
  [[nodiscard]] Registration registration() const { return {config_.self, instance_}; }

  const EtcdMembershipConfig config_;
  const ClusterKeys keys_;
  const std::string instance_;  ///< of this run of the node, random
  const MembershipEvents events_;
  const Span ttl_asked_;
  std::unique_ptr<EtcdClient> client_;

  // The thread's own.
  View view_;
  Role role_ = Role::follower;
  std::uint64_t epoch_ = 0;  ///< of the present or the last leadership
  InSyncSet elected_with_;   ///< the set that the election compared
  Lease lease_;
  std::int64_t stale_lease_ = 0;  ///< given up, not yet revoked
  bool attached_ = false;         ///< the view is filled and the watch runs
  bool refused_ = false;
  bool registered_ = false;
  std::int64_t registered_revision_ = 0;
  Time register_at_{};
  std::optional<Time> twin_since_;  ///< another instance holds this node's key
  bool twin_reported_ = false;
  Time resync_at_{};
  Time campaign_at_{};
  Time retry_at_{};
  bool reachable_ = false;
  bool outage_reported_ = false;
  std::uint64_t etcd_cluster_ = 0;  ///< etcd's own cluster id; 0: not yet known
  bool cluster_seen_ = false;

  mutable std::mutex mutex_;
  MembershipState state_;
  std::deque<Request> requests_;
  bool stop_ = false;
  bool ended_ = false;  ///< the thread takes no more requests
  bool willing_ = true;

  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace sluice::kv
