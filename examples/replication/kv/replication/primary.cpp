// SPDX-License-Identifier: BSD-3-Clause
#include "kv/replication/primary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice::kv {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// After so long without its level being reached a client is told that nobody knows.
constexpr auto kAnswerLimit = 10s;
/// WAIT without a limit: its client may be gone for long.
constexpr std::chrono::milliseconds kWaitLimit{60'000};
constexpr const char* kUncertain =
    "UNCERTAIN this node leads no more: whether the write counts is not known";

}  // namespace

Primary::Primary(Parts parts, std::uint64_t epoch, InSyncSet in_sync)
    : parts_(std::move(parts)),
      epoch_(epoch),
      in_sync_(std::move(in_sync)),
      silence_counts_from_(Clock::now() + parts_.replica_timeout) {
  settled_.store(parts_.store.applied_index(), std::memory_order_relaxed);
  parts_.applier.observe(std::make_shared<const Applier::Observer>(
      [this](std::uint64_t first, std::span<const Outcome> outcomes) {
        on_applied(first, outcomes);
      }));
}

Primary::~Primary() {
  stop();
}

void Primary::stop() {
  depose("it was stopped");
  // Once: a later term may have its observer there by now.
  if (!stop_begun_.exchange(true, std::memory_order_relaxed)) parts_.applier.observe(nullptr);
  std::vector<std::shared_ptr<Feeder>> ending;
  {
    const std::lock_guard lock(feeders_mutex_);
    stopped_ = true;
    ending = std::move(feeders_);
    feeders_.clear();
  }
  for (const auto& feeder : ending) feeder->ask_to_stop();
  for (const auto& feeder : ending) feeder->stop();
}

std::vector<std::shared_ptr<Feeder>> Primary::feeders() const {
  const std::lock_guard lock(feeders_mutex_);
  return feeders_;
}

std::string Primary::address_of(const std::string& node) const {
  for (const Member& member : parts_.membership.state().members)
    if (member.node == node) return member.replication;
  return {};
}

// --- clients -------------------------------------------------------------------------------------

void Primary::submit(Round& round) {
  {
    Lock lock(parts_.journal);
    count_members_there(lock);
    for (Operation& operation : round.operations) {
      const auto payload =
          std::span(round.bytes).subspan(operation.payload_at, operation.payload_bytes);
      admit(lock, std::move(operation), payload);
    }
    parts_.journal.submit_if_wanted(lock);
    settle(lock);
  }
  round.clear();
  pump_all();
  parts_.applier.kick();
  answer_ready_reads();
  answer_waiters();
}

/// Why a write at this level cannot be taken now.
std::optional<std::string> Primary::refuse(const Lock&, Durability level) const {
  if (level < Durability::quorum_memory) return std::nullopt;
  if (in_sync_.members.size() < parts_.min_in_sync)
    return fmt::format(
        "NOREPLICAS {} of the nodes are in sync, and {} take {}: see INFO replication",
        in_sync_.members.size(), to_string(level), parts_.min_in_sync);
  if (members_there_ < quorum_of(in_sync_.members.size()))
    return fmt::format(
        "NOREPLICAS {} of {} in-sync nodes are connected, no quorum: see INFO replication",
        members_there_, in_sync_.members.size());
  return std::nullopt;
}

void Primary::count_members_there(const Lock&) {
  members_there_ = 1;
  for (const auto& feeder : feeders())
    if (feeder->connected() && in_sync_.contains(feeder->node())) ++members_there_;
}

