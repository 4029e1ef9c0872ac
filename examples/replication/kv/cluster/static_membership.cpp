// SPDX-License-Identifier: BSD-3-Clause
#include "kv/cluster/static_membership.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "kv/cluster/view.hpp"

namespace sluice::kv {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::size_t kFileBytesMax = 1U << 20U;

/// A descriptor that is closed in the end.
class File {
 public:
  File(const std::string& path, int flags) noexcept
      : fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  [[nodiscard]] int fd() const noexcept { return fd_; }

 private:
  int fd_;
};

Status failed(const std::string& what, const std::string& path) {
  return {StatusCode::io_error, fmt::format("cannot {} '{}'", what, path), errno};
}

Status write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return {StatusCode::io_error, "write", errno};
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Status check(const StaticMembershipConfig& config) {
  const auto bad = [](std::string what) {
    return Status(StatusCode::invalid_argument, std::move(what));
  };
  if (!is_node_id(config.cluster_id))
    return bad("the cluster id must be 1 to 64 letters, digits, '.', '_' or '-'");
  std::set<std::string> ids;
  for (const Member& member : config.members) {
    if (!is_node_id(member.node))
      return bad("a node id must be 1 to 64 letters, digits, '.', '_' or '-'");
    if (!ids.insert(member.node).second)
      return bad(fmt::format("the node '{}' is named twice", member.node));
  }
  if (!ids.contains(config.self))
    return bad(fmt::format("this node, '{}', is not among the members", config.self));
  if (!ids.contains(config.primary))
    return bad(fmt::format("the primary, '{}', is not among the members", config.primary));
  if (config.file.empty() && config.self == config.primary)
    return bad("the primary needs a file for its epoch");
  return {};
}

}  // namespace

Result<std::unique_ptr<StaticMembership>> StaticMembership::start(StaticMembershipConfig config,
                                                                  MembershipEvents events) {
  SLUICE_CHECK(events != nullptr, "a membership without an owner to report to");
  SLUICE_RETURN_IF_ERROR(check(config));
  std::ranges::sort(config.members, {}, &Member::node);
  std::unique_ptr<StaticMembership> membership(
      new StaticMembership(std::move(config), std::move(events)));
  const auto& members = membership->config_.members;
  {
    const std::lock_guard lock(membership->mutex_);
    membership->state_.description = fmt::format(
        "static configuration, the primary is {}: no automatic failover, and no fencing of a "
        "primary that was replaced by hand",
        membership->config_.primary);
    membership->state_.members = members;
  }
  for (const Member& member : members) membership->events_(event::MemberJoined{member});
  const std::lock_guard calls(membership->calls_mutex_);
  if (membership->is_primary()) {
    SLUICE_RETURN_IF_ERROR(membership->lead());
  } else {
    const auto primary = std::ranges::find(members, membership->config_.primary, &Member::node);
    // Its epoch is not known here: it says so itself when it connects.
    const Leader leader{*primary, 0};
    {
      const std::lock_guard lock(membership->mutex_);
      membership->state_.leader = leader;
    }
    membership->events_(event::LeaderChanged{leader});
  }
  return membership;
}

StaticMembership::~StaticMembership() {
  stop();
}

Status StaticMembership::lead() {
  auto stored = load();
  if (!stored) return stored.status();
  InSyncSet set = std::move(stored->in_sync);
  set.epoch = std::max(set.epoch, config_.epoch_floor) + 1;
  ++set.revision;
  std::erase_if(set.members, [&](const std::string& node) {
    return std::ranges::find(config_.members, node, &Member::node) == config_.members.end();
  });
  if (!set.contains(config_.self)) {
    set.members.push_back(config_.self);
    std::ranges::sort(set.members);
  }
  SLUICE_RETURN_IF_ERROR(store(set));

  const Leader leader{*std::ranges::find(config_.members, config_.self, &Member::node), set.epoch};
  {
    const std::lock_guard lock(mutex_);
    state_.leads_epoch = set.epoch;
    state_.leader = leader;
    state_.in_sync = set;
  }
  publish_leadership(set.epoch, LeaseClock::time_point::max());
  events_(event::InSyncChanged{set});
  events_(event::RoleGained{set.epoch, set});
  events_(event::LeaderChanged{leader});
  return {};
}

void StaticMembership::step_down(Status why) {
  end_leadership();
  std::optional<std::uint64_t> epoch;
  {
    const std::lock_guard lock(mutex_);
    epoch = std::exchange(state_.leads_epoch, std::nullopt);
    if (epoch) state_.leader.reset();
  }
  if (!epoch) return;
  events_(event::RoleLost{*epoch, std::move(why)});
  events_(event::LeaderChanged{});
}

void StaticMembership::set_willing(bool willing) {
  const std::lock_guard calls(calls_mutex_);
  if (!is_primary() || stopped_) return;
  if (!willing) return step_down(Status(StatusCode::cancelled, "this node is not willing to lead"));
  if (state().leads_epoch) return;
  if (const Status led = lead(); !led.ok()) events_(event::Problem{led});
}

