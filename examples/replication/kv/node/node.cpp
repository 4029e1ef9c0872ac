// SPDX-License-Identifier: BSD-3-Clause
#include "kv/node/node.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "kv/cluster/etcd_membership.hpp"
#include "kv/cluster/static_membership.hpp"
#include "kv/store/command.hpp"
#include "kv/store/files.hpp"

namespace sluice::kv {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kTick = 20ms;
constexpr auto kIdleTick = 100ms;
constexpr auto kTidyEvery = 500ms;
/// Clients get what is due to them for so long when a node ends.
constexpr auto kFarewell = 1000ms;
constexpr auto kLastWrites = 5000ms;
/// After it has stepped back for another one: that one should have been elected by then.
constexpr auto kStepBack = 2000ms;

template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

void answer_error(Ticket& ticket, std::string_view text) {
  ticket.reply().error(text);
  std::move(ticket).complete();
}

}  // namespace

Node::Node(Options options) : options_(std::move(options)) {}

Node::~Node() {
  if (transport_ != nullptr) shut_down();
}

void Node::say(const std::string& text) const {
  fmt::print(stderr, "sluice-kv: node {}: {}\n", options_.node, text);
}

std::shared_ptr<Primary> Node::primary() const {
  const std::lock_guard lock(role_mutex_);
  return primary_;
}

void Node::note_error(const Status& why) {
  {
    const std::lock_guard lock(role_mutex_);
    if (last_error_ == why.message()) return;
    last_error_ = why.message();
  }
  say(why.to_string());
}

// --- start ---------------------------------------------------------------------------------------

Result<std::unique_ptr<Node>> Node::start(Options options) {
  auto node = std::unique_ptr<Node>(new Node(std::move(options)));
  SLUICE_RETURN_IF_ERROR(node->open_data());
  SLUICE_RETURN_IF_ERROR(node->start_transport());
  SLUICE_RETURN_IF_ERROR(node->start_server());
  SLUICE_RETURN_IF_ERROR(node->start_membership());
  if (node->options_.alone()) SLUICE_RETURN_IF_ERROR(node->serve_at_once());
  node->open_.store(true, std::memory_order_release);  // (6) pairs with (7): all parts are there
  return node;
}

Status Node::open_data() {
  SLUICE_RETURN_IF_ERROR(make_folder(options_.data));
  // Left by a kill: its hard links would keep files of the store alive.
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(options_.data, ignored))
    if (entry.path().filename().string().starts_with("checkpoint-for-"))
      SLUICE_RETURN_IF_ERROR(remove_folder(entry.path().string()));
  auto store =
      Store::open(options_.data + "/store", {.cluster_id = wire::hash_of(options_.cluster),
                                             .write_buffer_bytes = options_.write_buffer_bytes,
                                             .block_cache_bytes = options_.block_cache_bytes,
                                             .on_step = {}});
  if (!store) return store.status();
  store_ = std::move(*store);

  const std::string folder = options_.data + "/log";
  LogOptions log;
  log.segment_bytes = options_.segment_bytes;
  log.chunk_bytes =
      std::min<std::size_t>(log.chunk_bytes, options_.segment_bytes / 4 / 4096 * 4096);
  auto journal = Journal::open(folder, log, options_.cluster);
  if (!journal && journal.status().code() == StatusCode::device_failed) {
    if (options_.alone())
      return journal.status().with_context(
          "the log is damaged, and there is no replica to fetch it from (restore the folder from a "
          "backup; or move " +
          folder + " away to go on with what the store has)");
    say(journal.status().to_string());
    SLUICE_RETURN_IF_ERROR(Follower::mark_rebuilding(options_.data, "damaged log\n"));
    SLUICE_RETURN_IF_ERROR(Log::erase(folder));
    journal = Journal::open(folder, log, options_.cluster);
  }
  if (!journal) return journal.status();
  journal_ = std::move(*journal);
  if (const auto& cut = journal_->log().recovery().cut)
    say("the end of the log was cut off, as after a crash in the middle of a write: " +
        cut->message);
  return reconcile();
}

