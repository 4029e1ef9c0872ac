// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

#include "sluice/core/cacheline.hpp"
#include "sluice/core/status.hpp"

namespace sluice {

/// A bounded ring with one producer and any number of consumers: how one poller hands batches to a
/// pool. The pool's queue is one such ring per poller.
///
/// Threads: push* only by the one producer (or by one thread at a time, handed over by something
/// that synchronises); everything else by any thread.
/// Progress: push* is wait-free. pop* is lock-free: a consumer that fails its CAS was overtaken by
/// one that got on. Nothing is owed after the CAS, so a consumer frozen anywhere blocks nobody.
/// Order: FIFO; what one pop_bulk takes is contiguous.
/// Invariants: head_ <= tail_ <= head_ + capacity (as 64-bit counters that only grow; they would
/// need centuries to wrap, so a CAS that succeeds really saw its own value: no ABA, and the
/// arithmetic is modular in any case). The slots in [head_, tail_) hold the elements.
/// Cost: push one seq_cst store per call, however many elements, or per run of append(); pop one
/// CAS per call. Nothing is allocated after construction.
///
/// How the atomics pair up:
///   (1) tail_ store, seq_cst, in push_bulk() -> (3) (4) tail_ loads of the consumers: the slots'
///       contents. It is seq_cst, not merely release, since the producer goes on to read the
///       parking lot's word (parking.hpp, the Dekker pair), and (7) is the sleeper's half.
///   (5) head_ CAS, release -> (6) head_ load, acquire, in push_bulk(): a consumer has done reading
///       its slots before the producer may overwrite them.
///   (9) tail_ store, release, in append() -> (3) (4), too. Without the Dekker pair, which (1) in
///       announce() catches up on.
///   (2) head_ load, acquire, pairs with (5) of other consumers: a consumer that reads a head also
///       reads a tail that is not older, so tail < head is never seen and "empty" is true at the
///       moment when the tail was read.
/// A slot read by a consumer that has been overtaken may be stale or new; it is an atomic, so that
/// is no data race, and the CAS (5) then fails.
template <typename T, typename Hooks = NoHooks>
class SpmcRing {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(std::atomic<T>::is_always_lock_free, "a slot must be one lock-free atomic");

 public:
  /// Capacity in elements, at least 1; rounded up to a power of two.
  /// first_index is where the counters start: for tests of their wrap-around.
  explicit SpmcRing(std::size_t capacity, std::uint64_t first_index = 0)
      : mask_(std::bit_ceil(checked_capacity(capacity)) - 1), slots_(make_slots(mask_ + 1)) {
    producer_.tail.store(first_index, std::memory_order_relaxed);
    producer_.seen_head = first_index;
    consumers_.head.store(first_index, std::memory_order_relaxed);
    consumers_.seen_tail.store(first_index, std::memory_order_relaxed);
  }
  SpmcRing(const SpmcRing&) = delete;
  SpmcRing& operator=(const SpmcRing&) = delete;

  [[nodiscard]] std::size_t capacity() const noexcept { return mask_ + 1; }

  /// Appends the first n of items, n being what fits, and returns n. Producer only.
  [[nodiscard]] std::size_t push_bulk(std::span<const T> items) noexcept {
    const std::uint64_t tail = producer_.tail.load(std::memory_order_relaxed);  // own variable
    std::size_t room = free_slots(tail, producer_.seen_head);
    if (room < items.size()) {
      producer_.seen_head =
          consumers_.head.load(std::memory_order_acquire);  // (6) acquire: pairs with release (5)
      room = free_slots(tail, producer_.seen_head);
      Hooks::at("spmc.push.head_read");
    }
    const std::size_t count = std::min(room, items.size());
    if (count == 0) return 0;
    for (std::size_t i = 0; i < count; ++i) {
      slot(tail + i).store(items[i], std::memory_order_relaxed);  // published by (1)
      Hooks::at("spmc.push.slot_stored");
    }
    Hooks::at("spmc.push.all_stored");
    // (1) seq_cst: pairs with acquire (3) and, as one half of the Dekker pair, with seq_cst (7).
    producer_.tail.store(tail + count, std::memory_order_seq_cst);
    Hooks::at("spmc.push.published");
    return count;
  }

