// SPDX-License-Identifier: BSD-3-Clause
#include "dispatcher_impl.hpp"

#include <algorithm>
#include <cstddef>
#include <future>
#include <system_error>
#include <utility>

#include "inside.hpp"
#include "sluice/core/rpma/sources.hpp"
#include "sluice/topology/cpus.hpp"

namespace sluice::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// How long a full mailbox is tried again before a set-up gives up.
constexpr std::chrono::seconds kPostPatience{1};
/// Longer deadlines are cut to this, so that no clock overflows.
constexpr std::chrono::hours kLongestDetach{24};
/// What a control held up in a callback is given beyond a detach's own deadline.
constexpr std::chrono::seconds kControlPatience{5};
/// How often a stop looks whether what it waits for has happened.
constexpr std::chrono::milliseconds kStopLook{1};
/// Empty rounds after which a busy poller lets others have the CPU, where threads outnumber CPUs.
constexpr std::uint32_t kYieldAfterRounds = 64;

std::size_t note_capacity(const DispatcherConfig& config, std::uint32_t connections_max) {
  // Each source tells at most two faults, each connection one failure.
  return std::size_t{2} * config.pollers.count * config.pollers.sources_max + connections_max;
}

}  // namespace

DispatcherImpl::DispatcherImpl(DispatcherConfig config, DispatcherCallbacks callbacks,
                               std::uint32_t connections_max)
    : config_(std::move(config)),
      callbacks_(std::move(callbacks)),
      registry_(config_.pollers.count, connections_max, config_.pollers.sources_max),
      port_(note_capacity(config_, connections_max)),
      connections_max_(connections_max) {
  // A lane for each connection, and one for each source of a single connection.
  const std::uint32_t lanes_max =
      connections_max + config_.pollers.count * config_.pollers.sources_max;
  std::vector<Pool*> pools;
  for (const PoolConfig& pool : config_.pools) {
    pools_.push_back(std::make_unique<Pool>(pool, static_cast<std::uint32_t>(pools_.size()),
                                            config_.pollers.count, config_.pollers.batch_count,
                                            lanes_max));
    pools.push_back(pools_.back().get());
  }
  for (std::uint32_t i = 0; i < config_.pollers.count; ++i) {
    pollers_.push_back(std::make_unique<Poller>(i, config_, pools, port_, callbacks_));
  }
  for (const auto& pool : pools_) {
    for (std::uint32_t i = 0; i < pool->config.workers; ++i) {
      workers_.push_back(std::make_unique<Worker>(*pool, i, host_driven(), port_));
    }
  }
  control_ = std::make_unique<Control>(config_, callbacks_, port_, registry_, pollers_, workers_);
}

DispatcherImpl::~DispatcherImpl() = default;

Status DispatcherImpl::open() {
  for (const auto& poller : pollers_) SLUICE_RETURN_IF_ERROR(poller->open());
  return control_->open();
}

// --- threads
// ---------------------------------------------------------------------------------------

template <typename Body>
Status DispatcherImpl::start_thread(std::string name, Body body) {
  auto thread = std::make_unique<Thread>();
  thread->name = std::move(name);
  Thread* const self = thread.get();
  const std::scoped_lock lock(threads_mutex_);
  threads_.push_back(std::move(thread));
  try {
    self->thread =
        std::thread([this, keep = shared_from_this(), self, body = std::move(body)]() mutable {
          topology::name_current_thread(self->name);
          body();
          const std::scoped_lock ended(threads_mutex_);
          self->ended = true;
          thread_ended_.notify_all();
        });
  } catch (const std::system_error& error) {
    const Status status(StatusCode::resource_exhausted,
                        "the thread " + self->name + " (of " + std::to_string(threads_.size()) +
                            " so far) could not be started",
                        error.code().value());
    threads_.pop_back();
    return status;
  }
  return {};
}