void Primary::admit(const Lock& lock, Operation operation, std::span<const std::byte> payload) {
  const auto now = Clock::now();
  if (phase_.load(std::memory_order_relaxed) != Phase::serving) {
    operation.ticket.reply().error("CLUSTERDOWN this node does not lead any more: try again");
    std::move(operation.ticket).complete();
    return;
  }
  if (!backlog_.empty()) {  // whoever came first is first
    backlog_.push_back(
        {std::move(operation), std::vector<std::byte>(payload.begin(), payload.end()), now});
    return;
  }
  const std::uint64_t last = parts_.journal.log().last_index();
  switch (operation.kind) {
    case Operation::Kind::write:
      if (!append(lock, operation, payload))
        backlog_.push_back(
            {std::move(operation), std::vector<std::byte>(payload.begin(), payload.end()), now});
      break;
    case Operation::Kind::read: pending_.push_back({last, std::move(operation), now}); break;
    case Operation::Kind::wait: {
      const auto timeout = operation.timeout;
      waiters_.push_back(
          {last, std::move(operation), now + (timeout.count() == 0 ? kWaitLimit : timeout)});
      waiters_there_.store(true, std::memory_order_relaxed);
      break;
    }
  }
}

/// Appends a write, or answers why not. False: the log has no room until something is durable.
bool Primary::append(const Lock& lock, Operation& operation, std::span<const std::byte> payload) {
  std::optional<std::string> refused = refuse(lock, operation.durability);
  if (parts_.applier.failing())
    refused = "ERR the store takes no writes, INFO replication says why: nothing was written";
  if (!refused) {
    const auto index = parts_.journal.append(lock, epoch_, payload);
    if (index.ok()) {
      const bool disk = operation.durability == Durability::local_disk ||
                        operation.durability >= Durability::quorum_disk;
      if (disk) {
        parts_.journal.want_disk(lock, *index);
        disk_.store(*index, std::memory_order_relaxed);
      }
      pending_.push_back({*index, std::move(operation), Clock::now()});
      return true;
    }
    Log& log = parts_.journal.log(lock);
    if (index.status().code() == StatusCode::resource_exhausted &&
        (log.in_flight() > 0 || log.has_unsubmitted())) {
      parts_.journal.want_disk(lock, log.last_index());
      return false;
    }
    refused = "ERR " + index.status().message();
    last_error_ = index.status().message();
  }
  // Its client's reads wait for nothing, unless for earlier writes. (Those given up came first.)
  if (pending_.empty() || !pending_.back().operation.ticket) note_answered(operation.sequence);
  operation.ticket.reply().error(*refused);
  std::move(operation.ticket).complete();
  return true;
}

void Primary::admit_backlog(const Lock& lock) {
  while (!backlog_.empty()) {
    auto [operation, payload, since] = std::move(backlog_.front());
    backlog_.pop_front();
    if (operation.kind == Operation::Kind::write) {
      if (append(lock, operation, payload)) continue;
      backlog_.push_front({std::move(operation), std::move(payload), since});
      break;
    }
    // admit() would put it behind the rest.
    auto rest = std::move(backlog_);
    backlog_.clear();
    admit(lock, std::move(operation), payload);
    backlog_ = std::move(rest);
  }
}

void Primary::answer_read(CommandId command, std::span<const std::string_view> keys,
                          Ticket& ticket) {
  ReplyBuilder reply = ticket.reply();
  const auto moved = [&] {  // P3: the value is there; only now is the lease looked at
    if (lease_holds()) return false;
    reply.error("CLUSTERDOWN this node's lease is over: try again");
    return true;
  };
  const auto failed = [&](const Status& why) { reply.error("ERR " + why.message()); };
  if (command == CommandId::get) {
    std::string value;
    const auto found = parts_.store.get(keys[0], value);
    if (moved()) return;
    if (!found) return failed(found.status());
    if (*found)
      reply.bulk(value);
    else
      reply.null();
  } else if (command == CommandId::mget) {
    const auto values = parts_.store.mget(keys);
    if (moved()) return;
    if (!values) return failed(values.status());
    reply.array(values->size());
    for (const auto& value : *values)
      if (value)
        reply.bulk(*value);
      else
        reply.null();
  } else {
    const auto count = parts_.store.exists(keys);
    if (moved()) return;
    if (!count) return failed(count.status());
    reply.integer(static_cast<std::int64_t>(*count));
  }
}

