// SPDX-License-Identifier: BSD-3-Clause
#include "listener.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "dispatcher_impl.hpp"
#include "sluice/topology/cpus.hpp"

namespace sluice::detail {
namespace {

constexpr std::size_t kRequestsPerStep = 64;

}  // namespace

ListenerState::ListenerState(DispatcherImpl& dispatcher, std::unique_ptr<rpma::Endpoint> endpoint,
                             ListenOptions options)
    : dispatcher_(dispatcher), endpoint_(std::move(endpoint)), options_(std::move(options)) {}

ListenerState::~ListenerState() {
  if (epoll_fd_ >= 0) ::close(epoll_fd_);
}

Status ListenerState::open() {
  epoll_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd_ >= 0 && wake_.fd() >= 0 && watch(endpoint_->fd()) && watch(wake_.fd())) return {};
  return {StatusCode::resource_exhausted, "a listener could not make its descriptors", errno};
}

bool ListenerState::watch(int fd) const noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  return ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0;
}

std::size_t ListenerState::step() {
  std::size_t work = 0;
  while (work < kRequestsPerStep && accept_one()) ++work;
  for (std::size_t i = 0; i < pending_.size();) {
    if (!settle(pending_[i])) {
      ++i;
      continue;
    }
    ++work;
    std::swap(pending_[i], pending_.back());
    pending_.pop_back();
  }
  return work;
}

void ListenerState::run() {
  topology::name_current_thread("sluice-listen");
  while (!closed()) {
    if (step() > 0) continue;
    int timeout_ms = -1;
    for (const Pending& pending : pending_) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(pending.deadline - Clock::now()).count();
      const int bounded = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
      timeout_ms = timeout_ms < 0 ? bounded : std::min(timeout_ms, bounded);
    }
    epoll_event event;
    ::epoll_wait(epoll_fd_, &event, 1, timeout_ms);  // level-triggered: step() looks at all of them
  }
  finish();
}

void ListenerState::finish() noexcept {
  pending_.clear();
  endpoint_.reset();
}

void ListenerState::close() noexcept {
  closed_.store(true, std::memory_order_release);  // (2) release: pairs with (1)
  wake_.signal();
}

/// False: no request now.
bool ListenerState::accept_one() {
  auto request = endpoint_->next_request(options_.config);
  if (!request) {
    if (request.status().code() == StatusCode::no_completion) return false;
    fail(request.status());
    return request.status().code() != StatusCode::device_failed;
  }
  auto wanted = options_.on_request ? options_.on_request(request->private_data())
                                    : std::optional<ConnectionOptions>(ConnectionOptions{});
  if (!wanted) return true;  // the request's destructor rejects
  // Before anything is half-open (C4).
  Pending pending;
  pending.reservation = dispatcher_.registry().reserve_connection();
  if (!pending.reservation.held()) {
    fail(Status(StatusCode::does_not_fit,
                "a connection was refused: connections_max are attached or being made already"));
    return true;
  }
  if (wanted->receive_source != nullptr) {
    pending.ticket = dispatcher_.expect_connection(*wanted->receive_source);
  }
  pending.options = std::move(*wanted);
  pending.deadline = Clock::now() + options_.establish_timeout;
  auto connection = std::move(*request).connect(options_.reply);
  if (!connection) {
    fail(connection.status());
    return true;
  }
  pending.connection = std::move(*connection);
  if (!watch(pending.connection->event_fd())) {
    fail(Status(StatusCode::resource_exhausted, "an accepted connection could not be watched",
                errno));
    return true;
  }
  pending_.push_back(std::move(pending));
  return true;
}

/// True: established and attached, or failed.
bool ListenerState::settle(Pending& pending) {
  const auto event = pending.connection->next_event();
  if (!event) {
    if (event.status().code() != StatusCode::no_completion) {
      fail(event.status());
      return true;
    }
    if (Clock::now() < pending.deadline) return false;
    fail(Status(StatusCode::timed_out, "an accepted connection was not established in time"));
    return true;
  }
  if (*event != rpma::ConnectionEvent::established) {
    fail(Status(StatusCode::connection_lost,
                "an accepted connection ended before it was established: " +
                    std::string(rpma::to_string(*event))));
    return true;
  }
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, pending.connection->event_fd(), nullptr);
  auto handle = dispatcher_.attach_connection(
      std::move(pending.connection), std::move(pending.options), std::move(pending.reservation));
  if (!handle) {
    fail(handle.status());
  } else if (options_.on_connected) {
    options_.on_connected(std::move(*handle));
  }
  return true;
}

void ListenerState::fail(const Status& status) const {
  if (options_.on_failed) options_.on_failed(status);
}

}  // namespace sluice::detail
