// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/dispatch/config.hpp"

#include <set>
#include <string>

#include "sluice/core/parking.hpp"

namespace sluice {
namespace {

Status check_range(const std::string& field, std::uint64_t value, std::uint64_t low,
                   std::uint64_t high) {
  if (value >= low && value <= high) return {};
  return {StatusCode::invalid_argument, field + " is " + std::to_string(value) +
                                            "; it must be between " + std::to_string(low) +
                                            " and " + std::to_string(high)};
}

Status check_duration(const std::string& field, std::chrono::milliseconds value) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24);
  if (value.count() >= 0 && value <= kLongest) return {};
  return {StatusCode::invalid_argument, field + " is " + std::to_string(value.count()) +
                                            " ms; it must be between 0 and " +
                                            std::to_string(kLongest.count()) + " ms"};
}

}  // namespace

Status DispatcherConfig::validate() const {
  constexpr std::uint64_t kMillion = 1U << 20;
  SLUICE_RETURN_IF_ERROR(check_range("pollers.count", pollers.count, 1, 64));
  SLUICE_RETURN_IF_ERROR(check_range("pollers.batch_count", pollers.batch_count, 2, 65536));
  SLUICE_RETURN_IF_ERROR(check_range("pollers.hot_rounds", pollers.hot_rounds, 0, kMillion));
  SLUICE_RETURN_IF_ERROR(check_range("pollers.sources_max", pollers.sources_max, 1, kMillion));
  SLUICE_RETURN_IF_ERROR(check_range("connections_max", connections_max, 0, kMillion));
  SLUICE_RETURN_IF_ERROR(check_range("the number of pools", pools.size(), 1, 64));
  std::set<std::string> names;
  for (const PoolConfig& pool : pools) {
    if (pool.name.empty() || !names.insert(pool.name).second) {
      return {StatusCode::invalid_argument,
              "the pool name '" + pool.name + "' is empty or used twice; each pool needs its own"};
    }
    SLUICE_RETURN_IF_ERROR(check_range("workers of pool '" + pool.name + "'", pool.workers, 1,
                                       ParkingLot::kMaxWorkers));
    SLUICE_RETURN_IF_ERROR(
        check_range("spin_rounds of pool '" + pool.name + "'", pool.spin_rounds, 0, kMillion));
  }
  SLUICE_RETURN_IF_ERROR(check_duration("stall_threshold", stall_threshold));
  return check_duration("last_wqe_grace", last_wqe_grace);
}

}  // namespace sluice