/// The log and the store are written one after the other; a crash leaves either ahead.
Status Node::reconcile() {
  const Store::Position applied = store_->applied();
  Journal::Lock lock(*journal_);
  const Log& log = journal_->log(lock);
  if (applied.index + 1 < log.first_index()) {
    // The entries in between are gone from the log since they had been applied: the store was lost.
    if (options_.alone())
      return {StatusCode::device_failed,
              fmt::format("the store in {}/store has entries up to {}, and the log begins with {}: "
                          "the store was lost or replaced; restore it from a backup",
                          options_.data, applied.index, log.first_index())};
    say("the store lacks entries that the log no longer has");
    return Follower::mark_rebuilding(options_.data, "lost store\n");
  }
  const auto epoch = log.epoch_of(applied.index);
  if (epoch.ok() && *epoch == applied.epoch) return {};
  if (log.last_index() >= applied.index) {
    // What it acknowledged beyond that is dropped with the log.
    if (!options_.alone())
      SLUICE_RETURN_IF_ERROR(Follower::mark_rebuilding(options_.data, "a log that differs\n"));
    say(
        fmt::format("entry {} of the log is of another epoch than the store's: the log goes on "
                    "behind the store",
                    applied.index));
  }
  return journal_->restart_after(lock, applied.index, applied.epoch);
}

Status Node::start_transport() {
  std::optional<HostPort> where;
  if (!options_.replication.empty()) {
    const auto parsed = parse_host_port(options_.replication);
    if (!parsed) return parsed.status();
    where = *parsed;
  }
  auto transport = where ? Transport::start(where->host, options_.topology)
                         : Transport::start_alone(options_.topology);
  if (!transport) return transport.status();
  transport_ = std::move(*transport);
  applier_ = std::make_unique<Applier>(journal_->log(), *store_,
                                       [this](const Status& why) { note_error(why); });
  auto follower = Follower::open({
      .transport = *transport_,
      .journal = *journal_,
      .applier = *applier_,
      .store = *store_,
      .self = options_.node,
      .cluster = options_.cluster,
      .folder = options_.data,
      .ring_bytes = options_.ring_bytes,
      .on_newer_epoch =
          [this](std::uint64_t epoch) {
            if (const auto term = primary(); term != nullptr && term->epoch() < epoch)
              term->depose(fmt::format("a primary of epoch {} has come", epoch));
          },
      .on_rebuilt = [this] { set_willing_again(); },
      .defer = [this](std::function<void()> job) { defer(std::move(job)); },
  });
  if (!follower) return follower.status();
  follower_ = std::move(*follower);
  SLUICE_RETURN_IF_ERROR(journal_->attach(transport_->dispatcher(), [this] { durable_moved(); }));
  if (where) {
    if (const Status listening = transport_->listen(*where, *follower_); !listening.ok())
      return listening.with_context("listen for other nodes on " + options_.replication);
  }
  return {};
}

Status Node::start_server() {
  ServerOptions server;
  server.address = options_.bind;
  server.port = options_.port;
  server.requirepass = options_.requirepass;
  server.durability = options_.effective_durability();
  server.message = [this](std::string_view text) { say(std::string(text)); };
  server.config = {{"dir", options_.data}};
  auto started = RespServer::start(std::move(server), *this);
  if (!started) return started.status();
  server_ = std::move(*started);
  announce_ = options_.announce.empty() ? fmt::format("{}:{}", options_.bind, server_->port())
                                        : options_.announce;
  return {};
}

Status Node::start_membership() {
  const auto events = [this](const MembershipEvent& event) { on_event(event); };
  if (!options_.etcd.empty()) {
    auto membership =
        EtcdMembership::start({.cluster_id = options_.cluster,
                               .self = {options_.node, announce_, options_.replication},
                               .endpoints = options_.etcd,
                               .lease_s = options_.lease_s,
                               .prefix = options_.etcd_prefix,
                               .initial_members = options_.members,
                               .epoch_floor = follower_->promised()},
                              events);
    if (!membership) return membership.status();
    membership_ = std::move(*membership);
  } else {
    StaticMembershipConfig config{.cluster_id = options_.cluster,
                                  .self = options_.node,
                                  .primary = options_.alone() ? options_.node : options_.primary,
                                  .members = options_.fixed,
                                  .file = options_.data + "/IN_SYNC",
                                  .epoch_floor = follower_->promised()};
    if (options_.alone()) config.members = {{options_.node, announce_, announce_}};
    auto membership = StaticMembership::start(std::move(config), events);
    if (!membership) return membership.status();
    membership_ = std::move(*membership);
  }
  if (follower_->rebuilding()) {
    say("its data was lost, and is fetched from the primary: it cannot lead before");
    membership_->set_willing(false);
  }
  if (!options_.alone()) say(membership_->state().description);
  return {};
}

