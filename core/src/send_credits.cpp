// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/send_credits.hpp"

#include "sluice/core/status.hpp"

namespace sluice {
namespace {

constexpr std::uint32_t kLimitMax = 1U << 20;

}  // namespace

SendCredits::SendCredits(std::uint32_t limit) : limit_(limit), groups_(limit) {
  SLUICE_CHECK(limit >= 1 && limit <= kLimitMax, "send credits: the limit must be 1..2^20");
}

SendCredits::Posting::Posting(Posting&& other) noexcept
    : credits_(std::exchange(other.credits_, nullptr)),
      signalled_(other.signalled_),
      committed_(other.committed_),
      lock_(std::move(other.lock_)) {}

SendCredits::Posting::~Posting() {
  if (credits_ != nullptr && committed_) credits_->book(signalled_);  // still under the lock
}

SendCredits::Posting SendCredits::take(bool signalled) noexcept {
  std::unique_lock lock(mutex_);
  const bool full = outstanding_ == limit_;
  const bool would_be_stuck = !signalled && groups_count_ == 0 && outstanding_ + 1 == limit_;
  if (failed_ || closed_ || full || would_be_stuck) return Posting(nullptr, signalled, {});
  return Posting(this, signalled, std::move(lock));
}

void SendCredits::book(bool signalled) noexcept {
  ++outstanding_;
  ++unsignalled_;
  if (!signalled) return;
  groups_[(groups_head_ + groups_count_) % limit_] = unsignalled_;
  ++groups_count_;
  unsignalled_ = 0;
}

void SendCredits::completed() noexcept {
  const std::lock_guard lock(mutex_);
  if (failed_ || groups_count_ == 0) return;
  outstanding_ -= groups_[groups_head_];
  groups_head_ = (groups_head_ + 1) % limit_;
  --groups_count_;
}

void SendCredits::failed() noexcept {
  const std::lock_guard lock(mutex_);
  failed_ = true;
}

void SendCredits::close() noexcept {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void SendCredits::abandon() noexcept {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  outstanding_ = 0;
  unsignalled_ = 0;
  groups_count_ = 0;
}

std::uint32_t SendCredits::outstanding() const noexcept {
  const std::lock_guard lock(mutex_);
  return outstanding_;
}

bool SendCredits::closed() const noexcept {
  const std::lock_guard lock(mutex_);
  return failed_ || closed_;
}

}  // namespace sluice
