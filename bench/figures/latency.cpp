// SPDX-License-Identifier: BSD-3-Clause
// From a completion to its handler on another core: awake, and with everybody asleep.
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../harness/rounds.hpp"
#include "figures.hpp"
#include "samples.hpp"
#include "sluice/dispatch/dispatcher.hpp"
#include "sources.hpp"

namespace sluice::bench {
namespace {

/// A worker that looks for work all the time.
constexpr std::uint32_t kSpinOn = 1U << 20;
/// Between two completions: the worker is back at searching.
constexpr std::chrono::microseconds kAwakeInterval{5};
/// Between two completions: everybody is asleep.
constexpr std::chrono::microseconds kAsleepInterval{400};
constexpr std::uint64_t kWarmUp = 256;
constexpr std::uint64_t kColdWarmUp = 8;
constexpr std::uint64_t kAwakeSamples = 4096;
constexpr std::uint64_t kAsleepSamples = 128;

/// A contender's time is the median of its samples; Rounds wants that of all units together.
Timing median_timing(const Samples& samples, std::uint64_t units) {
  return {samples.quantile_ns(0.5) * static_cast<double>(units), 0};
}

// --- awake
// ---------------------------------------------------------------------------------------

Result<Samples> oneway_through_sluice(const Bench& bench, Order order, std::uint64_t count) {
  DispatcherConfig config;
  config.pollers[0].wait = WaitMode::busy;
  config.pollers[0].cpus = {bench.cpu(0)};
  config.pollers[0].sources_max = 1;
  config.pools[0].cpus = {bench.cpu(1)};
  config.pools[0].spin_rounds = kSpinOn;
  config.connections_max = 1;
  auto source = std::make_shared<TimedSource>(kAwakeInterval);
  Samples samples(kWarmUp, count);
  auto dispatcher = Dispatcher::start(std::move(config));
  if (!dispatcher) return dispatcher.status();
  auto attached = (*dispatcher)
                      ->attach(source, {.order = order, .single_connection = true},
                               [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                 const std::uint64_t now = stamp();
                                 for (const ibv_wc& wc : batch) samples.add(wc.wr_id, now);
                               });
  if (!attached) return attached.status();
  source->allow(kWarmUp + count);
  samples.await_all();
  SLUICE_RETURN_IF_ERROR((*dispatcher)->stop(std::chrono::seconds(5)));
  return samples;
}

/// The floor: what a poll writes is written, a pointer to it is stored, and read and followed.
Result<Samples> oneway_of_a_pointer(const Bench& bench, std::uint64_t count) {
  struct alignas(kCacheLine) Line {
    ibv_wc payload;
  };
  std::array<Line, 8> lines{};
  alignas(kCacheLine) std::atomic<const Line*> pointer{nullptr};
  alignas(kCacheLine) std::atomic<std::uint64_t> received{0};
  Samples samples(kWarmUp, count);
  const Role roles[] = {
      {bench.cpu(0),
       [&] {
         const std::uint64_t interval = ticks(kAwakeInterval);
         std::uint64_t next = stamp();
         for (std::uint64_t i = 0; i < kWarmUp + count; ++i) {
           std::uint64_t now = 0;
           // The last one has arrived long since, unless that thread was held
           // up. (3) acquire: pairs with (4).
           while ((now = stamp()) < next || received.load(std::memory_order_acquire) < i) {
           }
           next = now + interval;
           ibv_wc& wc = lines[i % lines.size()].payload;
           wc = ibv_wc{};
           wc.byte_len = 64;
           wc.wr_id = stamp();
           // (1) release: pairs with (2).
           pointer.store(&lines[i % lines.size()], std::memory_order_release);
         }
       }},
      {bench.cpu(1), [&] {
         const Line* seen = nullptr;
         for (std::uint64_t i = 0; i < kWarmUp + count; ++i) {
           const Line* line = nullptr;
           // (2) acquire: pairs with (1).
           while ((line = pointer.load(std::memory_order_acquire)) == seen) {
           }
           seen = line;
           const std::uint64_t sent = line->payload.wr_id;
           samples.add(sent, stamp());
           received.store(i + 1, std::memory_order_release);  // (4)
         }
       }}};
  const auto timing = run_pinned(roles);
  if (!timing) return timing.status();
  return samples;
}

/// A contender that keeps the 99 % quantiles of its rounds as well.
Contender latency_contender(std::string name, std::uint64_t samples_max,
                            std::function<Result<Samples>(std::uint64_t)> run,
                            std::vector<double>* p99_ns) {
  return {std::move(name),
          [run = std::move(run), p99_ns, samples_max](std::uint64_t units) -> Result<Timing> {
            const auto samples = run(std::min(units, samples_max));
            if (!samples) return samples.status();
            if (p99_ns != nullptr) p99_ns->push_back(samples->quantile_ns(0.99));
            return median_timing(*samples, units);
          }};
}

Status run_oneway(Bench& bench) {
  std::vector<double> p99_ns;
  const std::vector<Contender> contenders = {
      latency_contender(
          "sluice", kAwakeSamples,
          [&](std::uint64_t n) { return oneway_through_sluice(bench, Order::none, n); }, &p99_ns),
      latency_contender(
          "per connection", kAwakeSamples,
          [&](std::uint64_t n) { return oneway_through_sluice(bench, Order::per_connection, n); },
          nullptr),
      latency_contender(
          "pointer", kAwakeSamples, [&](std::uint64_t n) { return oneway_of_a_pointer(bench, n); },
          nullptr)};
  const auto rounds = measure(bench, contenders, {.units_max = kAwakeSamples});
  if (!rounds) return rounds.status();
  bench.add("latency.oneway.p50_ns", rounds->ns_per_unit("sluice"));
  bench.add("latency.oneway.p99_ns", spread_of(std::move(p99_ns)));
  bench.add("latency.oneway.per_connection.p50_ns", rounds->ns_per_unit("per connection"));
  return add_ratio(bench, "latency.oneway.vs_pingpong", *rounds, "sluice", "pointer");
}

// --- asleep
// --------------------------------------------------------------------------------------

void sleep_for(std::chrono::nanoseconds time) {
  const timespec length{0, static_cast<long>(time.count())};
  ::clock_nanosleep(CLOCK_MONOTONIC, 0, &length, nullptr);
}

/// `asleep_share`: of the completions, those that found both threads asleep.
Result<Samples> cold_through_sluice(const Bench& bench, std::uint64_t count, double* asleep_share) {
  DispatcherConfig config;
  config.pollers[0].wait = WaitMode::event;
  config.pollers[0].cpus = {bench.cpu(0)};
  config.pollers[0].sources_max = 1;
  config.pools[0].cpus = {bench.cpu(1)};
  config.connections_max = 1;
  auto source = std::make_shared<EventSource>();
  if (!source->usable()) return Status(StatusCode::resource_exhausted, "no eventfd", errno);
  Samples samples(kColdWarmUp, count);
  auto dispatcher = Dispatcher::start(std::move(config));
  if (!dispatcher) return dispatcher.status();
  auto attached = (*dispatcher)
                      ->attach(source, {.order = Order::none},
                               [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                 const std::uint64_t now = stamp();
                                 for (const ibv_wc& wc : batch) samples.add(wc.wr_id, now);
                               });
  if (!attached) return attached.status();
  const std::array<Role, 1> roles{Role{bench.cpu(1), [&] {
                                         for (std::uint64_t i = 0; i < kColdWarmUp + count; ++i) {
                                           sleep_for(kAsleepInterval);
                                           while (!source->complete()) sleep_for(kAsleepInterval);
                                         }
                                       }}};
  const auto timing = run_pinned(roles);
  if (!timing) return timing.status();
  samples.await_all();
  const DispatcherCounters counters = (*dispatcher)->counters();
  SLUICE_RETURN_IF_ERROR((*dispatcher)->stop(std::chrono::seconds(5)));
  const std::uint64_t asleep = std::min(counters.pollers[0].sleeps, counters.workers[0].parks);
  *asleep_share = std::min(1.0, static_cast<double>(asleep) / static_cast<double>(count));
  return samples;
}

/// Signals `count` times, each only after the last one's sample was taken and its thread has gone
/// to sleep: a thread that was held up is not signalled twice.
template <typename Signal>
void signal_sleepers(std::uint64_t count, std::atomic<std::uint64_t>& sent,
                     const std::atomic<std::uint64_t>& received, Signal signal) {
  for (std::uint64_t i = 0; i < count; ++i) {
    do {
      sleep_for(kAsleepInterval);
    } while (received.load(std::memory_order_relaxed) < i);
    sent.store(stamp(), std::memory_order_relaxed);
    signal();
  }
}

/// An event descriptor written on one core, a thread in epoll_wait on the other.
Result<Samples> bare_epoll_wake(const Bench& bench, std::uint64_t count) {
  const EventFd event;
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event interest{};
  interest.events = EPOLLIN;
  if (event.fd() < 0 || epoll < 0 || ::epoll_ctl(epoll, EPOLL_CTL_ADD, event.fd(), &interest) != 0)
    return Status(StatusCode::resource_exhausted, "no epoll descriptor", errno);
  alignas(kCacheLine) std::atomic<std::uint64_t> sent{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> received{0};
  Samples samples(kColdWarmUp, count);
  const Role roles[] = {
      {bench.cpu(1),
       [&] { signal_sleepers(kColdWarmUp + count, sent, received, [&] { event.signal(); }); }},
      {bench.cpu(0), [&] {
         epoll_event ready{};
         for (std::uint64_t i = 0; i < kColdWarmUp + count; ++i) {
           while (::epoll_wait(epoll, &ready, 1, -1) != 1) {
           }
           const std::uint64_t now = stamp();
           samples.add(sent.load(std::memory_order_relaxed), now);
           event.drain();
           received.store(i + 1, std::memory_order_relaxed);
         }
       }}};
  const auto timing = run_pinned(roles);
  ::close(epoll);
  if (!timing) return timing.status();
  return samples;
}

/// A thread asleep on a futex, woken from the other core.
Result<Samples> bare_futex_wake(const Bench& bench, std::uint64_t count) {
  alignas(kCacheLine) std::atomic<std::uint32_t> word{0};
  static_assert(sizeof word == sizeof(std::uint32_t) && decltype(word)::is_always_lock_free);
  const auto futex = [&](int operation, std::uint32_t value) {
    ::syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
  };
  alignas(kCacheLine) std::atomic<std::uint64_t> sent{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> received{0};
  Samples samples(kColdWarmUp, count);
  const Role roles[] = {{bench.cpu(0),
                         [&] {
                           signal_sleepers(kColdWarmUp + count, sent, received, [&] {
                             word.fetch_add(1, std::memory_order_release);  // (1) pairs with (2)
                             futex(FUTEX_WAKE, 1);
                           });
                         }},
                        {bench.cpu(1), [&] {
                           for (std::uint32_t seen = 0; seen < kColdWarmUp + count;) {
                             // (2) acquire: pairs with (1).
                             while (word.load(std::memory_order_acquire) == seen)
                               futex(FUTEX_WAIT, seen);
                             const std::uint64_t now = stamp();
                             samples.add(sent.load(std::memory_order_relaxed), now);
                             received.store(++seen, std::memory_order_relaxed);
                           }
                         }}};
  const auto timing = run_pinned(roles);
  if (!timing) return timing.status();
  return samples;
}

Status run_cold(Bench& bench) {
  std::vector<double> p99_ns, epoll_ns, futex_ns;
  double asleep = 1;
  const std::vector<Contender> contenders = {
      latency_contender(
          "sluice", kAsleepSamples,
          [&](std::uint64_t n) {
            double share = 1;
            auto samples = cold_through_sluice(bench, n, &share);
            asleep = std::min(asleep, share);
            return samples;
          },
          &p99_ns),
      {"two wakes", [&](std::uint64_t units) -> Result<Timing> {
         const std::uint64_t count = std::min(units, kAsleepSamples);
         const auto epoll = bare_epoll_wake(bench, count);
         if (!epoll) return epoll.status();
         const auto futex = bare_futex_wake(bench, count);
         if (!futex) return futex.status();
         epoll_ns.push_back(epoll->quantile_ns(0.5));
         futex_ns.push_back(futex->quantile_ns(0.5));
         return Timing{(epoll_ns.back() + futex_ns.back()) * static_cast<double>(units), 0};
       }}};
  const auto rounds = measure(bench, contenders, {.units_max = kAsleepSamples});
  if (!rounds) return rounds.status();
  const auto microseconds = [](Value value) { return scaled(std::move(value), 1e-3); };
  // A machine that is busy with something else lets nobody sleep: it is said.
  Value median = rounds->ns_per_unit("sluice");
  median.note = fmt::format("{:.0f} % or more found both threads asleep", 100 * asleep);
  bench.add("latency.cold.p50_us", microseconds(std::move(median)));
  bench.add("latency.cold.p99_us", microseconds(spread_of(std::move(p99_ns))));
  bench.add("latency.cold.epoll_wake_us", microseconds(spread_of(std::move(epoll_ns))));
  bench.add("latency.cold.futex_wake_us", microseconds(spread_of(std::move(futex_ns))));
  return add_ratio(bench, "latency.cold.vs_wake", *rounds, "sluice", "two wakes");
}

}  // namespace

FigureGroup latency_oneway() {
  return {"latency.oneway",
          {{"latency.oneway.vs_pingpong", "x", at_most(1.5)},
           {"latency.oneway.p50_ns", "ns", {}},
           {"latency.oneway.p99_ns", "ns", {}},
           {"latency.oneway.per_connection.p50_ns", "ns", {}}},
          run_oneway};
}

FigureGroup latency_cold() {
  return {"latency.cold",
          {{"latency.cold.vs_wake", "x", at_most(0.8)},
           {"latency.cold.p50_us", "us", {}},
           {"latency.cold.p99_us", "us", {}},
           {"latency.cold.epoll_wake_us", "us", {}},
           {"latency.cold.futex_wake_us", "us", {}}},
          run_cold};
}

}  // namespace sluice::bench
