// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <map>

#include "placement.hpp"

namespace sluice::topology {
namespace {

template <typename Settings>
std::size_t index_by_name(const std::vector<Settings>& all, const std::string& name) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Settings& one) { return one.name == name; });
  SLUICE_CHECK(found != all.end(), "a thread's group is not in its configuration");
  return static_cast<std::size_t>(found - all.begin());
}

std::uint32_t imbalance_of(const std::vector<PlannedThread>& threads) {
  std::map<std::string, std::pair<std::uint32_t, std::uint32_t>> range;
  for (const PlannedThread& thread : threads) {
    if (thread.role != ThreadRole::poller) continue;
    const auto [at, added] =
        range.try_emplace(thread.group, thread.connections, thread.connections);
    auto& [fewest, most] = at->second;
    fewest = std::min(fewest, thread.connections);
    most = std::max(most, thread.connections);
  }
  std::uint32_t worst = 0;
  for (const auto& [group, counts] : range) {
    const std::uint32_t difference = counts.second - counts.first;
    worst = std::max(worst, difference > 1 ? difference - 1 : 0);
  }
  return worst;
}

}  // namespace

CpuSet allowed_of(const Machine& machine, const Config& config, const Resolution& resolution,
                  const PlannedThread& thread) {
  if (thread.role == ThreadRole::housekeeping) return resolution.housekeeping.pus;
  const CpuSet& pus = thread.role == ThreadRole::poller
                          ? resolution.pollers[index_by_name(config.pollers, thread.group)].pus
                          : resolution.pools[index_by_name(config.pools, thread.group)].pus;
  if (thread.only_node == kNone) return pus;
  CpuSet of_node;
  for (const unsigned pu : machine.nodes()[thread.only_node].pus) {
    of_node.add(machine.pus()[pu].os_index);
  }
  return pus & of_node;
}

Result<std::vector<CpuSet>> allowed_sets(const Machine& machine, const Config& config,
                                         const std::vector<PlannedThread>& threads) {
  const auto resolution = resolve(machine, config);
  if (!resolution) return resolution.status();
  std::vector<CpuSet> sets;
  for (const PlannedThread& thread : threads) {
    sets.push_back(allowed_of(machine, config, *resolution, thread));
  }
  return sets;
}

std::vector<Slot> slots_of(const Machine& machine, const Config& config,
                           const std::vector<PlannedThread>& threads,
                           const std::vector<CpuSet>& allowed) {
  std::vector<Slot> slots;
  std::vector<const PlannedThread*> of;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const PlannedThread& thread = threads[i];
    if (thread.role == ThreadRole::housekeeping) continue;
    Slot slot;
    slot.poller = thread.role == ThreadRole::poller;
    if (thread.nic != kNone) slot.nic_node = machine.nics()[thread.nic].node;
    slot.home_node = thread.home_node;
    for (unsigned pu = 0; pu < machine.pus().size(); ++pu) {
      if (allowed[i].contains(machine.pus()[pu].os_index)) slot.allowed.push_back(pu);
    }
    slots.push_back(std::move(slot));
    of.push_back(&thread);
  }
  for (unsigned poller = 0; poller < slots.size(); ++poller) {
    for (unsigned worker = 0; worker < slots.size(); ++worker) {
      if (!slots[poller].poller || slots[worker].poller) continue;
      if (!feeds(config, config.pollers[index_by_name(config.pollers, of[poller]->group)],
                 config.pools[index_by_name(config.pools, of[worker]->group)])) {
        continue;
      }
      slots[poller].partners.push_back(worker);
      slots[worker].partners.push_back(poller);
    }
  }
  return slots;
}

Cost cost_of(const Machine& machine, const Config& config,
             const std::vector<PlannedThread>& threads, const std::vector<CpuSet>& allowed) {
  const std::vector<Slot> slots = slots_of(machine, config, threads, allowed);
  std::vector<unsigned> pus;
  std::uint32_t housekeeping_disallowed = 0;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    if (threads[i].role != ThreadRole::housekeeping) {
      pus.push_back(threads[i].pu);
    } else if (!allowed[i].contains(machine.pus()[threads[i].pu].os_index)) {
      ++housekeeping_disallowed;
    }
  }
  const Score score = Arrangement(machine, slots, pus).score();
  return {.disallowed = score[kDisallowed] + housekeeping_disallowed,
          .shared_cores = score[kSharedCores],
          .off_node = score[kOffNode],
          .busy_siblings = score[kBusySiblings],
          .split_l3 = score[kSplitL3],
          .imbalance = imbalance_of(threads)};
}

std::string Cost::to_string() const {
  const std::pair<const char*, std::uint32_t> terms[] = {
      {"on disallowed PUs", disallowed},
      {"sharing a core", shared_cores},
      {"pollers off their NIC's node", off_node},
      {"pollers with a busy sibling", busy_siblings},
      {"poller-worker pairs over two L3s", split_l3},
      {"connections out of balance", imbalance}};
  std::string text;
  for (const auto& [name, value] : terms) {
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + std::to_string(value);
  }
  return text;
}

const char* to_string(ThreadRole role) noexcept {
  switch (role) {
    case ThreadRole::poller: return "poller";
    case ThreadRole::worker: return "worker";
    case ThreadRole::housekeeping: return "housekeeping";
  }
  return "unknown";
}

std::uint32_t Plan::poller_count() const noexcept {
  return static_cast<std::uint32_t>(
      std::count_if(threads.begin(), threads.end(),
                    [](const PlannedThread& thread) { return thread.role == ThreadRole::poller; }));
}

}  // namespace sluice::topology
