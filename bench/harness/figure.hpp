// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/core/status.hpp"

namespace sluice::bench {

/// What a figure should reach.
struct Goal {
  enum class Sense : std::uint8_t { at_most, at_least };
  Sense sense = Sense::at_most;
  double value = 0;
  [[nodiscard]] bool met_by(double figure) const noexcept {
    return sense == Sense::at_most ? figure <= value : figure >= value;
  }
};
[[nodiscard]] constexpr Goal at_most(double value) noexcept {
  return {Goal::Sense::at_most, value};
}
[[nodiscard]] constexpr Goal at_least(double value) noexcept {
  return {Goal::Sense::at_least, value};
}

/// What a figure is, known before anything is measured.
struct FigureInfo {
  std::string name;  ///< "handoff.none.vs_floor"
  std::string unit;  ///< "x" for a ratio, "us", "percent", "instructions"
  std::optional<Goal> goal;
};

/// What was measured.
struct Value {
  double value = 0;             ///< a median, where several rounds were made
  double low = 0;               ///< the 10 % quantile of the rounds; `value` where there are none
  double high = 0;              ///< the 90 % quantile
  std::string note;             ///< what a reader must know beside it; short
  std::vector<double> samples;  ///< what the quantiles are of; several passes are pooled
};

/// The quantiles of the numbers (not empty): 50, 10 and 90 %.
[[nodiscard]] Value spread_of(std::vector<double> numbers, std::string note = {});
/// The same in another unit: `by` > 0 times as many.
[[nodiscard]] Value scaled(Value value, double by);

/// How a run was asked for.
struct Settings {
  static constexpr unsigned kRoundsMin = 7;
  unsigned rounds = 9;            ///< of each comparison, in each pass
  unsigned passes = 4;            ///< times that all of it is gone through
  bool quick = false;             ///< a smoke run: rounds few and short, the numbers mean nothing
  std::vector<std::string> only;  ///< beginnings of names; empty: everything
};

/// A figure with its value, or why there is none.
struct Measured {
  FigureInfo info;
  Value value;
};

/// One run: what was asked for, where threads may go, and what came out. Used by the thread that
/// runs the groups.
class Bench {
 public:
  /// `cpus`: OS indices, one a core as far as there are cores; at least one.
  Bench(Settings settings, std::vector<unsigned> cpus);

  [[nodiscard]] bool quick() const noexcept { return settings_.quick; }
  [[nodiscard]] unsigned rounds() const noexcept;  ///< settings().rounds; few in a quick run
  [[nodiscard]] unsigned passes() const noexcept;  ///< settings().passes; 1 in a quick run
  [[nodiscard]] const Settings& settings() const noexcept { return settings_; }
  /// What one contender does in one round should take so long. ns
  [[nodiscard]] double round_ns() const noexcept;
  /// The CPU for a figure's n-th thread. Those of 0 and 1 are two cores, where there are two.
  [[nodiscard]] unsigned cpu(std::size_t n) const noexcept { return cpus_[n % cpus_.size()]; }
  [[nodiscard]] std::size_t cpu_count() const noexcept { return cpus_.size(); }
  [[nodiscard]] bool two_cores() const noexcept { return cpus_.size() > 1; }

  /// Was it asked for? A group measures what is wanted, and nothing else that costs time.
  [[nodiscard]] bool wanted(std::string_view figure) const noexcept;
  /// Any of a family: those whose names begin with `prefix`.
  [[nodiscard]] bool any_wanted(std::string_view prefix) const noexcept;

  /// The value of a figure that the group has declared; dropped if it was not wanted. One of an
  /// earlier pass is joined with it. Stops the program when it was not declared, is given twice in
  /// one pass, or is not finite.
  void add(std::string_view figure, Value value);
  void add(std::string_view figure, double value, std::string note = {}) {
    add(figure, spread_of({value}, std::move(note)));
  }
  /// From here on figures may be added again.
  void begin_pass() { added_.clear(); }

  /// Declares the figures of the group that runs next.
  void declare(std::span<const FigureInfo> figures);
  /// Those of the figures that are wanted and were not added in this pass.
  [[nodiscard]] std::vector<std::string> missing(std::span<const FigureInfo> figures) const;
  [[nodiscard]] const std::vector<Measured>& results() const noexcept { return results_; }

 private:
  Settings settings_;
  std::vector<unsigned> cpus_;
  std::map<std::string, FigureInfo, std::less<>> declared_;
  std::set<std::string, std::less<>> added_;  ///< in this pass
  std::vector<Measured> results_;
};

/// Figures that are measured together. Its failure ends the run.
struct FigureGroup {
  std::string name;
  std::vector<FigureInfo> figures;  ///< every one that run() may add, in the table's order
  std::function<Status(Bench&)> run;
  bool once = false;  ///< in the first pass alone: another one would bring the same, or cost long
  std::string left_out;  ///< what is missing to measure it on this machine; empty: nothing
};

}  // namespace sluice::bench
