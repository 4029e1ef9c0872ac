// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sluice/core/cacheline.hpp"

namespace sluice::bench {

/// The floor for crossing threads: a ring of pointers with one producer and one consumer, each of
/// which keeps a copy of the other's index and looks at the real one only when that says full or
/// empty. Nothing that a pool of workers needs: no second consumer, no parking.
template <typename T>
class SpscRing {
 public:
  explicit SpscRing(std::size_t capacity) : mask_(std::bit_ceil(capacity) - 1), slots_(mask_ + 1) {}

  [[nodiscard]] bool push(T item) noexcept {
    const std::uint64_t tail = producer_.index.load(std::memory_order_relaxed);
    if (tail - producer_.seen > mask_) {
      // (1) acquire: pairs with (2): the consumer has read the slot that is written next.
      producer_.seen = consumer_.index.load(std::memory_order_acquire);
      if (tail - producer_.seen > mask_) return false;
    }
    slots_[tail & mask_] = item;
    producer_.index.store(tail + 1, std::memory_order_release);  // (3) release: pairs with (4)
    return true;
  }

  [[nodiscard]] bool pop(T& item) noexcept {
    const std::uint64_t head = consumer_.index.load(std::memory_order_relaxed);
    if (head == consumer_.seen) {
      consumer_.seen = producer_.index.load(std::memory_order_acquire);  // (4) pairs with (3)
      if (head == consumer_.seen) return false;
    }
    item = slots_[head & mask_];
    consumer_.index.store(head + 1, std::memory_order_release);  // (2) release: pairs with (1)
    return true;
  }

 private:
  struct alignas(kCacheLine) Side {
    std::atomic<std::uint64_t> index{0};
    std::uint64_t seen = 0;  ///< of the other side's index, as last read
  };
  const std::size_t mask_;
  std::vector<T> slots_;
  Side producer_;
  Side consumer_;
};

}  // namespace sluice::bench
