// SPDX-License-Identifier: BSD-3-Clause
// Every queue under four producers and four consumers, ten million elements each: nothing lost,
// nothing twice, each producer's order kept.
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "sluice/core/lane_queue.hpp"
#include "sluice/core/mailbox.hpp"
#include "sluice/core/return_stack.hpp"
#include "sluice/core/scq_ring.hpp"
#include "sluice/core/spmc_ring.hpp"
#include "stress_support.hpp"

namespace sluice {
namespace {

using test::Attendance;
using test::kConsumers;
using test::kProducers;
using test::kTenMillion;
using test::OrderCheck;
using test::stress_items;
using test::Tagged;
using test::Threads;
using test::Watchdog;

/// Where rings are full most of the time, threads mostly wait for each other's slices of the CPU.
constexpr std::uint64_t kWhenMostlyFull = 300'000;

/// The pool's queue: a ring per producer, every consumer at all of them. In bulk, or one by one.
void through_a_pool_of_spmc_rings(std::uint64_t items, std::size_t capacity, std::size_t push_max,
                                  std::size_t pop_max) {
  const std::uint64_t per_producer = items / kProducers;
  const std::uint64_t total = per_producer * kProducers;
  std::vector<std::unique_ptr<SpmcRing<std::uint64_t>>> rings;
  for (unsigned i = 0; i < kProducers; ++i) {
    rings.push_back(std::make_unique<SpmcRing<std::uint64_t>>(capacity, ~std::uint64_t{0} - 1000));
  }
  Attendance attendance(kProducers, per_producer);
  std::atomic<std::uint64_t> taken{0};
  std::atomic<std::uint64_t> violations{0};
  Watchdog watchdog(taken);
  Threads threads;
  threads.start(kProducers, [&](unsigned id) {
    std::array<std::uint64_t, 16> burst{};
    for (std::uint64_t next = 0; next < per_producer;) {
      const std::uint64_t count = std::min<std::uint64_t>(1 + next % push_max, per_producer - next);
      for (std::uint64_t i = 0; i < count; ++i) burst[i] = Tagged::make(id, next + i);
      const std::size_t pushed = count == 1 ? rings[id]->push(burst[0])
                                            : rings[id]->push_bulk(std::span(burst).first(count));
      if (pushed == 0) std::this_thread::yield();
      next += pushed;
    }
  });
  threads.start(kConsumers, [&](unsigned id) {
    OrderCheck order(kProducers);
    Attendance::Sheet& sheet = attendance.sheet(id);
    std::array<std::uint64_t, 16> out{};
    unsigned turn = id;
    while (taken.load(std::memory_order_relaxed) < total) {
      ++turn;
      SpmcRing<std::uint64_t>& ring = *rings[turn % kProducers];
      const std::size_t most = 1 + turn % pop_max;
      const std::size_t count =
          most == 1 ? ring.pop(out[0]) : ring.pop_bulk(std::span(out).first(most), kConsumers);
      for (std::size_t i = 0; i < count; ++i) {
        sheet.note(out[i]);
        order.note(out[i]);
      }
      if (count == 0) {
        std::this_thread::yield();
      } else {
        taken.fetch_add(count, std::memory_order_relaxed);
      }
    }
    violations.fetch_add(order.violations());
  });
  threads.join();
  attendance.expect_all_once();
  EXPECT_EQ(violations.load(), 0u);
  for (const auto& ring : rings) EXPECT_TRUE(ring->empty_seq_cst());
}

TEST(Stress, SpmcRingsInBulk) {
  through_a_pool_of_spmc_rings(stress_items(kTenMillion), 256, 16, 16);
}
TEST(Stress, SpmcRingsOneByOne) {
  through_a_pool_of_spmc_rings(stress_items(kTenMillion), 256, 1, 1);
}
TEST(Stress, SpmcRingsMostlyFull) {
  through_a_pool_of_spmc_rings(stress_items(kWhenMostlyFull), 8, 16, 4);
}

void many_through_one_scq_ring(std::size_t capacity, std::uint64_t items) {
  const std::uint64_t per_producer = items / kProducers;
  const std::uint64_t total = per_producer * kProducers;
  ScqRing<std::uint64_t> ring(capacity, ~std::uint64_t{0} - 1000);
  Attendance attendance(kProducers, per_producer);
  std::atomic<std::uint64_t> taken{0};
  std::atomic<std::uint64_t> violations{0};
  Watchdog watchdog(taken);
  Threads threads;
  threads.start(kProducers, [&](unsigned id) {
    for (std::uint64_t next = 0; next < per_producer; ++next) {
      while (!ring.push(Tagged::make(id, next))) std::this_thread::yield();
    }
  });
  threads.start(kConsumers, [&](unsigned id) {
    OrderCheck order(kProducers);
    Attendance::Sheet& sheet = attendance.sheet(id);
    std::uint64_t out = 0;
    while (taken.load(std::memory_order_relaxed) < total) {
      if (ring.pop(out)) {
        sheet.note(out);
        order.note(out);
        taken.fetch_add(1, std::memory_order_relaxed);
      } else {
        std::this_thread::yield();
      }
    }
    violations.fetch_add(order.violations());
  });
  threads.join();
  attendance.expect_all_once();
  EXPECT_EQ(violations.load(), 0u);
  EXPECT_TRUE(ring.empty_seq_cst());
}

TEST(Stress, ScqRing) {
  many_through_one_scq_ring(1024, stress_items(kTenMillion));
}
TEST(Stress, ScqRingMostlyFull) {
  many_through_one_scq_ring(3, stress_items(kWhenMostlyFull));
}

struct Buffer {
  Buffer* next = nullptr;
  std::uint64_t payload = 0;  ///< plain: TSan sees it if the hand-over does not synchronise
  unsigned owner = 0;
};

/// As batches go: out of an owner's hands by its ring, home by its stack, one by one or as a chain.
TEST(Stress, ReturnStackBringsBuffersHome) {
  constexpr std::size_t kBuffers = 256;
  const std::uint64_t per_owner = stress_items(kTenMillion) / kProducers;
  struct Owner {
    std::vector<Buffer> buffers = std::vector<Buffer>(kBuffers);
    ReturnStack<Buffer> home;
    SpmcRing<Buffer*> out{kBuffers};
    std::uint64_t sent = 0;
    std::uint64_t bad_payloads = 0;
    std::uint64_t strangers = 0;
  };
  std::vector<Owner> owners(kProducers);
  for (unsigned id = 0; id < kProducers; ++id) {
    for (Buffer& buffer : owners[id].buffers) {
      buffer.owner = id;
      owners[id].home.push(&buffer);
    }
  }
  std::atomic<std::uint64_t> returned{0};
  std::atomic<unsigned> done{0};
  const Watchdog watchdog(returned);
  Threads threads;
  threads.start(kProducers, [&](unsigned id) {
    Owner& owner = owners[id];
    while (owner.sent < per_owner) {
      Buffer* list = owner.sent % 2 == 0 ? owner.home.take_all() : owner.home.take_all_ordered();
      if (list == nullptr) std::this_thread::yield();
      while (list != nullptr) {
        Buffer* const buffer = list;
        list = buffer->next;
        owner.bad_payloads += buffer->payload % 2;
        owner.strangers += buffer->owner != id;
        ++buffer->payload;
        EXPECT_TRUE(owner.out.push(buffer));
        ++owner.sent;
      }
    }
    done.fetch_add(1, std::memory_order_release);
  });
  threads.start(kConsumers, [&](unsigned id) {
    std::array<Buffer*, 8> taken{};
    for (unsigned turn = id;; ++turn) {
      const bool last = done.load(std::memory_order_acquire) == kProducers;
      Owner& owner = owners[turn % kProducers];
      const std::size_t count = owner.out.pop_bulk(std::span(taken).first(1 + turn % 8));
      for (std::size_t i = 0; i < count; ++i) {
        ++taken[i]->payload;
        if (i > 0) taken[i - 1]->next = taken[i];
      }
      if (turn % 3 == 0) {
        for (std::size_t i = 0; i < count; ++i) owner.home.push(taken[i]);
      } else if (count > 0) {
        owner.home.push_chain(taken[0], taken[count - 1]);
      }
      returned.fetch_add(count, std::memory_order_relaxed);
      if (count > 0) continue;
      const auto is_empty = [](const Owner& one) { return one.out.empty_seq_cst(); };
      if (last && std::all_of(owners.begin(), owners.end(), is_empty)) break;
      std::this_thread::yield();
    }
  });
  threads.join();
  std::uint64_t sent = 0;
  for (Owner& owner : owners) {
    EXPECT_EQ(owner.bad_payloads, 0u);
    EXPECT_EQ(owner.strangers, 0u);
    sent += owner.sent;
    std::size_t at_home = 0;
    for (Buffer* list = owner.home.take_all(); list != nullptr; list = list->next) ++at_home;
    EXPECT_EQ(at_home, kBuffers);
  }
  EXPECT_EQ(returned.load(), sent);
  EXPECT_GE(sent, per_owner * kProducers);
}

struct Entry {
  Entry* next = nullptr;
  std::uint64_t value = 0;
  ReturnStack<Entry>* home = nullptr;
};

/// A lane and what only its holder may touch: plain variables, so that TSan sees a second worker.
struct Lane {
  LaneQueue<Entry> queue;
  std::atomic<int> holders{0};
  std::vector<std::uint64_t> next_of = std::vector<std::uint64_t>(kProducers, 0);
  std::uint64_t violations = 0;
};

TEST(Stress, LanesAreHeldByOneWorkerAndKeepOrder) {
  constexpr std::size_t kLanes = 8;
  constexpr std::size_t kEntries = 64;
  const std::uint64_t per_producer = stress_items(kTenMillion) / kProducers;
  const std::uint64_t total = per_producer * kProducers;
  std::vector<Lane> lanes(kLanes);
  ScqRing<Lane*> runnable(kLanes);
  Attendance attendance(kProducers, per_producer);
  std::atomic<std::uint64_t> handled{0};
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::uint64_t> overlaps{0};
  std::vector<ReturnStack<Entry>> homes(kProducers);
  std::vector<std::vector<Entry>> pools(kProducers, std::vector<Entry>(kEntries));
  Watchdog watchdog(handled);
  Threads threads;
  threads.start(kProducers, [&](unsigned id) {
    for (Entry& entry : pools[id]) {
      entry.home = &homes[id];
      homes[id].push(&entry);
    }
    Entry* spare = nullptr;
    for (std::uint64_t next = 0; next < per_producer;) {
      Lane& lane = lanes[(next * 7 / 3 + id) % kLanes];
      // One or two at a time, the two as a chain.
      Entry* first = nullptr;
      Entry* last = nullptr;
      for (std::uint64_t i = 0; i < 1 + next % 2 && next + i < per_producer; ++i) {
        while (spare == nullptr) {
          spare = homes[id].take_all();
          if (spare == nullptr) std::this_thread::yield();
        }
        Entry* const entry = spare;
        spare = entry->next;
        entry->value = Tagged::make(id, next + i);
        if (first == nullptr) {
          first = entry;
        } else {
          last->next = entry;
        }
        last = entry;
      }
      next += first == last ? 1 : 2;
      if (lane.queue.push_chain(first, last) && !runnable.push(&lane)) refused.fetch_add(1);
    }
  });
  threads.start(kConsumers, [&](unsigned id) {
    Lane* lane = nullptr;
    Attendance::Sheet& sheet = attendance.sheet(id);
    std::uint64_t turn = id;
    while (handled.load(std::memory_order_relaxed) < total) {
      if (!runnable.pop(lane)) {
        std::this_thread::yield();
        continue;
      }
      if (lane->holders.fetch_add(1, std::memory_order_relaxed) != 0) overlaps.fetch_add(1);
      std::uint64_t count = 0;
      for (Entry* list = lane->queue.take_all(); list != nullptr;) {
        Entry* const entry = list;
        list = entry->next;
        const std::uint64_t value = entry->value;
        sheet.note(value);
        std::uint64_t& next = lane->next_of[Tagged::producer(value)];
        if (Tagged::sequence(value) < next) ++lane->violations;
        next = Tagged::sequence(value) + 1;
        entry->home->push(entry);
        ++count;
      }
      lane->holders.fetch_sub(1, std::memory_order_relaxed);
      // Hand it over now and then even if it might be empty, so that both ways are met.
      if (++turn % 3 == 0 || !lane->queue.try_idle()) {
        if (!runnable.push(lane)) refused.fetch_add(1);
      }
      handled.fetch_add(count, std::memory_order_relaxed);
    }
  });
  threads.join();
  attendance.expect_all_once();
  EXPECT_EQ(refused.load(), 0u) << "the ring of runnable lanes refused a lane";
  EXPECT_EQ(overlaps.load(), 0u);
  for (Lane& lane : lanes) {
    EXPECT_EQ(lane.violations, 0u);
    EXPECT_TRUE(lane.queue.empty_approx());
  }
}

TEST(Stress, MailboxWithASleepingConsumer) {
  const std::uint64_t per_producer = stress_items(kTenMillion) / kProducers;
  const std::uint64_t total = per_producer * kProducers;
  Mailbox<std::uint64_t> mailbox(256);
  ASSERT_TRUE(mailbox.status().ok());
  Attendance attendance(kProducers, per_producer, 1);
  OrderCheck order(kProducers);
  std::atomic<std::uint64_t> taken{0};
  std::uint64_t sleeps = 0;
  Watchdog watchdog(taken);
  Threads threads;
  threads.start(kProducers, [&](unsigned id) {
    for (std::uint64_t next = 0; next < per_producer; ++next) {
      while (!mailbox.post(Tagged::make(id, next))) std::this_thread::yield();
    }
  });
  std::uint64_t count = 0;
  while (count < total) {
    std::uint64_t out = 0;
    while (mailbox.take(out)) {
      attendance.sheet(0).note(out);
      order.note(out);
      ++count;
    }
    taken.store(count, std::memory_order_relaxed);
    if (count == total || !mailbox.prepare_to_sleep()) continue;
    ++sleeps;
    pollfd entry{mailbox.fd(), POLLIN, 0};
    while (::poll(&entry, 1, -1) < 0) {
    }
    mailbox.finish_sleep();
    mailbox.drain_fd();
  }
  threads.join();
  attendance.expect_all_once();
  EXPECT_EQ(order.violations(), 0u);
  std::printf("mailbox: %llu posts, %llu sleeps\n", static_cast<unsigned long long>(total),
              static_cast<unsigned long long>(sleeps));
}

}  // namespace
}  // namespace sluice
