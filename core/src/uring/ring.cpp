// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/uring/ring.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "sluice/core/mailbox.hpp"

namespace sluice::uring {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kSubmissionsMax = 32768;
constexpr std::uint32_t kCompletionsMax = 65536;
constexpr std::chrono::seconds kCloseBound{30};
/// How often what is still in the kernel is cancelled again: the next of a chain may have begun.
constexpr std::chrono::milliseconds kCancelInterval{10};
/// What liburing 2.3 does not name yet.
constexpr std::uint8_t kOpReadMultishot = 49;
constexpr std::uint32_t kTimeoutMultishot = 1U << 6;

constexpr EventOutcome kNoEvent{EventOutcome::Kind::none, SourceFault::none, 0};
constexpr EventOutcome kConsumed{EventOutcome::Kind::consumed, SourceFault::none, 0};

Status check(const RingConfig& config, const std::string& name) {
  const auto refuse = [&](const char* what, std::uint32_t value, const char* range) {
    return Status(StatusCode::invalid_argument, "make the ring '" + name + "' with " + what +
                                                    " = " + std::to_string(value) +
                                                    ": it must be " + range);
  };
  if (config.submissions < 1 || config.submissions > kSubmissionsMax) {
    return refuse("submissions", config.submissions, "1..32768");
  }
  if (config.completions != 0 &&
      (config.completions < config.submissions || config.completions > kCompletionsMax)) {
    return refuse("completions", config.completions, "submissions..65536, or 0");
  }
  return {};
}

/// Why there is no io_uring, and what to do about it.
Status cannot_make(const std::string& name, const RingConfig& config, int error) {
  const std::string what =
      "make the ring '" + name + "' with " + std::to_string(config.submissions) + " submissions";
  switch (error) {
    case ENOSYS:
      return {StatusCode::not_supported,
              what +
                  ": this kernel has no io_uring, or a seccomp filter hides it: use Linux 5.5 or "
                  "later with CONFIG_IO_URING, or allow io_uring_setup in the container",
              error};
    case EPERM:
    case EACCES:
      return {StatusCode::permission_denied,
              what +
                  ": io_uring is forbidden here: look at sysctl kernel.io_uring_disabled (0 allows "
                  "it to all; 1 to root and kernel.io_uring_group), or allow io_uring_setup in "
                  "the container's seccomp profile",
              error};
    case ENOMEM:
      return {StatusCode::resource_exhausted,
              what + ": no memory for it (before Linux 5.12 it counts against ulimit -l)", error};
    case EMFILE:
    case ENFILE:
      return {StatusCode::resource_exhausted, what + ": no descriptor is free (ulimit -n)", error};
    default: return {StatusCode::io_error, what, error};
  }
}

/// An operation that has not exactly one completion, in its own ring: credits could not count it.
bool completes_once(const io_uring_sqe& sqe) noexcept {
  if ((sqe.flags & IOSQE_CQE_SKIP_SUCCESS) != 0) return false;
  switch (sqe.opcode) {
    case IORING_OP_POLL_ADD: return (sqe.len & IORING_POLL_ADD_MULTI) == 0;
    case IORING_OP_ACCEPT: return (sqe.ioprio & IORING_ACCEPT_MULTISHOT) == 0;
    case IORING_OP_RECV:
    case IORING_OP_RECVMSG: return (sqe.ioprio & IORING_RECV_MULTISHOT) == 0;
    case IORING_OP_TIMEOUT: return (sqe.timeout_flags & kTimeoutMultishot) == 0;
    case IORING_OP_SEND_ZC:
    case IORING_OP_SENDMSG_ZC:
    case IORING_OP_MSG_RING:
    case kOpReadMultishot: return false;
    default: return true;
  }
}

}  // namespace

// --- making
// ----------------------------------------------------------------------------------------

Result<std::shared_ptr<Ring>> Ring::create(RingConfig config, std::string name) {
  SLUICE_RETURN_IF_ERROR(check(config, name));
  if (config.completions == 0) config.completions = 2 * config.submissions;
  std::shared_ptr<Ring> ring(new Ring(std::move(name)));
  SLUICE_RETURN_IF_ERROR(ring->open(config));
  return ring;
}

