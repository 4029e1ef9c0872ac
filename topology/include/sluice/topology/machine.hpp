// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/core/status.hpp"
#include "sluice/topology/cpu_set.hpp"

struct hwloc_topology;

namespace sluice::topology {

/// "There is none": a PU without an L3, a NIC whose node nobody knows.
inline constexpr unsigned kNone = ~0U;

/// A hardware thread; what the kernel calls a CPU.
struct Pu {
  unsigned os_index = 0;
  unsigned core = 0;        ///< index into Machine::cores()
  unsigned l3 = kNone;      ///< index into Machine::l3s(); kNone without an L3
  unsigned node = kNone;    ///< index into Machine::nodes(), of the one that has CPUs
  bool allowed = true;      ///< online and in this process's cgroup
  bool in_affinity = true;  ///< in the affinity this process was started with (taskset)
  bool isolated = false;    ///< isolcpus=: the scheduler puts nothing there by itself
};

struct Core {
  std::vector<unsigned> pus;  ///< indices into Machine::pus(): the SMT siblings
  unsigned l3 = kNone;
  unsigned node = kNone;
  bool efficient = false;  ///< an efficiency core, on a machine that has two or more kinds
};

struct L3 {
  std::vector<unsigned> cores;  ///< indices into Machine::cores()
  unsigned node = kNone;
};

struct Node {
  unsigned os_index = 0;
  std::uint64_t bytes = 0;    ///< local memory; 0 where unknown
  std::vector<unsigned> pus;  ///< indices into Machine::pus(); empty for a node without CPUs
  std::vector<std::uint64_t> distances;  ///< to each of nodes(), 10 = local; empty where unknown
  bool allowed = true;                   ///< memory there may be used (cpuset.mems)
};

/// An RDMA device.
struct Nic {
  std::string name;             ///< as ibv_devinfo(1) lists it: "mlx5_0"
  unsigned node = kNone;        ///< index into Machine::nodes(); kNone: not known
  std::string locality_source;  ///< how the node is known, or why it is not; a phrase for people
};

/// What a machine looks like: an immutable snapshot of hwloc's view. Indices (unless called
/// os_index) are positions in its vectors, in hwloc's logical order, so neighbours are near.
/// Thread-safety: const, shared freely. Cost: copies share one snapshot.
class Machine {
 public:
  /// This machine as this process may use it. Reads much of /sys: some ms.
  [[nodiscard]] static Result<Machine> this_machine();
  /// A machine that lstopo saved. Its affinity and isolation are unknown: everything allowed is in.
  [[nodiscard]] static Result<Machine> from_xml_file(const std::string& path);
  [[nodiscard]] static Result<Machine> from_xml(std::string_view xml);
  /// hwloc's notation: "numa:2 l3:2 core:4 pu:2".
  [[nodiscard]] static Result<Machine> from_synthetic(const std::string& description);
  /// From what a person typed: empty is this machine, a name of a file that exists (or that ends in
  /// .xml) an XML file, anything else synthetic.
  [[nodiscard]] static Result<Machine> load(const std::string& what);

  /// The same machine under another circumstance: for tests, and to ask "what if".
  [[nodiscard]] Machine with_allowed(const CpuSet& pus) const;
  [[nodiscard]] Machine with_affinity(const CpuSet& pus) const;
  [[nodiscard]] Machine with_isolated(const CpuSet& pus) const;
  [[nodiscard]] Machine with_efficient(const CpuSet& pus) const;  ///< the cores that have these
  /// `node_os_index`: kNone for one that is nowhere in particular.
  [[nodiscard]] Machine with_nic(const std::string& name, unsigned node_os_index) const;

  [[nodiscard]] const std::vector<Pu>& pus() const noexcept;
  [[nodiscard]] const std::vector<Core>& cores() const noexcept;
  [[nodiscard]] const std::vector<L3>& l3s() const noexcept;
  [[nodiscard]] const std::vector<Node>& nodes() const noexcept;
  [[nodiscard]] const std::vector<Nic>& nics() const noexcept;
  [[nodiscard]] const std::string& name() const noexcept;  ///< "this machine", or the file
  [[nodiscard]] bool is_this_machine() const noexcept;
  [[nodiscard]] const CpuSet& offline() const noexcept;  ///< exist, but cannot run anything

  [[nodiscard]] CpuSet allowed() const;  ///< online and in the cgroup: nothing can go beyond
  /// What threads may use that the configuration names no CPUs for: allowed, in the affinity, not
  /// isolated (unless that leaves nothing, e.g. under `taskset -c <isolated CPUs>`).
  [[nodiscard]] CpuSet usable() const;
  [[nodiscard]] CpuSet all() const;
  /// The indices into pus() / nodes() for an OS index.
  [[nodiscard]] std::optional<unsigned> pu_of(unsigned os_index) const noexcept;
  [[nodiscard]] std::optional<unsigned> node_of(unsigned os_index) const noexcept;
  [[nodiscard]] const Nic* find_nic(std::string_view name) const noexcept;

  /// The PUs that a person means by
  ///   "0-3,8"              OS indices of PUs
  ///   "l3:2.core:0-3"      hwloc objects by logical index, outer to inner:
  ///   type:index[-index|,...],
  ///                        "all", "odd", "even"; types: machine, package, numa (node), l1..l4,
  ///                        core, pu, group
  ///   "os=mlx5_0"          the PUs near an OS device; "pci=0000:3b:00.0" near a PCI device
  /// or several of these with blanks or '+' between. Fails with invalid_argument, naming the part
  /// and what there is instead. What exists but is not allowed is included: the caller decides.
  [[nodiscard]] Result<CpuSet> locate(std::string_view text) const;

  /// hwloc's own, for what is not said here. Shared by all copies: never to be changed.
  [[nodiscard]] hwloc_topology* native() const noexcept;

 private:
  struct Snapshot;
  explicit Machine(std::shared_ptr<const Snapshot> snapshot) noexcept;
  [[nodiscard]] static Result<Machine> from_native(std::string name,
                                                   std::shared_ptr<hwloc_topology> topology);
  template <typename Change>
  [[nodiscard]] Machine changed(Change&& change) const;
  template <typename Predicate>
  [[nodiscard]] CpuSet pus_where(Predicate&& predicate) const;
  std::shared_ptr<const Snapshot> snapshot_;
};

}  // namespace sluice::topology
