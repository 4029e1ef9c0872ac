// SPDX-License-Identifier: BSD-3-Clause
#include "control.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <string>
#include <utility>

#include "inside.hpp"
#include "listener.hpp"

namespace sluice::detail {
namespace {

constexpr std::size_t kDescriptorsPerRound = 64;
constexpr std::uint32_t kEventsPerDescriptor = 16;  ///< then the others get their turn
constexpr std::size_t kNotesPerRound = 256;
constexpr std::size_t kDeviceEventsMax = 65536;

bool is_end(rpma::ConnectionEvent event) {
  return event != rpma::ConnectionEvent::established;
}

}  // namespace

Control::Control(const DispatcherConfig& config, const DispatcherCallbacks& callbacks,
                 ControlPort& port, Registry& registry,
                 const std::vector<std::unique_ptr<Poller>>& pollers,
                 const std::vector<std::unique_ptr<Worker>>& workers)
    : config_(config),
      callbacks_(callbacks),
      port_(port),
      registry_(registry),
      pollers_(pollers),
      workers_(workers) {}

Control::~Control() {
  DeviceEventExchange::instance().leave(*this);
  if (timer_fd_ >= 0) ::close(timer_fd_);
  if (epoll_fd_ >= 0) ::close(epoll_fd_);
}

Status Control::open() {
  SLUICE_RETURN_IF_ERROR(port_.notes().status());
  epoll_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = port_.notes().fd();
  if (epoll_fd_ < 0 || ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, port_.notes().fd(), &event) != 0) {
    return {StatusCode::resource_exhausted, "the control could not make its epoll descriptor",
            errno};
  }
  timer_fd_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  event.data.fd = timer_fd_;
  if (timer_fd_ < 0 || ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, timer_fd_, &event) != 0) {
    return {StatusCode::resource_exhausted, "the control could not make its timer descriptor",
            errno};
  }
  seen_pollers_.resize(pollers_.size());
  seen_workers_.resize(workers_.size());
  return {};
}

// --- a round
// ---------------------------------------------------------------------------------------

std::size_t Control::run_once() {
  owner_.check("the control is driven by one thread; another one called it");
  const InsideRound inside;
  rounds_.add();
  std::size_t work = handle_descriptors();
  work += handle_device_events();
  work += handle_notes();
  work += step_listeners();
  work += advance_drains();
  check_stalls();
  return work;
}

std::size_t Control::handle_descriptors() {
  std::array<epoll_event, kDescriptorsPerRound> events;
  const int count = ::epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), 0);
  std::size_t work = 0;
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<std::size_t>(i)].data.fd;
    if (fd == port_.notes().fd()) {
      port_.notes().drain_fd();
      continue;
    }
    if (fd == timer_fd_) {
      std::uint64_t expirations = 0;
      static_cast<void>(::read(timer_fd_, &expirations, sizeof expirations));
      continue;
    }
    const Watched target = watched(fd);
    if (target.device != nullptr) {
      handle_device(target.device);
      ++work;
    } else if (const auto connection = target.connection.lock()) {
      handle_connection(connection);
      ++work;
    }
  }
  return work;
}

std::size_t Control::handle_notes() {
  ControlNote note;
  std::size_t taken = 0;
  while (taken < kNotesPerRound && port_.notes().take(note)) {
    ++taken;
    if (note.kind == ControlNote::Kind::connection_failed) {
      if (const auto connection = registry_.find(note.connection)) {
        report_end(connection, rpma::ConnectionEvent::lost);
      }
    } else if (const auto source = registry_.find(note.source)) {
      handle_source_failure(note, *source);
    }
  }
  return taken;
}