Status Ring::open(const RingConfig& config) {
  io_uring_params parameters{};
  parameters.flags = IORING_SETUP_CQSIZE;
  parameters.cq_entries = config.completions;
  if (const int error = ::io_uring_queue_init_params(config.submissions, &ring_, &parameters);
      error != 0) {
    return cannot_make(name_, config, -error);
  }
  open_ = true;
  if ((parameters.features & IORING_FEAT_NODROP) == 0) return cannot_make(name_, config, ENOSYS);
  event_fd_ = EventFd::open();
  if (event_fd_ < 0) return cannot_make(name_, config, errno);
  if (const int error = ::io_uring_register_eventfd(&ring_, event_fd_); error != 0) {
    return cannot_make(name_, config, -error);
  }
  capacity_ = parameters.cq_entries;
  cq_mask_ = ring_.cq.ring_mask;
  cq_head_ = ring_.cq.khead;
  cq_tail_ = ring_.cq.ktail;
  cq_overflow_ = ring_.cq.koverflow;
  sq_flags_ = ring_.sq.kflags;
  sq_head_ = ring_.sq.khead;
  cqes_ = ring_.cq.cqes;
  return {};
}

Ring::~Ring() {
  if (capacity_ != 0) {
    const Status status = close(kCloseBound);
    SLUICE_CHECK(status.ok(), "a ring was destroyed in use: " + status.to_string());
  }
  if (open_) ::io_uring_queue_exit(&ring_);
  if (event_fd_ >= 0) (void)::close(event_fd_);
}

// --- submitting
// ------------------------------------------------------------------------------------

bool Ring::has_credits(std::uint64_t count) noexcept {
  if (prepared_ + count - retired_seen_ <= capacity_) return true;
  // (1) acquire: pairs with (2): what a handler did with an operation comes before its next use.
  retired_seen_ = retired_.load(std::memory_order_acquire);
  return prepared_ + count - retired_seen_ <= capacity_;
}

bool Ring::try_prepare(std::span<io_uring_sqe*> out) noexcept {
  owner_.check("a ring is submitted to by one thread; another one prepared an operation");
  if (closed_.load(std::memory_order_relaxed)) return false;  // a flag alone
  if (!has_credits(out.size()) || ::io_uring_sq_space_left(&ring_) < out.size()) return false;
  for (io_uring_sqe*& sqe : out) {
    sqe = ::io_uring_get_sqe(&ring_);
    std::memset(sqe, 0, sizeof *sqe);  // liburing leaves what the slot's last user wrote
  }
  prepared_ += out.size();
  return true;
}

Status Ring::prepare(std::span<io_uring_sqe*> out) {
  if (try_prepare(out)) return {};
  const std::string what =
      "prepare " + std::to_string(out.size()) + " operations on the ring '" + name_ + "': ";
  if (closed_.load(std::memory_order_relaxed)) {
    return {StatusCode::cancelled, what + "it is closed"};
  }
  if (out.size() > std::min(capacity_, ring_.sq.ring_entries)) {
    return {StatusCode::does_not_fit, what + "it takes " + std::to_string(ring_.sq.ring_entries) +
                                          " at once and holds " + std::to_string(capacity_)};
  }
  if (!has_credits(out.size())) {
    return {StatusCode::resource_exhausted, what + std::to_string(prepared_ - retired_seen_) +
                                                " of " + std::to_string(capacity_) +
                                                " credits are taken until handlers return"};
  }
  return {StatusCode::resource_exhausted, what + std::to_string(::io_uring_sq_ready(&ring_)) +
                                              " of " + std::to_string(ring_.sq.ring_entries) +
                                              " submissions wait for submit()"};
}

Result<io_uring_sqe*> Ring::prepare() {
  io_uring_sqe* sqe = nullptr;
  SLUICE_RETURN_IF_ERROR(prepare(std::span(&sqe, 1)));
  return sqe;
}

