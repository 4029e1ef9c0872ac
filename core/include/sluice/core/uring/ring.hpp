// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <liburing.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "sluice/core/cacheline.hpp"
#include "sluice/core/completion_source.hpp"
#include "sluice/core/owner_thread.hpp"
#include "sluice/core/uring/cqe.hpp"

namespace sluice::uring {

struct RingConfig {
  std::uint32_t submissions = 256;  ///< prepared at once; 1..32768, the kernel rounds up to 2^k
  /// In flight at once, up to the handler's return; submissions..65536, rounded up likewise.
  /// 0: twice the submissions.
  std::uint32_t completions = 0;
};

/// An io_uring whose operations complete through a poller, like RDMA completions: one ring for each
/// thread that submits, reaped by the one poller that owns it as a source.
///
///     auto ring = *uring::Ring::create({.submissions = 64}, "log of worker 0");
///     dispatcher->attach(ring, {.order = Order::none},
///                        uring_handler([](std::span<const io_uring_cqe> cqes,
///                                         const BatchInfo&) noexcept { ... }));
///     io_uring_sqe* sqe[2];                       // on the submitting thread, e.g. in a handler
///     if (!ring->try_prepare(sqe)) ...            // full: a submit() or a handler's return is due
///     io_uring_prep_write(sqe[0], fd, bytes.data(), bytes.size(), offset);
///     sqe[0]->flags |= IOSQE_IO_LINK;             // the sync only if all was written
///     io_uring_prep_fsync(sqe[1], fd, IORING_FSYNC_DATASYNC);
///     sqe[1]->user_data = id;
///     Status status = ring->submit();
///
/// Credits (C4): an operation takes one when it is prepared, which comes back when the handler has
/// returned for its completion (retire). There are as many as the CQ has entries, so the CQ cannot
/// overflow. That holds as long as each operation completes once: submit() refuses the kinds that
/// do not. The CQE that tells of an error is one like any other; a linked operation that was never
/// begun has one, too (-ECANCELED). Where handlers submit what follows, the credit of what they
/// handle is not back yet, on any worker: for `n` chains of operations n * (workers + 1) are never
/// refused.
///
/// Invariants of a source, for the ring's eventfd:
/// - INV-ARM: the kernel signals the eventfd after each posting of CQEs, asked for or not: it is
///   armed always, and "re-arming" is nothing. One read takes all signals that are there.
/// - INV-EMPTY: the signal follows the CQE. What a poll after the read did not see was posted after
///   it, and its signal makes the descriptor readable again; what it did see may be signalled only
///   afterwards: an empty wake (W1). So the waiter's rule needs no exception. The kernel may put a
///   signal off by an RCU period (when a CQE is posted from within another eventfd's wake-up), but
///   it does not drop it.
/// - INV-POLL: the CQ is all there is. The kernel keeps CQEs back only when the CQ is full.
/// What would break them is not offered. With IORING_SETUP_COOP_TASKRUN CQEs are posted when the
/// submitter next enters the kernel (on a busy CPU with the next tick; on one without ticks there
/// may be none), with DEFER_TASKRUN when it asks for them, with IOPOLL when somebody polls the
/// device; the poller would sleep meanwhile. Without them the kernel interrupts the submitting
/// thread to post what needs its context, even out of a sleep: an idle worker can have a wake
/// without work. SINGLE_ISSUER forbids handing over; SQPOLL is of no use beside a poller; SQE128
/// and CQE32 are other layouts; an eventfd for asynchronous completions alone
/// (io_uring_register_eventfd_async), or disabled by IORING_CQ_EVENTFD_DISABLED, misses some.
///
/// A thread that ends takes what it submitted with it, unless it is being written or read already:
/// the kernel cancels it. Its completions come nevertheless.
///
/// Thread-safety: try_prepare, prepare, submit by the owning thread: the first that calls one,
/// until its release_thread(); any other stops the program. poll and consume_event by the holder of
/// the SourceOwnership, at the same time: submitting looks at the submission queue only, polling at
/// the completion queue only, and neither calls what of liburing touches both. retire, cancel,
/// in_flight by any thread. close and the destructor by one that knows that nobody submits.
/// Ordering: what was written before submit() is seen by the handler; what a handler wrote before
/// it returned is seen by whoever gets its credit. Cost: no allocation but in messages; no system
/// call but in submit(), cancel(), close() and consume_event().
class Ring final : public CompletionSource {
 public:
  /// Fails with invalid_argument, not_supported (no io_uring in this kernel or liburing),
  /// permission_denied (forbidden here: the message says by what), resource_exhausted.
  static Result<std::shared_ptr<Ring>> create(RingConfig config, std::string name);
  /// close() with a bound of 30 s; stops the program if operations are in the kernel even then, or
  /// if somebody still owns the source: what they write to may be freed next.
  ~Ring() override;

