// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/core/status.hpp"
#include "sluice/topology/config.hpp"
#include "sluice/topology/machine.hpp"

namespace sluice::topology {

enum class ThreadRole : std::uint8_t { poller, worker, housekeeping };
[[nodiscard]] const char* to_string(ThreadRole role) noexcept;

/// One thread and its place. Indices into the Machine's vectors unless called os_index.
struct PlannedThread {
  std::string name;  ///< at most 15 bytes, unique: what ps(1) shows
  ThreadRole role = ThreadRole::poller;
  std::string group;         ///< the pollers group or the pool; empty for housekeeping
  unsigned pu = 0;           ///< index into Machine::pus()
  unsigned pu_os_index = 0;  ///< what the kernel calls it
  /// A poller: index into Machine::nics() of the one it serves, kNone without one.
  unsigned nic = kNone;
  /// A worker of a pool that is split by node: the node whose pollers feed it. kNone: all feed it.
  unsigned home_node = kNone;
  /// The node that it has to lie on: a worker of a pool on all nodes, a poller that workers would
  /// drive to and fro. kNone: any.
  unsigned only_node = kNone;
  /// Of a poller: the node its buffers go to. kNone: left to the kernel.
  unsigned memory_node = kNone;
  /// Of a poller: how many of connections_max it gets when all are there.
  std::uint32_t connections = 0;
  std::string reason;  ///< one sentence for people
};

/// What is wrong with a placement, worst first; compared in this order. Pollers and workers count
/// as busy threads (under load they are), housekeeping does not.
struct Cost {
  std::uint32_t disallowed = 0;     ///< threads on PUs that they may not use
  std::uint32_t shared_cores = 0;   ///< busy threads beyond the first of each core
  std::uint32_t off_node = 0;       ///< pollers off their NIC's node
  std::uint32_t busy_siblings = 0;  ///< pollers with another busy thread on their core
  std::uint32_t split_l3 = 0;       ///< (poller, worker that it feeds) under different L3s
  std::uint32_t imbalance = 0;  ///< connections: most minus fewest per poller of a group, beyond 1
  auto operator<=>(const Cost&) const = default;
  /// "on disallowed PUs 0, sharing a core 2, ..."
  [[nodiscard]] std::string to_string() const;
};

/// The workers of a pool that belong together: one instance, or one for each node.
struct PlannedPool {
  std::string name;       ///< the pool's name in the configuration
  unsigned node = kNone;  ///< index into Machine::nodes(); kNone: one instance for all pollers
  std::vector<unsigned> threads;  ///< indices into Plan::threads
};

/// Where every thread goes, and why. A value.
struct Plan {
  Config config;  ///< what was asked for, the "auto" ones still unset
  Machine machine;
  /// Pollers in the order of their groups, then the workers of each pool instance, then
  /// housekeeping.
  std::vector<PlannedThread> threads;
  std::vector<PlannedPool> pools;
  std::vector<std::string> degraded;  ///< what had to be given up, a sentence each; empty: nothing
  std::vector<std::string> notes;     ///< what a careful reader wants to know (dropped CPUs, ...)
  Cost cost;

  [[nodiscard]] std::uint32_t poller_count() const noexcept;
  /// {"threads":[{"name","role","pu","core","l3","node","nic","reason"}],"degraded":[],"cost"}: pu
  /// and node are OS indices, core and l3 logical ones; nulls where there is none.
  [[nodiscard]] std::string to_json() const;
  /// For people.
  [[nodiscard]] std::string to_table() const;
};

/// Places the threads of a configuration on a machine: pure, the same input gives the same plan.
/// Too little hardware gives a degraded plan. Fails with invalid_argument, a line for each value
/// that can never work on this machine (no such device, a CPU set outside the cgroup), with its
/// origin.
[[nodiscard]] Result<Plan> place(const Machine& machine, const Config& config);

/// The cost of threads at their places; `allowed[i]` is what thread i may use.
[[nodiscard]] Cost cost_of(const Machine& machine, const Config& config,
                           const std::vector<PlannedThread>& threads,
                           const std::vector<CpuSet>& allowed);
/// What each thread of a plan may use: what its group names, else Machine::usable().
[[nodiscard]] Result<std::vector<CpuSet>> allowed_sets(const Machine& machine, const Config& config,
                                                       const std::vector<PlannedThread>& threads);

/// An lstopo-ready XML: the machine with the plan's threads as annotations and colours.
[[nodiscard]] Result<std::string> annotated_xml(const Plan& plan);

}  // namespace sluice::topology
