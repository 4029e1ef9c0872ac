// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

#include "sluice/core/cacheline.hpp"
#include "sluice/core/scq_ring.hpp"
#include "sluice/core/status.hpp"

namespace sluice {

/// An eventfd, non-blocking and close-on-exec: readable from signal() until drain().
/// Threads: any. Cost: a system call each.
class EventFd {
 public:
  /// Opens it; on failure fd() is -1, errno says why, and signal() and drain() do nothing.
  EventFd() noexcept;
  ~EventFd();
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;

  [[nodiscard]] int fd() const noexcept { return fd_; }
  void signal() const noexcept { signal(fd_); }
  void drain() const noexcept { drain(fd_); }

  /// The same for a descriptor that is kept elsewhere; open() returns -1 and errno on failure.
  [[nodiscard]] static int open() noexcept;
  static void signal(int fd) noexcept;
  static void drain(int fd) noexcept;

 private:
  int fd_;
};

/// A bounded queue of commands to one thread that owns some state (C6), with a descriptor that it
/// can sleep on together with others.
///
/// Threads: post and poke any; the rest by the consumer.
/// Progress: post and take lock-free; post makes a system call only if the consumer sleeps.
/// Invariant, no lost wake: a Dekker pair. The consumer marks itself asleep, then looks into the
/// ring; a poster puts its mail into the ring, then looks at the mark. All four are seq_cst (the
/// ring's part: ScqIndexRing (1) (3) and (9)), so at least one of the two sees the other: either
/// prepare_to_sleep() says no, or the poster signals the descriptor.
///   (1) mark set, seq_cst, prepare_to_sleep -> (2) mark read, seq_cst, post
/// Every poster that sees the mark signals; none relies on another to do it, so one that is frozen
/// before its signal delays nobody's mail but its own. The mark stands until the consumer is up.
/// The consumer's loop:
///   while (take(command)) ...;
///   if (prepare_to_sleep()) { epoll_wait(...); finish_sleep(); if (fd was readable) drain_fd(); }
///
/// N is the capacity if it is known at compile time, or 0: then the constructor is told.
template <typename T, std::size_t N = 0, typename Hooks = NoHooks>
class Mailbox {
 public:
  Mailbox() requires(N > 0) : ring_(N) {}
  explicit Mailbox(std::size_t capacity) requires(N == 0) : ring_(capacity) {}

  /// Whether the descriptor could be opened. Without one, post and take work, sleeping does not.
  [[nodiscard]] Status status() const {
    if (event_.fd() >= 0) return Status::okay();
    return {StatusCode::resource_exhausted, "no eventfd could be opened for a mailbox"};
  }

  [[nodiscard]] std::size_t capacity() const noexcept { return ring_.capacity(); }

  /// Posts a command and wakes the consumer if it sleeps. False when full: nothing was posted, and
  /// `command` is untouched.
  [[nodiscard]] bool post(T&& command) noexcept {
    if (!ring_.push(std::move(command))) return false;
    wake_if_asleep();
    return true;
  }
  [[nodiscard]] bool post(
      const T& command) noexcept requires std::is_nothrow_copy_constructible_v<T> {
    if (!ring_.push(command)) return false;
    wake_if_asleep();
    return true;
  }

  /// Makes the descriptor readable without mail: the consumer's sleep ends, or its next one is
  /// short.
  void poke() noexcept { event_.signal(); }

  /// Takes the oldest command; false when there is none.
  [[nodiscard]] bool take(T& out) noexcept { return ring_.pop(out); }

  /// No mail at some moment within the call.
  [[nodiscard]] bool empty_seq_cst() const noexcept { return ring_.empty_seq_cst(); }

  /// To poll for reading while asleep. Level-triggered: readable until drain_fd().
  [[nodiscard]] int fd() const noexcept { return event_.fd(); }

  /// Call it when the descriptor was reported readable. A late signal may make it readable once
  /// more, without mail; that is an empty wake.
  void drain_fd() noexcept { event_.drain(); }

  /// From now on a post signals the descriptor. False: there is mail, do not sleep.
  [[nodiscard]] bool prepare_to_sleep() noexcept {
    asleep_.mark.store(true, std::memory_order_seq_cst);  // (1) seq_cst: pairs with (2)
    Hooks::at("mailbox.sleep.marked");
    if (ring_.empty_seq_cst()) return true;  // seq_cst: pairs with the ring's push
    Hooks::at("mailbox.sleep.refused");
    finish_sleep();
    return false;
  }

  /// The sleep is over, however it ended: posts cost no system call again.
  void finish_sleep() noexcept {
    // Relaxed: a poster that still reads true signals once in vain.
    asleep_.mark.store(false, std::memory_order_relaxed);
  }

 private:
  struct alignas(kCacheLine) AsleepLine {
    std::atomic<bool> mark{false};
  };
  static_assert(sizeof(AsleepLine) == kCacheLine);

  void wake_if_asleep() noexcept {
    Hooks::at("mailbox.post.pushed");
    // (2) seq_cst: pairs with (1). Comes after the ring's push in the order of seq_cst operations.
    if (!asleep_.mark.load(std::memory_order_seq_cst)) return;
    Hooks::at("mailbox.post.seen_asleep");
    event_.signal();
    Hooks::at("mailbox.post.signalled");
  }

  ScqRing<T, Hooks> ring_;
  AsleepLine asleep_;  ///< written by the consumer
  alignas(kCacheLine) EventFd event_;
};

}  // namespace sluice