  /// Appends one; false when full. Producer only.
  [[nodiscard]] bool push(T item) noexcept { return push_bulk(std::span<const T>(&item, 1)) == 1; }

  /// Appends one for consumers that look; one that is about to sleep may not see it before
  /// announce(), with which a run of these ends. So the run pays for one seq_cst store, which waits
  /// until all that the producer has written is in its cache. False when full. Producer only.
  [[nodiscard]] bool append(T item) noexcept {
    const std::uint64_t tail = producer_.tail.load(std::memory_order_relaxed);  // own variable
    if (tail - producer_.seen_head > mask_) {
      producer_.seen_head =
          consumers_.head.load(std::memory_order_acquire);  // (6) acquire: pairs with release (5)
      Hooks::at("spmc.append.head_read");
      if (tail - producer_.seen_head > mask_) return false;
    }
    slot(tail).store(item, std::memory_order_relaxed);  // published by (9)
    Hooks::at("spmc.append.slot_stored");
    producer_.tail.store(tail + 1, std::memory_order_release);  // (9) release: pairs with (3)
    Hooks::at("spmc.append.published");
    return true;
  }

  /// After a run of append(): now all of it is in the ring as if by push(). Producer only.
  void announce() noexcept {
    // (1) seq_cst: pairs with (7), the Dekker pair. The same value once more: the store counts.
    producer_.tail.store(producer_.tail.load(std::memory_order_relaxed), std::memory_order_seq_cst);
    Hooks::at("spmc.announced");
  }

  /// Takes up to out.size() of the oldest elements and returns how many. With several workers at
  /// the ring, pass their number as `sharers`: the take is then cut to a fair part of what is there
  /// (rounded up), or one worker would hoard while the others starve.
  [[nodiscard]] std::size_t pop_bulk(std::span<T> out, std::size_t sharers = 1) noexcept {
    if (out.empty()) return 0;
    for (;;) {  // bound: each further round means that another consumer has succeeded
      // (2) acquire: pairs with release (5) of other consumers; see the class comment.
      std::uint64_t head = consumers_.head.load(std::memory_order_acquire);
      Hooks::at("spmc.pop.head_read");
      const std::size_t available = available_after(head, out.size());
      if (available == 0) return 0;
      const std::size_t fair = sharers <= 1 ? available : (available + sharers - 1) / sharers;
      const std::size_t count = std::min(fair, out.size());
      for (std::size_t i = 0; i < count; ++i) {
        out[i] = slot(head + i).load(std::memory_order_relaxed);  // ordered by (3) or (4), and (5)
        Hooks::at("spmc.pop.slot_read");
      }
      Hooks::at("spmc.pop.all_read");
      // (5) release: pairs with acquire (6): our reads of the slots come before their reuse, and
      // with acquire (2). Relaxed on failure: nothing has been learnt, (2) reads anew.
      if (consumers_.head.compare_exchange_strong(head, head + count, std::memory_order_release,
                                                  std::memory_order_relaxed)) {
        Hooks::at("spmc.pop.claimed");
        return count;
      }
    }
  }

  /// Takes the oldest element; false when there is none.
  [[nodiscard]] bool pop(T& out) noexcept { return pop_bulk(std::span<T>(&out, 1)) == 1; }

  /// How many are in it, more or less: exact when nobody else is at work.
  [[nodiscard]] std::size_t size_approx() const noexcept {
    const std::uint64_t head = consumers_.head.load(std::memory_order_relaxed);
    const std::uint64_t tail = producer_.tail.load(std::memory_order_relaxed);
    return clamp_size(tail - head);
  }

