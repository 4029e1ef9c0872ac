// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "sluice/core/status.hpp"

namespace sluice {

/// Why a source can no longer be trusted.
enum class SourceFault : std::uint8_t {
  none,
  poll_failed,     ///< the provider refused to be polled; nothing more comes out of it
  wait_failed,     ///< taking an event failed, or an event could not be acknowledged
  rearm_failed,    ///< INV-ARM is broken: may be polled for good, never slept on
  device_removed,  ///< the fd reports EPOLLERR/EPOLLHUP
  cq_error,        ///< an asynchronous CQ error (overflow): completions are lost
};
[[nodiscard]] std::string_view to_string(SourceFault fault) noexcept;

/// What one poll brought. `count` completions were written, also when `fault` is set.
struct PollOutcome {
  std::uint32_t count = 0;
  SourceFault fault = SourceFault::none;
  int error = 0;  ///< the library's error code or errno when there is a fault
};

/// What taking one pending notification brought.
struct EventOutcome {
  enum class Kind : std::uint8_t {
    consumed,  ///< one event was taken, acknowledged (or counted for a bulk ack), and the CQ
               ///< re-armed
    none,      ///< no event was queued: every CQ of the source is armed
    failed,    ///< see `fault`
  };
  Kind kind = Kind::none;
  SourceFault fault = SourceFault::none;
  int error = 0;
};

class SourceOwnership;

/// Something completions come out of: one CQ, a pair of CQs on one channel, or many.
///
/// Invariants that every implementation keeps (tests/contract checks them on each kind of device):
/// 1. INV-ARM: from creation on each CQ of the source is armed or has an event queued.
///    `consume_event()` is the only call that takes events, and it re-arms the CQ whose event it
///    took.
/// 2. INV-POLL: `poll()` returns 0 only if every CQ of the source was seen empty during this call.
///    It touches neither events nor arming, and never blocks.
/// 3. `consume_event()` never blocks, whatever the flags of the fd were.
/// 4. `wait_fd()` is readable (level-triggered) while an event is queued; -1 says that the source
///    cannot be waited for and has to be polled.
/// 5. A fault is final, and reported by the call that met it. After `rearm_failed` polling still
/// works.
/// 6. Every event taken is acknowledged before the CQ is destroyed.
///
/// A thread may sleep on the source only after INV-EMPTY: `poll()` returned 0 *since the last
/// `consume_event()` that returned `consumed`* (arming takes no notice of what is already there).
///
/// Thread-safety: `poll` and `consume_event` only by the holder of the `SourceOwnership`; `retire`
/// by any thread; the rest is constant. Cost: one virtual call per poll.
class CompletionSource {
 public:
  CompletionSource() = default;
  CompletionSource(const CompletionSource&) = delete;
  CompletionSource& operator=(const CompletionSource&) = delete;
  virtual ~CompletionSource();

  /// Fills the front of `out`, in CQ order. `out` must not be empty.
  virtual PollOutcome poll(std::span<ibv_wc> out) noexcept = 0;

  /// Takes one queued notification, acknowledges it and re-arms its CQ; never blocks.
  virtual EventOutcome consume_event() noexcept = 0;

  /// The descriptor to wait on, or -1.
  [[nodiscard]] virtual int wait_fd() const noexcept = 0;

  /// How many completions its CQs can hold together (entries, >= 1): what the ledger checks
  /// against.
  [[nodiscard]] virtual std::uint32_t capacity() const noexcept = 0;

  /// Called once the handler has returned for these completions: send credits go back here.
  /// Any thread; must not block. What is here wants none: after it was called once (by a source
  /// that does not override it, or by an override that has nothing to do, now or later) it need not
  /// be called again.
  virtual void retire(std::span<const ibv_wc> completions) noexcept;
  /// retire(), but for a source that wants none.
  void retire_if_wanted(std::span<const ibv_wc> completions) noexcept {
    // Relaxed: a stale true costs a call.
    if (wants_retire_.load(std::memory_order_relaxed)) retire(completions);
  }

  /// For people: "srq-rcq softrdma0", "cq qp 0x12".
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// Takes the right to poll. Fails with already_owned while another
  /// holds it (W11). `owner` names who asks, for the message.
  [[nodiscard]] Result<SourceOwnership> take_ownership(std::string_view owner);

  /// Counts ownerships; odd while owned.
  [[nodiscard]] std::uint64_t ownership_epoch() const noexcept {
    return epoch_.load(std::memory_order_acquire);  // (1) acquire: pairs with (2), (3)
  }

 private:
  friend class SourceOwnership;
  void release_ownership(std::uint64_t epoch) noexcept;

  std::atomic<std::uint64_t> epoch_{0};
  std::atomic<bool> wants_retire_{true};
};

/// The token of the one who polls a source. Movable; releases on destruction. The source must
/// outlive it.
class SourceOwnership {
 public:
  SourceOwnership() noexcept = default;
  SourceOwnership(SourceOwnership&& other) noexcept
      : source_(std::exchange(other.source_, nullptr)), epoch_(other.epoch_) {}
  SourceOwnership& operator=(SourceOwnership&& other) noexcept {
    if (this != &other) {
      release();
      source_ = std::exchange(other.source_, nullptr);
      epoch_ = other.epoch_;
    }
    return *this;
  }
  ~SourceOwnership() { release(); }

  [[nodiscard]] bool held() const noexcept { return source_ != nullptr; }
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  void release() noexcept {
    if (source_ != nullptr) std::exchange(source_, nullptr)->release_ownership(epoch_);
  }

 private:
  friend class CompletionSource;
  SourceOwnership(CompletionSource* source, std::uint64_t epoch) noexcept
      : source_(source), epoch_(epoch) {}

  CompletionSource* source_ = nullptr;
  std::uint64_t epoch_ = 0;
};

/// Only wr_id, status, qp_num and vendor_err of a failed completion are valid (ibv_poll_cq(3)).
/// Zeroes the rest, so that nobody can read rubbish.
inline void clear_invalid_fields(ibv_wc& wc) noexcept {
  if (wc.status == IBV_WC_SUCCESS) return;
  const ibv_wc valid = wc;
  wc = ibv_wc{};
  wc.wr_id = valid.wr_id;
  wc.status = valid.status;
  wc.qp_num = valid.qp_num;
  wc.vendor_err = valid.vendor_err;
}

}  // namespace sluice
