// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/completion_source.hpp"

namespace sluice {

std::string_view to_string(SourceFault fault) noexcept {
  switch (fault) {
    case SourceFault::none: return "none";
    case SourceFault::poll_failed: return "poll_failed";
    case SourceFault::wait_failed: return "wait_failed";
    case SourceFault::rearm_failed: return "rearm_failed";
    case SourceFault::device_removed: return "device_removed";
    case SourceFault::cq_error: return "cq_error";
  }
  return "unknown";
}

CompletionSource::~CompletionSource() {
  SLUICE_CHECK((ownership_epoch() & 1) == 0, "a source was destroyed while somebody still owns it");
}

void CompletionSource::retire(std::span<const ibv_wc>) noexcept {
  wants_retire_.store(false, std::memory_order_relaxed);
}

Result<SourceOwnership> CompletionSource::take_ownership(std::string_view owner) {
  std::uint64_t epoch = epoch_.load(std::memory_order_relaxed);
  if ((epoch & 1) != 0 ||
      // (2) acq_rel: acquires what the last owner released at (3), publishes ours to (1).
      !epoch_.compare_exchange_strong(epoch, epoch + 1, std::memory_order_acq_rel,
                                      std::memory_order_relaxed)) {
    return Status(StatusCode::already_owned, std::string(owner) + " asked to poll '" +
                                                 std::string(name()) +
                                                 "', which another owner polls already");
  }
  return SourceOwnership(this, epoch + 1);
}

void CompletionSource::release_ownership(std::uint64_t epoch) noexcept {
  SLUICE_CHECK(epoch_.load(std::memory_order_relaxed) == epoch,
               "a source's ownership was released with a stale token");
  epoch_.store(epoch + 1, std::memory_order_release);  // (3) release: pairs with (1), (2)
}

}  // namespace sluice
