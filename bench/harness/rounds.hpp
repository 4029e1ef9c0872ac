// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "figure.hpp"
#include "sluice/core/status.hpp"
#include "threads.hpp"

namespace sluice::bench {

/// One of those that are compared: does the same work as the others, its own way.
struct Contender {
  std::string name;
  /// Does `units` of work (at least so many; a multiple of `granularity`) and tells what it took.
  std::function<Result<Timing>(std::uint64_t units)> run;
  std::uint64_t granularity = 1;
};

/// Work that depends on the distance of two cores is timed beside a ping-pong of theirs.
struct RoundsOptions {
  bool pingpong = true;
  double round_ns = 0;          ///< what one contender's round should take; 0: the bench's own
  std::uint64_t units_max = 0;  ///< of one round; 0: no bound
};

/// What the contenders took, round by round.
class Rounds {
 public:
  struct Sample {
    double wall_ns_per_unit = 0;
    double cpu_ns_per_unit = 0;
    double pingpong_ns = 0;  ///< mean of the ones before and after; 0 without
  };

  /// Wall time of `over` through that of `under`, each pair from one round, and both from times of
  /// the same core-to-core distance. Fails when there is no such pair.
  [[nodiscard]] Result<Value> ratio(std::string_view over, std::string_view under) const;
  /// The same of CPU time.
  [[nodiscard]] Result<Value> cpu_ratio(std::string_view over, std::string_view under) const;
  /// Wall time of a unit. ns
  [[nodiscard]] Value ns_per_unit(std::string_view name) const;

 private:
  friend Result<Rounds> measure(const Bench&, const std::vector<Contender>&, RoundsOptions);
  [[nodiscard]] const std::vector<Sample>& samples_of(std::string_view name) const;
  [[nodiscard]] Result<Value> ratio_of(std::string_view over, std::string_view under,
                                       double Sample::*time) const;

  std::vector<std::string> names_;
  std::vector<std::vector<Sample>> samples_;  ///< [contender][round]
};

/// Runs the contenders in turn, bench.rounds() times, each round starting with another one. First
/// each is given as much work as fills a round. A contender's part of a round during which the
/// distance of the cores flipped is repeated, a few times at most.
[[nodiscard]] Result<Rounds> measure(const Bench& bench, const std::vector<Contender>& contenders,
                                     RoundsOptions options = {});

/// Adds `figure` = over / under, when it is wanted.
[[nodiscard]] Status add_ratio(Bench& bench, std::string_view figure, const Rounds& rounds,
                               std::string_view over, std::string_view under);

}  // namespace sluice::bench
