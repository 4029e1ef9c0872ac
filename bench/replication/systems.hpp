// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "load.hpp"
#include "processes.hpp"
#include "sluice/core/status.hpp"

namespace sluice::bench {

/// When a write is acknowledged, as both systems offer it.
enum class Level : std::uint8_t {
  quorum_memory,  ///< when primary and replica have it
  quorum_disk,    ///< when it is on the disk of both
};
[[nodiscard]] const char* to_string(Level level) noexcept;

/// A primary and one replica, as processes on this machine. One thread at a time.
class System {
 public:
  System() = default;
  System(const System&) = delete;
  System& operator=(const System&) = delete;
  virtual ~System() = default;

  /// So many clients whose writes are acknowledged at the level.
  [[nodiscard]] virtual Result<LoadClients> clients(Level level, unsigned count) = 0;
  /// CPU time that its processes have used so far.
  [[nodiscard]] double cpu_ms() const;
  /// Waits until its processes have done what they owe and use no more CPU than an idle server
  /// does, so that the other system is measured alone. Says how long that took, in ms, kIdleLimitMs
  /// if they are still not idle then. Fails when a process has ended, or what is owed is not done.
  [[nodiscard]] Result<double> settle();
  static constexpr double kIdleLimitMs = 2000;

 protected:
  /// Whether everything that was acknowledged is where it will be in the end.
  [[nodiscard]] virtual Result<bool> all_done() = 0;
  /// Starts a process of the system; see ServerProcess::start().
  [[nodiscard]] Status start(std::vector<std::string> words, std::string log);
  /// Fails when a process has ended.
  [[nodiscard]] Status check();
  /// Asks again, a thousand times a second, until it is true; fails when it fails, a process ends,
  /// or kPatience is over: `what` tells what was waited for.
  template <typename Question>
  [[nodiscard]] Status await(const char* what, Question question);
  /// A port that is this system's for its life.
  [[nodiscard]] Result<std::uint16_t> reserve_port();

 private:
  std::vector<ReservedPort> ports_;
  std::vector<ServerProcess> processes_;
};

/// redis-server with one replica; every SET is followed by WAIT 1 0. At quorum_disk both append to
/// a file and sync it before they answer (appendfsync always); at quorum_memory neither has one.
[[nodiscard]] Result<std::unique_ptr<System>> start_redis(Level level, const DataFolder& folder);

/// sluice-kv in a cluster of two without etcd, replication over softrdma. The level is a
/// connection's.
[[nodiscard]] Result<std::unique_ptr<System>> start_sluice_kv(const DataFolder& folder);

/// Why these systems cannot be started here; empty: they can.
[[nodiscard]] std::string missing_systems();

}  // namespace sluice::bench
