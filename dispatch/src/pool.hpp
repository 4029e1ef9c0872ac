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

/// What pollers hand work through to the workers of one pool: for each poller a ring of batches
/// (order none) and one of the lanes that it has made runnable, both with one producer; and a ring
/// with any number of producers for the lanes that a worker puts back. All are as long as what can
/// be in them, so a push cannot fail: a poller has so many batches and feeds so many lanes, and a
/// lane is in one ring at a time, once.
struct Pool {
  /// What one poller can put into its rings at most.
  struct Feed {
    std::uint32_t batches = 0;
    std::uint32_t lanes = 0;
  };
  Pool(PoolConfig pool_config, std::uint32_t pool_index, const std::vector<Feed>& feeds,
       std::uint32_t lanes_max)
      : config(std::move(pool_config)),
        index(pool_index),
        key_lanes(std::make_unique<Lane[]>(config.key_lanes)),
        resumed(config.workers > 1 ? lanes_max : 1),
        parking(config.workers) {
    for (const Feed& feed : feeds) {
      batches.push_back(std::make_unique<SpmcRing<BatchTicket>>(feed.batches));
      // One worker needs no lanes.
      lanes.push_back(std::make_unique<SpmcRing<Lane*>>(config.workers > 1 ? feed.lanes : 1));
    }
  }

  /// For the last scan before parking.
  [[nodiscard]] bool empty_seq_cst() const noexcept {
    if (!resumed.empty_seq_cst()) return false;
    for (std::size_t poller = 0; poller < batches.size(); ++poller) {
      if (!batches[poller]->empty_seq_cst() || !lanes[poller]->empty_seq_cst()) return false;
    }
    return true;
  }

  /// A worker puts back a lane that has more to do.
  void resume(Lane* lane) noexcept {
    SLUICE_CHECK(resumed.push(lane), "the ring of runnable lanes is shorter than the lanes");
  }

  /// Which of the key lanes: the same key has the same one, whichever source it comes from.
  [[nodiscard]] std::uint32_t key_lane(std::uint64_t key) const noexcept {
    // Fibonacci hashing, then the upper half scaled to the number of lanes (Lemire, "Fast random
    // integer generation in an interval", 2019).
    const std::uint64_t mixed = (key * 0x9E3779B97F4A7C15ULL) >> 32;
    return static_cast<std::uint32_t>((mixed * config.key_lanes) >> 32);
  }

  const PoolConfig config;
  const std::uint32_t index;
  const std::unique_ptr<Lane[]> key_lanes;                      ///< order per_key
  std::vector<std::unique_ptr<SpmcRing<BatchTicket>>> batches;  ///< of each poller
  std::vector<std::unique_ptr<SpmcRing<Lane*>>> lanes;          ///< of each poller
  ScqRing<Lane*> resumed;
  ParkingLot parking;
  /// Pollers (bit = index) whose own wake also wakes a sleeping worker: they need not. A hint.
  alignas(kCacheLine) std::atomic<std::uint64_t> standby{0};
  std::atomic<std::uint32_t> lanes_used{0};  ///< connections attached to it
};

}  // namespace sluice::detail