/// Nobody else has to be asked: whoever sees that it listens can write.
Status Node::serve_at_once() {
  const auto deadline = Clock::now() + 60s;
  for (;;) {  // bound: the deadline
    SLUICE_RETURN_IF_ERROR(round_of_keeper(kTick));
    const auto term = primary();
    if (term != nullptr && term->serving()) return {};
    if (const Status failed = journal_->log().failed(); !failed.ok()) return failed;
    if (Clock::now() > deadline)
      return {StatusCode::timed_out, "the log's first write did not come back"};
  }
}

// --- clients: the I/O thread ---------------------------------------------------------------------

void Node::handle(const Request& request, Ticket ticket) noexcept {
  if (!open_.load(std::memory_order_acquire)) {  // (7) pairs with (6)
    if (request.command.id != CommandId::info)
      return answer_error(ticket, "CLUSTERDOWN this node is starting: try again");
    ticket.reply().bulk("# Replication\r\nrole:starting\r\n");  // whoever polls this goes on
    return std::move(ticket).complete();
  }
  switch (request.command.id) {
    case CommandId::set:
    case CommandId::del:
    case CommandId::mset:
    case CommandId::incr: return handle_write(request, std::move(ticket));
    case CommandId::get:
    case CommandId::mget:
    case CommandId::exists: return handle_read(request, std::move(ticket));
    case CommandId::wait: return handle_wait(request, std::move(ticket));
    case CommandId::info:
      if (request.words.size() > 2)
        return answer_error(ticket, "ERR INFO takes one section at most");
      ticket.reply().bulk(info_text(request.words.size() == 2 ? request.words[1] : ""));
      return std::move(ticket).complete();
    default: return answer_error(ticket, "ERR this command is not for a node");
  }
}

/// To whoever leads.
void Node::redirect(Ticket& ticket) {
  std::string text = "CLUSTERDOWN no primary is known now: try again";
  {
    const std::lock_guard lock(role_mutex_);
    if (primary_ != nullptr)
      text = "CLUSTERDOWN this node was elected, and is not ready yet: try again";
    else if (leader_ && leader_->who.node != options_.node)
      text = "MOVED 0 " + leader_->who.client;
  }
  answer_error(ticket, text);
}

void Node::handle_write(const Request& request, Ticket ticket) {
  const auto term = primary();
  if (term == nullptr || !term->serving()) return redirect(ticket);
  const auto words = request.words.subspan(1);
  Operation operation;
  operation.payload_at = round_.bytes.size();
  Status fits;
  switch (request.command.id) {
    case CommandId::set:
      fits = check_size(words[0], words[1]);
      if (fits.ok()) encode_set(round_.bytes, words[0], words[1]);
      break;
    case CommandId::del:
      fits = check_count(words.size());
      for (std::size_t i = 0; i < words.size() && fits.ok(); ++i) fits = check_size(words[i]);
      if (fits.ok()) encode_del(round_.bytes, words);
      operation.answer = Operation::Answer::integer;
      break;
    case CommandId::mset: {
      fits = check_count(words.size() / 2);
      std::vector<KeyValue> pairs;
      for (std::size_t i = 0; i + 1 < words.size() && fits.ok(); i += 2) {
        fits = check_size(words[i], words[i + 1]);
        pairs.push_back({words[i], words[i + 1]});
      }
      if (fits.ok()) encode_mset(round_.bytes, pairs);
      break;
    }
    default:
      fits = check_size(words[0]);
      if (fits.ok()) encode_incr_by(round_.bytes, words[0], 1);
      operation.answer = Operation::Answer::integer;
  }
  operation.payload_bytes = round_.bytes.size() - operation.payload_at;
  if (fits.ok() && operation.payload_bytes > options_.entry_bytes_max())
    fits = {StatusCode::invalid_argument,
            fmt::format("the request takes {} bytes of log, and {} is what an entry holds here "
                        "(--ring-bytes, --segment-bytes)",
                        operation.payload_bytes, options_.entry_bytes_max())};
  if (!fits.ok()) {
    round_.bytes.resize(operation.payload_at);
    return answer_error(ticket, "ERR " + fits.message());
  }
  operation.durability = request.connection.durability;
  operation.sequence = request.connection.mark = ++sequence_;
  operation.ticket = std::move(ticket);
  round_.operations.push_back(std::move(operation));
}

void Node::handle_read(const Request& request, Ticket ticket) {
  const auto term = primary();
  if (term == nullptr || !term->serving()) return redirect(ticket);
  const auto keys = request.words.subspan(1);
  // (5) acquire: pairs with (4) in Primary: what this client wrote is in the store.
  if (request.connection.mark <= answered_sequence_.load(std::memory_order_acquire)) {
    term->answer_read(request.command.id, keys, ticket);
    return std::move(ticket).complete();
  }
  Operation operation;  // behind the client's own writes
  operation.kind = Operation::Kind::read;
  operation.command = request.command.id;
  operation.keys.assign(keys.begin(), keys.end());
  operation.ticket = std::move(ticket);
  round_.operations.push_back(std::move(operation));
}

