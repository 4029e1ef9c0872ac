// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include "assignment.hpp"

namespace sluice::topology {

Arrangement::Arrangement(const Machine& machine, const std::vector<Slot>& slots,
                         const std::vector<unsigned>& pus)
    : machine_(machine),
      slots_(slots),
      pus_(pus),
      on_pu_(machine.pus().size()),
      on_core_(machine.cores().size()),
      pollers_on_core_(machine.cores().size()) {
  for (unsigned slot = 0; slot < slots.size(); ++slot) {
    count(slot, 1);
    // Each pair once: from the poller's side.
    if (slots[slot].poller) count_pairs(slot, 1);
  }
}

// A sign of ~0 subtracts: unsigned arithmetic wraps, and every sum is back at a true count.
constexpr std::uint32_t kMinus = ~std::uint32_t{0};

void Arrangement::count_core(unsigned core, std::uint32_t sign) {
  const std::uint32_t busy = on_core_[core];
  if (busy < 2) return;
  score_[kSharedCores] += sign * (busy - 1);
  score_[kBusySiblings] += sign * pollers_on_core_[core];
}

void Arrangement::count(unsigned slot, std::uint32_t sign) {
  const Slot& of = slots_[slot];
  const Pu& pu = machine_.pus()[pus_[slot]];
  count_core(pu.core, kMinus);
  on_core_[pu.core] += sign;
  if (of.poller) pollers_on_core_[pu.core] += sign;
  count_core(pu.core, 1);

  const auto beyond_first = [](std::uint32_t threads) { return threads > 0 ? threads - 1 : 0; };
  std::uint32_t& here = on_pu_[pus_[slot]];
  score_[kSharedPus] -= beyond_first(here);
  here += sign;
  score_[kSharedPus] += beyond_first(here);

  if (!std::binary_search(of.allowed.begin(), of.allowed.end(), pus_[slot])) {
    score_[kDisallowed] += sign;
  }
  if (of.nic_node != kNone && pu.node != of.nic_node) score_[kOffNode] += sign;
  if (machine_.cores()[pu.core].efficient) {
    score_[of.poller ? kPollerEfficient : kWorkerEfficient] += sign;
  }
}

void Arrangement::count_pair(unsigned poller, unsigned worker, std::uint32_t sign) {
  const Pu& from = machine_.pus()[pus_[poller]];
  const unsigned home = slots_[worker].home_node;
  if (home != kNone && home != from.node) return;  // another node's workers serve this poller
  const Pu& to = machine_.pus()[pus_[worker]];
  if (from.l3 != to.l3) score_[kSplitL3] += sign;
  if (from.node != to.node) score_[kSplitNode] += sign;
}

void Arrangement::count_pairs(unsigned slot, std::uint32_t sign) {
  for (const unsigned partner : slots_[slot].partners) {
    slots_[slot].poller ? count_pair(slot, partner, sign) : count_pair(partner, slot, sign);
  }
}

void Arrangement::move(unsigned slot, unsigned pu) {
  count_pairs(slot, kMinus);
  count(slot, kMinus);
  pus_[slot] = pu;
  count(slot, 1);
  count_pairs(slot, 1);
}

}  // namespace sluice::topology
