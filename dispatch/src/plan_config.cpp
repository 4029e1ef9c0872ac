// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <string>

#include "sluice/dispatch/config.hpp"
#include "sluice/topology/plan.hpp"

namespace sluice {
namespace {

using topology::kNone;
using topology::PlannedThread;
using topology::ThreadRole;

PollerConfig poller_group(const topology::Plan& plan, const topology::PollerGroup& group) {
  PollerConfig config;
  config.name = group.name;
  config.wait = group.wait;
  config.latency_target = group.latency_target;
  config.cpu_cap = group.cpu_cap;
  config.batch_size = group.batch_size;
  if (group.completion_vectors) {
    config.completion_vectors.assign(group.completion_vectors->begin(),
                                     group.completion_vectors->end());
  }
  config.batch_count = group.batch_count;
  config.hot_rounds = group.hot_rounds;
  config.sources_max = group.sources_max;
  for (const PlannedThread& thread : plan.threads) {
    if (thread.role != ThreadRole::poller || thread.group != group.name) continue;
    config.cpus.push_back(thread.pu_os_index);
    config.thread_names.push_back(thread.name);
    const unsigned node = plan.machine.pus()[thread.pu].node;
    if (node != kNone) config.nodes.push_back(plan.machine.nodes()[node].os_index);
  }
  config.count = static_cast<std::uint32_t>(config.cpus.size());
  // Only where each of them has a node can one go round them.
  if (config.nodes.size() != config.cpus.size()) config.nodes.clear();
  return config;
}

PoolConfig pool_instance(const topology::Plan& plan, const topology::PlannedPool& instance) {
  const auto settings =
      std::find_if(plan.config.pools.begin(), plan.config.pools.end(),
                   [&](const topology::PoolSettings& pool) { return pool.name == instance.name; });
  PoolConfig config;
  config.name = instance.name;
  if (instance.node != kNone) config.node = plan.machine.nodes()[instance.node].os_index;
  config.workers = static_cast<std::uint32_t>(instance.threads.size());
  config.spin = settings->spin;
  config.spin_rounds = settings->spin_rounds;
  config.lanes = settings->lanes.value_or(0);
  config.key_lanes = settings->key_lanes;
  for (const unsigned thread : instance.threads) {
    config.cpus.push_back(plan.threads[thread].pu_os_index);
    config.thread_names.push_back(plan.threads[thread].name);
  }
  return config;
}

}  // namespace

DispatcherConfig DispatcherConfig::from_plan(const topology::Plan& plan) {
  DispatcherConfig config;
  config.pollers.clear();
  for (const topology::PollerGroup& group : plan.config.pollers) {
    config.pollers.push_back(poller_group(plan, group));
  }
  config.pools.clear();
  for (const topology::PlannedPool& instance : plan.pools) {
    config.pools.push_back(pool_instance(plan, instance));
  }
  for (const topology::RouteSettings& route : plan.config.routes) {
    config.routes.push_back({route.name, route.pool, route.pollers, route.order});
  }
  config.receive_queues = plan.config.srqs;
  const auto& general = plan.config.general;
  config.connections_max = general.connections_max;
  config.stall_threshold = std::chrono::ceil<std::chrono::milliseconds>(general.stall_threshold);
  config.last_wqe_grace = std::chrono::ceil<std::chrono::milliseconds>(general.last_wqe_grace);
  config.huge_pages = plan.config.memory.huge_pages;
  for (const PlannedThread& thread : plan.threads) {
    if (thread.role == ThreadRole::housekeeping) config.control_cpu = thread.pu_os_index;
    if (thread.role == ThreadRole::poller && plan.config.memory.node != "poller") {
      config.memory_node = plan.machine.nodes()[thread.memory_node].os_index;
    }
  }
  return config;
}

}  // namespace sluice
