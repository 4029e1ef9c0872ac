// SPDX-License-Identifier: BSD-3-Clause
// One hot source beside thousands of cold ones, of which one has something to say at times.
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../harness/rounds.hpp"
#include "figures.hpp"
#include "samples.hpp"
#include "sluice/dispatch/dispatcher.hpp"
#include "sources.hpp"

namespace sluice::bench {
namespace {

constexpr std::size_t kBatch = 32;
constexpr std::size_t kColdSources = 4095;
constexpr std::uint32_t kColdEntries = 4;
constexpr std::chrono::milliseconds kFireEvery{10};
constexpr double kRoundNs = 1e9;
constexpr double kQuickRoundNs = 50e6;
/// Polls between two looks at the clock.
constexpr std::uint32_t kPollsPerLook = 64;

using ColdSources = std::vector<std::shared_ptr<EventSource>>;

Status allow_descriptors(std::size_t more) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return {StatusCode::internal, "getrlimit failed", errno};
  const rlim_t wanted = more + 256;
  if (limit.rlim_cur >= wanted) return {};
  limit.rlim_cur = wanted;
  if (limit.rlim_max < wanted) limit.rlim_max = wanted;  // a privileged process may
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return {};
  return {StatusCode::resource_exhausted,
          std::to_string(wanted) + " descriptors are needed and not allowed (ulimit -n)", errno};
}

Result<ColdSources> make_cold_sources() {
  SLUICE_RETURN_IF_ERROR(allow_descriptors(2 * kColdSources));
  ColdSources sources;
  for (std::size_t i = 0; i < kColdSources; ++i) {
    sources.push_back(std::make_shared<EventSource>(kColdEntries));
    if (!sources.back()->usable())
      return Status(StatusCode::resource_exhausted, "not enough event descriptors", errno);
  }
  return sources;
}

/// What one round of one way brought.
struct Outcome {
  double ns_per_completion = 0;  ///< of the hot source
  double cold_p99_ns = 0;        ///< event to handler; 0 where nothing fired
};

/// One way to serve all the sources on one thread.
class Way {
 public:
  Way() = default;
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;
  virtual ~Way() = default;
  /// A few polls of the hot source; returns how many of its completions were handled.
  virtual std::uint64_t step() = 0;
  /// The thread that stepped lets go.
  virtual void release() {}

  void handle_hot(std::span<const ibv_wc> batch) noexcept {
    for (const ibv_wc& wc : batch) sum_ += wc.wr_id + wc.byte_len;
  }
  void handle_cold(std::span<const ibv_wc> batch) noexcept {
    const std::uint64_t now = stamp();
    for (const ibv_wc& wc : batch) samples_.add(wc.wr_id, now);
    fired_ += batch.size();
  }

  /// Steps on one core for a while. On the other, one cold source after the other gets a completion
  /// now and then.
  Result<Outcome> round(const Bench& bench, const ColdSources& cold);

 protected:
  std::uint64_t fired_ = 0;  ///< completions of cold sources handled

 private:
  Samples samples_{0, 4096};
  std::uint64_t sum_ = 0;
};

Result<Outcome> Way::round(const Bench& bench, const ColdSources& cold) {
  const double length_ns = bench.quick() ? kQuickRoundNs : kRoundNs;
  alignas(kCacheLine) std::atomic<bool> over{false};
  std::uint64_t completions = 0;
  double took_ns = 0;
  samples_.clear();
  std::vector<Role> roles = {{bench.cpu(0), [&] {
                                const double begin = now_ns();
                                do {
                                  completions += step();
                                  took_ns = now_ns() - begin;
                                } while (took_ns < length_ns);
                                release();
                                over.store(true, std::memory_order_relaxed);
                              }}};
  if (!cold.empty()) {
    roles.push_back({bench.cpu(1), [&] {
                       timespec next{};
                       ::clock_gettime(CLOCK_MONOTONIC, &next);
                       for (std::size_t i = 0; !over.load(std::memory_order_relaxed); ++i) {
                         constexpr long kSecond = 1'000'000'000;
                         next.tv_nsec += std::chrono::nanoseconds(kFireEvery).count();
                         next.tv_sec += next.tv_nsec / kSecond;
                         next.tv_nsec %= kSecond;
                         ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, nullptr);
                         cold[i * 997 % cold.size()]->complete();
                       }
                     }});
  }
  const auto timing = run_pinned(roles);
  if (!timing) return timing.status();
  Outcome outcome{took_ns / static_cast<double>(completions), 0};
  if (!cold.empty()) {
    if (samples_.size() == 0) return Status(StatusCode::internal, "no cold source was served");
    outcome.cold_p99_ns = samples_.quantile_ns(0.99);
  }
  return outcome;
}

/// The dispatcher, routing inline.
class Dispatched final : public Way {
 public:
  Status open(const ColdSources& cold) {
    DispatcherConfig config;
    config.drive = Drive::host;
    config.pollers[0].wait = WaitMode::event;
    config.connections_max = 1;
    auto dispatcher = Dispatcher::start(std::move(config));
    if (!dispatcher) return dispatcher.status();
    dispatcher_ = std::move(*dispatcher);
    auto hot = dispatcher_->attach(
        std::make_shared<RingSource>(), {.order = Order::inlined},
        [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handle_hot(batch); });
    if (!hot) return hot.status();
    for (const auto& source : cold) {
      auto one = dispatcher_->attach(
          source, {.order = Order::inlined},
          [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handle_cold(batch); });
      if (!one) return one.status();
    }
    return settle(1 + cold.size());
  }
  std::uint64_t step() override {
    const std::uint64_t before = fired_;
    std::uint64_t completions = 0;
    for (std::uint32_t i = 0; i < kPollsPerLook; ++i)
      completions += dispatcher_->poller(0).run_once();
    return completions - (fired_ - before);
  }
  void release() override { dispatcher_->poller(0).release_thread(); }

