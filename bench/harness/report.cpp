// SPDX-License-Identifier: BSD-3-Clause
#include "report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace sluice::bench {
namespace {

/// Three significant digits, without an exponent for what people read.
std::string number(double value) {
  const double size = value < 0 ? -value : value;
  if (size >= 100) return fmt::format("{:.0f}", value);
  if (size >= 10) return fmt::format("{:.1f}", value);
  if (size >= 1) return fmt::format("{:.2f}", value);
  return fmt::format("{:.3f}", value);
}

std::string goal_text(const FigureInfo& info) {
  if (!info.goal) return {};
  return fmt::format("{} {:g}",
                     info.goal->sense == Goal::Sense::at_most ? "<=" : ">=", info.goal->value);
}

std::string verdict(const Measured& measured) {
  if (!measured.info.goal) return {};
  return measured.info.goal->met_by(measured.value.value) ? "met" : "MISSED";
}

}  // namespace

std::string table(const Facts& machine, const std::vector<Measured>& results) {
  std::string text;
  const auto out = std::back_inserter(text);
  for (const auto& [name, value] : machine) fmt::format_to(out, "{:<12} {}\n", name, value);
  std::size_t width = 6;
  for (const Measured& measured : results) width = std::max(width, measured.info.name.size());
  fmt::format_to(out, "\n{:<{}}  {:>8}  {:<16}  {:<12} {:<8} {:<6}  {}\n", "figure", width, "value",
                 "10-90 %", "unit", "goal", "", "note");
  std::size_t goals = 0;
  std::size_t met = 0;
  for (const Measured& measured : results) {
    const Value& value = measured.value;
    const std::string verdict_word = verdict(measured);
    goals += measured.info.goal ? 1 : 0;
    met += verdict_word == "met" ? 1 : 0;
    std::string line = fmt::format(
        "{:<{}}  {:>8}  {:<16}  {:<12} {:<8} {:<6}  {}", measured.info.name, width,
        number(value.value), fmt::format("{} - {}", number(value.low), number(value.high)),
        measured.info.unit, goal_text(measured.info), verdict_word, value.note);
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::format_to(out, "{}\n", line);
  }
  fmt::format_to(out, "\n{} figures; {} of {} goals met\n", results.size(), met, goals);
  return text;
}

Status write_empty(const std::string& path) {
  std::ofstream file(path);
  file.close();
  if (!file) return {StatusCode::io_error, "could not write " + path, errno};
  return {};
}

Status write_json(const std::string& path, const Facts& machine, bool quick,
                  const std::vector<Measured>& results) {
  nlohmann::ordered_json json;
  json["machine"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : machine) json["machine"][name] = value;
  json["figures"] = nlohmann::ordered_json::object();
  json["spread"] = nlohmann::ordered_json::object();
  for (const Measured& measured : results) {
    json["figures"][measured.info.name] = measured.value.value;
    json["spread"][measured.info.name] = {measured.value.low, measured.value.high};
  }
  json["quick"] = quick;
  std::ofstream file(path);
  file << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  file.close();
  if (!file) return {StatusCode::io_error, "could not write " + path, errno};
  return {};
}

}  // namespace sluice::bench