void StaticMembership::stop() {
  const std::lock_guard calls(calls_mutex_);
  if (std::exchange(stopped_, true)) return;
  step_down(Status(StatusCode::cancelled, "this node was stopped"));
}

MembershipState StaticMembership::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

// --- The in-sync set ---------------------------------------------------------------------------

void StaticMembership::request_in_sync(Change change, Changed done) {
  std::ranges::sort(change.members);
  change.members.erase(std::unique(change.members.begin(), change.members.end()),
                       change.members.end());
  const Result<InSyncSet> changed = [&] {
    const std::lock_guard calls(calls_mutex_);
    auto result = this->change(change);
    if (result) events_(event::InSyncChanged{*result});
    return result;
  }();
  done(changed);
}

Result<InSyncSet> StaticMembership::change(const Change& change) {
  const MembershipState now = state();
  if (stopped_) return Status(StatusCode::cancelled, "the membership was stopped");
  if (now.leads_epoch != change.epoch)
    return Status(StatusCode::rejected,
                  fmt::format("the in-sync set is not epoch {}'s to change", change.epoch));
  if (now.in_sync->revision != change.base_revision)
    return Status(StatusCode::rejected, fmt::format("the in-sync set is at revision {}, not at {}",
                                                    now.in_sync->revision, change.base_revision));
  for (const std::string& node : change.members)
    if (std::ranges::find(config_.members, node, &Member::node) == config_.members.end())
      return Status(StatusCode::invalid_argument, fmt::format("'{}' is no member", node));
  InSyncSet set{change.epoch, change.members, change.base_revision + 1};
  if (!set.contains(config_.self))
    return Status(StatusCode::invalid_argument,
                  fmt::format("the leader '{}' must be in the in-sync set", config_.self));
  SLUICE_RETURN_IF_ERROR(store(set));
  const std::lock_guard lock(mutex_);
  state_.in_sync = set;
  return set;
}

// --- The file ----------------------------------------------------------------------------------

/// What the last run stored; at the first run, everybody.
Result<StaticMembership::Stored> StaticMembership::load() const {
  const File file(config_.file, O_RDONLY);
  if (file.fd() < 0) {
    if (errno != ENOENT) return failed("open", config_.file);
    Stored first{config_.cluster_id, {}};
    for (const Member& member : config_.members) first.in_sync.members.push_back(member.node);
    return first;
  }
  std::string text;
  char chunk[4096];
  for (ssize_t got = 0; (got = read(file.fd(), chunk, sizeof chunk)) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("read", config_.file);
    text.append(chunk, static_cast<std::size_t>(got));
    if (text.size() > kFileBytesMax) break;
  }
  const auto damaged = [&](std::string_view why) {
    return Status(StatusCode::rejected,
                  fmt::format("'{}' is no file of a static membership: {}", config_.file, why));
  };
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return damaged("no JSON object");
  const auto id = object.find("cluster_id");
  const auto revision = object.find("revision");
  if (id == object.end() || !id->is_string() || revision == object.end() ||
      !revision->is_number_unsigned() ||
      revision->get<std::uint64_t>() >= std::numeric_limits<std::int64_t>::max())
    return damaged("no cluster_id or no revision");
  const auto cluster_id = id->get<std::string>();
  if (cluster_id != config_.cluster_id)
    return Status(
        StatusCode::rejected,
        fmt::format("'{}' belongs to the cluster '{}', this node's configuration says '{}'",
                    config_.file, cluster_id, config_.cluster_id));
  auto set = parse_in_sync({.value = text, .mod_revision = revision->get<std::int64_t>()});
  if (!set) return damaged(set.status().message());
  return Stored{cluster_id, std::move(*set)};
}

/// On the medium, under its name, before it returns.
Status StaticMembership::store(const InSyncSet& set) const {
  const std::string text = json{{"cluster_id", config_.cluster_id},
                                {"epoch", set.epoch},
                                {"members", set.members},
                                {"revision", set.revision}}
                               .dump() +
                           "\n";
  const std::string partial = config_.file + ".partial";
  {
    const File file(partial, O_WRONLY | O_CREAT | O_TRUNC);
    if (file.fd() < 0) return failed("create", partial);
    if (const Status written = write_all(file.fd(), text); !written.ok())
      return {StatusCode::io_error, fmt::format("cannot write '{}'", partial), written.os_error()};
    if (fdatasync(file.fd()) != 0) return failed("sync", partial);
  }
  if (std::rename(partial.c_str(), config_.file.c_str()) != 0) return failed("rename", partial);
  const fs::path folder = fs::path(config_.file).parent_path();
  const File parent(folder.empty() ? "." : folder.string(), O_RDONLY | O_DIRECTORY);
  if (parent.fd() < 0 || fsync(parent.fd()) != 0) return failed("sync the folder of", config_.file);
  return {};
}

}  // namespace sluice::kv
