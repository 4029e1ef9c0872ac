// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "placement.hpp"

namespace sluice::topology {
namespace {

constexpr std::uint32_t kAutoWorkersMax = 16;  ///< per node: more is for those who measured
constexpr std::uint32_t kPollersMax = 64;
constexpr std::size_t kInstancesMax =
    64;  ///< of all pools; DispatcherConfig::validate() has it, too
/// Which nodes have pollers decides where workers are wanted, and these may push pollers about.
constexpr unsigned kRoundsMax = 4;
constexpr std::size_t kNameMax = 15;  ///< bytes of a thread's name in the kernel

std::set<unsigned> cores_of(const Machine& machine, const CpuSet& pus) {
  std::set<unsigned> cores;
  for (const Pu& pu : machine.pus()) {
    if (pus.contains(pu.os_index)) cores.insert(pu.core);
  }
  return cores;
}

/// Places the threads of one configuration, in the order: how many pollers, where they go, how many
/// workers that leaves room for, where everybody goes.
class Placement {
 public:
  Placement(const Machine& machine, const Config& config, Resolution resolution)
      : machine_(machine), config_(config), resolution_(std::move(resolution)) {}

  Plan run() {
    add_pollers();
    arrange();
    const std::vector<PlannedThread> undisturbed = threads_;
    std::set<unsigned> nodes = poller_nodes();
    bool settled = false;
    for (unsigned round = 0; round < kRoundsMax && !settled; ++round) {
      place_workers_for(nodes);
      const std::set<unsigned> after = poller_nodes();
      settled = after == nodes;
      nodes = after;
    }
    if (!settled) settle(undisturbed);
    name_threads();
    add_housekeeping();
    return finish();
  }

 private:
  void place_workers_for(const std::set<unsigned>& nodes) {
    threads_.resize(poller_count_);
    pools_.clear();
    given_up_.clear();
    add_workers(nodes);
    arrange();
  }

  /// Workers wherever pollers are push these away, and so on for ever: the pollers keep to the
  /// nodes they had before there were workers, or to the last ones, whichever is the better plan.
  void settle(const std::vector<PlannedThread>& undisturbed) {
    const auto stay = [&](std::vector<PlannedThread> pollers) {
      pollers.resize(poller_count_);
      for (PlannedThread& poller : pollers) poller.only_node = machine_.pus()[poller.pu].node;
      threads_ = std::move(pollers);
      place_workers_for(poller_nodes());
    };
    const std::vector<PlannedThread> last = threads_;
    stay(undisturbed);
    const auto first = std::tuple(threads_, pools_, given_up_);
    // Those of before the workers were placed alone, on as many cores as there are; of the last
    // ones too many may keep to one node, and share its cores while others are free.
    const auto cost = [this] {
      const auto sets = allowed();
      return std::pair(shares_needlessly(sets), cost_of(machine_, config_, threads_, sets));
    };
    const auto first_cost = cost();
    stay(last);
    if (first_cost <= cost()) std::tie(threads_, pools_, given_up_) = first;
  }

  /// Threads share cores although others that they may use are free.
  [[nodiscard]] bool shares_needlessly(const std::vector<CpuSet>& sets) const {
    CpuSet all;
    for (const CpuSet& one : sets) all |= one;
    std::set<unsigned> used;
    for (const PlannedThread& thread : threads_) used.insert(machine_.pus()[thread.pu].core);
    return used.size() < std::min(threads_.size(), cores_of(machine_, all).size());
  }

  // --- pollers
  void add_pollers() {
    for (std::size_t i = 0; i < config_.pollers.size(); ++i) {
      const PollerGroup& group = config_.pollers[i];
      const Resolved& resolved = resolution_.pollers[i];
      const std::uint32_t count = group.count ? *group.count : auto_pollers(group, resolved);
      for (std::uint32_t n = 0; n < count; ++n) {
        PlannedThread thread;
        thread.role = ThreadRole::poller;
        thread.group = group.name;
        if (!resolved.nics.empty()) thread.nic = resolved.nics[n % resolved.nics.size()];
        threads_.push_back(std::move(thread));
      }
    }
    poller_count_ = threads_.size();
    spread_connections();
  }

