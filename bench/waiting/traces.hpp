// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace sluice::bench {

/// What waiting cost, over what it would have cost somebody who knew each gap beforehand.
struct WaitingRatios {
  std::map<std::string, double> traces;  ///< cost / sum of min(g, C), of each trace
  std::map<std::string, double> adversaries;
  double geomean = 0;          ///< of the traces
  double worst = 0;            ///< of all
  double ns_per_decision = 0;  ///< time of one gap's calls, without the trace's own
};

/// Plays 19 traces of gaps and two adversaries against a WaitController, in virtual time. Cost is
/// CPU time plus added latency, weight 1, in units of a wake; `gaps` of each trace, each with its
/// own random numbers out of `seed`. The controller knows no more than a real thread does: when a
/// spin found work, when a wake came (which varies), and some measured wakes, with their noise.
[[nodiscard]] WaitingRatios simulate_waiting(std::uint64_t seed, std::uint32_t gaps = 20000);

/// The same cost of three ways to wait through recorded gaps, each over the clairvoyant one's.
struct RecordedRatios {
  double adaptive = 0;
  double busy = 0;           ///< spins through every gap
  double event = 0;          ///< sleeps in every gap
  double slept_percent = 0;  ///< of the gaps: those in which the controller slept
};
/// Plays gaps (ns, >= 0, not all 0) in their order, on the simulated machine of simulate_waiting().
[[nodiscard]] RecordedRatios play_recorded(std::span<const double> gaps_ns, std::uint64_t seed);

}  // namespace sluice::bench
