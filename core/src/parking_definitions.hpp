// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The member functions of BasicParkingLot: for parking.cpp, which ships ParkingLot, and for the
// tests, which put hooks in.
#include "sluice/core/parking.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <string>

#include "sluice/core/mailbox.hpp"
#include "sluice/core/status.hpp"

namespace sluice {
namespace parking_detail {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
                  std::atomic<std::uint32_t>::is_always_lock_free,
              "futex(2) needs the plain 32-bit word");

/// futex(2): waits while *word == expected, until an absolute time of CLOCK_MONOTONIC, which is
/// what steady_clock reads. Returns the errno, 0 when woken.
inline int futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                      ParkingLot::TimePoint deadline) noexcept {
  timespec until{};
  const timespec* timeout = nullptr;
  if (deadline != ParkingLot::kNoDeadline) {
    const auto since = std::max(deadline.time_since_epoch(), ParkingLot::Clock::duration::zero());
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
    until.tv_sec = static_cast<time_t>(seconds.count());
    until.tv_nsec = static_cast<long>(std::chrono::nanoseconds(since - seconds).count());
    timeout = &until;
  }
  const long result = ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, expected,
                                timeout, nullptr, FUTEX_BITSET_MATCH_ANY);
  return result == 0 ? 0 : errno;
}

inline void futex_wake(std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, nullptr, nullptr, 0);
}

/// For counters with a single writer: no locked instruction.
inline void bump(std::atomic<std::uint64_t>& counter) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

constexpr std::uint64_t bit_of(unsigned id) noexcept {
  return std::uint64_t{1} << id;
}

}  // namespace parking_detail

template <typename Hooks>
BasicParkingLot<Hooks>::BasicParkingLot(unsigned workers)
    : workers_(workers), slots_(std::make_unique<Worker[]>(workers)) {
  SLUICE_CHECK(workers >= 1 && workers <= kMaxWorkers, "ParkingLot: 1 to 58 workers");
}

template <typename Hooks>
BasicParkingLot<Hooks>::~BasicParkingLot() {
  for (unsigned id = 0; id < workers_; ++id) {
    const int fd = slots_[id].own.fd.load(std::memory_order_relaxed);
    if (fd >= 0) ::close(fd);
  }
}

// --- producers ---

template <typename Hooks>
bool BasicParkingLot<Hooks>::wake_one(std::uint64_t word) noexcept {
  while (!nobody_to_wake(word)) {  // bound: each further round means that the word has changed
    Hooks::at("parking.wake.word_read");
    const std::uint64_t lowest = word & (~word + 1);
    // (4) seq_cst, an acquire for sleep_by: pairs with (2) and (6).
    if (word_.value.compare_exchange_weak(word, (word & ~lowest) + kSearcher,
                                          std::memory_order_seq_cst, std::memory_order_seq_cst)) {
      Hooks::at("parking.wake.claimed");
      signal(static_cast<unsigned>(std::countr_zero(lowest)));
      return true;
    }
  }
  return false;
}

template <typename Hooks>
bool BasicParkingLot<Hooks>::wake(unsigned id) noexcept {
  SLUICE_CHECK(id < workers_, "ParkingLot::wake(): no such worker");
  std::uint64_t word = word_.value.load(std::memory_order_seq_cst);  // (1) seq_cst: pairs with (2)
  // bound: each further round means that the word has changed
  while ((word & parking_detail::bit_of(id)) != 0) {
    Hooks::at("parking.wake.word_read");
    // (4) seq_cst: pairs with (2) and (6).
    if (word_.value.compare_exchange_weak(word, word - parking_detail::bit_of(id) + kSearcher,
                                          std::memory_order_seq_cst, std::memory_order_seq_cst)) {
      Hooks::at("parking.wake.claimed");
      signal(id);
      return true;
    }
  }
  return false;
}

template <typename Hooks>
void BasicParkingLot<Hooks>::wake_all() noexcept {
  for (unsigned id = 0; id < workers_; ++id) (void)wake(id);
}

template <typename Hooks>
void BasicParkingLot<Hooks>::stop() noexcept {
  stop_.value.store(true, std::memory_order_seq_cst);  // (8) seq_cst: pairs with (9)
  Hooks::at("parking.stop.told");
  wake_all();
}

