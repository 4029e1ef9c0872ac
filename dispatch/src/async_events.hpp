// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace sluice::detail {

class Control;

/// A copy of a device's async event, taken before its acknowledgement let the object be destroyed.
struct DeviceEvent {
  ibv_context* device = nullptr;
  ibv_async_event event{};
  std::uint32_t qp_num = 0;  ///< of the event's queue pair, if it has one
  int cq_fd = -1;            ///< of the event's CQ's channel, if it has one
};

/// Takes the next event, acknowledges it. False: there is none now.
[[nodiscard]] bool take_device_event(ibv_context* device, DeviceEvent& out) noexcept;

/// Gives each async event to all dispatchers of this process that watch its device. librdmacm
/// shares one context per device and process, and an event can be read only once: whichever
/// dispatcher reads it, it may concern a connection of another (C7).
///
/// Thread-safety: all calls from any thread. A mutex: async events are rare. Once `leave()` has
/// returned nothing more is delivered.
class DeviceEventExchange {
 public:
  [[nodiscard]] static DeviceEventExchange& instance() noexcept;
  void join(ibv_context* device, Control& control);
  void leave(Control& control) noexcept;
  void publish(const DeviceEvent& event);

 private:
  std::mutex mutex_;  ///< taken before a control's own
  std::vector<std::pair<ibv_context*, Control*>> members_;
};

}  // namespace sluice::detail
