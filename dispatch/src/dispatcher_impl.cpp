// SPDX-License-Identifier: BSD-3-Clause
#include "dispatcher_impl.hpp"

#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <future>
#include <set>
#include <system_error>
#include <utility>

#include "inside.hpp"
#include "sluice/core/rpma/sources.hpp"
#include "sluice/topology/cpus.hpp"
#include "wake_probe.hpp"

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
/// What the detach of receive queues that were made in vain is given.
constexpr std::chrono::seconds kUndoDeadline{5};
/// How long a worker that was woken together with a poller looks out for what that one brings:
/// about as long as one thread may wake later than another.
constexpr std::int64_t kStandbyPatienceNs = 50'000;
/// Empty rounds after which a busy poller lets others have the CPU, where threads outnumber CPUs.
constexpr std::uint32_t kYieldAfterRounds = 64;

std::uint32_t sources_max(const DispatcherConfig& config) {
  std::uint32_t sum = 0;
  for (const PollerConfig& group : config.pollers) sum += group.count * group.sources_max;
  return sum;
}

std::size_t note_capacity(const DispatcherConfig& config, std::uint32_t connections_max) {
  // Each source tells at most two faults, each connection one failure.
  return std::size_t{2} * sources_max(config) + connections_max;
}

std::vector<std::uint32_t> of_each_poller(const DispatcherConfig& config,
                                          std::uint32_t PollerConfig::*value) {
  std::vector<std::uint32_t> values;
  for (const PollerConfig& group : config.pollers) {
    values.insert(values.end(), group.count, group.*value);
  }
  return values;
}

/// The value of the `index`th of a group: they go round.
template <typename Value>
std::optional<Value> round_robin(const std::vector<Value>& values, std::uint32_t index) {
  if (values.empty()) return std::nullopt;
  return values[index % values.size()];
}

template <typename Options>
Status check_key(const Options& options) {
  if (options.order != Order::per_key || options.key) return {};
  return {StatusCode::invalid_argument,
          "the order per_key needs a key function (AttachOptions::key, ConnectionOptions::key)"};
}

/// For a worker's search, on its own thread: what a wake costs is measured here, once.
WaitController worker_controller(bool shares_cpu) {
  constexpr int kProbes = 15;
  constexpr int kPatienceMs = 100;
  WaitController::Settings settings;
  settings.block_overhead_ns = 3'000;  // a futex call and what leads to it
  WaitController controller(settings);
  WakeProbe probe;
  if (probe.open()) {
    for (int i = 0; i < kProbes && probe.begin(); ++i) {
      pollfd timer{probe.fd(), POLLIN, 0};
      ::poll(&timer, 1, kPatienceMs);
      if (const auto latency = probe.finish()) controller.note_wake_latency(*latency);
    }
  }
  // Last: the limit of the first gap is what has been learnt by now.
  controller.cap_limit(shares_cpu ? WaitController::kSharedLimitMax : WaitController::kLimitMax);
  return controller;
}

}  // namespace

DispatcherImpl::DispatcherImpl(DispatcherConfig config, DispatcherCallbacks callbacks,
                               std::uint32_t connections_max)
    : config_(std::move(config)),
      callbacks_(std::move(callbacks)),
      registry_(connections_max, of_each_poller(config_, &PollerConfig::sources_max)),
      port_(note_capacity(config_, connections_max)),
      connections_max_(connections_max) {
  for (const PoolConfig& pool : config_.pools) {
    // A lane for each connection, for each source of a single connection, and the key lanes.
    const std::uint32_t shared_lanes = connections_max + pool.key_lanes;
    std::vector<Pool::Feed> feeds;
    for (const PollerConfig& group : config_.pollers) {
      feeds.insert(feeds.end(), group.count, {group.batch_count, shared_lanes + group.sources_max});
    }
    pools_.push_back(std::make_unique<Pool>(pool, static_cast<std::uint32_t>(pools_.size()), feeds,
                                            shared_lanes + sources_max(config_)));
  }
  for (const PollerConfig& group : config_.pollers) {
    for (std::uint32_t i = 0; i < group.count; ++i) {
      places_.push_back({&group, i, round_robin(group.nodes, i)});
    }
  }
  const auto batch_counts = of_each_poller(config_, &PollerConfig::batch_count);
  for (const auto& pool : pools_) {
    for (std::uint32_t i = 0; i < pool->config.workers; ++i) {
      workers_.push_back(std::make_unique<Worker>(*pool, i, host_driven(), port_, batch_counts));
    }
  }
  control_ = std::make_unique<Control>(config_, callbacks_, port_, registry_, pollers_, workers_);
}

