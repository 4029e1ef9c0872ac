// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "files.hpp"
#include "process.hpp"  // sluice-replicate's
#include "sluice/core/status.hpp"

namespace demo {

using replicate::Descriptor;
using replicate::Interrupts;
using Clock = std::chrono::steady_clock;

/// Sleeps; cancelled at once when a signal tells to end.
[[nodiscard]] sluice::Status pause(Interrupts& interrupts, std::chrono::milliseconds time);

/// A folder that is removed with all that is in it, unless it is to be kept.
class Folder {
 public:
  [[nodiscard]] static sluice::Result<Folder> make(bool keep);
  Folder(Folder&& other) noexcept : path_(std::exchange(other.path_, {})), keep_(other.keep_) {}
  Folder& operator=(Folder&&) = delete;
  ~Folder();
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  Folder(std::string path, bool keep) noexcept : path_(std::move(path)), keep_(keep) {}
  std::string path_;
  bool keep_;
};

/// A free TCP port, kept for a server that binds it with SO_REUSEADDR, over all its lives: the
/// socket is bound and never listens.
class Port {
 public:
  [[nodiscard]] static sluice::Result<Port> reserve();
  [[nodiscard]] std::uint16_t number() const noexcept { return number_; }

 private:
  Port(Descriptor socket, std::uint16_t number) noexcept
      : socket_(std::move(socket)), number_(number) {}
  Descriptor socket_;
  std::uint16_t number_;
};

/// A process that this one starts, in a process group of its own: Ctrl-C reaches the demo, which
/// ends the others in order. The kernel kills it when the thread that started it ends.
class Child {
 public:
  /// words[0] is looked for in PATH unless it has a slash; what it says is added to the file `log`.
  [[nodiscard]] static sluice::Result<Child> start(std::vector<std::string> words, std::string log);
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        ended_(std::move(other.ended_)),
        name_(std::move(other.name_)),
        log_(std::move(other.log_)) {}
  Child& operator=(Child&&) = delete;
  /// end()
  ~Child();

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] bool running() const noexcept { return pid_ >= 0; }
  /// kill -9, and waits for its end.
  void kill() noexcept;
  /// SIGTERM to those of `children` that run; then waits for all, and kills what is not gone after
  /// kEndLimit. Says which did not end with status 0.
  static sluice::Status end(std::vector<Child*> children) noexcept;
  static constexpr std::chrono::seconds kEndLimit{10};
  /// Waits for its end: its exit status, or 128 + the signal.
  [[nodiscard]] sluice::Result<int> wait(Interrupts& interrupts, std::chrono::milliseconds limit);
  /// Ok while it runs; else how it ended and what it said last.
  [[nodiscard]] sluice::Status check();

 private:
  Child(pid_t pid, Descriptor ended, std::string name, std::string log) noexcept
      : pid_(pid), ended_(std::move(ended)), name_(std::move(name)), log_(std::move(log)) {}
  [[nodiscard]] int reap() noexcept;
  [[nodiscard]] std::string last_words() const;
  pid_t pid_;         ///< -1: ended and waited for
  Descriptor ended_;  ///< readable once it has ended
  std::string name_, log_;
};

/// The program's path: beside this program, else in PATH; not found: what to install.
[[nodiscard]] std::string beside_this_program(const std::string& name);
[[nodiscard]] sluice::Status find_in_path(const std::string& program, const std::string& package);

}  // namespace demo
