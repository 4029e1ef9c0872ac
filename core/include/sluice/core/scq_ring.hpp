// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "sluice/core/cacheline.hpp"
#include "sluice/core/status.hpp"

namespace sluice {

/// Up to this many threads may be inside operations of one ScqRing at once. The proof of SCQ needs
/// no more threads than half the entries of an index ring (n); the rings are never made smaller. It
/// is what the threshold 3n - 1 rests on: the last index lies at most 2n - 1 tickets beyond the
/// head, and each thread that has drawn a ticket in vain may lower the threshold once more. A
/// thread claims one ticket at a time: with claims in bulk a thread would count as many times as it
/// claims, which is why there are none here. With too many threads nothing is lost: a pop may say
/// "empty" (a push "full") that is not, until the next push (pop).
inline constexpr std::size_t kScqMaxThreads = 128;

/// A ring of indices after SCQ: Ruslan Nikolaev, "A Scalable, Portable, and Memory-Efficient
/// Lock-Free FIFO Queue", 2019. Written from the paper.
///
/// 2n entries hold at most n indices. An entry is one 64-bit word: the cycle in which it was last
/// written, a "safe" bit, and the index (all ones: none). Tickets come from fetch-and-add on head
/// and tail. A dequeuer that arrives before its enqueuer moves the entry's cycle on, and the
/// enqueuer takes another ticket; so nobody waits for anybody. `threshold` bounds how often
/// dequeuers may try in vain after the last enqueue (3n - 1, the paper's proof), so that
/// "empty" is found in bounded steps.
///
/// Memory order: the paper assumes sequential consistency, and its argument ("either the enqueuer
/// sees head moved, or the dequeuer sees the entry") has store-then-load races in it. So
/// every order here is seq_cst. That costs nothing: the RMWs are the same instructions on x86 and
/// aarch64, and what is read with seq_cst is not written with plain stores but in one rare place.
/// The numbers: (1) tail ticket, (2) entry filled, (3) threshold raised; (4) head ticket, (5) entry
/// read, (6) entry consumed or moved on, (7) tail read, (8) threshold lowered; (9) emptiness.
template <typename Hooks = NoHooks>
class ScqIndexRing {
 public:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  /// Room for min_indices; `filled` of them, 0 .. filled - 1, are in it at the start.
  /// first_ticket, rounded down to whole cycles, is for tests of wrap-around.
  ScqIndexRing(std::size_t min_indices, std::size_t filled, std::uint64_t first_ticket)
      : bits_(static_cast<unsigned>(
            std::bit_width(std::bit_ceil(std::max(min_indices, kScqMaxThreads))))),
        lines_(std::make_unique<EntryLine[]>(size() / kEntriesPerLine)) {
    const std::uint64_t first = first_ticket & ~index_mask();
    for (std::uint64_t i = 0; i < size(); ++i) {
      const bool has = i < filled;
      const std::uint64_t ticket = has ? first + i : first + i - size();
      entry(ticket).store(word(ticket, kSafe, has ? i : index_mask()), std::memory_order_relaxed);
    }
    head_.value.store(first, std::memory_order_relaxed);
    tail_.value.store(first + filled, std::memory_order_relaxed);
    threshold_.value.store(filled == 0 ? -1 : threshold_max(), std::memory_order_relaxed);
  }
  ScqIndexRing(const ScqIndexRing&) = delete;
  ScqIndexRing& operator=(const ScqIndexRing&) = delete;

  /// Appends an index; always finds room, as no more than n indices exist.
  void enqueue(std::uint64_t index) noexcept {
    for (;;) {  // bound: a ticket is lost only to dequeuers that overtook; n of them at most
      // (1) seq_cst: pairs with (7) and (9).
      const std::uint64_t ticket = tail_.value.fetch_add(1, std::memory_order_seq_cst);
      Hooks::at("scq.enqueue.ticket");
      if (fill(ticket, index)) return;
    }
  }

