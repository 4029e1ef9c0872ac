// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "assignment.hpp"
#include "sluice/topology/plan.hpp"

namespace sluice::topology {

/// A group of pollers or a pool, its names looked up on the machine.
struct Resolved {
  CpuSet pus;                  ///< OS indices that its threads may use: never empty
  bool named = false;          ///< the configuration names them
  std::vector<unsigned> nics;  ///< of pollers: indices into Machine::nics(), in turn; may be empty
};

/// Everything in a configuration that only a machine can answer.
struct Resolution {
  std::vector<Resolved> pollers;  ///< as Config::pollers
  std::vector<Resolved> pools;    ///< as Config::pools
  Resolved housekeeping;
  unsigned memory_node = kNone;       ///< of every poller; kNone: each one's own
  std::vector<std::string> degraded;  ///< names that were cut down to what is allowed
};
[[nodiscard]] Result<Resolution> resolve(const Machine& machine, const Config& config);

/// Whether pollers of a group feed a pool: some route says so, or no route tells anything of it.
[[nodiscard]] bool feeds(const Config& config, const PollerGroup& group, const PoolSettings& pool);

/// Threads as the optimizer wants them; housekeeping is not among them.
[[nodiscard]] std::vector<Slot> slots_of(const Machine& machine, const Config& config,
                                         const std::vector<PlannedThread>& threads,
                                         const std::vector<CpuSet>& allowed);

/// What thread `thread` of a plan may use.
[[nodiscard]] CpuSet allowed_of(const Machine& machine, const Config& config,
                                const Resolution& resolution, const PlannedThread& thread);

/// Fills in reasons, what was given up, and notes, of a plan whose threads have their PUs.
void explain(Plan& plan, const Resolution& resolution);

/// "PU 3", "PUs 3,5"
[[nodiscard]] std::string named_pus(const CpuSet& pus);

}  // namespace sluice::topology