  /// One for each device, while that leaves a core for a worker beside each.
  [[nodiscard]] std::uint32_t auto_pollers(const PollerGroup& group,
                                           const Resolved& resolved) const {
    if (group.device != "auto") return 1;
    const auto cores = static_cast<std::uint32_t>(cores_of(machine_, resolved.pus).size());
    // What the groups that name a number leave, in equal parts; check_size() sees to at least 1.
    std::uint32_t room = kPollersMax;
    std::uint32_t others = 0;
    for (const PollerGroup& one : config_.pollers) {
      room -= one.count.value_or(0);
      others += one.count ? 0 : 1;
    }
    room /= others;
    return std::clamp(static_cast<std::uint32_t>(resolved.nics.size()), 1U,
                      std::max(1U, std::min(cores / 2, room)));
  }

  void spread_connections() {
    const auto count = static_cast<std::uint32_t>(poller_count_);
    for (std::uint32_t i = 0; i < count; ++i) {
      threads_[i].connections =
          config_.general.connections_max / count + (i < config_.general.connections_max % count);
    }
  }

  [[nodiscard]] std::set<unsigned> poller_nodes() const {
    std::set<unsigned> nodes;
    for (std::size_t i = 0; i < poller_count_; ++i) {
      nodes.insert(machine_.pus()[threads_[i].pu].node);
    }
    return nodes;
  }

  // --- workers
  void add_workers(const std::set<unsigned>& poller_nodes) {
    for (std::size_t i = 0; i < config_.pools.size(); ++i) {
      const PoolSettings& pool = config_.pools[i];
      switch (pool.nodes) {
        case PoolNodes::any:
          add_instance(i, kNone, kNone, count_for(i, kNone, poller_nodes));
          break;
        case PoolNodes::all: add_on_all_nodes(i, poller_nodes); break;
        case PoolNodes::pollers:
          for (const unsigned node : poller_nodes) {
            if (!fed_from(pool, node)) continue;
            // A single node needs no instance of its own: its workers serve everybody.
            const unsigned home = poller_nodes.size() > 1 ? node : kNone;
            add_instance(i, home, kNone, count_for(i, node, poller_nodes));
          }
          break;
      }
    }
  }

  /// Whether pollers on a node feed a pool; a pool that nobody feeds is kept everywhere.
  [[nodiscard]] bool fed_from(const PoolSettings& pool, unsigned node) const {
    bool fed = false;
    for (std::size_t i = 0; i < poller_count_; ++i) {
      const auto& group =
          *std::find_if(config_.pollers.begin(), config_.pollers.end(),
                        [&](const PollerGroup& one) { return one.name == threads_[i].group; });
      if (!feeds(config_, group, pool)) continue;
      if (machine_.pus()[threads_[i].pu].node == node) return true;
      fed = true;
    }
    return !fed;
  }

  void add_on_all_nodes(std::size_t pool, const std::set<unsigned>& poller_nodes) {
    std::vector<unsigned> usable;
    for (unsigned node = 0; node < machine_.nodes().size(); ++node) {
      if (usable_on(resolution_.pools[pool].pus, node)) usable.push_back(node);
    }
    const auto each = std::max<std::uint32_t>(
        1, kWorkersMax / std::max<std::uint32_t>(1, static_cast<std::uint32_t>(usable.size())));
    bool cut = false;
    for (const unsigned node : usable) {
      const std::uint32_t wanted = count_for(pool, node, poller_nodes);
      cut |= wanted > each;
      add_instance(pool, kNone, node, std::min(wanted, each));
    }
    if (!cut) return;
    given_up_.push_back("pools." + config_.pools[pool].name + ": only " + std::to_string(each) +
                        " workers on each node; a pool has at most " + std::to_string(kWorkersMax) +
                        " in all");
  }
  [[nodiscard]] bool usable_on(const CpuSet& pus, unsigned node) const {
    const auto& of_node = machine_.nodes()[node].pus;
    return std::any_of(of_node.begin(), of_node.end(),
                       [&](unsigned pu) { return pus.contains(machine_.pus()[pu].os_index); });
  }

  void add_instance(std::size_t pool, unsigned home, unsigned only, std::uint32_t workers) {
    const std::string& name = config_.pools[pool].name;
    // On all nodes is still one pool: the node is each worker's, not the pool's.
    if (only == kNone || pools_.empty() || pools_.back().name != name) {
      pools_.push_back({name, home, {}});
    }
    for (std::uint32_t i = 0; i < workers && pools_.back().threads.size() < kWorkersMax; ++i) {
      PlannedThread thread;
      thread.role = ThreadRole::worker;
      thread.group = name;
      thread.home_node = home;
      thread.only_node = only;
      pools_.back().threads.push_back(static_cast<unsigned>(threads_.size()));
      threads_.push_back(std::move(thread));
    }
  }