void DispatcherImpl::bind(const std::vector<unsigned>& cpus, std::uint32_t index) {
  const Status status =
      cpus.empty() ? Status{} : topology::bind_current_thread(cpus[index % cpus.size()]);
  const std::scoped_lock lock(threads_mutex_);
  if (!status.ok() && bind_status_.ok()) bind_status_ = status;
  ++threads_ready_;
  thread_ended_.notify_all();
}

Status DispatcherImpl::start_threads() {
  const auto allowed = topology::allowed_cpus();
  if (!allowed) return allowed.status();
  const auto check = [&](const std::vector<unsigned>& cpus, const std::string& whose) -> Status {
    for (const unsigned cpu : cpus) {
      if (std::binary_search(allowed->begin(), allowed->end(), cpu)) continue;
      std::string list;
      for (const unsigned one : *allowed) list += (list.empty() ? "" : ",") + std::to_string(one);
      return {StatusCode::invalid_argument, whose + " names CPU " + std::to_string(cpu) +
                                                ", where this process may not run; it may on " +
                                                list};
    }
    return {};
  };
  SLUICE_RETURN_IF_ERROR(check(config_.pollers.cpus, "pollers.cpus"));
  for (const auto& pool : pools_) {
    SLUICE_RETURN_IF_ERROR(check(pool->config.cpus, "cpus of pool '" + pool->config.name + "'"));
  }
  // A busy poller that shares its CPU would starve the worker that has the work (S6).
  yield_when_busy_ =
      config_.pollers.wait == WaitMode::busy && pollers_.size() + workers_.size() > allowed->size();

  for (std::uint32_t i = 0; i < pollers_.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(start_thread("sluice-poll-" + std::to_string(i),
                                        [this, i] { run_poller(*pollers_[i], i); }));
  }
  std::uint32_t worker = 0;
  for (const auto& pool : pools_) {
    for (std::uint32_t i = 0; i < pool->config.workers; ++i, ++worker) {
      SLUICE_RETURN_IF_ERROR(start_thread(
          pool->config.name.substr(0, 11) + "-" + std::to_string(i),
          [this, worker, i, &pool = *pool] { run_worker(*workers_[worker], pool, i); }));
    }
  }
  SLUICE_RETURN_IF_ERROR(start_thread("sluice-control", [this] { run_control(); }));

  std::unique_lock lock(threads_mutex_);
  thread_ended_.wait(lock, [this] { return threads_ready_ == threads_.size(); });
  return bind_status_;
}

void DispatcherImpl::run_poller(Poller& poller, std::uint32_t index) {
  bind(config_.pollers.cpus, index);
  std::uint32_t idle = 0;
  while (!stopping()) {
    if (poller.run_once() > 0) {
      idle = 0;
    } else if (poller.prepare_to_wait()) {
      // Again: run_once() may have swallowed the poke of a stop that came after the look above.
      if (!stopping()) poller.block();
      poller.finish_wait();
    } else if (yield_when_busy_ && ++idle % kYieldAfterRounds == 0) {
      std::this_thread::yield();
    } else {
      cpu_relax();
    }
  }
}

void DispatcherImpl::run_worker(Worker& worker, Pool& pool, std::uint32_t index) {
  bind(pool.config.cpus, index);
  std::uint32_t searches = 0;
  while (!pool.parking.stopping()) {
    if (worker.run_once() > 0) {
      searches = 0;
    } else if (searches++ < pool.config.spin_rounds) {
      cpu_relax();
    } else if (worker.prepare_to_wait()) {
      worker.park();
      worker.finish_wait();
      searches = 0;
    }
  }
}

void DispatcherImpl::run_control() {
  bind({}, 0);
  while (!stopping()) {
    if (control_->run_once() > 0) continue;
    if (!control_->prepare_to_wait()) continue;
    if (!stopping()) control_->block();  // again: as in run_poller()
    control_->finish_wait();
  }
}

// --- attaching
// -------------------------------------------------------------------------------------

