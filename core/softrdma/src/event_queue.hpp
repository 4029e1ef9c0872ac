// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <mutex>

namespace softrdma {

/// Events with a file descriptor that is readable while there are any: completion channels, rdma_cm
/// event channels and a context's asynchronous events. The descriptor is an eventfd whose
/// O_NONBLOCK flag belongs to the user, as with the kernel's descriptors: pop() blocks, or fails
/// with EAGAIN, as the flag says, and with EINTR as read(2) does. Thread-safe.
///
/// The eventfd holds a token while the queue is not empty; who takes the token takes one event and
/// puts the token back if more are left. Two threads that pop at the same moment can see EAGAIN
/// between the two steps, and are woken again.
template <class T>
class EventQueue {
 public:
  EventQueue() = default;
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;
  ~EventQueue() {
    if (fd_ >= 0) ::close(fd_);
  }

  [[nodiscard]] bool open() noexcept {
    fd_ = ::eventfd(0, EFD_CLOEXEC);
    return fd_ >= 0;
  }
  [[nodiscard]] int fd() const noexcept { return fd_; }

  void push(const T& item) {
    const std::lock_guard lock(mutex_);
    items_.push_back(item);
    if (items_.size() == 1) put_token();
  }

  /// `on_pop(item)` runs before another thread can look, so that an event counts as reported from
  /// the moment that it is no longer in the queue.
  template <class OnPop>
  [[nodiscard]] bool pop(T& out, OnPop&& on_pop) {
    for (;;) {
      std::uint64_t token = 0;
      if (::read(fd_, &token, sizeof token) < 0) return false;
      const std::lock_guard lock(mutex_);
      if (items_.empty()) continue;  // its event was removed between the two steps
      out = items_.front();
      items_.pop_front();
      on_pop(out);
      if (!items_.empty()) put_token();
      return true;
    }
  }

  /// Takes out all events for which `matches(item)` holds; `each(item)` sees them. Runs under the
  /// queue's lock.
  template <class Matches, class Each>
  void remove_if(Matches&& matches, Each&& each) {
    const std::lock_guard lock(mutex_);
    const bool had = !items_.empty();
    for (auto it = items_.begin(); it != items_.end();) {
      if (matches(*it)) {
        each(*it);
        it = items_.erase(it);
      } else {
        ++it;
      }
    }
    if (had && items_.empty()) take_token();
  }

  /// Runs `body` while no event can come or go.
  template <class Body>
  void locked(Body&& body) {
    const std::lock_guard lock(mutex_);
    body();
  }

 private:
  void put_token() noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(fd_, &one, sizeof one);
  }
  void take_token() noexcept {
    // Not a plain read: the token may be gone already, and the user's descriptor may be a blocking
    // one. Where the kernel lacks RWF_NOWAIT for eventfds the token stays, and the next pop() finds
    // nothing.
    std::uint64_t token = 0;
    iovec vector{&token, sizeof token};
    const int saved = errno;
    [[maybe_unused]] const ssize_t n = ::preadv2(fd_, &vector, 1, -1, RWF_NOWAIT);
    errno = saved;
  }

  std::mutex mutex_;
  std::deque<T> items_;
  int fd_ = -1;
};

}  // namespace softrdma
