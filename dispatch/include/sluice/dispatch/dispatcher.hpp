// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sluice/core/completion_source.hpp"
#include "sluice/core/receive_pool.hpp"
#include "sluice/core/rpma/handles.hpp"
#include "sluice/core/rpma/sources.hpp"
#include "sluice/core/status.hpp"
#include "sluice/dispatch/config.hpp"
#include "sluice/dispatch/counters.hpp"
#include "sluice/dispatch/handler.hpp"

namespace sluice {

namespace topology {
class BoundArena;
}

namespace detail {
class DispatcherImpl;
struct SourceState;
struct ConnectionState;
}  // namespace detail

/// Picks the poller with the fewest connections (R1).
inline constexpr std::uint32_t kAnyPoller = ~std::uint32_t{0};

/// What a detach did, and what it had to leave behind.
struct DetachReport {
  bool clean = true;  ///< nobody touches it any more, and nothing was abandoned
  std::uint64_t completions_abandoned = 0;  ///< handed to a handler that had not returned
  bool marker_missing = false;              ///< the flushed drain marker never came back
  bool last_wqe_missing = false;  ///< informational: the device sent no LAST_WQE_REACHED in time
  bool quarantined = false;  ///< the queue pair is kept, not destroyed, until the dispatcher goes
  std::chrono::nanoseconds took{0};
  /// One line for people.
  [[nodiscard]] std::string to_string() const;
};
using DetachCallback = std::function<void(const DetachReport&)>;

struct AttachOptions {
  /// A route of the configuration: it gives pool, pollers and order, which are then not looked at
  /// here. Empty: none.
  std::string route;
  std::string pool;  ///< empty: the first pool. Unused when inlined
  Order order = Order::per_connection;
  std::string pollers;                ///< the group to choose from; empty: all
  std::uint32_t poller = kAnyPoller;  ///< or this one, of all groups in their order
  void* context = nullptr;            ///< comes back in BatchInfo::context
  /// The pool whose receives this source completes: its depth bounds the early completions, and its
  /// slots tell receives from sends. nullptr: none.
  ReceivePool* receive_pool = nullptr;
  /// per_connection: all its completions belong to one queue pair, known or not: one lane, no
  /// look-up by qp_num. For a raw source of a single connection.
  bool single_connection = false;
  /// per_key: needed there. The same key has the same lane in all sources of a pool: handlers of
  /// one key never run on two workers at once, whichever source it came from (a message here, the
  /// completion of its write to disk there). Between two sources there is no order. As with `none`,
  /// connections cannot name such a source as their receive_source.
  KeyFunction key;
};

/// An attached source. Dropping the handle does not detach it.
class SourceHandle {
 public:
  ~SourceHandle();
  [[nodiscard]] SourceId id() const noexcept;
  [[nodiscard]] std::uint32_t poller() const noexcept;
  /// Stops polling, waits until every handler call for it has returned. From inside a handler (or
  /// the control thread, or a host-driven dispatcher), and while connections use it as their
  /// receive_source, it is refused with invalid_argument: use detach_async, which waits for them.
  [[nodiscard]] Result<DetachReport> detach(std::chrono::nanoseconds deadline);
  void detach_async(std::chrono::nanoseconds deadline, DetachCallback done);

