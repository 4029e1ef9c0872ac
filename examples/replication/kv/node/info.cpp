// SPDX-License-Identifier: BSD-3-Clause
// What INFO says.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <iterator>

#include "kv/node/node.hpp"

namespace sluice::kv {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ",") + word;
  return out;
}

/// A value in a line of key=value pairs.
std::string tame(std::string text) {
  for (char& c : text)
    if (c == '\r' || c == '\n' || c == ',') c = ' ';
  return text;
}

}  // namespace

std::string Node::info_text(std::string_view section) {
  std::string lowered(section);
  std::ranges::transform(lowered, lowered.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool all =
      lowered.empty() || lowered == "all" || lowered == "default" || lowered == "everything";
  std::string out;
  auto to = std::back_inserter(out);
  const auto begins = [&](std::string_view name) {
    if (!all && lowered != name) return false;
    if (!out.empty()) out += "\r\n";
    std::string title(name);
    title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(title[0])));
    fmt::format_to(to, "# {}\r\n", title);
    return true;
  };
  if (begins("server")) {
    fmt::format_to(to,
                   "server:sluice-kv\r\nprocess_id:{}\r\ntcp_port:{}\r\nuptime_in_seconds:{}\r\n",
                   getpid(), server_->port(),
                   std::chrono::duration_cast<std::chrono::seconds>(
                       std::chrono::steady_clock::now() - started_)
                       .count());
  }
  if (begins("clients") || begins("stats")) {
    const ServerStats stats = server_->stats();
    fmt::format_to(to,
                   "connected_clients:{}\r\ntotal_connections_received:{}\r\n"
                   "total_commands_processed:{}\r\nrequests_in_flight:{}\r\n"
                   "total_net_input_bytes:{}\r\ntotal_net_output_bytes:{}\r\n"
                   "protocol_errors:{}\r\nslow_readers:{}\r\n",
                   stats.clients, stats.accepted, stats.requests, stats.in_flight, stats.bytes_in,
                   stats.bytes_out, stats.protocol_errors, stats.slow_readers);
  }
  if (begins("keyspace")) {
    const Store::Numbers numbers = store_->numbers();
    fmt::format_to(to, "keys_estimate:{}\r\nmemory_bytes:{}\r\nfile_bytes:{}\r\n",
                   numbers.keys_estimate, numbers.memory_bytes, numbers.file_bytes);
  }
  if (begins("replication")) {
    const auto term = primary();
    const MembershipState state = membership_ != nullptr ? membership_->state() : MembershipState{};
    std::optional<Primary::Info> info;
    if (term != nullptr) info = term->info();
    const bool leads = info && info->phase != Primary::Phase::deposed;
    std::string error;
    std::optional<Leader> leader;
    {
      const std::lock_guard lock(role_mutex_);
      error = last_error_;
      leader = leader_;
    }
    if (leads && !info->last_error.empty()) error = info->last_error;
    const Follower::Info following = follower_ != nullptr ? follower_->info() : Follower::Info{};
    if (error.empty() && !leads) error = following.last_error;
    const bool serving = leads && info->phase == Primary::Phase::serving;
    fmt::format_to(to, "role:{}\r\nnode:{}\r\nepoch:{}\r\n",
                   serving ? "primary"
                   : leads ? "candidate"
                           : "replica",
                   options_.node,
                   leads                  ? info->epoch
                   : follower_ != nullptr ? follower_->promised()
                                          : 0);
    std::string who;
    if (serving)
      who = options_.node + "," + announce_;
    else if (leader && leader->who.node != options_.node)
      who = leader->who.node + "," + leader->who.client;
    fmt::format_to(to, "primary:{}\r\nfollowing:{}\r\n", who, leads ? "" : following.primary);
    fmt::format_to(to, "in_sync:{}\r\nmin_in_sync:{}\r\n",
                   leads           ? joined(info->in_sync)
                   : state.in_sync ? joined(state.in_sync->members)
                                   : "",
                   options_.effective_min_in_sync());
    fmt::format_to(to,
                   "first_index:{}\r\nlast_index:{}\r\ndurable_index:{}\r\napplied_index:{}\r\n",
                   journal_->log().first_index(), journal_->log().last_index(),
                   journal_->log().durable_index(), store_->applied_index());
    const auto stored = store_->durable_applied_index();
    fmt::format_to(to, "stored_index:{}\r\n", stored.ok() ? *stored : 0);
    if (leads)
      fmt::format_to(to, "settled_index:{}\r\nwaiting_clients:{}\r\n", info->settled,
                     info->waiting);
    if (follower_ != nullptr && follower_->rebuilding()) out += "rebuilding:yes\r\n";
    std::size_t connected = 0;
    if (leads)
      for (const auto& replica : info->replicas) connected += replica.feeder.connected ? 1 : 0;
    fmt::format_to(to, "connected_replicas:{}\r\n", connected);
    if (leads) {
      std::size_t number = 0;
      for (const auto& replica : info->replicas) {
        const auto& feeder = replica.feeder;
        fmt::format_to(to,
                       "replica{}:node={},state={},in_sync={},memory={},durable={},applied={},"
                       "lag_entries={},lag_bytes={},last_error={}\r\n",
                       number++, feeder.node, kv::to_string(feeder.state),
                       replica.in_sync ? "yes" : "no", feeder.progress.memory,
                       feeder.progress.durable, feeder.applied, replica.lag_entries,
                       replica.lag_bytes, tame(feeder.last_error));
      }
    }
    fmt::format_to(to, "membership:{}\r\nlast_error:{}\r\n",
                   options_.alone() ? "alone" : state.description, error);
  }
  return out;
}

}  // namespace sluice::kv