  /// Takes the oldest index; kNone if there was none at some moment within the call.
  [[nodiscard]] std::uint64_t dequeue() noexcept {
    if (surely_empty()) return kNone;
    for (;;) {  // bound: threshold
      Hooks::at("scq.dequeue.begun");
      // (4) seq_cst: pairs with the head load in fill().
      const std::uint64_t ticket = head_.value.fetch_add(1, std::memory_order_seq_cst);
      Hooks::at("scq.dequeue.ticket");
      const std::uint64_t index = take(ticket);
      Hooks::at("scq.dequeue.entry_done");
      if (index != kNone) return index;
      const std::uint64_t tail =
          tail_.value.load(std::memory_order_seq_cst);  // (7): pairs with (1)
      Hooks::at("scq.dequeue.tail_read");
      if (behind_or_at(tail, ticket + 1)) {
        catch_up(tail, ticket + 1);
        Hooks::at("scq.dequeue.caught_up");
        // (8) seq_cst: pairs with (3) and (9).
        threshold_.value.fetch_sub(1, std::memory_order_seq_cst);
        return kNone;
      }
      if (threshold_.value.fetch_sub(1, std::memory_order_seq_cst) <= 0) return kNone;  // (8)
      Hooks::at("scq.dequeue.lowered");
    }
  }

  /// Read-only. True: it was empty at a moment within the call. False: maybe not.
  ///
  /// Two ways to be sure. A negative threshold: the paper's own test. Or no tail ticket beyond the
  /// head: a ticket below the head belongs to a dequeuer, which takes what is there or makes the
  /// enqueuer take a later ticket. Without the second, polling an empty ring would go through
  /// fetch-and-adds until the threshold is used up, some 3n times after each element.
  [[nodiscard]] bool surely_empty() const noexcept {
    // (9) seq_cst, all three: pair with (1) (3) (4) (8). As the sleeper's half of the Dekker pair
    // of parking.hpp they come after its mark, while (1) and the threshold's part of enqueue() come
    // before the producer's look at the mark; so a sleeper cannot miss an index that was put in
    // by a producer that saw no sleeper.
    if (threshold_.value.load(std::memory_order_seq_cst) < 0) return true;
    Hooks::at("scq.empty.threshold_read");
    const std::uint64_t head = head_.value.load(std::memory_order_seq_cst);
    Hooks::at("scq.empty.head_read");
    if (has_index(entry(head).load(std::memory_order_relaxed), head)) return false;  // a hint only
    Hooks::at("scq.empty.entry_read");
    return behind_or_at(tail_.value.load(std::memory_order_seq_cst), head);
  }

  /// How many, more or less.
  [[nodiscard]] std::size_t size_approx() const noexcept {
    const std::uint64_t head = head_.value.load(std::memory_order_relaxed);
    const std::uint64_t tail = tail_.value.load(std::memory_order_relaxed);
    return behind_or_at(tail, head) ? 0 : static_cast<std::size_t>(tail - head);
  }

 private:
  static constexpr std::size_t kEntriesPerLine = kCacheLine / sizeof(std::uint64_t);
  static constexpr bool kSafe = true;

  struct alignas(kCacheLine) EntryLine {
    std::atomic<std::uint64_t> entries[kEntriesPerLine];
  };
  /// Each of these words has writers of its own, so each has a line of its own.
  struct alignas(kCacheLine) TicketLine {
    std::atomic<std::uint64_t> value{0};
  };
  struct alignas(kCacheLine) ThresholdLine {
    std::atomic<std::int64_t> value{-1};
  };
  static_assert(sizeof(TicketLine) == kCacheLine && sizeof(ThresholdLine) == kCacheLine);
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  // An entry's word, from the top: cycle | safe | index (bits_ wide). The cycle is the ticket
  // without its low bits_ bits, moved up by one; the topmost bit of the ticket falls out, so that
  // cycles compare modulo 2^64, by the sign of their difference.
  [[nodiscard]] std::uint64_t size() const noexcept { return std::uint64_t{1} << bits_; }
  [[nodiscard]] std::uint64_t index_mask() const noexcept { return size() - 1; }
  [[nodiscard]] std::int64_t threshold_max() const noexcept {
    return static_cast<std::int64_t>(3 * (size() / 2) - 1);
  }
  [[nodiscard]] std::uint64_t cycle_of_ticket(std::uint64_t ticket) const noexcept {
    return (ticket & ~index_mask()) << 1;
  }
  [[nodiscard]] std::uint64_t cycle_of(std::uint64_t value) const noexcept {
    return value & ~((index_mask() << 1) | 1);
  }
  [[nodiscard]] bool is_safe(std::uint64_t value) const noexcept { return (value & size()) != 0; }
  [[nodiscard]] std::uint64_t index_of(std::uint64_t value) const noexcept {
    return value & index_mask();
  }
  [[nodiscard]] std::uint64_t word(std::uint64_t ticket, bool safe,
                                   std::uint64_t index) const noexcept {
    return cycle_of_ticket(ticket) | (safe ? size() : 0) | index;
  }
  [[nodiscard]] static bool older(std::uint64_t cycle, std::uint64_t than) noexcept {
    return static_cast<std::int64_t>(cycle - than) < 0;
  }
  [[nodiscard]] static bool behind_or_at(std::uint64_t ticket, std::uint64_t other) noexcept {
    return static_cast<std::int64_t>(ticket - other) <= 0;
  }
  [[nodiscard]] bool has_index(std::uint64_t value, std::uint64_t ticket) const noexcept {
    return cycle_of(value) == cycle_of_ticket(ticket) && index_of(value) != index_mask();
  }

