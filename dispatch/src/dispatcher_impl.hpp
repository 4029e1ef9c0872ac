// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <condition_variable>
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

  [[nodiscard]] Result<Pool*> find_pool(const std::string& name) const;
  [[nodiscard]] Result<std::shared_ptr<SourceState>> make_source(
      std::shared_ptr<CompletionSource> source, AttachOptions options, Handler handler, Pool* pool,
      std::uint32_t poller);
  [[nodiscard]] Status post(std::uint32_t poller, const PollerCommand& command);
  [[nodiscard]] Result<std::shared_ptr<ConnectionHandle>> enrol(
      std::shared_ptr<ConnectionState> state, ConnectionOptions& options,
      ConnectionReservation reservation);
  [[nodiscard]] Status check_receive_source(const ConnectionOptions& options,
                                            const Pool* pool) const;
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
  void bind(const std::vector<unsigned>& cpus, std::uint32_t index);
  void close_listeners();
  [[nodiscard]] std::string drain_all(std::chrono::steady_clock::time_point deadline);
  [[nodiscard]] std::string end_threads(std::chrono::steady_clock::time_point deadline);
  void drive_all_once();

  const DispatcherConfig config_;
  const DispatcherCallbacks callbacks_;
  Registry registry_;
  ControlPort port_;
  std::vector<std::unique_ptr<Pool>> pools_;
  std::vector<std::unique_ptr<Poller>> pollers_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<Control> control_;
  const std::uint32_t connections_max_;
  bool yield_when_busy_ = false;  ///< more busy threads than CPUs (S6)

  std::atomic<bool> stopping_{false};
  std::atomic<bool> refusing_{false};  ///< stop() has begun: nothing new is attached
  std::shared_mutex attaching_;        ///< shared by each attach; stop() waits for those under way
  std::mutex threads_mutex_;
  std::condition_variable thread_ended_;
  std::vector<std::unique_ptr<Thread>> threads_;
  Status bind_status_;  ///< the first failure to pin; under threads_mutex_
  std::uint32_t threads_ready_ = 0;
  std::mutex listeners_mutex_;
  std::vector<std::shared_ptr<ListenerState>> listeners_;
  std::mutex stop_mutex_;
  std::optional<Status> stopped_;  ///< what stop() said; under stop_mutex_
};

}  // namespace sluice::detail