 private:
  friend class Dispatcher;
  friend class detail::DispatcherImpl;
  SourceHandle(std::shared_ptr<detail::DispatcherImpl> dispatcher,
               std::shared_ptr<detail::SourceState> state);
  std::shared_ptr<detail::DispatcherImpl> dispatcher_;
  std::shared_ptr<detail::SourceState> state_;
};

class ConnectionHandle;

struct ConnectionOptions {
  std::string route;  ///< as AttachOptions::route
  std::string pool;   ///< empty: the first pool
  /// Of the connection's own CQs. per_connection shares one lane with `receive_source`, which must
  /// then be attached per_connection to the same pool.
  Order order = Order::per_connection;
  std::string pollers;  ///< the group to choose from; empty: all
  /// Or this one. With a receive_source in a pool that is split by node only pollers of its node
  /// do.
  std::uint32_t poller = kAnyPoller;
  void* context = nullptr;  ///< comes back in BatchInfo::context
  KeyFunction key;          ///< per_key: as AttachOptions::key, for its own CQs
  /// Where its receives complete when it uses an SRQ with its own receive CQ; their handler is that
  /// source's.
  std::shared_ptr<SourceHandle> receive_source;
  /// For the connection's own CQ, receive CQ or shared channel.
  Handler handler;
  /// Connection events after `established` (closed, lost, ...): each at most once, on the control
  /// thread. `closed` does not tear anything down: call detach. A detach of one's own
  /// flushes what is posted, and may be told here as `lost`, too.
  std::function<void(ConnectionId, rpma::ConnectionEvent)> on_event;
};

/// An attached connection. Dropping the handle does not detach it.
class ConnectionHandle {
 public:
  ~ConnectionHandle();
  [[nodiscard]] ConnectionId id() const noexcept;
  /// Until detached. Stops the program after that, and for a queue pair attached by number.
  [[nodiscard]] rpma::Connection& connection() const noexcept;
  [[nodiscard]] std::uint32_t poller() const noexcept;
  /// ConnectionOptions::context, e.g. what on_request chose for the one that on_connected gets.
  [[nodiscard]] void* context() const noexcept;
  /// True from the first closed / lost / failed completion / detach on.
  [[nodiscard]] bool down() const noexcept;
  /// The drain of C6: disconnect, flushed marker, LAST_WQE with an SRQ, the SRQ's CQ polled to
  /// empty, every handler call returned, then the queue pair is destroyed. At the deadline it is
  /// quarantined. Refused from inside a handler, like SourceHandle::detach.
  [[nodiscard]] Result<DetachReport> detach(std::chrono::nanoseconds deadline);
  void detach_async(std::chrono::nanoseconds deadline, DetachCallback done);

 private:
  friend class Dispatcher;
  friend class detail::DispatcherImpl;
  ConnectionHandle(std::shared_ptr<detail::DispatcherImpl> dispatcher,
                   std::shared_ptr<detail::ConnectionState> state);
  std::shared_ptr<detail::DispatcherImpl> dispatcher_;
  std::shared_ptr<detail::ConnectionState> state_;
};

/// While one lives, completions of unknown queue pairs on that source wait instead of being orphans
/// (C6): take it before accepting, drop it after attach_connection.
class SetupTicket {
 public:
  SetupTicket() noexcept = default;
  SetupTicket(SetupTicket&& other) noexcept
      : dispatcher_(std::move(other.dispatcher_)), state_(std::move(other.state_)) {}
  SetupTicket& operator=(SetupTicket&& other) noexcept;
  ~SetupTicket();