void Control::handle_source_failure(const ControlNote& note, SourceState& source) {
  const bool still_polled = note.fault == SourceFault::rearm_failed;
  if (callbacks_.on_source_failed) {
    const Status status(
        StatusCode::device_failed,
        "source '" + std::string(source.source->name()) +
            "': " + std::string(to_string(note.fault)) +
            (still_polled ? ", polled for good from now on" : ", not polled any more"),
        note.error > 0 ? note.error : 0, note.error < 0 ? note.error : 0);
    callbacks_.on_source_failed(note.source, status);
  }
  if (still_polled) return;
  // A connection whose completions do not come any more is of no use, and nothing else may tell
  // (E5).
  for (const auto& connection : registry_.connections()) {
    if (source.connection == connection.get() || connection->receive_source.get() == &source) {
      report_end(connection, rpma::ConnectionEvent::lost);
    }
  }
}

std::size_t Control::advance_drains() {
  {
    const std::scoped_lock lock(mutex_);
    std::move(new_drains_.begin(), new_drains_.end(), std::back_inserter(drains_));
    new_drains_.clear();
    for (Drain& drain : drains_) drain.limit(drains_end_);
  }
  if (drains_.empty()) return 0;
  DrainContext context{registry_, port_, pollers_, config_.last_wqe_grace,
                       [this](const ConnectionState& connection) { unwatch(connection); }};
  const TimePoint at = now();
  std::size_t work = 0;
  for (std::size_t i = 0; i < drains_.size();) {
    if (!drains_[i].advance(at, context)) {
      ++i;
      continue;
    }
    ++work;
    drains_done_.add();
    if (drains_[i].report().quarantined) quarantined_.add();
    port_.end_drain();
    const Drain over = std::exchange(drains_[i], std::move(drains_.back()));
    drains_.pop_back();
    over.call_back(registry_);
  }
  return work;
}

std::size_t Control::step_listeners() {
  std::vector<std::shared_ptr<ListenerState>> listeners;
  {
    const std::scoped_lock lock(mutex_);
    if (listeners_.empty()) return 0;
    std::erase_if(listeners_, [this](const auto& listener) {
      if (!listener->closed()) return false;
      ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, listener->wait_fd(), nullptr);
      listener->finish();
      return true;
    });
    listeners = listeners_;
  }
  std::size_t work = 0;
  for (const auto& listener : listeners) work += listener->step();
  return work;
}

void Control::check_stalls() {
  if (config_.stall_threshold.count() == 0) return;
  const TimePoint at = now();
  if (at < next_stall_check_) return;
  next_stall_check_ = at + config_.stall_threshold / 2;
  bool moved = false;
  for (std::size_t i = 0; i < pollers_.size(); ++i) {
    moved |= check_stall(*pollers_[i], seen_pollers_[i], true, at);
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    moved |= check_stall(*workers_[i], seen_workers_[i], false, at);
  }
  quiet_ = !moved;
}

/// Whether a handler has been called since the last look, or is running.
template <typename Runner>
bool Control::check_stall(Runner& runner, Seen& seen, bool inlined, TimePoint at) {
  const std::uint64_t sequence = runner.handler_sequence();
  if (sequence != seen.sequence || (sequence & 1) == 0) {
    const bool moved = sequence != seen.sequence;
    seen = {sequence, at, false};
    return moved;
  }
  if (seen.reported || at - seen.since < config_.stall_threshold) return true;
  seen.reported = true;
  runner.count_stall();
  if (callbacks_.on_stall) callbacks_.on_stall(runner.handler_source(), inlined, at - seen.since);
  return true;
}

bool Control::all_asleep() const noexcept {
  return std::all_of(pollers_.begin(), pollers_.end(),
                     [](const auto& poller) { return poller->asleep(); }) &&
         std::all_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker->asleep(); });
}

// --- waiting
// ---------------------------------------------------------------------------------------

