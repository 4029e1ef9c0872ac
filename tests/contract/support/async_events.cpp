// SPDX-License-Identifier: BSD-3-Clause
#include "support/async_events.hpp"

#include <fcntl.h>
#include <poll.h>

namespace sluice::contract {

AsyncEvents::AsyncEvents(ibv_context* context)
    : context_(context), flags_(::fcntl(context->async_fd, F_GETFL)) {
  (void)::fcntl(context->async_fd, F_SETFL, flags_ | O_NONBLOCK);
  while (next()) {  // what earlier tests left behind
  }
}

AsyncEvents::~AsyncEvents() {
  (void)::fcntl(context_->async_fd, F_SETFL, flags_);
}

std::optional<ibv_async_event> AsyncEvents::next() {
  ibv_async_event event{};
  if (ibv_get_async_event(context_, &event) != 0) return std::nullopt;
  ibv_ack_async_event(&event);  // at once: the destruction of its object waits for it
  return event;
}

ibv_cq* AsyncEvents::await_cq_error() {
  ibv_cq* found = nullptr;
  await("a CQ error", [&] {
    const auto event = next();
    if (event && event->event_type == IBV_EVENT_CQ_ERR) found = event->element.cq;
    return found != nullptr;
  });
  return found;
}

bool AsyncEvents::last_wqe_reached(std::uint32_t qp_num, std::chrono::milliseconds grace) {
  const auto deadline = std::chrono::steady_clock::now() + grace;
  do {
    while (const auto event = next()) {
      if (event->event_type == IBV_EVENT_QP_LAST_WQE_REACHED &&
          event->element.qp->qp_num == qp_num) {
        return true;
      }
    }
    pollfd descriptor{context_->async_fd, POLLIN, 0};
    (void)::poll(&descriptor, 1, 10);
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

}  // namespace sluice::contract