Result<Pool*> DispatcherImpl::find_pool(const std::string& name) const {
  if (name.empty()) return pools_.front().get();
  std::string known;
  for (const auto& pool : pools_) {
    if (pool->config.name == name) return pool.get();
    known += (known.empty() ? "" : ", ") + pool->config.name;
  }
  return Status(StatusCode::invalid_argument,
                "there is no pool '" + name + "'; there are: " + known);
}

Status DispatcherImpl::post(std::uint32_t poller, const PollerCommand& command) {
  const auto deadline = Clock::now() + kPostPatience;
  while (!pollers_[poller]->post(command)) {
    if (host_driven() || Clock::now() >= deadline) {
      return {StatusCode::resource_exhausted,
              "the mailbox of poller " + std::to_string(poller) + " is full; is it being run?"};
    }
    std::this_thread::yield();
  }
  return {};
}

Result<std::shared_ptr<SourceState>> DispatcherImpl::make_source(
    std::shared_ptr<CompletionSource> source, AttachOptions options, Handler handler, Pool* pool,
    std::uint32_t poller) {
  auto ownership = source->take_ownership("poller " + std::to_string(poller));
  if (!ownership) return ownership.status();
  auto state = std::make_shared<SourceState>(registry_.next_source_id(), std::move(source),
                                             std::move(options), std::move(handler));
  state->ownership = std::move(*ownership);
  state->pool = pool;
  state->poller = pollers_[poller].get();
  state->poller_index = poller;
  return state;
}

Result<std::shared_ptr<SourceHandle>> DispatcherImpl::attach(
    std::shared_ptr<CompletionSource> source, AttachOptions options, Handler handler) {
  if (source == nullptr || !handler) {
    return Status(StatusCode::invalid_argument, "attach needs a source and a handler");
  }
  const std::shared_lock attaching(attaching_);
  if (refusing_.load(std::memory_order_relaxed)) {
    return Status(StatusCode::cancelled,
                  "the dispatcher is stopping: nothing more can be attached");
  }
  auto pool = find_pool(options.pool);
  if (!pool) return pool.status();
  const auto poller = registry_.choose_poller(options.poller, false, 1);
  if (!poller) {
    return Status(StatusCode::resource_exhausted,
                  "no poller can take the source '" + std::string(source->name()) +
                      "': each holds pollers.sources_max already, or there is no poller " +
                      std::to_string(options.poller));
  }
  auto made =
      make_source(std::move(source), std::move(options), std::move(handler), *pool, *poller);
  if (!made) {
    registry_.leave_poller(*poller, false, 1);
    return made.status();
  }
  const std::shared_ptr<SourceState> state = std::move(*made);
  if (state->options.order == Order::per_connection) {
    if (state->options.single_connection) {
      state->own_connection = std::make_unique<ConnectionState>();
      state->connection = state->own_connection.get();
    } else {
      state->queue_pairs = std::make_unique<QueuePairTable>(connections_max_);
      const ReceivePool* const receives = state->options.receive_pool;
      state->early.reserve(receives != nullptr ? receives->depth() : state->source->capacity());
    }
  }
  registry_.add(state);
  if (Status status = post(*poller, {PollerCommand::Kind::add_source, state.get(), nullptr});
      !status.ok()) {
    registry_.remove(state->id);
    registry_.leave_poller(*poller, false, 1);
    return status;
  }
  return std::shared_ptr<SourceHandle>(new SourceHandle(shared_from_this(), state));
}

Status DispatcherImpl::check_receive_source(const ConnectionOptions& options,
                                            const Pool* pool) const {
  if (options.receive_source == nullptr) return {};
  const SourceState& source = *options.receive_source->state_;
  if (source.queue_pairs != nullptr && source.pool == pool) return {};
  return {StatusCode::invalid_argument,
          "receive_source must be attached per_connection, to the connection's own pool '" +
              pool->config.name + "'"};
}

