// SPDX-License-Identifier: BSD-3-Clause
#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "recorded.hpp"

namespace sluice::bench {
namespace {

constexpr unsigned kRoundsMax = 1000;
constexpr unsigned kPassesMax = 100;

bool any_begins_with(std::span<const FigureGroup> groups, const std::string& prefix) {
  return std::any_of(groups.begin(), groups.end(), [&](const FigureGroup& group) {
    return std::any_of(group.figures.begin(), group.figures.end(),
                       [&](const FigureInfo& figure) { return figure.name.starts_with(prefix); });
  });
}

/// `only` asks for figures of this family.
bool begins(const std::string& family, const std::string& only) {
  return family.starts_with(only) || only.starts_with(family + ".");
}

}  // namespace

Parsed parse_options(int argc, char** argv, std::span<const FigureGroup> groups) {
  Options options;
  CLI::App app{"Sluice's bench: contenders interleaved, ratios of medians, with their spread.",
               "sluice-bench"};
  app.add_option("--only", options.settings.only,
                 "only figures whose name begins with NAME; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
  app.add_option("--json", options.json, "also write {\"machine\":{..}, \"figures\":{..}} there")
      ->type_name("FILE");
  app.add_option("--rounds", options.settings.rounds,
                 fmt::format("rounds of each comparison, in each pass (default {})",
                             options.settings.rounds))
      ->type_name("N")
      ->check(CLI::Range(Settings::kRoundsMin, kRoundsMax));
  app.add_option("--trace", options.traces,
                 "also play the gaps between completions in FILE (a text file, ns, one a line) "
                 "against each way to wait: waiting.recorded.*; may be repeated")
      ->type_name("FILE")
      ->allow_extra_args(false);
  app.add_option("--passes", options.settings.passes,
                 fmt::format("times that all of it is gone through (default {}): what drifts in "
                             "minutes shows in the spread, too",
                             options.settings.passes))
      ->type_name("N")
      ->check(CLI::Range(1U, kPassesMax));
  app.add_flag("--quick", options.settings.quick,
               "a smoke run: everything once or twice and short; its numbers mean nothing");
  app.add_flag("--list", options.list, "name the figures and measure nothing");
  try {
    app.parse(argc, argv);
    for (const std::string& name : options.settings.only) {
      if (name.empty()) throw CLI::ValidationError("--only", "is empty");
      const bool of_trace =
          std::any_of(options.traces.begin(), options.traces.end(),
                      [&](const std::string& path) { return begins(recorded_name(path), name); });
      if (!of_trace && !any_begins_with(groups, name)) {
        throw CLI::ValidationError(
            "--only", fmt::format("no figure begins with '{}' (--list names them)", name));
      }
    }
    const CLI::Option* const json = app.get_option("--json");
    if (json->count() > 0 && options.json.empty()) throw CLI::ValidationError("--json", "is empty");
  } catch (const CLI::CallForHelp& help) {
    return {std::nullopt, app.exit(help)};
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "sluice-bench: {}\n", error.what());
    return {std::nullopt, kBadUsage};
  }
  return {std::move(options), 0};
}

}  // namespace sluice::bench
