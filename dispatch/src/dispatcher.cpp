// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/dispatch/dispatcher.hpp"

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <utility>

#include "dispatcher_impl.hpp"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

/// Descriptors that one connection takes: its event channel, up to two completion channels, and
/// what a software device needs for it.
constexpr std::uint64_t kDescriptorsPerConnection = 4;
/// Those of the dispatcher itself, the device, listeners, logs.
constexpr std::uint64_t kDescriptorsBase = 64;
constexpr std::uint64_t kConnectionsByDefault = 4096;

Result<std::uint32_t> fit_connections(const DispatcherConfig& config) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return Status(StatusCode::internal, "getrlimit failed", errno);
  const std::uint64_t base = kDescriptorsBase + 4 * config.poller_count();
  const std::uint64_t fits =
      limit.rlim_cur <= base ? 0 : (limit.rlim_cur - base) / kDescriptorsPerConnection;
  if (config.connections_max == 0 && fits > 0) {
    return static_cast<std::uint32_t>(std::min(fits, kConnectionsByDefault));
  }
  if (config.connections_max > 0 && config.connections_max <= fits) return config.connections_max;
  const std::uint64_t wanted = std::max<std::uint64_t>(config.connections_max, 1);
  return Status(StatusCode::resource_exhausted,
                std::to_string(wanted) + " connections need about " +
                    std::to_string(base + wanted * kDescriptorsPerConnection) +
                    " descriptors, but the limit is " + std::to_string(limit.rlim_cur) +
                    "; raise it (ulimit -n, LimitNOFILE=) or lower connections_max");
}

/// Waits for the connection's first event.
Status await_established(rpma::Connection& connection, Clock::time_point deadline,
                         const std::string& what) {
  for (;;) {
    const auto event = connection.next_event();
    if (event && *event == rpma::ConnectionEvent::established) return {};
    if (event) {
      const bool rejected = *event == rpma::ConnectionEvent::rejected;
      return {rejected
                  ? StatusCode::rejected
                  : (*event == rpma::ConnectionEvent::unreachable ? StatusCode::unreachable
                                                                  : StatusCode::connection_lost),
              what + (rejected ? ": rejected, or nobody listens there"
                               : ": " + std::string(rpma::to_string(*event)))};
    }
    if (event.status().code() != StatusCode::no_completion)
      return event.status().with_context(what);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return {StatusCode::timed_out, what + ": not established in time"};
    pollfd fd{connection.event_fd(), POLLIN, 0};
    ::poll(&fd, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000)));
  }
}

}  // namespace

// --- handles
// ---------------------------------------------------------------------------------------

SourceHandle::SourceHandle(std::shared_ptr<detail::DispatcherImpl> dispatcher,
                           std::shared_ptr<detail::SourceState> state)
    : dispatcher_(std::move(dispatcher)), state_(std::move(state)) {}
SourceHandle::~SourceHandle() = default;
SourceId SourceHandle::id() const noexcept {
  return state_->id;
}
std::uint32_t SourceHandle::poller() const noexcept {
  return state_->poller_index;
}
Result<DetachReport> SourceHandle::detach(std::chrono::nanoseconds deadline) {
  return dispatcher_->detach(state_, deadline);
}
void SourceHandle::detach_async(std::chrono::nanoseconds deadline, DetachCallback done) {
  dispatcher_->detach_async(state_, deadline, std::move(done));
}

ConnectionHandle::ConnectionHandle(std::shared_ptr<detail::DispatcherImpl> dispatcher,
                                   std::shared_ptr<detail::ConnectionState> state)
    : dispatcher_(std::move(dispatcher)), state_(std::move(state)) {}
ConnectionHandle::~ConnectionHandle() = default;
ConnectionId ConnectionHandle::id() const noexcept {
  return state_->id;
}
rpma::Connection& ConnectionHandle::connection() const noexcept {
  SLUICE_CHECK(state_->connection != nullptr,
               "connection() of a detached connection, or of a queue pair attached by number");
  return *state_->connection;
}
std::uint32_t ConnectionHandle::poller() const noexcept {
  return state_->poller_index;
}
void* ConnectionHandle::context() const noexcept {
  return state_->context;
}
bool ConnectionHandle::down() const noexcept {
  return state_->down.load(std::memory_order_relaxed);
}
Result<DetachReport> ConnectionHandle::detach(std::chrono::nanoseconds deadline) {
  return dispatcher_->detach(state_, deadline);
}
void ConnectionHandle::detach_async(std::chrono::nanoseconds deadline, DetachCallback done) {
  dispatcher_->detach_async(state_, deadline, std::move(done));
}

