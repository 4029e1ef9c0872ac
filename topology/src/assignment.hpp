// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sluice/topology/plan.hpp"

namespace sluice::topology {

/// A busy thread that wants a PU.
struct Slot {
  bool poller = false;
  std::vector<unsigned> allowed;   ///< indices into Machine::pus(), ascending, never empty
  unsigned nic_node = kNone;       ///< of a poller, where known
  unsigned home_node = kNone;      ///< of a worker that only this node's pollers feed
  std::vector<unsigned> partners;  ///< a poller's workers, a worker's pollers: indices of slots
};

/// The six terms of Cost (without imbalance, which no PU changes), then what decides between
/// equals.
enum Term : std::uint8_t {
  kDisallowed,
  kSharedCores,
  kOffNode,
  kBusySiblings,
  kSplitL3,
  kSplitNode,        ///< (poller, worker) on different nodes: for machines without L3s, and spills
  kPollerEfficient,  ///< pollers on efficiency cores
  kWorkerEfficient,
  kSharedPus,  ///< threads beyond the first of a PU: a sibling is better than a queue
  kTerms
};
using Score = std::array<std::uint32_t, kTerms>;

/// Threads at their places, with the score kept up to date. Cost of a move: one look at each
/// partner.
class Arrangement {
 public:
  Arrangement(const Machine& machine, const std::vector<Slot>& slots,
              const std::vector<unsigned>& pus);
  void move(unsigned slot, unsigned pu);
  [[nodiscard]] unsigned pu(unsigned slot) const { return pus_[slot]; }
  [[nodiscard]] const std::vector<unsigned>& pus() const noexcept { return pus_; }
  [[nodiscard]] const Score& score() const noexcept { return score_; }
  [[nodiscard]] std::uint32_t threads_on_pu(unsigned pu) const { return on_pu_[pu]; }
  [[nodiscard]] std::uint32_t threads_on_core(unsigned core) const { return on_core_[core]; }

 private:
  void count(unsigned slot, std::uint32_t sign);
  void count_core(unsigned core, std::uint32_t sign);
  void count_pairs(unsigned slot, std::uint32_t sign);
  void count_pair(unsigned poller, unsigned worker, std::uint32_t sign);

  const Machine& machine_;
  const std::vector<Slot>& slots_;
  std::vector<unsigned> pus_;
  std::vector<std::uint32_t> on_pu_;
  std::vector<std::uint32_t> on_core_;
  std::vector<std::uint32_t> pollers_on_core_;
  Score score_{};
};

/// A PU for each slot: exact in the first three terms (a min-cost flow), then as good as a local
/// search from several starts gets. Deterministic.
[[nodiscard]] std::vector<unsigned> assign(const Machine& machine, const std::vector<Slot>& slots);

/// One start: slots to cores by min-cost flow, then to PUs. `anchor`: which L3 of its node each
/// thread is drawn to.
[[nodiscard]] std::vector<unsigned> assign_by_flow(const Machine& machine,
                                                   const std::vector<Slot>& slots, unsigned anchor);

}  // namespace sluice::topology
