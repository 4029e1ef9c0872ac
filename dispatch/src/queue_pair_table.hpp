// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sluice/core/status.hpp"

namespace sluice::detail {

struct ConnectionState;

/// qp_num -> connection, for the poller of a receive CQ that many connections share. Open
/// addressing with linear probing and backward-shift deletion, half full at most: one cache line
/// per look-up as a rule, no allocation after construction. Not thread-safe: the poller's own.
class QueuePairTable {
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};  ///< no queue pair's number
  struct Slot {
    std::uint64_t qp_num = kEmpty;
    ConnectionState* connection = nullptr;  ///< nullptr: empty
  };
  static_assert(sizeof(Slot) == 16, "the hash is taken from bit 4 on: it is a slot's offset, too");
  // Queue pair numbers are 24 bits and often consecutive: a multiplicative hash spreads both ends.
  static constexpr std::uint32_t kMultiplier = 0x9E3779B1;

 public:
  explicit QueuePairTable(std::size_t entries_max)
      : slots_(std::bit_ceil(2 * entries_max + 2)), mask_(slots_.size() - 1) {}

  /// For look-ups in a row: the table as it is now, which the compiler can keep in registers.
  class View {
   public:
    [[nodiscard]] ConnectionState* find(std::uint32_t qp_num) const noexcept {
      if (ConnectionState* const there = at_home(qp_num); there != nullptr) [[likely]]
        return there;
      for (std::size_t at = offset(qp_num) >> 4;; at = (at + 1) & mask_) {
        if (slots_[at].connection == nullptr) return nullptr;  // bound: an empty slot exists
        if (slots_[at].qp_num == qp_num) return slots_[at].connection;
      }
    }

    /// The one whose place the number's own is; nullptr: there is none, or it is elsewhere.
    [[nodiscard]] ConnectionState* at_home(std::uint32_t qp_num) const noexcept {
      const auto* const slot = reinterpret_cast<const Slot*>(
          reinterpret_cast<const std::byte*>(slots_) + offset(qp_num));
      if (slot->qp_num != qp_num) [[unlikely]]
        return nullptr;
      ConnectionState* const connection = slot->connection;
      if (connection == nullptr) __builtin_unreachable();  // an empty slot has no number
      return connection;
    }

   private:
    friend class QueuePairTable;
    View(const Slot* slots, std::size_t mask) noexcept : slots_(slots), mask_(mask) {}
    [[nodiscard]] std::size_t offset(std::uint32_t qp_num) const noexcept {
      return (qp_num * kMultiplier) & (mask_ << 4);
    }
    const Slot* const slots_;
    const std::size_t mask_;
  };
  [[nodiscard]] View view() const noexcept { return {slots_.data(), mask_}; }
  [[nodiscard]] ConnectionState* find(std::uint32_t qp_num) const noexcept {
    return view().find(qp_num);
  }

  /// Replaces what was there for this number.
  void insert(std::uint32_t qp_num, ConnectionState* connection) noexcept {
    for (std::size_t at = home(qp_num);; at = (at + 1) & mask_) {
      if (slots_[at].connection == nullptr) {
        SLUICE_CHECK(2 * (size_ + 1) <= slots_.size(), "more queue pairs than connections_max");
        ++size_;
      } else if (slots_[at].qp_num != qp_num) {
        continue;
      }
      slots_[at] = {qp_num, connection};
      return;
    }
  }

  /// Removes the entry if it still names this connection (the number may have been reused).
  void erase(std::uint32_t qp_num, const ConnectionState* connection) noexcept {
    std::size_t hole = home(qp_num);
    while (slots_[hole].connection != nullptr && slots_[hole].qp_num != qp_num) {
      hole = (hole + 1) & mask_;
    }
    if (slots_[hole].connection == nullptr || slots_[hole].connection != connection) return;
    --size_;
    for (std::size_t at = (hole + 1) & mask_; slots_[at].connection != nullptr;
         at = (at + 1) & mask_) {
      const std::size_t displacement = (at - home(slots_[at].qp_num)) & mask_;
      if (displacement >= ((at - hole) & mask_)) {
        slots_[hole] = slots_[at];
        hole = at;
      }
    }
    slots_[hole] = {};
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  [[nodiscard]] std::size_t home(std::uint32_t qp_num) const noexcept {
    return (qp_num * kMultiplier >> 4) & mask_;
  }

  std::vector<Slot> slots_;
  std::size_t mask_;
  std::size_t size_ = 0;
};

}  // namespace sluice::detail
