// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../harness/instant_source.hpp"
#include "../harness/rounds.hpp"
#include "../harness/spsc_ring.hpp"
#include "dpdk_glue.h"
#include "figures.hpp"
#include "ours.hpp"
#include "sluice/topology/cpus.hpp"
#include "workload.hpp"

namespace sluice::bench {
namespace {

constexpr std::uint32_t kFlows = 64;
constexpr std::uint32_t kOneCoreBurst = 8;  ///< rte_distributor waits for its worker beyond that
constexpr std::uint32_t kBuffers = 32;      ///< batches in flight, of ours too

/// Completions polled into buffers, their pointers sent through a scheduler of flows to one worker,
/// and the buffers back through a ring once all in them are handled. The handler is that of ours,
/// with the check of the order.
class Scheduled {
 public:
  explicit Scheduled(const Bench& bench)
      : bench_(bench),
        source_({.pattern = of_connections(kFlows)}),
        readers_(1),
        free_(kBuffers),
        left_(kBuffers, kBatch),
        back_(kBuffers) {}
  Scheduled(const Scheduled&) = delete;
  Scheduled& operator=(const Scheduled&) = delete;
  virtual ~Scheduled() = default;

  [[nodiscard]] Result<Timing> run(std::uint64_t units) {
    burst_ = kBatch;
    allow(units);
    const Role roles[] = {{bench_.cpu(0),
                           [this] {
                             Backoff backoff(bench_, 2);
                             while (handled_elsewhere() < total_) backoff.after(produce());
                           }},
                          {bench_.cpu(1), [this] {
                             Backoff backoff(bench_, 2);
                             while (handled() < total_) backoff.after(consume());
                           }}};
    return checked(run_pinned(roles));
  }
  [[nodiscard]] Result<Timing> run_on_one_core(std::uint64_t units) {
    burst_ = kOneCoreBurst;
    allow(units);
    const Role role{bench_.cpu(0), [this] {
                      while (handled() < total_) {
                        produce();
                        consume();
                      }
                    }};
    return checked(run_pinned({&role, 1}));
  }
  [[nodiscard]] Contender contender(std::string name) {
    return {std::move(name), [this](std::uint64_t units) { return run(units); }, kBatch};
  }
  [[nodiscard]] Contender one_core_contender(std::string name) {
    return {std::move(name), [this](std::uint64_t units) { return run_on_one_core(units); },
            kBatch};
  }

 protected:
  /// How many of these, the front of what is left of a buffer, the scheduler has taken.
  virtual unsigned put(std::span<ibv_wc> completions, Buffer* buffer, std::size_t first) = 0;
  /// There is nothing to put: pass on what is held back.
  virtual void flush() = 0;
  virtual unsigned take(std::span<ibv_wc*, kBatch> out) = 0;

  FreeBuffers& buffers() noexcept { return free_; }

 private:
  void allow(std::uint64_t units) {
    source_.allow(units);
    total_ += units;
  }
  [[nodiscard]] Result<Timing> checked(Result<Timing> timing) const {
    if (!timing.ok()) return timing;
    SLUICE_RETURN_IF_ERROR(order_.status());
    SLUICE_RETURN_IF_ERROR(readers_.check(1, total_));
    return timing;
  }
  [[nodiscard]] std::uint64_t handled() const noexcept { return readers_.count(); }
  /// As the producer sees it: looked at only once all is given, so as not to disturb.
  [[nodiscard]] std::uint64_t handled_elsewhere() const noexcept {
    return source_.exhausted() && filling_ == nullptr ? handled() : 0;
  }

  std::size_t produce() {
    if (filling_ == nullptr && !source_.exhausted()) {
      filling_ = free_.take();
      if (filling_ == nullptr) {
        for (Buffer* back = nullptr; back_.pop(back);) free_.put(back);
        filling_ = free_.take();
      }
      if (filling_ != nullptr) {
        source_.poll({filling_->completions, kBatch});
        put_ = 0;
      }
    }
    if (filling_ == nullptr) {
      flush();
      return 0;
    }
    const unsigned taken =
        put({&filling_->completions[put_], std::min(burst_, kBatch - put_)}, filling_, put_);
    put_ += taken;
    if (put_ == kBatch) filling_ = nullptr;
    return taken;
  }

  std::size_t consume() {
    std::array<ibv_wc*, kBatch> taken;
    const unsigned count = take(taken);
    if (count == 0) return 0;
    for (ibv_wc* const wc : std::span(taken.data(), count)) {
      order_.note(*wc);
      readers_[0].read({wc, 1});
      Buffer* const buffer = free_.owner_of(wc);
      std::uint32_t& left = left_[static_cast<std::size_t>(buffer - free_.all().data())];
      if (--left == 0) {
        left = kBatch;
        SLUICE_CHECK(back_.push(buffer), "a ring as long as the buffers was full");
      }
    }
    return count;
  }