Result<std::shared_ptr<ConnectionHandle>> DispatcherImpl::attach_connection(
    std::shared_ptr<rpma::Connection> connection, ConnectionOptions options,
    ConnectionReservation reservation) {
  if (connection == nullptr || !options.handler) {
    return Status(StatusCode::invalid_argument,
                  "attach_connection needs a connection and a handler");
  }
  auto state = std::make_shared<ConnectionState>();
  state->connection = std::move(connection);
  state->qp_num = state->connection->qp_num();
  state->device = state->connection->peer()->context();
  return enrol(std::move(state), options, std::move(reservation));
}

Result<std::shared_ptr<ConnectionHandle>> DispatcherImpl::attach_queue_pair(
    std::uint32_t qp_num, ConnectionOptions options) {
  if (options.receive_source == nullptr) {
    return Status(StatusCode::invalid_argument,
                  "attach_queue_pair needs the receive_source on which the queue pair completes");
  }
  auto state = std::make_shared<ConnectionState>();
  state->qp_num = qp_num;
  return enrol(std::move(state), options, {});
}

/// The connection's own CQs as sources of its lane, not yet given to the poller.
Status DispatcherImpl::add_own_sources(ConnectionState& state, ConnectionOptions& options) {
  rpma::Connection& connection = *state.connection;
  std::vector<std::shared_ptr<CompletionSource>> own;
  if (auto pair = connection.shared_channel()) own.push_back(std::move(pair));
  if (auto cq = connection.main_cq()) own.push_back(std::move(cq));
  const std::size_t with_marker = own.size();
  if (auto cq = connection.receive_cq()) own.push_back(std::move(cq));
  const auto handler = std::make_shared<Handler>(std::move(options.handler));
  for (std::size_t i = 0; i < own.size(); ++i) {
    AttachOptions attach;
    attach.order = options.order;
    attach.context = options.context;
    attach.receive_pool = connection.receive_pool();
    auto made = make_source(
        own[i], attach,
        [handler](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
          (*handler)(batch, info);
        },
        state.pool, state.poller_index);
    if (!made) return made.status();
    (*made)->connection = &state;
    if (i < with_marker) (*made)->drain_marker = connection.drain_marker_id();
    state.own_sources.push_back(std::move(*made));
  }
  return {};
}

