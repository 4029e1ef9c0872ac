// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <unordered_map>
#include <vector>

namespace softrdma {

using Nanoseconds = std::uint64_t;
inline constexpr Nanoseconds kMillisecond = 1'000'000;
[[nodiscard]] Nanoseconds now_ns() noexcept;

/// Something with a descriptor or timers in the engine. Its callbacks run on the engine's thread,
/// without a lock held.
class Pollable {
 public:
  virtual ~Pollable() = default;
  virtual void on_events(std::uint32_t events) noexcept = 0;
  virtual void on_timer(int /*kind*/, std::uint64_t /*argument*/) noexcept {}
};

/// The process's background thread: an epoll loop that sleeps until a socket, a timer or a task
/// wants it. Started by the first use; all signals are blocked in it. All functions are
/// thread-safe.
class Engine {
 public:
  Engine() = default;
  ~Engine() = default;  // never runs: it lives as long as the process; stop() ends its thread

  /// False with errno when the thread or its descriptors could not be made.
  [[nodiscard]] bool start() noexcept;
  void stop() noexcept;

  /// Returns a token for the two calls below, 0 with errno on failure. The engine keeps `object`
  /// alive until remove().
  [[nodiscard]] std::uint64_t add(int fd, std::uint32_t events,
                                  std::shared_ptr<Pollable> object) noexcept;
  void modify(std::uint64_t token, int fd, std::uint32_t events) noexcept;
  void remove(std::uint64_t token, int fd) noexcept;

  /// Calls on_timer(kind, argument) once at `when` if the object is still alive. There is no
  /// cancel: the object checks the argument.
  void arm_timer(Nanoseconds when, std::weak_ptr<Pollable> object, int kind,
                 std::uint64_t argument) noexcept;
  void post(std::function<void()> task) noexcept;

 private:
  struct Timer {
    Nanoseconds when;
    std::uint64_t order;
    std::weak_ptr<Pollable> object;
    int kind;
    std::uint64_t argument;
    bool operator<(const Timer& other) const noexcept {
      return when != other.when ? when > other.when : order > other.order;
    }
  };

  void run() noexcept;
  void run_tasks() noexcept;
  /// Returns how long to sleep then, kForever without a timer.
  Nanoseconds run_timers() noexcept;
  int wait(void* events, int count, Nanoseconds timeout) noexcept;
  static constexpr Nanoseconds kForever = ~0ULL;
  void wake() noexcept;

  std::mutex mutex_;
  bool started_ = false;
  int epoll_fd_ = -1;
  int wake_fd_ = -1;
  std::uint64_t next_token_ = 1;
  std::uint64_t next_order_ = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<Pollable>> objects_;
  std::priority_queue<Timer> timers_;
  std::vector<std::function<void()>> tasks_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace softrdma
