// SPDX-License-Identifier: BSD-3-Clause
#include "engine.hpp"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <system_error>

#include "log.hpp"

namespace softrdma {

Nanoseconds now_ns() noexcept {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<Nanoseconds>(t.tv_sec) * 1'000'000'000 + static_cast<Nanoseconds>(t.tv_nsec);
}

bool Engine::start() noexcept {
  const std::lock_guard lock(mutex_);
  if (started_) return true;
  epoll_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  if (epoll_fd_ < 0 || wake_fd_ < 0 ||
      ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, wake_fd_, &event) != 0) {
    const int error = errno;
    if (epoll_fd_ >= 0) ::close(epoll_fd_);
    if (wake_fd_ >= 0) ::close(wake_fd_);
    log_line(LogLevel::kError, "the engine's descriptors could not be made: errno %d", error);
    errno = error;
    return false;
  }
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  try {
    thread_ = std::thread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "softrdma");
    started_ = true;
  } catch (const std::system_error& e) {
    error = e.code().value();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started_) {
    log_line(LogLevel::kError, "the engine's thread could not be started: errno %d", error);
    ::close(epoll_fd_);
    ::close(wake_fd_);
    errno = error;
  }
  return started_;
}

void Engine::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!started_) return;
    started_ = false;
  }
  stopping_.store(true, std::memory_order_relaxed);
  wake();
  thread_.join();
}

void Engine::wake() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_fd_, &one, sizeof one);
}

std::uint64_t Engine::add(int fd, std::uint32_t events, std::shared_ptr<Pollable> object) noexcept {
  if (!start()) return 0;
  const std::lock_guard lock(mutex_);
  const std::uint64_t token = next_token_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  objects_.emplace(token, std::move(object));
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
    objects_.erase(token);
    return 0;
  }
  return token;
}

void Engine::modify(std::uint64_t token, int fd, std::uint32_t events) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event);
}

void Engine::remove(std::uint64_t token, int fd) noexcept {
  std::shared_ptr<Pollable> last;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
  if (const auto found = objects_.find(token); found != objects_.end()) {
    last = std::move(found->second);
    objects_.erase(found);
  }
}

void Engine::arm_timer(Nanoseconds when, std::weak_ptr<Pollable> object, int kind,
                       std::uint64_t argument) noexcept {
  if (!start()) return;
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = timers_.empty() || when < timers_.top().when;
    timers_.push({when, next_order_++, std::move(object), kind, argument});
  }
  if (first && std::this_thread::get_id() != thread_.get_id()) wake();
}

void Engine::post(std::function<void()> task) noexcept {
  if (!start()) return;
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake();
}

void Engine::run_tasks() noexcept {
  std::vector<std::function<void()>> now;
  {
    const std::lock_guard lock(mutex_);
    now.swap(tasks_);
  }
  for (auto& task : now) task();
}

Nanoseconds Engine::run_timers() noexcept {
  for (;;) {
    Timer due{};
    {
      const std::lock_guard lock(mutex_);
      if (timers_.empty()) return kForever;
      const Nanoseconds now = now_ns();
      if (timers_.top().when > now) return timers_.top().when - now;
      due = timers_.top();
      timers_.pop();
    }
    if (const auto object = due.object.lock()) object->on_timer(due.kind, due.argument);
  }
}

int Engine::wait(void* events, int count, Nanoseconds timeout) noexcept {
  auto* out = static_cast<epoll_event*>(events);
  if (timeout == kForever) return ::epoll_wait(epoll_fd_, out, count, -1);
  timespec t{};
  t.tv_sec = static_cast<time_t>(timeout / 1'000'000'000);
  t.tv_nsec = static_cast<long>(timeout % 1'000'000'000);
  const int n = ::epoll_pwait2(epoll_fd_, out, count, &t, nullptr);
  if (n >= 0 || errno != ENOSYS) return n;
  return ::epoll_wait(
      epoll_fd_, out, count,
      static_cast<int>(std::min<Nanoseconds>(timeout / kMillisecond + 1, 3'600'000)));
}

void Engine::run() noexcept {
  constexpr int kBatch = 64;
  epoll_event events[kBatch];
  Nanoseconds timeout = kForever;
  while (!stopping_.load(std::memory_order_relaxed)) {
    const int n = wait(events, kBatch, timeout);
    for (int i = 0; i < n; ++i) {
      const std::uint64_t token = events[i].data.u64;
      if (token == 0) {
        std::uint64_t value = 0;
        [[maybe_unused]] const ssize_t r = ::read(wake_fd_, &value, sizeof value);
        continue;
      }
      std::shared_ptr<Pollable> object;
      {
        const std::lock_guard lock(mutex_);
        if (const auto found = objects_.find(token); found != objects_.end())
          object = found->second;
      }
      if (object) object->on_events(events[i].events);
    }
    run_tasks();
    // Timers after the sockets: what has arrived in time is not late since the thread was.
    timeout = run_timers();
  }
}

}  // namespace softrdma