Result<std::shared_ptr<ConnectionHandle>> DispatcherImpl::enrol(
    std::shared_ptr<ConnectionState> state, ConnectionOptions& options,
    ConnectionReservation reservation) {
  const std::uint32_t own_sources_max = state->connection != nullptr ? 2 : 0;
  const std::shared_lock attaching(attaching_);
  if (refusing_.load(std::memory_order_relaxed)) {
    return Status(StatusCode::cancelled,
                  "the dispatcher is stopping: nothing more can be attached");
  }
  auto pool = find_pool(options.pool);
  if (!pool) return pool.status();
  SLUICE_RETURN_IF_ERROR(check_receive_source(options, *pool));
  const auto poller = registry_.choose_poller(options.poller, true, own_sources_max);
  if (!poller) {
    return Status(StatusCode::resource_exhausted,
                  "no poller can take one more connection: each holds pollers.sources_max sources "
                  "already, or there is no poller " +
                      std::to_string(options.poller));
  }
  state->pool = *pool;
  state->poller_index = *poller;
  state->context = options.context;
  state->on_event = std::move(options.on_event);
  if (options.receive_source != nullptr) state->receive_source = options.receive_source->state_;
  Status status;
  bool joined = false;
  if (registry_.add(state, std::move(reservation)) == ConnectionId::none) {
    status =
        Status(StatusCode::does_not_fit, "connections_max (" + std::to_string(connections_max_) +
                                             ") connections are attached already");
  } else if (state->receive_source != nullptr &&
             !(joined = registry_.join_source(*state->receive_source))) {
    status = Status(StatusCode::cancelled, "the receive_source is being detached");
  } else if (state->connection != nullptr) {
    status = add_own_sources(*state, options);
    if (status.ok()) status = control_->watch_device(state->device);
    if (status.ok()) status = control_->watch(state);
  }
  const auto own = static_cast<std::uint32_t>(state->own_sources.size());
  registry_.leave_poller(*poller, false, own_sources_max - own);
  if (!status.ok()) {
    registry_.leave_poller(*poller, true, own);
    if (joined) {
      state->receive_source->attached_connections.fetch_sub(1, std::memory_order_seq_cst);
      port_.poke();  // its drain may wait for that
    }
    if (state->id != ConnectionId::none) registry_.remove(state->id);
    return status;
  }
  auto handle = std::shared_ptr<ConnectionHandle>(new ConnectionHandle(shared_from_this(), state));
  if (state->receive_source != nullptr) {
    SourceState* const source = state->receive_source.get();
    source->pending_setups.fetch_add(1, std::memory_order_seq_cst);  // ends in add_connection()
    status = post(source->poller_index, {PollerCommand::Kind::add_connection, source, state.get()});
    if (!status.ok()) source->pending_setups.fetch_sub(1, std::memory_order_seq_cst);
  }
  for (const auto& source : state->own_sources) {
    registry_.add(source);
    if (status.ok()) {
      status = post(*poller, {PollerCommand::Kind::add_source, source.get(), nullptr});
    }
  }
  if (!status.ok()) {
    detach_async(state, std::chrono::nanoseconds{0}, {});  // what was posted may still be executed
    return status;
  }
  return handle;
}

SetupTicket DispatcherImpl::expect_connection(SourceHandle& receive_source) {
  return SetupTicket(shared_from_this(), receive_source.state_);
}

// --- detaching
// -------------------------------------------------------------------------------------

void DispatcherImpl::detach_async(const std::shared_ptr<SourceState>& source,
                                  std::chrono::nanoseconds deadline, DetachCallback done) {
  if (!registry_.begin_detach(*source, done)) return;
  control_->add(Drain(source, control_->now(), deadline, std::move(done)));
}

void DispatcherImpl::detach_async(const std::shared_ptr<ConnectionState>& connection,
                                  std::chrono::nanoseconds deadline, DetachCallback done) {
  if (!registry_.begin_detach(*connection, done)) return;
  control_->add(Drain(connection, control_->now(), deadline, std::move(done)));
}

template <typename State>
Result<DetachReport> DispatcherImpl::detach(const std::shared_ptr<State>& state,
                                            std::chrono::nanoseconds deadline) {
  if (InsideRound::active()) {
    return Status(StatusCode::invalid_argument,
                  "detach was called from inside a handler or callback, where it would wait for "
                  "itself; use detach_async");
  }
  if (host_driven()) {
    return Status(StatusCode::invalid_argument,
                  "detach blocks, and a host-driven dispatcher only moves when it is run; use "
                  "detach_async and go on calling run_once()");
  }
  if constexpr (std::is_same_v<State, SourceState>) {
    if (const auto left = state->attached_connections.load(std::memory_order_relaxed); left > 0) {
      return Status(StatusCode::invalid_argument,
                    "the source '" + std::string(state->source->name()) + "' still serves " +
                        std::to_string(left) + " attached connections; detach them first");
    }
  }
  auto promise = std::make_shared<std::promise<DetachReport>>();
  auto report = promise->get_future();
  detach_async(state, deadline, [promise](const DetachReport& done) { promise->set_value(done); });
  // The drain ends by itself at its deadline; only a control held up in a callback can be later.
  const auto patience =
      std::min<std::chrono::nanoseconds>(deadline, kLongestDetach) + kControlPatience;
  if (report.wait_for(patience) == std::future_status::ready) return report.get();
  return Status(StatusCode::timed_out,
                "a detach got no answer from the control; is one of the callbacks blocking it?");
}
template Result<DetachReport> DispatcherImpl::detach(const std::shared_ptr<SourceState>&,
                                                     std::chrono::nanoseconds);
