// SPDX-License-Identifier: BSD-3-Clause
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <utility>

#include "output.hpp"

namespace sluice::plan_tool {
namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  sluice-plan plan                              where threads go on this machine\n"
    "  sluice-plan plan --topology \"numa:2 l3:2 core:4 pu:2\" --nic mlx5_0@1\n"
    "  sluice-plan check sluice.toml --against running.toml\n"
    "  sluice-plan draw plan.png sluice.toml --set pools.apply.workers=6\n"
    "  sluice-plan print-defaults > sluice.toml\n"
    "\n"
    "CONFIG is a TOML file; left out, $SLUICE_CONFIG, and without that all is \"auto\".\n"
    "SLUICE_SECTION__NAME__KEY in the environment beats the file, --set beats both.\n"
    "\n"
    "Exit status:\n"
    "  0  all is well\n"
    "  1  a file, standard output or lstopo failed\n"
    "  2  an option that cannot work\n"
    "  3  the configuration has errors\n"
    "  4  --strict, and the plan is degraded";

void add_config(CLI::App& app, Options& options) {
  app.add_option("CONFIG", options.config, "the configuration (default: $SLUICE_CONFIG)")
      ->type_name("FILE");
}

void add_set(CLI::App& app, Options& options) {
  app.add_option("--set", options.sets,
                 "lay a value over the file, e.g. pools.apply.workers=6; may be repeated")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
}

void add_machine(CLI::App& app, Options& options) {
  app.add_option("--topology", options.topology,
                 "another machine: an XML that lstopo saved, or hwloc's synthetic\n"
                 "notation, \"numa:2 l3:2 core:4 pu:2\" (default: this machine)")
      ->type_name("XML|TEXT");
  app.add_option(
         "--nic", options.nics,
         "what if there were this RDMA device on this NUMA node (OS index);\nmay be repeated")
      ->type_name("NAME@NODE")
      ->allow_extra_args(false);
  app.add_option("--allowed", options.allowed, "what if the cgroup had these CPUs: 0-3,8")
      ->type_name("LIST");
  app.add_option("--affinity", options.affinity, "what if it ran under taskset -c LIST")
      ->type_name("LIST");
  app.add_option("--isolated", options.isolated, "what if these CPUs were isolated (isolcpus=)")
      ->type_name("LIST");
}

void add_strict(CLI::App& app, Options& options) {
  app.add_flag("--strict", options.strict, "exit with 4 when the plan is degraded");
}

CLI::App* add_check(CLI::App& app, Options& options) {
  auto* const check = app.add_subcommand("check", "Say all that is wrong with a configuration");
  add_config(*check, options);
  check
      ->add_option("--against", options.against,
                   "print what changes for a program that runs with this file")
      ->type_name("FILE");
  check->add_flag("--no-machine", options.no_machine,
                  "do not place it: devices and CPUs are not looked up");
  add_set(*check, options);
  add_machine(*check, options);
  add_strict(*check, options);
  return check;
}

CLI::App* add_print_config(CLI::App& app, Options& options) {
  auto* const print =
      app.add_subcommand("print-config", "Print each effective value and where it came from");
  add_config(*print, options);
  print->add_flag("--json", options.json, "as JSON");
  add_set(*print, options);
  return print;
}

CLI::App* add_plan(CLI::App& app, Options& options) {
  auto* const plan =
      app.add_subcommand("plan", "Print where each thread goes, and why (a table, or JSON)");
  add_config(*plan, options);
  plan->add_flag("--json", options.json, "as JSON; pu and node are OS indices");
  add_set(*plan, options);
  add_machine(*plan, options);
  add_strict(*plan, options);
  return plan;
}

CLI::App* add_draw(CLI::App& app, Options& options) {
  auto* const draw =
      app.add_subcommand("draw", "Draw the machine with the threads on it (with lstopo, of hwloc)");
  draw->add_option("OUTPUT", options.output,
                   "where to: .svg, .png, or .xml for lstopo to draw elsewhere")
      ->required()
      ->type_name("FILE");
  add_config(*draw, options);
  add_set(*draw, options);
  add_machine(*draw, options);
  add_strict(*draw, options);
  return draw;
}

/// An empty value is a slip (an unset variable), not a wish.
void refuse_empty(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options())
    for (const std::string& value : option->results())
      if (value.empty()) throw CLI::ValidationError(option->get_name(), "is empty");
}

/// CLI11 does not name a command that it does not know.
Status missing(const CLI::App& app, const CLI::RequiredError& error) {
  if (!app.get_subcommands().empty())
    return {StatusCode::invalid_argument, std::string(error.what()) + " (--help tells more)"};
  const auto words = app.remaining();
  return {StatusCode::invalid_argument,
          (words.empty() ? "a command is missing" : "there is no command '" + words.front() + "'") +
              "; there are check, print-config, print-defaults, plan, draw (--help tells more)"};
}

}  // namespace

ParsedOptions parse_options(int argc, char** argv) {
  Options options;
  CLI::App app{"Checks Sluice's configuration, and shows where its threads go and why.",
               "sluice-plan"};
  app.footer(kFooter);
  app.get_formatter()->column_width(30);
  const std::pair<const CLI::App*, Command> commands[] = {
      {add_check(app, options), Command::check},
      {add_print_config(app, options), Command::print_config},
      {app.add_subcommand("print-defaults", "Print the defaults as a commented TOML file"),
       Command::print_defaults},
      {add_plan(app, options), Command::plan},
      {add_draw(app, options), Command::draw}};
  app.require_subcommand(1);
  try {
    app.parse(argc, argv);
    for (const auto& [command, value] : commands) {
      if (!command->parsed()) continue;
      options.command = value;
      refuse_empty(*command);
    }
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, finish(write_stdout(app.help()), kExitFailed)};
  } catch (const CLI::RequiredError& error) {
    return {std::nullopt, finish(missing(app, error), kExitUsage)};
  } catch (const CLI::ParseError& error) {
    return {std::nullopt, finish(Status(StatusCode::invalid_argument,
                                        std::string(error.what()) + " (--help tells more)"),
                                 kExitUsage)};
  }
  return {std::move(options), kExitOk};
}

}  // namespace sluice::plan_tool
