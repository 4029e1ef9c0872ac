// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/verbs/cq_group.hpp"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

namespace sluice::verbs {
namespace {

constexpr std::uint32_t kCqsMax = 1024;
constexpr std::uint32_t kCqSizeMax = 1U << 24;
constexpr std::uint32_t kAckBatchMax = 1U << 20;

constexpr EventOutcome kNoEvent{EventOutcome::Kind::none, SourceFault::none, 0};
constexpr EventOutcome kConsumed{EventOutcome::Kind::consumed, SourceFault::none, 0};

Status check(const CqGroupConfig& config, const std::string& name) {
  const auto refuse = [&](const char* what, std::uint64_t value, const char* range) {
    return Status(StatusCode::invalid_argument, "make the CQ group '" + name + "' with " + what +
                                                    " = " + std::to_string(value) +
                                                    ": it must be " + range);
  };
  if (config.cq_count < 1 || config.cq_count > kCqsMax) {
    return refuse("cq_count", config.cq_count, "1..1024");
  }
  if (config.cq_size < 1 || config.cq_size > kCqSizeMax) {
    return refuse("cq_size", config.cq_size, "1..2^24");
  }
  if (std::uint64_t{config.cq_count} * config.cq_size > kCqSizeMax) {
    return refuse("cq_count * cq_size", std::uint64_t{config.cq_count} * config.cq_size, "1..2^24");
  }
  if (config.ack_batch < 1 || config.ack_batch > kAckBatchMax) {
    return refuse("ack_batch", config.ack_batch, "1..2^20");
  }
  return {};
}

}  // namespace

struct CqGroup::Cq {
  ibv_cq* cq = nullptr;
  int vector = 0;
  std::uint32_t unacknowledged = 0;  ///< events taken and not yet acknowledged
};

Result<std::shared_ptr<CqGroup>> CqGroup::create(ibv_context* context, CqGroupConfig config,
                                                 std::string name) {
  SLUICE_RETURN_IF_ERROR(check(config, name));
  const int vectors = std::max(1, context->num_comp_vectors);
  for (const int vector : config.completion_vectors) {
    if (vector < 0 || vector >= vectors) {
      return Status(StatusCode::invalid_argument,
                    "make the CQ group '" + name + "' with the completion vector " +
                        std::to_string(vector) + ": the device has 0.." +
                        std::to_string(vectors - 1));
    }
  }
  std::shared_ptr<CqGroup> group(new CqGroup(std::move(config), std::move(name)));
  SLUICE_RETURN_IF_ERROR(group->open(context, vectors));
  return group;
}

CqGroup::CqGroup(CqGroupConfig config, std::string name)
    : config_(std::move(config)), name_(std::move(name)) {}

Status CqGroup::open(ibv_context* context, int vectors) {
  channel_ = ::ibv_create_comp_channel(context);
  if (channel_ == nullptr) {
    return Status(StatusCode::device_failed, "make a completion channel for '" + name_ + "'",
                  errno);
  }
  const int flags = ::fcntl(channel_->fd, F_GETFL);
  if (flags < 0 || ::fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return Status(StatusCode::io_error, "make the channel of '" + name_ + "' non-blocking", errno);
  }
  cqs_.resize(config_.cq_count);  // before the first CQ: each gets its element's address
  for (std::uint32_t i = 0; i < config_.cq_count; ++i) {
    Cq& made = cqs_[i];
    made.vector = config_.completion_vectors.empty()
                      ? static_cast<int>(i % static_cast<std::uint32_t>(vectors))
                      : config_.completion_vectors[i % config_.completion_vectors.size()];
    made.cq =
        ::ibv_create_cq(context, static_cast<int>(config_.cq_size), &made, channel_, made.vector);
    if (made.cq == nullptr) {
      const int error = errno;
      return Status(error == ENOMEM ? StatusCode::resource_exhausted : StatusCode::device_failed,
                    "make CQ " + std::to_string(i) + " of '" + name_ + "' with " +
                        std::to_string(config_.cq_size) + " entries on completion vector " +
                        std::to_string(made.vector),
                    error);
    }
    // INV-ARM: from creation on.
    if (const int error = ::ibv_req_notify_cq(made.cq, config_.solicited_only ? 1 : 0);
        error != 0) {
      return Status(StatusCode::device_failed,
                    "arm CQ " + std::to_string(i) + " of '" + name_ + "'", error);
    }
  }
  return {};
}

CqGroup::~CqGroup() {
  for (Cq& each : cqs_) {
    if (each.cq == nullptr) continue;
    acknowledge(each);  // ibv_destroy_cq would wait for it for ever
    const int error = ::ibv_destroy_cq(each.cq);
    SLUICE_CHECK(error != EBUSY,
                 "a CQ group was destroyed before the queue pairs and SRQs made on its CQs");
  }
  if (channel_ != nullptr) (void)::ibv_destroy_comp_channel(channel_);
}

void CqGroup::acknowledge(Cq& of) noexcept {
  if (of.unacknowledged != 0) ::ibv_ack_cq_events(of.cq, of.unacknowledged);
  of.unacknowledged = 0;
}

PollOutcome CqGroup::poll(std::span<ibv_wc> out) noexcept {
  if (poll_fault_.fault != SourceFault::none) return poll_fault_;
  PollOutcome total;
  const auto count = static_cast<std::uint32_t>(cqs_.size());
  const std::uint32_t start = next_;
  next_ = start + 1 == count ? 0 : start + 1;  // so that a busy CQ cannot starve the others
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::span<ibv_wc> rest = out.subspan(total.count);
    if (rest.empty()) break;
    const std::uint32_t index = start + i < count ? start + i : start + i - count;
    const int got = ::ibv_poll_cq(cqs_[index].cq, static_cast<int>(rest.size()), rest.data());
    if (got < 0) {
      total.fault = SourceFault::poll_failed;
      total.error = got;
      poll_fault_ = {0, SourceFault::poll_failed, got};
      break;
    }
    for (ibv_wc& wc : rest.first(static_cast<std::size_t>(got))) clear_invalid_fields(wc);
    total.count += static_cast<std::uint32_t>(got);
  }
  return total;
}