// --- settling ------------------------------------------------------------------------------------

Reached Primary::reached(const Lock&) {
  progress_.clear();
  for (const auto& feeder : feeders()) progress_.push_back(feeder->progress());
  const Log& log = parts_.journal.log();
  return count_acknowledgements({parts_.self, log.last_index(), log.durable_index()}, progress_,
                                in_sync_.members, proposed_ ? &*proposed_ : nullptr);
}

bool Primary::settle(const Lock& lock) {
  if (phase_.load(std::memory_order_relaxed) == Phase::deposed) return false;
  if (settled_count_ == pending_.size()) return false;
  const Reached now = reached(lock);
  std::uint64_t settled = settled_.load(std::memory_order_relaxed);
  const std::uint64_t before = settled;
  for (; settled_count_ < pending_.size(); ++settled_count_) {
    const Pending& next = pending_[settled_count_];
    if (next.operation.kind == Operation::Kind::write) {
      if (reads_waiting_ > 0 || now.at(next.operation.durability) < next.index) break;
    } else {
      ++reads_waiting_;
    }
    settled = std::max(settled, next.index);
  }
  settled_.store(settled, std::memory_order_relaxed);
  parts_.applier.raise(settled);
  return settled != before;
}

void Primary::progress() noexcept {
  const Phase phase = phase_.load(std::memory_order_relaxed);
  if (phase == Phase::deposed) return;
  bool pump = false;
  {
    Lock lock(parts_.journal);
    if (!backlog_.empty()) {
      count_members_there(lock);
      admit_backlog(lock);
      parts_.journal.submit_if_wanted(lock);
      pump = true;
    }
    settle(lock);
  }
  if (pump) pump_all();
  parts_.applier.kick();
  answer_ready_reads();
  answer_waiters();
}

/// The writes among them are answered. On the thread that applies.
void Primary::on_applied(std::uint64_t first, std::span<const Outcome> outcomes) {
  std::vector<Pending> done;
  const std::uint64_t last = first + outcomes.size() - 1;
  {
    Lock lock(parts_.journal);
    while (!pending_.empty() && settled_count_ > 0 && pending_.front().index <= last) {
      if (pending_.front().operation.kind == Operation::Kind::read) --reads_waiting_;
      done.push_back(std::move(pending_.front()));
      pending_.pop_front();
      --settled_count_;
    }
  }
  serve_if_ready();
  CompletionBatch batch;
  std::uint64_t sequence = 0;
  for (Pending& pending : done) {
    Operation& operation = pending.operation;
    if (operation.kind == Operation::Kind::write) {
      sequence = std::max(sequence, operation.sequence);
      if (!operation.ticket) continue;  // has been told that nobody knows; or its own first entry
      if (pending.index < first) {      // it was applied before it was waited for: not known how
        operation.ticket.reply().error(kUncertain);
        batch.add(std::move(operation.ticket));
        continue;
      }
      const Outcome& outcome = outcomes[pending.index - first];
      ReplyBuilder reply = operation.ticket.reply();
      if (outcome.failed())
        reply.error(outcome.error());
      else if (operation.answer == Operation::Answer::ok)
        reply.ok();
      else
        reply.integer(outcome.integer);
    } else {
      if (!operation.ticket) continue;
      const std::vector<std::string_view> keys(operation.keys.begin(), operation.keys.end());
      answer_read(operation.command, keys, operation.ticket);
    }
    batch.add(std::move(operation.ticket));
  }
  // Before the replies go out: who has got one reads what it wrote.
  note_answered(sequence);
  batch.post();
  go_on_behind_reads();
}

/// Writes up to this one are answered: what of them counts is in the store, or was given up.
void Primary::note_answered(std::uint64_t sequence) noexcept {
  // (4) release: pairs with (5) in Node: the store has it.
  std::uint64_t known = parts_.answered_sequence.load(std::memory_order_relaxed);
  while (sequence > known && !parts_.answered_sequence.compare_exchange_weak(
                                 known, sequence, std::memory_order_release)) {
  }
}

