// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "child.hpp"
#include "client.hpp"
#include "options.hpp"
#include "sluice/core/status.hpp"

namespace demo {

/// What a node says of itself (INFO replication).
struct NodeState {
  std::string role;  ///< primary, replica, candidate
  std::uint64_t epoch = 0;
  std::vector<std::string> in_sync;
  std::uint64_t last_index = 0, durable_index = 0, applied_index = 0;
  std::string last_error;
  [[nodiscard]] bool has_in_sync(const std::string& node) const;
};

/// etcd and the nodes, as processes of this machine. One thread at a time, the one that outlives
/// the processes.
class Cluster {
 public:
  /// Starts all of them; does not wait until they are ready.
  [[nodiscard]] static sluice::Result<Cluster> start(const Options& options, const Folder& folder);

  [[nodiscard]] std::size_t size() const noexcept { return nodes_.size(); }
  [[nodiscard]] const std::string& name(std::size_t node) const { return nodes_[node].name; }
  /// Where clients reach it, on 127.0.0.1.
  [[nodiscard]] std::uint16_t port(std::size_t node) const { return nodes_[node].clients.number(); }
  [[nodiscard]] std::vector<std::uint16_t> ports() const;
  [[nodiscard]] bool running(std::size_t node) const { return nodes_[node].process.has_value(); }
  [[nodiscard]] pid_t pid(std::size_t node) const { return nodes_[node].process->pid(); }

  /// Asks it. A node that does not answer yet is a failure.
  [[nodiscard]] sluice::Result<NodeState> state(std::size_t node);
  /// The node that leads and serves, with what it says.
  struct Primary {
    std::size_t node = 0;
    NodeState state;
  };
  [[nodiscard]] std::optional<Primary> primary();
  /// Looks a hundred times a second until `done` says so. Fails when a process has ended by itself,
  /// when a signal came, and after kPatience: `what` says what was waited for.
  [[nodiscard]] sluice::Status wait_until(const std::string& what, Interrupts& interrupts,
                                          const std::function<bool()>& done);
  static constexpr std::chrono::seconds kPatience{60};

  /// kill -9
  void kill(std::size_t node);
  /// Starts it again, on its old data.
  [[nodiscard]] sluice::Status start_again(std::size_t node);
  /// Fails when a process has ended by itself.
  [[nodiscard]] sluice::Status check();
  /// Ends all, the nodes before etcd; fails when one did not end well.
  [[nodiscard]] sluice::Status end();

 private:
  struct Node {
    std::string name;
    Port clients, replication;
    std::optional<Child> process{};
    std::optional<Client> asked{};
  };
  Cluster(const Options& options, std::string folder, Port etcd, Port etcd_peers)
      : options_(options),
        folder_(std::move(folder)),
        etcd_port_(std::move(etcd)),
        etcd_peers_(std::move(etcd_peers)) {}
  [[nodiscard]] sluice::Status start_etcd();
  [[nodiscard]] sluice::Status start_node(Node& node);
  [[nodiscard]] std::string members() const;

  const Options options_;
  const std::string folder_;
  Port etcd_port_, etcd_peers_;
  std::optional<Child> etcd_;
  std::vector<Node> nodes_;
};

}  // namespace demo
