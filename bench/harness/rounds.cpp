// SPDX-License-Identifier: BSD-3-Clause
#include "rounds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace sluice::bench {
namespace {

/// Two ping-pongs that differ by more were not taken at the same distance of the cores.
constexpr double kSameDistance = 1.6;
/// Times that a contender's part of a round is done again because the distance flipped during it.
constexpr unsigned kRepeatsMax = 4;
/// Units that the search for a round's size starts with, and where it stops.
constexpr std::uint64_t kFirstUnits = 2048;
constexpr std::uint64_t kUnitsMax = std::uint64_t{1} << 40;

bool same_distance(double a, double b) noexcept {
  return std::max(a, b) <= kSameDistance * std::min(a, b);
}

std::uint64_t round_up(std::uint64_t units, std::uint64_t granularity) noexcept {
  return (units + granularity - 1) / granularity * granularity;
}

/// Units that fill about `round_ns`: grows the work until it can be timed, then scales it. Warms
/// the contender up on the way.
Result<std::uint64_t> units_for(const Contender& contender, double round_ns,
                                std::uint64_t units_max) {
  const std::uint64_t most = units_max == 0 ? kUnitsMax : units_max;
  std::uint64_t units = round_up(std::min(kFirstUnits, most), contender.granularity);
  for (;;) {  // bound: units grows to `most`
    Result<Timing> timing = contender.run(units);
    if (!timing.ok()) return timing.status().with_context(contender.name);
    const double scale = round_ns / std::max(timing->wall_ns, 1.0);
    if (scale < 1.5 || units >= most) {
      const double wanted = static_cast<double>(units) * scale;
      return round_up(std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1, most),
                      contender.granularity);
    }
    units = round_up(std::min(most, static_cast<std::uint64_t>(static_cast<double>(units) *
                                                               std::min(scale, 8.0))),
                     contender.granularity);
  }
}

}  // namespace

const std::vector<Rounds::Sample>& Rounds::samples_of(std::string_view name) const {
  const auto at = std::find(names_.begin(), names_.end(), name);
  SLUICE_CHECK(at != names_.end(), "no contender called " + std::string(name));
  return samples_[static_cast<std::size_t>(at - names_.begin())];
}

Result<Value> Rounds::ratio_of(std::string_view over, std::string_view under,
                               double Sample::*time) const {
  const std::vector<Sample>& overs = samples_of(over);
  const std::vector<Sample>& unders = samples_of(under);
  double nearest = 0;
  for (const auto& samples : samples_) {
    for (const Sample& sample : samples) {
      if (nearest == 0 || sample.pingpong_ns < nearest) nearest = sample.pingpong_ns;
    }
  }
  std::vector<double> all;
  std::vector<double> near;
  std::vector<double> far;
  std::vector<double> trips;
  for (std::size_t round = 0; round < overs.size(); ++round) {
    const Sample& a = overs[round];
    const Sample& b = unders[round];
    if (a.pingpong_ns > 0 && !same_distance(a.pingpong_ns, b.pingpong_ns)) continue;
    all.push_back(a.*time / b.*time);
    trips.push_back((a.pingpong_ns + b.pingpong_ns) / 2);
    (same_distance(a.pingpong_ns, nearest) ? near : far).push_back(all.back());
  }
  if (all.empty()) {
    return Status{StatusCode::timed_out,
                  fmt::format("{} over {}: the distance of the two cores flipped in every one of "
                              "{} rounds",
                              over, under, overs.size())};
  }
  std::string note =
      fmt::format("{:.3g} / {:.3g} ns", ns_per_unit(over).value, ns_per_unit(under).value);
  if (nearest > 0) note += fmt::format("; trip {:.3g} ns", spread_of(std::move(trips)).value);
  if (!near.empty() && !far.empty()) {
    note += fmt::format("; near {:.3g} ({}), far {:.3g} ({})", spread_of(near).value, near.size(),
                        spread_of(far).value, far.size());
  }
  if (all.size() < overs.size()) {
    note += fmt::format("; {} of {} rounds left out", overs.size() - all.size(), overs.size());
  }
  return spread_of(std::move(all), std::move(note));
}

Result<Value> Rounds::ratio(std::string_view over, std::string_view under) const {
  return ratio_of(over, under, &Sample::wall_ns_per_unit);
}

Result<Value> Rounds::cpu_ratio(std::string_view over, std::string_view under) const {
  return ratio_of(over, under, &Sample::cpu_ns_per_unit);
}

Value Rounds::ns_per_unit(std::string_view name) const {
  std::vector<double> times;
  for (const Sample& sample : samples_of(name)) times.push_back(sample.wall_ns_per_unit);
  return spread_of(std::move(times));
}

Result<Rounds> measure(const Bench& bench, const std::vector<Contender>& contenders,
                       RoundsOptions options) {
  const double round_ns = options.round_ns > 0 ? options.round_ns : bench.round_ns();
  const bool pingpong = options.pingpong && bench.two_cores();
  const auto distance = [&]() -> Result<double> {
    if (!pingpong) return 0.0;
    return pingpong_ns(bench.cpu(0), bench.cpu(1));
  };
  std::vector<std::uint64_t> units;
  for (const Contender& contender : contenders) {
    Result<std::uint64_t> fitting = units_for(contender, round_ns, options.units_max);
    if (!fitting.ok()) return fitting.status();
    units.push_back(*fitting);
  }
  Rounds rounds;
  for (const Contender& contender : contenders) rounds.names_.push_back(contender.name);
  rounds.samples_.resize(contenders.size());
  Result<double> before = distance();
  if (!before.ok()) return before.status();
  for (unsigned round = 0; round < bench.rounds(); ++round) {
    for (std::size_t turn = 0; turn < contenders.size(); ++turn) {
      const std::size_t which = (turn + round) % contenders.size();
      for (unsigned repeat = 0;; ++repeat) {
        Result<Timing> timing = contenders[which].run(units[which]);
        if (!timing.ok()) return timing.status().with_context(contenders[which].name);
        Result<double> after = distance();
        if (!after.ok()) return after.status();
        const double was = std::exchange(*before, *after);
        if (pingpong && !same_distance(was, *after) && repeat < kRepeatsMax) continue;
        const auto done = static_cast<double>(units[which]);
        rounds.samples_[which].push_back(
            {timing->wall_ns / done, timing->cpu_ns / done, (was + *after) / 2});
        break;
      }
    }
  }
  return rounds;
}

Status add_ratio(Bench& bench, std::string_view figure, const Rounds& rounds, std::string_view over,
                 std::string_view under) {
  if (!bench.wanted(figure)) return {};
  Result<Value> value = rounds.ratio(over, under);
  if (!value.ok()) return value.status().with_context(figure);
  bench.add(figure, *value);
  return {};
}

}  // namespace sluice::bench