/// Writes that stood behind reads which are answered now.
void Primary::go_on_behind_reads() {
  {
    Lock lock(parts_.journal);
    if (!settle(lock)) return;
  }
  parts_.applier.kick();
}

/// Its own first entry is applied: everything before it counts. And, in a new cluster, the in-sync
/// set says that there is something.
void Primary::serve_if_ready() {
  {
    Lock lock(parts_.journal);
    if (phase_.load(std::memory_order_relaxed) != Phase::opening || first_index_ == 0 ||
        parts_.store.applied_index() < first_index_ || (parts_.elected && in_sync_.epoch == 0))
      return;
    // (2) release: pairs with (1), (3): whoever sees it serve sees what was applied.
    phase_.store(Phase::serving, std::memory_order_release);
  }
  fmt::print(stderr, "sluice-kv: node {}: leads in epoch {}, from entry {} on\n", parts_.self,
             epoch_, first_index_);
}

/// Reads that found nothing before them to wait for.
void Primary::answer_ready_reads() {
  std::vector<Pending> done;
  {
    Lock lock(parts_.journal);
    const std::uint64_t applied = parts_.store.applied_index();
    while (settled_count_ > 0 && pending_.front().operation.kind == Operation::Kind::read &&
           pending_.front().index <= applied) {
      done.push_back(std::move(pending_.front()));
      pending_.pop_front();
      --settled_count_;
      --reads_waiting_;
    }
  }
  for (Pending& pending : done) {
    if (!pending.operation.ticket) continue;
    const std::vector<std::string_view> keys(pending.operation.keys.begin(),
                                             pending.operation.keys.end());
    answer_read(pending.operation.command, keys, pending.operation.ticket);
    std::move(pending.operation.ticket).complete();
  }
  if (!done.empty()) go_on_behind_reads();
}

void Primary::answer_waiters() {
  if (!waiters_there_.load(std::memory_order_relaxed)) return;
  std::vector<std::pair<Ticket, std::int64_t>> done;
  {
    const auto all = feeders();
    Lock lock(parts_.journal);
    const auto now = Clock::now();
    std::erase_if(waiters_, [&](Waiter& waiter) {
      const auto have = static_cast<std::uint64_t>(std::ranges::count_if(
          all, [&](const auto& feeder) { return feeder->progress().memory >= waiter.index; }));
      if (have < waiter.operation.replicas && now < waiter.deadline) return false;
      done.emplace_back(std::move(waiter.operation.ticket), static_cast<std::int64_t>(have));
      return true;
    });
    waiters_there_.store(!waiters_.empty(), std::memory_order_relaxed);
  }
  for (auto& [ticket, count] : done) {
    ticket.reply().integer(count);
    std::move(ticket).complete();
  }
}

void Primary::pump_all() noexcept {
  for (const auto& feeder : feeders()) feeder->pump();
}

// --- the term ------------------------------------------------------------------------------------

void Primary::on_report(const std::string& node, const wire::Report& report) {
  {
    Lock lock(parts_.journal);
    // A node that lost what it had cannot speak for what it acknowledged.
    const bool lost =
        report.rebuilding ||
        // A member without any entry has lost its disk, once the set has been changed.
        (parts_.elected && report.last_index == 0 && in_sync_.epoch != 0);
    if (lost)
      heard_.erase(node);
    else
      heard_[node] = {node, report.last_epoch, report.last_index};
  }
  judge();
}

