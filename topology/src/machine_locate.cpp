// SPDX-License-Identifier: BSD-3-Clause
#include <hwloc.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "machine_snapshot.hpp"

namespace sluice::topology {
namespace {

constexpr std::size_t kTextMax = 4096;  ///< of a location; longer ones are a mistake
constexpr std::size_t kStepsMax = 16;   ///< of "package:0.l3:1.core:2"

Status wrong(std::string_view part, const std::string& why) {
  return {StatusCode::invalid_argument, "'" + std::string(part) + "' " + why};
}

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// "0-3", "1", "2-", "all", "odd", "even", or several with commas: which of `count` objects.
Result<std::vector<unsigned>> read_indices(std::string_view text, unsigned count,
                                           std::string_view part) {
  std::vector<unsigned> indices;
  const auto add = [&](unsigned first, unsigned last, unsigned step) {
    for (unsigned i = first; i <= last && i < count; i += step) indices.push_back(i);
  };
  for (const std::string_view one : split(text, ",")) {
    if (one == "all") {
      add(0, count, 1);
    } else if (one == "even" || one == "odd") {
      add(one == "odd" ? 1 : 0, count, 2);
    } else {
      unsigned first = 0;
      unsigned last = 0;
      const char* const end = one.data() + one.size();
      auto [at, error] = std::from_chars(one.data(), end, first);
      last = first;
      if (error == std::errc{} && at != end && *at == '-') {
        last = count == 0 ? 0 : count - 1;
        if (++at != end) {
          const auto parsed = std::from_chars(at, end, last);
          at = parsed.ptr;
          error = parsed.ec;
        }
      }
      if (error != std::errc{} || at != end || last < first) {
        return wrong(part, "has no index in '" + std::string(one) +
                               "'; one looks like 0, 0-3, 2-, all, odd, even");
      }
      if (last >= count) {
        return wrong(part, "names number " + std::to_string(last) + ", but there are " +
                               std::to_string(count) + ", counted from 0");
      }
      add(first, last, 1);
    }
  }
  return indices;
}

/// One "type:indices" below a set of PUs.
Result<CpuSet> step_into(hwloc_topology* topology, const CpuSet& within, std::string_view step,
                         std::string_view part) {
  const std::size_t colon = step.find(':');
  if (colon == std::string_view::npos) {
    return wrong(part, "is no place; one looks like 0-3,8 or numa:1 or l3:2.core:0-3 or os=mlx5_0");
  }
  const std::string name(step.substr(0, colon));
  hwloc_obj_type_t type = HWLOC_OBJ_TYPE_MAX;
  hwloc_obj_attr_u attributes{};
  if (name.empty() || hwloc_type_sscanf(name.c_str(), &type, &attributes, sizeof attributes) != 0 ||
      hwloc_obj_type_is_io(type) != 0) {
    return wrong(part, "has no kind of object '" + name +
                           "'; there are: package, numa, l3, l2, core, pu, group, machine");
  }
  const int count = hwloc_get_nbobjs_inside_cpuset_by_type(topology, within.native(), type);
  if (count < 0) {
    return wrong(part, "names objects ('" + name + "') that lie at several depths here");
  }
  const auto indices = read_indices(step.substr(colon + 1), static_cast<unsigned>(count), part);
  if (!indices) return indices.status();
  CpuSet found;
  for (const unsigned index : *indices) {
    if (hwloc_obj_t object =
            hwloc_get_obj_inside_cpuset_by_type(topology, within.native(), type, index);
        object != nullptr) {
      found |= CpuSet::from_hwloc(object->cpuset);
    }
  }
  return found;
}

Result<CpuSet> locate_path(hwloc_topology* topology, const CpuSet& all, std::string_view part) {
  const auto steps = split(part, ".");
  if (steps.size() > kStepsMax) return wrong(part.substr(0, 80), "is too deep");
  CpuSet set = all;
  for (const std::string_view step : steps) {
    auto inner = step_into(topology, set, step, part);
    if (!inner) return inner.status();
    set = std::move(*inner);
  }
  return set;
}

Result<CpuSet> near_device(hwloc_topology* topology, hwloc_obj_t device, std::string_view part) {
  hwloc_obj_t near = device == nullptr ? nullptr : hwloc_get_non_io_ancestor_obj(topology, device);
  if (near == nullptr) return wrong(part, "is no device of this machine");
  return CpuSet::from_hwloc(near->cpuset);
}

Result<CpuSet> near_os_device(hwloc_topology* topology, const Machine& machine,
                              const std::string& name, std::string_view part) {
  if (const Nic* nic = machine.find_nic(name); nic != nullptr && nic->node != kNone) {
    CpuSet set;
    for (const unsigned pu : machine.nodes()[nic->node].pus) set.add(machine.pus()[pu].os_index);
    return set;
  }
  std::string known;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_osdev(topology, object)) != nullptr) {
    if (object->name == nullptr) continue;
    if (object->name == name) return near_device(topology, object, part);
    known += (known.empty() ? "" : ", ") + std::string(object->name);
  }
  if (machine.find_nic(name) != nullptr) return machine.all();  // there, but near no node
  return wrong(part, "is no device of this machine; there are: " +
                         (known.empty() ? std::string("none") : known));
}

Result<CpuSet> locate_part(hwloc_topology* topology, const Machine& machine,
                           std::string_view part) {
  if (part.starts_with("os=")) {
    return near_os_device(topology, machine, std::string(part.substr(3)), part);
  }
  if (part.starts_with("pci=")) {
    const std::string bus(part.substr(4));
    return near_device(topology, hwloc_get_pcidev_by_busidstring(topology, bus.c_str()), part);
  }
  if (part.find_first_not_of("0123456789,-") == std::string_view::npos) {
    auto set = CpuSet::parse(part);
    if (set && !set->is_within(machine.all())) {
      return wrong(part, "names CPU " + (*set - machine.all()).to_string() + ", and there are " +
                             machine.all().to_string());
    }
    return set;
  }
  if (part == "all") return machine.all();
  return locate_path(topology, machine.all(), part);
}

}  // namespace

Result<CpuSet> locate_pus(hwloc_topology* topology, const Machine& machine, std::string_view text) {
  if (text.size() > kTextMax) {
    return Status(StatusCode::invalid_argument,
                  "a location of " + std::to_string(text.size()) + " characters is too long");
  }
  CpuSet found;
  bool any = false;
  for (const std::string_view part : split(text, " +\t")) {
    if (part.empty()) continue;
    any = true;
    auto set = locate_part(topology, machine, part);
    if (!set) return set.status();
    found |= *set;
  }
  if (!any) return Status(StatusCode::invalid_argument, "an empty text names no CPU");
  if (found.empty()) return wrong(text, "names no CPU");
  return found;
}

}  // namespace sluice::topology