 private:
  /// Until the poller knows all of them and only the hot one is hot.
  Status settle(std::size_t sources) {
    constexpr int kRoundsMax = 100'000;
    PollerCounters counters;
    for (int i = 0; i < kRoundsMax && (counters.sources != sources || counters.hot_sources != 1);
         ++i) {
      dispatcher_->poller(0).run_once();
      if (i % 64 == 0) counters = dispatcher_->counters().pollers[0];
    }
    release();
    if (counters.sources == sources && counters.hot_sources == 1) return {};
    return {StatusCode::internal, std::to_string(counters.hot_sources) + " sources of " +
                                      std::to_string(counters.sources) + " are hot, not one of " +
                                      std::to_string(sources)};
  }
  std::unique_ptr<Dispatcher> dispatcher_;
};

/// What one would write for just this: the hot source is polled in a loop, and each time the event
/// descriptors of the others are looked at through epoll, without waiting.
class BareEpoll final : public Way {
 public:
  ~BareEpoll() override {
    if (epoll_ >= 0) ::close(epoll_);
  }
  Status open(const ColdSources& cold) {
    cold_ = &cold;
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    for (std::size_t i = 0; i < cold.size(); ++i) {
      epoll_event interest{};
      interest.events = EPOLLIN;
      interest.data.u64 = i;
      if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, cold[i]->wait_fd(), &interest) != 0)
        return {StatusCode::resource_exhausted, "epoll refused a descriptor", errno};
    }
    return {};
  }
  std::uint64_t step() override {
    std::array<ibv_wc, kBatch> batch;
    std::uint64_t completions = 0;
    for (std::uint32_t i = 0; i < kPollsPerLook; ++i) {
      const std::uint32_t count = hot_->poll(batch).count;
      handle_hot({batch.data(), count});
      completions += count;
      epoll_event ready{};
      if (::epoll_wait(epoll_, &ready, 1, 0) != 1) continue;
      EventSource& source = *(*cold_)[ready.data.u64];
      source.consume_event();
      handle_cold({batch.data(), source.poll(batch).count});
    }
    return completions;
  }

 private:
  const ColdSources* cold_ = nullptr;
  int epoll_ = -1;
  const std::unique_ptr<CompletionSource> hot_ = std::make_unique<RingSource>();
};

Status run_many(Bench& bench) {
  auto cold = make_cold_sources();
  if (!cold) return cold.status();
  auto cold_of_epoll = make_cold_sources();
  if (!cold_of_epoll) return cold_of_epoll.status();
  const ColdSources none;
  Dispatched alone, many;
  BareEpoll bare;
  SLUICE_RETURN_IF_ERROR(alone.open(none));
  SLUICE_RETURN_IF_ERROR(many.open(*cold));
  SLUICE_RETURN_IF_ERROR(bare.open(*cold_of_epoll));

  struct Turn {
    Way* way;
    const ColdSources* cold;
  };
  const std::array<Turn, 3> turns = {Turn{&alone, &none}, Turn{&many, &*cold},
                                     Turn{&bare, &*cold_of_epoll}};
  std::vector<double> slowdowns, tails, tails_us, bare_tails_us, bare_slowdowns;
  for (unsigned round = 0; round < bench.rounds(); ++round) {
    std::array<Outcome, turns.size()> outcomes;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const std::size_t at = (round + i) % turns.size();
      const auto outcome = turns[at].way->round(bench, *turns[at].cold);
      if (!outcome) return outcome.status();
      outcomes[at] = *outcome;
    }
    slowdowns.push_back(outcomes[1].ns_per_completion / outcomes[0].ns_per_completion);
    bare_slowdowns.push_back(outcomes[2].ns_per_completion / outcomes[0].ns_per_completion);
    tails.push_back(outcomes[1].cold_p99_ns / outcomes[2].cold_p99_ns);
    tails_us.push_back(outcomes[1].cold_p99_ns / 1e3);
    bare_tails_us.push_back(outcomes[2].cold_p99_ns / 1e3);
  }
  bench.add("sources.4096_cold.vs_1", spread_of(std::move(slowdowns)));
  bench.add("sources.cold_p99.vs_epoll", spread_of(std::move(tails)));
  bench.add("sources.cold_p99_us", spread_of(std::move(tails_us)));
  bench.add("sources.epoll.cold_p99_us", spread_of(std::move(bare_tails_us)));
  bench.add("sources.epoll.vs_1", spread_of(std::move(bare_slowdowns)));
  return {};
}

}  // namespace

FigureGroup many_sources() {
  return {"sources",
          {{"sources.4096_cold.vs_1", "x", at_most(1.1)},
           {"sources.cold_p99.vs_epoll", "x", at_most(2)},
           {"sources.cold_p99_us", "us", {}},
           {"sources.epoll.cold_p99_us", "us", {}},
           {"sources.epoll.vs_1", "x", {}}},
          run_many};
}

}  // namespace sluice::bench
