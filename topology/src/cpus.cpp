// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/cpus.hpp"

#include <hwloc.h>
#include <pthread.h>

#include <cerrno>
#include <memory>
#include <string>

#include "this_topology.hpp"

namespace sluice::topology {
namespace {

struct BitmapDeleter {
  void operator()(hwloc_bitmap_s* bitmap) const noexcept { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapDeleter>;

}  // namespace

Result<std::vector<unsigned>> allowed_cpus() {
  auto topology = this_topology();
  if (!topology) return topology.status();
  CpuSet cpus = CpuSet::from_hwloc(hwloc_topology_get_allowed_cpuset(*topology));
  if (!inherited_affinity().empty()) cpus &= inherited_affinity();
  return cpus.to_vector();
}

Result<CpuSet> cgroup_cpus() {
  auto topology = this_topology();
  if (!topology) return topology.status();
  return CpuSet::from_hwloc(hwloc_topology_get_allowed_cpuset(*topology));
}

Status bind_current_thread(unsigned cpu) {
  CpuSet only;
  only.add(cpu);
  return bind_current_thread(only);
}

Status bind_current_thread(const CpuSet& pus) {
  if (pus.empty()) {
    return Status(StatusCode::invalid_argument, "a thread cannot be bound to no CPU at all");
  }
  auto topology = this_topology();
  if (!topology) return topology.status();
  if (hwloc_set_cpubind(*topology, pus.native(), HWLOC_CPUBIND_THREAD) != 0) {
    return Status(StatusCode::permission_denied,
                  "the kernel refused to bind a thread to CPU " + pus.to_string(), errno);
  }
  const CpuSet actual = current_thread_binding();
  if (actual != pus) {
    return Status(StatusCode::internal, "a thread bound to CPU " + pus.to_string() +
                                            " reads back another binding: " + actual.to_string());
  }
  return {};
}

CpuSet current_thread_binding() {
  auto topology = this_topology();
  if (!topology) return {};
  const Bitmap actual(hwloc_bitmap_alloc());
  if (hwloc_get_cpubind(*topology, actual.get(), HWLOC_CPUBIND_THREAD) != 0) return {};
  return CpuSet::from_hwloc(actual.get());
}

void name_current_thread(std::string_view name) {
  constexpr std::size_t kNameMax = 15;
  pthread_setname_np(pthread_self(), std::string(name.substr(0, kNameMax)).c_str());
}

}  // namespace sluice::topology
