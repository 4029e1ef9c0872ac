// SPDX-License-Identifier: BSD-3-Clause
#include "assignment.hpp"

#include <algorithm>

namespace sluice::topology {
namespace {

constexpr unsigned kStartsMax = 16;  ///< L3s of one node that are tried as the place to gather at
constexpr unsigned kPassesMax = 64;  ///< of a local search; it ends by itself long before
/// Steps of all searches of one assignment, each weighed by the pairs it looks at: some tenths of a
/// second. What is left then is worse in the last terms at most, and only on huge plans.
constexpr std::uint64_t kStepsMax = 20'000'000;
/// Chains of two moves are only tried where they are this few.
constexpr std::uint64_t kChainsMax = 400'000;

/// Improves an arrangement until no step of its kinds does.
class LocalSearch {
 public:
  /// `steps_left` is counted down.
  LocalSearch(const Machine& machine, const std::vector<Slot>& slots, Arrangement& arrangement,
              std::uint64_t& steps_left)
      : machine_(machine), slots_(slots), at_(arrangement), steps_left_(steps_left) {}

  void run() {
    for (unsigned pass = 0; pass < kPassesMax; ++pass) {
      bool better = false;
      for (unsigned slot = 0; slot < slots_.size(); ++slot) better |= move_somewhere(slot);
      for (unsigned a = 0; a < slots_.size(); ++a) {
        for (unsigned b = a + 1; b < slots_.size(); ++b) better |= swap(a, b);
      }
      if (!better) better = leave_pollers_alone();
      if (!better) better = exchange_l3s();
      if (!better && chains() <= kChainsMax) better = chain_somewhere();
      if (!better) return;
    }
  }

 private:
  [[nodiscard]] bool may(unsigned slot, unsigned pu) const {
    return std::binary_search(slots_[slot].allowed.begin(), slots_[slot].allowed.end(), pu);
  }
  [[nodiscard]] std::uint64_t chains() const {
    return std::uint64_t{slots_.size()} * slots_.size() * machine_.pus().size();
  }

  /// Undoes what `step` did unless the score got better.
  template <typename Step>
  bool try_step(std::initializer_list<unsigned> touched, Step&& step) {
    std::uint64_t weight = 0;
    for (const unsigned slot : touched) weight += 1 + slots_[slot].partners.size();
    if (!may_spend(weight)) return false;
    const Score before = at_.score();
    std::array<unsigned, 3> old{};
    std::size_t i = 0;
    for (const unsigned slot : touched) old[i++] = at_.pu(slot);
    step();
    if (at_.score() < before) return true;
    i = 0;
    for (const unsigned slot : touched) at_.move(slot, old[i++]);
    return false;
  }

  [[nodiscard]] bool may_spend(std::uint64_t weight) {
    if (steps_left_ < weight) return false;
    steps_left_ -= weight;
    return true;
  }

  bool move_somewhere(unsigned slot) {
    bool better = false;
    for (const unsigned pu : slots_[slot].allowed) {
      if (pu == at_.pu(slot)) continue;
      better |= try_step({slot}, [&] { at_.move(slot, pu); });
    }
    return better;
  }

  bool swap(unsigned a, unsigned b) {
    const unsigned pu_a = at_.pu(a);
    const unsigned pu_b = at_.pu(b);
    if (pu_a == pu_b || !may(a, pu_b) || !may(b, pu_a)) return false;
    return try_step({a, b}, [&] {
      at_.move(a, pu_b);
      at_.move(b, pu_a);
    });
  }

  /// `a` takes the place of `b`, which goes somewhere else.
  bool chain_somewhere() {
    for (unsigned a = 0; a < slots_.size(); ++a) {
      for (unsigned b = 0; b < slots_.size(); ++b) {
        if (a == b || !may(a, at_.pu(b))) continue;
        for (const unsigned pu : slots_[b].allowed) {
          if (try_step({a, b}, [&] {
                at_.move(a, at_.pu(b));
                at_.move(b, pu);
              })) {
            return true;
          }
        }
      }
    }
    return false;
  }

  /// Everybody but one poller leaves a core for another: one by one, no step would pay.
  bool leave_pollers_alone() {
    for (unsigned poller = 0; poller < slots_.size(); ++poller) {
      const unsigned core = core_of(poller);
      if (!slots_[poller].poller || at_.threads_on_core(core) < 2) continue;
      for (unsigned to = 0; to < machine_.cores().size(); ++to) {
        if (to != core && leave_alone(poller, core, to)) return true;
      }
    }
    return false;
  }

