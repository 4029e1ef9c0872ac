// SPDX-License-Identifier: BSD-3-Clause
#include "registry.hpp"

#include <utility>

namespace sluice::detail {
namespace {

ConnectionId make_id(std::uint32_t index, std::uint32_t generation) {
  return ConnectionId{(std::uint64_t{generation} << 32) | index};
}
std::uint32_t index_of(ConnectionId id) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(id));
}
std::uint32_t generation_of(ConnectionId id) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(id) >> 32);
}

}  // namespace

Registry::~Registry() {
  // A receive source knows its abandoned connections, and they know it.
  for (const auto& connection : quarantined_connections_) connection->receive_source.reset();
}

std::optional<std::uint32_t> Registry::choose_poller(const std::vector<std::uint32_t>& among,
                                                     bool connection, std::uint32_t sources) {
  const std::scoped_lock lock(mutex_);
  std::optional<std::uint32_t> best;
  for (const std::uint32_t i : among) {
    if (sources_per_poller_[i] + sources > sources_max_[i]) continue;
    if (!best || std::pair(connections_per_poller_[i], sources_per_poller_[i]) <
                     std::pair(connections_per_poller_[*best], sources_per_poller_[*best])) {
      best = i;
    }
  }
  if (best) {
    if (connection) ++connections_per_poller_[*best];
    sources_per_poller_[*best] += sources;
  }
  return best;
}

void Registry::leave_poller(std::uint32_t poller, bool connection, std::uint32_t sources) {
  const std::scoped_lock lock(mutex_);
  if (connection) --connections_per_poller_[poller];
  sources_per_poller_[poller] -= sources;
}

SourceId Registry::next_source_id() {
  const std::scoped_lock lock(mutex_);
  return SourceId{++last_source_};
}

void Registry::add(std::shared_ptr<SourceState> source) {
  const std::scoped_lock lock(mutex_);
  const SourceId id = source->id;
  sources_.emplace(id, std::move(source));
}

void Registry::remove(SourceId id) {
  std::shared_ptr<SourceState> last;  // destroyed outside of the lock
  const std::scoped_lock lock(mutex_);
  if (const auto found = sources_.find(id); found != sources_.end()) {
    last = std::move(found->second);
    sources_.erase(found);
  }
}

std::shared_ptr<SourceState> Registry::find(SourceId id) const {
  const std::scoped_lock lock(mutex_);
  const auto found = sources_.find(id);
  return found == sources_.end() ? nullptr : found->second;
}

std::shared_ptr<SourceState> Registry::find_by_fd(int fd) const {
  const std::scoped_lock lock(mutex_);
  for (const auto& [id, source] : sources_) {
    if (source->source->wait_fd() == fd) return source;
  }
  return nullptr;
}

void ConnectionReservation::release() noexcept {
  Registry* const registry = std::exchange(registry_, nullptr);
  if (registry == nullptr) return;
  const std::scoped_lock lock(registry->mutex_);
  --registry->connections_;
}

ConnectionReservation Registry::reserve_connection() {
  const std::scoped_lock lock(mutex_);
  if (connections_ >= connections_max_) return {};
  ++connections_;
  return ConnectionReservation(this);
}

ConnectionId Registry::add(const std::shared_ptr<ConnectionState>& connection,
                           ConnectionReservation reservation) {
  const std::scoped_lock lock(mutex_);
  if (reservation.held()) {
    reservation.registry_ = nullptr;  // its place is this connection's from here on
  } else if (connections_ < connections_max_) {
    ++connections_;
  } else {
    return ConnectionId::none;
  }
  std::uint32_t index = 0;
  if (!free_entries_.empty()) {
    index = free_entries_.back();
    free_entries_.pop_back();
  } else {
    index = static_cast<std::uint32_t>(entries_.size());
    entries_.emplace_back();
  }
  Entry& entry = entries_[index];
  entry.connection = connection;
  connection->id = make_id(index, ++entry.generation);
  return connection->id;
}

