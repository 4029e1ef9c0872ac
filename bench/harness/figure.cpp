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

}  // namespace

Bench::Bench(Settings settings, std::vector<unsigned> cpus)
    : settings_(std::move(settings)), cpus_(std::move(cpus)) {
  SLUICE_CHECK(!cpus_.empty(), "a bench needs a CPU to run on");
}

unsigned Bench::rounds() const noexcept {
  return quick() ? kQuickRounds : settings_.rounds;
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
  SLUICE_CHECK(!measured(figure), std::string(figure) + " was measured twice");
  results_.push_back({declared->second, std::move(value)});
}

void Bench::declare(std::span<const FigureInfo> figures) {
  for (const FigureInfo& figure : figures) {
    const bool fresh = declared_.emplace(figure.name, figure).second;
    SLUICE_CHECK(fresh, figure.name + " is declared twice");
  }
}

std::vector<std::string> Bench::missing() const {
  std::vector<std::string> names;
  for (const auto& figure : declared_) {
    const std::string& name = figure.first;
    if (wanted(name) && !measured(name)) names.push_back(name);
  }
  return names;
}

bool Bench::measured(std::string_view figure) const noexcept {
  return std::any_of(results_.begin(), results_.end(),
                     [&](const Measured& m) { return m.info.name == figure; });
}

}  // namespace sluice::bench
