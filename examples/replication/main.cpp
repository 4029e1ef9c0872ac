// SPDX-License-Identifier: BSD-3-Clause
// sluice-replicate: see README.md. This file ties the parts together: who is started, in which
// order, what is shown, and with which status the program ends.
#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <vector>

#include "errors.hpp"
#include "files.hpp"
#include "options.hpp"
#include "primary.hpp"
#include "process.hpp"
#include "replica.hpp"
#include "summary.hpp"

namespace replicate {
namespace {

using sluice::Status;
using sluice::StatusCode;

/// The exit status, with the one line that says why. `quiet`: somebody else says it.
int finish(const Status& outcome, Interrupts& interrupts, bool quiet = false) {
  if (outcome.ok()) return kExitOk;
  if (!quiet) fmt::print(stderr, "sluice-replicate: {}\n", outcome.message());
  if (const int signal = interrupts.pending(); signal != 0) return 128 + signal;
  return exit_code_of(outcome);
}

int run_replica(const Options& options) {
  Interrupts interrupts;
  Starter starter(options.control_fd);
  Status outcome = ensure_descriptors(options.connections_max);
  if (outcome.ok()) outcome = Replica(options, interrupts, starter).run();
  if (outcome.ok() && !starter.present()) fmt::print("identical   {}\n", options.output);
  return finish(outcome, interrupts, starter.present());
}

/// Opens what is written at the end before anything is started: a path that cannot work is then
/// an error of the first second.
sluice::Result<std::optional<OutputFile>> open_json(const Options& options) {
  if (options.json.empty()) return std::optional<OutputFile>{};
  auto file = OutputFile::create(options.json);
  if (!file) return file.status();
  return std::optional<OutputFile>(std::move(*file));
}

Status write_json(OutputFile& file, const std::string& text) {
  iovec piece{const_cast<char*>(text.data()), text.size()};
  SLUICE_RETURN_IF_ERROR(file.append({&piece, 1}));
  return file.commit(false);
}

void say_what_will_be_done(const Options& options, const InputFile& input,
                           const OutputFolder* folder) {
  fmt::print("sluice-replicate: {} ({}) to {} replica{}", input.path(), human_bytes(input.size()),
             options.replicas, options.replicas == 1 ? "" : "s");
  if (folder != nullptr)
    fmt::print(" in {}{}", folder->path(), folder->temporary() ? " (removed at the end)" : "");
  fmt::print(
      "\nrecords of {}, quorum {}, {} connection{} per replica, up to {} in flight on each, {} "
      "wait\n",
      human_bytes(options.record_size), *options.quorum, options.connections,
      options.connections == 1 ? "" : "s", options.effective_window(),
      sluice::to_string(options.wait));
  std::fflush(stdout);
}

/// Ships the file to `targets` and shows how it went.
Status ship(const Options& options, const InputFile& input, std::vector<ReplicaTarget> targets,
            Interrupts& interrupts, const OutputFolder* folder, std::optional<OutputFile>& json) {
  Summary summary;
  Status outcome = Primary(options, input, std::move(targets), interrupts).run(summary);
  if (!outcome.ok()) summary.failure = outcome.message();
  if (folder != nullptr && !folder->temporary())
    for (std::size_t i = 0; i < summary.replicas.size(); ++i)
      if (summary.replicas[i].report)
        summary.replicas[i].copy = folder->copy_name(static_cast<std::uint32_t>(i));
  // Not when it never came to shipping: then the one line on stderr says it all.
  if (summary.shipped && outcome.code() != StatusCode::cancelled)
    fmt::print("{}", to_text(summary, options));
  std::fflush(stdout);
  if (json) {
    const Status written = write_json(*json, to_json(summary, options));
    if (outcome.ok() && !written.ok()) outcome = written;
  }
  return outcome;
}

/// What both roles that ship need before anything is started.
struct Prepared {
  InputFile input;
  std::optional<OutputFile> json;
};

sluice::Result<Prepared> prepare(Options& options) {
  if (options.file.empty()) options.file = find_default_input();
  if (options.file.empty())
    return Status(StatusCode::io_error,
                  "no file of 8 MiB or more was found in the usual places: name one with --file");
  auto input = InputFile::open(options.file);
  if (!input) return input.status();
  auto json = open_json(options);
  if (!json) return json.status();
  SLUICE_RETURN_IF_ERROR(ensure_descriptors(std::uint64_t{options.replicas} * options.connections));
  return Prepared{std::move(*input), std::move(*json)};
}

Status run_primary(Options& options, Interrupts& interrupts) {
  auto prepared = prepare(options);
  if (!prepared) return prepared.status();
  std::vector<ReplicaTarget> targets;
  for (const auto& address : options.replica_addresses) {
    auto parsed = parse_host_port(address, false);
    if (!parsed) return parsed.status();
    targets.push_back({.host = parsed->host, .port = parsed->port});
  }
  say_what_will_be_done(options, prepared->input, nullptr);
  return ship(options, prepared->input, std::move(targets), interrupts, nullptr, prepared->json);
}

Status start_replicas(const Options& options, const OutputFolder& folder, Interrupts& interrupts,
                      std::vector<ReplicaProcess>& processes, std::vector<ReplicaTarget>& targets) {
  for (std::uint32_t i = 0; i < options.replicas; ++i) {
    auto process = ReplicaProcess::start(options, i, folder.copy_name(i));
    if (!process) return process.status();
    processes.push_back(std::move(*process));
  }
  for (auto& process : processes) {
    auto port = process.wait_until_listening(interrupts, options.timeout());
    if (!port) return port.status();
    targets.push_back({.host = options.address,
                       .port = *port,
                       .pid = process.pid(),
                       .control_fd = process.control_fd()});
  }
  return {};
}

/// Starts the replicas, all before the first use of librpma here, and is their primary.
Status run_all(Options& options, Interrupts& interrupts) {
  auto prepared = prepare(options);
  if (!prepared) return prepared.status();
  auto folder = OutputFolder::open(options.output_dir, options.keep);
  if (!folder) return folder.status();
  say_what_will_be_done(options, prepared->input, &*folder);

  std::vector<ReplicaProcess> processes;
  const Status outcome = [&]() -> Status {
    std::vector<ReplicaTarget> targets;
    SLUICE_RETURN_IF_ERROR(start_replicas(options, *folder, interrupts, processes, targets));
    return ship(options, prepared->input, std::move(targets), interrupts, &*folder, prepared->json);
  }();
  // Whatever happened, no process is left, and nothing half-written of one that was killed.
  stop_all(processes);
  for (std::uint32_t i = 0; i < options.replicas; ++i)
    std::remove(OutputFile::partial_name(folder->copy_name(i)).c_str());
  return outcome;
}

int main_of(int argc, char** argv) {
  ParsedOptions parsed = parse_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  Options& options = *parsed.options;
  if (const Status valid = complete_and_validate(options); !valid.ok()) {
    fmt::print(stderr, "sluice-replicate: {}\n", valid.message());
    return kExitUsage;
  }
  if (options.role == Role::replica) return run_replica(options);
  Interrupts interrupts;
  return finish(
      options.role == Role::all ? run_all(options, interrupts) : run_primary(options, interrupts),
      interrupts);
}

}  // namespace
}  // namespace replicate

int main(int argc, char** argv) {
  return replicate::main_of(argc, argv);
}