bool Control::prepare_to_wait() {
  owner_.check("the control is driven by one thread; another one wanted to wait for it");
  {
    const std::scoped_lock lock(mutex_);
    if (!new_drains_.empty()) return false;
  }
  const TimePoint at = now();
  TimePoint look = next_look(at, true);
  if (look <= at) return false;
  if (!port_.notes().prepare_to_sleep()) return false;
  // An idle dispatcher must not tick (S1): while all sleep no handler can stall, and who wakes up
  // says so. Only after a quiet while, or each completion of a slow trickle would wake us.
  if (quiet_) {
    port_.begin_doze();
    if (all_asleep()) {
      look = next_look(at, false);
    } else {
      port_.end_doze();
    }
  }
  itimerspec timer{};  // zero: disarmed
  if (look != TimePoint::max()) {
    constexpr std::chrono::nanoseconds kLongest = std::chrono::minutes(1);
    const auto left = std::min<std::chrono::nanoseconds>(look - at, kLongest);
    timer.it_value.tv_sec = static_cast<time_t>(left / std::chrono::seconds(1));
    timer.it_value.tv_nsec = static_cast<long>((left % std::chrono::seconds(1)).count());
  }
  ::timerfd_settime(timer_fd_, 0, &timer, nullptr);
  return true;
}

/// When there is something to do although nothing has happened.
TimePoint Control::next_look(TimePoint at, bool watching) const {
  TimePoint look = TimePoint::max();
  for (const Drain& drain : drains_) look = std::min(look, drain.next_look(at));
  if (watching && config_.stall_threshold.count() > 0) look = std::min(look, next_stall_check_);
  return look;
}

void Control::block() noexcept {
  epoll_event event;
  ::epoll_wait(epoll_fd_, &event, 1, -1);  // level-triggered: run_once() finds it again
}

void Control::finish_wait() {
  owner_.check("the control is driven by one thread; another one finished its wait");
  port_.notes().finish_sleep();
  port_.end_doze();
}

// --- what is watched
// -------------------------------------------------------------------------------

Control::Watched Control::watched(int fd) const {
  const std::scoped_lock lock(mutex_);
  const auto found = watched_.find(fd);
  return found == watched_.end() ? Watched{} : found->second;
}

Status Control::watch(const std::shared_ptr<ConnectionState>& connection) {
  const int fd = connection->connection->event_fd();
  {
    const std::scoped_lock lock(mutex_);
    watched_[fd] = Watched{connection, nullptr};
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0) return {};
  const int error = errno;
  const std::scoped_lock lock(mutex_);
  watched_.erase(fd);
  return {StatusCode::resource_exhausted, "a connection's events could not be watched", error};
}

void Control::unwatch(const ConnectionState& connection) {
  if (connection.connection == nullptr) return;
  const int fd = connection.connection->event_fd();
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
  const std::scoped_lock lock(mutex_);
  watched_.erase(fd);
}

Status Control::watch_device(ibv_context* device) {
  const int fd = device->async_fd;
  {
    const std::scoped_lock lock(mutex_);
    if (!watched_.emplace(fd, Watched{{}, device}).second) return {};
  }
  DeviceEventExchange::instance().join(device, *this);
  const int flags = ::fcntl(fd, F_GETFL);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
      ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0) {
    return {};
  }
  const int error = errno;
  const std::scoped_lock lock(mutex_);
  watched_.erase(fd);
  return {StatusCode::io_error, "a device's async events could not be watched", error};
}

void Control::add(Drain drain) {
  port_.begin_drain();
  {
    const std::scoped_lock lock(mutex_);
    new_drains_.push_back(std::move(drain));
  }
  poke();
}

void Control::end_drains_by(TimePoint deadline) {
  {
    const std::scoped_lock lock(mutex_);
    drains_end_ = std::min(drains_end_, deadline);
  }
  poke();
}

Status Control::add(std::shared_ptr<ListenerState> listener) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = listener->wait_fd();  // wakes; each round steps all listeners
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, listener->wait_fd(), &event) != 0) {
    return {StatusCode::resource_exhausted, "a listener could not be watched", errno};
  }
  const std::scoped_lock lock(mutex_);
  listeners_.push_back(std::move(listener));
  return {};
}

