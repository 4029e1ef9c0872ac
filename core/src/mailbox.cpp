// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/mailbox.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace sluice {

EventFd::EventFd() noexcept : fd_(open()) {}

EventFd::~EventFd() {
  if (fd_ >= 0) ::close(fd_);
}

int EventFd::open() noexcept {
  return ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
}

void EventFd::signal(int fd) noexcept {
  if (fd < 0) return;
  const int saved_errno = errno;
  const std::uint64_t one = 1;
  // EAGAIN: the counter is at its maximum, so the descriptor is readable, which is all we want.
  // EINTR: nothing was written; eventfd(2) can report it only for a blocking descriptor.
  while (::write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
  errno = saved_errno;
}

void EventFd::drain(int fd) noexcept {
  if (fd < 0) return;
  const int saved_errno = errno;
  std::uint64_t count = 0;
  while (::read(fd, &count, sizeof count) < 0 && errno == EINTR) {  // one read empties it
  }
  errno = saved_errno;
}

}  // namespace sluice
