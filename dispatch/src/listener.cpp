// SPDX-License-Identifier: BSD-3-Clause
#include "listener.hpp"

#include <poll.h>

#include <algorithm>
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
  std::vector<pollfd> fds;
  while (!closed()) {
    if (step() > 0) continue;
    fds = {{endpoint_->fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
    int timeout_ms = -1;
    for (const Pending& pending : pending_) {
      fds.push_back({pending.connection->event_fd(), POLLIN, 0});
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(pending.deadline - Clock::now()).count();
      const int bounded = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
      timeout_ms = timeout_ms < 0 ? bounded : std::min(timeout_ms, bounded);
    }
    ::poll(fds.data(), fds.size(), timeout_ms);
  }
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
  if (!dispatcher_.registry().room_for_connection()) {
    fail(Status(StatusCode::does_not_fit,
                "a connection was refused: connections_max are attached already"));
    return true;
  }
  Pending pending;
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
    fail(Status(StatusCode::connection_lost, "an accepted connection ended before it was established: " +
                                                 std::string(rpma::to_string(*event))));
    return true;
  }
  auto handle = dispatcher_.attach_connection(std::move(pending.connection), std::move(pending.options));
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
