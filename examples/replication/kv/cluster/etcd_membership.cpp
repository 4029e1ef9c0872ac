// SPDX-License-Identifier: BSD-3-Clause
#include "kv/cluster/etcd_membership.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <random>
#include <utility>

namespace sluice::kv {
namespace {

using namespace std::chrono_literals;
using std::chrono::ceil;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Parts of a lease.
constexpr int kKeepAlivesPerLease = 4;
constexpr int kAttemptsPerLease =
    4;                               ///< an endpoint may be silent so long before the next is asked
constexpr int kPausesPerLease = 10;  ///< between attempts at an etcd that does not answer
/// The margin: a tenth of the lease, for clocks that run at different speeds. Quartz clocks differ
/// by a ten-thousandth; a tenth also covers a clock that is being slewed.
constexpr int kMarginsPerLease = 10;
/// A renewal that could not be confirmed since etcd's leader changed just then is repeated soon.
constexpr milliseconds kConfirmPause{20};
constexpr milliseconds kLeaveLimit{2000};
constexpr std::uint32_t kLeaseSecondsMax = 60;
constexpr std::int64_t kGrantedSecondsMax = 3600;
constexpr std::size_t kRequestsMax = 64;
constexpr std::int64_t kKeysMax = 1000;
constexpr int kCreateAttemptsMax = 3;
constexpr std::size_t kPrefixMax = 256, kAddressMax = 256;

Status check_address(const std::string& name, const std::string& address) {
  const bool printable = std::ranges::all_of(address, [](char c) { return c > 0x20 && c < 0x7F; });
  if (address.empty() || address.size() > kAddressMax || !printable)
    return {StatusCode::invalid_argument,
            fmt::format("{} '{}' is no HOST:PORT", name, printable ? address : "(unprintable)")};
  return {};
}

Status check(const EtcdMembershipConfig& config) {
  const auto bad = [](std::string what) {
    return Status(StatusCode::invalid_argument, std::move(what));
  };
  if (!is_node_id(config.cluster_id))
    return bad("the cluster id must be 1 to 64 letters, digits, '.', '_' or '-'");
  if (!is_node_id(config.self.node))
    return bad("the node id must be 1 to 64 letters, digits, '.', '_' or '-'");
  SLUICE_RETURN_IF_ERROR(check_address("the client address", config.self.client));
  SLUICE_RETURN_IF_ERROR(check_address("the replication address", config.self.replication));
  if (config.lease_s < 1 || config.lease_s > kLeaseSecondsMax)
    return bad(
        fmt::format("a lease of {} s; it must be 1 to {}", config.lease_s, kLeaseSecondsMax));
  const std::string& prefix = config.prefix;
  const bool printable = std::ranges::all_of(prefix, [](char c) { return c > 0x20 && c < 0x7F; });
  if (prefix.size() < 2 || prefix.size() > kPrefixMax || !printable || prefix.front() != '/' ||
      prefix.back() != '/')
    return bad("the prefix of etcd's keys must begin and end with '/', e.g. /sluice/kv/");
  if (config.initial_members.empty()) return bad("no initial member of the in-sync set is named");
  for (const auto& member : config.initial_members)
    if (!is_node_id(member))
      return bad("an initial member's id must be 1 to 64 letters, digits, '.', '_' or '-'");
  return {};
}

std::string random_instance() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

/// Whose thread this is.
thread_local const void* thread_of = nullptr;

/// The one key that a response of a transaction's read holds, if it is there.
const etcd::KeyValue* key_in(const etcd::TxnAnswer& answer, std::size_t response) {
  if (response >= answer.responses.size()) return nullptr;
  const auto* const range = std::get_if<etcd::RangeAnswer>(&answer.responses[response]);
  return range == nullptr || range->kvs.empty() ? nullptr : &range->kvs.front();
}

Result<InSyncSet> set_in(const etcd::KeyValue* kv) {
  if (kv == nullptr) return Status(StatusCode::rejected, "there is no in-sync set");
  return parse_in_sync(*kv);
}

/// etcd does not know the lease: what was bound to it is gone.
bool says_lease_is_gone(const Status& status) {
  return status.code() == StatusCode::rejected;
}

}  // namespace

// --- Life --------------------------------------------------------------------------------------

Result<std::unique_ptr<EtcdMembership>> EtcdMembership::start(EtcdMembershipConfig config,
                                                              MembershipEvents events) {
  SLUICE_CHECK(events != nullptr, "a membership without an owner to report to");
  SLUICE_RETURN_IF_ERROR(check(config));
  config.initial_members = sorted(std::move(config.initial_members));
  auto client = EtcdClient::create(
      {.endpoints = config.endpoints,
       .attempt_limit = milliseconds(seconds(config.lease_s)) / kAttemptsPerLease});
  if (!client) return client.status();
  return std::unique_ptr<EtcdMembership>(
      new EtcdMembership(std::move(config), std::move(events), std::move(*client)));
}

EtcdMembership::EtcdMembership(EtcdMembershipConfig config, MembershipEvents events,
                               std::unique_ptr<EtcdClient> client)
    : config_(std::move(config)),
      keys_(config_.prefix),
      instance_(random_instance()),
      events_(std::move(events)),
      ttl_asked_(seconds(config_.lease_s)),
      client_(std::move(client)),
      view_(keys_) {
  state_.description =
      fmt::format("etcd at {}, keys under {}, lease {} s", fmt::join(config_.endpoints, ", "),
                  config_.prefix, config_.lease_s);
  thread_ = std::thread([this] { run(); });
}

EtcdMembership::~EtcdMembership() {
  stop();
}

void EtcdMembership::stop() {
  SLUICE_CHECK(!on_own_thread(), "stop() from an event");
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  client_->wake();
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

bool EtcdMembership::on_own_thread() const noexcept {
  return thread_of == this;
}

void EtcdMembership::run() {
  thread_of = this;
  pthread_setname_np(pthread_self(), "kv-membership");
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are the host's

  while (!stopping()) {
    check_deadline();
    check_willing();
    if (refused_)
      fail_requests(Status(StatusCode::rejected, "this node is not part of the cluster"));
    if (!refused_ && LeaseClock::now() >= retry_at_) note_outcome(work());
    take_watch();
  }
  leave();
}

/// One pass over what is due. Each step leaves the state whole when it fails.
Status EtcdMembership::work() {
  if (!attached_) SLUICE_RETURN_IF_ERROR(attach());
  if (refused_) return {};
  if (lease_.id == 0) SLUICE_RETURN_IF_ERROR(enrol());
  if (LeaseClock::now() >= lease_.keep_alive_at) SLUICE_RETURN_IF_ERROR(keep_alive());
  SLUICE_RETURN_IF_ERROR(ensure_registered());
  SLUICE_RETURN_IF_ERROR(answer_requests());
  if (LeaseClock::now() >= resync_at_) SLUICE_RETURN_IF_ERROR(resync());
  if (refused_) return {};
  return campaign();
}

void EtcdMembership::note_outcome(const Status& outcome) {
  if (outcome.ok()) {
    // After a failure resync() is due, so that etcd has indeed answered when this is reached.
    reachable_ = true;
    update_state();
    if (std::exchange(outage_reported_, false)) emit(event::EtcdBack{});
    return;
  }
  const auto now = LeaseClock::now();
  retry_at_ = now + ttl_asked_ / kPausesPerLease;
  resync_at_ = now;
  reachable_ = false;
  {
    const std::lock_guard lock(mutex_);
    state_.last_failure = outcome;
  }
  update_state();
  if (!std::exchange(outage_reported_, true)) emit(event::EtcdUnreachable{outcome});
  fail_requests(outcome);  // rather than to let them wait until etcd is back
}

// --- Reading the cluster's keys ------------------------------------------------------------------

Status EtcdMembership::attach() {
  SLUICE_RETURN_IF_ERROR(read_everything());
  if (refused_) return {};
  client_->watch(keys_.prefix, etcd::prefix_end(keys_.prefix), view_.revision() + 1);
  attached_ = true;
  return {};
}

/// The watch tells what happens; this is for a watch that has fallen silent without an end.
Status EtcdMembership::resync() {
  return read_everything();
}

Status EtcdMembership::read_everything() {
  for (int attempt = 0; attempt < kCreateAttemptsMax; ++attempt) {
    const auto answer = client_->range(
        {.key = keys_.prefix, .range_end = etcd::prefix_end(keys_.prefix), .limit = kKeysMax},
        op_deadline());
    if (!answer) return answer.status();
    if (answer->more)
      return Status(StatusCode::does_not_fit,
                    fmt::format("etcd has more than {} keys under '{}'", kKeysMax, keys_.prefix));
    const bool exists =
        std::ranges::any_of(answer->kvs, [&](const auto& kv) { return kv.key == keys_.cluster; });
    if (const Status identity = check_identity(*answer); !identity.ok()) {
      refuse(identity);
      return {};
    }
    if (!exists) {
      SLUICE_RETURN_IF_ERROR(create_cluster());
      continue;  // whoever created it: read it
    }
    std::vector<MembershipEvent> events;
    view_.replace(*answer, events);
    cluster_seen_ = true;
    resync_at_ = LeaseClock::now() + ttl_asked_;
    after_changes(events);
    return {};
  }
  return Status(StatusCode::internal,
                fmt::format("'{}' was created in etcd, and is not there", keys_.cluster));
}

/// Whether this etcd, and what stands in it, is the cluster that this node belongs to.
Status EtcdMembership::check_identity(const etcd::RangeAnswer& answer) {
  const auto no = [](std::string why) { return Status(StatusCode::rejected, std::move(why)); };
  const etcd::Header& header = answer.header;
  if (etcd_cluster_ != 0 && header.cluster_id != etcd_cluster_)
    return no(
        fmt::format("etcd at {} is another one than before (its cluster id is {:x}, was {:x})",
                    client_->endpoint(), header.cluster_id, etcd_cluster_));
  if (header.revision < view_.revision())
    return no(fmt::format("etcd's data went back in time, from revision {} to {}", view_.revision(),
                          header.revision));
  if (header.revision < 0 || static_cast<std::uint64_t>(header.revision) < config_.epoch_floor)
    return no(
        fmt::format("etcd is at revision {}, this node's log at epoch {}: it was not written "
                    "under this etcd, or etcd's data was lost",
                    header.revision, config_.epoch_floor));
  etcd_cluster_ = header.cluster_id;

  const auto find = [&](const std::string& key) {
    const auto found = std::ranges::find(answer.kvs, key, &etcd::KeyValue::key);
    return found == answer.kvs.end() ? nullptr : &*found;
  };
  const etcd::KeyValue* const cluster = find(keys_.cluster);
  const etcd::KeyValue* const in_sync = find(keys_.in_sync);
  if (cluster == nullptr) {
    if (cluster_seen_ || config_.epoch_floor > 0)
      return no(
          fmt::format("etcd knows nothing of this cluster any more ('{}' is gone), though "
                      "this node has been part of it",
                      keys_.cluster));
    if (in_sync != nullptr)
      return no(
          fmt::format("etcd has an in-sync set ('{}'), but no '{}'", keys_.in_sync, keys_.cluster));
    return {};
  }
  const auto identity = parse_identity(cluster->value);
  if (!identity)
    return no(fmt::format("what stands in etcd under '{}' is not understood: {}", keys_.cluster,
                          identity.status().message()));
  if (identity->cluster_id != config_.cluster_id)
    return no(
        fmt::format("the cluster under '{}' in etcd has the id '{}', this node's "
                    "configuration says '{}'",
                    keys_.prefix, identity->cluster_id, config_.cluster_id));
  if (identity->protocol != kClusterProtocol)
    return no(fmt::format("the cluster '{}' speaks protocol {}, this program {}",
                          config_.cluster_id, identity->protocol, kClusterProtocol));
  if (in_sync == nullptr)
    return no(
        fmt::format("the in-sync set of the cluster '{}' is gone from etcd ('{}'): which node "
                    "has all data is not known",
                    config_.cluster_id, keys_.in_sync));
  return {};
}

/// Once in a cluster's life: only if neither key was ever there.
Status EtcdMembership::create_cluster() {
  const InSyncSet first{0, config_.initial_members, 0};
  return client_
      ->txn(
          {.compare = {etcd::Compare::absent(keys_.cluster), etcd::Compare::absent(keys_.in_sync)},
           .success = {etcd::PutRequest{keys_.cluster, encode(ClusterIdentity{config_.cluster_id,
                                                                              kClusterProtocol})},
                       etcd::PutRequest{keys_.in_sync, encode(first)}}},
          op_deadline())
      .status();
}

void EtcdMembership::take_watch() {
  const auto news = client_->watch_news(next_due());
  if (!news.cut.ok()) {
    const std::lock_guard lock(mutex_);
    state_.last_failure = news.cut;
  }
  if (news.compacted_to > 0) attached_ = false;
  std::vector<MembershipEvent> events;
  for (const auto& change : news.events) view_.apply(change, events);
  if (!news.events.empty()) after_changes(events);
}

/// What a changed view means for this node; then the owner hears of it.
void EtcdMembership::after_changes(std::vector<MembershipEvent>& events) {
  const auto own = view_.members().find(config_.self.node);
  const bool own_there = own != view_.members().end() && own->second.instance == instance_;
  if (registered_ && view_.revision() >= registered_revision_ && !own_there) registered_ = false;
  if (!registered_ && own == view_.members().end()) register_at_ = Time{};

  const bool key_lost = role_ != Role::follower &&
                        view_.revision() >= static_cast<std::int64_t>(epoch_) &&
                        (!view_.leader() || view_.leader()->leader.epoch != epoch_);
  if (key_lost) {
    // Fencing before anything else: whoever took over may already be acting.
    step_down(Status(StatusCode::rejected, "the leader key is no longer this node's"));
  }
  if (!view_.leader_key_exists()) campaign_at_ = Time{};
  update_state();
  for (const auto& event : events) emit(event);
}

// --- The lease -----------------------------------------------------------------------------------

Status EtcdMembership::enrol() {
  if (stale_lease_ != 0) {
    // What hangs on it (the leader key, perhaps) goes at once, rather than when it expires.
    SLUICE_RETURN_IF_ERROR(client_->revoke(stale_lease_, op_deadline()));
    stale_lease_ = 0;
  }
  const auto answer = client_->grant(config_.lease_s, op_deadline());
  if (!answer) return answer.status();
  const Span ttl = seconds(std::min(answer->ttl_s, kGrantedSecondsMax));
  lease_ = {
      .id = answer->id, .ttl = ttl, .keep_alive_at = LeaseClock::now() + ttl / kKeepAlivesPerLease};
  registered_ = false;
  register_at_ = Time{};
  return {};
}

Status EtcdMembership::keep_alive() {
  // The lease may run from the moment when etcd gets the request, which is after this one.
  const Time sent = LeaseClock::now();
  const auto answer = client_->keep_alive(lease_.id, op_deadline());
  if (!answer && !says_lease_is_gone(answer.status())) return answer.status();
  if (!answer || answer->ttl_s == 0) {
    lose_lease(Status(StatusCode::timed_out, "the lease has expired"));
    return enrol();
  }
  // Who is not yet confirmed tries again as soon as it may.
  lease_.keep_alive_at = role_ == Role::elected ? sent : sent + lease_.ttl / kKeepAlivesPerLease;
  return role_ == Role::follower ? Status{} : confirm(*answer, sent);
}

/// Whether the renewal was made by an etcd leader that a quorum still followed afterwards.
///
/// etcd's leader renews leases by itself, without asking the others. One that was replaced and has
/// not noticed (stopped and woken, cut off) says yes, too, while its successor lets the lease
/// expire. A linearizable read, which does ask a quorum, after the renewal and in the same raft
/// term shows that there was no successor; a later one gives every lease its full time anew.
Status EtcdMembership::confirm(const etcd::LeaseAnswer& renewal, Time sent) {
  const auto answer = client_->range({.key = keys_.leader}, op_deadline());
  if (!answer) return answer.status();
  if (answer->kvs.empty() || answer->kvs.front().lease != lease_.id ||
      answer->kvs.front().create_revision != static_cast<std::int64_t>(epoch_)) {
    step_down(Status(StatusCode::rejected, "the leader key is no longer this node's"));
    return {};
  }
  if (answer->header.raft_term != renewal.header.raft_term) {
    lease_.keep_alive_at = LeaseClock::now() + kConfirmPause;
    return {};
  }
  check_deadline();  // a deadline that has passed is not moved any more
  if (role_ == Role::follower) return {};
  const Span ttl = seconds(std::min(renewal.ttl_s, kGrantedSecondsMax));
  const Time until = sent + ttl - ttl / kMarginsPerLease;
  if (role_ == Role::leader) {
    extend_leadership(until);
    return {};
  }
  role_ = Role::leader;
  publish_leadership(epoch_, until);
  update_state();
  emit(event::RoleGained{epoch_, elected_with_});
  return {};
}

void EtcdMembership::check_deadline() {
  if (role_ != Role::leader || LeaseClock::now() < leader_until()) return;
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    if (!state_.last_failure.ok() && !state_.etcd_reachable)
      why = "; etcd: " + state_.last_failure.message();
  }
  step_down(Status(StatusCode::timed_out, "the lease could not be kept alive in time" + why));
}

void EtcdMembership::check_willing() {
  if (role_ != Role::follower && !willing())
    step_down(Status(StatusCode::cancelled, "this node is not willing to lead"));
}

/// The lease is gone in etcd, and all that hung on it.
void EtcdMembership::lose_lease(Status why) {
  step_down(std::move(why));
  lease_ = {};
  stale_lease_ = 0;
  registered_ = false;
}

/// Gives up the leadership, and with it the lease: the key must not stay while nobody leads.
void EtcdMembership::step_down(Status why) {
  if (role_ == Role::follower) return;
  end_leadership();  // before anybody is told
  const bool was_leader = role_ == Role::leader;
  role_ = Role::follower;
  stale_lease_ = std::exchange(lease_.id, 0);
  registered_ = false;
  update_state();
  if (was_leader) emit(event::RoleLost{epoch_, std::move(why)});
}

void EtcdMembership::refuse(Status why) {
  step_down(why);
  refused_ = true;
  client_->stop_watch();
  if (const auto lease = std::exchange(lease_.id, 0); lease != 0) stale_lease_ = lease;
  {
    const std::lock_guard lock(mutex_);
    state_.last_failure = why;
  }
  emit(event::Refused{std::move(why)});
}

void EtcdMembership::leave() {
  step_down(Status(StatusCode::cancelled, "this node was stopped"));
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  fail_requests(Status(StatusCode::cancelled, "the membership was stopped"));
  client_->stop_watch();
  // At best: an etcd that does not answer lets them expire.
  for (const auto lease : {stale_lease_, lease_.id})
    if (lease != 0) (void)client_->revoke(lease, EtcdClient::Clock::now() + kLeaveLimit).ok();
  reachable_ = false;
  update_state();
}

// --- This node's key -----------------------------------------------------------------------------

Status EtcdMembership::ensure_registered() {
  if (registered_ || lease_.id == 0 || LeaseClock::now() < register_at_) return {};
  const std::string key = keys_.member(config_.self.node);
  const etcd::PutRequest put{key, encode(registration()), lease_.id};
  auto answer = client_->txn({.compare = {etcd::Compare::absent(key)},
                              .success = {put},
                              .failure = {etcd::RangeRequest{.key = key}}},
                             op_deadline());
  const etcd::KeyValue* const found = answer ? key_in(*answer, 0) : nullptr;
  if (found != nullptr) {
    const auto other = parse_registration(found->value);
    if (other && other->instance == instance_) {
      // This very run's, under a lease that was given up or by a request whose answer was lost.
      answer = client_->txn(
          {.compare = {etcd::Compare::modified_at(key, found->mod_revision)}, .success = {put}},
          op_deadline());
    } else {
      take_over_registration(*found);
      return {};
    }
  }
  if (!answer && says_lease_is_gone(answer.status())) {
    lose_lease(answer.status());
    return {};
  }
  if (!answer) return answer.status();
  if (!answer->succeeded) {  // it has changed in between: look again
    register_at_ = LeaseClock::now() + lease_.ttl / kPausesPerLease;
    return {};
  }
  registered_ = true;
  registered_revision_ = answer->header.revision;
  twin_since_.reset();
  twin_reported_ = false;
  return {};
}

/// Another instance holds this node's key: mostly its run before, whose lease has yet to expire.
void EtcdMembership::take_over_registration(const etcd::KeyValue& found) {
  const auto now = LeaseClock::now();
  register_at_ = now + lease_.ttl / kKeepAlivesPerLease;  // or when the watch sees it go
  if (!twin_since_) twin_since_ = now;
  if (twin_reported_ || now < *twin_since_ + 2 * lease_.ttl) return;
  twin_reported_ = true;
  const auto other = parse_registration(found.value);
  emit(event::Problem{
      Status(StatusCode::already_owned,
             fmt::format("another process is registered as node '{}'{}; this one waits, and cannot "
                         "lead",
                         config_.self.node,
                         other ? fmt::format(" (clients {}, replication {})", other->member.client,
                                             other->member.replication)
                               : std::string{}))});
}

// --- The election --------------------------------------------------------------------------------

bool EtcdMembership::could_campaign() const {
  return role_ == Role::follower && attached_ && registered_ && lease_.id != 0 && willing() &&
         !view_.leader_key_exists() && view_.cluster() && view_.in_sync() &&
         view_.in_sync()->contains(config_.self.node);
}

Status EtcdMembership::campaign() {
  if (!could_campaign() || LeaseClock::now() < campaign_at_) return {};
  const InSyncSet set = *view_.in_sync();
  const auto answer = client_->txn(
      {.compare = {etcd::Compare::absent(keys_.leader),
                   etcd::Compare::modified_at(keys_.in_sync, set.revision),
                   etcd::Compare::modified_at(keys_.cluster, view_.cluster()->mod_revision)},
       .success = {etcd::PutRequest{keys_.leader, encode(registration()), lease_.id}},
       .failure = {etcd::RangeRequest{.key = keys_.leader},
                   etcd::RangeRequest{.key = keys_.in_sync}}},
      op_deadline());
  if (!answer && says_lease_is_gone(answer.status())) {
    lose_lease(answer.status());
    return {};
  }
  if (!answer) return answer.status();
  if (answer->succeeded) return won(static_cast<std::uint64_t>(answer->header.revision), set);

  const etcd::KeyValue* const leader = key_in(*answer, 0);
  const etcd::KeyValue* const in_sync = key_in(*answer, 1);
  auto present = set_in(in_sync);
  if (leader == nullptr || leader->lease != lease_.id || !present) {
    // Another was first, or the set is another one: the watch will tell. If it does not, again.
    campaign_at_ = LeaseClock::now() + ttl_asked_ / kPausesPerLease;
    return {};
  }
  // An earlier attempt was carried out, and its answer lost.
  return won(static_cast<std::uint64_t>(leader->create_revision), std::move(*present));
}

Status EtcdMembership::won(std::uint64_t epoch, InSyncSet set) {
  role_ = Role::elected;
  if (epoch <= std::max(epoch_, config_.epoch_floor)) {
    refuse(Status(StatusCode::rejected,
                  fmt::format("etcd gave epoch {} after epoch {}: its data went back in time",
                              epoch, std::max(epoch_, config_.epoch_floor))));
    return {};
  }
  epoch_ = epoch;
  elected_with_ = std::move(set);
  return keep_alive();  // confirmed, it is the leader
}

// --- The in-sync set -----------------------------------------------------------------------------

void EtcdMembership::request_in_sync(Change change, Changed done) {
  change.members = sorted(std::move(change.members));
  Status refused;
  if (change.members.empty() || !std::ranges::all_of(change.members, is_node_id)) {
    refused = Status(StatusCode::invalid_argument,
                     "an in-sync set must name at least one node, and node ids only");
  } else if (!std::ranges::binary_search(change.members, config_.self.node)) {
    refused = Status(StatusCode::invalid_argument,
                     fmt::format("the leader '{}' must be in the in-sync set", config_.self.node));
  }
  if (refused.ok()) {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      refused = Status(StatusCode::cancelled, "the membership was stopped");
    } else if (requests_.size() >= kRequestsMax) {
      refused = Status(StatusCode::resource_exhausted,
                       fmt::format("{} changes of the in-sync set wait already", kRequestsMax));
    } else {
      requests_.push_back({std::move(change), std::move(done)});
    }
  }
  if (!refused.ok()) return done(refused);
  client_->wake();
}

