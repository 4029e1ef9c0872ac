// SPDX-License-Identifier: BSD-3-Clause
#include "options.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>

#include "errors.hpp"
#include "protocol.hpp"

namespace replicate {
namespace {

using sluice::Status;
using sluice::StatusCode;

constexpr std::uint64_t kRecordSizeMax = std::uint64_t{64} << 20;
constexpr std::uint32_t kReplicasMax = 64;
constexpr std::uint32_t kConnectionsMax = 1024;
constexpr std::uint32_t kWindowMax = 4096;
constexpr std::uint32_t kReceiveDepthMax = 1 << 16;
constexpr std::uint32_t kPollersMax = 16;
constexpr std::uint32_t kTimeoutMax = 3600;
constexpr std::uint64_t kMemoryTarget = std::uint64_t{8}
                                        << 20;  ///< of registered buffers, by default
constexpr std::uint64_t kMemoryMax = std::uint64_t{4} << 30;
constexpr std::uint64_t kDescriptorsPerConnection = 6;  ///< event channels, CQ channels, sockets
constexpr std::uint64_t kDescriptorsBeside = 64;

constexpr const char* kFooter =
    "Exit status:\n"
    "  0  all is committed, and each surviving copy is identical\n"
    "  1  internal error\n"
    "  2  an option that cannot work\n"
    "  3  the input, an output or the JSON file\n"
    "  4  RDMA: device, address, port, refused connection, limits\n"
    "  5  too few replicas are left for the quorum; a replica: its primary is gone\n"
    "  6  a copy is not identical, or the device failed\n"
    "  7  nothing moved for --timeout seconds\n"
    "  128+N  ended by signal N\n"
    "\n"
    "Without an RDMA device run it as: softrdma-run sluice-replicate ...";

std::string default_address() {
  const char* const rxe = std::getenv("RXE_ADDR");
  return rxe != nullptr && *rxe != '\0' ? rxe : "127.0.0.1";
}

/// "16384", "16K", "1M", "1G": a number and a power of 1024. What is too large for 64 bits is no
/// size.
std::optional<std::uint64_t> parse_size(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const unsigned shift = unit.empty()  ? 0
                         : unit == "K" ? 10
                         : unit == "M" ? 20
                         : unit == "G" ? 30
                                       : 64;
  if (shift == 64 || value > (~std::uint64_t{0} >> shift)) return std::nullopt;
  return value << shift;
}

void set_record_size(Options& options, const std::string& text) {
  const auto size = parse_size(text);
  if (!size)
    throw CLI::ValidationError("--record-size " + text, "takes a number, or one with K or M");
  options.record_size = *size;
}

void set_wait(Options& options, const std::string& text) {
  if (text != "busy" && text != "event")
    throw CLI::ValidationError("--wait " + text, "takes busy or event");
  options.wait = text == "busy" ? sluice::WaitMode::busy : sluice::WaitMode::event;
}

void add_common(CLI::App& app, Options& options) {
  app.add_option_function<std::string>(
         "--record-size", [&options](const std::string& text) { set_record_size(options, text); },
         "bytes per record, 1 to 64M (default: 16K)")
      ->type_name("SIZE");
  app.add_option_function<std::string>(
         "--wait", [&options](const std::string& text) { set_wait(options, text); },
         "busy: pollers poll, a core each; event: they sleep (default: event)")
      ->type_name("MODE");
  app.add_option("--workers", options.workers, "worker threads per process, 1 to 32 (default: 1)")
      ->type_name("N");
  app.add_option("--pollers", options.pollers, "poller threads per process, 1 to 16 (default: 1)")
      ->type_name("N");
  app.add_option("--timeout", options.timeout_s,
                 "without any progress for so long, a replica is lost (default: 10)")
      ->type_name("SECONDS");
}

void add_shipping(CLI::App& app, Options& options) {
  app.add_option("--file", options.file,
                 "what to ship (default: some program or library of 8 MiB or more)")
      ->type_name("FILE");
  app.add_option("--quorum", options.quorum,
                 "so many replicas must have a record before it counts (default:\n"
                 "half of them, rounded up: with the original, a majority)")
      ->type_name("N");
  app.add_option("--connections", options.connections,
                 "connections per replica, records striped over them, 1 to 1024\n(default: 1)")
      ->type_name("N");
  app.add_option("--window", options.window,
                 "records in flight per connection, 1 to 4096 (default: 2 to 64, as\n"
                 "many as fit into 8 MiB)")
      ->type_name("N");
  app.add_option("--json", options.json, "write the summary to this file, too")->type_name("FILE");
}

void add_options_of_all(CLI::App& app, Options& options) {
  app.add_option("--replicas", options.replicas, "replicas to start, 1 to 64 (default: 2)")
      ->type_name("N");
  add_shipping(app, options);
  app.add_option("--address", options.address,
                 "the RDMA device's address (default: $RXE_ADDR, else 127.0.0.1)")
      ->type_name("ADDR");
  app.add_option("--port", options.port,
                 "of the first replica, the next ones follow (default: free ones)")
      ->type_name("PORT");
  app.add_option("--output-dir", options.output_dir,
                 "where the copies go (default: a temporary folder, removed at the end)")
      ->type_name("DIR");
  app.add_flag("--keep", options.keep, "keep the temporary folder");
  app.add_flag("--kill-one", options.kill_one,
               "SIGKILL the last replica when half of the records are committed");
  app.add_flag("--fsync", options.fsync, "replicas fdatasync before they acknowledge");
}

void add_options_of_primary(CLI::App& app, Options& options) {
  app.add_option("--replica", options.replica_addresses, "a replica; once for each")
      ->required()
      ->type_name("ADDR:PORT");
  add_shipping(app, options);
}

void add_options_of_replica(CLI::App& app, Options& options) {
  app.add_option("--listen", options.listen, "where to listen; port 0 takes any")
      ->required()
      ->type_name("ADDR:PORT");
  app.add_option("--output", options.output, "where the copy goes")->required()->type_name("FILE");
  app.add_option("--connections-max", options.connections_max,
                 "connections a primary may make, 1 to 1024 (default: 16)")
      ->type_name("N");
  app.add_option("--receive-depth", options.receive_depth,
                 "receives on the shared receive queue, for all connections\n"
                 "together, 1 to 65536 (default: 16 to 512, as many as fit into 8 MiB)")
      ->type_name("N");
  app.add_option("--control-fd", options.control_fd)->group("");  // hidden: the starter's
  app.add_flag("--fsync", options.fsync, "fdatasync before acknowledging");
}

Status bad_option(std::string_view option, auto value, std::string_view what_would_do) {
  return Status(StatusCode::invalid_argument,
                fmt::format("{} {}: {}", option, value, what_would_do));
}

Status check_range(std::string_view option, std::uint64_t value, std::uint64_t min,
                   std::uint64_t max) {
  if (value >= min && value <= max) return {};
  return bad_option(option, value, fmt::format("takes {} to {}", min, max));
}

Status validate_common(const Options& options) {
  SLUICE_RETURN_IF_ERROR(check_range("--record-size", options.record_size, 1, kRecordSizeMax));
  SLUICE_RETURN_IF_ERROR(check_range("--workers", options.workers, 1, Load::kWorkersMax));
  SLUICE_RETURN_IF_ERROR(check_range("--pollers", options.pollers, 1, kPollersMax));
  return check_range("--timeout", options.timeout_s, 1, kTimeoutMax);
}

Status validate_shipping(const Options& options) {
  SLUICE_RETURN_IF_ERROR(check_range("--connections", options.connections, 1, kConnectionsMax));
  if (options.window)
    SLUICE_RETURN_IF_ERROR(check_range("--window", *options.window, 1, kWindowMax));
  if (*options.quorum < 1 || *options.quorum > options.replicas)
    return bad_option(
        "--quorum", *options.quorum,
        fmt::format("there are {} replicas; it takes 1 to {}", options.replicas, options.replicas));
  const std::uint64_t memory = std::uint64_t{options.replicas} * options.connections *
                               options.effective_window() * record_frame_bytes(options.record_size);
  if (memory > kMemoryMax)
    return Status(
        StatusCode::invalid_argument,
        fmt::format(
            "{} replicas x {} connections x {} records of {} bytes in flight need {} MiB of "
            "registered memory, more than {}: make one of them smaller",
            options.replicas, options.connections, options.effective_window(), options.record_size,
            memory >> 20, kMemoryMax >> 20));
  return {};
}

Status validate_all(const Options& options) {
  SLUICE_RETURN_IF_ERROR(check_range("--replicas", options.replicas, 1, kReplicasMax));
  if (options.port != 0 && options.port + options.replicas - 1 > 65535)
    return bad_option("--port", options.port,
                      fmt::format("{} replicas need ports up to {}", options.replicas,
                                  options.port + options.replicas - 1));
  SLUICE_RETURN_IF_ERROR(validate_shipping(options));
  return check_range("--connections x --window",
                     std::uint64_t{options.connections} * options.effective_window(), 1,
                     kReceiveDepthMax);
}

Status validate_primary(const Options& options) {
  if (options.replicas > kReplicasMax)
    return Status(StatusCode::invalid_argument,
                  fmt::format("{} times --replica: at most {}", options.replicas, kReplicasMax));
  std::set<std::string> seen;
  for (const auto& address : options.replica_addresses) {
    SLUICE_RETURN_IF_ERROR(parse_host_port(address, false).status());
    if (!seen.insert(address).second) return bad_option("--replica", address, "is there twice");
  }
  return validate_shipping(options);
}

Status validate_replica(const Options& options) {
  SLUICE_RETURN_IF_ERROR(parse_host_port(options.listen, true).status());
  if (options.output.empty()) return bad_option("--output", "''", "takes a file name");
  SLUICE_RETURN_IF_ERROR(
      check_range("--connections-max", options.connections_max, 1, kConnectionsMax));
  return check_range("--receive-depth", options.effective_receive_depth(), 1, kReceiveDepthMax);
}

std::uint32_t fit_into_target(std::uint64_t bytes_each, std::uint64_t min, std::uint64_t max) {
  return static_cast<std::uint32_t>(
      std::clamp(kMemoryTarget / std::max<std::uint64_t>(bytes_each, 1), min, max));
}

}  // namespace

std::uint32_t Options::effective_window() const {
  if (window) return *window;
  return fit_into_target(record_frame_bytes(record_size) * std::max(connections, 1U), 2, 64);
}

std::uint32_t Options::effective_receive_depth() const {
  if (receive_depth) return *receive_depth;
  return fit_into_target(record_frame_bytes(record_size), 16, 512);
}

sluice::DispatcherConfig Options::dispatcher_config(std::uint32_t connections_in_all) const {
  sluice::DispatcherConfig config;
  config.pollers[0].count = pollers;
  config.pollers[0].wait = wait;
  config.pools = {{.name = "records", .workers = workers, .cpus = {}}};
  config.connections_max = connections_in_all;
  return config;
}

ParsedOptions parse_options(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Ships a file, record by record, to replicas over RDMA; a record counts when a quorum has "
      "it.",
      "sluice-replicate"};
  app.footer(kFooter);
  app.get_formatter()->column_width(28);
  add_options_of_all(app, options);
  add_common(app, options);

