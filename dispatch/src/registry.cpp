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

std::optional<std::uint32_t> Registry::choose_poller(std::uint32_t wanted, bool connection,
                                                     std::uint32_t sources) {
  const std::scoped_lock lock(mutex_);
  std::optional<std::uint32_t> best;
  for (std::uint32_t i = 0; i < connections_per_poller_.size(); ++i) {
    if (wanted != kAnyPoller && wanted != i) continue;
    if (sources_per_poller_[i] + sources > sources_max_) continue;
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

ConnectionId Registry::add(const std::shared_ptr<ConnectionState>& connection) {
  const std::scoped_lock lock(mutex_);
  std::uint32_t index = 0;
  if (!free_entries_.empty()) {
    index = free_entries_.back();
    free_entries_.pop_back();
  } else if (entries_.size() < connections_max_) {
    index = static_cast<std::uint32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    return ConnectionId::none;
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
}

bool Registry::room_for_connection() const {
  const std::scoped_lock lock(mutex_);
  return !free_entries_.empty() || entries_.size() < connections_max_;
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

bool Registry::begin_detach(SourceState& source) {
  const std::scoped_lock lock(mutex_);
  return !std::exchange(source.detaching, true);
}

bool Registry::begin_detach(ConnectionState& connection) {
  const std::scoped_lock lock(mutex_);
  for (const auto& source : connection.own_sources) source->detaching = true;
  return !std::exchange(connection.detaching, true);
}

bool Registry::is_detaching(const SourceState& source) const {
  const std::scoped_lock lock(mutex_);
  return source.detaching;
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