  /// Neighbouring tickets go to different lines (the paper's Cache_Remap).
  [[nodiscard]] std::atomic<std::uint64_t>& entry(std::uint64_t ticket) const noexcept {
    const std::size_t at = static_cast<std::size_t>(ticket & index_mask());
    const std::size_t line_count = static_cast<std::size_t>(size()) / kEntriesPerLine;
    return lines_[at & (line_count - 1)].entries[at / line_count];
  }

  /// Puts the index into the ticket's entry; false if the ticket was lost to a dequeuer.
  [[nodiscard]] bool fill(std::uint64_t ticket, std::uint64_t index) noexcept {
    std::atomic<std::uint64_t>& target = entry(ticket);
    std::uint64_t value = target.load(std::memory_order_seq_cst);
    for (;;) {  // bound: an entry changes at most a few times per cycle of the ring
      Hooks::at("scq.enqueue.entry_read");
      if (!older(cycle_of(value), cycle_of_ticket(ticket)) || index_of(value) != index_mask()) {
        return false;
      }
      if (!is_safe(value)) {
        const std::uint64_t head = head_.value.load(std::memory_order_seq_cst);  // pairs with (4)
        Hooks::at("scq.enqueue.unsafe_head_read");
        if (!behind_or_at(head, ticket)) return false;
      }
      // (2) seq_cst, a release for the slot's contents: pairs with (5).
      if (target.compare_exchange_strong(value, word(ticket, kSafe, index),
                                         std::memory_order_seq_cst, std::memory_order_seq_cst)) {
        break;
      }
    }
    Hooks::at("scq.enqueue.filled");
    if (threshold_.value.load(std::memory_order_seq_cst) != threshold_max()) {
      Hooks::at("scq.enqueue.threshold_low");
      threshold_.value.store(threshold_max(),
                             std::memory_order_seq_cst);  // (3): pairs with (8) (9)
    }
    Hooks::at("scq.enqueue.done");
    return true;
  }

  /// Takes the index of the ticket's entry, or makes sure that none is put there any more.
  [[nodiscard]] std::uint64_t take(std::uint64_t ticket) noexcept {
    std::atomic<std::uint64_t>& target = entry(ticket);
    std::uint64_t value = target.load(std::memory_order_seq_cst);  // (5): pairs with (2)
    for (;;) {  // bound: an entry changes at most a few times per cycle of the ring
      Hooks::at("scq.dequeue.entry_read");
      if (cycle_of(value) == cycle_of_ticket(ticket)) {
        // (6) seq_cst: marks it consumed; only this ticket's holder may.
        target.fetch_or(index_mask(), std::memory_order_seq_cst);
        return index_of(value);
      }
      if (!older(cycle_of(value), cycle_of_ticket(ticket))) return kNone;
      // Free: move its cycle on, so that this ticket's enqueuer fails. Taken, by an index of an
      // earlier cycle whose dequeuer is still to come: mark it unsafe, to the same effect.
      const std::uint64_t next = index_of(value) == index_mask()
                                     ? word(ticket, is_safe(value), index_mask())
                                     : value & ~size();
      if (next == value ||
          target.compare_exchange_strong(value, next, std::memory_order_seq_cst,
                                         std::memory_order_seq_cst)) {  // (6): pairs with fill()
        return kNone;
      }
    }
  }