template Result<DetachReport> DispatcherImpl::detach(const std::shared_ptr<ConnectionState>&,
                                                     std::chrono::nanoseconds);

// --- listening
// -------------------------------------------------------------------------------------

namespace {

class ListenerHandle final : public Dispatcher::Listener {
 public:
  ListenerHandle(std::shared_ptr<DispatcherImpl> dispatcher, std::shared_ptr<ListenerState> state)
      : dispatcher_(std::move(dispatcher)), state_(std::move(state)) {}
  ~ListenerHandle() override { close(); }
  void close() override {
    state_->close();
    dispatcher_->join(*state_);
  }

 private:
  std::shared_ptr<DispatcherImpl> dispatcher_;
  std::shared_ptr<ListenerState> state_;
};

}  // namespace

Result<std::unique_ptr<Dispatcher::Listener>> DispatcherImpl::listen(
    std::unique_ptr<rpma::Endpoint> endpoint, ListenOptions options) {
  if (endpoint == nullptr || !options.on_request) {
    return Status(StatusCode::invalid_argument, "listen needs an endpoint and on_request");
  }
  if (refusing_.load(std::memory_order_relaxed)) {
    return Status(StatusCode::cancelled, "the dispatcher is stopping: it accepts no connections");
  }
  // Now, not for each request: none could ever be accepted.
  if (const auto sizes = options.config.sizes(); !sizes)
    return sizes.status().with_context("listen");
  auto listener = std::make_shared<ListenerState>(*this, std::move(endpoint), std::move(options));
  SLUICE_RETURN_IF_ERROR(listener->open());
  if (host_driven()) {
    SLUICE_RETURN_IF_ERROR(control_->add(listener));
  } else {
    const std::scoped_lock lock(listeners_mutex_);
    listener->thread = std::thread([listener, keep = shared_from_this()] { listener->run(); });
    listeners_.push_back(listener);
  }
  return std::unique_ptr<Dispatcher::Listener>(
      std::make_unique<ListenerHandle>(shared_from_this(), std::move(listener)));
}

/// Waits for a closed listener's thread. From that thread itself (a callback closed it) there is
/// nothing to wait for.
void DispatcherImpl::join(ListenerState& listener) {
  std::thread thread;
  {
    const std::scoped_lock lock(listeners_mutex_);
    thread = std::move(listener.thread);
    std::erase_if(listeners_, [&](const auto& one) { return one.get() == &listener; });
  }
  if (!thread.joinable()) return;
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();
  } else {
    thread.join();
  }
}

void DispatcherImpl::close_listeners() {
  std::vector<std::shared_ptr<ListenerState>> listeners;
  {
    const std::scoped_lock lock(listeners_mutex_);
    listeners = listeners_;
  }
  for (const auto& listener : listeners) {
    listener->close();
    join(*listener);
  }
}

// --- stopping
// --------------------------------------------------------------------------------------

Status DispatcherImpl::stop(std::chrono::nanoseconds deadline) {
  if (InsideRound::active()) {
    return {StatusCode::invalid_argument,
            "stop was called from inside a handler or callback, where it would wait for itself"};
  }
  const std::scoped_lock once(stop_mutex_);
  if (stopped_) return *stopped_;
  const auto end = Clock::now() + std::min<std::chrono::nanoseconds>(deadline, kLongestDetach);
  refusing_.store(true, std::memory_order_relaxed);
  { const std::unique_lock attaching(attaching_); }  // what was let in is in the registry by now
  close_listeners();
  control_->end_drains_by(control_->now() +
                          std::min<std::chrono::nanoseconds>(deadline, kLongestDetach));
  std::string left = drain_all(end);
  const std::string threads = end_threads(end);
  if (!threads.empty()) left += (left.empty() ? "" : "; ") + threads;
  stopped_ = left.empty() ? Status{}
                          : Status(StatusCode::timed_out,
                                   "the dispatcher was stopped, but not cleanly: " + left);
  return *stopped_;
}

