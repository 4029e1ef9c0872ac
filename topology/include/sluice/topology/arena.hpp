// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <oneapi/tbb/task_arena.h>

#include <memory>

#include "sluice/core/status.hpp"
#include "sluice/topology/cpu_set.hpp"

namespace sluice::topology {

/// A oneTBB arena whose threads stay on the given PUs: an observer binds each thread that enters
/// and gives it back its former affinity when it leaves. (A NUMA constraint alone would put them on
/// the pollers' cores, and TBB's node ids are hwloc's logical indices.)
///
///     arena->arena().execute([&] { tbb::parallel_for(...); });
///
/// A thread that is bound to PUs within the set when it enters keeps its binding: a worker on its
/// own PU stays there. Entries nest, into the same arena and into others.
/// Thread-safety: any thread. Threads start at the first parallel work, not here; there are never
/// more than TBB has for the process (tbb::global_control, the process's own affinity).
/// Cost: a few system calls when a thread enters and when it leaves, none for each task.
class BoundArena {
 public:
  /// `concurrency` 0: one thread for each PU. One slot is for the thread that calls execute().
  /// Fails with invalid_argument for an empty set or a negative concurrency, resource_exhausted
  /// when TBB has no memory. A PU that there is not is told by bind_failures().
  [[nodiscard]] static Result<std::unique_ptr<BoundArena>> create(const CpuSet& pus,
                                                                  int concurrency = 0);
  /// No work may be in it. Waits until its threads have left, so that none keeps the binding.
  ~BoundArena();
  BoundArena(const BoundArena&) = delete;
  BoundArena& operator=(const BoundArena&) = delete;

  [[nodiscard]] tbb::task_arena& arena() noexcept;
  [[nodiscard]] const CpuSet& pus() const noexcept;
  /// How often the kernel refused to bind a thread that entered, or to give back what it had; 0 is
  /// what it should be.
  [[nodiscard]] unsigned bind_failures() const noexcept;

 private:
  struct Impl;
  explicit BoundArena(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::topology
