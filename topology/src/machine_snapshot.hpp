// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <hwloc.h>

#include <memory>
#include <string>
#include <vector>

#include "sluice/topology/machine.hpp"

namespace sluice::topology {

/// What the copies of a Machine share. Filled once, const from then on.
struct Machine::Snapshot {
  std::string name;
  bool this_machine = false;
  std::shared_ptr<hwloc_topology> native;
  std::vector<Pu> pus;
  std::vector<Core> cores;
  std::vector<L3> l3s;
  std::vector<Node> nodes;
  std::vector<Nic> nics;
  CpuSet offline;
};

/// Reads nodes, cores, PUs and what may be used out of a loaded topology. A friend by being given
/// the parts: fills everything but the NICs.
struct MachineParts {
  std::vector<Pu>& pus;
  std::vector<Core>& cores;
  std::vector<L3>& l3s;
  std::vector<Node>& nodes;
  CpuSet& offline;
};
void read_processors(hwloc_topology* topology, const MachineParts& into);

/// The RDMA devices: hwloc's OpenFabrics OS devices and, on this machine, those that only the
/// kernel or the verbs library knows (soft-RoCE, softrdma).
[[nodiscard]] std::vector<Nic> read_nics(hwloc_topology* topology, const std::vector<Pu>& pus,
                                         const std::vector<Node>& nodes, bool this_machine);

/// Machine::locate().
[[nodiscard]] Result<CpuSet> locate_pus(hwloc_topology* topology, const Machine& machine,
                                        std::string_view text);

}  // namespace sluice::topology