/// Connections first, since their drains need the sources. Returns what was not clean.
std::string DispatcherImpl::drain_all(Clock::time_point deadline) {
  struct Tally {
    std::mutex mutex;
    std::uint32_t not_clean = 0;
    std::string first;
  };
  const auto tally = std::make_shared<Tally>();
  const DetachCallback count = [tally](const DetachReport& report) {
    if (report.clean) return;
    const std::scoped_lock lock(tally->mutex);
    if (tally->not_clean++ == 0) tally->first = report.to_string();
  };
  const auto left = [&] { return std::max(Clock::duration::zero(), deadline - Clock::now()); };
  // Each drain ends by itself at its deadline; the margin is for a control held up in a callback.
  constexpr std::chrono::milliseconds kMargin{500};
  const auto wait_until = [&](const auto& done) {
    while (!done() && Clock::now() < deadline + kMargin) {
      if (!host_driven()) {
        std::this_thread::sleep_for(kStopLook);
      } else {
        drive_all_once();
      }
    }
  };
  for (const auto& connection : registry_.connections()) detach_async(connection, left(), count);
  wait_until([this] { return registry_.connections().empty(); });
  for (const auto& source : registry_.sources()) detach_async(source, left(), count);
  wait_until([this] { return registry_.sources().empty(); });
  // Of a detach that was begun before, with a deadline of its own beyond this one.
  const std::size_t remaining = registry_.connections().size() + registry_.sources().size();
  const std::scoped_lock lock(tally->mutex);
  std::string text;
  if (tally->not_clean > 0) {
    text = std::to_string(tally->not_clean) + " detached with remains (the first: " + tally->first +
           ")";
  }
  if (remaining > 0) {
    text += (text.empty() ? "" : "; ") + std::to_string(remaining) + " still being detached";
  }
  return text;
}

void DispatcherImpl::drive_all_once() {
  for (const auto& poller : pollers_) poller->run_once();
  for (const auto& worker : workers_) worker->run_once();
  control_->run_once();
}

/// Returns the names of the threads that could not be ended: each keeps this object alive.
std::string DispatcherImpl::end_threads(Clock::time_point deadline) {
  stopping_.store(true, std::memory_order_release);  // (2) release: pairs with (1)
  for (const auto& poller : pollers_) poller->poke();
  for (const auto& pool : pools_) pool->parking.stop();
  control_->poke();
  // Even a deadline that has passed leaves them the time to see the flag.
  constexpr std::chrono::milliseconds kMargin{500};
  std::unique_lock lock(threads_mutex_);
  thread_ended_.wait_until(lock, deadline + kMargin, [this] {
    return std::all_of(threads_.begin(), threads_.end(),
                       [](const auto& one) { return one->ended; });
  });
  std::vector<std::thread> ended;
  std::string stuck;
  for (const auto& one : threads_) {
    if (one->ended) {
      ended.push_back(std::move(one->thread));
    } else {
      stuck += (stuck.empty() ? "threads still in a handler: " : ", ") + one->name;
      one->thread.detach();
    }
  }
  lock.unlock();
  for (std::thread& thread : ended) thread.join();
  return stuck;
}

DispatcherCounters DispatcherImpl::counters() const {
  DispatcherCounters out;
  const auto connections = registry_.connections_per_poller();
  for (std::size_t i = 0; i < pollers_.size(); ++i) {
    out.pollers.push_back(pollers_[i]->counters());
    out.pollers.back().connections = connections[i];
  }
  for (const auto& worker : workers_) out.workers.push_back(worker->counters());
  out.control = control_->counters();
  return out;
}

}  // namespace sluice::detail
