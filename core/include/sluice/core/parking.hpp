// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "sluice/core/cacheline.hpp"

namespace sluice {

/// Where the workers of one pool sleep when there is nothing to do, such that publishing work costs
/// one load when nobody needs waking, and wakes one worker at most.
///
/// A worker is working, searching (awake, looking for work) or sleeping. One 64-bit word holds the
/// mask of the sleepers and the count of the searchers. The worker's loop, in the order of states:
///
///   begin_search(id);                                  // working -> searching
///   for (;;) {
///     if (take some work) {
///       if (found_work(id) && work is left) notify_published();   // searching -> working
///       handle it, and on while there is more; begin_search(id); continue;
///     }
///     (spin a little, perhaps)
///     if (!prepare_park(id)) break;                    // searching -> sleeping; false: stopping
///     if (every queue is empty_seq_cst()) park(id, deadline);     // sleeping -> searching
///     else cancel_park(id);                                       // sleeping -> searching
///   }
///
/// Invariant, no lost wake: what has been published before a notify_published() is seen by a
/// searcher's scan, or by the last scan of a worker on its way to sleep, or a sleeper is woken for
/// it. The Dekker pair behind it, all four seq_cst:
///   producer:  publish (the queue's seq_cst store), then (1) read the word;
///   worker:    (2) mark itself in the word (one RMW), then scan the queues (empty_seq_cst).
/// In the one order of seq_cst operations either (1) comes after (2), and the producer sees the
/// sleeper; or (2) comes after (1), and the scan sees the work. If the producer keeps quiet because
/// of a searcher, then that searcher leaves the count by (2), and scans after it, or by (3)
/// found_work(), and scans after it if it was the last.
///
/// The other pairs:
///   (4) a waker clears a sleeper's bit (CAS) -> (6) the sleeper reads the word. Whoever clears the
///       bit, sleeper or waker, has made the worker a searcher; so exactly one does.
///   (5) then it moves the sleeper's futex word on, release -> (7) the sleeper reads that word,
///       acquire, before (6): had it read the moved word, (6) would see the bit cleared; if it read
///       the old one, the kernel's comparison fails or the wake comes after. The futex word only
///       counts; the bit is the truth, so a wake that comes late does no harm.
///   (8) the stop flag, seq_cst -> (9) its read after (2), seq_cst: a Dekker pair like the first.
///
/// Threads: worker calls with its own id, one thread at a time; the others by any thread.
/// Progress: nothing waits for another thread but park() itself. A waker frozen between (4) and (5)
/// counts as a searcher, and so does a worker frozen while it searches: others wake nobody until it
/// goes on. Workers that are awake take what it would have; for those that sleep a deadline on
/// park() bounds it.
/// Cost: notify_published() one load; a wake one CAS and a system call (some 7 us for the waker on
/// a virtual machine, less on bare metal); begin_search and found_work one RMW each, which a worker
/// that finds work at its first look need not call.
template <typename Hooks = NoHooks>
class BasicParkingLot {
 public:
  using Clock = std::chrono::steady_clock;
  using TimePoint = Clock::time_point;
  static constexpr TimePoint kNoDeadline = TimePoint::max();

  /// 58 bits of mask and 6 of count fill the word. A larger pool needs a second lot.
  static constexpr unsigned kMaxWorkers = 58;

  enum class Wake : std::uint8_t {
    notified,   ///< a producer's notify, a pre-wake or a wake by id
    timed_out,  ///< the deadline passed
    stopped,    ///< stop() was called
  };

  /// How a worker sleeps: in park(), or in the host's own poll of wait_fd().
  enum class SleepBy : std::uint8_t { futex, fd };

  /// What one worker counted. Written by the worker alone; readable by any thread.
  struct Counters {
    std::uint64_t parks = 0;            ///< sleeps begun: the last scan had found nothing
    std::uint64_t parks_cancelled = 0;  ///< the last scan found work
    std::uint64_t wakes = 0;            ///< wakes received; summed up, the wakes issued
    std::uint64_t spurious_wakes = 0;   ///< wakes after which it found nothing before the next park
    std::uint64_t timeouts = 0;         ///< deadlines passed
  };

  /// Workers have the ids 0 .. workers - 1 and start out as working. 1 .. kMaxWorkers.
  explicit BasicParkingLot(unsigned workers);
  ~BasicParkingLot();
  BasicParkingLot(const BasicParkingLot&) = delete;
  BasicParkingLot& operator=(const BasicParkingLot&) = delete;

  // --- producers, any thread ---

  /// Call it after publishing (a burst at a time). Wakes one sleeper if nobody is searching; true
  /// if it did. What was published must have been so by a seq_cst operation, as all push functions
  /// of SpmcRing and ScqRing do.
  bool notify_published() noexcept {
    // (1) seq_cst: pairs with (2) (3).
    const std::uint64_t word = word_.value.load(std::memory_order_seq_cst);
    Hooks::at("parking.notify.word_read");
    if (nobody_to_wake(word)) [[likely]]
      return false;
    return wake_one(word);
  }

  /// The same after SpmcRing::append(), at the price of a plain load: a worker that is about to
  /// sleep may be overlooked, so announce() and notify_published() must follow soon.
  bool notify_if_seen() noexcept {
    const std::uint64_t word = word_.value.load(std::memory_order_relaxed);  // wake_one() reads on
    if (nobody_to_wake(word)) [[likely]]
      return false;
    return wake_one(word);
  }

  /// Wakes one before the work is there, to have it searching by then. The same rule: at most one,
  /// and none if somebody is searching already.
  bool pre_wake() noexcept { return notify_published(); }