void Primary::judge() {
  if (phase_.load(std::memory_order_relaxed) != Phase::candidate) return;
  ElectionVerdict verdict;
  {
    Lock lock(parts_.journal);
    std::vector<Position> heard;
    for (const auto& [node, position] : heard_)
      if (in_sync_.contains(node) && node != parts_.self) heard.push_back(position);
    Log& log = parts_.journal.log(lock);
    verdict = judge_election({parts_.self, log.last_epoch(), log.last_index()}, heard,
                             in_sync_.members.size(), in_sync_.contains(parts_.self));
    if (verdict.kind == ElectionVerdict::Kind::wait)
      last_error_ = fmt::format("elected, and waits until {} more of the in-sync set are heard",
                                verdict.missing);
    if (verdict.kind == ElectionVerdict::Kind::lead) last_error_.clear();
    if (verdict.kind == ElectionVerdict::Kind::yield && !parts_.elected) {
      // Nobody will be elected in its place, and what it lacks may have been acknowledged.
      const std::lock_guard fetching(fetch_mutex_);
      if (fetch_from_ != verdict.to)
        fmt::print(stderr, "sluice-kv: node {}: fetches what node {} has more\n", parts_.self,
                   verdict.to);
      fetch_from_ = verdict.to;
    }
  }
  if (verdict.kind == ElectionVerdict::Kind::lead) open();
  if (verdict.kind == ElectionVerdict::Kind::yield && !parts_.elected) {
    for (const auto& feeder : feeders()) feeder->nudge();
    return;
  }
  if (verdict.kind == ElectionVerdict::Kind::yield) {
    depose("node " + verdict.to + " has more");
    parts_.step_back("node " + verdict.to + " has entries that this node lacks, and should lead");
  }
}

bool Primary::wants_from(const std::string& node) {
  const std::lock_guard lock(fetch_mutex_);
  return phase_.load(std::memory_order_relaxed) == Phase::candidate && fetch_from_ == node;
}

Status Primary::cut_after(std::uint64_t index) {
  Lock lock(parts_.journal);
  Log& log = parts_.journal.log(lock);
  if (index < parts_.store.applied_index())
    return {StatusCode::internal, "it differs in what was applied here"};
  SLUICE_RETURN_IF_ERROR(parts_.journal.wait_until_idle(lock));
  if (phase_.load(std::memory_order_relaxed) != Phase::candidate)
    return {StatusCode::cancelled, "this node leads no more"};
  return index < log.last_index() ? parts_.journal.truncate_after(lock, index) : Status();
}

Status Primary::take_fetched(const wire::Frame& frame) {
  Lock lock(parts_.journal);
  if (phase_.load(std::memory_order_relaxed) != Phase::candidate)
    return {StatusCode::cancelled, "this node leads no more"};
  const Status taken = wire::each_entry(
      frame, [&](const Entry& entry) { return parts_.journal.append(lock, entry); });
  parts_.journal.want_disk(lock, parts_.journal.log().last_index());
  parts_.journal.submit_if_wanted(lock);
  return taken;
}

void Primary::on_fetched(const std::string& node) {
  {
    const std::lock_guard lock(fetch_mutex_);
    if (fetch_from_ == node) fetch_from_.clear();
  }
  judge();
}

/// Appends the term's first entry, and lets replicas follow.
void Primary::open() {
  Status status;
  {
    Lock lock(parts_.journal);
    Phase candidate = Phase::candidate;
    // (2) release: pairs with (3): a feeder that sees it may write what the log has.
    if (phase_.load(std::memory_order_relaxed) != candidate) return;
    std::vector<std::byte> payload;
    encode_no_op(payload);
    const auto index = parts_.journal.append(lock, epoch_, payload);
    if (index.ok()) {
      Operation first;
      first.durability = Durability::quorum_disk;
      first_index_ = *index;
      pending_.push_back({*index, std::move(first), Clock::now()});
      parts_.journal.want_disk(lock, *index);
      disk_.store(*index, std::memory_order_relaxed);
      parts_.journal.submit_if_wanted(lock);
      // (2) release: pairs with (3): a feeder that sees it may write what the log has, and says
      // that this entry is waited for.
      if (!phase_.compare_exchange_strong(candidate, Phase::opening, std::memory_order_release))
        return;
    } else {
      status = index.status();
    }
  }
  if (!status.ok()) {
    depose(status.message());
    parts_.step_back("its log takes nothing: " + status.message());
    return;
  }
  for (const auto& feeder : feeders()) feeder->nudge();
  progress();
}