void Registry::remove(ConnectionId id) {
  std::shared_ptr<ConnectionState> last;  // destroyed outside of the lock
  const std::scoped_lock lock(mutex_);
  Entry& entry = entries_[index_of(id)];
  if (entry.generation != generation_of(id) || entry.connection == nullptr) return;
  last = std::move(entry.connection);
  entry.connection = nullptr;
  free_entries_.push_back(index_of(id));
  --connections_;
  if (last->lanes_used != nullptr) last->lanes_used->fetch_sub(1, std::memory_order_relaxed);
}

std::shared_ptr<ConnectionState> Registry::find(ConnectionId id) const {
  const std::scoped_lock lock(mutex_);
  if (index_of(id) >= entries_.size()) return nullptr;
  const Entry& entry = entries_[index_of(id)];
  return entry.generation == generation_of(id) ? entry.connection : nullptr;
}

std::shared_ptr<ConnectionState> Registry::find_by_qp_num(ibv_context* device,
                                                          std::uint32_t qp_num) const {
  const std::scoped_lock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.connection != nullptr && entry.connection->qp_num == qp_num &&
        entry.connection->device == device) {
      return entry.connection;
    }
  }
  return nullptr;
}

std::vector<std::shared_ptr<SourceState>> Registry::sources() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<SourceState>> all;
  all.reserve(sources_.size());
  for (const auto& [id, source] : sources_) all.push_back(source);
  return all;
}

std::vector<std::shared_ptr<ConnectionState>> Registry::connections() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<ConnectionState>> all;
  for (const Entry& entry : entries_) {
    if (entry.connection != nullptr) all.push_back(entry.connection);
  }
  return all;
}

std::vector<std::uint32_t> Registry::connections_per_poller() const {
  const std::scoped_lock lock(mutex_);
  return connections_per_poller_;
}

bool Registry::begin_detach(Detaching& detaching, DetachCallback& done) {
  std::optional<DetachReport> over;
  {
    const std::scoped_lock lock(mutex_);
    if (!std::exchange(detaching.begun, true)) return true;
    over = detaching.report;
    if (!over && done) detaching.waiters.push_back(std::move(done));
  }
  if (over && done) done(*over);
  return false;
}

bool Registry::begin_detach(SourceState& source, DetachCallback& done) {
  return begin_detach(source.detaching, done);
}

bool Registry::begin_detach(ConnectionState& connection, DetachCallback& done) {
  if (!begin_detach(connection.detaching, done)) return false;
  const std::scoped_lock lock(mutex_);
  for (const auto& source : connection.own_sources) source->detaching.begun = true;
  return true;
}

std::vector<DetachCallback> Registry::end_detach(Detaching& detaching, const DetachReport& report) {
  const std::scoped_lock lock(mutex_);
  detaching.report = report;
  return std::exchange(detaching.waiters, {});
}

bool Registry::is_detaching(const SourceState& source) const {
  const std::scoped_lock lock(mutex_);
  return source.detaching.begun;
}

bool Registry::join_source(SourceState& source) {
  const std::scoped_lock lock(mutex_);
  if (source.detaching.begun) return false;
  source.attached_connections.fetch_add(1, std::memory_order_seq_cst);
  return true;
}

void Registry::abandon(std::shared_ptr<ConnectionState> connection) {
  const std::scoped_lock lock(mutex_);
  entries_[index_of(connection->id)].connection = nullptr;  // gone, but its place is not free
  // A pool's lanes are a quota, and the ring has room for all places: this one is free again.
  if (auto* const lanes = std::exchange(connection->lanes_used, nullptr)) {
    lanes->fetch_sub(1, std::memory_order_relaxed);
  }
  quarantined_connections_.push_back(std::move(connection));
}

void Registry::quarantine(std::shared_ptr<ConnectionState> connection) {
  const std::scoped_lock lock(mutex_);
  quarantined_connections_.push_back(std::move(connection));
}

void Registry::quarantine(std::shared_ptr<SourceState> source) {
  const std::scoped_lock lock(mutex_);
  quarantined_sources_.push_back(std::move(source));
}

}  // namespace sluice::detail
