// SPDX-License-Identifier: BSD-3-Clause
// Over an RDMA device: sluice-bench-rdma, run on softrdma, or on the device of this machine if
// SLUICE_BENCH_ADDRESS names one of its addresses.
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../harness/rounds.hpp"
#include "figures.hpp"
#include "programs.hpp"

namespace sluice::bench {
namespace {

constexpr double kQuickShare = 0.01;
constexpr double kShare = 0.25;
constexpr double kIdleSeconds = 10, kQuickIdleSeconds = 0.2;

/// On softrdma, or on the machine's own device.
Result<Numbers> run_on_device(const std::string& arguments) {
  const bool real = std::getenv("SLUICE_BENCH_ADDRESS") != nullptr;
  return run_program(real ? "" : "softrdma-run", "sluice-bench-rdma", arguments);
}

Status run_echo(Bench& bench) {
  std::map<std::string, std::vector<double>> values;
  const std::string share = std::to_string(bench.quick() ? kQuickShare : kShare);
  for (unsigned round = 0; round < bench.rounds(); ++round) {
    for (const bool tcp : {round % 2 == 0, round % 2 != 0}) {
      const auto numbers = tcp ? run_program("", "sluice-bench-rdma", "tcp-echo " + share)
                               : run_on_device("echo " + share);
      if (!numbers) return numbers.status();
      for (const auto& [name, value] : *numbers) {
        values["softrdma.echo." + std::string(tcp ? "tcp_" : "") + name].push_back(value);
      }
    }
  }
  for (auto& [name, of_rounds] : values) bench.add(name, spread_of(std::move(of_rounds)));
  return {};
}

Status run_idle(Bench& bench) {
  const auto numbers =
      run_on_device("idle " + std::to_string(bench.quick() ? kQuickIdleSeconds : kIdleSeconds));
  if (!numbers) return numbers.status();
  bench.add("idle.softrdma.cpu_percent", numbers->at("cpu_percent"),
            "of one CPU; 100 connections, 1000 sources");
  return {};
}

}  // namespace

FigureGroup softrdma_echo() {
  FigureGroup group{"softrdma.echo", {}, run_echo};
  for (const std::string beside : {"", "tcp_"}) {
    group.figures.push_back({"softrdma.echo." + beside + "p50_us", "us", {}});
    group.figures.push_back({"softrdma.echo." + beside + "p99_us", "us", {}});
    group.figures.push_back({"softrdma.echo." + beside + "mps", "messages/s", {}});
  }
  return group;
}

FigureGroup softrdma_idle() {
  return {"idle.softrdma", {{"idle.softrdma.cpu_percent", "percent", at_most(0.5)}}, run_idle};
}

}  // namespace sluice::bench
