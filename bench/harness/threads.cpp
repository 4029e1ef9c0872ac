// SPDX-License-Identifier: BSD-3-Clause
#include "threads.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <ctime>
#include <string>
#include <thread>

#include "sluice/core/cacheline.hpp"
#include "sluice/topology/cpus.hpp"
#include "sluice/topology/machine.hpp"

namespace sluice::bench {
namespace {

/// Idle rounds before the CPU is offered to others, with a system call that costs hundreds of ns.
constexpr std::uint32_t kSpinRounds = 4096;
constexpr std::uint32_t kSharedSpinRounds = 16;

double clock_ns(clockid_t clock) noexcept {
  timespec at{};
  ::clock_gettime(clock, &at);
  return static_cast<double>(at.tv_sec) * 1e9 + static_cast<double>(at.tv_nsec);
}

}  // namespace

double thread_cpu_ns() noexcept {
  return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}
double now_ns() noexcept {
  return clock_ns(CLOCK_MONOTONIC);
}

Backoff::Backoff(const Bench& bench, std::size_t threads) noexcept
    : spin_rounds_(threads > bench.cpu_count() ? kSharedSpinRounds : kSpinRounds) {}

void Backoff::idle() noexcept {
  if (++idle_rounds_ < spin_rounds_) {
    cpu_relax();
  } else {
    idle_rounds_ = 0;
    ::sched_yield();
  }
}

Result<Timing> run_pinned(std::span<const Role> roles) {
  struct alignas(kCacheLine) Slot {
    double start_ns = 0;
    double end_ns = 0;
    double cpu_ns = 0;
    Status status;
  };
  std::vector<Slot> slots(roles.size());
  std::atomic<std::size_t> waiting{roles.size()};
  std::vector<std::thread> threads;
  threads.reserve(roles.size());
  for (std::size_t i = 0; i < roles.size(); ++i) {
    threads.emplace_back([&, i] {
      Slot& slot = slots[i];
      slot.status = topology::bind_current_thread(roles[i].cpu);
      // acq_rel / acquire: nobody starts before all have arrived, with what each has done so far.
      waiting.fetch_sub(1, std::memory_order_acq_rel);
      while (waiting.load(std::memory_order_acquire) != 0) ::sched_yield();
      const double cpu = thread_cpu_ns();
      slot.start_ns = now_ns();
      if (slot.status.ok()) roles[i].body();
      slot.end_ns = now_ns();
      slot.cpu_ns = thread_cpu_ns() - cpu;
    });
  }
  for (std::thread& thread : threads) thread.join();
  Timing timing;
  double first = slots[0].start_ns;
  double last = slots[0].end_ns;
  for (const Slot& slot : slots) {
    if (!slot.status.ok()) return slot.status;
    first = std::min(first, slot.start_ns);
    last = std::max(last, slot.end_ns);
    timing.cpu_ns += slot.cpu_ns;
  }
  timing.wall_ns = last - first;
  return timing;
}

Result<double> pingpong_ns(unsigned cpu_a, unsigned cpu_b) {
  constexpr std::uint32_t kChunks = 15;
  constexpr std::uint32_t kTrips = 200;
  alignas(kCacheLine) std::atomic<std::uint32_t> ball{0};
  std::array<double, kChunks> took{};
  // Even: with a; odd: with b. On one CPU both would spin out their slices, so they yield.
  const bool shared = cpu_a == cpu_b;
  const auto wait_for = [&](std::uint32_t value) {
    while (ball.load(std::memory_order_acquire) != value) {
      if (shared) ::sched_yield();
    }
  };
  const Role roles[] = {{cpu_a,
                         [&] {
                           std::uint32_t at = 0;
                           for (double& chunk : took) {
                             const double start = now_ns();
                             for (std::uint32_t i = 0; i < kTrips; ++i) {
                               ball.store(++at, std::memory_order_release);
                               wait_for(++at);
                             }
                             chunk = (now_ns() - start) / kTrips;
                           }
                         }},
                        {cpu_b, [&] {
                           std::uint32_t at = 0;
                           for (std::uint32_t i = 0; i < kChunks * kTrips; ++i) {
                             wait_for(++at);
                             ball.store(++at, std::memory_order_release);
                           }
                         }}};
  Result<Timing> timing = run_pinned(roles);
  if (!timing.ok()) return timing.status();
  std::nth_element(took.begin(), took.begin() + kChunks / 2, took.end());
  return took[kChunks / 2];
}

Result<std::vector<unsigned>> bench_cpus() {
  Result<topology::Machine> machine = topology::Machine::this_machine();
  if (!machine.ok()) return machine.status();
  const topology::CpuSet usable = machine->usable();
  std::vector<unsigned> cpus;
  for (const topology::Core& core : machine->cores()) {
    for (const unsigned pu : core.pus) {
      const unsigned index = machine->pus()[pu].os_index;
      if (!usable.contains(index)) continue;
      cpus.push_back(index);
      break;
    }
  }
  if (cpus.size() < 2) cpus = usable.to_vector();
  if (cpus.empty()) {
    return Status{StatusCode::resource_exhausted, "there is no CPU that this process may use"};
  }
  return cpus;
}

}  // namespace sluice::bench