 private:
  friend class Dispatcher;
  friend class detail::DispatcherImpl;
  SetupTicket(std::weak_ptr<detail::DispatcherImpl> dispatcher,
              std::shared_ptr<detail::SourceState> state) noexcept;
  std::weak_ptr<detail::DispatcherImpl> dispatcher_;  ///< weak: a ticket may outlive it
  std::shared_ptr<detail::SourceState> state_;
};

struct ListenOptions {
  rpma::ConnectionConfig config;
  /// Decides on an incoming request: the options to attach it with, or nullopt to reject. On the
  /// set-up thread.
  std::function<std::optional<ConnectionOptions>(std::span<const std::byte> private_data)>
      on_request;
  /// What to answer with (at most 56 bytes).
  std::vector<std::byte> reply;
  /// Established and attached; its receives may have been handled already. On the set-up thread.
  std::function<void(std::shared_ptr<ConnectionHandle>)> on_connected;
  /// A request that could not be completed.
  std::function<void(const Status&)> on_failed;
  std::chrono::milliseconds establish_timeout{2000};
};

/// A poller or worker driven by the host's own thread (C8). One thread at a time: the first caller
/// owns it until `release_thread()`; a call from another thread stops the program (R6).
class Runnable {
 public:
  virtual ~Runnable() = default;
  /// One round; returns the completions and commands it dealt with.
  virtual std::size_t run_once() = 0;
  /// Readable when there may be work after prepare_to_wait() said yes.
  [[nodiscard]] virtual int wait_fd() = 0;
  /// False: there is work (or something that cannot be waited for), run on. True: sleep on
  /// wait_fd(), then call finish_wait().
  [[nodiscard]] virtual bool prepare_to_wait() = 0;
  virtual void finish_wait() = 0;
  /// Lets another thread take over.
  virtual void release_thread() = 0;
};

/// Takes completions off their queues and gets them to the right worker. See dispatch/README.md.
///
/// Thread-safety: every function from any thread unless said otherwise; none on a data path.
class Dispatcher {
 public:
  /// Starts the threads (Drive::own_threads), pinned as configured, idle and asleep. Fails with a
  /// clear message when the config is impossible or the descriptor limit is too low for
  /// connections_max.
  static Result<std::unique_ptr<Dispatcher>> start(DispatcherConfig config = {},
                                                   DispatcherCallbacks callbacks = {});
  /// The same for a configuration file's content, placed on this machine; plan() tells where.
  /// (A template so that a list in braces goes on meaning a DispatcherConfig.)
  template <std::same_as<topology::Config> C>
  static Result<std::unique_ptr<Dispatcher>> start(const C& config,
                                                   DispatcherCallbacks callbacks = {}) {
    return start_config(config, std::move(callbacks));
  }
  /// The same for a plan, made here or elsewhere. Fails when a thread cannot be where it says.
  template <std::same_as<topology::Plan> P>
  static Result<std::unique_ptr<Dispatcher>> start(const P& plan,
                                                   DispatcherCallbacks callbacks = {}) {
    return start_plan(plan, std::move(callbacks));
  }
  /// stop() with a deadline of 5 s.
  ~Dispatcher();

  /// Attaches a source: from now on one poller owns it. Asynchronous for the poller, ordered before
  /// later commands. Fails with already_owned (W11), invalid_argument, resource_exhausted.
  [[nodiscard]] Result<std::shared_ptr<SourceHandle>> attach(
      std::shared_ptr<CompletionSource> source, AttachOptions options, Handler handler);

  /// Attaches an established (or accepted) connection: its own CQs, its qp_num at the receive
  /// source, its events.
  [[nodiscard]] Result<std::shared_ptr<ConnectionHandle>> attach_connection(
      std::shared_ptr<rpma::Connection> connection, ConnectionOptions options);

  /// Names a queue pair that was not made by this library: completions of `qp_num` on
  /// options.receive_source get a lane of their own. Detaching it neither disconnects nor destroys.
  [[nodiscard]] Result<std::shared_ptr<ConnectionHandle>> attach_queue_pair(
      std::uint32_t qp_num, ConnectionOptions options);

  /// See SetupTicket.
  [[nodiscard]] SetupTicket expect_connection(SourceHandle& receive_source);

  /// Accepts connections on a set-up thread of their own until the listener is closed; early
  /// completions are held meanwhile.
  class Listener {
   public:
    virtual ~Listener() = default;  ///< closes
    virtual void close() = 0;
  };
  [[nodiscard]] Result<std::unique_ptr<Listener>> listen(std::unique_ptr<rpma::Endpoint> endpoint,
                                                         ListenOptions options);