void Primary::on_superseded(std::uint64_t epoch) {
  const auto why = fmt::format("a replica follows epoch {}, which is later than {}", epoch, epoch_);
  depose(why);
  parts_.step_back(why);
}

void Primary::depose(const std::string& why) {
  std::vector<Ticket> uncertain, refused;
  {
    Lock lock(parts_.journal);
    if (phase_.exchange(Phase::deposed, std::memory_order_acq_rel) == Phase::deposed) return;
    last_error_ = why;
    proposed_.reset();
    for (Pending& pending : pending_)
      if (pending.operation.ticket) uncertain.push_back(std::move(pending.operation.ticket));
    pending_.clear();
    settled_count_ = reads_waiting_ = 0;
    for (auto& [operation, payload, since] : backlog_)
      refused.push_back(std::move(operation.ticket));
    backlog_.clear();
    for (Waiter& waiter : waiters_) refused.push_back(std::move(waiter.operation.ticket));
    waiters_.clear();
    waiters_there_.store(false, std::memory_order_relaxed);
  }
  fmt::print(stderr, "sluice-kv: node {}: leads no more in epoch {}: {}\n", parts_.self, epoch_,
             why);
  for (Ticket& ticket : uncertain) {
    ticket.reply().error(kUncertain);
    std::move(ticket).complete();
  }
  for (Ticket& ticket : refused) {
    ticket.reply().error("CLUSTERDOWN this node leads no more: try again");
    std::move(ticket).complete();
  }
}

void Primary::tick() {
  const auto now = Clock::now();
  if (phase_.load(std::memory_order_relaxed) == Phase::deposed) return;
  tend_feeders();
  if (phase_.load(std::memory_order_relaxed) == Phase::candidate) judge();
  pump_all();  // signs of life
  progress();
  serve_if_ready();
  if (may_write()) {
    tend_in_sync(now);
    give_up_old(now);
  }
}

void Primary::tend_feeders() {
  if (parts_.transport == nullptr) return;
  std::vector<std::shared_ptr<Feeder>> begun;
  {
    const auto members = parts_.membership.state().members;
    const std::lock_guard lock(feeders_mutex_);
    if (stopped_) return;
    for (const Member& member : members) {
      if (member.node == parts_.self) continue;
      if (std::ranges::any_of(feeders_, [&](const auto& f) { return f->node() == member.node; }))
        continue;
      auto feeder = std::make_shared<Feeder>(
          member.node,
          Feeder::Parts{.owner = *this,
                        .transport = *parts_.transport,
                        .log = parts_.journal.log(),
                        .store = parts_.store,
                        .self = parts_.self,
                        .cluster = parts_.cluster,
                        .entry_bytes_max = parts_.entry_bytes_max,
                        .checkpoint_folder = parts_.folder + "/checkpoint-for-" + member.node,
                        .silence = 3 * parts_.replica_timeout});
      feeders_.push_back(feeder);
      begun.push_back(std::move(feeder));
    }
  }
  for (const auto& feeder : begun) feeder->start();
}

/// Tells clients that nobody knows whose level was not reached for long; the entries stay.
void Primary::give_up_old(Clock::time_point now) {
  std::vector<Ticket> old, not_taken;
  std::uint64_t sequence = 0;
  {
    Lock lock(parts_.journal);
    while (!backlog_.empty() && now - backlog_.front().since >= kAnswerLimit) {
      sequence = std::max(sequence, backlog_.front().operation.sequence);
      not_taken.push_back(std::move(backlog_.front().operation.ticket));
      backlog_.pop_front();
    }
    for (Pending& pending : pending_) {
      if (now - pending.since < kAnswerLimit) break;
      if (!pending.operation.ticket) continue;
      sequence = std::max(sequence, pending.operation.sequence);
      old.push_back(std::move(pending.operation.ticket));
    }
  }
  note_answered(sequence);  // their clients' reads need not wait for them any more
  for (Ticket& ticket : not_taken) {
    ticket.reply().error(
        "ERR the log takes nothing, its disk is full, too slow, or hangs: nothing was written");
    std::move(ticket).complete();
  }
  for (Ticket& ticket : old) {
    ticket.reply().error(
        "UNCERTAIN the durability level was not reached in time: whether the write counts is not "
        "known yet");
    std::move(ticket).complete();
  }
}

