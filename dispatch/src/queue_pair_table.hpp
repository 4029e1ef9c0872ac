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
 public:
  explicit QueuePairTable(std::size_t entries_max)
      : slots_(std::bit_ceil(2 * entries_max + 2)), mask_(slots_.size() - 1) {}

  [[nodiscard]] ConnectionState* find(std::uint32_t qp_num) const noexcept {
    for (std::size_t at = home(qp_num);; at = (at + 1) & mask_) {  // bound: an empty slot exists
      if (slots_[at].connection == nullptr) return nullptr;
      if (slots_[at].qp_num == qp_num) return slots_[at].connection;
    }
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
  struct Slot {
    std::uint32_t qp_num = 0;
    ConnectionState* connection = nullptr;
  };
  [[nodiscard]] std::size_t home(std::uint32_t qp_num) const noexcept {
    // Queue pair numbers are 24 bits and often consecutive: a multiplicative hash spreads both
    // ends.
    return (qp_num * 0x9E3779B1U >> 4) & mask_;
  }
  std::vector<Slot> slots_;
  std::size_t mask_;
  std::size_t size_ = 0;
};

}  // namespace sluice::detail