DispatcherImpl::~DispatcherImpl() = default;

/// On the poller's node; where that has no memory for this process (cpuset.mems), anywhere, said
/// so.
Result<topology::NodeMemory> DispatcherImpl::memory_for(std::uint32_t poller, std::size_t bytes,
                                                        const std::string& whose) {
  topology::MemoryRequest request{
      .bytes = bytes,
      .node = config_.memory_node ? config_.memory_node : places_[poller].node,
      .huge_pages = config_.huge_pages};
  auto memory = topology::NodeMemory::allocate(request);
  std::vector<std::string> said;
  if (!memory && memory.status().code() == StatusCode::invalid_argument && request.node &&
      !config_.memory_node) {
    said.push_back(memory.status().message());
    request.node.reset();
    memory = topology::NodeMemory::allocate(request);
  }
  if (!memory) return memory.status().with_context(whose);
  said.insert(said.end(), memory->fallbacks().begin(), memory->fallbacks().end());
  const std::scoped_lock lock(threads_mutex_);
  for (const std::string& sentence : said) notices_.push_back(whose + ": " + sentence);
  return memory;
}

/// Their memory is bound and touched here, before any thread of them runs (C2).
Status DispatcherImpl::make_pollers(const std::vector<Pool*>& pools) {
  for (std::uint32_t i = 0; i < places_.size(); ++i) {
    const PollerPlace& place = places_[i];
    auto memory = memory_for(i, Poller::memory_size(*place.group),
                             "the batch buffers of poller " + std::to_string(i));
    if (!memory) return memory.status();
    pollers_.push_back(std::make_unique<Poller>(i, *place.group, std::move(*memory), pools, port_,
                                                callbacks_, config_.clock));
    for (const auto& worker : workers_) pollers_[i]->take_returns_from(worker->returns(i));
  }
  return {};
}

std::vector<std::string> DispatcherImpl::notices() const {
  const std::scoped_lock lock(threads_mutex_);
  return notices_;
}

/// An instance of a pool that no poller feeds is a typing error as a rule, but no reason to stop.
void DispatcherImpl::note_idle_instances() {
  const std::scoped_lock lock(threads_mutex_);
  for (const auto& pool : pools_) {
    const auto& node = pool->config.node;
    const auto feeds = [&](const PollerPlace& place) { return place.node == node; };
    if (!node || std::any_of(places_.begin(), places_.end(), feeds)) continue;
    notices_.push_back("pool '" + pool->config.name + "' on node " + std::to_string(*node) +
                       " has no poller there: its workers get no work");
  }
}

