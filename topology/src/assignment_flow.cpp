// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>

#include "assignment.hpp"

namespace sluice::topology {
namespace {

/// Successive shortest paths (Ahuja, Magnanti, Orlin, "Network Flows", 1993, 9.7), with the
/// label-correcting search, since the rewards for empty cores are negative costs.
class FlowNetwork {
 public:
  explicit FlowNetwork(std::size_t vertices) : out_(vertices) {}

  std::size_t add_edge(unsigned from, unsigned to, int capacity, std::int64_t cost) {
    out_[from].push_back(static_cast<unsigned>(edges_.size()));
    edges_.push_back({to, capacity, cost});
    out_[to].push_back(static_cast<unsigned>(edges_.size()));
    edges_.push_back({from, 0, -cost});
    return edges_.size() - 2;
  }
  [[nodiscard]] bool used(std::size_t edge) const { return edges_[edge].capacity == 0; }

  /// One more unit along the cheapest path; false when there is none.
  bool augment(unsigned source, unsigned sink) {
    std::vector<std::int64_t> distance(out_.size(), kFar);
    std::vector<unsigned> by(out_.size(), 0);
    std::vector<bool> queued(out_.size(), false);
    std::deque<unsigned> queue = {source};
    distance[source] = 0;
    while (!queue.empty()) {
      const unsigned from = queue.front();
      queue.pop_front();
      queued[from] = false;
      for (const unsigned edge : out_[from]) {
        const auto& [to, capacity, cost] = edges_[edge];
        if (capacity == 0 || distance[from] + cost >= distance[to]) continue;
        distance[to] = distance[from] + cost;
        by[to] = edge;
        if (!queued[to]) queue.push_back(to);
        queued[to] = true;
      }
    }
    if (distance[sink] == kFar) return false;
    for (unsigned at = sink; at != source; at = edges_[by[at] ^ 1U].to) {
      --edges_[by[at]].capacity;
      ++edges_[by[at] ^ 1U].capacity;
    }
    return true;
  }

 private:
  struct Edge {
    unsigned to;
    int capacity;
    std::int64_t cost;
  };
  static constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 4;
  std::vector<Edge> edges_;  ///< each with its reverse behind it
  std::vector<std::vector<unsigned>> out_;
};

/// The core's position among the L3s of its node: 0, 1, ...
std::vector<unsigned> l3_ranks(const Machine& machine) {
  std::vector<unsigned> ranks(machine.cores().size(), 0);
  std::vector<unsigned> seen(machine.nodes().size(), 0);
  std::vector<unsigned> rank_of(machine.l3s().size(), kNone);
  for (unsigned core = 0; core < ranks.size(); ++core) {
    const auto& [pus, l3, node, efficient] = machine.cores()[core];
    if (l3 == kNone || node == kNone) continue;
    if (rank_of[l3] == kNone) rank_of[l3] = seen[node]++;
    ranks[core] = rank_of[l3];
  }
  return ranks;
}

/// How little a slot likes a core, when nothing that matters more decides.
std::int64_t distaste(const Slot& slot, const Core& core, unsigned rank, unsigned anchor) {
  const unsigned near = slot.poller ? slot.nic_node : slot.home_node;
  std::int64_t cost = 0;
  if (near != kNone && core.node != near) cost += 8;
  if (near == kNone && core.node != kNone) cost += std::min(core.node, 3U);
  if (rank != anchor) cost += 2;
  if (core.efficient) cost += slot.poller ? 2 : 1;
  return cost;
}

/// The PU of a core on which the fewest threads are.
unsigned emptiest_pu(const Machine& machine, const Slot& slot, unsigned core,
                     const std::vector<unsigned>& on_pu) {
  unsigned best = kNone;
  for (const unsigned pu : machine.cores()[core].pus) {
    if (!std::binary_search(slot.allowed.begin(), slot.allowed.end(), pu)) continue;
    if (best == kNone || on_pu[pu] < on_pu[best]) best = pu;
  }
  return best;
}

}  // namespace

std::vector<unsigned> assign_by_flow(const Machine& machine, const std::vector<Slot>& slots,
                                     unsigned anchor) {
  constexpr std::int64_t kOffNodeCost = std::int64_t{1} << 20;
  constexpr std::int64_t kNewCoreReward = std::int64_t{1} << 40;
  const auto slot_count = static_cast<unsigned>(slots.size());
  const auto core_count = static_cast<unsigned>(machine.cores().size());
  const unsigned source = slot_count + core_count;
  const unsigned sink = source + 1;
  FlowNetwork network(sink + 1);
  const std::vector<unsigned> ranks = l3_ranks(machine);
  struct Choice {
    unsigned core;
    std::size_t edge;
  };
  std::vector<std::vector<Choice>> choices(slot_count);
  for (unsigned slot = 0; slot < slot_count; ++slot) {
    network.add_edge(source, slot, 1, 0);
    unsigned last = kNone;  // PUs in hwloc's order: those of one core lie side by side
    for (const unsigned pu : slots[slot].allowed) {
      const unsigned core = machine.pus()[pu].core;
      if (core == last) continue;
      last = core;
      const Core& of = machine.cores()[core];
      const bool off = slots[slot].nic_node != kNone && of.node != slots[slot].nic_node;
      const std::int64_t cost =
          (off ? kOffNodeCost : 0) + distaste(slots[slot], of, ranks[core], anchor);
      choices[slot].push_back({core, network.add_edge(slot, slot_count + core, 1, cost)});
    }
  }
  for (unsigned core = 0; core < core_count; ++core) {
    network.add_edge(slot_count + core, sink, 1, -kNewCoreReward);
    network.add_edge(slot_count + core, sink, static_cast<int>(slot_count), 0);
  }
  for (unsigned slot = 0; slot < slot_count; ++slot) network.augment(source, sink);

  std::vector<unsigned> pus(slot_count);
  std::vector<unsigned> on_pu(machine.pus().size(), 0);
  for (unsigned slot = 0; slot < slot_count; ++slot) {
    for (const auto& [core, edge] : choices[slot]) {
      if (network.used(edge)) pus[slot] = emptiest_pu(machine, slots[slot], core, on_pu);
    }
    ++on_pu[pus[slot]];
  }
  return pus;
}

}  // namespace sluice::topology
