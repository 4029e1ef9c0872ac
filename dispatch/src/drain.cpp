// SPDX-License-Identifier: BSD-3-Clause
#include "drain.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace sluice {

std::string DetachReport::to_string() const {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(took).count();
  std::string text = clean ? "clean" : "abandoned after the deadline";
  text += " in " + std::to_string(us) + " us";
  if (completions_abandoned > 0) {
    text += ", " + std::to_string(completions_abandoned) +
            " completions whose handler has not returned";
  }
  if (marker_missing) text += ", the drain marker never came back";
  if (last_wqe_missing) text += ", no LAST_WQE_REACHED within its grace";
  if (quarantined) text += ", quarantined";
  return text;
}

}  // namespace sluice

namespace sluice::detail {
namespace {

/// How long to wait before a full mailbox or send queue is tried again.
constexpr std::chrono::milliseconds kRetryInterval{1};

TimePoint saturating_add(TimePoint now, std::chrono::nanoseconds delay) {
  return TimePoint::max() - now < delay ? TimePoint::max() : now + delay;
}

}  // namespace

Drain::Drain(std::shared_ptr<ConnectionState> connection, TimePoint now,
             std::chrono::nanoseconds deadline, DetachCallback done)
    : connection_(std::move(connection)),
      sources_(connection_->own_sources),
      begin_(now),
      deadline_(saturating_add(now, deadline)),
      done_(std::move(done)) {}

Drain::Drain(std::shared_ptr<SourceState> source, TimePoint now, std::chrono::nanoseconds deadline,
             DetachCallback done)
    : sources_{std::move(source)},
      step_(Step::letting_go),
      begin_(now),
      deadline_(saturating_add(now, deadline)),
      done_(std::move(done)) {}

bool Drain::advance(TimePoint now, DrainContext& context) {
  if (!std::exchange(started_, true)) start(context);
  while (step_ != Step::finished) {  // bound: the number of steps
    if (!step(now, context)) break;
    step_ = static_cast<Step>(static_cast<int>(step_) + 1);
    if (step_ == Step::last_wqe) grace_end_ = now + context.last_wqe_grace;
  }
  if (step_ == Step::finished) {
    finish(now, context);
    return true;
  }
  if (now < deadline_) return false;
  give_up(now, context);
  return true;
}

void Drain::call_back(Registry& registry) const {
  Detaching& detaching =
      connection_ != nullptr ? connection_->detaching : sources_.front()->detaching;
  const std::vector<DetachCallback> waiters = registry.end_detach(detaching, report_);
  if (done_) done_(report_);
  for (const DetachCallback& waiter : waiters) waiter(report_);
}

void Drain::start(DrainContext&) {
  if (connection_ == nullptr) return;
  connection_->down.store(true, std::memory_order_relaxed);
  // A CONN_CLOSED alone leaves the local queue pair as it was; this moves it to error.
  if (connection_->connection != nullptr) {
    static_cast<void>(connection_->connection->disconnect());  // fails on one already broken
  }
}

/// True: what the present step waits for has happened.
bool Drain::step(TimePoint now, DrainContext& context) {
  switch (step_) {
    case Step::marker_posting:
      return connection_->connection == nullptr || sources_.empty() || own_source_failed() ||
             post_marker();
    case Step::marker:
      if (connection_->connection == nullptr || sources_.empty()) return true;
      if (connection_->marker_seen.load(std::memory_order_seq_cst)) return true;
      report_.marker_missing = own_source_failed();  // it cannot come any more
      return report_.marker_missing;
    case Step::last_wqe:
      if (connection_->receive_source == nullptr || connection_->connection == nullptr) return true;
      if (connection_->last_wqe_seen.load(std::memory_order_seq_cst)) return true;
      report_.last_wqe_missing = now >= grace_end_;
      return report_.last_wqe_missing;
    case Step::letting_go: return serves_nobody() && send_removals(context) && let_go();
    case Step::handlers: return outstanding() == 0 && lanes_idle();
    case Step::finished: break;
  }
  return false;
}

/// A source's handler is called from the lanes of its connections: they go first.
bool Drain::serves_nobody() const {
  return connection_ != nullptr ||
         sources_.front()->attached_connections.load(std::memory_order_seq_cst) == 0;
}

bool Drain::post_marker() {
  return connection_->connection->post_drain_marker().ok();
}

bool Drain::own_source_failed() const {
  return std::any_of(sources_.begin(), sources_.end(), [](const auto& source) {
    return source->drain_marker != 0 && source->dead.load(std::memory_order_seq_cst);
  });
}

bool Drain::send_removals(DrainContext& context) {
  for (; removals_sent_ < sources_.size(); ++removals_sent_) {
    SourceState* const source = sources_[removals_sent_].get();
    if (!context.pollers[source->poller_index]->post(
            {PollerCommand::Kind::remove_source, source, nullptr})) {
      return false;
    }
  }
  if (!connection_removal_sent_ && connection_ != nullptr &&
      connection_->receive_source != nullptr) {
    SourceState* const source = connection_->receive_source.get();
    if (!context.pollers[source->poller_index]->post(
            {PollerCommand::Kind::remove_connection, source, connection_.get()})) {
      return false;
    }
    connection_removal_sent_ = true;
  }
  return true;
}

bool Drain::let_go() const {
  if (connection_removal_sent_ && !connection_->removed.load(std::memory_order_seq_cst))
    return false;
  return std::all_of(sources_.begin(), sources_.end(), [](const auto& source) {
    return source->removed.load(std::memory_order_seq_cst);
  });
}

/// No worker holds a lane any more: the last of what it may touch.
bool Drain::lanes_idle() const {
  if (connection_ != nullptr) return connection_->lane.queue.idle();
  const SourceState& source = *sources_.front();
  const auto idle = [](const auto& connection) { return connection->lane.queue.idle(); };
  return (source.own_connection == nullptr || idle(source.own_connection)) &&
         std::all_of(source.abandoned.begin(), source.abandoned.end(), idle);
}

/// Completions whose handler calls have not returned.
std::uint64_t Drain::outstanding() const {
  std::uint64_t sum = connection_ != nullptr ? connection_->receives.handover.outstanding() : 0;
  // A source's own stream counts what it brought for its connections, abandoned ones included.
  for (const auto& source : sources_) sum += source->stream.handover.outstanding();
  return sum;
}

TimePoint Drain::next_look(TimePoint now) const noexcept {
  TimePoint look = deadline_;
  const bool retrying = step_ == Step::marker_posting ||
                        (step_ == Step::letting_go && removals_sent_ < sources_.size());
  // A lane turns idle a moment after its last handler has returned, without a poke.
  if (retrying || step_ == Step::handlers) look = std::min(look, now + kRetryInterval);
  if (step_ == Step::last_wqe) look = std::min(look, grace_end_);
  return look;
}

void Drain::finish(TimePoint now, DrainContext& context) {
  report_.took = now - begin_;
  const bool keep = report_.marker_missing;  // the device may still hold work of this queue pair
  if (keep) {
    report_.clean = false;
    report_.quarantined = true;
  }
  for (const auto& source : sources_) {
    context.registry.remove(source->id);
    context.registry.leave_poller(source->poller_index, false, 1);
    source->abandoned.clear();
    if (!keep) source->release();
  }
  if (connection_ == nullptr) return;
  context.unwatch(*connection_);
  connection_->on_event = nullptr;  // it may hold this connection's own handle
  context.registry.leave_poller(connection_->poller_index, true, 0);
  if (connection_->receive_source != nullptr) {
    connection_->receive_source->attached_connections.fetch_sub(1, std::memory_order_seq_cst);
    context.port.poke();  // its own drain may wait for that
  }
  if (keep) {
    context.registry.quarantine(connection_);
  } else {
    connection_->own_sources.clear();
    sources_.clear();
    connection_->receive_source.reset();
    connection_->connection.reset();  // the queue pair goes, if nobody else holds it
  }
  context.registry.remove(connection_->id);
}

/// Out of time: whatever somebody may still touch is kept, not destroyed, until the dispatcher
/// goes.
void Drain::give_up(TimePoint now, DrainContext& context) {
  report_.took = now - begin_;
  report_.clean = false;
  report_.quarantined = true;
  report_.marker_missing =
      report_.marker_missing || step_ == Step::marker_posting || step_ == Step::marker;
  static_cast<void>(send_removals(context));  // nobody waits for the answer
  report_.completions_abandoned = outstanding();
  for (const auto& source : sources_) {
    context.registry.remove(source->id);
    context.registry.quarantine(source);
  }
  if (connection_ == nullptr) return;
  context.unwatch(*connection_);
  connection_->on_event = nullptr;  // as in finish()
  context.registry.leave_poller(connection_->poller_index, true, 0);
  context.registry.abandon(connection_);
  if (connection_->receive_source != nullptr) {
    connection_->receive_source->abandoned.push_back(connection_);
    connection_->receive_source->attached_connections.fetch_sub(1, std::memory_order_seq_cst);
    context.port.poke();
  }
}

}  // namespace sluice::detail
