// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kv/cluster/membership.hpp"

namespace sluice::kv {

struct StaticMembershipConfig {
  std::string cluster_id;
  std::string self;               ///< a node id of `members`
  std::string primary;            ///< a node id of `members`
  std::vector<Member> members;    ///< all nodes, this one too
  std::string file;               ///< where the primary keeps its epoch and the in-sync set
  std::uint64_t epoch_floor = 0;  ///< the highest epoch in this node's log
};

/// Without etcd: the configuration says who leads. No automatic failover and no fencing: an
/// operator who names another primary must make sure that the one before is down, and that the new
/// one is in the in-sync set that the old one's file names. state().description says so.
///
/// The primary leads from start() to stop(), in an epoch that is higher than that of every run of
/// it before and than its log's; it has no deadline. A change of the in-sync set is on the medium
/// before it is answered. Events come from within the calls, on the caller's thread.
class StaticMembership final : public Membership {
 public:
  /// invalid_argument names the setting; io_error: the file cannot be read or written; rejected:
  /// the file is another cluster's, or is damaged.
  static Result<std::unique_ptr<StaticMembership>> start(StaticMembershipConfig config,
                                                         MembershipEvents events);
  ~StaticMembership() override;

  [[nodiscard]] MembershipState state() const override;
  void request_in_sync(Change change, Changed done) override;
  /// An unwilling primary leads no more, and nobody does; willing again, it leads in a new epoch.
  void set_willing(bool willing) override;
  void stop() override;

 protected:
  [[nodiscard]] bool on_own_thread() const noexcept override { return false; }

 private:
  struct Stored {
    std::string cluster_id;
    InSyncSet in_sync;  ///< its epoch is the primary's last one
  };
  StaticMembership(StaticMembershipConfig config, MembershipEvents events)
      : config_(std::move(config)), events_(std::move(events)) {}
  [[nodiscard]] Status lead();
  void step_down(Status why);
  [[nodiscard]] Result<InSyncSet> change(const Change& change);
  [[nodiscard]] Result<Stored> load() const;
  [[nodiscard]] Status store(const InSyncSet& set) const;
  [[nodiscard]] bool is_primary() const { return config_.self == config_.primary; }

  const StaticMembershipConfig config_;
  const MembershipEvents events_;
  std::mutex calls_mutex_;  ///< one change at a time, its event with it
  mutable std::mutex mutex_;
  MembershipState state_;
  bool stopped_ = false;
};

}  // namespace sluice::kv