  /// The workers of a pool on a node (kNone: in all): as many as it has cores that are not taken.
  [[nodiscard]] std::uint32_t count_for(std::size_t pool, unsigned node,
                                        const std::set<unsigned>& poller_nodes) const {
    if (config_.pools[pool].workers) return *config_.pools[pool].workers;
    const std::set<unsigned> all = cores_of(machine_, resolution_.pools[pool].pus);
    std::set<unsigned> cores;
    for (const unsigned core : all) {
      const unsigned of = machine_.cores()[core].node;
      if (node == kNone ? poller_nodes.contains(of) : of == node) cores.insert(core);
    }
    // Its CPUs are named, and elsewhere: then all instances share what is there.
    const std::size_t shares = cores.empty() && node != kNone ? poller_nodes.size() : 1;
    if (cores.empty()) cores = all;
    std::size_t free = cores.size();
    for (std::size_t i = 0; i < poller_count_; ++i) {
      free -= cores.erase(machine_.pus()[threads_[i].pu].core);
    }
    constexpr std::size_t kRoomForHousekeeping = 4;
    if (free >= kRoomForHousekeeping) --free;
    free /= auto_pools() * shares;
    return std::clamp(static_cast<std::uint32_t>(free), 1U, kAutoWorkersMax);
  }
  [[nodiscard]] std::size_t auto_pools() const {
    return static_cast<std::size_t>(
        std::count_if(config_.pools.begin(), config_.pools.end(),
                      [](const PoolSettings& pool) { return !pool.workers.has_value(); }));
  }

  // --- places
  [[nodiscard]] std::vector<CpuSet> allowed() const {
    std::vector<CpuSet> sets;
    for (const PlannedThread& thread : threads_) {
      sets.push_back(allowed_of(machine_, config_, resolution_, thread));
    }
    return sets;
  }

  void arrange() {
    const auto pus = assign(machine_, slots_of(machine_, config_, threads_, allowed()));
    for (std::size_t i = 0; i < threads_.size(); ++i) threads_[i].pu = pus[i];
  }

  /// Housekeeping is little work: on an efficiency core, else where nobody is, else beside a
  /// worker.
  void add_housekeeping() {
    PlannedThread thread;
    thread.role = ThreadRole::housekeeping;
    thread.name = unique_name("sluice", "-control");
    using Key = std::tuple<bool, bool, std::size_t, std::size_t, bool, unsigned>;
    Key best_key{};
    bool found = false;
    const unsigned near = machine_.pus()[threads_.front().pu].node;
    for (unsigned pu = 0; pu < machine_.pus().size(); ++pu) {
      const Pu& of = machine_.pus()[pu];
      if (!resolution_.housekeeping.pus.contains(of.os_index)) continue;
      const auto on_core = std::count_if(
          threads_.begin(), threads_.end(),
          [&](const PlannedThread& one) { return machine_.pus()[one.pu].core == of.core; });
      const auto on_pu = std::count_if(threads_.begin(), threads_.end(),
                                       [&](const PlannedThread& one) { return one.pu == pu; });
      const bool poller_there = std::any_of(
          threads_.begin(), threads_.begin() + static_cast<std::ptrdiff_t>(poller_count_),
          [&](const PlannedThread& one) { return machine_.pus()[one.pu].core == of.core; });
      const Key key{poller_there,
                    !machine_.cores()[of.core].efficient,
                    static_cast<std::size_t>(on_pu),
                    static_cast<std::size_t>(on_core),
                    of.node != near,
                    pu};
      if (!found || key < best_key) {
        best_key = key;
        thread.pu = pu;
        found = true;
      }
    }
    threads_.push_back(std::move(thread));
  }

  // --- names
  std::string unique_name(const std::string& base, const std::string& suffix) {
    std::string name = base.substr(0, kNameMax - std::min(kNameMax, suffix.size())) + suffix;
    for (unsigned n = 0; !names_.insert(name).second; ++n) {
      const std::string tail = "." + std::to_string(n) + suffix;
      name = base.substr(0, kNameMax - std::min(kNameMax, tail.size())) + tail;
    }
    return name;
  }

