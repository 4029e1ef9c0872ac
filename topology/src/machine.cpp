// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/machine.hpp"

#include <hwloc.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>

#include "machine_snapshot.hpp"
#include "this_topology.hpp"

namespace sluice::topology {
namespace {

using Native = std::shared_ptr<hwloc_topology>;

/// Where a loaded topology comes from: set before it is loaded.
template <typename SetSource>
Result<Native> load_native(const std::string& what, SetSource&& set_source) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    return Status(StatusCode::resource_exhausted, "hwloc could not be set up", errno);
  }
  Native topology(raw, [](hwloc_topology* old) { hwloc_topology_destroy(old); });
  // What may not be used stays in the picture: a plan says why a CPU was left out.
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  errno = 0;
  if (set_source(raw) != 0) {
    return Status(StatusCode::invalid_argument, what + ": hwloc cannot read this", errno);
  }
  if (hwloc_topology_load(raw) != 0) {
    return Status(StatusCode::invalid_argument, what + ": hwloc cannot load this", errno);
  }
  return topology;
}

/// What the kernel lets a process do with CPUs beyond what hwloc tells.
void read_process_limits(std::vector<Pu>& pus) {
  const CpuSet& affinity = inherited_affinity();
  const bool known = !affinity.empty();
  std::string list;
  std::ifstream file("/sys/devices/system/cpu/isolated");
  std::getline(file, list);
  const auto isolated = list.empty() ? Result<CpuSet>(CpuSet{}) : CpuSet::parse(list);
  for (Pu& pu : pus) {
    pu.in_affinity = !known || affinity.contains(pu.os_index);
    pu.isolated = isolated.ok() && isolated->contains(pu.os_index);
  }
}

}  // namespace

Machine::Machine(std::shared_ptr<const Snapshot> snapshot) noexcept
    : snapshot_(std::move(snapshot)) {}

Result<Machine> Machine::from_native(std::string name, Native topology) {
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->name = std::move(name);
  snapshot->this_machine = hwloc_topology_is_thissystem(topology.get()) != 0;
  read_processors(topology.get(), {snapshot->pus, snapshot->cores, snapshot->l3s, snapshot->nodes,
                                   snapshot->offline});
  if (snapshot->pus.empty()) {
    return Status(StatusCode::invalid_argument, snapshot->name + ": there is no CPU in it");
  }
  if (snapshot->this_machine) read_process_limits(snapshot->pus);
  snapshot->nics =
      read_nics(topology.get(), snapshot->pus, snapshot->nodes, snapshot->this_machine);
  snapshot->native = std::move(topology);
  return Machine(std::move(snapshot));
}

Result<Machine> Machine::this_machine() {
  auto native = load_native("this machine", [](hwloc_topology*) { return 0; });
  if (!native) return native.status();
  return from_native("this machine", std::move(*native));
}

Result<Machine> Machine::from_xml_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return Status(StatusCode::invalid_argument, path + ": there is no such file", ENOENT);
  }
  if (!std::filesystem::is_regular_file(path, error)) {
    return Status(StatusCode::invalid_argument, path + " is no file; lstopo FILE.xml writes one");
  }
  auto native = load_native(path, [&](hwloc_topology* topology) {
    return hwloc_topology_set_xml(topology, path.c_str());
  });
  if (!native) {
    return Status(StatusCode::invalid_argument,
                  path + ": not a topology that hwloc can read; lstopo FILE.xml writes one",
                  native.status().os_error());
  }
  return from_native(path, std::move(*native));
}

Result<Machine> Machine::from_xml(std::string_view xml) {
  const std::string text(xml);
  auto native = load_native("the XML", [&](hwloc_topology* topology) {
    return hwloc_topology_set_xmlbuffer(topology, text.c_str(), static_cast<int>(text.size()) + 1);
  });
  if (!native) return native.status();
  return from_native("an XML", std::move(*native));
}

Result<Machine> Machine::from_synthetic(const std::string& description) {
  auto native = load_native(description, [&](hwloc_topology* topology) {
    return hwloc_topology_set_synthetic(topology, description.c_str());
  });
  if (!native) {
    return Status(StatusCode::invalid_argument,
                  "'" + description +
                      "' is neither a file nor a synthetic topology; one looks like \"numa:2 l3:2 "
                      "core:4 pu:2\" (pu last), and lstopo FILE.xml saves a machine's");
  }
  return from_native("'" + description + "'", std::move(*native));
}