Status EtcdMembership::answer_requests() {
  std::deque<Request> requests;
  {
    const std::lock_guard lock(mutex_);
    requests.swap(requests_);
  }
  Status outcome;
  for (const auto& request : requests)  // each is answered, also when one before has failed
    if (Status changed = change_set(request); outcome.ok()) outcome = std::move(changed);
  return outcome;
}

void EtcdMembership::fail_requests(const Status& why) {
  std::deque<Request> requests;
  {
    const std::lock_guard lock(mutex_);
    requests.swap(requests_);
  }
  for (const auto& request : requests) request.done(why);
}

/// Answers one request; the Status is about etcd, not about the request.
Status EtcdMembership::change_set(const Request& request) {
  const Change& change = request.change;
  const InSyncSet wanted{change.epoch, change.members, 0};
  const auto answer = client_->txn(
      {.compare = {etcd::Compare::created_at(keys_.leader, static_cast<std::int64_t>(change.epoch)),
                   etcd::Compare::modified_at(keys_.in_sync, change.base_revision)},
       .success = {etcd::PutRequest{keys_.in_sync, encode(wanted)}},
       .failure = {etcd::RangeRequest{.key = keys_.leader},
                   etcd::RangeRequest{.key = keys_.in_sync}}},
      op_deadline());
  if (!answer) {
    request.done(answer.status());
    return answer.status();
  }
  if (answer->succeeded) {
    request.done(InSyncSet{change.epoch, change.members, answer->header.revision});
    return {};
  }
  const etcd::KeyValue* const leader = key_in(*answer, 0);
  const etcd::KeyValue* const in_sync = key_in(*answer, 1);
  if (leader == nullptr || leader->create_revision != static_cast<std::int64_t>(change.epoch)) {
    request.done(Status(StatusCode::rejected,
                        fmt::format("the in-sync set is not epoch {}'s to change: {}", change.epoch,
                                    leader == nullptr ? std::string("there is no leader")
                                                      : fmt::format("the leader's is {}",
                                                                    leader->create_revision))));
    return {};
  }
  const auto present = set_in(in_sync);
  if (present && present->epoch == change.epoch && present->members == change.members) {
    request.done(*present);  // an earlier attempt was carried out, and its answer lost
    return {};
  }
  request.done(Status(StatusCode::rejected,
                      present ? fmt::format("the in-sync set is at revision {}, not at {}",
                                            present->revision, change.base_revision)
                              : present.status().message()));
  return {};
}

