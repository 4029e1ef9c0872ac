// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "control.hpp"
#include "listener.hpp"
#include "poller.hpp"
#include "pool.hpp"
#include "registry.hpp"
#include "sluice/dispatch/dispatcher.hpp"
#include "sluice/topology/arena.hpp"
#include "sluice/topology/plan.hpp"
#include "worker.hpp"

namespace sluice::detail {

/// What a Dispatcher is made of. Held by the Dispatcher, by handles, and by each thread while it
/// runs: a thread that cannot be ended keeps alive what it may still touch.
class DispatcherImpl : public std::enable_shared_from_this<DispatcherImpl> {
 public:
  DispatcherImpl(DispatcherConfig config, DispatcherCallbacks callbacks,
                 std::uint32_t connections_max);
  ~DispatcherImpl();
  [[nodiscard]] Status open();
  [[nodiscard]] Status start_threads();

  [[nodiscard]] Result<std::shared_ptr<SourceHandle>> attach(
      std::shared_ptr<CompletionSource> source, AttachOptions options, Handler handler);
  [[nodiscard]] Result<std::shared_ptr<ConnectionHandle>> attach_connection(
      std::shared_ptr<rpma::Connection> connection, ConnectionOptions options,
      ConnectionReservation reservation = {});
  [[nodiscard]] Result<std::shared_ptr<ConnectionHandle>> attach_queue_pair(
      std::uint32_t qp_num, ConnectionOptions options);
  [[nodiscard]] SetupTicket expect_connection(SourceHandle& receive_source);
  [[nodiscard]] Result<std::unique_ptr<Dispatcher::Listener>> listen(
      std::unique_ptr<rpma::Endpoint> endpoint, ListenOptions options);
  [[nodiscard]] Status watch_device(ibv_context* context) {
    return control_->watch_device(context);
  }

  void detach_async(const std::shared_ptr<SourceState>& source, std::chrono::nanoseconds deadline,
                    DetachCallback done);
  void detach_async(const std::shared_ptr<ConnectionState>& connection,
                    std::chrono::nanoseconds deadline, DetachCallback done);
  template <typename State>
  [[nodiscard]] Result<DetachReport> detach(const std::shared_ptr<State>& state,
                                            std::chrono::nanoseconds deadline);

  [[nodiscard]] Result<std::vector<int>> completion_vectors(std::uint32_t poller,
                                                            int device_vectors) const;
  [[nodiscard]] Result<topology::BoundArena*> arena(const std::string& pool, std::uint32_t poller);
  [[nodiscard]] Result<std::vector<Dispatcher::ReceiveQueue>> attach_receive_queues(
      const std::string& name, const std::shared_ptr<rpma::Peer>& peer, Handler handler,
      void* context);
  [[nodiscard]] std::vector<std::string> notices() const;
  [[nodiscard]] const topology::Plan* plan() const noexcept { return plan_ ? &*plan_ : nullptr; }
  void keep_plan(topology::Plan plan) { plan_ = std::move(plan); }

  void join(ListenerState& listener);
  [[nodiscard]] DispatcherCounters counters() const;
  [[nodiscard]] Status stop(std::chrono::nanoseconds deadline);

  [[nodiscard]] Registry& registry() noexcept { return registry_; }
  [[nodiscard]] const std::vector<std::unique_ptr<Poller>>& pollers() const noexcept {
    return pollers_;
  }
  [[nodiscard]] const std::vector<std::unique_ptr<Worker>>& workers() const noexcept {
    return workers_;
  }
  [[nodiscard]] Control& control() noexcept { return *control_; }
  [[nodiscard]] bool host_driven() const noexcept { return config_.drive == Drive::host; }

 private:
  struct Thread {
    std::string name;
    std::thread thread;
    bool ended = false;  ///< under threads_mutex_
  };

  /// Whose settings a poller has, and which of the group's it is.
  /// Which threads share a CPU with another one.
  struct Crowding {
    std::map<unsigned, std::uint32_t> pinned;  ///< threads on each CPU that some are pinned to
    bool crowded = false;  ///< those that are not pinned are more than have room
    [[nodiscard]] bool shares(std::optional<unsigned> cpu) const;
  };
  struct PollerPlace {
    const PollerConfig* group = nullptr;
    std::uint32_t index = 0;  ///< within the group
    std::optional<unsigned> node;
  };

