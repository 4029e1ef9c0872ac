// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kv/cluster/etcd_messages.hpp"
#include "kv/cluster/membership.hpp"

namespace sluice::kv {

/// The names of a cluster's keys; all begin with the prefix.
struct ClusterKeys {
  explicit ClusterKeys(const std::string& all)
      : prefix(all),
        cluster(all + "cluster"),
        leader(all + "leader"),
        in_sync(all + "in_sync"),
        members(all + "members/") {}
  [[nodiscard]] std::string member(const std::string& node) const { return members + node; }

  std::string prefix;
  std::string cluster;  ///< {"cluster_id": text, "protocol": number}; written once
  std::string leader;   ///< as a member's; bound to the leader's lease
  std::string in_sync;  ///< {"epoch": number, "members": [text...]}
  std::string members;  ///< + node: {"node", "client", "replication", "instance"}; bound to a lease
};

/// What stands in the cluster's key.
struct ClusterIdentity {
  std::string cluster_id;
  std::uint32_t protocol = 0;
};

/// A member's or a leader's key: `instance` tells two processes with one id apart.
struct Registration {
  Member member;
  std::string instance;
};

// Values as they stand in etcd (JSON). parse_*: io_error that says what is wrong.
[[nodiscard]] std::string encode(const ClusterIdentity& identity);
[[nodiscard]] std::string encode(const Registration& registration);
/// Without its revision, which etcd gives it.
[[nodiscard]] std::string encode(const InSyncSet& set);
[[nodiscard]] Result<ClusterIdentity> parse_identity(const std::string& value);
[[nodiscard]] Result<Registration> parse_registration(const std::string& value);
[[nodiscard]] Result<InSyncSet> parse_in_sync(const etcd::KeyValue& kv);

/// [A-Za-z0-9._-], 1 to 64 bytes.
[[nodiscard]] bool is_node_id(std::string_view text);

/// A cluster's keys as of one revision of etcd, and what changes in them as events. A value of one
/// thread, without any connection.
///
/// Invariants: `revision()` only grows, so what came once does not come again, whether by the watch
/// or by reading everything; events leave in the order of the revisions. After a gap (compaction)
/// only the difference is seen: what came and went meanwhile is not.
class View {
 public:
  struct Key {  ///< the leader's, as it stands in etcd
    Leader leader;
    std::string instance;
    std::int64_t lease = 0;
  };

  explicit View(ClusterKeys keys) : keys_(std::move(keys)) {}

  /// Everything under the prefix, read at `answer.header.revision`. Older than what is known:
  /// ignored.
  void replace(const etcd::RangeAnswer& answer, std::vector<MembershipEvent>& events);
  /// One change. Already known: ignored. Changes of one revision must follow each other.
  void apply(const etcd::WatchEvent& change, std::vector<MembershipEvent>& events);

  [[nodiscard]] std::int64_t revision() const noexcept { return revision_; }
  [[nodiscard]] const std::optional<Key>& leader() const noexcept { return leader_; }
  /// True when the key is there but what is in it is not understood: somebody leads all the same.
  [[nodiscard]] bool leader_key_exists() const noexcept { return leader_key_exists_; }
  [[nodiscard]] const std::optional<InSyncSet>& in_sync() const noexcept { return in_sync_; }
  [[nodiscard]] const std::map<std::string, Registration>& members() const noexcept {
    return members_;
  }
  /// The value of the cluster's key and its mod_revision; nothing when it is not there.
  [[nodiscard]] const std::optional<etcd::KeyValue>& cluster() const noexcept { return cluster_; }

 private:
  void put(const etcd::KeyValue& kv, std::vector<MembershipEvent>& events);
  void remove(const std::string& key, std::vector<MembershipEvent>& events);
  void put_leader(const etcd::KeyValue& kv, std::vector<MembershipEvent>& events);
  void put_member(const std::string& node, const etcd::KeyValue& kv,
                  std::vector<MembershipEvent>& events);
  void put_in_sync(const etcd::KeyValue& kv, std::vector<MembershipEvent>& events);

  ClusterKeys keys_;
  std::int64_t revision_ = 0;
  std::optional<etcd::KeyValue> cluster_;
  std::optional<Key> leader_;
  bool leader_key_exists_ = false;
  std::optional<InSyncSet> in_sync_;
  std::map<std::string, Registration> members_;
};

}  // namespace sluice::kv
