// SPDX-License-Identifier: BSD-3-Clause
#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <utility>

namespace demo {

Parsed parse_options(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Starts etcd and a cluster of sluice-kv, loads it with redis-benchmark, kills the primary "
      "with "
      "kill -9 in the middle, shows how another node takes over and how the killed one comes back, "
      "and looks for every write that was acknowledged. Ends everything that it started.",
      "sluice-kv-demo"};
  const auto number = [&](const char* name, std::uint32_t& value, std::uint32_t least,
                          std::uint32_t most, const char* what) {
    app.add_option(name, value, what)
        ->type_name("N")
        ->check(CLI::Range(least, most))
        ->capture_default_str();
  };
  number("--nodes", options.nodes, 3, 9, "nodes of the cluster");
  number("--requests", options.requests, 1000, 10'000'000, "SETs of each run of redis-benchmark");
  number("--clients", options.clients, 1, 500, "connections of redis-benchmark");
  number("--bytes", options.bytes, 1, 65'536, "bytes of a value of redis-benchmark");
  number("--writers", options.writers, 1, 64,
         "writers of the demo's own, whose every acknowledged write is looked for at the end");
  number("--lease", options.lease_s, 2, 60,
         "seconds after which a primary that is not heard of has lost its leadership");
  app.add_option("--address", options.address,
                 "replicate over the RDMA device that has this IPv4 address")
      ->type_name("A")
      ->check(CLI::ValidIPV4)
      ->capture_default_str();
  app.add_flag("--device", options.device,
               "use the machine's RDMA device (give its --address) instead of softrdma");
  app.add_flag("--keep", options.keep, "leave the nodes' data and messages where they are");
  app.footer(
      "Exit status: 0 no acknowledged write is lost; 1 one is, or the cluster did not come up or "
      "did "
      "not take over; 2 usage; 130, 143 ended by SIGINT, SIGTERM.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return {std::nullopt, app.exit(help)};
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "sluice-kv-demo: {}\n", error.what());
    return {std::nullopt, kExitUsage};
  }
  return {std::move(options), 0};
}

}  // namespace demo
