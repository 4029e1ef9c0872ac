// SPDX-License-Identifier: BSD-3-Clause
#include <hwloc.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "machine_snapshot.hpp"

namespace sluice::topology {
namespace {

namespace fs = std::filesystem;

struct Locality {
  unsigned node = kNone;
  std::string source;
};

/// Where the object that a device hangs below lies: on one node, or on none in particular.
Locality locality_of(hwloc_topology* topology, hwloc_obj_t device, const std::vector<Pu>& pus,
                     const std::string& what) {
  hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology, device);
  unsigned node = kNone;
  for (const Pu& pu : pus) {
    if (near == nullptr || hwloc_bitmap_isset(near->cpuset, pu.os_index) == 0) continue;
    if (node != kNone && pu.node != node) {
      if (near->type == HWLOC_OBJ_MACHINE) return {kNone, what + " is near no node in particular"};
      return {node, what + ", near several nodes, this the first of them"};
    }
    node = pu.node;
  }
  if (node == kNone) return {kNone, what + " is near no CPU"};
  return {node, what};
}

hwloc_obj_t find_os_device(hwloc_topology* topology, const std::string& name,
                           hwloc_obj_osdev_type_t type) {
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_osdev(topology, object)) != nullptr) {
    if (object->attr->osdev.type == type && object->name != nullptr && object->name == name)
      return object;
  }
  return nullptr;
}

/// The names in a folder; none where it is not, or goes away meanwhile.
std::vector<std::string> entries_of(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename());
  }
  return names;
}

/// The network device under an RDMA device that the kernel made of it (soft-RoCE, iWARP); empty
/// where there is none.
std::string netdev_of(const std::string& device) {
  const fs::path of = fs::path("/sys/class/infiniband") / device;
  for (const char* file : {"parent", "ports/1/gid_attrs/ndevs/0"}) {
    std::ifstream in(of / file);
    std::string name;
    if (std::getline(in, name) && !name.empty()) return name;
  }
  const std::vector<std::string> names = entries_of(of / "device/net");
  return names.empty() ? std::string() : names.front();
}

Locality locality_by_netdev(hwloc_topology* topology, const std::string& device,
                            const std::vector<Pu>& pus) {
  const std::string netdev = netdev_of(device);
  if (netdev.empty()) return {kNone, "neither hwloc nor the kernel tells where it is"};
  hwloc_obj_t object = find_os_device(topology, netdev, HWLOC_OBJ_OSDEV_NETWORK);
  if (object == nullptr) return {kNone, "its network device " + netdev + " is virtual"};
  return locality_of(topology, object, pus, "its network device " + netdev);
}

/// Names of RDMA devices that the kernel or the verbs library knows.
std::vector<std::string> system_devices() {
  std::vector<std::string> names = entries_of("/sys/class/infiniband");
  int count = 0;
  if (ibv_device** const devices = ibv_get_device_list(&count); devices != nullptr) {
    for (int i = 0; i < count; ++i) names.emplace_back(ibv_get_device_name(devices[i]));
    ibv_free_device_list(devices);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

std::vector<Nic> read_nics(hwloc_topology* topology, const std::vector<Pu>& pus,
                           const std::vector<Node>& nodes, bool this_machine) {
  std::vector<Nic> nics;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_osdev(topology, object)) != nullptr) {
    if (object->attr->osdev.type != HWLOC_OBJ_OSDEV_OPENFABRICS || object->name == nullptr) {
      continue;
    }
    const Locality place = locality_of(topology, object, pus, "its PCI device");
    nics.push_back({object->name, place.node, place.source});
  }
  if (this_machine) {
    for (const std::string& name : system_devices()) {
      const auto known = [&](const Nic& nic) { return nic.name == name; };
      if (std::any_of(nics.begin(), nics.end(), known)) continue;
      const Locality place = locality_by_netdev(topology, name, pus);
      nics.push_back({name, place.node, place.source});
    }
  }
  const auto with_cpus = [](const Node& node) { return !node.pus.empty(); };
  if (std::count_if(nodes.begin(), nodes.end(), with_cpus) == 1) {
    const auto only = std::find_if(nodes.begin(), nodes.end(), with_cpus) - nodes.begin();
    for (Nic& nic : nics) {
      if (nic.node != kNone) continue;
      nic.node = static_cast<unsigned>(only);
      nic.locality_source = "the only node with CPUs";
    }
  }
  return nics;
}

}  // namespace sluice::topology