  const Bench& bench_;
  InstantSource source_;
  Readers readers_;
  OrderCheck order_;
  FreeBuffers free_;
  std::vector<std::uint32_t> left_;  ///< of each buffer, not handled yet; the worker's
  SpscRing<Buffer*> back_;
  unsigned burst_ = kBatch;  ///< completions that are put at a time
  Buffer* filling_ = nullptr;
  std::uint32_t put_ = 0;  ///< of filling_'s completions
  std::uint64_t total_ = 0;
};

class EventDsw final : public Scheduled {
 public:
  using Scheduled::Scheduled;

 private:
  unsigned put(std::span<ibv_wc> completions, Buffer*, std::size_t) override {
    return dsw_put(completions.data(), static_cast<unsigned>(completions.size()));
  }
  void flush() override { dsw_flush(); }
  unsigned take(std::span<ibv_wc*, kBatch> out) override { return dsw_take(out.data(), kBatch); }
};

class Distributor final : public Scheduled {
 public:
  using Scheduled::Scheduled;
  [[nodiscard]] int open() {
    const std::span<Buffer> all = buffers().all();
    return distributor_open(reinterpret_cast<char*>(all[0].completions), sizeof(Buffer), all.size(),
                            kBatch);
  }

 private:
  unsigned put(std::span<ibv_wc> completions, Buffer* buffer, std::size_t first) override {
    const auto slot = static_cast<std::size_t>(buffer - buffers().all().data());
    return distributor_put(completions.data(), slot, first,
                           static_cast<unsigned>(completions.size()));
  }
  void flush() override { distributor_put(nullptr, 0, 0, 0); }
  unsigned take(std::span<ibv_wc*, kBatch> out) override { return distributor_take(out.data()); }
};

constexpr const char* kPrefix = "handoff.per_connection.speedup.";

/// DPDK binds the thread that starts it; this one goes on as it was.
Status start_dpdk(const Bench& bench) {
  const topology::CpuSet binding = topology::current_thread_binding();
  if (const int error = dpdk_start(bench.cpu(0)); error != 0) {
    return {StatusCode::not_supported, "DPDK does not start", error};
  }
  return topology::bind_current_thread(binding);
}

struct DpdkContenders {
  explicit DpdkContenders(const Bench& bench) : event_dsw(bench), distributor(bench) {}
  EventDsw event_dsw;
  Distributor distributor;
};

/// For all passes, and until the program ends: DPDK is started once in a process.
Result<DpdkContenders*> dpdk_contenders(const Bench& bench) {
  static std::unique_ptr<DpdkContenders> contenders;
  if (contenders != nullptr) return contenders.get();
  SLUICE_RETURN_IF_ERROR(start_dpdk(bench));
  auto fresh = std::make_unique<DpdkContenders>(bench);
  if (const int error = dsw_open(); error != 0)
    return Status{StatusCode::not_supported, "event_dsw does not open", error};
  if (const int error = fresh->distributor.open(); error != 0)
    return Status{StatusCode::not_supported, "rte_distributor does not open", error};
  contenders = std::move(fresh);
  return contenders.get();
}

Status run_dpdk(Bench& bench) {
  const auto dpdk = dpdk_contenders(bench);
  if (!dpdk.ok()) return dpdk.status();
  auto& [event_dsw, distributor] = **dpdk;
  const OursOptions options{.order = Order::per_connection,
                            .connections = kFlows,
                            .in_flight_max = kBuffers * kBatch,
                            .check_order = true,
                            .pattern = of_connections(kFlows)};
  auto ours = Ours::make(bench, options);
  if (!ours.ok()) return ours.status();
  const auto rounds = measure(
      bench, {(*ours)->contender("ours"), (*ours)->stepped_contender("ours.1core"),
              event_dsw.contender("event_dsw"), event_dsw.one_core_contender("event_dsw.1core"),
              distributor.contender("rte_distributor"),
              distributor.one_core_contender("rte_distributor.1core")});
  if (!rounds.ok()) return rounds.status();
  for (const std::string name : {"event_dsw", "rte_distributor"}) {
    SLUICE_RETURN_IF_ERROR(add_ratio(bench, kPrefix + name, *rounds, name, "ours"));
    SLUICE_RETURN_IF_ERROR(
        add_ratio(bench, kPrefix + name + ".1core", *rounds, name + ".1core", "ours.1core"));
  }
  return {};
}

}  // namespace

FigureGroup handoff_dpdk() {
  const auto figure = [](const std::string& name, double goal) {
    return FigureInfo{kPrefix + name, "x", at_least(goal)};
  };
  return {"handoff.per_connection, DPDK",
          {figure("event_dsw", 1.0), figure("rte_distributor", 2.0), figure("event_dsw.1core", 1.0),
           figure("rte_distributor.1core", 2.0)},
          run_dpdk};
}

}  // namespace sluice::bench