SetupTicket::SetupTicket(std::weak_ptr<detail::DispatcherImpl> dispatcher,
                         std::shared_ptr<detail::SourceState> state) noexcept
    : dispatcher_(std::move(dispatcher)), state_(std::move(state)) {
  state_->pending_setups.fetch_add(1, std::memory_order_seq_cst);
}
SetupTicket& SetupTicket::operator=(SetupTicket&& other) noexcept {
  if (this != &other) {
    SetupTicket old(std::move(*this));
    dispatcher_ = std::move(other.dispatcher_);
    state_ = std::move(other.state_);
  }
  return *this;
}
SetupTicket::~SetupTicket() {
  if (state_ == nullptr) return;
  // The last one: what is still held belongs to nobody, and the poller may be asleep.
  if (state_->pending_setups.fetch_sub(1, std::memory_order_seq_cst) != 1) return;
  if (const auto dispatcher = dispatcher_.lock()) state_->poller->poke();
}

// --- Dispatcher
// ------------------------------------------------------------------------------------

Dispatcher::Dispatcher(std::shared_ptr<detail::DispatcherImpl> impl) noexcept
    : impl_(std::move(impl)) {}

Result<std::unique_ptr<Dispatcher>> Dispatcher::start(DispatcherConfig config,
                                                      DispatcherCallbacks callbacks) {
  if (Status status = config.validate(); !status.ok()) {
    return status.with_context("the dispatcher's configuration");
  }
  const auto connections = fit_connections(config);
  if (!connections) return connections.status();
  const bool own_threads = config.drive == Drive::own_threads;
  auto impl = std::make_shared<detail::DispatcherImpl>(std::move(config), std::move(callbacks),
                                                       *connections);
  SLUICE_RETURN_IF_ERROR(impl->open());
  std::unique_ptr<Dispatcher> dispatcher(new Dispatcher(std::move(impl)));
  if (own_threads) SLUICE_RETURN_IF_ERROR(dispatcher->impl_->start_threads());
  return dispatcher;
}

Result<std::unique_ptr<Dispatcher>> Dispatcher::start_config(const topology::Config& config,
                                                             DispatcherCallbacks callbacks) {
  const auto machine = topology::Machine::this_machine();
  if (!machine) return machine.status();
  const auto plan = topology::place(*machine, config);
  if (!plan) return plan.status();
  return start_plan(*plan, std::move(callbacks));
}

Result<std::unique_ptr<Dispatcher>> Dispatcher::start_plan(const topology::Plan& plan,
                                                           DispatcherCallbacks callbacks) {
  if (!plan.machine.is_this_machine()) {
    return Status(StatusCode::invalid_argument,
                  "the plan is for another machine: " + plan.machine.name());
  }
  auto dispatcher = start(DispatcherConfig::from_plan(plan), std::move(callbacks));
  if (dispatcher) (*dispatcher)->impl_->keep_plan(plan);
  return dispatcher;
}

Dispatcher::~Dispatcher() {
  constexpr std::chrono::seconds kDestructorDeadline{5};
  static_cast<void>(impl_->stop(kDestructorDeadline));
}

Result<std::shared_ptr<SourceHandle>> Dispatcher::attach(std::shared_ptr<CompletionSource> source,
                                                         AttachOptions options, Handler handler) {
  return impl_->attach(std::move(source), std::move(options), std::move(handler));
}
Result<std::shared_ptr<ConnectionHandle>> Dispatcher::attach_connection(
    std::shared_ptr<rpma::Connection> connection, ConnectionOptions options) {
  return impl_->attach_connection(std::move(connection), std::move(options));
}
Result<std::shared_ptr<ConnectionHandle>> Dispatcher::attach_queue_pair(std::uint32_t qp_num,
                                                                        ConnectionOptions options) {
  return impl_->attach_queue_pair(qp_num, std::move(options));
}
SetupTicket Dispatcher::expect_connection(SourceHandle& receive_source) {
  return impl_->expect_connection(receive_source);
}
Result<std::unique_ptr<Dispatcher::Listener>> Dispatcher::listen(
    std::unique_ptr<rpma::Endpoint> endpoint, ListenOptions options) {
  return impl_->listen(std::move(endpoint), std::move(options));
}