EventOutcome CqGroup::consume_event() noexcept {
  if (event_fault_.kind == EventOutcome::Kind::failed) return event_fault_;
  const EventOutcome outcome = take_event();
  if (outcome.kind == EventOutcome::Kind::failed) event_fault_ = outcome;
  return outcome;
}

EventOutcome CqGroup::take_event() noexcept {
  const auto failure = [](SourceFault fault, int error) {
    return EventOutcome{EventOutcome::Kind::failed, fault, error};
  };
  // Looked for first: ibv_get_cq_event must not block even if somebody has made the descriptor
  // blocking again.
  pollfd descriptor{channel_->fd, POLLIN, 0};
  const int ready = ::poll(&descriptor, 1, 0);
  if (ready < 0) return errno == EINTR ? kNoEvent : failure(SourceFault::wait_failed, errno);
  if (ready == 0) return kNoEvent;
  if ((descriptor.revents & POLLIN) == 0) return failure(SourceFault::device_removed, ENODEV);

  ibv_cq* cq = nullptr;
  void* context = nullptr;
  errno = 0;
  if (::ibv_get_cq_event(channel_, &cq, &context) != 0) {
    return errno == EAGAIN || errno == EINTR ? kNoEvent : failure(SourceFault::wait_failed, errno);
  }
  Cq& of = *static_cast<Cq*>(context);
  if (++of.unacknowledged >= config_.ack_batch) acknowledge(of);
  if (const int error = ::ibv_req_notify_cq(cq, config_.solicited_only ? 1 : 0); error != 0) {
    return failure(SourceFault::rearm_failed, error);
  }
  return kConsumed;
}

int CqGroup::wait_fd() const noexcept {
  return channel_->fd;
}

std::uint32_t CqGroup::capacity() const noexcept {
  return config_.cq_count * config_.cq_size;
}

ibv_cq* CqGroup::cq(std::uint32_t index) const noexcept {
  SLUICE_CHECK(index < cqs_.size(), "a CQ group has no CQ of this index");
  return cqs_[index].cq;
}

std::uint32_t CqGroup::cq_count() const noexcept {
  return static_cast<std::uint32_t>(cqs_.size());
}

int CqGroup::completion_vector(std::uint32_t index) const noexcept {
  SLUICE_CHECK(index < cqs_.size(), "a CQ group has no CQ of this index");
  return cqs_[index].vector;
}

}  // namespace sluice::verbs