Status DispatcherImpl::open() {
  note_idle_instances();
  std::vector<Pool*> pools;
  for (const auto& pool : pools_) pools.push_back(pool.get());
  SLUICE_RETURN_IF_ERROR(make_pollers(pools));
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

void DispatcherImpl::bind(std::optional<unsigned> cpu) {
  const Status status = cpu ? topology::bind_current_thread(*cpu) : Status{};
  const std::scoped_lock lock(threads_mutex_);
  if (!status.ok() && bind_status_.ok()) bind_status_ = status;
  ++threads_ready_;
  thread_ended_.notify_all();
}

/// A CPU that is named may lie beyond the inherited affinity (an isolated one), never beyond the
/// cgroup.
Status DispatcherImpl::check_cpus() const {
  const auto allowed = topology::cgroup_cpus();
  if (!allowed) return allowed.status();
  const auto check = [&](const std::vector<unsigned>& cpus, const std::string& whose) -> Status {
    for (const unsigned cpu : cpus) {
      if (allowed->contains(cpu)) continue;
      return {StatusCode::invalid_argument, whose + " names CPU " + std::to_string(cpu) +
                                                ", where this process may not run; it may on " +
                                                allowed->to_string()};
    }
    return {};
  };
  for (const PollerConfig& group : config_.pollers) {
    SLUICE_RETURN_IF_ERROR(check(group.cpus, config_.pollers.size() == 1
                                                 ? "pollers.cpus"
                                                 : "pollers." + group.name + ".cpus"));
  }
  for (const auto& pool : pools_) {
    SLUICE_RETURN_IF_ERROR(check(pool->config.cpus, "cpus of pool '" + pool->config.name + "'"));
  }
  if (!config_.control_cpu) return {};
  return check({*config_.control_cpu}, "control_cpu");
}

/// A poller that polls on and on would starve the worker that has the work (S6).
DispatcherImpl::Crowding DispatcherImpl::crowding() const {
  Crowding found;
  auto& pinned = found.pinned;
  const auto pin = [&](const std::vector<unsigned>& cpus, std::uint32_t index) {
    if (const auto cpu = round_robin(cpus, index)) ++pinned[*cpu];
  };
  for (const PollerPlace& place : places_) pin(place.group->cpus, place.index);
  for (const auto& pool : pools_) {
    for (std::uint32_t i = 0; i < pool->config.workers; ++i) pin(pool->config.cpus, i);
  }
  std::size_t floating = pollers_.size() + workers_.size();
  for (const auto& [cpu, threads] : pinned) floating -= threads;
  if (config_.control_cpu) ++pinned[*config_.control_cpu];
  // Where threads that are not pinned can go, beside those that are.
  const auto allowed = topology::allowed_cpus();
  std::size_t room = 0;
  for (const unsigned cpu : allowed ? *allowed : std::vector<unsigned>{}) {
    room += pinned.contains(cpu) ? 0 : 1;
  }
  found.crowded = floating > room;
  return found;
}

bool DispatcherImpl::Crowding::shares(std::optional<unsigned> cpu) const {
  const auto there = cpu ? pinned.find(*cpu) : pinned.end();
  return crowded || (there != pinned.end() && there->second > 1);
}

Status DispatcherImpl::start_threads() {
  SLUICE_RETURN_IF_ERROR(check_cpus());
  crowding_ = crowding();
  std::vector<int> poller_fds;
  for (const auto& poller : pollers_) poller_fds.push_back(poller->wait_fd());
  std::size_t first = 0;
  for (const auto& pool : pools_) {
    // On a shared CPU a standby would keep the poller from running that it waits for.
    if (!crowding_.shares(round_robin(pool->config.cpus, 0))) {
      workers_[first]->stand_by_for(poller_fds);
    }
    first += pool->config.workers;
  }
  for (std::uint32_t i = 0; i < pollers_.size(); ++i) {  // before the first of them runs
    const PollerPlace& place = places_[i];
    if (!crowding_.shares(round_robin(place.group->cpus, place.index))) continue;
    pollers_[i]->give_way();
    if (place.group->wait == WaitMode::busy) yield_when_busy_ = true;
  }
  for (std::uint32_t i = 0; i < pollers_.size(); ++i) {
    const PollerPlace& place = places_[i];
    SLUICE_RETURN_IF_ERROR(start_thread(round_robin(place.group->thread_names, place.index)
                                            .value_or("sluice-poll-" + std::to_string(i)),
                                        [this, i] { run_poller(*pollers_[i], i); }));
  }
  std::uint32_t worker = 0;
  for (const auto& pool : pools_) {
    for (std::uint32_t i = 0; i < pool->config.workers; ++i, ++worker) {
      SLUICE_RETURN_IF_ERROR(start_thread(
          round_robin(pool->config.thread_names, i)
              .value_or(pool->config.name.substr(0, 11) + "-" + std::to_string(i)),
          [this, worker, i, &pool = *pool] { run_worker(*workers_[worker], pool, i); }));
    }
  }
  SLUICE_RETURN_IF_ERROR(start_thread("sluice-control", [this] { run_control(); }));

  std::unique_lock lock(threads_mutex_);
  thread_ended_.wait(lock, [this] { return threads_ready_ == threads_.size(); });
  return bind_status_;
}

void DispatcherImpl::run_poller(Poller& poller, std::uint32_t index) {
  bind(round_robin(places_[index].group->cpus, places_[index].index));
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
  const auto cpu = round_robin(pool.config.cpus, index);
  bind(cpu);
  std::optional<WaitController> controller;  // learns how long to search
  if (pool.config.spin == SpinMode::adaptive)
    controller.emplace(worker_controller(crowding_.shares(cpu)));
  std::uint32_t searches = 0;
  std::int64_t poller_due = 0;
  const auto searches_on = [&] {
    if (!controller) return searches++ < pool.config.spin_rounds || steady_ns() < poller_due;
    const std::int64_t now = steady_ns();
    return now < poller_due || controller->idle(now);
  };
  while (!pool.parking.stopping()) {
    if (worker.run_once() > 0) {
      searches = 0;
      poller_due = 0;
      if (controller && controller->is_idle()) controller->worked(steady_ns());
    } else if (searches_on()) {
      cpu_relax();
    } else if (worker.prepare_to_wait()) {
      if (controller) controller->blocked(steady_ns());
      worker.park();
      if (controller) controller->woke(steady_ns());
      worker.finish_wait();
      searches = 0;
      poller_due = worker.stood_by() ? steady_ns() + kStandbyPatienceNs : 0;
    }
  }
}

void DispatcherImpl::run_control() {
  bind(config_.control_cpu);
  while (!stopping()) {
    if (control_->run_once() > 0) continue;
    if (!control_->prepare_to_wait()) continue;
    if (!stopping()) control_->block();  // again: as in run_poller()
    control_->finish_wait();
  }
}

// --- attaching
// -------------------------------------------------------------------------------------

Result<Pool*> DispatcherImpl::find_pool(const std::string& name, std::uint32_t poller) const {
  const std::string& wanted = name.empty() ? pools_.front()->config.name : name;
  Pool* found = nullptr;
  std::set<std::string> names;
  for (const auto& pool : pools_) {
    const PoolConfig& config = pool->config;
    if (config.name == wanted) {
      if (!config.node || config.node == places_[poller].node) return pool.get();
      if (found == nullptr) found = pool.get();  // another node's is better than none
    }
    names.insert(config.name);
  }
  if (found != nullptr) return found;
  std::string known;
  for (const std::string& one : names) known += (known.empty() ? "" : ", ") + one;
  return Status(StatusCode::invalid_argument,
                "there is no pool '" + name + "'; there are: " + known);
}

template <typename Options>
Status DispatcherImpl::follow_route(Options& options) const {
  if (options.route.empty()) return {};
  std::string known;
  for (const RouteConfig& route : config_.routes) {
    if (route.name == options.route) {
      options.pool = route.pool;
      options.pollers = route.pollers;
      options.order = route.order;
      return {};
    }
    known += (known.empty() ? "" : ", ") + route.name;
  }
  return {StatusCode::invalid_argument, "there is no route '" + options.route +
                                            "'; there are: " + (known.empty() ? "none" : known)};
}

Result<std::vector<std::uint32_t>> DispatcherImpl::candidates(const std::string& group,
                                                              std::uint32_t wanted) const {
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < places_.size(); ++i) {
    if (wanted != kAnyPoller && wanted != i) continue;
    if (group.empty() || places_[i].group->name == group) found.push_back(i);
  }
  if (!found.empty()) return found;
  std::string known;
  for (const PollerConfig& one : config_.pollers) {
    known += (known.empty() ? "" : ", ") + one.name;
  }
  return Status(StatusCode::invalid_argument,
                (wanted == kAnyPoller ? "there are no pollers '" + group + "'"
                                      : "there is no poller " + std::to_string(wanted) +
                                            (group.empty() ? "" : " in '" + group + "'")) +
                    "; there are " + std::to_string(places_.size()) + ", in: " + known);
}

