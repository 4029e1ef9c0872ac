// SPDX-License-Identifier: BSD-3-Clause
// Workers that sleep whenever they can, under producers that publish in bursts: nothing is lost, no
// wake is lost (the watchdog would bark: nobody sleeps with a deadline here), each wake is for one
// worker, and in the end all are asleep.
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "sluice/core/parking.hpp"
#include "sluice/core/scq_ring.hpp"
#include "sluice/core/spmc_ring.hpp"
#include "stress_support.hpp"

namespace sluice {
namespace {

using test::Attendance;
using test::kProducers;
using test::kTenMillion;
using test::stress_items;
using test::Tagged;
using test::Threads;
using test::Watchdog;

constexpr unsigned kWorkers = test::kConsumers;

/// A pool: one ring per producer, one ring for all, a parking lot.
struct Pool {
  explicit Pool(unsigned workers) : lot(workers) {
    for (unsigned i = 0; i < kProducers; ++i) {
      rings.push_back(std::make_unique<SpmcRing<std::uint64_t>>(256));
    }
  }
  std::vector<std::unique_ptr<SpmcRing<std::uint64_t>>> rings;
  ScqRing<std::uint64_t> shared{256};
  ParkingLot lot;

  std::size_t take(std::span<std::uint64_t> out, unsigned start) {
    for (unsigned i = 0; i < kProducers; ++i) {
      if (const std::size_t n = rings[(start + i) % kProducers]->pop_bulk(out, kWorkers)) return n;
    }
    return shared.pop(out[0]) ? 1 : 0;
  }
  [[nodiscard]] bool all_empty() const {
    return std::all_of(rings.begin(), rings.end(),
                       [](const auto& ring) { return ring->empty_seq_cst(); }) &&
           shared.empty_seq_cst();
  }
};

/// One sleep by the host's means.
void sleep_by_fd(Pool& pool, unsigned id) {
  pollfd entry{pool.lot.wait_fd(id), POLLIN, 0};
  while (::poll(&entry, 1, -1) < 0) {
  }
  (void)pool.lot.finish_wait(id);
}

/// A worker's whole life, as parking.hpp gives it. Returns how many it has woken.
template <typename Handle>
std::uint64_t work_until_stopped(Pool& pool, unsigned id, bool by_fd, Handle handle) {
  const auto how = by_fd ? ParkingLot::SleepBy::fd : ParkingLot::SleepBy::futex;
  EXPECT_TRUE(!by_fd || pool.lot.wait_fd(id) >= 0);
  std::uint64_t wakes = 0;
  std::array<std::uint64_t, 8> out{};
  pool.lot.begin_search(id);
  for (;;) {
    std::size_t count = pool.take(out, id);
    if (count > 0) {
      if (pool.lot.found_work(id) && !pool.all_empty()) wakes += pool.lot.notify_published();
      do {
        handle(std::span<const std::uint64_t>(out).first(count));
        count = pool.take(out, id);
      } while (count > 0);
      pool.lot.begin_search(id);
      continue;
    }
    if (!pool.lot.prepare_park(id, how)) break;
    if (!pool.all_empty()) {
      (void)pool.lot.cancel_park(id);
    } else if (by_fd) {
      sleep_by_fd(pool, id);
    } else {
      (void)pool.lot.park(id);
    }
  }
  (void)pool.lot.end_search(id);
  return wakes;
}

/// With nothing left to do all workers go to sleep, and stay so.
void expect_all_asleep(const Pool& pool) {
  while (pool.lot.sleepers() < kWorkers) std::this_thread::yield();  // a hang ends by time-out
  EXPECT_EQ(pool.lot.searchers(), 0u);
  EXPECT_TRUE(pool.all_empty());
}

/// How a producer puts a burst into its own ring.
enum class Publish {
  pushed,    ///< each element by push()
  appended,  ///< all by append(), and announce() before it looks who sleeps
};

/// `lockstep`: a producer waits until its burst has been handled before it goes on, so the workers
/// sleep as often as possible, and a lost wake stands out at once.
void run(std::uint64_t items, bool lockstep, bool by_fd, Publish publish = Publish::pushed) {
  const std::uint64_t per_producer = items / kProducers;
  const std::uint64_t total = per_producer * kProducers;
  Pool pool(kWorkers);
  Attendance attendance(kProducers, per_producer);
  std::array<std::atomic<std::uint64_t>, kProducers> handled_of{};
  std::atomic<std::uint64_t> handled{0};
  std::atomic<std::uint64_t> wakes_issued{0};
  const Watchdog watchdog(handled);
  Threads workers;
  workers.start(kWorkers, [&](unsigned id) {
    Attendance::Sheet& sheet = attendance.sheet(id);
    wakes_issued += work_until_stopped(pool, id, by_fd, [&](std::span<const std::uint64_t> batch) {
      for (const std::uint64_t value : batch) {
        sheet.note(value);
        handled_of[Tagged::producer(value)].fetch_add(1, std::memory_order_relaxed);
      }
      handled.fetch_add(batch.size(), std::memory_order_relaxed);
    });
  });
  Threads producers;
  producers.start(kProducers, [&](unsigned id) {
    std::uint64_t wakes = 0;
    for (std::uint64_t next = 0; next < per_producer;) {
      const std::uint64_t burst = std::min<std::uint64_t>(1 + next % 24, per_producer - next);
      if (next % 5 == 0) wakes += pool.lot.pre_wake();
      for (std::uint64_t i = 0; i < burst;) {
        // Mostly through its own ring, some through the shared one.
        const std::uint64_t value = Tagged::make(id, next + i);
        SpmcRing<std::uint64_t>& own = *pool.rings[id];
        const bool appending = publish == Publish::appended;
        const bool pushed = i % 7 == 3  ? pool.shared.push(value)
                            : appending ? own.append(value)
                                        : own.push(value);
        if (pushed) {
          if (appending) wakes += pool.lot.notify_if_seen();
          ++i;
        } else {
          own.announce();
          wakes += pool.lot.notify_published();
          std::this_thread::yield();
        }
      }
      if (publish == Publish::appended) pool.rings[id]->announce();
      wakes += pool.lot.notify_published();
      next += burst;
      while (lockstep && handled_of[id].load(std::memory_order_relaxed) < next) {
        std::this_thread::yield();
      }
    }
    wakes_issued.fetch_add(wakes, std::memory_order_relaxed);
  });
  producers.join();
  while (handled.load(std::memory_order_relaxed) < total) std::this_thread::yield();
  expect_all_asleep(pool);
  pool.lot.stop();
  workers.join();
  attendance.expect_all_once();
  EXPECT_EQ(pool.lot.searchers(), 0u);
  EXPECT_EQ(pool.lot.sleepers(), 0u);
  ParkingLot::Counters sum;
  for (unsigned id = 0; id < kWorkers; ++id) {
    const ParkingLot::Counters one = pool.lot.counters(id);
    sum.parks += one.parks;
    sum.parks_cancelled += one.parks_cancelled;
    sum.wakes += one.wakes;
    sum.spurious_wakes += one.spurious_wakes;
  }
  // Each call that said it woke one has woken one, no more; and stop() woke them all.
  EXPECT_EQ(sum.wakes, wakes_issued.load() + kWorkers);
  EXPECT_LE(sum.wakes, sum.parks + sum.parks_cancelled);
  std::printf("parking: %llu items, %llu parks, %llu cancelled, %llu wakes, %llu spurious\n",
              static_cast<unsigned long long>(total), static_cast<unsigned long long>(sum.parks),
              static_cast<unsigned long long>(sum.parks_cancelled),
              static_cast<unsigned long long>(sum.wakes),
              static_cast<unsigned long long>(sum.spurious_wakes));
}

TEST(Stress, ParkingInLockstep) {
  run(stress_items(2'000'000), true, false);
}
TEST(Stress, ParkingFreeRunning) {
  run(stress_items(kTenMillion), false, false);
}
TEST(Stress, ParkingFreeRunningWithAppendedBursts) {
  run(stress_items(kTenMillion), false, false, Publish::appended);
}
TEST(Stress, ParkingOnDescriptors) {
  run(stress_items(1'000'000), true, true);
}

// Two threads alone, so that nobody else's wake makes up for a lost one: a worker that goes to
// sleep as fast as it can, and a producer that appends at all distances from that moment.
TEST(Stress, WhatIsAppendedAtTheMomentOfSleepIsNotSleptOver) {
  const std::uint64_t rounds = stress_items(300'000);
  SpmcRing<std::uint64_t> ring(8);
  ParkingLot lot(1);
  alignas(kCacheLine) std::atomic<std::uint64_t> handled{0};
  const Watchdog watchdog(handled);
  std::uint64_t parks = 0;
  std::thread worker([&] {
    lot.begin_search(0);
    for (std::uint64_t value = 0;;) {
      if (ring.pop(value)) {
        handled.store(value, std::memory_order_relaxed);
        continue;
      }
      if (!lot.prepare_park(0)) break;
      if (ring.empty_seq_cst()) {
        ++parks;
        (void)lot.park(0);
      } else {
        (void)lot.cancel_park(0);
      }
    }
    (void)lot.end_search(0);
  });
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    for (std::uint64_t pause = round % 64; pause > 0; --pause) asm volatile("" ::: "memory");
    EXPECT_TRUE(ring.append(round));
    ring.announce();
    lot.notify_published();
    while (handled.load(std::memory_order_relaxed) < round) {  // spins: its time to react counts
    }
  }
  lot.stop();
  worker.join();
  std::printf("parking: %llu rounds, %llu parks\n", static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(parks));
}

// Completions one at a time, each when all are marked as asleep again: each costs one wake, or none
// if one of them has not yet looked for the last time, and finds it. Producers take turns, so that
// each of the rings is met.
TEST(Stress, OneCompletionWakesOneWorker) {
  const std::uint64_t rounds = stress_items(50'000);
  Pool pool(kWorkers);
  std::atomic<std::uint64_t> handled{0};
  const Watchdog watchdog(handled);
  std::atomic<std::uint64_t> wakes_by_workers{0};
  Threads workers;
  workers.start(kWorkers, [&](unsigned id) {
    wakes_by_workers +=
        work_until_stopped(pool, id, false, [&](std::span<const std::uint64_t> batch) {
          handled.fetch_add(batch.size(), std::memory_order_relaxed);
        });
  });
  std::uint64_t woken = 0;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    expect_all_asleep(pool);
    const std::uint64_t value = Tagged::make(0, round);
    EXPECT_TRUE(round % 5 == 4 ? pool.shared.push(value)
                               : pool.rings[round % kProducers]->push(value));
    woken += pool.lot.notify_published();
    while (handled.load(std::memory_order_relaxed) <= round) std::this_thread::yield();
  }
  expect_all_asleep(pool);
  pool.lot.stop();
  workers.join();
  std::uint64_t wakes = 0;
  std::uint64_t cancelled = 0;
  for (unsigned id = 0; id < kWorkers; ++id) {
    wakes += pool.lot.counters(id).wakes;
    cancelled += pool.lot.counters(id).parks_cancelled;
  }
  EXPECT_EQ(wakes, woken + kWorkers);
  EXPECT_GE(woken + cancelled, rounds);
  EXPECT_GT(woken, rounds / 2);
  EXPECT_EQ(wakes_by_workers.load(), 0u);
}

}  // namespace
}  // namespace sluice
