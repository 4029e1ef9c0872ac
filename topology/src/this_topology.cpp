// SPDX-License-Identifier: BSD-3-Clause
#include "this_topology.hpp"

#include <hwloc/linux.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <utility>

namespace sluice::topology {
namespace {

struct TopologyDeleter {
  void operator()(hwloc_topology* topology) const noexcept { hwloc_topology_destroy(topology); }
};
using TopologyPointer = std::unique_ptr<hwloc_topology, TopologyDeleter>;

}  // namespace

Result<hwloc_topology_t> this_topology() {
  static std::once_flag once;
  // Never destroyed: oneTBB's threads outlive main() and give back their bindings through it.
  static hwloc_topology_t loaded = nullptr;
  std::call_once(once, [] {
    hwloc_topology_t topology = nullptr;
    if (hwloc_topology_init(&topology) != 0) return;
    TopologyPointer owner(topology);
    hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
    if (hwloc_topology_load(topology) == 0) loaded = owner.release();
  });
  if (loaded == nullptr) {
    return Status(StatusCode::internal, "hwloc could not read this machine's topology");
  }
  return loaded;
}

const CpuSet& inherited_affinity() {
  static const CpuSet& known = *new CpuSet([] {  // as above: never destroyed
    CpuSet bound;
    const auto topology = this_topology();
    const std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_s*)> set(hwloc_bitmap_alloc(),
                                                                         hwloc_bitmap_free);
    if (topology && hwloc_linux_get_tid_cpubind(*topology, ::getpid(), set.get()) == 0) {
      bound = CpuSet::from_hwloc(set.get());
    }
    return bound;
  }());
  return known;
}

}  // namespace sluice::topology