/// Only by the one that has cleared the worker's bit.
template <typename Hooks>
void BasicParkingLot<Hooks>::signal(unsigned id) noexcept {
  Worker& worker = slots_[id];
  const bool by_fd = worker.own.sleep_by.load(std::memory_order_relaxed) == SleepBy::fd;
  Hooks::at("parking.wake.how_read");
  // (5) release: pairs with (7). The fetch_add is on a line that only wakers write.
  worker.futex.value.fetch_add(1, std::memory_order_release);
  Hooks::at("parking.wake.moved_on");
  // sleep_by and fd were written before the bit was set by (2), which (4) has acquired. Should the
  // worker have left that sleep since, and begun another, then this is a wake for nothing there.
  if (by_fd) {
    EventFd::signal(worker.own.fd.load(std::memory_order_relaxed));
  } else {
    parking_detail::futex_wake(worker.futex.value);
  }
  Hooks::at("parking.wake.done");
}

// --- a worker ---

template <typename Hooks>
typename BasicParkingLot<Hooks>::Worker& BasicParkingLot<Hooks>::enter(unsigned id, State expected,
                                                                       const char* call) noexcept {
  SLUICE_CHECK(id < workers_, std::string("ParkingLot::") + call + "(): no such worker");
  Worker& worker = slots_[id];
  SLUICE_CHECK(worker.own.state == expected,
               std::string("ParkingLot::") + call + "(): the worker is in the wrong state");
  return worker;
}

template <typename Hooks>
void BasicParkingLot<Hooks>::begin_search(unsigned id) noexcept {
  Worker& worker = enter(id, State::working, "begin_search");
  worker.own.state = State::searching;
  // seq_cst: comes before the scan, so a producer that reads it (1) may leave the work to us.
  word_.value.fetch_add(kSearcher, std::memory_order_seq_cst);
  Hooks::at("parking.begin_search.counted");
}

template <typename Hooks>
bool BasicParkingLot<Hooks>::leave_search(unsigned id, const char* call) noexcept {
  Worker& worker = enter(id, State::searching, call);
  worker.own.state = State::working;
  // (3) seq_cst: pairs with (1): the caller's look for what is left comes after it.
  const std::uint64_t before = word_.value.fetch_sub(kSearcher, std::memory_order_seq_cst);
  Hooks::at("parking.leave_search.left");
  // With no sleeper there is nobody to wake; whoever marks itself after (3) scans after that.
  return before < 2 * kSearcher && (before & kSleeperMask) != 0;
}

template <typename Hooks>
bool BasicParkingLot<Hooks>::found_work(unsigned id) noexcept {
  const bool last = leave_search(id, "found_work");
  slots_[id].own.unproductive_wake = false;
  return last;
}

template <typename Hooks>
bool BasicParkingLot<Hooks>::end_search(unsigned id) noexcept {
  return leave_search(id, "end_search");
}

template <typename Hooks>
bool BasicParkingLot<Hooks>::prepare_park(unsigned id, SleepBy by) noexcept {
  Worker& worker = enter(id, State::searching, "prepare_park");
  SLUICE_CHECK(by == SleepBy::futex || worker.own.fd.load(std::memory_order_relaxed) >= 0,
               "ParkingLot::prepare_park() by descriptor without a wait_fd()");
  if (worker.own.unproductive_wake) {
    worker.own.unproductive_wake = false;
    parking_detail::bump(worker.own.spurious_wakes);
  }
  worker.own.sleep_by.store(by, std::memory_order_relaxed);  // published by (2)
  worker.own.state = State::sleeping;
  Hooks::at("parking.prepare.begun");
  // (2) seq_cst: pairs with (1) and (4). One RMW does both: the bit is clear and we are counted, so
  // the sum neither carries nor borrows.
  word_.value.fetch_add(parking_detail::bit_of(id) - kSearcher, std::memory_order_seq_cst);
  Hooks::at("parking.prepare.marked");
  if (stopping()) [[unlikely]] {  // (9), after (2)
    Hooks::at("parking.prepare.stop_seen");
    parking_detail::bump(worker.own.parks_cancelled);
    if (!withdraw(id)) note_wake(worker);
    return false;
  }
  return true;
}

/// sleeping -> searching; true if the own bit was still set.
template <typename Hooks>
bool BasicParkingLot<Hooks>::withdraw(unsigned id) noexcept {
  slots_[id].own.state = State::searching;
  // (6) seq_cst: pairs with (4): the CAS decides between the worker and a waker.
  std::uint64_t word = word_.value.load(std::memory_order_seq_cst);
  // bound: each further round means that the word has changed
  while ((word & parking_detail::bit_of(id)) != 0) {
    Hooks::at("parking.withdraw.word_read");
    if (word_.value.compare_exchange_weak(word, word - parking_detail::bit_of(id) + kSearcher,
                                          std::memory_order_seq_cst, std::memory_order_seq_cst)) {
      Hooks::at("parking.withdraw.withdrawn");
      return true;
    }
  }
  return false;
}

