// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>

#include "sluice/core/completion_source.hpp"
#include "sluice/core/mailbox.hpp"
#include "sluice/dispatch/handler.hpp"

namespace sluice::detail {

/// What pollers and workers tell the control. By ids, never by pointers: what is meant may be gone
/// when the note is read.
struct ControlNote {
  enum class Kind : std::uint8_t { none, source_failed, connection_failed };
  Kind kind = Kind::none;
  SourceFault fault = SourceFault::none;
  int error = 0;
  SourceId source = SourceId::none;
  ConnectionId connection = ConnectionId::none;
};

/// The control's side that pollers and workers see. Outlives them all.
class ControlPort {
 public:
  explicit ControlPort(std::size_t capacity) : notes_(capacity) {}

  /// False: full; the caller must try again later (a failed source or connection stays failed).
  [[nodiscard]] bool post(const ControlNote& note) noexcept { return notes_.post(note); }

  /// Something a drain may be waiting for has happened. Call it after the change, by a seq_cst
  /// operation; after a weaker one the drain may see it only when it looks again, a moment later.
  /// Cost: one load while no drain is under way.
  void poke() noexcept {
    // (1) seq_cst: pairs with (2), a Dekker pair: either the drain sees the change when it looks
    // after (2), or this sees the drain.
    if (drains_.load(std::memory_order_seq_cst) > 0) notes_.poke();
  }
  void begin_drain() noexcept { drains_.fetch_add(1, std::memory_order_seq_cst); }  // (2)
  void end_drain() noexcept { drains_.fetch_sub(1, std::memory_order_relaxed); }

  /// Before the control sleeps without a time-out for want of anything to watch: true as long as
  /// nobody has woken up since. It looks whether all are asleep after this.
  void begin_doze() noexcept { dozing_.store(true, std::memory_order_seq_cst); }  // (3)
  void end_doze() noexcept { dozing_.store(false, std::memory_order_relaxed); }
  /// A poller or worker has woken up, and might call a handler that never ends. Call it after the
  /// mark of its sleep is gone, by a seq_cst operation. Cost: one load while the control is awake.
  void note_wake() noexcept {
    // (4) seq_cst: pairs with (3), a Dekker pair: either this sees that the control dozes, or the
    // control, which looks after (3), sees that somebody is awake.
    if (dozing_.load(std::memory_order_seq_cst) &&
        dozing_.exchange(false, std::memory_order_relaxed)) {
      notes_.poke();
    }
  }

  [[nodiscard]] Mailbox<ControlNote>& notes() noexcept { return notes_; }

 private:
  Mailbox<ControlNote> notes_;
  alignas(kCacheLine) std::atomic<std::uint32_t> drains_{0};
  std::atomic<bool> dozing_{false};  ///< beside drains_: both are hardly ever written
};

}  // namespace sluice::detail
