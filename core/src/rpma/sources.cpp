// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/rpma/sources.hpp"

#include <poll.h>

#include <cerrno>

#include "rpma/call.hpp"
#include "sluice/core/rpma/error.hpp"

namespace sluice::rpma {
namespace {

/// One CQ polled once. RPMA_E_NO_COMPLETION is "empty"; anything else is final.
PollOutcome poll_cq(rpma_cq* cq, std::span<ibv_wc> out) noexcept {
  int got = 0;
  const int code = ::rpma_cq_get_wc(cq, static_cast<int>(out.size()), out.data(), &got);
  if (code == RPMA_E_NO_COMPLETION) return {};
  if (code != 0) return {0, SourceFault::poll_failed, code};
  for (ibv_wc& wc : out.first(static_cast<std::size_t>(got))) clear_invalid_fields(wc);
  return {static_cast<std::uint32_t>(got), SourceFault::none, 0};
}

constexpr EventOutcome kNoEvent{EventOutcome::Kind::none, SourceFault::none, 0};
constexpr EventOutcome kConsumed{EventOutcome::Kind::consumed, SourceFault::none, 0};
EventOutcome failure(SourceFault fault, int error) noexcept {
  return {EventOutcome::Kind::failed, fault, error};
}

/// Whether an event is queued, without taking it: the wait below must not block even if somebody
/// has made the descriptor blocking again.
EventOutcome look_for_event(int fd) noexcept {
  pollfd descriptor{fd, POLLIN, 0};
  const int ready = ::poll(&descriptor, 1, 0);
  if (ready < 0) {
    return errno == EINTR || errno == EAGAIN ? kNoEvent : failure(SourceFault::wait_failed, errno);
  }
  if (ready == 0) return kNoEvent;
  if ((descriptor.revents & POLLIN) != 0) return kConsumed;
  return failure(SourceFault::device_removed, ENODEV);
}

/// What a wait that did not take an event means (C1).
EventOutcome after_wait(int code, int os_error) noexcept {
  if (code == 0) return kConsumed;
  if (code == RPMA_E_NO_COMPLETION && (os_error == EAGAIN || os_error == EINTR)) return kNoEvent;
  if (code == RPMA_E_PROVIDER) return failure(SourceFault::rearm_failed, os_error);
  // RPMA_E_UNKNOWN: an event of a CQ that librpma does not know stays unacknowledged.
  return failure(SourceFault::wait_failed, os_error != 0 ? os_error : code);
}

}  // namespace

// --- CqSource ---------------------------------------------------------------------------------

Result<std::shared_ptr<CqSource>> CqSource::create(rpma_cq* cq, std::uint32_t capacity,
                                                   std::string name,
                                                   std::shared_ptr<void> keep_alive, Retire retire,
                                                   Polled polled) {
  install_errno_safe_log();
  if (cq == nullptr || capacity < 1) {
    return Status(StatusCode::invalid_argument, "make the source '" + name + "' of " +
                                                    (cq == nullptr ? "no CQ" : "a CQ") + " with " +
                                                    std::to_string(capacity) + " entries");
  }
  int fd = -1;
  const CallOutcome outcome = call([&] { return ::rpma_cq_get_fd(cq, &fd); });
  if (!outcome.ok()) {
    return make_status(outcome.code, outcome.os_error, "get the descriptor of '" + name + "'");
  }
  SLUICE_RETURN_IF_ERROR(set_nonblocking(fd, name));
  return std::shared_ptr<CqSource>(new CqSource(cq, fd, capacity, std::move(name),
                                                std::move(keep_alive), std::move(retire),
                                                std::move(polled)));
}

CqSource::CqSource(rpma_cq* cq, int fd, std::uint32_t capacity, std::string name,
                   std::shared_ptr<void> keep_alive, Retire retire, Polled polled)
    : cq_(cq),
      fd_(fd),
      capacity_(capacity),
      name_(std::move(name)),
      keep_alive_(std::move(keep_alive)),
      retire_(std::move(retire)),
      polled_(std::move(polled)) {}

PollOutcome CqSource::poll(std::span<ibv_wc> out) noexcept {
  if (poll_fault_.fault != SourceFault::none) return poll_fault_;
  const PollOutcome outcome = poll_cq(cq_, out);
  if (outcome.count != 0 && polled_) polled_(out.first(outcome.count));
  if (outcome.fault != SourceFault::none) {
    poll_fault_ = {0, outcome.fault, outcome.error};
  }
  return outcome;
}

EventOutcome CqSource::consume_event() noexcept {
  if (event_fault_.kind == EventOutcome::Kind::failed) return event_fault_;
  EventOutcome outcome = look_for_event(fd_);
  if (outcome.kind == EventOutcome::Kind::consumed) {
    const CallOutcome wait = call([&] { return ::rpma_cq_wait(cq_); });
    outcome = after_wait(wait.code, wait.os_error);
  }
  if (outcome.kind == EventOutcome::Kind::failed) event_fault_ = outcome;
  return outcome;
}

void CqSource::retire(std::span<const ibv_wc> completions) noexcept {
  retire_ ? retire_(completions) : CompletionSource::retire(completions);
}

// --- SharedChannelSource ----------------------------------------------------------------------

Result<std::shared_ptr<SharedChannelSource>> SharedChannelSource::create(
    rpma_conn* connection, std::uint32_t capacity, std::string name,
    std::shared_ptr<void> keep_alive, Retire retire, Polled polled) {
  install_errno_safe_log();
  rpma_cq* cq = nullptr;
  rpma_cq* receive_cq = nullptr;
  int fd = -1;
  CallOutcome outcome = call([&] { return ::rpma_conn_get_cq(connection, &cq); });
  if (outcome.ok()) {
    outcome = call([&] { return ::rpma_conn_get_rcq(connection, &receive_cq); });
  }
  if (outcome.ok()) {
    outcome = call([&] { return ::rpma_conn_get_compl_fd(connection, &fd); });
  }
  if (!outcome.ok()) {
    return make_status(outcome.code, outcome.os_error,
                       "make the source '" + name + "' of a connection's shared channel");
  }
  SLUICE_RETURN_IF_ERROR(set_nonblocking(fd, name));
  return std::shared_ptr<SharedChannelSource>(
      new SharedChannelSource(connection, cq, receive_cq, fd, capacity, std::move(name),
                              std::move(keep_alive), std::move(retire), std::move(polled)));
}

SharedChannelSource::SharedChannelSource(rpma_conn* connection, rpma_cq* cq, rpma_cq* receive_cq,
                                         int fd, std::uint32_t capacity, std::string name,
                                         std::shared_ptr<void> keep_alive, Retire retire,
                                         Polled polled)
    : connection_(connection),
      cq_(cq),
      receive_cq_(receive_cq),
      fd_(fd),
      capacity_(capacity),
      name_(std::move(name)),
      keep_alive_(std::move(keep_alive)),
      retire_(std::move(retire)),
      polled_(std::move(polled)) {}

PollOutcome SharedChannelSource::poll(std::span<ibv_wc> out) noexcept {
  if (poll_fault_.fault != SourceFault::none) return poll_fault_;
  rpma_cq* const both[2] = {receive_first_ ? receive_cq_ : cq_, receive_first_ ? cq_ : receive_cq_};
  receive_first_ = !receive_first_;
  PollOutcome total;
  for (rpma_cq* const cq : both) {
    if (cq == nullptr) continue;
    const std::span<ibv_wc> rest = out.subspan(total.count);
    if (rest.empty()) break;
    const PollOutcome outcome = poll_cq(cq, rest);
    total.count += outcome.count;
    if (outcome.fault != SourceFault::none) {
      total.fault = outcome.fault;
      total.error = outcome.error;
      poll_fault_ = {0, outcome.fault, outcome.error};
      break;
    }
  }
  if (total.count != 0 && polled_) polled_(out.first(total.count));
  return total;
}

EventOutcome SharedChannelSource::consume_event() noexcept {
  if (event_fault_.kind == EventOutcome::Kind::failed) return event_fault_;
  EventOutcome outcome = look_for_event(fd_);
  if (outcome.kind == EventOutcome::Kind::consumed) {
    rpma_cq* rearmed = nullptr;  // which one does not matter: both are polled before any sleep
    const CallOutcome wait =
        call([&] { return ::rpma_conn_wait(connection_, 0, &rearmed, nullptr); });
    outcome = after_wait(wait.code, wait.os_error);
  }
  if (outcome.kind == EventOutcome::Kind::failed) event_fault_ = outcome;
  return outcome;
}

void SharedChannelSource::retire(std::span<const ibv_wc> completions) noexcept {
  retire_ ? retire_(completions) : CompletionSource::retire(completions);
}

}  // namespace sluice::rpma