const io_uring_sqe* Ring::find_refused() const noexcept {
  for (unsigned at = ring_.sq.sqe_head; at != ring_.sq.sqe_tail; ++at) {
    const io_uring_sqe& sqe = ring_.sq.sqes[at & ring_.sq.ring_mask];
    if (!completes_once(sqe)) return &sqe;
  }
  return nullptr;
}

/// What liburing has not shown to the kernel yet never was.
void Ring::forget_unsubmitted() noexcept {
  prepared_ -= ring_.sq.sqe_tail - ring_.sq.sqe_head;
  ring_.sq.sqe_tail = ring_.sq.sqe_head;
}

Status Ring::submit() {
  owner_.check("a ring is submitted to by one thread; another one submitted");
  if (const io_uring_sqe* const refused = find_refused(); refused != nullptr) {
    const std::string opcode = std::to_string(refused->opcode);
    const std::string user_data = std::to_string(refused->user_data);
    forget_unsubmitted();
    return {StatusCode::invalid_argument,
            "submit to the ring '" + name_ + "' an operation (opcode " + opcode + ", user_data " +
                user_data + ") that has not exactly one completion: no credit can stand for it"};
  }
  // (3) release: pairs with (4) in poll(). The kernel, which is between the two, is no thread of
  // the memory model (nor known to a sanitizer).
  submitted_.store(prepared_, std::memory_order_release);
  // The kernel stops at an operation that it refuses, which completes with an error; each turn
  // takes one at least.
  while (::io_uring_sq_ready(&ring_) != 0) {
    const int taken = ::io_uring_submit(&ring_);
    if (taken > 0) continue;
    const int error = taken == 0 ? EAGAIN : -taken;
    const bool for_now = error == EAGAIN || error == EBUSY || error == EINTR || error == ENOMEM;
    return {for_now ? StatusCode::resource_exhausted : StatusCode::io_error,
            "submit " + std::to_string(::io_uring_sq_ready(&ring_)) + " operations to the ring '" +
                name_ + "'",
            error};
  }
  return {};
}

std::uint32_t Ring::in_flight() const noexcept {
  // (5) acquire: pairs with (2). In this order: what is retired was submitted before.
  const std::uint64_t retired = retired_.load(std::memory_order_acquire);
  return static_cast<std::uint32_t>(submitted_.load(std::memory_order_relaxed) - retired);
}

void Ring::retire(std::span<const ibv_wc> completions) noexcept {
  // (2) release: pairs with (1), (5).
  retired_.fetch_add(completions.size(), std::memory_order_release);
}

// --- ending
// ----------------------------------------------------------------------------------------

int Ring::cancel_all() noexcept {
  io_uring_sync_cancel_reg request{};
  request.fd = -1;
  request.flags = IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY;
  // Zero: what is being done already is not waited for here.
  return ::io_uring_register_sync_cancel(&ring_, &request);
}

Status Ring::cancel() {
  const int result = cancel_all();
  // Nothing there, or all of it beyond cancelling: that is as good as it gets.
  if (result >= 0 || result == -ENOENT || result == -EALREADY || result == -ETIME) return {};
  return {result == -EINVAL ? StatusCode::not_supported : StatusCode::io_error,
          "cancel what is in the ring '" + name_ + "'", -result};
}

/// Operations that the kernel has taken and whose completions were not reaped. Only for the owner
/// of the source while nobody submits.
std::uint32_t Ring::in_kernel() const noexcept {
  return std::atomic_ref(*sq_head_).load(std::memory_order_relaxed) - head_ - lost();
}

void Ring::take_rest(const std::function<void(const io_uring_cqe&)>& abandoned) {
  ibv_wc wcs[32];
  for (;;) {  // bound: the CQ's entries, and what is in the kernel
    const std::uint32_t count = reap(wcs);
    if (count == 0) return;
    const auto rest = std::span<const ibv_wc>(wcs).first(count);
    for (const ibv_wc& wc : rest) {
      if (abandoned) abandoned(to_cqe(wc));
    }
    retire(rest);
  }
}

