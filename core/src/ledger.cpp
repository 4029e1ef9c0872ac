// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/ledger.hpp"

namespace sluice {

std::shared_ptr<CqLedger> CqLedger::create(std::string cq_name, std::uint32_t capacity) {
  SLUICE_CHECK(capacity >= 1, "a CQ ledger needs a capacity of at least one completion");
  return std::shared_ptr<CqLedger>(new CqLedger(std::move(cq_name), capacity));
}

Result<CqReservation> CqLedger::reserve(std::uint32_t credits, std::string_view user) {
  const std::lock_guard lock(mutex_);
  if (credits > capacity_ - reserved_) {
    const std::uint64_t needed = std::uint64_t{reserved_} + credits;
    return Status(StatusCode::does_not_fit,
                  std::string(user) + " asked for " + std::to_string(credits) + " credits on '" +
                      cq_name_ + "', which has " + std::to_string(capacity_) + " entries, " +
                      std::to_string(reserved_) + " of them reserved: it would fit with " +
                      std::to_string(needed) + " entries");
  }
  reserved_ += credits;
  return CqReservation(shared_from_this(), credits);
}

std::uint32_t CqLedger::reserved() const noexcept {
  const std::lock_guard lock(mutex_);
  return reserved_;
}

void CqLedger::give_back(std::uint32_t credits) noexcept {
  const std::lock_guard lock(mutex_);
  SLUICE_CHECK(credits <= reserved_, "more credits were given back to a CQ than were reserved");
  reserved_ -= credits;
}

CqReservation& CqReservation::operator=(CqReservation&& other) noexcept {
  if (this != &other) {
    release();
    ledger_ = std::move(other.ledger_);
    credits_ = std::exchange(other.credits_, 0);
  }
  return *this;
}

void CqReservation::release() noexcept {
  if (ledger_ != nullptr) ledger_->give_back(std::exchange(credits_, 0));
  ledger_.reset();
}

}  // namespace sluice