  [[nodiscard]] Result<topology::NodeMemory> memory_for(std::uint32_t poller, std::size_t bytes,
                                                        const std::string& whose);
  void note_idle_instances();
  [[nodiscard]] static bool receives_there(const ConnectionState& state);
  [[nodiscard]] Status make_pollers(const std::vector<Pool*>& pools);
  /// The instance of a pool that serves a poller; fails when there is no such pool.
  [[nodiscard]] Result<Pool*> find_pool(const std::string& name, std::uint32_t poller) const;
  /// Replaces what a route stands for.
  template <typename Options>
  [[nodiscard]] Status follow_route(Options& options) const;
  /// The pollers that may take something; fails when there is no such group or poller.
  [[nodiscard]] Result<std::vector<std::uint32_t>> candidates(const std::string& group,
                                                              std::uint32_t wanted) const;
  [[nodiscard]] Result<std::vector<std::uint32_t>> candidates(
      const ConnectionOptions& options) const;
  [[nodiscard]] Result<Dispatcher::ReceiveQueue> make_receive_queue(
      const topology::SrqSettings& settings, const std::shared_ptr<rpma::Peer>& peer,
      std::uint32_t poller, const std::shared_ptr<Handler>& handler, void* context);
  [[nodiscard]] Result<std::shared_ptr<SourceState>> make_source(
      std::shared_ptr<CompletionSource> source, AttachOptions options, Handler handler, Pool* pool,
      std::uint32_t poller);
  [[nodiscard]] Status post(std::uint32_t poller, const PollerCommand& command);
  [[nodiscard]] Result<std::shared_ptr<ConnectionHandle>> enrol(
      std::shared_ptr<ConnectionState> state, ConnectionOptions& options,
      ConnectionReservation reservation);
  [[nodiscard]] Status check_receive_source(const ConnectionOptions& options,
                                            const Pool* pool) const;
  [[nodiscard]] Status take_lane(ConnectionState& state);
  [[nodiscard]] Status add_own_sources(ConnectionState& state, ConnectionOptions& options);

  template <typename Body>
  [[nodiscard]] Status start_thread(std::string name, Body body);
  void run_poller(Poller& poller, std::uint32_t index);
  void run_worker(Worker& worker, Pool& pool, std::uint32_t index);
  void run_control();
  [[nodiscard]] bool stopping() const noexcept {
    return stopping_.load(
        std::memory_order_acquire);  // (1) acquire: pairs with (2) in end_threads()
  }
  void bind(std::optional<unsigned> cpu);
  [[nodiscard]] Status check_cpus() const;
  [[nodiscard]] Crowding crowding() const;
  void close_listeners();
  [[nodiscard]] std::string drain_all(std::chrono::steady_clock::time_point deadline);
  [[nodiscard]] std::string end_threads(std::chrono::steady_clock::time_point deadline);
  void drive_all_once();

  const DispatcherConfig config_;
  const DispatcherCallbacks callbacks_;
  Registry registry_;
  ControlPort port_;
  std::optional<topology::Plan> plan_;
  std::vector<PollerPlace> places_;  ///< of each poller
  std::vector<std::unique_ptr<Pool>> pools_;
  std::vector<std::unique_ptr<Poller>> pollers_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<Control> control_;
  const std::uint32_t connections_max_;
  Crowding crowding_;             ///< set before any thread starts
  bool yield_when_busy_ = false;  ///< more busy threads than CPUs (S6)

  std::atomic<bool> stopping_{false};
  std::atomic<bool> refusing_{false};  ///< stop() has begun: nothing new is attached
  std::shared_mutex attaching_;        ///< shared by each attach; stop() waits for those under way
  mutable std::mutex threads_mutex_;
  std::vector<std::string> notices_;  ///< under threads_mutex_
  std::condition_variable thread_ended_;
  std::vector<std::unique_ptr<Thread>> threads_;
  Status bind_status_;  ///< the first failure to pin; under threads_mutex_
  std::uint32_t threads_ready_ = 0;
  std::mutex listeners_mutex_;
  std::vector<std::shared_ptr<ListenerState>> listeners_;
  std::mutex stop_mutex_;
  std::optional<Status> stopped_;  ///< what stop() said; under stop_mutex_
  std::mutex arenas_mutex_;
  std::map<const Pool*, std::unique_ptr<topology::BoundArena>> arenas_;  ///< under arenas_mutex_
};

}  // namespace sluice::detail
