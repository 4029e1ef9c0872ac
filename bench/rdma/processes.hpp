// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <functional>
#include <utility>

#include "sluice/core/status.hpp"

namespace sluice::bench {

/// A child process that tells its parent a port number, and goes when it is told or abandoned.
class Child {
 public:
  /// `body(tell, end_fd)`: the child's program; `tell(port)` lets the parent go on, and end_fd is
  /// readable (end of file) once the parent wants it to end or is gone. Returns its exit status.
  static Result<Child> start(
      const std::function<int(const std::function<void(std::uint16_t)>&, int)>& body) {
    int told[2] = {-1, -1}, end[2] = {-1, -1};
    if (::pipe(told) != 0 || ::pipe(end) != 0)
      return Status(StatusCode::resource_exhausted, "no pipe", errno);
    Child child;
    child.pid_ = ::fork();
    if (child.pid_ < 0) return Status(StatusCode::resource_exhausted, "fork failed", errno);
    if (child.pid_ == 0) {
      ::close(told[0]);
      ::close(end[1]);
      const auto tell = [&](std::uint16_t port) {
        if (::write(told[1], &port, sizeof port) != sizeof port) std::_Exit(1);
      };
      std::_Exit(body(tell, end[0]));
    }
    ::close(told[1]);
    ::close(end[0]);
    child.end_ = end[1];
    const bool ready = ::read(told[0], &child.port_, sizeof child.port_) == sizeof child.port_;
    ::close(told[0]);
    if (!ready) return Status(StatusCode::internal, "the other process did not come up");
    return child;
  }
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        end_(std::exchange(other.end_, -1)),
        port_(other.port_) {}
  Child& operator=(Child&&) = delete;
  ~Child() { static_cast<void>(finish()); }

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  /// Tells it to end and waits for that. Its exit status, or -1.
  int finish() noexcept {
    if (end_ >= 0) ::close(std::exchange(end_, -1));
    if (pid_ <= 0) return -1;
    int status = 0;
    const pid_t pid = std::exchange(pid_, -1);
    if (::waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
    return WEXITSTATUS(status);
  }

 private:
  Child() = default;
  pid_t pid_ = -1;
  int end_ = -1;
  std::uint16_t port_ = 0;
};

}  // namespace sluice::bench