// --- the in-sync set -----------------------------------------------------------------------------

void Primary::in_sync_changed(const InSyncSet& set) {
  {
    Lock lock(parts_.journal);
    if (set.revision <= in_sync_.revision) return;
    in_sync_ = set;
    // A change that is under way and was not this one will be refused for its base.
    if (proposed_ && *proposed_ == set.members) proposed_.reset();
    change_uncertain_ = false;
  }
  progress();
}

/// At most one change at a time, by one member (P1, P2).
void Primary::tend_in_sync(Clock::time_point now) {
  std::vector<std::pair<Feeder::Snapshot, bool>> replicas;  // and whether it is alive
  for (const auto& feeder : feeders()) {
    auto status = feeder->snapshot();
    const bool alive = status.connected && status.state == Feeder::State::streaming &&
                       status.silent_for < parts_.replica_timeout;
    replicas.emplace_back(std::move(status), alive);
  }
  Membership::Change change;
  std::uint64_t number = 0;
  {
    Lock lock(parts_.journal);
    if (change_asked_ || now < change_again_at_) return;
    // What was acknowledged in earlier terms comes before this term's first entry.
    const std::uint64_t settled = std::max(settled_.load(std::memory_order_relaxed), first_index_);
    // Positions are a little old: compared with what had settled at the last look, or nobody would
    // ever be in time under load.
    const std::uint64_t earlier = std::exchange(settled_before_, settled);
    if (proposed_ && !change_uncertain_ && withdraw(replicas)) {
      proposed_.reset();
      return;
    }
    if (!proposed_) {
      std::vector<std::string> members = in_sync_.members;
      for (const auto& [status, alive] : replicas) {
        const bool is_member = in_sync_.contains(status.node);
        if (!is_member && alive && status.progress.memory >= earlier) {
          members.push_back(status.node);
          break;
        }
      }
      if (members.size() == in_sync_.members.size() && members.size() > parts_.min_in_sync) {
        for (const std::string& member : in_sync_.members) {
          if (member == parts_.self) continue;
          const auto found = std::ranges::find_if(
              replicas, [&](const auto& replica) { return replica.first.node == member; });
          const bool silent = found == replicas.end() || !found->first.connected ||
                              found->first.silent_for >= parts_.replica_timeout;
          if (silent && now >= silence_counts_from_) {
            std::erase(members, member);
            break;
          }
        }
      }
      std::ranges::sort(members);
      // A new cluster's set is written once more, unchanged, when a quorum has something: from then
      // on a member that has nothing is one that lost its disk.
      const bool to_stamp = parts_.elected && in_sync_.epoch == 0;
      if (members == in_sync_.members && !to_stamp) return;
      proposed_ = std::move(members);
      proposed_at_ = settled;
      change_uncertain_ = false;
    }
    // P2. From here on both sets have to agree, so what settles later is on both.
    parts_.journal.want_disk(lock, proposed_at_);
    disk_.store(std::max(disk_.load(std::memory_order_relaxed), proposed_at_),
                std::memory_order_relaxed);
    parts_.journal.submit_if_wanted(lock);
    progress_.clear();
    for (const auto& [status, alive] : replicas) progress_.push_back(status.progress);
    const Log& log = parts_.journal.log();
    const Reached next = count_acknowledgements(
        {parts_.self, log.last_index(), log.durable_index()}, progress_, *proposed_, nullptr);
    bool ready = next.at(Durability::quorum_disk) >= proposed_at_;
    for (const auto& [status, alive] : replicas) {
      const bool joins = std::ranges::find(*proposed_, status.node) != proposed_->end() &&
                         !in_sync_.contains(status.node);
      if (!joins) continue;
      if (!alive && !change_uncertain_) {  // gone again
        proposed_.reset();
        return;
      }
      if (status.progress.durable < proposed_at_) ready = false;
    }
    // A set that may be in force already is asked for until that is known.
    if (!ready && !change_uncertain_) return;
    change = {.epoch = epoch_, .base_revision = in_sync_.revision, .members = *proposed_};
    change_asked_ = true;
    number = ++change_number_;
  }
  // The answer may come from within the call.
  parts_.membership.request_in_sync(
      std::move(change), [weak = weak_from_this(), number](const Result<InSyncSet>& result) {
        if (const auto primary = weak.lock()) primary->change_done(number, result);
      });
}