  /// For the final scan before parking. True only if the ring was empty at a moment within the
  /// call; false may be stale. Reads the real tail, never the cached one.
  [[nodiscard]] bool empty_seq_cst() const noexcept {
    const std::uint64_t head = consumers_.head.load(std::memory_order_seq_cst);
    Hooks::at("spmc.empty.head_read");
    // (7) seq_cst: pairs with (1). Comes after the sleeper's mark (parking.hpp (2)) in the one
    // order of all seq_cst operations, as (1) comes before the producer's look at the mark.
    return producer_.tail.load(std::memory_order_seq_cst) == head;
  }

 private:
  struct Release {
    void operator()(std::atomic<T>* slots) const noexcept {
      ::operator delete (slots, std::align_val_t{kCacheLine});
    }
  };
  using Slots = std::unique_ptr<std::atomic<T>[], Release>;
  static_assert(std::is_trivially_destructible_v<std::atomic<T>>);

  /// Whole cache lines, shared with nothing else.
  static Slots make_slots(std::size_t count) {
    const std::size_t bytes =
        (count * sizeof(std::atomic<T>) + kCacheLine - 1) / kCacheLine * kCacheLine;
    auto* const slots =
        static_cast<std::atomic<T>*>(::operator new (bytes, std::align_val_t{kCacheLine}));
    std::uninitialized_value_construct_n(slots, count);
    return Slots(slots);
  }
  /// Written by the producer only.
  struct alignas(kCacheLine) ProducerLine {
    std::atomic<std::uint64_t> tail{0};
    std::uint64_t seen_head = 0;  ///< never ahead of head: spares the consumers' line a visit
  };
  /// Written by the consumers only.
  struct alignas(kCacheLine) ConsumerLine {
    std::atomic<std::uint64_t> head{0};
    std::atomic<std::uint64_t> seen_tail{0};  ///< never ahead of tail; may go back, which is only
                                              ///< a visit to the producer's line more
  };
  static_assert(sizeof(ProducerLine) == kCacheLine && alignof(ProducerLine) == kCacheLine);
  static_assert(sizeof(ConsumerLine) == kCacheLine && alignof(ConsumerLine) == kCacheLine);

  static std::size_t checked_capacity(std::size_t capacity) {
    SLUICE_CHECK(capacity >= 1 && capacity <= (std::size_t{1} << 40), "SpmcRing: bad capacity");
    return capacity;
  }

  [[nodiscard]] std::atomic<T>& slot(std::uint64_t index) noexcept {
    return slots_[static_cast<std::size_t>(index) & mask_];
  }

  [[nodiscard]] std::size_t free_slots(std::uint64_t tail, std::uint64_t head) const noexcept {
    return capacity() - static_cast<std::size_t>(tail - head);
  }

  /// How many elements lie at and after head, by the cached tail if that is enough, or else by the
  /// real one.
  [[nodiscard]] std::size_t available_after(std::uint64_t head, std::size_t wanted) noexcept {
    // (4) acquire: pairs with release (8): whoever cached this tail had acquired the slots by (3).
    std::uint64_t tail = consumers_.seen_tail.load(std::memory_order_acquire);
    Hooks::at("spmc.pop.seen_tail_read");
    if (clamp_size(tail - head) < wanted) {
      tail = producer_.tail.load(std::memory_order_acquire);  // (3) acquire: pairs with (1)
      Hooks::at("spmc.pop.tail_read");
      if (tail == head) return 0;
      consumers_.seen_tail.store(tail, std::memory_order_release);  // (8) release: pairs with (4)
      Hooks::at("spmc.pop.seen_tail_stored");
    }
    return clamp_size(tail - head);
  }

  /// A stale head makes the difference too large; its CAS will fail, but the reads must stay within
  /// the ring's size, and a head newer than the tail makes it negative.
  [[nodiscard]] std::size_t clamp_size(std::uint64_t difference) const noexcept {
    if (static_cast<std::int64_t>(difference) <= 0) return 0;
    return static_cast<std::size_t>(std::min<std::uint64_t>(difference, capacity()));
  }

  const std::size_t mask_;
  const Slots slots_;
  ProducerLine producer_;
  ConsumerLine consumers_;
};

}  // namespace sluice