void Node::handle_wait(const Request& request, Ticket ticket) {
  const auto term = primary();
  if (term == nullptr || !term->serving()) return redirect(ticket);
  const auto replicas = number_of<std::uint32_t>(request.words[1]);
  const auto timeout = number_of<std::uint32_t>(request.words[2]);
  if (!replicas || !timeout)
    return answer_error(ticket,
                        "ERR WAIT takes a number of replicas and a timeout in milliseconds");
  Operation operation;
  operation.kind = Operation::Kind::wait;
  operation.replicas = *replicas;
  operation.timeout = std::chrono::milliseconds(*timeout);
  operation.ticket = std::move(ticket);
  round_.operations.push_back(std::move(operation));
}

void Node::round_done() noexcept {
  if (round_.operations.empty()) return;
  if (const auto term = primary(); term != nullptr) return term->submit(round_);
  for (Operation& operation : round_.operations) redirect(operation.ticket);
  round_.clear();
}

// --- membership ----------------------------------------------------------------------------------

void Node::on_event(const MembershipEvent& event) {
  if (!options_.alone() && !std::holds_alternative<event::MemberJoined>(event) &&
      !std::holds_alternative<event::InSyncChanged>(event))
    say(to_string(event));
  if (const auto* gained = std::get_if<event::RoleGained>(&event)) {
    defer([this, gained = *gained] { begin_term(gained.epoch, gained.in_sync); });
  } else if (const auto* lost = std::get_if<event::RoleLost>(&event)) {
    // Before this returns: another node may lead as soon as it has.
    if (const auto term = primary(); term != nullptr) term->depose(lost->why.message());
    defer([this] { end_term(); });
  } else if (const auto* changed = std::get_if<event::LeaderChanged>(&event)) {
    const std::lock_guard lock(role_mutex_);
    leader_ = changed->leader;
  } else if (const auto* in_sync = std::get_if<event::InSyncChanged>(&event)) {
    if (const auto term = primary(); term != nullptr) term->in_sync_changed(in_sync->in_sync);
  } else if (const auto* refused = std::get_if<event::Refused>(&event)) {
    const std::lock_guard lock(jobs_mutex_);
    fatal_ = refused->why;
    jobs_wake_.notify_all();
  } else if (const auto* problem = std::get_if<event::Problem>(&event)) {
    const std::lock_guard lock(role_mutex_);
    last_error_ = problem->why.message();
  }
}

// --- the keeper ----------------------------------------------------------------------------------

void Node::defer(std::function<void()> job) {
  const std::lock_guard lock(jobs_mutex_);
  jobs_.push_back(std::move(job));
  jobs_wake_.notify_all();
}

Status Node::run(const std::function<bool()>& stop_asked) {
  Status outcome;
  while (!stop_asked() && outcome.ok())
    outcome = round_of_keeper(primary() != nullptr ? kTick : kIdleTick);
  shut_down();
  return outcome;
}

Status Node::round_of_keeper(std::chrono::milliseconds tick) {
  std::deque<std::function<void()>> jobs;
  {
    std::unique_lock lock(jobs_mutex_);
    jobs_wake_.wait_for(lock, tick, [this] { return !jobs_.empty() || fatal_; });
    if (fatal_) return *fatal_;
    jobs.swap(jobs_);
  }
  for (const auto& job : jobs) job();
  if (const auto term = primary(); term != nullptr) term->tick();
  {
    Journal::Lock lock(*journal_);
    journal_->submit_if_old(lock);
  }
  const auto now = Clock::now();
  if (willing_again_at_ && now >= *willing_again_at_) set_willing_again();
  if (now >= tidy_at_) {
    tidy();
    tidy_at_ = now + kTidyEvery;
  }
  return {};
}