// --- What others see -----------------------------------------------------------------------------

void EtcdMembership::set_willing(bool willing) {
  {
    const std::lock_guard lock(mutex_);
    willing_ = willing;
  }
  client_->wake();
}

MembershipState EtcdMembership::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void EtcdMembership::update_state() {
  const std::lock_guard lock(mutex_);
  state_.leads_epoch = role_ == Role::leader ? std::optional(epoch_) : std::nullopt;
  state_.leader = view_.leader() ? std::optional(view_.leader()->leader) : std::nullopt;
  state_.in_sync = view_.in_sync();
  state_.members.clear();
  for (const auto& [node, registration] : view_.members())
    state_.members.push_back(registration.member);
  state_.etcd_reachable = reachable_;
}

void EtcdMembership::emit(const MembershipEvent& event) {
  events_(event);
}

bool EtcdMembership::stopping() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

bool EtcdMembership::willing() const {
  const std::lock_guard lock(mutex_);
  return willing_;
}

/// A leader asks no longer than it leads, so that it is told in time.
EtcdClient::Clock::time_point EtcdMembership::op_deadline() const {
  Span limit = ttl_asked_;
  if (role_ == Role::leader) limit = std::min(limit, leader_until() - LeaseClock::now());
  return EtcdClient::Clock::now() + ceil<milliseconds>(std::max(limit, Span(1ms)));
}

EtcdClient::Clock::time_point EtcdMembership::next_due() const {
  const Time now = LeaseClock::now();
  if (refused_) return EtcdClient::Clock::now() + ttl_asked_;
  Time due = std::min(now + ttl_asked_, resync_at_);
  if (!attached_ || lease_.id == 0) due = now;
  if (lease_.id != 0) due = std::min(due, lease_.keep_alive_at);
  if (lease_.id != 0 && !registered_) due = std::min(due, register_at_);
  if (could_campaign()) due = std::min(due, campaign_at_);
  due = std::max(due, retry_at_);
  if (role_ == Role::leader) due = std::min(due, leader_until());
  return EtcdClient::Clock::now() + std::max(due - now, Span(0));
}

}  // namespace sluice::kv