  /// Wakes this worker, whoever is searching; false if it was not asleep. For mail to one worker:
  /// put it where the worker's last scan looks, by a seq_cst operation, then call this.
  bool wake(unsigned id) noexcept;

  /// Wakes all that sleep now.
  void wake_all() noexcept;

  /// From now on prepare_park() says no; and wakes all. For good.
  void stop() noexcept;
  [[nodiscard]] bool stopping() const noexcept {
    return stop_.value.load(std::memory_order_seq_cst);  // (9) seq_cst: pairs with (8)
  }

  // --- a worker, with its own id ---

  /// working -> searching.
  void begin_search(unsigned id) noexcept;

  /// searching -> working. True: it was the last searcher while others sleep. Producers may have
  /// kept quiet because of it, so the caller must look (empty_seq_cst) whether work is left beside
  /// what it took, and call notify_published() if so.
  [[nodiscard]] bool found_work(unsigned id) noexcept;

  /// searching -> working, having found nothing and not going to sleep (a host that goes
  /// elsewhere). The return value obliges as that of found_work().
  [[nodiscard]] bool end_search(unsigned id) noexcept;

  /// searching -> sleeping, and from here on others may wake this worker. True: scan every queue
  /// once more by empty_seq_cst(), then park() or cancel_park(). False: stopping; still searching.
  [[nodiscard]] bool prepare_park(unsigned id, SleepBy by = SleepBy::futex) noexcept;

  /// sleeping -> searching: the last scan found work (or the host's sleep is over). True: the mark
  /// was withdrawn; false: a waker had already cleared it, and its wake is hereby consumed.
  bool cancel_park(unsigned id) noexcept;

  /// sleeping -> searching, asleep in between until woken or until the deadline.
  Wake park(unsigned id, TimePoint deadline = kNoDeadline) noexcept;

  // --- host-driven workers: sleeping on a descriptor instead of in park() ---
  //   prepare_park(id, SleepBy::fd); last scan; the host polls wait_fd(id); finish_wait(id).

  /// The worker's eventfd, opened at the first call; -1 and errno if that fails. Readable once the
  /// worker has been woken. Call it before the first prepare_park(id, SleepBy::fd).
  [[nodiscard]] int wait_fd(unsigned id) noexcept;

  /// sleeping -> searching, when the host's sleep is over for whatever reason; drains the
  /// descriptor. True: it had been woken through this lot.
  bool finish_wait(unsigned id) noexcept;

  // --- anybody, for metrics and tests ---

  [[nodiscard]] unsigned workers() const noexcept { return workers_; }
  [[nodiscard]] unsigned sleepers() const noexcept;
  /// This worker is marked as asleep. seq_cst: whoever cleared the mark did so before anything the
  /// worker does next.
  [[nodiscard]] bool asleep(unsigned id) const noexcept;
  [[nodiscard]] unsigned searchers() const noexcept;
  [[nodiscard]] Counters counters(unsigned id) const noexcept;

 private:
  static constexpr std::uint64_t kSearcher = std::uint64_t{1} << kMaxWorkers;
  static constexpr std::uint64_t kSleeperMask = kSearcher - 1;

  enum class State : std::uint8_t {
    working,    ///< has work; not counted in the word. Leaves it by begin_search().
    searching,  ///< counted as a searcher. Leaves it by found_work(), end_search(), prepare_park().
    sleeping,   ///< its bit is set, or a waker has cleared it and counted it as a searcher.
                ///< Leaves it by park(), cancel_park(), finish_wait().
  };

  struct alignas(kCacheLine) WordLine {
    std::atomic<std::uint64_t> value{0};
  };
  struct alignas(kCacheLine) StopLine {
    std::atomic<bool> value{false};
  };
  /// Written by wakers.
  struct alignas(kCacheLine) FutexLine {
    std::atomic<std::uint32_t> value{0};
  };
  /// Written by the worker.
  struct alignas(kCacheLine) WorkerLine {
    std::atomic<SleepBy> sleep_by{SleepBy::futex};
    std::atomic<int> fd{-1};
    State state = State::working;
    bool unproductive_wake = false;
    std::atomic<std::uint64_t> parks{0};
    std::atomic<std::uint64_t> parks_cancelled{0};
    std::atomic<std::uint64_t> wakes{0};
    std::atomic<std::uint64_t> spurious_wakes{0};
    std::atomic<std::uint64_t> timeouts{0};
  };
  struct Worker {
    FutexLine futex;
    WorkerLine own;
  };
  static_assert(sizeof(WordLine) == kCacheLine && sizeof(StopLine) == kCacheLine);
  static_assert(sizeof(FutexLine) == kCacheLine && sizeof(WorkerLine) == kCacheLine);
  static_assert(alignof(Worker) == kCacheLine);

  [[nodiscard]] static bool nobody_to_wake(std::uint64_t word) noexcept {
    return word >= kSearcher || word == 0;  // somebody searches, or nobody sleeps
  }

  bool wake_one(std::uint64_t word) noexcept;
  void signal(unsigned id) noexcept;
  Worker& enter(unsigned id, State expected, const char* call) noexcept;
  bool leave_search(unsigned id, const char* call) noexcept;
  bool withdraw(unsigned id) noexcept;
  void note_wake(Worker& worker) noexcept;

  const unsigned workers_;
  const std::unique_ptr<Worker[]> slots_;
  WordLine word_;
  StopLine stop_;
};

/// What ships; parking.cpp holds its code. Other hooks: tests, with parking_definitions.hpp.
using ParkingLot = BasicParkingLot<>;
extern template class BasicParkingLot<NoHooks>;

}  // namespace sluice
