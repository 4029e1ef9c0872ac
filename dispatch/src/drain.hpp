// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "control_port.hpp"
#include "poller.hpp"
#include "registry.hpp"
#include "state.hpp"

namespace sluice::detail {

using TimePoint = std::chrono::steady_clock::time_point;

/// What a drain needs of the dispatcher.
struct DrainContext {
  Registry& registry;
  ControlPort& port;
  const std::vector<std::unique_ptr<Poller>>& pollers;
  std::chrono::nanoseconds last_wqe_grace;
  /// Stops watching the connection's events, before it goes.
  std::function<void(const ConnectionState&)> unwatch;
};

/// One detach under way (C6). Driven by the control; never blocks.
///
/// Of a connection: disconnect -> the flushed marker -> LAST_WQE_REACHED with an SRQ, or the grace
/// -> the pollers have polled to empty and let go -> every handler call has returned -> the queue
/// pair is destroyed. Of a source: the last three only. At the deadline what is left goes to
/// quarantine.
class Drain {
 public:
  /// What it waits for. Each step is left when that has happened.
  enum class Step : std::uint8_t {
    marker_posting,  ///< the send queue takes the marker
    marker,          ///< the marker comes back
    last_wqe,        ///< the SRQ has given this queue pair its last receive
    letting_go,      ///< the pollers let go
    handlers,        ///< the workers return
    finished,
  };

  Drain(std::shared_ptr<ConnectionState> connection, TimePoint now,
        std::chrono::nanoseconds deadline, DetachCallback done);
  Drain(std::shared_ptr<SourceState> source, TimePoint now, std::chrono::nanoseconds deadline,
        DetachCallback done);

  /// Does what can be done now; true when it is over and its callback may be called.
  [[nodiscard]] bool advance(TimePoint now, DrainContext& context);
  /// When to look again if nothing pokes.
  [[nodiscard]] TimePoint next_look(TimePoint now) const noexcept;
  [[nodiscard]] const DetachReport& report() const noexcept { return report_; }
  /// The dispatcher is stopping: no later than this.
  void limit(TimePoint deadline) noexcept { deadline_ = std::min(deadline_, deadline); }
  /// Tells all who asked for this detach.
  void call_back(Registry& registry) const;

 private:
  void start(DrainContext& context);
  [[nodiscard]] bool step(TimePoint now, DrainContext& context);
  [[nodiscard]] bool serves_nobody() const;
  [[nodiscard]] bool post_marker();
  [[nodiscard]] bool own_source_failed() const;
  [[nodiscard]] bool send_removals(DrainContext& context);
  [[nodiscard]] bool let_go() const;
  [[nodiscard]] bool lanes_idle() const;
  [[nodiscard]] std::uint64_t outstanding() const;
  void finish(TimePoint now, DrainContext& context);
  void give_up(TimePoint now, DrainContext& context);

  std::shared_ptr<ConnectionState> connection_;
  std::vector<std::shared_ptr<SourceState>> sources_;
  std::size_t removals_sent_ = 0;
  bool connection_removal_sent_ = false;
  bool started_ = false;
  Step step_ = Step::marker_posting;
  TimePoint begin_;
  TimePoint deadline_;
  TimePoint grace_end_{};
  DetachCallback done_;
  DetachReport report_;
};

}  // namespace sluice::detail
