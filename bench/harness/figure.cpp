// SPDX-License-Identifier: BSD-3-Clause
#include "figure.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sluice::bench {
namespace {

constexpr unsigned kQuickRounds = 2;
constexpr double kRoundNs = 80e6;
constexpr double kQuickRoundNs = 1e6;

double quantile(const std::vector<double>& sorted, double at) noexcept {
  const double position = at * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

}  // namespace

Value spread_of(std::vector<double> numbers, std::string note) {
  SLUICE_CHECK(!numbers.empty(), "the spread of no numbers");
  std::sort(numbers.begin(), numbers.end());
  Value value{
      quantile(numbers, 0.5), quantile(numbers, 0.1), quantile(numbers, 0.9), std::move(note), {}};
  value.samples = std::move(numbers);
  return value;
}

Value scaled(Value value, double by) {
  for (double* const one : {&value.value, &value.low, &value.high}) *one *= by;
  for (double& sample : value.samples) sample *= by;
  return value;
}

Bench::Bench(Settings settings, std::vector<unsigned> cpus)
    : settings_(std::move(settings)), cpus_(std::move(cpus)) {
  SLUICE_CHECK(!cpus_.empty(), "a bench needs a CPU to run on");
}

unsigned Bench::rounds() const noexcept {
  return quick() ? kQuickRounds : settings_.rounds;
}

unsigned Bench::passes() const noexcept {
  return quick() ? 1 : settings_.passes;
}

double Bench::round_ns() const noexcept {
  return quick() ? kQuickRoundNs : kRoundNs;
}

bool Bench::wanted(std::string_view figure) const noexcept {
  return settings_.only.empty() ||
         std::any_of(settings_.only.begin(), settings_.only.end(),
                     [&](const std::string& name) { return figure.starts_with(name); });
}

bool Bench::any_wanted(std::string_view prefix) const noexcept {
  return std::any_of(declared_.begin(), declared_.end(), [&](const auto& figure) {
    return figure.first.starts_with(prefix) && wanted(figure.first);
  });
}

void Bench::add(std::string_view figure, Value value) {
  const auto declared = declared_.find(figure);
  SLUICE_CHECK(declared != declared_.end(), std::string(figure) + " was not declared");
  SLUICE_CHECK(std::isfinite(value.value) && std::isfinite(value.low) && std::isfinite(value.high),
               std::string(figure) + " is not a number");
  if (!wanted(figure)) return;
  SLUICE_CHECK(added_.emplace(figure).second, std::string(figure) + " was measured twice");
  const auto earlier = std::find_if(results_.begin(), results_.end(),
                                    [&](const Measured& m) { return m.info.name == figure; });
  if (earlier == results_.end()) {
    results_.push_back({declared->second, std::move(value)});
    return;
  }
  const std::vector<double>& before = earlier->value.samples;
  value.samples.insert(value.samples.end(), before.begin(), before.end());
  earlier->value = spread_of(std::move(value.samples), std::move(value.note));
}

void Bench::declare(std::span<const FigureInfo> figures) {
  for (const FigureInfo& figure : figures) {
    const bool fresh = declared_.emplace(figure.name, figure).second;
    SLUICE_CHECK(fresh, figure.name + " is declared twice");
  }
}

std::vector<std::string> Bench::missing(std::span<const FigureInfo> figures) const {
  std::vector<std::string> names;
  for (const FigureInfo& figure : figures) {
    if (wanted(figure.name) && !added_.contains(figure.name)) names.push_back(figure.name);
  }
  return names;
}

}  // namespace sluice::bench