  void name_threads() {
    std::string last;
    unsigned index = 0;
    for (PlannedThread& thread : threads_) {
      const bool poller = thread.role == ThreadRole::poller;
      const std::string of = std::string(to_string(thread.role)) + thread.group;
      index = of == last ? index + 1 : 0;
      last = of;
      const std::string base = poller && thread.group == "default" ? "sluice" : thread.group;
      thread.name = unique_name(base, (poller ? "-poll-" : "-") + std::to_string(index));
    }
  }

  Plan finish() {
    Plan plan{config_, machine_, {}, {}, {}, {}, {}};
    for (PlannedThread& thread : threads_) {
      thread.pu_os_index = machine_.pus()[thread.pu].os_index;
      if (thread.role == ThreadRole::poller) thread.memory_node = memory_of(thread);
    }
    plan.cost = cost_of(machine_, config_, threads_, allowed());
    plan.threads = std::move(threads_);
    plan.pools = std::move(pools_);
    explain(plan, resolution_);
    plan.degraded.insert(plan.degraded.end(), given_up_.begin(), given_up_.end());
    return plan;
  }

  /// The poller's node, or the nearest one whose memory this process may use (cpuset.mems).
  [[nodiscard]] unsigned memory_of(const PlannedThread& poller) {
    if (resolution_.memory_node != kNone) return resolution_.memory_node;
    const unsigned own = machine_.pus()[poller.pu].node;
    const auto& nodes = machine_.nodes();
    if (own == kNone || nodes[own].allowed) return own;
    const auto distance = [&](unsigned to) {
      return nodes[own].distances.empty() ? 0 : nodes[own].distances[to];
    };
    unsigned nearest = kNone;
    for (unsigned node = 0; node < nodes.size(); ++node) {
      if (!nodes[node].allowed) continue;
      if (nearest == kNone || distance(node) < distance(nearest)) nearest = node;
    }
    given_up_.push_back(poller.name + ": its memory is not on its own node " +
                        std::to_string(nodes[own].os_index) +
                        ", where this process may have none (cpuset.mems)");
    return nearest;
  }

  static constexpr std::size_t kWorkersMax = 58;  ///< of one pool: ParkingLot::kMaxWorkers
  const Machine& machine_;
  const Config& config_;
  const Resolution resolution_;
  std::vector<PlannedThread> threads_;
  std::vector<PlannedPool> pools_;
  std::size_t poller_count_ = 0;
  std::set<std::string> names_;
  std::vector<std::string> given_up_;
};

Status check_size(const Config& config) {
  std::uint64_t pollers = 0;
  for (const PollerGroup& group : config.pollers) pollers += group.count.value_or(1);
  if (config.pollers.empty() || config.pools.empty()) {
    return {StatusCode::invalid_argument, "a plan needs a group of pollers and a pool"};
  }
  if (pollers > kPollersMax) {
    return {StatusCode::invalid_argument, "pollers: " + std::to_string(pollers) +
                                              " in all groups together; at most " +
                                              std::to_string(kPollersMax)};
  }
  for (const PollerGroup& group : config.pollers) {
    if (group.count && *group.count == 0) {
      return {StatusCode::invalid_argument, "pollers." + group.name + ".count is 0; at least 1"};
    }
  }
  for (const PoolSettings& pool : config.pools) {
    if (pool.workers && (*pool.workers == 0 || *pool.workers > 58)) {
      return {StatusCode::invalid_argument, "pools." + pool.name + ".workers is " +
                                                std::to_string(*pool.workers) +
                                                "; it must be between 1 and 58"};
    }
  }
  return {};
}

}  // namespace

Result<Plan> place(const Machine& machine, const Config& config) {
  SLUICE_RETURN_IF_ERROR(check_size(config));
  auto resolution = resolve(machine, config);
  if (!resolution) return resolution.status();
  Plan plan = Placement(machine, config, std::move(*resolution)).run();
  if (plan.pools.size() > kInstancesMax) {
    return Status(StatusCode::invalid_argument, "pools: " + std::to_string(plan.pools.size()) +
                                                    " with those that are split by node; at most " +
                                                    std::to_string(kInstancesMax) +
                                                    ", nodes = \"any\" does not split");
  }
  return plan;
}

}  // namespace sluice::topology
