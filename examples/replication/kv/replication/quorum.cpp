// SPDX-License-Identifier: BSD-3-Clause
#include "kv/replication/quorum.hpp"

#include <algorithm>
#include <functional>

namespace sluice::kv {
namespace {

struct Counted {
  std::uint64_t quorum_memory, quorum_disk, all_disk;
};

Counted count(const Progress& self, std::span<const Progress> others,
              const std::vector<std::string>& members) {
  std::vector<std::uint64_t> memory, durable;
  for (const std::string& member : members) {
    const Progress* found = member == self.node ? &self : nullptr;
    for (const Progress& other : others)
      if (other.node == member) found = &other;
    memory.push_back(found != nullptr ? found->memory : 0);
    durable.push_back(found != nullptr ? found->durable : 0);
  }
  if (memory.empty()) return {};
  std::ranges::sort(memory, std::greater{});
  std::ranges::sort(durable, std::greater{});
  const std::size_t quorum = quorum_of(members.size()) - 1;
  return {memory[quorum], durable[quorum], durable.back()};
}

}  // namespace

Reached count_acknowledgements(const Progress& self, std::span<const Progress> others,
                               const std::vector<std::string>& in_sync,
                               const std::vector<std::string>* proposed) {
  Counted counted = count(self, others, in_sync);
  if (proposed != nullptr) {
    const Counted next = count(self, others, *proposed);
    counted.quorum_memory = std::min(counted.quorum_memory, next.quorum_memory);
    counted.quorum_disk = std::min(counted.quorum_disk, next.quorum_disk);
    counted.all_disk = std::min(counted.all_disk, next.all_disk);
  }
  return {
      {self.memory, self.durable, counted.quorum_memory, counted.quorum_disk, counted.all_disk}};
}

ElectionVerdict judge_election(const Position& self, std::span<const Position> heard,
                               std::size_t members, bool self_is_member) {
  const std::size_t needed = hearing_of(members);
  const std::size_t have = heard.size() + (self_is_member ? 1 : 0);
  if (have < needed)
    return {.kind = ElectionVerdict::Kind::wait, .missing = needed - have, .to = {}};
  const Position* best = &self;
  for (const Position& other : heard)
    if (other.epoch > best->epoch || (other.epoch == best->epoch && other.index > best->index))
      best = &other;
  if (best == &self) return {.kind = ElectionVerdict::Kind::lead, .missing = 0, .to = {}};
  return {.kind = ElectionVerdict::Kind::yield, .missing = 0, .to = best->node};
}

}  // namespace sluice::kv