Status Ring::wait_for_kernel(std::chrono::nanoseconds deadline,
                             const std::function<void(const io_uring_cqe&)>& abandoned) {
  const auto begin = Clock::now();
  for (;;) {  // bound: the deadline
    take_rest(abandoned);
    if (in_kernel() == 0) return {};
    if (Clock::now() - begin >= deadline) {
      return {StatusCode::timed_out,
              "close the ring '" + name_ + "': the kernel has not finished " +
                  std::to_string(in_kernel()) + " operations, and may go on using their memory"};
    }
    (void)cancel_all();                   // not before Linux 6.0: then they end by themselves
    (void)::io_uring_get_events(&ring_);  // should the CQ have overflowed: the rest
    pollfd descriptor{event_fd_, POLLIN, 0};
    (void)::poll(&descriptor, 1, static_cast<int>(kCancelInterval.count()));
    (void)consume_event();
  }
}

Status Ring::close(std::chrono::nanoseconds deadline,
                   const std::function<void(const io_uring_cqe&)>& abandoned) {
  const auto ownership = take_ownership("its close()");
  SLUICE_RETURN_IF_ERROR(ownership.status());
  if (!closed_.exchange(true, std::memory_order_relaxed)) forget_unsubmitted();
  return wait_for_kernel(deadline, abandoned);
}

// --- the source
// ------------------------------------------------------------------------------------

PollOutcome Ring::poll(std::span<ibv_wc> out) noexcept {
  if (poll_fault_.fault != SourceFault::none) return poll_fault_;
  if (const std::uint32_t count = reap(out); count != 0) return {count, SourceFault::none, 0};
  const bool kept_back =
      (std::atomic_ref(*sq_flags_).load(std::memory_order_relaxed) & IORING_SQ_CQ_OVERFLOW) != 0;
  // Somebody went past the credits. What the kernel keeps back comes with no event.
  if (kept_back || lost() != 0) poll_fault_ = {0, SourceFault::cq_error, EOVERFLOW};
  return poll_fault_;
}

std::uint32_t Ring::reap(std::span<ibv_wc> out) noexcept {
  // Acquire: pairs with the kernel's release of the tail: the CQEs before it are written.
  const unsigned tail = std::atomic_ref(*cq_tail_).load(std::memory_order_acquire);
  if (tail == head_) return 0;
  (void)submitted_.load(std::memory_order_acquire);  // (4) acquire: pairs with (3)
  const std::uint32_t count = std::min(tail - head_, static_cast<std::uint32_t>(out.size()));
  for (std::uint32_t i = 0; i < count; ++i) out[i] = to_wc(cqes_[(head_ + i) & cq_mask_]);
  head_ += count;
  // Release: pairs with the kernel's acquire of the head: it may write to these CQEs again.
  std::atomic_ref(*cq_head_).store(head_, std::memory_order_release);
  return count;
}

std::uint32_t Ring::lost() const noexcept {
  return std::atomic_ref(*cq_overflow_).load(std::memory_order_relaxed);
}

EventOutcome Ring::consume_event() noexcept {
  if (event_fault_.kind == EventOutcome::Kind::failed) return event_fault_;
  const auto failure = [this](SourceFault fault, int error) {
    return event_fault_ = {EventOutcome::Kind::failed, fault, error};
  };
  // Looked for first: the read must not block even if somebody has made the descriptor blocking.
  pollfd descriptor{event_fd_, POLLIN, 0};
  const int ready = ::poll(&descriptor, 1, 0);
  if (ready < 0) return errno == EINTR ? kNoEvent : failure(SourceFault::wait_failed, errno);
  if (ready == 0) return kNoEvent;
  std::uint64_t signals = 0;  // how many there were says nothing: some CQEs share one
  if (::read(event_fd_, &signals, sizeof signals) == sizeof signals) return kConsumed;
  return errno == EAGAIN || errno == EINTR ? kNoEvent : failure(SourceFault::wait_failed, errno);
}

}  // namespace sluice::uring
