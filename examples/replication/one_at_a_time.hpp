// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>

namespace replicate {

/// Lets one thread at a time do some work, and makes nobody wait for it: a thread that comes while
/// another is at it leaves a note and goes away, and the other one goes round once more. So what a
/// caller made visible before run() is always seen by a round that begins after it.
///
/// This is what takes the place of a mutex where the handlers of many connections, on many workers,
/// meet in one file (the replica) or one commit mark (the primary).
///
/// Threads: any. Progress: run() of all but one caller is wait-free.
class OneAtATime {
 public:
  /// `work` takes up everything there is to do.
  template <typename Work>
  void run(Work&& work) noexcept {
    // (1) acq_rel. Release: what this caller made visible, for the thread that is at it (2).
    // Acquire, when nobody is: what the last one did (2).
    if (callers_.fetch_add(1, std::memory_order_acq_rel) != 0) return;
    for (std::uint32_t served = 1; served != 0;) {  // bound: each round serves a further caller
      work();
      // (2) acq_rel. Acquire: pairs with (1) of those who came meanwhile. Release: with (1) of the
      // next to be at it.
      served = callers_.fetch_sub(served, std::memory_order_acq_rel) - served;
    }
  }

 private:
  std::atomic<std::uint32_t> callers_{0};  ///< that have not been served; not 0: a thread is at it
};

}  // namespace replicate