Result<Machine> Machine::load(const std::string& what) {
  if (what.empty()) return this_machine();
  std::error_code error;
  if (std::filesystem::exists(what, error) || what.ends_with(".xml")) return from_xml_file(what);
  return from_synthetic(what);
}

// --- what if
// ---------------------------------------------------------------------------------------

template <typename Change>
Machine Machine::changed(Change&& change) const {
  auto snapshot = std::make_shared<Snapshot>(*snapshot_);
  change(*snapshot);
  return Machine(std::move(snapshot));
}

Machine Machine::with_allowed(const CpuSet& pus) const {
  return changed([&](Snapshot& snapshot) {
    for (Pu& pu : snapshot.pus) pu.allowed = pus.contains(pu.os_index);
  });
}
Machine Machine::with_affinity(const CpuSet& pus) const {
  return changed([&](Snapshot& snapshot) {
    for (Pu& pu : snapshot.pus) pu.in_affinity = pus.contains(pu.os_index);
  });
}
Machine Machine::with_isolated(const CpuSet& pus) const {
  return changed([&](Snapshot& snapshot) {
    for (Pu& pu : snapshot.pus) pu.isolated = pus.contains(pu.os_index);
  });
}
Machine Machine::with_efficient(const CpuSet& pus) const {
  return changed([&](Snapshot& snapshot) {
    for (Core& core : snapshot.cores) {
      core.efficient = std::any_of(core.pus.begin(), core.pus.end(), [&](unsigned pu) {
        return pus.contains(snapshot.pus[pu].os_index);
      });
    }
  });
}
Machine Machine::with_nic(const std::string& name, unsigned node_os_index) const {
  return changed([&](Snapshot& snapshot) {
    std::erase_if(snapshot.nics, [&](const Nic& nic) { return nic.name == name; });
    snapshot.nics.push_back(
        {name, node_of(node_os_index).value_or(kNone), "placed there by request"});
  });
}

// --- what there is
// ---------------------------------------------------------------------------------

const std::vector<Pu>& Machine::pus() const noexcept {
  return snapshot_->pus;
}
const std::vector<Core>& Machine::cores() const noexcept {
  return snapshot_->cores;
}
const std::vector<L3>& Machine::l3s() const noexcept {
  return snapshot_->l3s;
}
const std::vector<Node>& Machine::nodes() const noexcept {
  return snapshot_->nodes;
}
const std::vector<Nic>& Machine::nics() const noexcept {
  return snapshot_->nics;
}
const std::string& Machine::name() const noexcept {
  return snapshot_->name;
}
bool Machine::is_this_machine() const noexcept {
  return snapshot_->this_machine;
}
const CpuSet& Machine::offline() const noexcept {
  return snapshot_->offline;
}
hwloc_topology* Machine::native() const noexcept {
  return snapshot_->native.get();
}

template <typename Predicate>
CpuSet Machine::pus_where(Predicate&& predicate) const {
  CpuSet set;
  for (const Pu& pu : snapshot_->pus) {
    if (predicate(pu)) set.add(pu.os_index);
  }
  return set;
}

CpuSet Machine::all() const {
  return pus_where([](const Pu&) { return true; });
}
CpuSet Machine::allowed() const {
  return pus_where([](const Pu& pu) { return pu.allowed; });
}
CpuSet Machine::usable() const {
  const CpuSet ordinary =
      pus_where([](const Pu& pu) { return pu.allowed && pu.in_affinity && !pu.isolated; });
  if (!ordinary.empty()) return ordinary;
  const CpuSet bound = pus_where([](const Pu& pu) { return pu.allowed && pu.in_affinity; });
  return bound.empty() ? allowed() : bound;
}

std::optional<unsigned> Machine::pu_of(unsigned os_index) const noexcept {
  for (unsigned i = 0; i < snapshot_->pus.size(); ++i) {
    if (snapshot_->pus[i].os_index == os_index) return i;
  }
  return std::nullopt;
}
std::optional<unsigned> Machine::node_of(unsigned os_index) const noexcept {
  for (unsigned i = 0; i < snapshot_->nodes.size(); ++i) {
    if (snapshot_->nodes[i].os_index == os_index) return i;
  }
  return std::nullopt;
}
const Nic* Machine::find_nic(std::string_view name) const noexcept {
  for (const Nic& nic : snapshot_->nics) {
    if (nic.name == name) return &nic;
  }
  return nullptr;
}

Result<CpuSet> Machine::locate(std::string_view text) const {
  return locate_pus(native(), *this, text);
}

}  // namespace sluice::topology