/// With a receive source in a pool that is split by node: those whose instance is the source's.
Result<std::vector<std::uint32_t>> DispatcherImpl::candidates(
    const ConnectionOptions& options) const {
  auto found = candidates(options.pollers, options.poller);
  if (!found || options.receive_source == nullptr) return found;
  std::vector<std::uint32_t> near;
  for (const std::uint32_t poller : *found) {
    const auto pool = find_pool(options.pool, poller);
    if (pool && *pool == options.receive_source->state_->pool) near.push_back(poller);
  }
  if (!near.empty()) return near;
  return found;  // and check_receive_source() says why that cannot be
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
  state->stream.info.poller = poller;
  const Order order = state->options.order;
  state->lanes_needed = pool->config.workers > 1;
  if (state->lanes_needed && (order == Order::per_connection || order == Order::per_key)) {
    state->make_segments();
  }
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
  SLUICE_RETURN_IF_ERROR(follow_route(options));
  SLUICE_RETURN_IF_ERROR(check_key(options));
  const auto among = candidates(options.pollers, options.poller);
  if (!among) return among.status();
  if (auto known = find_pool(options.pool, among->front()); !known) return known.status();
  const auto poller = registry_.choose_poller(*among, false, 1);
  if (!poller) {
    return Status(StatusCode::resource_exhausted, "no poller can take the source '" +
                                                      std::string(source->name()) +
                                                      "': each holds pollers.sources_max already");
  }
  const auto pool = find_pool(options.pool, *poller);
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

/// Whether the receives of a connection complete on its receive_source, as far as one can know.
bool DispatcherImpl::receives_there(const ConnectionState& state) {
  if (state.connection == nullptr || state.receive_source == nullptr) return true;
  const auto& srq = state.connection->config().srq;
  const ReceivePool* const of_source = state.receive_source->options.receive_pool;
  return srq == nullptr || srq->receive_pool() == nullptr || of_source == nullptr ||
         srq->receive_pool() == of_source;
}

/// Counts a connection in its pool; given back when the registry forgets it.
Status DispatcherImpl::take_lane(ConnectionState& state) {
  Pool& pool = *state.pool;
  const std::uint32_t limit = pool.config.lanes;
  if (pool.lanes_used.fetch_add(1, std::memory_order_relaxed) >= limit && limit != 0) {
    pool.lanes_used.fetch_sub(1, std::memory_order_relaxed);
    return {StatusCode::does_not_fit, "pool '" + pool.config.name + "' has its " +
                                          std::to_string(limit) + " lanes in use; raise its lanes"};
  }
  state.lanes_used = &pool.lanes_used;
  return {};
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
    attach.key = options.key;
    attach.receive_pool = connection.receive_pool();
    auto made = make_source(
        own[i], attach,
        [handler](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
          (*handler)(batch, info);
        },
        state.pool, state.poller_index);
    if (!made) return made.status();
    (*made)->connection = &state;
    (*made)->stream.info.connection = state.id;
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
  SLUICE_RETURN_IF_ERROR(follow_route(options));
  SLUICE_RETURN_IF_ERROR(check_key(options));
  const auto among = candidates(options);
  if (!among) return among.status();
  if (auto known = find_pool(options.pool, among->front()); !known) return known.status();
  const auto poller = registry_.choose_poller(*among, true, own_sources_max);
  if (!poller) {
    return Status(StatusCode::resource_exhausted,
                  "no poller can take one more connection: each holds pollers.sources_max sources "
                  "already");
  }
  const auto pool = find_pool(options.pool, *poller);
  state->pool = *pool;
  state->poller_index = *poller;
  state->context = options.context;
  state->on_event = std::move(options.on_event);
  if (options.receive_source != nullptr) {
    const auto& source = state->receive_source = options.receive_source->state_;
    state->receives.source = source.get();
    state->receives.info = source->stream.info;
    if (options.context != nullptr) state->receives.info.context = options.context;
  }
  Status status = check_receive_source(options, *pool);
  bool joined = false;
  const bool in_lanes = options.order == Order::per_connection || options.receive_source != nullptr;
  if (status.ok() && in_lanes) status = take_lane(*state);
  if (!status.ok()) {
    registry_.leave_poller(*poller, true, own_sources_max);
    return status;
  }
  if (registry_.add(state, std::move(reservation)) == ConnectionId::none) {
    if (in_lanes) state->lanes_used->fetch_sub(1, std::memory_order_relaxed);
    status =
        Status(StatusCode::does_not_fit, "connections_max (" + std::to_string(connections_max_) +
                                             ") connections are attached already");
  } else if (state->receive_source != nullptr &&
             !(joined = registry_.join_source(*state->receive_source))) {
    status = Status(StatusCode::cancelled, "the receive_source is being detached");
  } else if (!receives_there(*state)) {
    status = Status(StatusCode::invalid_argument,
                    "the connection's SRQ is not the one that its receive_source completes; a "
                    "listener serves one receive queue");
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
  state->receives.info.connection = state->id;
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

// --- pools' arenas, receive queues
// ---------------------------------------------------------------------------

Result<std::vector<int>> DispatcherImpl::completion_vectors(std::uint32_t poller,
                                                            int device_vectors) const {
  if (poller >= places_.size() || device_vectors < 1) {
    return Status(StatusCode::invalid_argument,
                  "completion vectors of poller " + std::to_string(poller) + " (of " +
                      std::to_string(places_.size()) + ") among " + std::to_string(device_vectors) +
                      " of the device");
  }
  const PollerConfig& group = *places_[poller].group;
  std::vector<int> vectors = group.completion_vectors;
  for (int vector = 0; group.completion_vectors.empty() && vector < device_vectors; ++vector) {
    vectors.push_back(vector);
  }
  for (const int vector : vectors) {
    if (vector >= 0 && vector < device_vectors) continue;
    return Status(StatusCode::invalid_argument,
                  "pollers." + group.name + ".completion_vectors names " + std::to_string(vector) +
                      "; the device has 0 to " + std::to_string(device_vectors - 1));
  }
  std::vector<int> mine;
  for (std::size_t i = places_[poller].index; i < vectors.size(); i += group.count) {
    mine.push_back(vectors[i]);
  }
  if (mine.empty()) mine.push_back(vectors[places_[poller].index % vectors.size()]);
  return mine;
}

Result<topology::BoundArena*> DispatcherImpl::arena(const std::string& name, std::uint32_t poller) {
  if (poller >= places_.size()) {
    return Status(StatusCode::invalid_argument, "there is no poller " + std::to_string(poller) +
                                                    "; there are " +
                                                    std::to_string(places_.size()));
  }
  const auto pool = find_pool(name, poller);
  if (!pool) return pool.status();
  std::vector<unsigned> cpus = (*pool)->config.cpus;
  cpus.resize(std::min<std::size_t>(cpus.size(), (*pool)->config.workers));
  if (cpus.empty() || host_driven()) {
    return Status(StatusCode::invalid_argument,
                  "the workers of pool '" + (*pool)->config.name +
                      "' are not pinned: an arena has no CPUs of its own to stay on");
  }
  const std::scoped_lock lock(arenas_mutex_);
  std::unique_ptr<topology::BoundArena>& arena = arenas_[*pool];
  if (arena == nullptr) {
    auto made = topology::BoundArena::create(topology::CpuSet(cpus));
    if (!made) return made.status();
    arena = std::move(*made);
  }
  return arena.get();
}

Result<std::vector<Dispatcher::ReceiveQueue>> DispatcherImpl::attach_receive_queues(
    const std::string& name, const std::shared_ptr<rpma::Peer>& peer, Handler handler,
    void* context) {
  const topology::SrqSettings* settings = nullptr;
  std::string known;
  for (const topology::SrqSettings& one : config_.receive_queues) {
    if (one.name == name) settings = &one;
    known += (known.empty() ? "" : ", ") + one.name;
  }
  if (settings == nullptr) {
    return Status(
        StatusCode::invalid_argument,
        "there is no receive queue '" + name + "'; there are: " + (known.empty() ? "none" : known));
  }
  if (peer == nullptr || !handler) {
    return Status(StatusCode::invalid_argument, "attach_receive_queues needs a peer and a handler");
  }
  const std::string& group =
      settings->pollers.empty() ? config_.pollers.front().name : settings->pollers;
  auto pollers = candidates(group, kAnyPoller);
  if (!pollers) return pollers.status();
  if (!settings->per_poller) pollers->resize(1);
  const auto shared = std::make_shared<Handler>(std::move(handler));
  std::vector<Dispatcher::ReceiveQueue> made;
  for (const std::uint32_t poller : *pollers) {
    auto one = make_receive_queue(*settings, peer, poller, shared, context);
    if (!one) {
      for (const auto& before : made) before.source->detach_async(kUndoDeadline, {});
      return one.status().with_context("receive queue '" + name + "'");
    }
    made.push_back(std::move(*one));
  }
  return made;
}

Result<Dispatcher::ReceiveQueue> DispatcherImpl::make_receive_queue(
    const topology::SrqSettings& settings, const std::shared_ptr<rpma::Peer>& peer,
    std::uint32_t poller, const std::shared_ptr<Handler>& handler, void* context) {
  rpma::SharedReceiveQueueConfig config{.depth = settings.depth,
                                        .receive_cq_size = settings.receive_cq_size};
  auto queue = rpma::SharedReceiveQueue::create(peer, config);
  if (!queue) return queue.status();
  auto memory = memory_for(poller, std::size_t{settings.depth} * settings.buffer_size,
                           "the buffers of receive queue '" + settings.name + "'");
  if (!memory) return memory.status();
  const auto kept = std::make_shared<topology::NodeMemory>(std::move(*memory));
  auto buffers = (*queue)->stock(settings.depth, settings.buffer_size, {},
                                 {.bytes = kept->bytes(), .owner = kept});
  if (!buffers) return buffers.status();
  AttachOptions options{.route = settings.route};
  SLUICE_RETURN_IF_ERROR(follow_route(options));
  options.route.clear();  // its pollers are not asked: the queue is this poller's
  options.pollers.clear();
  options.poller = poller;
  options.context = context;
  options.receive_pool = *buffers;
  auto source = attach((*queue)->receive_cq(), std::move(options),
                       [handler](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
                         (*handler)(batch, info);
                       });
  if (!source) return source.status();
  return Dispatcher::ReceiveQueue{std::move(*queue), *buffers, std::move(*source), poller};
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
