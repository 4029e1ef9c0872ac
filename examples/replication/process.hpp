// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files.hpp"
#include "options.hpp"
#include "sluice/core/status.hpp"

namespace replicate {

/// SIGINT and SIGTERM as something to poll(2). Blocks both for the thread that makes it and all
/// threads that are started later: make it first.
class Interrupts {
 public:
  Interrupts();
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  /// The signal that has come, 0: none. Stays set.
  [[nodiscard]] int pending() noexcept;
  /// cancelled, with what to say, once a signal has come.
  [[nodiscard]] sluice::Status check();

 private:
  Descriptor fd_;
  int signal_ = 0;
};

/// A replica process started by this one, on the other end of a socket pair. The replica says over
/// it where it listens (or why not), and reads end-of-file from it when this process is gone, no
/// matter how; the kernel sends it SIGTERM then as well.
class ReplicaProcess {
 public:
  /// fork + exec of this program as `sluice-replicate replica ...`. Call it before any thread is
  /// started and before any use of librpma, which does not survive a fork.
  static sluice::Result<ReplicaProcess> start(const Options& options, std::uint32_t number,
                                              const std::string& copy_name);
  ReplicaProcess(ReplicaProcess&& other) noexcept;
  ReplicaProcess& operator=(ReplicaProcess&&) = delete;
  /// stop() within kStopLimit.
  ~ReplicaProcess();

  /// Waits until it listens; returns the port.
  [[nodiscard]] sluice::Result<std::uint16_t> wait_until_listening(Interrupts& interrupts,
                                                                   std::chrono::milliseconds limit);
  /// Lets it read end-of-file, which tells it to end; does not wait.
  void ask_to_end() noexcept;
  /// Asks it to end, waits until the deadline, then kills it. Leaves no zombie.
  void stop(std::chrono::steady_clock::time_point deadline) noexcept;
  static constexpr std::chrono::milliseconds kStopLimit{700};

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] int control_fd() const noexcept { return control_.get(); }

 private:
  ReplicaProcess(pid_t pid, Descriptor control, std::uint32_t number) noexcept
      : pid_(pid), control_(std::move(control)), number_(number) {}
  [[nodiscard]] sluice::Status why_it_ended();
  pid_t pid_;  ///< -1: has ended and been waited for
  Descriptor control_;
  std::uint32_t number_;
};

/// All of them: they are asked to end together, so that this takes as long as the slowest.
void stop_all(std::vector<ReplicaProcess>& processes) noexcept;

/// The replica's end of that socket pair; does nothing in a replica that was started by hand.
class Starter {
 public:
  explicit Starter(int control_fd) noexcept;
  [[nodiscard]] bool present() const noexcept { return control_.get() >= 0; }
  /// Readable (end of file) when the starter is gone; -1 if there is none.
  [[nodiscard]] int fd() const noexcept { return control_.get(); }
  void listening(std::uint16_t port) noexcept;
  void failed(const sluice::Status& why) noexcept;

 private:
  void say(std::string_view line) noexcept;
  Descriptor control_;
};

/// Ends this process after `seconds`, whatever its threads are stuck in: the last resort of a
/// shutdown.
void end_process_after(unsigned seconds) noexcept;

}  // namespace replicate