void Node::begin_term(std::uint64_t epoch, const InSyncSet& in_sync) {
  end_term();
  if (!membership_->leads(epoch)) return;  // already over
  if (const Status promised = follower_->promise(epoch); !promised.ok()) {
    note_error(promised.with_context("cannot lead in epoch " + std::to_string(epoch)));
    return step_back(epoch, promised.message());
  }
  follower_->close();
  if (follower_->rebuilding()) return step_back(epoch, "its data is not complete yet");
  const bool empty = journal_->log().last_index() == 0;
  if (!options_.etcd.empty() && empty && in_sync.epoch != 0) {
    (void)follower_->begin_rebuilding();
    return step_back(epoch, "it has no data, and the cluster has: its disk was lost or replaced");
  }
  auto term = std::make_shared<Primary>(
      Primary::Parts{.membership = *membership_,
                     .transport = options_.alone() ? nullptr : transport_.get(),
                     .journal = *journal_,
                     .applier = *applier_,
                     .store = *store_,
                     .self = options_.node,
                     .cluster = options_.cluster,
                     .folder = options_.data,
                     .entry_bytes_max = options_.entry_bytes_max(),
                     .min_in_sync = options_.effective_min_in_sync(),
                     .replica_timeout = options_.replica_timeout,
                     .elected = !options_.etcd.empty(),
                     .step_back =
                         [this, epoch](const std::string& why) {
                           defer([this, epoch, why] { step_back(epoch, why); });
                         },
                     .answered_sequence = answered_sequence_},
      epoch, in_sync);
  {
    const std::lock_guard lock(role_mutex_);
    primary_ = term;
    last_error_.clear();
  }
  // RoleLost may have come before anybody could depose it.
  if (!membership_->leads(epoch)) term->depose("its lease is over");
  term->tick();
}

void Node::end_term() {
  std::shared_ptr<Primary> ending;
  {
    const std::lock_guard lock(role_mutex_);
    ending = std::move(primary_);
    primary_ = nullptr;
  }
  if (ending != nullptr) ending->stop();
}

void Node::step_back(std::uint64_t epoch, const std::string& why) {
  if (const auto term = primary(); term != nullptr && term->epoch() != epoch) return;
  say("steps back: " + why);
  {
    const std::lock_guard lock(role_mutex_);
    last_error_ = why;
  }
  end_term();
  membership_->set_willing(false);
  willing_again_at_ = Clock::now() + kStepBack;
}

void Node::set_willing_again() {
  willing_again_at_.reset();
  if (follower_->rebuilding()) return;
  if (!journal_->log().failed().ok()) return;
  membership_->set_willing(true);
}

/// Trims the log, and sees to it that it can be trimmed; looks after what has failed.
void Node::tidy() {
  if (const Status failed = journal_->log().failed(); !failed.ok()) {
    note_error(failed);
    if (const auto term = primary(); term != nullptr) {
      term->depose(failed.message());
      step_back(term->epoch(), failed.message());
      willing_again_at_.reset();
    }
    return;
  }
  applier_->retry();
  const auto durable = store_->durable_applied_index();
  if (!durable) return note_error(durable.status());
  std::uint64_t needed = *durable + 1;
  if (const auto term = primary(); term != nullptr) needed = std::min(needed, term->needed_from());
  bool flush = false;
  {
    Journal::Lock lock(*journal_);
    flush = journal_->bytes_after(lock, *durable) > options_.log_keep_bytes;
    // A replica that catches up keeps the log from being trimmed, but not for ever.
    if (journal_->bytes_after(lock, needed) > 4 * options_.log_keep_bytes) needed = *durable + 1;
    journal_->trim(lock, needed, options_.log_keep_bytes);
  }
  if (flush) {
    if (const Status flushed = store_->flush(false); !flushed.ok()) note_error(flushed);
  }
}

void Node::durable_moved() {
  if (follower_ != nullptr) follower_->durable_moved();
  if (const auto term = primary(); term != nullptr) term->progress();
}

void Node::shut_down() {
  // Clients first: what is acknowledged has to be settled, and that takes everything else.
  if (server_ != nullptr) {
    if (const Status stopped = server_->stop(kFarewell); !stopped.ok()) say(stopped.message());
  }
  // Step down before the log closes: another node takes over at once.
  if (membership_ != nullptr) membership_->stop();
  end_term();
  {
    const std::lock_guard lock(jobs_mutex_);
    jobs_.clear();
  }
  if (transport_ != nullptr) transport_->stop_listening();
  if (follower_ != nullptr) follower_->close();
  if (journal_ != nullptr && transport_ != nullptr) {
    if (const Status settled = journal_->settle(kLastWrites); !settled.ok()) say(settled.message());
  }
  if (transport_ != nullptr) {
    if (const Status stopped = transport_->stop(); !stopped.ok()) say(stopped.message());
  }
  server_.reset();
  membership_.reset();
  follower_.reset();
  applier_.reset();
  transport_.reset();
  journal_.reset();
  store_.reset();
}

}  // namespace sluice::kv
