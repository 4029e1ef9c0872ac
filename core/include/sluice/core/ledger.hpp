// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "sluice/core/status.hpp"

namespace sluice {

class CqReservation;

/// Counts what may still be posted against one CQ (C4). A CQ overflows when completions outnumber
/// its entries, and then every QP bound to it dies; so the worst case of each user (every posted
/// work request completes, flushes included) is reserved here before it can post anything.
///
/// Thread-safety: all calls from any thread; a mutex, since this is set-up and not the data path.
class CqLedger : public std::enable_shared_from_this<CqLedger> {
 public:
  /// `capacity` in completions, >= 1; `cq_name` is for messages.
  static std::shared_ptr<CqLedger> create(std::string cq_name, std::uint32_t capacity);

  /// Reserves `credits` for `user` until the reservation is destroyed. Fails with does_not_fit,
  /// naming the CQ, its size, what is taken and what was asked for, and with how many entries it
  /// would fit.
  [[nodiscard]] Result<CqReservation> reserve(std::uint32_t credits, std::string_view user);

  [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::uint32_t reserved() const noexcept;
  [[nodiscard]] const std::string& cq_name() const noexcept { return cq_name_; }

 private:
  friend class CqReservation;
  CqLedger(std::string cq_name, std::uint32_t capacity)
      : cq_name_(std::move(cq_name)), capacity_(capacity) {}
  void give_back(std::uint32_t credits) noexcept;

  const std::string cq_name_;
  const std::uint32_t capacity_;
  mutable std::mutex mutex_;
  std::uint32_t reserved_ = 0;
};

/// Credits held in a ledger; given back on destruction. Movable.
class CqReservation {
 public:
  CqReservation() noexcept = default;
  CqReservation(CqReservation&& other) noexcept
      : ledger_(std::move(other.ledger_)), credits_(std::exchange(other.credits_, 0)) {}
  CqReservation& operator=(CqReservation&& other) noexcept;
  ~CqReservation() { release(); }

  [[nodiscard]] std::uint32_t credits() const noexcept { return credits_; }
  void release() noexcept;

 private:
  friend class CqLedger;
  CqReservation(std::shared_ptr<CqLedger> ledger, std::uint32_t credits) noexcept
      : ledger_(std::move(ledger)), credits_(credits) {}

  std::shared_ptr<CqLedger> ledger_;
  std::uint32_t credits_ = 0;
};

}  // namespace sluice
