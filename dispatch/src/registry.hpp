// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "state.hpp"

namespace sluice::detail {

class Registry;

/// The place of one connection in a Registry; given back on destruction.
class ConnectionReservation {
 public:
  ConnectionReservation() noexcept = default;
  ConnectionReservation(ConnectionReservation&& other) noexcept
      : registry_(std::exchange(other.registry_, nullptr)) {}
  ConnectionReservation& operator=(ConnectionReservation&& other) noexcept {
    std::swap(registry_, other.registry_);
    return *this;
  }
  ~ConnectionReservation() { release(); }
  [[nodiscard]] bool held() const noexcept { return registry_ != nullptr; }
  void release() noexcept;

 private:
  friend class Registry;
  explicit ConnectionReservation(Registry* registry) noexcept : registry_(registry) {}
  Registry* registry_ = nullptr;
};

/// What is attached. Set-up and the control only, hence a mutex; no data path comes here.
class Registry {
 public:
  /// `sources_max`: of each poller.
  Registry(std::uint32_t connections_max, std::vector<std::uint32_t> sources_max)
      : connections_max_(connections_max),
        sources_max_(std::move(sources_max)),
        connections_per_poller_(sources_max_.size(), 0),
        sources_per_poller_(sources_max_.size(), 0) {}
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  /// Of these pollers the one with the fewest connections, then sources (R1); its counts are raised
  /// at once, so that set-ups at the same time spread, too. Nothing when all are full.
  [[nodiscard]] std::optional<std::uint32_t> choose_poller(const std::vector<std::uint32_t>& among,
                                                           bool connection, std::uint32_t sources);
  void leave_poller(std::uint32_t poller, bool connection, std::uint32_t sources);

  [[nodiscard]] SourceId next_source_id();
  void add(std::shared_ptr<SourceState> source);
  void remove(SourceId id);
  [[nodiscard]] std::shared_ptr<SourceState> find(SourceId id) const;
  [[nodiscard]] std::shared_ptr<SourceState> find_by_fd(int fd) const;

  /// A place for a connection still to be made: taken before it is asked for or accepted, so that
  /// none is half-open (C4). Empty when there are connections_max, reserved ones included.
  [[nodiscard]] ConnectionReservation reserve_connection();
  /// Gives it an id, with the place reserved for it or another one; ConnectionId::none when there
  /// are connections_max.
  [[nodiscard]] ConnectionId add(const std::shared_ptr<ConnectionState>& connection,
                                 ConnectionReservation reservation);
  void remove(ConnectionId id);
  [[nodiscard]] std::shared_ptr<ConnectionState> find(ConnectionId id) const;
  [[nodiscard]] std::shared_ptr<ConnectionState> find_by_qp_num(ibv_context* device,
                                                                std::uint32_t qp_num) const;

  [[nodiscard]] std::vector<std::shared_ptr<SourceState>> sources() const;
  [[nodiscard]] std::vector<std::shared_ptr<ConnectionState>> connections() const;
  [[nodiscard]] std::vector<std::uint32_t> connections_per_poller() const;

  /// Marks it as being detached: true, the caller sees to it. False when it was already: `done` was
  /// kept for end_detach(), or called with the report if that is long over.
  [[nodiscard]] bool begin_detach(SourceState& source, DetachCallback& done);
  [[nodiscard]] bool begin_detach(ConnectionState& connection, DetachCallback& done);
  /// Returns those who asked for it meanwhile.
  [[nodiscard]] std::vector<DetachCallback> end_detach(Detaching& detaching,
                                                       const DetachReport& report);
  [[nodiscard]] bool is_detaching(const SourceState& source) const;

  /// Counts a connection on a receive source; false when that is being detached.
  [[nodiscard]] bool join_source(SourceState& source);

  /// Keeps a connection until the dispatcher goes whose lane somebody may still hold: it goes on
  /// counting as one of connections_max, as the ring of runnable lanes has room for so many.
  void abandon(std::shared_ptr<ConnectionState> connection);
  /// Keeps what a drain had to leave behind until the dispatcher goes (C6).
  void quarantine(std::shared_ptr<ConnectionState> connection);
  void quarantine(std::shared_ptr<SourceState> source);

 private:
  [[nodiscard]] bool begin_detach(Detaching& detaching, DetachCallback& done);

  struct Entry {
    std::shared_ptr<ConnectionState> connection;
    std::uint32_t generation = 0;
  };
  friend class ConnectionReservation;
  mutable std::mutex mutex_;
  const std::uint32_t connections_max_;
  const std::vector<std::uint32_t> sources_max_;  ///< by poller
  std::uint32_t last_source_ = 0;
  std::map<SourceId, std::shared_ptr<SourceState>> sources_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_entries_;
  std::uint32_t connections_ = 0;  ///< added and reserved
  std::vector<std::uint32_t> connections_per_poller_;
  std::vector<std::uint32_t> sources_per_poller_;
  std::vector<std::shared_ptr<ConnectionState>> quarantined_connections_;
  std::vector<std::shared_ptr<SourceState>> quarantined_sources_;
};

}  // namespace sluice::detail
