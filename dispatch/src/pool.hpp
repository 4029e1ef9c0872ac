// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/core/parking.hpp"
#include "sluice/core/scq_ring.hpp"
#include "sluice/core/spmc_ring.hpp"
#include "state.hpp"

namespace sluice::detail {

/// What pollers hand work through to the workers of one pool: a ring of batches per poller (order
/// none) and one ring of runnable lanes (order per_connection). Both are as long as what can be in
/// them, so a push cannot fail: a poller has so many batches, and a lane is in the ring once.
struct Pool {
  /// `batch_counts`: of each poller.
  Pool(PoolConfig pool_config, std::uint32_t pool_index,
       const std::vector<std::uint32_t>& batch_counts, std::uint32_t lanes_max)
      : config(std::move(pool_config)),
        index(pool_index),
        runnable(lanes_max),
        parking(config.workers) {
    for (const std::uint32_t count : batch_counts) {
      batches.push_back(std::make_unique<SpmcRing<Batch*>>(count));
    }
  }

  /// For the last scan before parking.
  [[nodiscard]] bool empty_seq_cst() const noexcept {
    if (!runnable.empty_seq_cst()) return false;
    for (const auto& ring : batches) {
      if (!ring->empty_seq_cst()) return false;
    }
    return true;
  }

  void schedule(Lane* lane) noexcept {
    SLUICE_CHECK(runnable.push(lane), "the ring of runnable lanes is shorter than the lanes");
  }

  const PoolConfig config;
  const std::uint32_t index;
  ScqRing<Lane*> runnable;
  std::vector<std::unique_ptr<SpmcRing<Batch*>>> batches;
  ParkingLot parking;
  std::atomic<std::uint32_t> lanes_used{0};  ///< connections attached to it
};

}  // namespace sluice::detail