  // --- submitting ------------------------------------------------------------------------------
  /// Takes sqes for `out.size()` operations, zeroed, to be filled with liburing's io_uring_prep_*
  /// and a user_data; in one go, so that a chain of linked ones is never torn. False: they do not
  /// all fit now, and none was taken; prepare() says why.
  [[nodiscard]] bool try_prepare(std::span<io_uring_sqe*> out) noexcept;
  /// The same with a reason (allocates it): resource_exhausted when submit() or a handler's return
  /// makes room, does_not_fit when nothing does, cancelled after close().
  [[nodiscard]] Status prepare(std::span<io_uring_sqe*> out);
  [[nodiscard]] Result<io_uring_sqe*> prepare();
  /// Gives all that was prepared to the kernel. resource_exhausted: it lacks memory for now; what
  /// it did not take is kept for the next call. invalid_argument: an operation has none or many
  /// completions (IOSQE_CQE_SKIP_SUCCESS, multishot, zero-copy send) or one in another ring
  /// (IORING_OP_MSG_RING): nothing that was prepared since the last call is submitted. Whether the
  /// kernel likes an operation is told by its completion.
  [[nodiscard]] Status submit();
  /// Lets another thread become the submitting one. Only by the owner.
  void release_thread() noexcept { owner_.release(); }

  /// Submitted and not retired; 0..capacity().
  [[nodiscard]] std::uint32_t in_flight() const noexcept;
  /// Asks the kernel to give up what it has not finished: it completes with -ECANCELED, or as it
  /// would have. Asynchronous. Any thread. not_supported before Linux 6.0.
  [[nodiscard]] Status cancel();
  /// Ends it: nothing can be prepared any more, what is in the kernel is cancelled (where it can
  /// be) and waited for. Each completion that no handler has got, nor will, goes to `abandoned`.
  /// already_owned: detach it first. timed_out: the kernel may go on using the operations' memory;
  /// keep it and the ring, and call again. To end without abandoning anything: stop submitting
  /// (cancel() if it takes long), wait for in_flight() == 0, detach, then close. Without that a
  /// detach waits for the handlers of what was polled, and this for the rest.
  [[nodiscard]] Status close(std::chrono::nanoseconds deadline,
                             const std::function<void(const io_uring_cqe&)>& abandoned = {});
  /// For io_uring_register_buffers and _files. Not to submit, reap, or touch the eventfd with.
  [[nodiscard]] io_uring* native() noexcept { return &ring_; }

  // --- the source ------------------------------------------------------------------------------
  PollOutcome poll(std::span<ibv_wc> out) noexcept override;
  EventOutcome consume_event() noexcept override;
  [[nodiscard]] int wait_fd() const noexcept override { return event_fd_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept override { return capacity_; }
  void retire(std::span<const ibv_wc> completions) noexcept override;
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }

 private:
  explicit Ring(std::string name) noexcept : name_(std::move(name)) {}
  [[nodiscard]] Status open(const RingConfig& config);
  [[nodiscard]] bool has_credits(std::uint64_t count) noexcept;
  [[nodiscard]] const io_uring_sqe* find_refused() const noexcept;
  void forget_unsubmitted() noexcept;
  [[nodiscard]] std::uint32_t in_kernel() const noexcept;
  [[nodiscard]] std::uint32_t reap(std::span<ibv_wc> out) noexcept;
  [[nodiscard]] std::uint32_t lost() const noexcept;
  void take_rest(const std::function<void(const io_uring_cqe&)>& abandoned);
  [[nodiscard]] Status wait_for_kernel(std::chrono::nanoseconds deadline,
                                       const std::function<void(const io_uring_cqe&)>& abandoned);
  [[nodiscard]] int cancel_all() noexcept;

  // Constant once open. The reaper has pointers of its own: liburing keeps them beside what the
  // submitter writes.
  const std::string name_;
  int event_fd_ = -1;
  bool open_ = false;
  std::uint32_t capacity_ = 0;  ///< entries of the CQ, and credits
  std::uint32_t cq_mask_ = 0;
  unsigned* cq_head_ = nullptr;
  unsigned* cq_tail_ = nullptr;
  unsigned* cq_overflow_ = nullptr;  ///< CQEs that the kernel had no memory to keep back
  unsigned* sq_flags_ = nullptr;
  unsigned* sq_head_ = nullptr;  ///< operations that the kernel has taken
  const io_uring_cqe* cqes_ = nullptr;
  std::atomic<bool> closed_{false};  ///< set once

  // The submitter's.
  alignas(kCacheLine) detail::OwnerThread owner_;
  std::uint64_t prepared_ = 0;      ///< credits taken
  std::uint64_t retired_seen_ = 0;  ///< as of when it last looked
  io_uring ring_{};

  alignas(kCacheLine) std::atomic<std::uint64_t> submitted_{0};  ///< by the submitter

  // The poller's.
  alignas(kCacheLine) std::uint32_t head_ = 0;
  PollOutcome poll_fault_;    ///< final once set
  EventOutcome event_fault_;  ///< final once set

  alignas(kCacheLine) std::atomic<std::uint64_t> retired_{0};  ///< by whoever handles
};

}  // namespace sluice::uring
