// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/cpus.hpp"

#include <hwloc.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>
#include <string>

#include "this_topology.hpp"

namespace sluice::topology {
namespace {

struct BitmapDeleter {
  void operator()(hwloc_bitmap_s* bitmap) const noexcept { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapDeleter>;

constexpr unsigned kCpuIndexMax = 1U << 20;  ///< beyond any kernel's NR_CPUS: a typing error

Result<unsigned> parse_index(std::string_view text, std::string_view whole) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value > kCpuIndexMax) {
    return Status(StatusCode::invalid_argument, "'" + std::string(text) + "' in the CPU list '" +
                                                    std::string(whole) +
                                                    "' is no CPU index (a list looks like 0-3,8)");
  }
  return value;
}

}  // namespace

Result<std::vector<unsigned>> allowed_cpus() {
  auto topology = this_topology();
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

Result<std::vector<unsigned>> parse_cpu_list(std::string_view text) {
  std::vector<unsigned> cpus;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const std::size_t dash = part.find('-');
    auto first = parse_index(part.substr(0, dash), text);
    if (!first) return first.status();
    auto last = dash == std::string_view::npos ? first : parse_index(part.substr(dash + 1), text);
    if (!last) return last.status();
    if (*last < *first) {
      return Status(StatusCode::invalid_argument, "the range '" + std::string(part) +
                                                      "' in the CPU list '" + std::string(text) +
                                                      "' ends before it begins");
    }
    for (unsigned cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
    begin = end + 1;
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
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
