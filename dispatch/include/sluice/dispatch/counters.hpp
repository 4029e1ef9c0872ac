// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

/// Counters since start; each is written by one thread and read by anybody, without tearing but
/// without a common instant.
struct PollerCounters {
  std::uint64_t rounds = 0;       ///< run_once() calls
  std::uint64_t polls = 0;        ///< polls of sources
  std::uint64_t empty_polls = 0;  ///< those that found nothing
  std::uint64_t completions = 0;  ///< taken off completion queues
  std::uint64_t batches = 0;      ///< polls that found something
  std::uint64_t sleeps = 0;       ///< times it blocked
  std::uint64_t wakes = 0;        ///< times it came back because something was readable
  std::uint64_t events = 0;       ///< completion events taken (and re-armed)
  std::uint64_t empty_wakes = 0;  ///< events whose CQ held nothing; normal (W1)
  std::uint64_t turned_cold = 0;  ///< sources that went from polled to waited for
  std::uint64_t turned_hot = 0;
  std::uint64_t pre_wakes = 0;  ///< workers woken before the cold source was polled that needs one
  std::uint64_t spins_found = 0;      ///< adaptive: gaps between works that were spun through
  std::uint64_t spun_ns = 0;          ///< adaptive: time spent looking and finding nothing
  std::uint64_t spun_in_vain_ns = 0;  ///< of which before it slept after all
  std::uint64_t spin_capped = 0;      ///< adaptive: looks that the CPU cap forbade
  std::uint64_t wake_cost_ns = 0;     ///< adaptive: what a wake costs, as learnt so far
  std::uint64_t spin_limit_ns = 0;    ///< adaptive: how long it spins in the present gap, or next
  std::uint64_t backpressure = 0;     ///< polls put off since no buffer was free (C2)
  std::uint64_t commands = 0;
  std::uint64_t early = 0;    ///< completions held for a connection still being set up (C6)
  std::uint64_t orphans = 0;  ///< completions of no connection (E1)
  std::uint64_t failed_sources = 0;
  std::uint64_t inline_stalls = 0;  ///< inlined handlers beyond the stall threshold (R2)
  std::uint64_t sources = 0;        ///< attached now
  std::uint64_t hot_sources = 0;    ///< of which polled now
  std::uint64_t connections = 0;    ///< connections spread to this poller now (R1)
};

struct WorkerCounters {
  std::string pool;
  std::uint64_t batches = 0;      ///< handler calls
  std::uint64_t completions = 0;  ///< handed to handlers
  std::uint64_t parks = 0;
  std::uint64_t wakes = 0;  ///< times it was woken (or its token was there)
  std::uint64_t lane_runs = 0;
  std::uint64_t stalls = 0;
};

struct ControlCounters {
  std::uint64_t rounds = 0;
  std::uint64_t connection_events = 0;
  std::uint64_t async_events = 0;
  std::uint64_t drains = 0;  ///< finished, clean or not
  std::uint64_t quarantined =
      0;  ///< queue pairs kept, not destroyed, since a drain ran out of time
};

struct DispatcherCounters {
  std::vector<PollerCounters> pollers;
  std::vector<WorkerCounters> workers;
  ControlCounters control;
};

}  // namespace sluice