template <typename Hooks>
void BasicParkingLot<Hooks>::note_wake(Worker& worker) noexcept {
  parking_detail::bump(worker.own.wakes);
  worker.own.unproductive_wake = true;  // until found_work() or, counted, prepare_park()
}

template <typename Hooks>
bool BasicParkingLot<Hooks>::cancel_park(unsigned id) noexcept {
  Worker& worker = enter(id, State::sleeping, "cancel_park");
  parking_detail::bump(worker.own.parks_cancelled);
  const bool withdrawn = withdraw(id);
  if (!withdrawn) note_wake(worker);
  return withdrawn;
}

template <typename Hooks>
typename BasicParkingLot<Hooks>::Wake BasicParkingLot<Hooks>::park(unsigned id,
                                                                   TimePoint deadline) noexcept {
  Worker& worker = enter(id, State::sleeping, "park");
  SLUICE_CHECK(worker.own.sleep_by.load(std::memory_order_relaxed) == SleepBy::futex,
               "ParkingLot::park() after preparing to sleep by descriptor");
  parking_detail::bump(worker.own.parks);
  for (;;) {  // ends by a wake or at the deadline; late wakes of earlier sleeps come round again
    // (7) acquire: pairs with (5). Read before (6).
    const std::uint32_t seen = worker.futex.value.load(std::memory_order_acquire);
    Hooks::at("parking.park.futex_read");
    // (6) seq_cst: pairs with (4).
    if ((word_.value.load(std::memory_order_seq_cst) & parking_detail::bit_of(id)) == 0) {
      worker.own.state = State::searching;
      break;
    }
    Hooks::at("parking.park.word_read");
    if (parking_detail::futex_wait(worker.futex.value, seen, deadline) == ETIMEDOUT) {
      if (withdraw(id)) {
        parking_detail::bump(worker.own.timeouts);
        return Wake::timed_out;
      }
      break;  // woken at the last moment
    }
  }
  note_wake(worker);
  return stopping() ? Wake::stopped : Wake::notified;
}

// --- host-driven workers ---

template <typename Hooks>
int BasicParkingLot<Hooks>::wait_fd(unsigned id) noexcept {
  SLUICE_CHECK(id < workers_, "ParkingLot::wait_fd(): no such worker");
  Worker& worker = slots_[id];
  int fd = worker.own.fd.load(std::memory_order_relaxed);
  if (fd < 0) {
    fd = EventFd::open();
    worker.own.fd.store(fd, std::memory_order_relaxed);  // published by (2)
  }
  return fd;
}

template <typename Hooks>
bool BasicParkingLot<Hooks>::finish_wait(unsigned id) noexcept {
  Worker& worker = enter(id, State::sleeping, "finish_wait");
  parking_detail::bump(worker.own.parks);
  const bool woken = !withdraw(id);
  Hooks::at("parking.finish_wait.withdrawn");
  if (woken) note_wake(worker);
  // Also when not woken: a late signal of an earlier sleep would end every later one at once.
  EventFd::drain(worker.own.fd.load(std::memory_order_relaxed));
  return woken;
}

// --- metrics ---

template <typename Hooks>
unsigned BasicParkingLot<Hooks>::sleepers() const noexcept {
  return static_cast<unsigned>(
      std::popcount(word_.value.load(std::memory_order_relaxed) & kSleeperMask));
}

template <typename Hooks>
bool BasicParkingLot<Hooks>::asleep(unsigned id) const noexcept {
  return (word_.value.load(std::memory_order_seq_cst) & parking_detail::bit_of(id)) != 0;
}

template <typename Hooks>
unsigned BasicParkingLot<Hooks>::searchers() const noexcept {
  return static_cast<unsigned>(word_.value.load(std::memory_order_relaxed) >> kMaxWorkers);
}

template <typename Hooks>
typename BasicParkingLot<Hooks>::Counters BasicParkingLot<Hooks>::counters(
    unsigned id) const noexcept {
  SLUICE_CHECK(id < workers_, "ParkingLot::counters(): no such worker");
  const WorkerLine& own = slots_[id].own;
  return {own.parks.load(std::memory_order_relaxed),
          own.parks_cancelled.load(std::memory_order_relaxed),
          own.wakes.load(std::memory_order_relaxed),
          own.spurious_wakes.load(std::memory_order_relaxed),
          own.timeouts.load(std::memory_order_relaxed)};
}

}  // namespace sluice
