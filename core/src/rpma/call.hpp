// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "sluice/core/status.hpp"

namespace sluice::rpma {

/// What librpma's log said on this thread since the last clear: its functions clean up before they
/// return, so that errno no longer tells what failed; the log is written first.
void clear_last_log() noexcept;
[[nodiscard]] int last_logged_errno() noexcept;
[[nodiscard]] std::string_view last_log() noexcept;

/// One call into librpma and the errno that belongs to it.
struct CallOutcome {
  int code = 0;
  int os_error = 0;
  [[nodiscard]] bool ok() const noexcept { return code == 0; }
};

template <typename Function>
[[nodiscard]] CallOutcome call(Function&& function) noexcept {
  clear_last_log();
  errno = 0;
  CallOutcome outcome;
  outcome.code = std::forward<Function>(function)();
  outcome.os_error = errno;
  if (const int logged = last_logged_errno(); outcome.code != 0 && logged != 0) {
    outcome.os_error = logged;
  }
  return outcome;
}

[[nodiscard]] inline Status set_nonblocking(int fd, std::string_view what) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) return {};
  return Status(
      StatusCode::io_error,
      "make the descriptor " + std::to_string(fd) + " of " + std::string(what) + " non-blocking",
      errno);
}

}  // namespace sluice::rpma
