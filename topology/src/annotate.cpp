// SPDX-License-Identifier: BSD-3-Clause
// A plan as a picture: the machine, reduced to what placement looks at, with a coloured box for
// each thread inside its PU. Boxes are hwloc's Misc objects: several fit into one PU, each shows
// its name, and any lstopo draws them.
#include <hwloc.h>
#include <hwloc/export.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "sluice/topology/plan.hpp"

namespace sluice::topology {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const noexcept { hwloc_topology_destroy(topology); }
};
using Picture = std::unique_ptr<hwloc_topology, DestroyTopology>;

// lstopo(1), "CUSTOM COLORS". Apart for the colour-blind as well: red, blue, violet differ in
// lightness, too.
constexpr const char* kPoller = "Background=#e8604c;Text=#000000";
constexpr const char* kWorker = "Background=#8ecbff;Text=#000000";
constexpr const char* kHousekeeping = "Background=#d5b8f0;Text=#000000";
constexpr const char* kNic = "Background=#ffd84d;Text=#000000";
constexpr const char* kUnused = "Background=#a0a0a0;Text=#ffffff";
constexpr const char* kPlain = "Background=#ffffff;Text=#000000";

const char* style_of(ThreadRole role) noexcept {
  switch (role) {
    case ThreadRole::poller: return kPoller;
    case ThreadRole::worker: return kWorker;
    case ThreadRole::housekeeping: return kHousekeeping;
  }
  return kPlain;
}

Status failed(const char* what) {
  return {StatusCode::internal, std::string("the picture of the machine: hwloc cannot ") + what,
          errno};
}

Result<std::string> exported(hwloc_topology* topology) {
  char* buffer = nullptr;
  int length = 0;
  if (hwloc_topology_export_xmlbuffer(topology, &buffer, &length, 0) != 0)
    return failed("write XML");
  std::string xml(buffer);
  hwloc_free_xmlbuffer(topology, buffer);
  return xml;
}

/// Nodes, L3s, cores and PUs, and only levels that group something: what else lstopo would draw
/// (inner caches, PCI devices) hides the threads. The Machine's own topology stays as it is.
void set_filters(hwloc_topology* topology) {
  hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_icache_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  for (const auto type : {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE})
    hwloc_topology_set_type_filter(topology, type, HWLOC_TYPE_FILTER_KEEP_NONE);
  for (const auto type : {HWLOC_OBJ_L3CACHE, HWLOC_OBJ_CORE})
    hwloc_topology_set_type_filter(topology, type, HWLOC_TYPE_FILTER_KEEP_ALL);
  // Else no box could be added. The original has none of its own: hwloc's default.
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_MISC, HWLOC_TYPE_FILTER_KEEP_ALL);
}

Result<Picture> reduced(hwloc_topology* original) {
  auto xml = exported(original);
  if (!xml) return xml.status();
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return failed("be set up");
  Picture picture(raw);
  set_filters(raw);
  if (hwloc_topology_set_xmlbuffer(raw, xml->c_str(), static_cast<int>(xml->size()) + 1) != 0 ||
      hwloc_topology_load(raw) != 0)
    return failed("read back its own XML");
  return picture;
}

/// A box with a text, or nullptr.
hwloc_obj_t add_box(hwloc_topology* picture, hwloc_obj_t parent, const std::string& text,
                    const char* style) {
  const hwloc_obj_t box = hwloc_topology_insert_misc_object(picture, parent, text.c_str());
  if (box != nullptr) hwloc_obj_add_info(box, "lstopoStyle", style);
  return box;
}

bool add_thread(hwloc_topology* picture, const PlannedThread& thread) {
  const hwloc_obj_t pu = hwloc_get_pu_obj_by_os_index(picture, thread.pu_os_index);
  const hwloc_obj_t box =
      pu == nullptr ? nullptr : add_box(picture, pu, thread.name, style_of(thread.role));
  if (box == nullptr) return false;
  hwloc_obj_add_info(box, "SluiceRole", to_string(thread.role));
  if (!thread.reason.empty()) hwloc_obj_add_info(box, "SluiceReason", thread.reason.c_str());
  return true;
}

/// In its node's box; one that is nowhere in particular, beside everything.
bool add_nic(hwloc_topology* picture, const Machine& machine, const Nic& nic) {
  hwloc_obj_t parent = hwloc_get_root_obj(picture);
  if (nic.node != kNone)
    parent = hwloc_get_numanode_obj_by_os_index(picture, machine.nodes()[nic.node].os_index);
  return parent != nullptr && add_box(picture, parent, nic.name, kNic) != nullptr;
}

bool mark_unused(hwloc_topology* picture, const Machine& machine) {
  const CpuSet usable = machine.usable();
  bool any = false;
  for (const Pu& pu : machine.pus()) {
    if (usable.contains(pu.os_index)) continue;
    const hwloc_obj_t object = hwloc_get_pu_obj_by_os_index(picture, pu.os_index);
    if (object == nullptr) continue;
    hwloc_obj_add_info(object, "lstopoStyle", kUnused);
    any = true;
  }
  return any;
}

/// Part of the machine's box, so that a picture made of the XML by hand has it as well.
bool add_legend(hwloc_topology* picture, bool any_unused, bool any_nic) {
  const hwloc_obj_t root = hwloc_get_root_obj(picture);
  const hwloc_obj_t legend = add_box(picture, root, "Sluice's threads", kPlain);
  if (legend == nullptr) return false;
  bool all = add_box(picture, legend, "poller", kPoller) != nullptr;
  all = add_box(picture, legend, "worker", kWorker) != nullptr && all;
  all = add_box(picture, legend, "housekeeping", kHousekeeping) != nullptr && all;
  if (any_nic) all = add_box(picture, legend, "RDMA device", kNic) != nullptr && all;
  if (any_unused) all = add_box(picture, legend, "PU not to be used", kUnused) != nullptr && all;
  return all;
}

}  // namespace

Result<std::string> annotated_xml(const Plan& plan) {
  auto reduction = reduced(plan.machine.native());
  if (!reduction) return reduction.status();
  hwloc_topology* const picture = reduction->get();
  bool complete = true;
  for (const PlannedThread& thread : plan.threads)
    complete = add_thread(picture, thread) && complete;
  for (const Nic& nic : plan.machine.nics())
    complete = add_nic(picture, plan.machine, nic) && complete;
  const bool any_unused = mark_unused(picture, plan.machine);
  complete = add_legend(picture, any_unused, !plan.machine.nics().empty()) && complete;
  if (!complete) return failed("place a box on it");
  return exported(picture);
}

}  // namespace sluice::topology
