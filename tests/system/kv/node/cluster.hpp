// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client.hpp"
#include "sluice_test/etcd_server.hpp"
#include "sluice_test/process.hpp"

namespace sluice::kv::test {

using sluice::test::EtcdServers;
using sluice::test::Process;
using sluice::test::ReservedPort;
using sluice::test::TemporaryFolder;

/// Until a state must have come. Only a hang lasts so long, also on a machine with much else to do.
inline constexpr std::chrono::seconds kStatePatience{90};

/// The RDMA address of this machine: $RXE_ADDR, else 127.0.0.1.
[[nodiscard]] std::string device_address();

/// What runs sluice-kv with these arguments: on the software device unless there is another, with
/// softrdma's `faults` (its README) drawn from `seed`. A sanitizer's build has the device linked
/// in.
[[nodiscard]] std::vector<std::string> command_line(const std::vector<std::string>& arguments,
                                                    const std::string& faults = {},
                                                    std::uint64_t seed = 0);

/// A sluice-kv process that is run again and again on the same ports and the same data. Call it
/// from the thread that made it.
class Node {
 public:
  /// `arguments`: besides --data, --port and --node.
  Node(std::string id, std::string data, std::vector<std::string> arguments);

  void add_arguments(const std::vector<std::string>& more);
  /// Starts the process; does not wait. See Process for how it ends with this one.
  void start(const std::string& faults = {}, std::uint64_t seed = 0);
  /// Waits until it says that it listens.
  [[nodiscard]] bool listens();
  void kill() { process_->kill(); }
  void freeze() { process_->freeze(); }
  void go_on() { process_->go_on(); }
  /// SIGTERM, and its exit status.
  int end();

  [[nodiscard]] Process& process() { return *process_; }
  [[nodiscard]] const std::string& id() const { return id_; }
  [[nodiscard]] const std::string& data() const { return data_; }
  [[nodiscard]] Address address() const { return {"127.0.0.1", port_.number()}; }
  /// HOST:PORT for --replication.
  [[nodiscard]] std::string replication() const {
    return device_address() + ":" + std::to_string(replication_port_.number());
  }
  /// Its INFO now, asked on a new connection; nothing: it does not answer (soon).
  [[nodiscard]] std::optional<Info> info(const std::string& section = "replication",
                                         const std::string& password = {}) const;
  /// The last lines it has said.
  [[nodiscard]] std::string last_words(std::size_t lines_max = 25) const;

 private:
  std::string id_, data_;
  std::vector<std::string> arguments_;
  ReservedPort port_, replication_port_;
  std::unique_ptr<Process> process_;
};

/// Asks again and again until the answer is yes; false: kStatePatience is over.
[[nodiscard]] bool eventually(const std::function<bool()>& is_so);

struct ClusterOptions {
  std::vector<std::string> ids{"a", "b", "c"};
  std::size_t etcds = 1;               ///< 0: static configuration, led by the first
  int lease_s = 1;                     ///< etcd may give more
  std::vector<std::string> arguments;  ///< for every node
};

/// Nodes and their etcd on loopback, in a temporary folder. All are ended with it.
class Cluster {
 public:
  explicit Cluster(ClusterOptions options = {});

  [[nodiscard]] Node& operator[](const std::string& id) { return *nodes_.at(id); }
  [[nodiscard]] EtcdServers& etcd() { return *etcd_; }
  [[nodiscard]] const std::vector<std::string>& ids() const { return options_.ids; }
  [[nodiscard]] std::vector<std::string> without(const std::string& id) const;
  void start_all();

  [[nodiscard]] ClientOptions client_options(const std::string& durability = {}) const;
  [[nodiscard]] ClusterClient client(const std::string& durability = {}) const {
    return ClusterClient(client_options(durability));
  }

  /// The node that serves as the primary; empty: none now.
  [[nodiscard]] std::string primary() const;
  /// Waits until one serves, not `other_than`; empty: none does.
  [[nodiscard]] std::string wait_for_primary(const std::string& other_than = {});
  /// Waits until there is a primary in whose in-sync set are these and no others, all of which have
  /// all it has on their disks. Empty: that has not come.
  [[nodiscard]] std::string wait_until_in_sync(std::vector<std::string> members);
  [[nodiscard]] std::string wait_until_in_sync() { return wait_until_in_sync(options_.ids); }
  /// What all say of themselves, for the message of a test that has failed.
  [[nodiscard]] std::string state() const;

 private:
  const ClusterOptions options_;
  TemporaryFolder folder_;
  std::unique_ptr<EtcdServers> etcd_;
  std::map<std::string, std::unique_ptr<Node>> nodes_;
};

}  // namespace sluice::kv::test