  /// Connects and attaches; blocks up to `timeout` (and the config's resolution timeouts).
  [[nodiscard]] Result<std::shared_ptr<ConnectionHandle>> connect(
      std::shared_ptr<rpma::Peer> peer, const std::string& address, const std::string& port,
      const rpma::ConnectionConfig& config, std::span<const std::byte> private_data,
      ConnectionOptions options,
      std::chrono::milliseconds timeout = std::chrono::milliseconds{2000});

  /// Reads async events of a device (E5). attach_connection does this by itself for its device.
  [[nodiscard]] Status watch_device(ibv_context* context);

  [[nodiscard]] DispatcherCounters counters() const;

  /// The plan that it was started with; nullptr without one.
  [[nodiscard]] const topology::Plan* plan() const noexcept;
  /// What differs from what was asked for, a sentence each: memory on another node, no huge pages.
  [[nodiscard]] std::vector<std::string> notices() const;
  /// Where a poller's batch buffers lie.
  [[nodiscard]] std::span<const std::byte> batch_memory(std::uint32_t poller) const;
  /// Which of a device's completion vectors (ibv_context::num_comp_vectors of them) a poller's
  /// raw-verbs CQs go on, for verbs::CqGroupConfig: dealt out in turn over the pollers of its
  /// group, so that no CPU takes the interrupts of all (R4). With fewer vectors than pollers some
  /// share one. librpma's CQs are all on vector 0. Fails when the configuration names one that the
  /// device has not.
  [[nodiscard]] Result<std::vector<int>> completion_vectors(std::uint32_t poller,
                                                            int device_vectors) const;
  /// An arena for parallel algorithms inside handlers of a pool: its threads stay on the CPUs of
  /// the workers that serve `poller` (BatchInfo::poller). Made at the first call, valid as long as
  /// the dispatcher; a handler leaves no work in it. Refused for a pool whose workers are not
  /// pinned, and with Drive::host.
  [[nodiscard]] Result<topology::BoundArena*> arena(const std::string& pool,
                                                    std::uint32_t poller = 0);

  /// A shared receive queue of the configuration, made and attached.
  struct ReceiveQueue {
    /// For ConnectionConfig::srq; a listener serves one queue: one listener for each.
    std::shared_ptr<rpma::SharedReceiveQueue> queue;
    ReceivePool* buffers = nullptr;        ///< on the node of its poller
    std::shared_ptr<SourceHandle> source;  ///< for ConnectionOptions::receive_source
    std::uint32_t poller = 0;
  };
  /// Makes and attaches what [srq.NAME] says: one for each poller of its group, or a single one,
  /// buffers posted. All share the handler; BatchInfo::receive_pool tells whose buffers. When one
  /// fails, those made before it are detached again.
  [[nodiscard]] Result<std::vector<ReceiveQueue>> attach_receive_queues(
      const std::string& name, const std::shared_ptr<rpma::Peer>& peer, Handler handler,
      void* context = nullptr);

  /// Detaches everything, ends the threads. Returns what could not be ended in time. Idempotent.
  /// From inside a handler it is refused.
  [[nodiscard]] Status stop(std::chrono::nanoseconds deadline);

  // --- host-driven (Drive::host) ---------------------------------------------------------------
  [[nodiscard]] std::uint32_t poller_count() const noexcept;
  [[nodiscard]] std::uint32_t worker_count() const noexcept;  ///< of all pools, in their order
  [[nodiscard]] Runnable& poller(std::uint32_t index);
  [[nodiscard]] Runnable& worker(std::uint32_t index);
  [[nodiscard]] Runnable& control();

 private:
  explicit Dispatcher(std::shared_ptr<detail::DispatcherImpl> impl) noexcept;
  static Result<std::unique_ptr<Dispatcher>> start_config(const topology::Config& config,
                                                          DispatcherCallbacks callbacks);
  static Result<std::unique_ptr<Dispatcher>> start_plan(const topology::Plan& plan,
                                                        DispatcherCallbacks callbacks);
  std::shared_ptr<detail::DispatcherImpl> impl_;
};

}  // namespace sluice
