// SPDX-License-Identifier: BSD-3-Clause
// What the dispatcher adds to a loop that polls and handles on one thread.
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "../harness/rounds.hpp"
#include "figures.hpp"
#include "sluice/dispatch/dispatcher.hpp"
#include "sources.hpp"

namespace sluice::bench {
namespace {

constexpr std::size_t kBatch = 32;

/// The handler: reads every completion.
struct Sum {
  std::uint64_t value = 0;
  void operator()(std::span<const ibv_wc> batch) noexcept {
    std::uint64_t sum = 0;
    for (const ibv_wc& wc : batch) sum += wc.wr_id + wc.byte_len;
    value += sum;
  }
};

/// The floor. Not inlined: the source's type is no more known here than a provider's is.
[[gnu::noinline]] void poll_and_handle(CompletionSource& source, Sum& handle,
                                       std::uint64_t completions) {
  std::array<ibv_wc, kBatch> batch;
  for (std::uint64_t done = 0; done < completions;) {
    const PollOutcome outcome = source.poll(batch);
    handle({batch.data(), outcome.count});
    done += outcome.count;
  }
}

Status run_path(Bench& bench) {
  DispatcherConfig config;
  config.drive = Drive::host;
  config.pollers[0].wait = WaitMode::busy;
  config.pollers[0].sources_max = 1;
  config.connections_max = 1;
  auto dispatcher = Dispatcher::start(std::move(config));
  if (!dispatcher) return dispatcher.status();
  Sum routed, bare;
  auto source = (*dispatcher)
                    ->attach(std::make_shared<RingSource>(), {.order = Order::inlined},
                             [&routed](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                               routed(batch);
                             });
  if (!source) return source.status();
  Runnable& poller = (*dispatcher)->poller(0);
  RingSource floor_source;

  const std::vector<Contender> contenders = {
      {"sluice",
       [&](std::uint64_t units) {
         return run_pinned(std::array{Role{bench.cpu(0), [&] {
                                             for (std::uint64_t done = 0; done < units;)
                                               done += poller.run_once();
                                             poller.release_thread();
                                           }}});
       },
       kBatch},
      {"bare poll",
       [&](std::uint64_t units) {
         return run_pinned(
             std::array{Role{bench.cpu(0), [&] { poll_and_handle(floor_source, bare, units); }}});
       },
       kBatch}};
  const auto rounds = measure(bench, contenders, {.pingpong = false});
  if (!rounds) return rounds.status();
  SLUICE_CHECK(routed.value != 0 && bare.value != 0, "nothing was handled");
  if (bench.wanted("path.bare_poll_ns"))
    bench.add("path.bare_poll_ns", rounds->ns_per_unit("bare poll"));
  return add_ratio(bench, "path.vs_bare_poll", *rounds, "sluice", "bare poll");
}

}  // namespace

FigureGroup path() {
  return {"path",
          {{"path.vs_bare_poll", "x", at_most(1.05)}, {"path.bare_poll_ns", "ns", {}}},
          run_path};
}

}  // namespace sluice::bench
