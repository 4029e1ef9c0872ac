// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kv/cluster/lease_clock.hpp"
#include "sluice/core/status.hpp"

namespace sluice::kv {

/// What the nodes of a cluster must agree on to understand each other. Written into etcd by the
/// cluster's first node; a node with another number is refused.
inline constexpr std::uint32_t kClusterProtocol = 1;

/// How the others see a node.
struct Member {
  std::string node;         ///< its id, [A-Za-z0-9._-], at most 64 bytes
  std::string client;       ///< "HOST:PORT" for clients
  std::string replication;  ///< "HOST:PORT" for the other nodes
  bool operator==(const Member&) const = default;
};

/// The present leader. `epoch` is the create_revision of its key: higher for each later leader.
struct Leader {
  Member who;
  std::uint64_t epoch = 0;
  bool operator==(const Leader&) const = default;
};

/// Who may lead, and whose acknowledgements count.
struct InSyncSet {
  std::uint64_t epoch = 0;           ///< of the leader that wrote it; 0: the cluster's first
  std::vector<std::string> members;  ///< sorted, each once, never empty
  std::int64_t revision = 0;         ///< to name this very state in a change
  [[nodiscard]] bool contains(const std::string& node) const;
  bool operator==(const InSyncSet&) const = default;
};

namespace event {
/// This node leads. The owner first makes its data ready (see README.md, "Before a new primary
/// serves"), then serves as long as leader_until(epoch) has not come.
struct RoleGained {
  std::uint64_t epoch;
  InSyncSet in_sync;
};
/// It leads no more; leader_until() said so before this came.
struct RoleLost {
  std::uint64_t epoch;
  Status why;
};
/// None: there is none now, and clients must wait.
struct LeaderChanged {
  std::optional<Leader> leader;
};
/// Also for this node itself, and for one that came back at another address.
struct MemberJoined {
  Member member;
};
struct MemberLeft {
  Member member;
};
struct InSyncChanged {
  InSyncSet in_sync;
};
/// No endpoint answers as it should; one event for each outage.
struct EtcdUnreachable {
  Status why;
};
struct EtcdBack {};
/// Something is wrong that may mend by itself, e.g. another process runs under this node's id.
struct Problem {
  Status why;
};
/// This node cannot be part of the cluster (another cluster's id, another protocol, etcd's data
/// lost): the configuration or etcd must be put right, then the node started anew. The last event.
struct Refused {
  Status why;
};
}  // namespace event

using MembershipEvent =
    std::variant<event::RoleGained, event::RoleLost, event::LeaderChanged, event::MemberJoined,
                 event::MemberLeft, event::InSyncChanged, event::EtcdUnreachable, event::EtcdBack,
                 event::Problem, event::Refused>;

/// One line for a log.
[[nodiscard]] std::string to_string(const MembershipEvent& event);

/// Called on the membership's own thread, without any lock held; in the order in which things
/// happened, each once. It should return within a tenth of the lease: keep-alives wait meanwhile
/// (that is safe: leader_until() does not wait). It may call everything here but stop() and
/// change_in_sync(), which would wait for itself.
using MembershipEvents = std::function<void(const MembershipEvent&)>;

/// What a node knows of its cluster just now.
struct MembershipState {
  std::string description;  ///< for people: what keeps the membership, and what it cannot do
  std::optional<std::uint64_t> leads_epoch;
  std::optional<Leader> leader;
  std::optional<InSyncSet> in_sync;
  std::vector<Member> members;  ///< sorted by id
  bool etcd_reachable = false;
  Status last_failure;  ///< ok: none yet
};

/// Membership, leader and fencing, as a node of sluice-kv sees them. A thread-safe object: it is no
/// part of a data path, so there is a mutex behind everything but leader_until().
class Membership {
 public:
  /// `epoch` names the leadership that the change belongs to, `base_revision` the set that it
  /// starts from (InSyncSet::revision).
  struct Change {
    std::uint64_t epoch = 0;
    std::int64_t base_revision = 0;
    std::vector<std::string> members;
  };
  using Changed = std::function<void(const Result<InSyncSet>&)>;

  Membership() = default;
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;
  virtual ~Membership() = default;

  /// Until when this node may act as the leader, on LeaseClock; time_point::min() when it does not
  /// lead. Read the value that is to be answered first, then ask, then answer: then the answer was
  /// right at the moment of asking. Any thread; two atomic loads.
  [[nodiscard]] LeaseClock::time_point leader_until() const noexcept;
  /// The same, but min() unless the leadership is that of `epoch`: for code that holds an epoch.
  [[nodiscard]] LeaseClock::time_point leader_until(std::uint64_t epoch) const noexcept;
  [[nodiscard]] bool leads(std::uint64_t epoch) const noexcept {
    return LeaseClock::now() < leader_until(epoch);
  }

  [[nodiscard]] virtual MembershipState state() const = 0;

  /// Asks for another in-sync set; `done` is called on the membership's thread (at once where there
  /// is none), and before an acknowledgement counts without a removed member it must have come.
  /// rejected: another leader, or another set than `base_revision` (nothing was changed);
  /// invalid_argument: the set is empty, or lacks this node; unreachable, timed_out, ...: it may or
  /// may not have been changed, state() will tell; cancelled: the membership was stopped.
  virtual void request_in_sync(Change change, Changed done) = 0;
  /// The same, waiting. At most a few lease times.
  [[nodiscard]] Result<InSyncSet> change_in_sync(Change change);

  /// False: does not try to lead, and steps down if it leads (its disk has failed, its log is not
  /// usable). True at first.
  virtual void set_willing(bool willing) = 0;

  /// Steps down, gives up the lease so that another can take over at once, and ends the thread.
  /// After it no event comes. Idempotent. Not from an event.
  virtual void stop() = 0;

 protected:
  /// For one thread, the membership's own.
  void publish_leadership(std::uint64_t epoch, LeaseClock::time_point until) noexcept;
  void extend_leadership(LeaseClock::time_point until) noexcept;
  void end_leadership() noexcept;
  /// True on the thread that events come on: who waits for it there waits for ever.
  [[nodiscard]] virtual bool on_own_thread() const noexcept = 0;

 private:
  static constexpr LeaseClock::rep kNever =
      LeaseClock::time_point::min().time_since_epoch().count();
  // Written some times a lease, read by everybody: a line of their own keeps them from what is
  // written more often.
  alignas(64) std::atomic<LeaseClock::rep> until_ns_{kNever};
  std::atomic<std::uint64_t> epoch_{0};
};

}  // namespace sluice::kv