/// Whether a proposal that was never asked for has lost its reason: who was to go is back.
bool Primary::withdraw(const std::vector<std::pair<Feeder::Snapshot, bool>>& replicas) const {
  return std::ranges::any_of(replicas, [&](const auto& replica) {
    const bool leaves = in_sync_.contains(replica.first.node) &&
                        std::ranges::find(*proposed_, replica.first.node) == proposed_->end();
    return leaves && replica.second;
  });
}

void Primary::change_done(std::uint64_t number, const Result<InSyncSet>& result) {
  {
    Lock lock(parts_.journal);
    if (number != change_number_) return;
    change_asked_ = false;
    change_again_at_ = Clock::now() + (result.ok() ? 0ms : 200ms);
    if (result.ok()) {
      if (result->revision > in_sync_.revision) in_sync_ = *result;
      proposed_.reset();
      change_uncertain_ = false;
      std::string names;
      for (const std::string& member : in_sync_.members)
        names += (names.empty() ? "" : ", ") + member;
      fmt::print(stderr, "sluice-kv: node {}: in sync are {}\n", parts_.self, names);
    } else if (result.status().code() == StatusCode::rejected ||
               result.status().code() == StatusCode::invalid_argument) {
      // Nothing was changed now; but maybe by an attempt before, and then in_sync_changed() will
      // tell: until then both sets count.
      if (!change_uncertain_) proposed_.reset();
      last_error_ = result.status().message();
    } else {
      // It may have been changed: both sets go on counting, and the same is asked for again.
      change_uncertain_ = true;
      last_error_ = result.status().message();
    }
  }
  progress();
}

// --- for people ----------------------------------------------------------------------------------

Primary::Info Primary::info() {
  Info out;
  const auto all = feeders();
  Lock lock(parts_.journal);
  out.phase = phase_.load(std::memory_order_relaxed);
  out.epoch = epoch_;
  out.in_sync = in_sync_.members;
  out.settled = settled_.load(std::memory_order_relaxed);
  out.waiting = pending_.size() + backlog_.size() + waiters_.size();
  out.last_error = last_error_;
  const std::uint64_t last = parts_.journal.log().last_index();
  for (const auto& feeder : all) {
    Info::Replica replica;
    replica.feeder = feeder->snapshot();
    replica.in_sync = in_sync_.contains(replica.feeder.node);
    const std::uint64_t has = std::min(last, replica.feeder.progress.memory);
    replica.lag_entries = last - has;
    replica.lag_bytes = parts_.journal.bytes_after(lock, has);
    out.replicas.push_back(std::move(replica));
  }
  return out;
}

std::uint64_t Primary::needed_from() {
  std::uint64_t from = parts_.journal.log().last_index() + 1;
  for (const auto& feeder : feeders()) {
    const auto status = feeder->snapshot();
    if (status.connected && status.next > 0) from = std::min(from, status.next);
  }
  return from;
}

}  // namespace sluice::kv
