// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <map>

#include "placement.hpp"

namespace sluice::topology {
namespace {

std::string counted(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

/// The reasons of one plan; looks up who is where once.
class Explainer {
 public:
  Explainer(Plan& plan, const Resolution& resolution) : plan_(plan), resolution_(resolution) {
    for (const PlannedThread& thread : plan.threads) {
      if (thread.role != ThreadRole::housekeeping) on_core_[pu(thread).core].push_back(&thread);
    }
  }

  void run() {
    for (PlannedThread& thread : plan_.threads) {
      switch (thread.role) {
        case ThreadRole::poller: thread.reason = poller(thread); break;
        case ThreadRole::worker: thread.reason = worker(thread); break;
        case ThreadRole::housekeeping: thread.reason = housekeeping(thread); break;
      }
    }
    plan_.degraded = resolution_.degraded;
    tell_what_was_given_up();
    tell_notes();
  }

 private:
  [[nodiscard]] const Pu& pu(const PlannedThread& thread) const {
    return plan_.machine.pus()[thread.pu];
  }
  [[nodiscard]] std::string node_name(unsigned node) const {
    return node == kNone ? "no node"
                         : "node " + std::to_string(plan_.machine.nodes()[node].os_index);
  }

  /// Who else is busy on a thread's core, and what that means for its siblings.
  [[nodiscard]] std::string core_of(const PlannedThread& thread) const {
    const auto& here = on_core_.at(pu(thread).core);
    if (here.size() > 1) {
      std::string others;
      for (const PlannedThread* other : here) {
        if (other->name != thread.name) others += (others.empty() ? "" : ", ") + other->name;
      }
      return "shares its core with " + others;
    }
    CpuSet left_free;
    CpuSet not_ours;
    std::string text = "a core of its own";
    for (const unsigned sibling : plan_.machine.cores()[pu(thread).core].pus) {
      if (sibling == thread.pu) continue;
      const Pu& of = plan_.machine.pus()[sibling];
      const PlannedThread& control = plan_.threads.back();
      if (control.role == ThreadRole::housekeeping && control.pu == sibling) {
        text += ", sibling PU " + std::to_string(of.os_index) + " has " + control.name;
      } else {
        (of.allowed ? left_free : not_ours).add(of.os_index);
      }
    }
    if (!left_free.empty()) text += ", sibling " + named_pus(left_free) + " left free";
    if (!not_ours.empty()) text += ", sibling " + named_pus(not_ours) + " not ours to keep free";
    return text;
  }

  [[nodiscard]] std::string poller(const PlannedThread& thread) const {
    std::string why;
    if (thread.nic == kNone) {
      why = "no RDMA device is seen";
    } else {
      const Nic& nic = plan_.machine.nics()[thread.nic];
      if (nic.node == kNone) {
        why = nic.name + " is on no known node";
      } else if (nic.node == pu(thread).node) {
        why = "on " + node_name(nic.node) + " with " + nic.name;
      } else {
        why = "off " + node_name(nic.node) + ", where " + nic.name + " is";
      }
    }
    if (named(resolution_.pollers, plan_.config.pollers, thread.group)) why += "; CPUs as named";
    return why + "; " + core_of(thread);
  }

  template <typename Settings>
  [[nodiscard]] bool named(const std::vector<Resolved>& resolved,
                           const std::vector<Settings>& settings, const std::string& name) const {
    for (std::size_t i = 0; i < settings.size(); ++i) {
      if (settings[i].name == name) return resolved[i].named;
    }
    return false;
  }

  [[nodiscard]] std::string worker(const PlannedThread& thread) const {
    std::size_t beside = 0;
    std::size_t on_node = 0;
    std::size_t all = 0;
    for (const PlannedThread& other : plan_.threads) {
      if (other.role != ThreadRole::poller) continue;
      if (thread.home_node != kNone && pu(other).node != thread.home_node) continue;
      ++all;
      if (pu(other).node == pu(thread).node) ++on_node;
      if (pu(other).l3 != kNone && pu(other).l3 == pu(thread).l3) ++beside;
    }
    std::string why;
    if (all == 0) {
      why = "no poller is near";
    } else if (beside == all) {
      why = "under one L3 with " + counted(all, "poller");
    } else if (on_node == all) {
      why = "on " + node_name(pu(thread).node) + " with " + counted(all, "poller");
      if (pu(thread).l3 != kNone)
        why += ", under another L3 than " + std::to_string(all - beside) + " of them";
    } else if (thread.home_node != kNone && on_node == 0) {
      why = "no core was left on " + node_name(thread.home_node) + " with its pollers";
    } else if (on_node == 0) {
      why = "no core was left near its " + counted(all, "poller");
    } else {
      why = "on a node with " + std::to_string(on_node) + " of " + counted(all, "poller");
    }
    if (thread.only_node != kNone) why += "; this pool is on all nodes";
    if (named(resolution_.pools, plan_.config.pools, thread.group)) why += "; CPUs as named";
    return why + "; " + core_of(thread);
  }

  [[nodiscard]] std::string housekeeping(const PlannedThread& thread) const {
    const auto here = on_core_.find(pu(thread).core);
    std::string why = plan_.machine.cores()[pu(thread).core].efficient ? "an efficiency core" : "";
    if (here == on_core_.end()) return why.empty() ? "a core that nobody is busy on" : why;
    const bool beside_poller =
        std::any_of(here->second.begin(), here->second.end(),
                    [](const PlannedThread* other) { return other->role == ThreadRole::poller; });
    why += (why.empty() ? "" : "; ") + std::string("little work: beside ") +
           here->second.front()->name;
    return why + (beside_poller ? ", no core without a poller is left" : "");
  }

  void give_up(const std::string& what) { plan_.degraded.push_back(what); }

  void tell_what_was_given_up() {
    const Cost& cost = plan_.cost;
    std::size_t busy = 0;
    for (const auto& [core, threads] : on_core_) busy += threads.size();
    if (cost.shared_cores > 0) {
      give_up(counted(busy, "busy thread") + " on " + counted(on_core_.size(), "core") + ": " +
              std::to_string(cost.shared_cores) +
              " share a core with another one; fewer workers, or more CPUs, would end that");
    }
    if (cost.off_node > 0) {
      give_up(counted(cost.off_node, "poller") +
              " off the NIC's node: what they may use has no (free) core there");
    }
    if (cost.busy_siblings > 0) {
      give_up(counted(cost.busy_siblings, "poller") +
              " with another busy thread on the same core; each takes cycles from the other");
    }
    for (const PlannedThread& thread : plan_.threads) tell_shared_pu(thread);
  }

  void tell_shared_pu(const PlannedThread& thread) {
    if (thread.role != ThreadRole::poller) return;
    const PollerGroup* group = group_of(thread);
    if (group == nullptr || group->wait == WaitMode::event) return;
    for (const PlannedThread* other : on_core_.at(pu(thread).core)) {
      if (other->name == thread.name || other->pu != thread.pu) continue;
      give_up(group->wait == WaitMode::busy
                  ? thread.name + " polls busily on the PU of " + other->name +
                        ": busy polling gives way, it yields the CPU when it finds nothing"
                  : thread.name + " is on the PU of " + other->name +
                        ": it sleeps soon after it finds nothing, however fast completions come");
      return;
    }
  }

  [[nodiscard]] const PollerGroup* group_of(const PlannedThread& thread) const {
    for (const PollerGroup& group : plan_.config.pollers) {
      if (group.name == thread.group) return &group;
    }
    return nullptr;
  }

  void tell_notes() {
    const Machine& machine = plan_.machine;
    const auto note = [&](std::string text) { plan_.notes.push_back(std::move(text)); };
    const auto left_out = [&](const CpuSet& pus, const std::string& why) {
      if (!pus.empty()) note(named_pus(pus) + " left out: " + why);
    };
    left_out(machine.offline(), "offline");
    left_out(machine.all() - machine.allowed(), "not allowed by the cgroup");
    left_out(outside_affinity(), "not in the affinity that this process was started with");
    left_out(isolated(), "isolated; name them in `cpus` to use them");
    for (const Nic& nic : machine.nics()) {
      if (nic.node == kNone) {
        note(nic.name + " is on no known node (" + nic.locality_source +
             "); `cpus` can say where its pollers go");
      }
    }
    if (plan_.cost.split_l3 > 0) {
      note(counted(plan_.cost.split_l3, "poller-worker pair") + " under two L3s");
    }
    for (const PlannedThread& thread : plan_.threads) {
      if (thread.role == ThreadRole::poller) tell_wait(thread);
    }
    tell_vectors();
  }

  /// S5: who keeps a CPU busy, and why.
  void tell_wait(const PlannedThread& thread) {
    const PollerGroup* group = group_of(thread);
    if (group == nullptr || group->wait == WaitMode::event) return;
    const std::string pu_name = "PU " + std::to_string(thread.pu_os_index);
    if (group->wait == WaitMode::busy) {
      plan_.notes.push_back(thread.name + " keeps " + pu_name +
                            " busy all the time: its wait mode is \"busy\"");
      return;
    }
    std::string text = thread.name + " keeps " + pu_name +
                       " busy while completions come so fast that polling costs less than being "
                       "woken, and sleeps otherwise: its wait mode is \"adaptive\"";
    if (group->cpu_cap < 1) {
      const double percent = 100 * group->cpu_cap;
      text += "; beyond " + std::to_string(static_cast<int>(percent)) +
              " % of the CPU in 100 ms it polls only for what is there";
    }
    plan_.notes.push_back(text);
  }

  /// R4: what can be said of completion vectors.
  void tell_vectors() {
    const auto names_some = [](const PollerGroup& group) {
      return group.completion_vectors.has_value();
    };
    const auto& groups = plan_.config.pollers;
    if (plan_.poller_count() < 2 && std::none_of(groups.begin(), groups.end(), names_some)) return;
    plan_.notes.push_back(
        "completion vectors are dealt out over the pollers for CQs of raw verbs; librpma puts all "
        "of its on vector 0, so one CPU takes their interrupts");
  }

  [[nodiscard]] CpuSet outside_affinity() const {
    return unused([](const Pu& one) { return one.allowed && !one.in_affinity; });
  }
  [[nodiscard]] CpuSet isolated() const {
    return unused([](const Pu& one) { return one.allowed && one.in_affinity && one.isolated; });
  }
  template <typename Predicate>
  [[nodiscard]] CpuSet unused(Predicate&& predicate) const {
    CpuSet set;
    for (const Pu& one : plan_.machine.pus()) {
      if (predicate(one)) set.add(one.os_index);
    }
    for (const PlannedThread& thread : plan_.threads) set.remove(thread.pu_os_index);
    return set;
  }

  Plan& plan_;
  const Resolution& resolution_;
  std::map<unsigned, std::vector<const PlannedThread*>> on_core_;  ///< busy ones, by core
};

}  // namespace

void explain(Plan& plan, const Resolution& resolution) {
  Explainer(plan, resolution).run();
}

}  // namespace sluice::topology
