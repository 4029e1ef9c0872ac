// SPDX-License-Identifier: BSD-3-Clause
#include "inputs.hpp"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <utility>

#include "output.hpp"
#include "sluice/topology/cpu_set.hpp"

namespace sluice::plan_tool {
namespace {

using topology::ConfigInput;
using topology::ConfigOutcome;
using topology::CpuSet;
using topology::Machine;

Status bad_option(const std::string& option, const std::string& why) {
  return {StatusCode::invalid_argument, option + ": " + why};
}

Result<ConfigOutcome> read_input(ConfigInput input, const std::string& file) {
  if (!file.empty()) {
    auto text = read_file(file);
    if (!text) return text.status();
    input.text = std::move(*text);
    input.file = file;
  }
  input.environment = topology::process_environment();
  return topology::Config::read(input);
}

/// CPUs of a what-if: all of them must be there, else it asks about another machine.
Result<CpuSet> cpus_of(const std::string& option, const std::string& list, const Machine& machine) {
  auto cpus = CpuSet::parse(list);
  if (!cpus) return bad_option(option + " " + list, cpus.status().message());
  if (cpus->empty()) return bad_option(option + " " + list, "there is no CPU in it");
  const CpuSet unknown = *cpus - machine.all();
  if (!unknown.empty())
    return bad_option(option + " " + list, "there is no CPU " + unknown.to_string() + " on " +
                                               machine.name() + "; there are " +
                                               machine.all().to_string());
  return cpus;
}

std::string nodes_of(const Machine& machine) {
  CpuSet nodes;
  for (const auto& node : machine.nodes()) nodes.add(node.os_index);
  return nodes.to_string();
}

Status add_nic(const std::string& text, Machine& machine) {
  const std::string option = "--nic " + text;
  const auto at = text.rfind('@');
  if (at == std::string::npos || at == 0)
    return bad_option(option, "takes NAME@NODE, e.g. mlx5_0@1");
  unsigned node = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + at + 1, last, node);
  if (error != std::errc{} || end != last)
    return bad_option(option, "takes NAME@NODE, where NODE is a number");
  if (!machine.node_of(node))
    return bad_option(option, "there is no NUMA node " + std::to_string(node) + " on " +
                                  machine.name() + "; there are " + nodes_of(machine));
  machine = machine.with_nic(text.substr(0, at), node);
  return {};
}

}  // namespace

std::string config_file(const Options& options) {
  if (!options.config.empty()) return options.config;
  const char* const variable = std::getenv("SLUICE_CONFIG");
  return variable == nullptr ? "" : variable;
}

Status check_sets(const Options& options) {
  for (const std::string& set : options.sets) {
    const auto equals = set.find('=');
    if (equals == std::string::npos || equals == 0)
      return bad_option("--set " + set, "takes PATH=VALUE, e.g. pools.apply.workers=6");
  }
  return {};
}

Result<ConfigOutcome> read_config(const Options& options) {
  ConfigInput input;
  for (const std::string& set : options.sets) {
    const auto equals = set.find('=');
    input.overrides.push_back({set.substr(0, equals), set.substr(equals + 1), "--set"});
  }
  return read_input(std::move(input), config_file(options));
}

Result<ConfigOutcome> read_config(const std::string& file) {
  return read_input({}, file);
}

Result<Machine> read_machine(const Options& options) {
  auto loaded = Machine::load(options.topology);
  if (!loaded)
    return options.topology.empty() ? loaded.status() : loaded.status().with_context("--topology");
  Machine machine = std::move(*loaded);
  for (const std::string& nic : options.nics) SLUICE_RETURN_IF_ERROR(add_nic(nic, machine));
  using WhatIf = Machine (Machine::*)(const CpuSet&) const;
  const std::pair<const char*, std::pair<const std::string*, WhatIf>> what_ifs[] = {
      {"--allowed", {&options.allowed, &Machine::with_allowed}},
      {"--affinity", {&options.affinity, &Machine::with_affinity}},
      {"--isolated", {&options.isolated, &Machine::with_isolated}}};
  for (const auto& [option, what] : what_ifs) {
    if (what.first->empty()) continue;
    auto cpus = cpus_of(option, *what.first, machine);
    if (!cpus) return cpus.status();
    machine = (machine.*what.second)(*cpus);
  }
  return machine;
}

}  // namespace sluice::plan_tool
