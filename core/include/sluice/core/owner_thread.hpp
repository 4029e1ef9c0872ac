// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>

#include "sluice/core/status.hpp"

namespace sluice::detail {

/// Checks that an object is driven by one thread at a time (R6), in release builds too. Cost: one
/// relaxed load and a comparison.
class OwnerThread {
 public:
  /// The first caller becomes the owner; anybody else stops the program.
  void check(const char* what) noexcept {
    const void* const self = mark();
    const void* owner =
        owner_.load(std::memory_order_relaxed);  // own value, or a wrong one: both show
    if (owner == self) [[likely]]
      return;
    // (1) acquire: pairs with (2): the next owner sees what the last one did.
    SLUICE_CHECK(
        owner == nullptr && owner_.compare_exchange_strong(owner, self, std::memory_order_acquire),
        what);
  }
  /// Lets another thread become the owner. Only by the owner; anybody else stops the program.
  void release() noexcept {
    const void* const owner = owner_.load(std::memory_order_relaxed);
    SLUICE_CHECK(owner == mark() || owner == nullptr,
                 "a part was released by a thread that does not drive it");
    owner_.store(nullptr, std::memory_order_release);  // (2) release: pairs with (1)
  }
  [[nodiscard]] bool is_self() const noexcept {
    return owner_.load(std::memory_order_relaxed) == mark();
  }

 private:
  /// An address that only this thread has, cheaper than std::this_thread::get_id().
  static const void* mark() noexcept {
    thread_local const char here = 0;
    return &here;
  }
  std::atomic<const void*> owner_{nullptr};
};

}  // namespace sluice::detail
