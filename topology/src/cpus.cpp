// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/cpus.hpp"

#include <hwloc.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>
#include <mutex>

namespace sluice::topology {
namespace {

struct TopologyDeleter {
  void operator()(hwloc_topology* topology) const noexcept { hwloc_topology_destroy(topology); }
};
using TopologyPointer = std::unique_ptr<hwloc_topology, TopologyDeleter>;

struct BitmapDeleter {
  void operator()(hwloc_bitmap_s* bitmap) const noexcept { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapDeleter>;

/// hwloc's view of this machine, loaded once: loading reads much of /sys.
Result<hwloc_topology_t> machine() {
  static std::once_flag once;
  static TopologyPointer loaded;
  std::call_once(once, [] {
    hwloc_topology_t topology = nullptr;
    if (hwloc_topology_init(&topology) != 0) return;
    TopologyPointer owner(topology);
    hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
    if (hwloc_topology_load(topology) == 0) loaded = std::move(owner);
  });
  if (!loaded) return Status(StatusCode::internal, "hwloc could not read this machine's topology");
  return loaded.get();
}

}  // namespace

Result<std::vector<unsigned>> allowed_cpus() {
  auto topology = machine();
  if (!topology) return topology.status();
  const Bitmap bound(hwloc_bitmap_alloc());
  hwloc_bitmap_copy(bound.get(), hwloc_topology_get_allowed_cpuset(*topology));
  const Bitmap inherited(hwloc_bitmap_alloc());
  if (hwloc_get_cpubind(*topology, inherited.get(), HWLOC_CPUBIND_PROCESS) == 0) {
    hwloc_bitmap_and(bound.get(), bound.get(), inherited.get());
  }
  std::vector<unsigned> cpus;
  for (int cpu = hwloc_bitmap_first(bound.get()); cpu >= 0;
       cpu = hwloc_bitmap_next(bound.get(), cpu)) {
    cpus.push_back(static_cast<unsigned>(cpu));
  }
  return cpus;
}

Status bind_current_thread(unsigned cpu) {
  auto topology = machine();
  if (!topology) return topology.status();
  const Bitmap wanted(hwloc_bitmap_alloc());
  hwloc_bitmap_only(wanted.get(), cpu);
  if (hwloc_set_cpubind(*topology, wanted.get(), HWLOC_CPUBIND_THREAD) != 0) {
    return Status(StatusCode::permission_denied,
                  "the kernel refused to bind a thread to CPU " + std::to_string(cpu), errno);
  }
  const Bitmap actual(hwloc_bitmap_alloc());
  if (hwloc_get_cpubind(*topology, actual.get(), HWLOC_CPUBIND_THREAD) != 0 ||
      !hwloc_bitmap_isequal(actual.get(), wanted.get())) {
    return Status(StatusCode::internal,
                  "a thread bound to CPU " + std::to_string(cpu) + " reads back another binding");
  }
  return {};
}

void name_current_thread(std::string_view name) {
  constexpr std::size_t kNameMax = 15;
  pthread_setname_np(pthread_self(), std::string(name.substr(0, kNameMax)).c_str());
}

}  // namespace sluice::topology
