// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>

#include <optional>

#include "support/fixture.hpp"

namespace sluice::contract {

/// Reads the asynchronous events of a context without blocking. librdmacm shares one context per
/// device and process: one of these at a time.
class AsyncEvents {
 public:
  explicit AsyncEvents(ibv_context* context);
  ~AsyncEvents();
  AsyncEvents(const AsyncEvents&) = delete;
  AsyncEvents& operator=(const AsyncEvents&) = delete;

  /// The next event, copied and acknowledged; none when nothing is there.
  std::optional<ibv_async_event> next();
  /// The CQ of the next CQ error; other events are passed over.
  ibv_cq* await_cq_error();
  /// Whether a queue pair's LAST_WQE_REACHED came within `grace`.
  bool last_wqe_reached(std::uint32_t qp_num, std::chrono::milliseconds grace);

 private:
  ibv_context* context_;
  int flags_;
};

}  // namespace sluice::contract