Result<std::shared_ptr<ConnectionHandle>> Dispatcher::connect(
    std::shared_ptr<rpma::Peer> peer, const std::string& address, const std::string& port,
    const rpma::ConnectionConfig& config, std::span<const std::byte> private_data,
    ConnectionOptions options, std::chrono::milliseconds timeout) {
  const std::string what = "connect to " + address + ":" + port;
  const auto deadline = Clock::now() + timeout;
  detail::ConnectionReservation reservation = impl_->registry().reserve_connection();
  if (!reservation.held()) {
    return Status(StatusCode::does_not_fit,
                  what + ": connections_max are attached or being made already");
  }
  SetupTicket ticket;
  if (options.receive_source != nullptr) ticket = expect_connection(*options.receive_source);
  auto request = rpma::ConnectionRequest::connect_to(std::move(peer), address, port, config);
  if (!request) return request.status();
  auto connection = std::move(*request).connect(private_data);
  if (!connection) return connection.status();
  SLUICE_RETURN_IF_ERROR(await_established(**connection, deadline, what));
  return impl_->attach_connection(std::move(*connection), std::move(options),
                                  std::move(reservation));
}

Status Dispatcher::watch_device(ibv_context* context) {
  return impl_->watch_device(context);
}
DispatcherCounters Dispatcher::counters() const {
  return impl_->counters();
}
const topology::Plan* Dispatcher::plan() const noexcept {
  return impl_->plan();
}
std::vector<std::string> Dispatcher::notices() const {
  return impl_->notices();
}
std::span<const std::byte> Dispatcher::batch_memory(std::uint32_t poller) const {
  SLUICE_CHECK(poller < impl_->pollers().size(), "there is no such poller");
  return impl_->pollers()[poller]->batch_memory().bytes();
}
Result<std::vector<int>> Dispatcher::completion_vectors(std::uint32_t poller,
                                                        int device_vectors) const {
  return impl_->completion_vectors(poller, device_vectors);
}
Result<topology::BoundArena*> Dispatcher::arena(const std::string& pool, std::uint32_t poller) {
  return impl_->arena(pool, poller);
}
Result<std::vector<Dispatcher::ReceiveQueue>> Dispatcher::attach_receive_queues(
    const std::string& name, const std::shared_ptr<rpma::Peer>& peer, Handler handler,
    void* context) {
  return impl_->attach_receive_queues(name, peer, std::move(handler), context);
}
Status Dispatcher::stop(std::chrono::nanoseconds deadline) {
  return impl_->stop(deadline);
}

std::uint32_t Dispatcher::poller_count() const noexcept {
  return static_cast<std::uint32_t>(impl_->pollers().size());
}
std::uint32_t Dispatcher::worker_count() const noexcept {
  return static_cast<std::uint32_t>(impl_->workers().size());
}
Runnable& Dispatcher::poller(std::uint32_t index) {
  SLUICE_CHECK(impl_->host_driven(), "poller() of a dispatcher that drives its own threads");
  SLUICE_CHECK(index < impl_->pollers().size(), "there is no such poller");
  return *impl_->pollers()[index];
}
Runnable& Dispatcher::worker(std::uint32_t index) {
  SLUICE_CHECK(impl_->host_driven(), "worker() of a dispatcher that drives its own threads");
  SLUICE_CHECK(index < impl_->workers().size(), "there is no such worker");
  return *impl_->workers()[index];
}
Runnable& Dispatcher::control() {
  SLUICE_CHECK(impl_->host_driven(), "control() of a dispatcher that drives its own threads");
  return impl_->control();
}

}  // namespace sluice