  auto* const primary =
      app.add_subcommand("primary", "Ship a file to replicas that were started by hand");
  add_options_of_primary(*primary, options);
  add_common(*primary, options);
  auto* const replica = app.add_subcommand("replica", "Take one copy, then end");
  add_options_of_replica(*replica, options);
  add_common(*replica, options);
  app.require_subcommand(0, 1);

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return {std::nullopt, app.exit(help)};
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "sluice-replicate: {} (--help tells more)\n", error.what());
    return {std::nullopt, kExitUsage};
  }
  if (primary->parsed()) options.role = Role::primary;
  if (replica->parsed()) options.role = Role::replica;
  return {std::move(options), 0};
}

Status complete_and_validate(Options& options) {
  if (options.address.empty()) options.address = default_address();
  if (options.role == Role::primary)
    options.replicas = static_cast<std::uint32_t>(options.replica_addresses.size());
  if (!options.quorum) options.quorum = default_quorum(options.replicas);
  SLUICE_RETURN_IF_ERROR(validate_common(options));
  switch (options.role) {
    case Role::all: return validate_all(options);
    case Role::primary: return validate_primary(options);
    case Role::replica: return validate_replica(options);
  }
  return Status(StatusCode::internal, "unknown role");
}

sluice::Result<HostPort> parse_host_port(const std::string& text, bool port_0_allowed) {
  const auto bad = [&](std::string_view why) {
    return Status(StatusCode::invalid_argument, fmt::format("'{}' is no ADDR:PORT: {}", text, why));
  };
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) return bad("there is no ':'");
  HostPort result{text.substr(0, colon), 0};
  if (result.host.size() >= 2 && result.host.front() == '[' && result.host.back() == ']')
    result.host = result.host.substr(1, result.host.size() - 2);
  if (result.host.empty()) return bad("the address is empty");
  const char* const first = text.data() + colon + 1;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(first, last, result.port);
  if (error != std::errc{} || end != last) return bad("the port is not a number from 0 to 65535");
  if (result.port == 0 && !port_0_allowed) return bad("port 0 cannot be reached");
  return result;
}

Status ensure_descriptors(std::uint64_t connections) {
  const std::uint64_t needed = connections * kDescriptorsPerConnection + kDescriptorsBeside;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};  // unknown: the first failure will tell
  if (limit.rlim_cur >= needed) return {};
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, needed);
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= needed) return {};
  return Status(
      StatusCode::resource_exhausted,
      fmt::format("{} connections need about {} file descriptors and the limit is {}: fewer "
                  "--connections or --replicas, or raise it (ulimit -Hn)",
                  connections, needed, limit.rlim_max));
}

}  // namespace replicate
