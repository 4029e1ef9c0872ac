// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/dispatch/config.hpp"

#include <algorithm>
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

constexpr std::uint64_t kMillion = 1U << 20;
constexpr std::uint64_t kPollersMax = 64;
constexpr std::uint64_t kSourcesOfAllMax = 1U << 22;

Status check_wait(const std::string& of, const PollerConfig& group) {
  constexpr std::chrono::nanoseconds kTargetMax = std::chrono::seconds(1);
  if (group.latency_target.count() < 0 || group.latency_target > kTargetMax) {
    return {StatusCode::invalid_argument,
            of + ".latency_target is " + std::to_string(group.latency_target.count()) +
                " ns; it must be between 0 and " + std::to_string(kTargetMax.count()) + " ns"};
  }
  if (group.cpu_cap >= 0 && group.cpu_cap <= 1) return {};  // not a number is neither
  return {StatusCode::invalid_argument,
          of + ".cpu_cap is " + std::to_string(group.cpu_cap) + "; it must be between 0 and 1"};
}

Status check_pollers(const std::vector<PollerConfig>& groups) {
  SLUICE_RETURN_IF_ERROR(check_range("the number of groups of pollers", groups.size(), 1, 64));
  std::set<std::string> names;
  std::uint64_t sum = 0;
  std::uint64_t sources = 0;
  for (const PollerConfig& group : groups) {
    if (group.name.empty() || !names.insert(group.name).second) {
      return {StatusCode::invalid_argument, "the pollers' group name '" + group.name +
                                                "' is empty or used twice; each needs its own"};
    }
    const std::string of = groups.size() == 1 ? "pollers" : "pollers." + group.name;
    SLUICE_RETURN_IF_ERROR(check_range(of + ".count", group.count, 1, kPollersMax));
    SLUICE_RETURN_IF_ERROR(check_range(of + ".batch_size", group.batch_size, 1, 32));
    SLUICE_RETURN_IF_ERROR(check_range(of + ".batch_count", group.batch_count, 2, 65536));
    SLUICE_RETURN_IF_ERROR(check_range(of + ".hot_rounds", group.hot_rounds, 0, kMillion));
    SLUICE_RETURN_IF_ERROR(check_wait(of, group));
    SLUICE_RETURN_IF_ERROR(check_range(of + ".sources_max", group.sources_max, 1, kMillion));
    sum += group.count;
    sources += std::uint64_t{group.count} * group.sources_max;
  }
  SLUICE_RETURN_IF_ERROR(
      check_range("sources_max of all pollers together", sources, 1, kSourcesOfAllMax));
  return check_range("the number of pollers in all groups", sum, 1, kPollersMax);
}

Status check_pools(const std::vector<PoolConfig>& pools) {
  std::set<std::string> names;
  std::set<std::pair<std::string, unsigned>> instances;
  for (const PoolConfig& pool : pools) {
    const bool is_instance = pool.node.has_value();
    const bool fresh = is_instance ? instances.emplace(pool.name, *pool.node).second
                                   : names.insert(pool.name).second;
    const auto of_the_name = [&](const auto& one) { return one.first == pool.name; };
    const bool both_kinds = is_instance
                                ? names.contains(pool.name)
                                : std::any_of(instances.begin(), instances.end(), of_the_name);
    if (pool.name.empty() || !fresh || both_kinds) {
      return {StatusCode::invalid_argument,
              "the pool name '" + pool.name + "' is empty or used twice; each pool needs its own"};
    }
    const std::string of = " of pool '" + pool.name + "'";
    SLUICE_RETURN_IF_ERROR(check_range("workers" + of, pool.workers, 1, ParkingLot::kMaxWorkers));
    SLUICE_RETURN_IF_ERROR(check_range("spin_rounds" + of, pool.spin_rounds, 0, kMillion));
    SLUICE_RETURN_IF_ERROR(check_range("lanes" + of, pool.lanes, 0, kMillion));
    SLUICE_RETURN_IF_ERROR(check_range("key_lanes" + of, pool.key_lanes, 1, kMillion));
  }
  return {};
}

template <typename Settings>
Status check_name(const std::vector<Settings>& all, const std::string& name,
                  const std::string& what) {
  if (name.empty()) return {};
  std::string known;
  for (const Settings& one : all) {
    if (one.name == name) return {};
    known += (known.empty() ? "" : ", ") + one.name;
  }
  return {StatusCode::invalid_argument, what + " names '" + name +
                                            "', which there is not; there "
                                            "are: " +
                                            (known.empty() ? "none" : known)};
}

Status check_routes(const DispatcherConfig& config) {
  std::set<std::string> names;
  for (const RouteConfig& route : config.routes) {
    if (route.name.empty() || !names.insert(route.name).second) {
      return {StatusCode::invalid_argument,
              "the route name '" + route.name + "' is empty or used twice; each needs its own"};
    }
    SLUICE_RETURN_IF_ERROR(
        check_name(config.pools, route.pool, "the pool of route '" + route.name + "'"));
    SLUICE_RETURN_IF_ERROR(
        check_name(config.pollers, route.pollers, "pollers of route '" + route.name + "'"));
  }
  std::set<std::string> queues;
  for (const topology::SrqSettings& srq : config.receive_queues) {
    if (srq.name.empty() || !queues.insert(srq.name).second) {
      return {StatusCode::invalid_argument, "the receive queue name '" + srq.name +
                                                "' is empty or used twice; each needs its own"};
    }
    if (srq.receive_cq_size == 0U) {
      return {StatusCode::invalid_argument,
              "receive queue '" + srq.name + "' has a receive CQ of 0 entries; leave it unset"};
    }
    const std::string of = " of receive queue '" + srq.name + "'";
    SLUICE_RETURN_IF_ERROR(check_name(config.pollers, srq.pollers, "pollers" + of));
    SLUICE_RETURN_IF_ERROR(check_name(config.routes, srq.route, "the route" + of));
  }
  return {};
}

}  // namespace

std::uint32_t DispatcherConfig::poller_count() const noexcept {
  std::uint32_t count = 0;
  for (const PollerConfig& group : pollers) count += group.count;
  return count;
}

Status DispatcherConfig::validate() const {
  SLUICE_RETURN_IF_ERROR(check_pollers(pollers));
  SLUICE_RETURN_IF_ERROR(check_range("connections_max", connections_max, 0, kMillion));
  SLUICE_RETURN_IF_ERROR(check_range("the number of pools", pools.size(), 1, 64));
  SLUICE_RETURN_IF_ERROR(check_pools(pools));
  SLUICE_RETURN_IF_ERROR(check_routes(*this));
  SLUICE_RETURN_IF_ERROR(check_duration("stall_threshold", stall_threshold));
  return check_duration("last_wqe_grace", last_wqe_grace);
}

}  // namespace sluice
