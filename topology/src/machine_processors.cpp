// SPDX-License-Identifier: BSD-3-Clause
#include <hwloc.h>

#include <algorithm>
#include <map>

#include "machine_snapshot.hpp"

namespace sluice::topology {
namespace {

void read_nodes(hwloc_topology* topology, std::vector<Node>& nodes) {
  const CpuSet allowed = CpuSet::from_hwloc(hwloc_topology_get_allowed_nodeset(topology));
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, object)) != nullptr) {
    Node node;
    node.os_index = object->os_index;
    node.bytes = object->attr->numanode.local_memory;
    node.allowed = allowed.contains(object->os_index);
    nodes.push_back(std::move(node));
  }
}

void read_distances(hwloc_topology* topology, std::vector<Node>& nodes) {
  unsigned count = 1;
  hwloc_distances_s* distances = nullptr;
  if (hwloc_distances_get_by_type(topology, HWLOC_OBJ_NUMANODE, &count, &distances,
                                  HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) != 0 ||
      count == 0) {
    return;
  }
  std::map<unsigned, unsigned> index_of;
  for (unsigned i = 0; i < nodes.size(); ++i) index_of[nodes[i].os_index] = i;
  if (distances->nbobjs == nodes.size()) {
    for (unsigned from = 0; from < distances->nbobjs; ++from) {
      auto& row = nodes[index_of.at(distances->objs[from]->os_index)].distances;
      row.assign(nodes.size(), 0);
      for (unsigned to = 0; to < distances->nbobjs; ++to) {
        row[index_of.at(distances->objs[to]->os_index)] =
            distances->values[from * distances->nbobjs + to];
      }
    }
  }
  hwloc_distances_release(topology, distances);
}

/// The node whose CPUs these are. Where several are equally near (a KNL's DDR and MCDRAM), the
/// kernel has the CPUs in the one it numbers first; the other is a node without CPUs.
hwloc_obj_t own_node(hwloc_obj_t pu) {
  for (hwloc_obj_t up = pu; up != nullptr; up = up->parent) {
    hwloc_obj_t first = nullptr;
    for (hwloc_obj_t child = up->memory_first_child; child != nullptr;
         child = child->next_sibling) {
      hwloc_obj_t node = child;
      while (node != nullptr && node->type != HWLOC_OBJ_NUMANODE) node = node->memory_first_child;
      if (node != nullptr && (first == nullptr || node->os_index < first->os_index)) first = node;
    }
    if (first != nullptr) return first;
  }
  return nullptr;
}

/// The cores that the kernel ranks below the fastest kind.
CpuSet efficient_pus(hwloc_topology* topology) {
  CpuSet efficient;
  const int kinds = hwloc_cpukinds_get_nr(topology, 0);
  for (int kind = 0; kind + 1 < kinds; ++kind) {
    CpuSet pus;
    int efficiency = -1;
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (hwloc_cpukinds_get_info(topology, static_cast<unsigned>(kind), set, &efficiency, nullptr,
                                nullptr, 0) == 0 &&
        efficiency >= 0) {
      efficient |= CpuSet::from_hwloc(set);
    }
    hwloc_bitmap_free(set);
  }
  return efficient;
}

/// Objects above a PU, numbered in the order in which they are met.
template <typename Item>
unsigned index_of(hwloc_obj_t object, std::map<hwloc_obj_t, unsigned>& known,
                  std::vector<Item>& items) {
  const auto [found, added] = known.try_emplace(object, static_cast<unsigned>(items.size()));
  if (added) items.emplace_back();
  return found->second;
}

}  // namespace

void read_processors(hwloc_topology* topology, const MachineParts& into) {
  read_nodes(topology, into.nodes);
  read_distances(topology, into.nodes);
  const CpuSet allowed = CpuSet::from_hwloc(hwloc_topology_get_allowed_cpuset(topology));
  const CpuSet efficient = efficient_pus(topology);
  std::map<hwloc_obj_t, unsigned> cores;
  std::map<hwloc_obj_t, unsigned> l3s;
  std::map<unsigned, unsigned> nodes;
  for (unsigned i = 0; i < into.nodes.size(); ++i) nodes[into.nodes[i].os_index] = i;

  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, object)) != nullptr) {
    const auto position = static_cast<unsigned>(into.pus.size());
    Pu pu;
    pu.os_index = object->os_index;
    pu.allowed = allowed.contains(object->os_index);
    if (hwloc_obj_t node = own_node(object); node != nullptr) {
      pu.node = nodes.at(node->os_index);
      into.nodes[pu.node].pus.push_back(position);
    }
    // A PU without a core above it (some virtual machines) is a core of its own.
    hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, object);
    pu.core = index_of(core != nullptr ? core : object, cores, into.cores);
    const bool first_of_core = into.cores[pu.core].pus.empty();
    if (hwloc_obj_t l3 = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_L3CACHE, object);
        l3 != nullptr) {
      pu.l3 = index_of(l3, l3s, into.l3s);
      into.l3s[pu.l3].node = pu.node;
      if (first_of_core) into.l3s[pu.l3].cores.push_back(pu.core);
    }
    Core& of = into.cores[pu.core];
    of.pus.push_back(position);
    of.l3 = pu.l3;
    of.node = pu.node;
    of.efficient = efficient.contains(pu.os_index);
    into.pus.push_back(pu);
  }
  into.offline = CpuSet::from_hwloc(hwloc_topology_get_complete_cpuset(topology)) -
                 CpuSet::from_hwloc(hwloc_topology_get_topology_cpuset(topology));
}

}  // namespace sluice::topology
