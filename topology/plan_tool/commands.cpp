// SPDX-License-Identifier: BSD-3-Clause
#include "commands.hpp"

#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "inputs.hpp"
#include "output.hpp"

namespace sluice::plan_tool {
namespace {

using topology::Config;
using topology::ConfigOutcome;
using topology::Plan;

/// A value, or the exit status since there is none; why has been said.
template <typename T>
struct Step {
  std::optional<T> value;
  int exit_code = kExitOk;
};

std::string counted(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

/// What is wrong with a configuration goes to stderr, a line each.
Step<Config> accepted(Result<ConfigOutcome> outcome) {
  if (!outcome) return {std::nullopt, finish(outcome.status(), kExitFailed)};
  for (const auto& diagnostic : outcome->diagnostics) say(diagnostic.to_string());
  if (!outcome->ok()) return {std::nullopt, kExitConfig};
  return {std::move(outcome->config), kExitOk};
}

Step<Config> load_config(const Options& options) {
  if (const Status sets = check_sets(options); !sets.ok())
    return {std::nullopt, finish(sets, kExitUsage)};
  return accepted(read_config(options));
}

/// What place() refuses, a line each that begins with its origin, looks like the reader's errors:
/// "sluice.toml:3:6: error: ...".
void say_refusal(const std::string& message, const Config& config) {
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);) {
    std::size_t after_origin = 0;
    for (const auto& [path, origin] : config.origins) {
      const std::string prefix = origin.to_string() + ": ";
      if (line.starts_with(prefix)) after_origin = prefix.size();
    }
    say(line.insert(after_origin, "error: "));
  }
}

Step<Plan> placed(const Options& options, const Config& config) {
  auto machine = read_machine(options);
  if (!machine) {
    const bool asked = machine.status().code() == StatusCode::invalid_argument;
    return {std::nullopt, finish(machine.status(), asked ? kExitUsage : kExitFailed)};
  }
  auto plan = topology::place(*machine, config);
  if (!plan) {
    say_refusal(plan.status().message(), config);
    return {std::nullopt, kExitConfig};
  }
  return {std::move(*plan), kExitOk};
}

Step<Plan> load_plan(const Options& options) {
  auto config = load_config(options);
  if (!config.value) return {std::nullopt, config.exit_code};
  return placed(options, *config.value);
}

int verdict(const Options& options, const Plan& plan) {
  if (!options.strict || plan.degraded.empty()) return kExitOk;
  say("sluice-plan: the plan is degraded, and --strict was given");
  return kExitDegraded;
}

int print(const std::string& text) {
  return finish(write_stdout(text), kExitFailed);
}

std::string changes_between(const Config& running, const Config& wanted) {
  std::string text;
  for (const auto& change : topology::diff(running, wanted)) text += change.to_string() + '\n';
  return text.empty() ? "no changes\n" : text;
}

/// "sluice.toml: ok, 2 pollers, 6 workers on this machine".
std::string summary(const Options& options, const Config& config, const std::optional<Plan>& plan) {
  const std::string file = config_file(options);
  std::string text = (file.empty() ? "defaults" : file) + ": ok, ";
  if (!plan)
    return text + counted(config.pollers.size(), "pollers group") + ", " +
           counted(config.pools.size(), "pool") + " (not placed on a machine)\n";
  std::size_t workers = 0;
  for (const auto& thread : plan->threads)
    workers += thread.role == topology::ThreadRole::worker ? 1 : 0;
  text += counted(plan->poller_count(), "poller") + ", " + counted(workers, "worker") + " on " +
          plan->machine.name();
  if (!plan->degraded.empty()) text += ", degraded";
  return text + '\n';
}

int check(const Options& options) {
  auto config = load_config(options);
  if (!config.value) return config.exit_code;
  std::optional<Plan> plan;
  if (!options.no_machine) {
    auto step = placed(options, *config.value);
    if (!step.value) return step.exit_code;
    plan = std::move(step.value);
    for (const std::string& sentence : plan->degraded) say("warning: degraded: " + sentence);
  }
  std::string text = summary(options, *config.value, plan);
  if (!options.against.empty()) {
    auto running = accepted(read_config(options.against));
    if (!running.value) return running.exit_code;
    text += changes_between(*running.value, *config.value);
  }
  if (const int failed = print(text); failed != kExitOk) return failed;
  return plan ? verdict(options, *plan) : kExitOk;
}

int print_config(const Options& options) {
  auto config = load_config(options);
  if (!config.value) return config.exit_code;
  if (!options.json) return print(config.value->to_toml(true));
  auto json = nlohmann::ordered_json::array();
  for (const auto& [path, value] : config.value->values())
    json.push_back(
        {{"path", path}, {"value", value}, {"origin", config.value->origin_of(path).to_string()}});
  return print(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n');
}

int show_plan(const Options& options) {
  auto plan = load_plan(options);
  if (!plan.value) return plan.exit_code;
  const int printed = print(options.json ? plan.value->to_json() + '\n' : plan.value->to_table());
  return printed != kExitOk ? printed : verdict(options, *plan.value);
}

int draw_plan(const Options& options) {
  if (const Status name = check_output_name(options.output); !name.ok())
    return finish(name, kExitUsage);
  auto plan = load_plan(options);
  if (!plan.value) return plan.exit_code;
  const int drawn = finish(draw(*plan.value, options.output), kExitFailed);
  return drawn != kExitOk ? drawn : verdict(options, *plan.value);
}

}  // namespace

int run(const Options& options) {
  switch (options.command) {
    case Command::check: return check(options);
    case Command::print_config: return print_config(options);
    case Command::print_defaults: return print(Config::documented_defaults());
    case Command::plan: return show_plan(options);
    case Command::draw: return draw_plan(options);
  }
  return kExitUsage;
}

}  // namespace sluice::plan_tool