// --- events
// ----------------------------------------------------------------------------------------

void Control::handle_connection(const std::shared_ptr<ConnectionState>& connection) {
  const std::shared_ptr<rpma::Connection> handle = connection->connection;
  if (handle == nullptr) return;
  for (std::uint32_t i = 0; i < kEventsPerDescriptor; ++i) {
    const auto event = handle->next_event();
    if (!event) {
      // Anything but "none now" means that nothing more will be told here.
      if (event.status().code() != StatusCode::no_completion) {
        unwatch(*connection);
        report_end(connection, rpma::ConnectionEvent::lost);
      }
      return;
    }
    connection_events_.add();
    if (is_end(*event)) report_end(connection, *event);
  }
}

/// Tells of a connection's end once, however many signs of it there are: a failed completion, a
/// device event, CONN_CLOSED (which may come twice).
void Control::report_end(const std::shared_ptr<ConnectionState>& connection,
                         rpma::ConnectionEvent event) {
  connection->down.store(true, std::memory_order_relaxed);
  if (std::exchange(connection->event_told, true)) return;
  // The peer is gone, but the queue pair may not know it for many retries: what is posted now would
  // only wait for its flush.
  if (connection->connection != nullptr) connection->connection->send_credits().close();
  if (connection->on_event) connection->on_event(connection->id, event);
}

void Control::handle_device(ibv_context* device) {
  DeviceEvent event;
  for (std::uint32_t i = 0; i < kEventsPerDescriptor && take_device_event(device, event); ++i) {
    DeviceEventExchange::instance().publish(event);
  }
}

void Control::deliver(const DeviceEvent& event) {
  {
    const std::scoped_lock lock(mutex_);
    // Of a control that nobody runs any more: what is beyond the bound concerns nobody.
    if (device_events_.size() < kDeviceEventsMax) device_events_.push_back(event);
  }
  poke();
}

std::size_t Control::handle_device_events() {
  std::vector<DeviceEvent> events;
  {
    const std::scoped_lock lock(mutex_);
    events.swap(device_events_);
  }
  for (const DeviceEvent& event : events) {
    async_events_.add();
    route(event);
    if (callbacks_.on_async_event) callbacks_.on_async_event(event.device, event.event);
  }
  return events.size();
}

void Control::route(const DeviceEvent& event) {
  switch (event.event.event_type) {
    case IBV_EVENT_CQ_ERR:
      if (const auto source = registry_.find_by_fd(event.cq_fd)) {
        // One being detached may be gone before the poller reads its mail; its drain need only know
        // that nothing more will come. A full mailbox delays what the QPs' own errors tell as well.
        if (registry_.is_detaching(*source)) {
          source->dead.store(true, std::memory_order_seq_cst);
        } else {
          static_cast<void>(pollers_[source->poller_index]->post(
              {PollerCommand::Kind::fail_source, source.get(), nullptr}));
        }
      }
      break;
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      if (const auto connection = registry_.find_by_qp_num(event.device, event.qp_num)) {
        connection->last_wqe_seen.store(true, std::memory_order_seq_cst);
      }
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      if (const auto connection = registry_.find_by_qp_num(event.device, event.qp_num)) {
        report_end(connection, rpma::ConnectionEvent::lost);
      }
      break;
    case IBV_EVENT_DEVICE_FATAL:
      for (const auto& connection : registry_.connections()) {
        if (connection->device == event.device) report_end(connection, rpma::ConnectionEvent::lost);
      }
      break;
    default: break;
  }
}

ControlCounters Control::counters() const noexcept {
  ControlCounters out;
  out.rounds = rounds_.get();
  out.connection_events = connection_events_.get();
  out.async_events = async_events_.get();
  out.drains = drains_done_.get();
  out.quarantined = quarantined_.get();
  return out;
}

}  // namespace sluice::detail
