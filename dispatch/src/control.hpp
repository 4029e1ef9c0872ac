// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "async_events.hpp"
#include "control_port.hpp"
#include "drain.hpp"
#include "poller.hpp"
#include "registry.hpp"
#include "sluice/core/owner_thread.hpp"
#include "worker.hpp"

namespace sluice::detail {

class ListenerState;

/// Owns connection and device events, drains and deadlines (C7), and reports through callbacks.
/// Driven by one thread at a time. Nothing that it calls blocks, but for the destruction of a
/// drained queue pair.
class Control final : public Runnable {
 public:
  Control(const DispatcherConfig& config, const DispatcherCallbacks& callbacks, ControlPort& port,
          Registry& registry, const std::vector<std::unique_ptr<Poller>>& pollers,
          const std::vector<std::unique_ptr<Worker>>& workers);
  ~Control() override;
  [[nodiscard]] Status open();

  // --- Runnable, for the owning thread ---------------------------------------------------------
  std::size_t run_once() override;
  [[nodiscard]] int wait_fd() override { return epoll_fd_; }
  [[nodiscard]] bool prepare_to_wait() override;
  void finish_wait() override;
  void release_thread() override { owner_.release(); }
  /// Blocks until something is readable or the next deadline; after prepare_to_wait() said yes.
  void block() noexcept;

  // --- any thread ------------------------------------------------------------------------------
  [[nodiscard]] Status watch(const std::shared_ptr<ConnectionState>& connection);
  void unwatch(const ConnectionState& connection);
  [[nodiscard]] Status watch_device(ibv_context* device);
  void add(Drain drain);
  /// The dispatcher is stopping: no drain takes longer than this.
  void end_drains_by(TimePoint deadline);
  /// Host-driven listeners are stepped here.
  [[nodiscard]] Status add(std::shared_ptr<ListenerState> listener);
  void poke() noexcept { port_.notes().poke(); }
  /// An async event of a watched device, whoever read it.
  void deliver(const DeviceEvent& event);
  [[nodiscard]] ControlCounters counters() const noexcept;
  [[nodiscard]] TimePoint now() const {
    return config_.clock ? config_.clock() : std::chrono::steady_clock::now();
  }

 private:
  struct Watched {
    std::weak_ptr<ConnectionState> connection;  ///< else a device
    ibv_context* device = nullptr;
  };
  /// What was last seen of a thread that calls handlers.
  struct Seen {
    std::uint64_t sequence = 0;
    TimePoint since{};
    bool reported = false;
  };

  std::size_t handle_descriptors();
  std::size_t handle_device_events();
  std::size_t handle_notes();
  std::size_t advance_drains();
  std::size_t step_listeners();
  /// `watching`: handlers are watched for stalls.
  [[nodiscard]] TimePoint next_look(TimePoint at, bool watching) const;
  void check_stalls();
  template <typename Runner>
  bool check_stall(Runner& runner, Seen& seen, bool inlined, TimePoint at);
  [[nodiscard]] bool all_asleep() const noexcept;

  void handle_connection(const std::shared_ptr<ConnectionState>& connection);
  void handle_source_failure(const ControlNote& note, SourceState& source);
  void handle_device(ibv_context* device);
  void route(const DeviceEvent& event);
  void report_end(const std::shared_ptr<ConnectionState>& connection, rpma::ConnectionEvent event);
  [[nodiscard]] Watched watched(int fd) const;

  const DispatcherConfig& config_;
  const DispatcherCallbacks& callbacks_;
  ControlPort& port_;
  Registry& registry_;
  const std::vector<std::unique_ptr<Poller>>& pollers_;
  const std::vector<std::unique_ptr<Worker>>& workers_;

  OwnerThread owner_;
  int epoll_fd_ = -1;
  int timer_fd_ = -1;  ///< makes the next deadline a matter of the descriptor
  std::vector<Drain> drains_;
  std::vector<Seen> seen_pollers_, seen_workers_;
  TimePoint next_stall_check_{};
  bool quiet_ = false;  ///< no handler was called between the last two checks, and none runs
  Counter rounds_, connection_events_, async_events_, drains_done_, quarantined_;

  mutable std::mutex mutex_;  ///< set-up, not a data path: what is below
  std::unordered_map<int, Watched> watched_;
  std::vector<Drain> new_drains_;
  TimePoint drains_end_ = TimePoint::max();
  std::vector<DeviceEvent> device_events_;  ///< delivered and not yet routed
  std::vector<std::shared_ptr<ListenerState>> listeners_;
};

}  // namespace sluice::detail