  /// Dequeuers have run ahead of the tail: bring it along, or enqueuers would have to go through
  /// all those lost tickets.
  void catch_up(std::uint64_t tail, std::uint64_t head) noexcept {
    while (!tail_.value.compare_exchange_strong(tail, head, std::memory_order_seq_cst,
                                                std::memory_order_seq_cst)) {
      // bound: each further round means that a ticket was drawn
      Hooks::at("scq.catch_up.overtaken");
      head = head_.value.load(std::memory_order_seq_cst);
      Hooks::at("scq.catch_up.head_read");
      if (!behind_or_at(tail, head) || tail == head) return;
    }
  }

  const unsigned bits_;  ///< log2 of the number of entries, 2n
  const std::unique_ptr<EntryLine[]> lines_;
  TicketLine head_;
  TicketLine tail_;
  ThresholdLine threshold_;
};

/// A bounded FIFO for any number of producers and consumers (kScqMaxThreads of them in it at once):
/// the ring of runnable lanes, and of commands. Two SCQ index rings over preallocated slots: one
/// holds the free slots, the other the filled ones in order.
///
/// Threads: any, all operations.
/// Progress: lock-free. A thread frozen inside push or pop keeps one slot out of use, no more.
/// Order: FIFO (linearizable).
/// Full: push is refused only if all slots are taken by elements or by threads inside push or pop.
/// So a ring of as many slots as there are lanes, each of which is in the ring or in one thread's
/// hands, is never full for a lane that is to be put back: a slot out of the free ring always
/// answers to a lane that is not in the pusher's hands.
/// Cost: four index-ring steps per element, two fetch-and-adds and one CAS or fetch-or each: carry
/// pointers to batches, not elements. Polling it empty: three loads. No 128-bit CAS anywhere.
template <typename T, typename Hooks = NoHooks>
class ScqRing {
  static_assert(std::is_nothrow_default_constructible_v<T> && std::is_nothrow_move_assignable_v<T>);

 public:
  /// Capacity in elements, at least 1; kept exactly, no power of two needed.
  explicit ScqRing(std::size_t capacity, std::uint64_t first_ticket = 0)
      : capacity_(checked_capacity(capacity)),
        slots_(std::make_unique<T[]>(capacity)),
        filled_(capacity, 0, first_ticket),
        free_(capacity, capacity, first_ticket) {}

  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }

  /// Appends; false when full, and then `item` is untouched.
  [[nodiscard]] bool push(T&& item) noexcept {
    const std::uint64_t index = free_.dequeue();  // acquires what the slot's last reader did
    if (index == Indices::kNone) return false;
    Hooks::at("scq.push.slot");
    slots_[index] = std::move(item);
    Hooks::at("scq.push.stored");
    filled_.enqueue(index);  // releases the slot's contents
    return true;
  }
  [[nodiscard]] bool push(const T& item) noexcept requires std::is_nothrow_copy_constructible_v<T> {
    T copy(item);
    return push(std::move(copy));
  }

  /// Takes the oldest; false when there is none.
  [[nodiscard]] bool pop(T& out) noexcept {
    const std::uint64_t index = filled_.dequeue();  // acquires the slot's contents
    if (index == Indices::kNone) return false;
    Hooks::at("scq.pop.slot");
    out = std::move(slots_[index]);
    if constexpr (!std::is_trivially_copyable_v<T>) slots_[index] = T{};  // keeps nothing alive
    Hooks::at("scq.pop.moved_out");
    free_.enqueue(index);  // releases the slot itself
    return true;
  }

  /// For the final scan before parking, and cheap enough for polling. True only if the ring was
  /// empty at a moment within the call; false may be stale. After a false, a pop() that fails has
  /// at least made progress: a frozen producer cannot keep this false for ever.
  [[nodiscard]] bool empty_seq_cst() const noexcept { return filled_.surely_empty(); }

  /// How many are in it, more or less.
  [[nodiscard]] std::size_t size_approx() const noexcept {
    const std::size_t size = filled_.size_approx();
    return size < capacity_ ? size : capacity_;
  }

 private:
  using Indices = ScqIndexRing<Hooks>;

  static std::size_t checked_capacity(std::size_t capacity) {
    SLUICE_CHECK(capacity >= 1 && capacity <= (std::size_t{1} << 30), "ScqRing: bad capacity");
    return capacity;
  }

  const std::size_t capacity_;
  const std::unique_ptr<T[]> slots_;
  Indices filled_;
  Indices free_;
};

}  // namespace sluice
