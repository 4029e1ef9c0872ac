// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <utility>

#include "sluice/core/status.hpp"
#include "sluice/topology/cpu_set.hpp"

namespace tbb::detail::d1 {
class task_arena;
}

namespace sluice::topology {

/// A oneTBB arena whose threads stay on the given PUs: an observer binds each thread that enters
/// and gives it back its former affinity when it leaves. (A NUMA constraint alone would put them on
/// the pollers' cores, and TBB's node ids are hwloc's logical indices.) Include
/// <oneapi/tbb/task_arena.h> to use what arena() gives. Thread-safety: any thread. Threads start at
/// the first parallel work, not here.
class BoundArena {
 public:
  /// `concurrency` 0: one thread for each PU. One slot is for the thread that calls execute().
  [[nodiscard]] static Result<std::unique_ptr<BoundArena>> create(const CpuSet& pus,
                                                                  int concurrency = 0);
  ~BoundArena();
  BoundArena(const BoundArena&) = delete;
  BoundArena& operator=(const BoundArena&) = delete;
  [[nodiscard]] tbb::detail::d1::task_arena& arena() noexcept;
  [[nodiscard]] const CpuSet& pus() const noexcept;
  /// Threads that the kernel refused to bind; 0 is what it should be.
  [[nodiscard]] unsigned bind_failures() const noexcept;

 private:
  struct Impl;
  explicit BoundArena(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::topology
