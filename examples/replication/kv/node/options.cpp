// SPDX-License-Identifier: BSD-3-Clause
#include "kv/node/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>
#include <utility>

#include "kv/cluster/view.hpp"
#include "kv/replication/quorum.hpp"
#include "kv/replication/transport.hpp"

namespace sluice::kv {
namespace {

constexpr const char* kFooter =
    "A node alone:    sluice-kv --data DIR\n"
    "With etcd:       softrdma-run sluice-kv --data DIR --port 7001 --node a --replication\n"
    "                 127.0.0.1:8001 --etcd http://127.0.0.1:2379 --members a,b,c\n"
    "Without:         ... --static a=127.0.0.1:7001,127.0.0.1:8001 --static b=... --primary a\n"
    "                 (nobody takes over when the primary fails)\n"
    "Clients:         redis-cli -p PORT, redis-benchmark -p PORT -t set,get\n"
    "\n"
    "Levels of durability, when a write is answered: memory (the primary has it), local_disk,\n"
    "quorum_memory (a majority of the in-sync nodes has it), quorum_disk (on their disks), "
    "all_disk.\n"
    "A client sets its own with DURABILITY LEVEL.\n"
    "\n"
    "Exit status: 0 ended by SIGINT or SIGTERM; 1 it could not start or go on; 2 usage.\n"
    "On a machine without an RDMA device nodes of a cluster run under softrdma-run.";

[[noreturn]] void reject(const std::string& option, const std::string& text,
                         const std::string& why) {
  throw CLI::ValidationError(option + " " + text, why);
}

std::uint64_t size_of(const std::string& option, const std::string& text, std::uint64_t low,
                      std::uint64_t high) {
  std::uint64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  const std::string unit(end, last);
  const unsigned shift = unit.empty()                 ? 0
                         : unit == "k" || unit == "K" ? 10
                         : unit == "m" || unit == "M" ? 20
                         : unit == "g" || unit == "G" ? 30
                                                      : 64;
  if (error != std::errc{} || shift == 64 || value > (high >> shift) || value << shift < low)
    reject(option, text,
           fmt::format("takes bytes, or a number with k, m or g: {} to {}", low, high));
  return value << shift;
}

void check_node(const std::string& option, const std::string& id) {
  if (!is_node_id(id) || id.size() > wire::kNodeBytesMax)
    reject(option, id,
           fmt::format("takes a name of letters, digits, '.', '_' and '-', at most {} long",
                       wire::kNodeBytesMax));
}

void check_place(const std::string& option, const std::string& text) {
  const auto place = parse_host_port(text);
  if (!place) reject(option, text, place.status().message());
  if (place->port == 0) reject(option, text, "needs a port of its own, not 0");
}

Member parse_static(const std::string& text) {
  const auto equals = text.find('=');
  const auto comma = text.find(',', equals == std::string::npos ? 0 : equals);
  if (equals == std::string::npos || comma == std::string::npos)
    reject("--static", text, "takes ID=CLIENT_HOST:PORT,REPLICATION_HOST:PORT");
  Member member{text.substr(0, equals), text.substr(equals + 1, comma - equals - 1),
                text.substr(comma + 1)};
  check_node("--static", member.node);
  check_place("--static", member.client);
  check_place("--static", member.replication);
  return member;
}

void check(Options& options) {
  check_node("--node", options.node);
  if (options.cluster.empty() || options.cluster.size() > 64 || !is_node_id(options.cluster))
    reject("--cluster", options.cluster,
           "takes a name of letters, digits, '.', '_' and '-', at most 64 long");
  if (!options.announce.empty()) check_place("--announce", options.announce);
  if (!options.etcd.empty() && !options.fixed.empty())
    reject("--static", options.fixed.front().node, "and --etcd exclude each other");
  // With etcd more nodes may come than the cluster begins with.
  if (const std::size_t nodes = options.alone() ? 1 : options.fixed.size();
      options.etcd.empty() && options.min_in_sync && *options.min_in_sync > nodes)
    reject("--min-in-sync", std::to_string(*options.min_in_sync),
           fmt::format("is more than there are nodes ({})", nodes));
  if (options.alone()) {
    if (!options.replication.empty())
      reject("--replication", options.replication,
             "needs --etcd or --static: a node alone has no replicas");
    if (!options.members.empty()) reject("--members", options.members.front(), "needs --etcd");
    if (!options.primary.empty()) reject("--primary", options.primary, "needs --static");
    return;
  }
  if (!options.etcd.empty()) {
    if (options.replication.empty())
      reject("--replication", "", "is needed with --etcd: where the other nodes reach this one");
    check_place("--replication", options.replication);
    for (const std::string& member : options.members) check_node("--members", member);
    if (options.members.empty()) options.members = {options.node};
    if (!options.primary.empty())
      reject("--primary", options.primary, "goes with --static; etcd elects");
    return;
  }
  std::set<std::string> seen;
  const Member* self = nullptr;
  for (const Member& member : options.fixed) {
    if (!seen.insert(member.node).second) reject("--static", member.node, "names a node twice");
    if (member.node == options.node) self = &member;
  }
  if (self == nullptr)
    reject("--static", options.node,
           "lacks this node (--node): give one for each node, itself too");
  if (!seen.contains(options.primary))
    reject("--primary", options.primary, "has to name one of the nodes given with --static");
  if (options.replication.empty()) options.replication = self->replication;
  check_place("--replication", options.replication);
  if (options.announce.empty()) options.announce = self->client;
}

}  // namespace

std::size_t Options::effective_min_in_sync() const noexcept {
  if (min_in_sync) return *min_in_sync;
  return quorum_of(alone() ? 1 : fixed.empty() ? members.size() : fixed.size());
}

std::size_t Options::entry_bytes_max() const noexcept {
  constexpr std::uint64_t kFileOverhead = 16 * 1024;
  return static_cast<std::size_t>(std::min(ring_bytes / 4, segment_bytes - kFileOverhead / 2));
}

ParsedOptions parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("sluice-kv: a replicated key-value server that speaks Redis's protocol (RESP2).");
  app.footer(kFooter);
  app.get_formatter()->column_width(26);
  app.add_option("--data", options.data, "the folder that this node keeps everything in")
      ->required()
      ->type_name("DIR");
  app.add_option("--port", options.port, "for clients; 0: any free one (default: 6379)")
      ->type_name("N");
  app.add_option("--bind", options.bind,
                 "address for clients (default: 127.0.0.1; 0.0.0.0: all interfaces)")
      ->type_name("ADDR");
  app.add_option("--announce", options.announce,
                 "how clients reach this node, for redirects (default: BIND:PORT)")
      ->type_name("HOST:PORT");
  app.add_option("--requirepass", options.requirepass, "password that clients give with AUTH")
      ->type_name("TEXT");
  app.add_option_function<std::string>(
         "--durability",
         [&](const std::string& text) {
           options.durability = parse_durability(text);
           if (!options.durability)
             reject("--durability", text,
                    "takes memory, local_disk, quorum_memory, quorum_disk or all_disk");
         },
         "of clients that do not say (default: quorum_disk; alone: local_disk)")
      ->type_name("LEVEL");
  app.add_option("--node", options.node, "this node's name (default: node)")->type_name("ID");
  app.add_option("--cluster", options.cluster, "the cluster's name (default: sluice)")
      ->type_name("ID");
  app.add_option("--replication", options.replication,
                 "where the other nodes reach this one: an address of an RDMA device")
      ->type_name("HOST:PORT");
  app.add_option("--etcd", options.etcd,
                 "membership and leader from etcd; endpoints, comma between")
      ->delimiter(',')
      ->type_name("URL");
  app.add_option("--etcd-prefix", options.etcd_prefix, "of the keys there (default: /sluice/kv/)")
      ->type_name("TEXT");
  app.add_option("--lease", options.lease_s, "seconds, 1 to 60 (default: 3)")
      ->check(CLI::Range(1, 60))
      ->type_name("N");
  app.add_option("--members", options.members, "the in-sync nodes that a new cluster begins with")
      ->delimiter(',')
      ->type_name("ID");
  app.add_option_function<std::vector<std::string>>(
         "--static",
         [&](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) options.fixed.push_back(parse_static(text));
         },
         "a node, ID=CLIENT,REPLICATION; once for each: without etcd")
      ->type_name("NODE");
  app.add_option("--primary", options.primary, "who leads, with --static")->type_name("ID");
  app.add_option(
         "--min-in-sync", options.min_in_sync,
         "with fewer in-sync nodes quorum levels are refused (default: the\nmajority of the "
         "nodes)")
      ->check(CLI::Range(1, 64))
      ->type_name("N");
  app.add_option_function<std::uint32_t>(
         "--replica-timeout",
         [&](const std::uint32_t& ms) { options.replica_timeout = std::chrono::milliseconds(ms); },
         "silence after which a replica is no longer in sync (default: 1000)")
      ->check(CLI::Range(200, 600000))
      ->type_name("MS");
  const auto add_size = [&](const char* name, std::uint64_t& out, std::uint64_t low,
                            std::uint64_t high, const char* what) {
    app.add_option_function<std::string>(
           name,
           [&out, name, low, high](const std::string& text) {
             out = size_of(name, text, low, high);
           },
           what)
        ->type_name("SIZE");
  };
  app.add_option("--topology", options.topology,
                 "where pollers and workers run and how they wait: a configuration\nfile as "
                 "sluice-plan checks it; its first pool gets the work")
      ->type_name("FILE");
  add_size("--segment-bytes", options.segment_bytes, 64 << 10, 1 << 30,
           "of each file of the log (default: 64m)");
  add_size("--log-keep-bytes", options.log_keep_bytes, 64 << 10, std::uint64_t{1} << 40,
           "of log kept for replicas that were away (default: 256m)");
  add_size(
      "--write-buffer-bytes", options.write_buffer_bytes, 64 << 10, std::uint64_t{4} << 30,
      "of writes gathered in memory before they go to RocksDB\n(default: 128m); up to four times "
      "that is used for a while");
  add_size("--block-cache-bytes", options.block_cache_bytes, 0, std::uint64_t{1} << 40,
           "of what is read from RocksDB's files (default: 64m)");
  add_size("--ring-bytes", options.ring_bytes, 512 << 10, 1 << 30,
           "of memory for each connection between nodes (default: 16m); a\nrequest holds a quarter "
           "at most");
  try {
    app.parse(argc, argv);
    options.segment_bytes = options.segment_bytes / 4096 * 4096;
    options.ring_bytes = options.ring_bytes / 4096 * 4096;
    check(options);
  } catch (const CLI::CallForHelp& help) {
    return {std::nullopt, app.exit(help)};
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "sluice-kv: {} (sluice-kv --help shows the options)\n", error.what());
    return {std::nullopt, 2};
  }
  return {std::move(options), 0};
}

}  // namespace sluice::kv
