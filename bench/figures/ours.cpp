// SPDX-License-Identifier: BSD-3-Clause
#include "ours.hpp"

#include <utility>

namespace sluice::bench {
namespace {

/// Rounds of each part after which what was attached is in place: its commands are executed.
constexpr int kSettlingRounds = 256;
constexpr std::uint32_t kSourceCapacity = 1024;

}  // namespace

Ours::Ours(const Bench& bench, OursOptions options)
    : bench_(bench), options_(std::move(options)), readers_(options_.workers) {}

Ours::~Ours() = default;

Result<std::unique_ptr<Ours>> Ours::make(const Bench& bench, OursOptions options) {
  std::unique_ptr<Ours> ours(new Ours(bench, std::move(options)));
  SLUICE_RETURN_IF_ERROR(ours->start());
  return ours;
}

Status Ours::start() {
  DispatcherConfig config;
  config.drive = Drive::host;
  config.pollers[0].count = options_.pollers;
  config.pollers[0].wait = WaitMode::busy;
  config.pollers[0].batch_size = options_.batch;
  config.pollers[0].batch_count = options_.buffers;
  config.pollers[0].sources_max = 64;
  config.pools[0].workers = options_.workers;
  config.connections_max = std::max(64U, options_.connections * options_.pollers);
  Result<std::unique_ptr<Dispatcher>> dispatcher = Dispatcher::start(std::move(config));
  if (!dispatcher.ok()) return dispatcher.status();
  dispatcher_ = std::move(*dispatcher);
  if (options_.pattern.empty()) {
    options_.pattern = receives(options_.batch, [](std::size_t) { return 1U; });
  }
  for (std::uint32_t poller = 0; poller < options_.pollers; ++poller) {
    InstantSource::Options source;
    source.pattern = options_.pattern;
    source.batch = options_.batch;
    source.capacity = std::max(kSourceCapacity, options_.in_flight_max);
    source.in_flight_max = options_.in_flight_max;
    source.one_worker = options_.workers == 1;
    sources_.push_back(std::make_shared<InstantSource>(std::move(source)));
    AttachOptions attach;
    attach.order = options_.order;
    attach.poller = poller;
    auto handle = dispatcher_->attach(sources_.back(), attach, handler());
    if (!handle.ok()) return handle.status();
    attached_.push_back(*handle);
    for (std::uint32_t i = 0; i < options_.connections; ++i) {
      ConnectionOptions connection;
      connection.receive_source = attached_.back();
      connection.poller = poller;
      auto named = dispatcher_->attach_queue_pair(i + 1, std::move(connection));
      if (!named.ok()) return named.status();
      connections_.push_back(*named);
    }
  }
  settle();
  return {};
}

Handler Ours::handler() {
  if (options_.work) {
    return [this](std::span<const ibv_wc> completions, const BatchInfo& info) noexcept {
      for (const ibv_wc& wc : completions) {
        order_.note(wc);
        options_.work();
      }
      readers_[info.worker].read(completions);
    };
  }
  if (options_.check_order) {
    return [this](std::span<const ibv_wc> completions, const BatchInfo& info) noexcept {
      for (const ibv_wc& wc : completions) order_.note(wc);
      readers_[info.worker].read(completions);
    };
  }
  return [this](std::span<const ibv_wc> completions, const BatchInfo& info) noexcept {
    readers_[info.worker].read(completions);
  };
}

Status Ours::check() const {
  SLUICE_RETURN_IF_ERROR(order_.status());
  return readers_.check(options_.pollers, total_ / options_.pollers);
}

void Ours::settle() {
  for (int round = 0; round < kSettlingRounds; ++round) {
    for (std::uint32_t i = 0; i < options_.pollers; ++i) dispatcher_->poller(i).run_once();
    for (std::uint32_t i = 0; i < options_.workers; ++i) dispatcher_->worker(i).run_once();
    dispatcher_->control().run_once();
  }
  for (std::uint32_t i = 0; i < options_.pollers; ++i) dispatcher_->poller(i).release_thread();
  for (std::uint32_t i = 0; i < options_.workers; ++i) dispatcher_->worker(i).release_thread();
  dispatcher_->control().release_thread();
}

std::uint64_t Ours::granularity() const noexcept {
  return std::uint64_t{options_.batch} * options_.pollers;
}

std::vector<Role> Ours::roles() {
  std::vector<Role> all;
  const std::size_t threads =
      options_.workers + (options_.poller_beside_worker ? 0 : options_.pollers);
  const auto serve = [this, threads](Runnable& worker, Runnable* poller) {
    Backoff backoff(bench_, threads);
    while (readers_.count() < total_) {
      backoff.after((poller != nullptr ? poller->run_once() : 0) + worker.run_once());
    }
    worker.release_thread();
    if (poller != nullptr) poller->release_thread();
  };
  if (!options_.poller_beside_worker) {
    for (std::uint32_t i = 0; i < options_.pollers; ++i) {
      all.push_back({bench_.cpu(i), [this, i, threads] {
                       Runnable& poller = dispatcher_->poller(i);
                       Backoff backoff(bench_, threads);
                       while (!sources_[i]->exhausted()) backoff.after(poller.run_once());
                       poller.release_thread();
                     }});
    }
  }
  for (std::uint32_t i = 0; i < options_.workers; ++i) {
    Runnable* const beside = options_.poller_beside_worker && i + 1 == options_.workers
                                 ? &dispatcher_->poller(0)
                                 : nullptr;
    all.push_back({bench_.cpu(all.size()),
                   [this, i, serve, beside] { serve(dispatcher_->worker(i), beside); }});
  }
  return all;
}

Result<Timing> Ours::run(std::uint64_t units) {
  for (const auto& source : sources_) source->allow(units / options_.pollers);
  total_ += units;
  Result<Timing> timing = run_pinned(roles());
  if (!timing.ok()) return timing;
  SLUICE_RETURN_IF_ERROR(check());
  return timing;
}

Result<Timing> Ours::run_stepped(std::uint64_t units) {
  for (const auto& source : sources_) source->allow(units / options_.pollers);
  total_ += units;
  const Role role{bench_.cpu(0), [this] {
                    while (readers_.count() < total_) {
                      for (std::uint32_t i = 0; i < options_.pollers; ++i)
                        dispatcher_->poller(i).run_once();
                      for (std::uint32_t i = 0; i < options_.workers; ++i)
                        dispatcher_->worker(i).run_once();
                    }
                    for (std::uint32_t i = 0; i < options_.pollers; ++i)
                      dispatcher_->poller(i).release_thread();
                    for (std::uint32_t i = 0; i < options_.workers; ++i)
                      dispatcher_->worker(i).release_thread();
                  }};
  Result<Timing> timing = run_pinned({&role, 1});
  if (!timing.ok()) return timing;
  SLUICE_RETURN_IF_ERROR(check());
  return timing;
}

Contender Ours::contender(std::string name) {
  return {std::move(name), [this](std::uint64_t units) { return run(units); }, granularity()};
}

Contender Ours::stepped_contender(std::string name) {
  return {std::move(name), [this](std::uint64_t units) { return run_stepped(units); },
          granularity()};
}

}  // namespace sluice::bench
