// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sluice/core/status.hpp"

namespace sluice::bench {

/// A folder on a disk that is removed with all that is in it: in TMPDIR, else in /var/tmp, which
/// unlike /tmp is not kept in memory.
class DataFolder {
 public:
  [[nodiscard]] static Result<DataFolder> make();
  DataFolder(DataFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  DataFolder& operator=(DataFolder&&) = delete;
  ~DataFolder();
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Whether an fdatasync there reaches a disk, as far as the file system's type tells.
  [[nodiscard]] bool on_disk() const noexcept;
  /// A new folder in it.
  [[nodiscard]] Result<std::string> make_folder(const std::string& name) const;

 private:
  explicit DataFolder(std::string path) noexcept : path_(std::move(path)) {}
  std::string path_;
};

/// A TCP port of the loopback interface, chosen by the kernel and kept for a server that binds it
/// with SO_REUSEADDR: the socket is bound and never listens.
class ReservedPort {
 public:
  [[nodiscard]] static Result<ReservedPort> take();
  ReservedPort(ReservedPort&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), number_(other.number_) {}
  ReservedPort& operator=(ReservedPort&&) = delete;
  ~ReservedPort();
  [[nodiscard]] std::uint16_t number() const noexcept { return number_; }

 private:
  ReservedPort(int fd, std::uint16_t number) noexcept : fd_(fd), number_(number) {}
  int fd_;
  std::uint16_t number_;
};

/// Holds SIGINT and SIGTERM back until what was started is ended and removed; then they do what
/// they would have done. For the thread that makes it, before others are started.
class HeldSignals {
 public:
  HeldSignals() noexcept;
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals();
  /// cancelled once one of them has come.
  [[nodiscard]] Status check() const;

 private:
  sigset_t before_{};
};

/// A server process in a group of its own (a terminal's Ctrl-C is ours to hand on), killed by the
/// kernel should the thread that started it end first.
class ServerProcess {
 public:
  /// words[0] is looked for in PATH unless it has a slash; what it says goes to the file `log`.
  [[nodiscard]] static Result<ServerProcess> start(std::vector<std::string> words, std::string log);
  ServerProcess(ServerProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), log_(std::move(other.log_)) {}
  ServerProcess& operator=(ServerProcess&&) = delete;
  /// SIGTERM, and SIGKILL when that takes longer than kEndLimit.
  ~ServerProcess();
  /// Ok while it runs; else what it said last.
  [[nodiscard]] Status check();
  /// CPU time of all its threads so far; 0 if it has ended.
  [[nodiscard]] double cpu_ms() const noexcept;

 private:
  static constexpr int kEndLimitMs = 5000;
  ServerProcess(pid_t pid, std::string log) noexcept : pid_(pid), log_(std::move(log)) {}
  pid_t pid_;  ///< -1: ended and waited for
  std::string log_;
};

/// The program's path if it is in PATH; empty: it is not.
[[nodiscard]] std::string find_in_path(const std::string& program);

}  // namespace sluice::bench