  bool leave_alone(unsigned poller, unsigned core, unsigned to) {
    if (!may_spend(slots_.size())) return false;
    const Score before = at_.score();
    const std::vector<unsigned> old = at_.pus();
    for (unsigned slot = 0; slot < slots_.size(); ++slot) {
      if (slot == poller || core_of(slot) != core) continue;
      unsigned best = kNone;
      for (const unsigned pu : machine_.cores()[to].pus) {
        if (!may(slot, pu)) continue;
        if (best == kNone || at_.threads_on_pu(pu) < at_.threads_on_pu(best)) best = pu;
      }
      if (best != kNone) at_.move(slot, best);
    }
    return at_.score() < before || put_back(old);
  }

  [[nodiscard]] unsigned core_of(unsigned slot) const { return machine_.pus()[at_.pu(slot)].core; }

  /// Always false: nothing got better.
  bool put_back(const std::vector<unsigned>& old) {
    for (unsigned slot = 0; slot < slots_.size(); ++slot) {
      if (at_.pu(slot) != old[slot]) at_.move(slot, old[slot]);
    }
    return false;
  }

  /// All threads of one L3 change places with all of another: what gathers there moves as one.
  bool exchange_l3s() {
    const auto& l3s = machine_.l3s();
    for (unsigned a = 0; a < l3s.size(); ++a) {
      for (unsigned b = a + 1; b < l3s.size(); ++b) {
        if (exchange(l3s[a], l3s[b])) return true;
      }
    }
    return false;
  }

  bool exchange(const L3& a, const L3& b) {
    if (!may_spend(slots_.size() * slots_.size())) return false;
    const Score before = at_.score();
    const std::vector<unsigned> old = at_.pus();
    for (unsigned slot = 0; slot < slots_.size(); ++slot) {
      const unsigned to = counterpart(old[slot], a, b);
      if (to != kNone && may(slot, to)) at_.move(slot, to);
    }
    return at_.score() < before || put_back(old);
  }

  /// The PU at the same position under the other L3; kNone where there is none.
  [[nodiscard]] unsigned counterpart(unsigned pu, const L3& a, const L3& b) const {
    const unsigned core = machine_.pus()[pu].core;
    for (const auto& [from, to] : {std::pair(&a, &b), std::pair(&b, &a)}) {
      const auto found = std::find(from->cores.begin(), from->cores.end(), core);
      if (found == from->cores.end()) continue;
      const auto position = static_cast<std::size_t>(found - from->cores.begin());
      if (position >= to->cores.size()) return kNone;
      const auto& siblings = machine_.cores()[core].pus;
      const auto thread = static_cast<std::size_t>(std::find(siblings.begin(), siblings.end(), pu) -
                                                   siblings.begin());
      const auto& there = machine_.cores()[to->cores[position]].pus;
      return thread < there.size() ? there[thread] : kNone;
    }
    return kNone;
  }

  const Machine& machine_;
  const std::vector<Slot>& slots_;
  Arrangement& at_;
  std::uint64_t& steps_left_;
};

/// L3s of the node that has the most.
unsigned l3s_per_node(const Machine& machine) {
  std::vector<unsigned> counts(machine.nodes().size(), 0);
  for (const L3& l3 : machine.l3s()) {
    if (l3.node != kNone) ++counts[l3.node];
  }
  return std::max(1U, counts.empty() ? 1U : *std::max_element(counts.begin(), counts.end()));
}

}  // namespace

std::vector<unsigned> assign(const Machine& machine, const std::vector<Slot>& slots) {
  if (slots.empty()) return {};
  std::vector<unsigned> best;
  Score best_score{};
  std::uint64_t steps_left = kStepsMax;
  const unsigned starts = std::min(l3s_per_node(machine), kStartsMax);
  for (unsigned anchor = 0; anchor < starts; ++anchor) {
    Arrangement arrangement(machine, slots, assign_by_flow(machine, slots, anchor));
    LocalSearch(machine, slots, arrangement, steps_left).run();
    if (best.empty() || arrangement.score() < best_score) {
      best = arrangement.pus();
      best_score = arrangement.score();
    }
  }
  return best;
}

}  // namespace sluice::topology
