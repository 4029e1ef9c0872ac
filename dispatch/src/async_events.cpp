// SPDX-License-Identifier: BSD-3-Clause
#include "async_events.hpp"

#include <algorithm>

#include "control.hpp"

namespace sluice::detail {

bool take_device_event(ibv_context* device, DeviceEvent& out) noexcept {
  out = DeviceEvent{};
  out.device = device;
  if (::ibv_get_async_event(device, &out.event) != 0) return false;
  switch (out.event.event_type) {
    case IBV_EVENT_CQ_ERR:
      if (out.event.element.cq->channel != nullptr) out.cq_fd = out.event.element.cq->channel->fd;
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: out.qp_num = out.event.element.qp->qp_num; break;
    default: break;
  }
  ::ibv_ack_async_event(&out.event);
  return true;
}

DeviceEventExchange& DeviceEventExchange::instance() noexcept {
  static DeviceEventExchange* const exchange =
      new DeviceEventExchange;  // outlives every dispatcher
  return *exchange;
}

void DeviceEventExchange::join(ibv_context* device, Control& control) {
  const std::scoped_lock lock(mutex_);
  const std::pair member(device, &control);
  if (std::find(members_.begin(), members_.end(), member) == members_.end())
    members_.push_back(member);
}

void DeviceEventExchange::leave(Control& control) noexcept {
  const std::scoped_lock lock(mutex_);
  std::erase_if(members_, [&](const auto& member) { return member.second == &control; });
}

void DeviceEventExchange::publish(const DeviceEvent& event) {
  const std::scoped_lock lock(mutex_);
  for (const auto& [device, control] : members_) {
    if (device == event.device) control->deliver(event);
  }
}

}  // namespace sluice::detail
