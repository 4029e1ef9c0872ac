// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include "placement.hpp"

namespace sluice::topology {
namespace {

/// Gathers what is wrong, a line each, with where it was written.
class Complaints {
 public:
  explicit Complaints(const Config& config) : config_(config) {}
  void add(const std::string& path, const std::string& message) {
    const Origin origin = config_.origin_of(path);
    if (!lines_.empty()) lines_ += '\n';
    if (origin.kind != OriginKind::defaults) lines_ += origin.to_string() + ": ";
    lines_ += path + ": " + message;
  }
  [[nodiscard]] Status status() const {
    return lines_.empty() ? Status{} : Status(StatusCode::invalid_argument, lines_);
  }

 private:
  const Config& config_;
  std::string lines_;
};

/// What a `cpus` key means here. A set that is named may go beyond the inherited affinity (isolated
/// CPUs are for that), never beyond the cgroup.
Resolved resolve_cpus(const Machine& machine, const std::string& text, const std::string& path,
                      Complaints& complaints, std::vector<std::string>& degraded) {
  Resolved resolved;
  resolved.pus = machine.usable();
  if (text == "auto") return resolved;
  auto named = machine.locate(text);
  if (!named) {
    complaints.add(path, named.status().message());
    return resolved;
  }
  const CpuSet dropped = *named - machine.allowed();
  *named &= machine.allowed();
  if (named->empty()) {
    complaints.add(path, "\"" + text + "\" names " + named_pus(dropped) +
                             ", and this process may run on none of them; its cgroup allows " +
                             machine.allowed().to_string());
    return resolved;
  }
  if (!dropped.empty()) {
    degraded.push_back(path + " = \"" + text + "\": " + named_pus(dropped) +
                       " left out, the cgroup does not allow it");
  }
  resolved.pus = std::move(*named);
  resolved.named = true;
  return resolved;
}

void resolve_device(const Machine& machine, const PollerGroup& group, Resolved& resolved,
                    Complaints& complaints) {
  if (group.device == "auto") {
    for (unsigned nic = 0; nic < machine.nics().size(); ++nic) resolved.nics.push_back(nic);
    return;
  }
  std::string known;
  for (unsigned nic = 0; nic < machine.nics().size(); ++nic) {
    if (machine.nics()[nic].name == group.device) resolved.nics.push_back(nic);
    known += (known.empty() ? "" : ", ") + machine.nics()[nic].name;
  }
  if (resolved.nics.empty()) {
    complaints.add("pollers." + group.name + ".device",
                   "\"" + group.device + "\" is no RDMA device of " + machine.name() +
                       "; there are: " + (known.empty() ? std::string("none") : known));
  }
}

unsigned resolve_memory_node(const Machine& machine, const Config& config, Complaints& complaints) {
  if (config.memory.node == "poller") return kNone;
  std::string known;
  for (unsigned node = 0; node < machine.nodes().size(); ++node) {
    const std::string index = std::to_string(machine.nodes()[node].os_index);
    if (index == config.memory.node && machine.nodes()[node].allowed) return node;
    if (machine.nodes()[node].allowed) known += (known.empty() ? "" : ", ") + index;
  }
  complaints.add("memory.node", "there is no node " + config.memory.node +
                                    " with memory for this process; there are: " + known);
  return kNone;
}

}  // namespace

std::string named_pus(const CpuSet& pus) {
  return (pus.count() == 1 ? "PU " : "PUs ") + pus.to_string();
}

Result<Resolution> resolve(const Machine& machine, const Config& config) {
  Complaints complaints(config);
  Resolution found;
  for (const PollerGroup& group : config.pollers) {
    found.pollers.push_back(resolve_cpus(machine, group.cpus, "pollers." + group.name + ".cpus",
                                         complaints, found.degraded));
    resolve_device(machine, group, found.pollers.back(), complaints);
  }
  for (const PoolSettings& pool : config.pools) {
    found.pools.push_back(resolve_cpus(machine, pool.cpus, "pools." + pool.name + ".cpus",
                                       complaints, found.degraded));
  }
  found.housekeeping = resolve_cpus(machine, config.general.housekeeping_cpus,
                                    "dispatcher.housekeeping_cpus", complaints, found.degraded);
  found.memory_node = resolve_memory_node(machine, config, complaints);
  if (Status status = complaints.status(); !status.ok()) return status;
  return found;
}

bool feeds(const Config& config, const PollerGroup& group, const PoolSettings& pool) {
  bool routed = false;
  for (const RouteSettings& route : config.routes) {
    const std::string& to = route.pool.empty() ? config.pools.front().name : route.pool;
    if (to != pool.name || route.order == Order::inlined) continue;
    routed = true;
    if (route.pollers.empty() || route.pollers == group.name) return true;
  }
  return !routed;
}

}  // namespace sluice::topology
