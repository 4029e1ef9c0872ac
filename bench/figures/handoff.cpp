// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "../harness/instant_source.hpp"
#include "../harness/rounds.hpp"
#include "figures.hpp"
#include "floor.hpp"
#include "ours.hpp"
#include "queues.hpp"
#include "through_queue.hpp"
#include "workload.hpp"

namespace sluice::bench {
namespace {

/// The names of the queues in figures, in the order of make_queues().
constexpr const char* kQueues[] = {"tbb", "moodycamel", "atomic_queue", "boost", "mutex"};

template <template <typename> typename How, unsigned kAtomicCapacity, typename T>
std::vector<std::unique_ptr<QueueContender>> make_queues(const Bench& bench, Crew crew) {
  std::vector<std::unique_ptr<QueueContender>> made;
  made.push_back(std::make_unique<How<TbbQueue<T>>>(bench, crew));
  made.push_back(std::make_unique<How<MoodycamelQueue<T>>>(bench, crew));
  made.push_back(std::make_unique<How<AtomicQueueOf<T, kAtomicCapacity>>>(bench, crew));
  made.push_back(std::make_unique<How<BoostQueue<T>>>(bench, crew));
  made.push_back(std::make_unique<How<MutexQueue<T>>>(bench, crew));
  return made;
}

/// What makes a figure of a queue: how it is used and by how many, its suffix and its goals.
struct QueueFigure {
  bool batched = false;
  Crew crew;
  [[nodiscard]] std::string name(const std::string& queue) const {
    return fmt::format("handoff.none.speedup.{}{}{}", queue, batched ? "_batched" : "",
                       crew.pollers == 1 ? "" : fmt::format(".{}p{}w", crew.pollers, crew.workers));
  }
  [[nodiscard]] double goal(const std::string& queue) const {
    if (batched) return crew.pollers == 1 ? 0.95 : 1.0;
    if (crew.pollers > 1) return 1.0;
    return queue == "tbb" ? 5.0 : queue == "mutex" ? 6.0 : 1.0;
  }
};
constexpr QueueFigure kQueueFigures[] = {
    {false, {1, 1}}, {true, {1, 1}}, {false, {2, 2}}, {true, {2, 2}}};

/// The floor (one poller, one worker), ours, and every queue in both ways, all in the same rounds.
Status run_none(Bench& bench, Crew crew) {
  auto ours = Ours::make(bench, {.pollers = crew.pollers, .workers = crew.workers});
  if (!ours.ok()) return ours.status();
  std::vector<Contender> contenders{(*ours)->contender("ours")};
  std::optional<Floor> floor;
  if (crew.pollers == 1) {
    floor.emplace(bench, of_connections(1), kBatch, kBufferCount);
    contenders.push_back(floor->contender());
  }
  std::vector<std::unique_ptr<QueueContender>> all;
  for (const QueueFigure& figure : kQueueFigures) {
    if (figure.crew.pollers != crew.pollers) continue;
    constexpr unsigned kPollersMax = 2;
    auto queues =
        figure.batched
            ? make_queues<BatchesThrough, kBufferCount * kPollersMax, Buffer*>(bench, crew)
            : make_queues<CompletionsThrough, kBufferCount * kBatch * kPollersMax, ibv_wc>(bench,
                                                                                           crew);
    for (std::size_t i = 0; i < queues.size(); ++i) {
      if (!bench.wanted(figure.name(kQueues[i]))) continue;
      contenders.push_back(queues[i]->contender(figure.name(kQueues[i])));
      all.push_back(std::move(queues[i]));
    }
  }
  const auto rounds = measure(bench, contenders);
  if (!rounds.ok()) return rounds.status();
  if (floor) {
    SLUICE_RETURN_IF_ERROR(add_ratio(bench, "handoff.none.vs_floor", *rounds, "ours", "floor"));
  }
  for (const QueueFigure& figure : kQueueFigures) {
    if (figure.crew.pollers != crew.pollers) continue;
    for (const char* const queue : kQueues) {
      const std::string name = figure.name(queue);
      SLUICE_RETURN_IF_ERROR(add_ratio(bench, name, *rounds, name, "ours"));
    }
  }
  return {};
}

Status run_single(Bench& bench) {
  auto ours = Ours::make(bench, {.batch = 1});
  if (!ours.ok()) return ours.status();
  Floor floor(bench, of_connections(1, 1), 1, kBufferCount);
  const auto rounds = measure(bench, {floor.contender(), (*ours)->contender("ours")});
  if (!rounds.ok()) return rounds.status();
  return add_ratio(bench, "handoff.single.vs_floor", *rounds, "ours", "floor");
}

constexpr std::uint32_t kInFlight[] = {1, 4, 32};  ///< batches
constexpr std::uint32_t kInFlightOfGoal = 4;

Status run_per_connection(Bench& bench, std::uint32_t connections) {
  std::vector<std::unique_ptr<Ours>> ours;
  std::vector<std::unique_ptr<Floor>> floors;
  std::vector<Contender> contenders;
  for (const std::uint32_t batches : kInFlight) {
    auto made = Ours::make(bench, {.order = Order::per_connection,
                                   .connections = connections,
                                   .in_flight_max = batches * kBatch,
                                   .pattern = of_connections(connections)});
    if (!made.ok()) return made.status();
    ours.push_back(std::move(*made));
    floors.push_back(std::make_unique<Floor>(bench, of_connections(connections), kBatch, batches));
    contenders.push_back(floors.back()->contender(fmt::format("floor.f{}", batches)));
    contenders.push_back(ours.back()->contender(fmt::format("ours.f{}", batches)));
  }
  const auto rounds = measure(bench, contenders);
  if (!rounds.ok()) return rounds.status();
  const std::string prefix = fmt::format("handoff.per_connection.c{}", connections);
  for (const std::uint32_t batches : kInFlight) {
    const std::string over = fmt::format("ours.f{}", batches);
    const std::string under = fmt::format("floor.f{}", batches);
    if (batches == kInFlightOfGoal) {
      SLUICE_RETURN_IF_ERROR(add_ratio(bench, prefix + ".vs_floor", *rounds, over, under));
    }
    SLUICE_RETURN_IF_ERROR(
        add_ratio(bench, fmt::format("{}.f{}.vs_floor", prefix, batches), *rounds, over, under));
  }
  return {};
}

}  // namespace

FigureGroup handoff_none(std::uint32_t pollers_and_workers) {
  const Crew crew{pollers_and_workers, pollers_and_workers};
  FigureGroup group;
  group.name = fmt::format("handoff.none, {} pollers, {} workers", crew.pollers, crew.workers);
  if (crew.pollers == 1) group.figures.push_back({"handoff.none.vs_floor", "x", at_most(1.10)});
  for (const QueueFigure& figure : kQueueFigures) {
    if (figure.crew.pollers != crew.pollers) continue;
    for (const char* const queue : kQueues)
      group.figures.push_back({figure.name(queue), "x", at_least(figure.goal(queue))});
  }
  group.run = [crew](Bench& bench) { return run_none(bench, crew); };
  return group;
}

FigureGroup handoff_single() {
  return {"handoff.single", {{"handoff.single.vs_floor", "x", at_most(2.0)}}, run_single};
}

FigureGroup handoff_per_connection(std::uint32_t connections, double goal) {
  const std::string name = fmt::format("handoff.per_connection.c{}", connections);
  FigureGroup group{name, {{name + ".vs_floor", "x", at_most(goal)}}, {}};
  for (const std::uint32_t batches : kInFlight) {
    group.figures.push_back({fmt::format("{}.f{}.vs_floor", name, batches), "x", std::nullopt});
  }
  group.run = [connections](Bench& bench) { return run_per_connection(bench, connections); };
  return group;
}

}  // namespace sluice::bench
