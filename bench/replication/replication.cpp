// SPDX-License-Identifier: BSD-3-Clause
// A primary with one replica, sluice-kv over Redis: the same clients, the same machine, in turn.
#include "replication.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "load.hpp"
#include "processes.hpp"
#include "systems.hpp"

namespace sluice::bench {
namespace {

constexpr std::array kLevels = {Level::quorum_memory, Level::quorum_disk};
constexpr std::array kClients = {1U, 16U, 64U};
constexpr std::array kValueBytes = {std::size_t{100}, std::size_t{4096}};
constexpr unsigned kClientsMax = 64;
/// One client waits for wake-ups of other processes more than for what they do: it is reported.
constexpr unsigned kClientsOfGoal = 16;
/// One contender's slice in a round. s
constexpr double kWarmUp = 0.1, kMeasured = 0.4;
constexpr double kQuickWarmUp = 0.01, kQuickMeasured = 0.05;
/// A system that was idle sooner after its slice owed nothing to the other one's time. ms
constexpr double kSoon = 100;

std::string name_of(Level level, unsigned clients, std::size_t bytes) {
  return fmt::format("replication.{}.{}.{}", to_string(level), clients, bytes);
}

/// One system at one level.
struct Contender {
  System* system = nullptr;
  LoadClients clients;
};

/// What one case brought, round by round.
struct Measurements {
  std::vector<double> per_second, p50_us, p99_us;
  std::vector<double> cpu_us;  ///< of both its processes for a SET, what they do after it included
  void add(const Throughput& one, double cpu_ms) {
    cpu_us.push_back(cpu_ms * 1e3 / static_cast<double>(one.answered));
    per_second.push_back(one.per_second);
    p50_us.push_back(one.p50_us);
    p99_us.push_back(one.p99_us);
  }
};
struct Case {
  Level level;
  Load load;
  std::string name;
  std::array<Measurements, 2> of;  ///< sluice-kv, Redis
  double settled_ms = 0;           ///< the longest that sluice-kv was not idle after its slice
};

/// Both systems at one level.
struct Pair {
  std::array<Contender, 2> of;  ///< sluice-kv, Redis
};

std::vector<Case> wanted_cases(const Bench& bench) {
  std::vector<Case> cases;
  for (const Level level : kLevels) {
    for (const unsigned clients : kClients) {
      for (const std::size_t bytes : kValueBytes) {
        std::string name = name_of(level, clients, bytes);
        if (!bench.any_wanted(name + ".")) continue;
        cases.push_back({level,
                         {.clients = clients,
                          .value_bytes = bytes,
                          .warm_up_s = bench.quick() ? kQuickWarmUp : kWarmUp,
                          .measured_s = bench.quick() ? kQuickMeasured : kMeasured},
                         std::move(name),
                         {},
                         0});
      }
    }
  }
  return cases;
}

/// One case in one round: each system has its slice, and is idle again before the next.
Status run_case(Case& one, Pair& pair, bool redis_first) {
  for (const std::size_t which : {redis_first ? 1U : 0U, redis_first ? 0U : 1U}) {
    Contender& contender = pair.of[which];
    const double cpu_ms = contender.system->cpu_ms();
    auto throughput = contender.clients.run(one.load);
    auto settled = contender.system->settle();  // its end says more than a lost connection
    if (!settled) return settled.status().with_context(one.name);
    if (!throughput) return throughput.status().with_context(one.name);
    one.of[which].add(*throughput, contender.system->cpu_ms() - cpu_ms);
    if (which == 0) one.settled_ms = std::max(one.settled_ms, *settled);
  }
  return {};
}

void report(Bench& bench, const Case& one, bool on_disk) {
  const auto& [kv, redis] = one.of;
  std::vector<double> ratios;
  for (std::size_t round = 0; round < kv.per_second.size(); ++round)
    ratios.push_back(kv.per_second[round] / redis.per_second[round]);
  std::string note =
      fmt::format("{:.3g} / {:.3g} k SETs/s; CPU {:.3g} / {:.3g} us a SET",
                  spread_of(kv.per_second).value / 1e3, spread_of(redis.per_second).value / 1e3,
                  spread_of(kv.cpu_us).value, spread_of(redis.cpu_us).value);
  if (one.settled_ms > kSoon)
    note += fmt::format("; sluice-kv idle {}{:.0f} ms later",
                        one.settled_ms < System::kIdleLimitMs ? "" : "not even ", one.settled_ms);
  if (!on_disk) note += "; the folder is in memory, not on a disk";
  bench.add(one.name + ".vs_redis", spread_of(std::move(ratios), std::move(note)));
  for (const auto& [beside, of] : {std::pair{"", &kv}, std::pair{"redis_", &redis}}) {
    bench.add(fmt::format("{}.{}sets_per_s", one.name, beside), spread_of(of->per_second));
    bench.add(fmt::format("{}.{}p50_us", one.name, beside), spread_of(of->p50_us));
    bench.add(fmt::format("{}.{}p99_us", one.name, beside), spread_of(of->p99_us));
  }
}

Status run_replication(Bench& bench) {
  std::vector<Case> cases = wanted_cases(bench);
  const HeldSignals signals;  // outlives the processes and their data
  auto folder = DataFolder::make();
  if (!folder) return folder.status();
  auto sluice_kv = start_sluice_kv(*folder);
  if (!sluice_kv) return sluice_kv.status();
  std::vector<std::unique_ptr<System>> redis;
  std::vector<Pair> pairs;
  for (const Level level : kLevels) {
    SLUICE_RETURN_IF_ERROR(signals.check());
    auto started = start_redis(level, *folder);
    if (!started) return started.status();
    redis.push_back(std::move(*started));
    auto ours = (*sluice_kv)->clients(level, kClientsMax);
    if (!ours) return ours.status();
    auto theirs = redis.back()->clients(level, kClientsMax);
    if (!theirs) return theirs.status();
    pairs.push_back({{Contender{sluice_kv->get(), std::move(*ours)},
                      Contender{redis.back().get(), std::move(*theirs)}}});
  }
  // The rounds go through all cases, so that a case's rounds are spread over the whole time.
  for (unsigned round = 0; round < bench.rounds(); ++round) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      SLUICE_RETURN_IF_ERROR(signals.check());
      Pair& pair = pairs[static_cast<std::size_t>(cases[i].level)];
      SLUICE_RETURN_IF_ERROR(run_case(cases[i], pair, (round + i) % 2 != 0));
    }
  }
  for (const Case& one : cases) report(bench, one, folder->on_disk());
  return {};
}

}  // namespace

FigureGroup replication() {
  FigureGroup group{"replication", {}, run_replication};
  group.left_out = missing_systems();
  for (const Level level : kLevels) {
    for (const unsigned clients : kClients) {
      for (const std::size_t bytes : kValueBytes) {
        const std::string name = name_of(level, clients, bytes);
        std::optional<Goal> goal;
        if (clients >= kClientsOfGoal) goal = at_least(1);
        group.figures.push_back({name + ".vs_redis", "x", goal});
        for (const std::string beside : {"", "redis_"}) {
          group.figures.push_back({name + "." + beside + "sets_per_s", "SETs/s", {}});
          group.figures.push_back({name + "." + beside + "p50_us", "us", {}});
          group.figures.push_back({name + "." + beside + "p99_us", "us", {}});
        }
      }
    }
  }
  return group;
}

}  // namespace sluice::bench
