// SPDX-License-Identifier: BSD-3-Clause
#include "poller.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "inside.hpp"

namespace sluice::detail {
namespace {

constexpr std::size_t kMailboxCapacity = 8192;
constexpr std::uint32_t kCommandsPerRound = 64;
/// Rounds between two looks at the cold sources while others are hot: each look is a system call.
constexpr std::uint32_t kColdCheckRounds = 16;
/// Events that are taken in one go when a source turns cold: a channel of many CQs may queue more.
constexpr std::uint32_t kEventsPerTurn = 64;
constexpr std::uint64_t kMailboxMark = ~std::uint64_t{0};

std::uint64_t mark_of(const SourceState& source) noexcept {
  return (std::uint64_t{source.generation} << 32) | source.slot;
}

}  // namespace

Poller::Poller(std::uint32_t index, const PollerConfig& config, topology::NodeMemory memory,
               std::vector<Pool*> pools, ControlPort& control, const DispatcherCallbacks& callbacks)
    : index_(index),
      wait_(config.wait),
      hot_rounds_(config.hot_rounds),
      batch_size_(config.batch_size),
      pools_(std::move(pools)),
      touched_pools_(pools_.size(), false),
      control_(control),
      callbacks_(callbacks),
      mailbox_(kMailboxCapacity),
      slots_(config.sources_max),
      batch_memory_(std::move(memory)) {
  hot_.reserve(config.sources_max);
  with_early_.reserve(config.sources_max);
  free_slots_.reserve(config.sources_max);
  for (std::uint32_t slot = config.sources_max; slot-- > 0;) free_slots_.push_back(slot);
  static_assert(std::is_trivially_destructible_v<Batch>, "they go with their memory");
  for (std::uint32_t i = 0; i < config.batch_count; ++i) {
    Batch* const batch = ::new (batch_memory_.bytes().data() + i * sizeof(Batch)) Batch;
    batch->poller = this;
    batch->next = std::exchange(free_batches_, batch);
  }
}

Poller::~Poller() {
  if (epoll_fd_ >= 0) ::close(epoll_fd_);
}

Status Poller::open() {
  SLUICE_RETURN_IF_ERROR(mailbox_.status());
  epoll_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kMailboxMark;
  if (epoll_fd_ < 0 || ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, mailbox_.fd(), &event) != 0) {
    return {StatusCode::resource_exhausted,
            "poller " + std::to_string(index_) + " could not make its epoll descriptor", errno};
  }
  return {};
}

// --- a round
// ---------------------------------------------------------------------------------------

std::size_t Poller::run_once() {
  owner_.check("a poller is driven by one thread; another one called it");
  const InsideRound inside;
  count_.rounds.add();
  std::size_t work = take_commands();
  if (check_cold_now_ || ++rounds_since_cold_check_ >= kColdCheckRounds) check_cold_sources();
  retry_removals();
  work += poll_hot_sources();
  // An idle round of a poller with nothing hot looks at the cold ones in the next one.
  if (work == 0 && hot_.empty()) check_cold_now_ = true;
  if (!with_early_.empty()) expire_early_completions();
  notify_pools();
  count_.hot_sources.set(hot_.size());
  return work;
}

std::size_t Poller::take_commands() {
  std::size_t taken = 0;
  PollerCommand command;
  while (taken < kCommandsPerRound && mailbox_.take(command)) {
    execute(command);
    ++taken;
  }
  count_.commands.add(taken);
  return taken;
}

std::size_t Poller::poll_hot_sources() {
  const std::uint64_t before = count_.completions.get();
  std::size_t put_off = 0;
  for (std::size_t i = 0; i < hot_.size();) {
    SourceState* const source = hot_[i];
    switch (poll_source(source)) {
      case Polled::some:
        source->empty_rounds = 0;
        source->woken = false;
        break;
      case Polled::empty:
        if (source->woken) {
          count_.empty_wakes.add();
          source->woken = false;
        }
        if (wait_ == WaitMode::event && source->empty_rounds++ >= hot_rounds_)
          try_turn_cold(source);
        break;
      case Polled::no_buffer: ++put_off; break;
      case Polled::failed: break;
    }
    if (i < hot_.size() && hot_[i] == source) ++i;  // else it left, and another took its place
  }
  short_of_buffers_ = put_off > 0 && put_off == hot_.size();
  return count_.completions.get() - before;
}

void Poller::check_cold_sources() {
  rounds_since_cold_check_ = 0;
  check_cold_now_ = false;
  if (ready_count_ == 0) {
    ready_count_ = ::epoll_wait(epoll_fd_, ready_.data(), static_cast<int>(ready_.size()), 0);
  }
  for (int i = 0; i < ready_count_; ++i) {
    const epoll_event& event = ready_[static_cast<std::size_t>(i)];
    if (event.data.u64 == kMailboxMark) {
      mailbox_.drain_fd();
      continue;
    }
    const auto slot = static_cast<std::uint32_t>(event.data.u64);
    const auto generation = static_cast<std::uint32_t>(event.data.u64 >> 32);
    SourceState* const source = slots_[slot].source;
    // The slot may have been reused since block(): such an event is stale, and no work.
    if (source == nullptr || source->generation != generation || source->heat != Heat::cold)
      continue;
    if ((event.events & EPOLLIN) == 0) {
      fail(source, SourceFault::device_removed, 0);
      continue;
    }
    source->woken = true;
    turn_hot(source);
  }
  ready_count_ = 0;
}

void Poller::retry_removals() {
  std::erase_if(removals_, [this](const PollerCommand& command) { return try_remove(command); });
}

void Poller::notify_pools() {
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    if (!touched_pools_[i]) continue;
    touched_pools_[i] = false;
    pools_[i]->parking.notify_published();
  }
}

// --- waiting
// ---------------------------------------------------------------------------------------

bool Poller::prepare_to_wait() {
  owner_.check("a poller is driven by one thread; another one wanted to wait for it");
  if (wait_ == WaitMode::busy) return false;
  if (!hot_.empty() && !short_of_buffers_) return false;
  if (!removals_.empty() && !short_of_buffers_) return false;
  if (!mailbox_.prepare_to_sleep()) return false;
  if (short_of_buffers_) {
    starved_.store(true, std::memory_order_seq_cst);  // (1) pairs with (2) in wake_if_starved()
    bool returned = false;
    const auto collect = [&returned](auto& stack, auto*& free_list, std::uint32_t* count) {
      for (auto* node = stack.take_all_ordered(); node != nullptr; returned = true) {
        auto* const next = node->next;
        node->next = std::exchange(free_list, node);
        if (count != nullptr) ++*count;
        node = next;
      }
    };
    collect(returned_, free_batches_, nullptr);
    for (SourceState* source : hot_) {
      collect(source->returned, source->free_segments, &source->free_segment_count);
    }
    if (returned) {
      starved_.store(false, std::memory_order_relaxed);
      mailbox_.finish_sleep();
      return false;
    }
  }
  asleep_.store(true, std::memory_order_seq_cst);
  count_.sleeps.add();
  return true;
}

void Poller::block() noexcept {
  ready_count_ =
      std::max(0, ::epoll_wait(epoll_fd_, ready_.data(), static_cast<int>(ready_.size()), -1));
}

void Poller::finish_wait() {
  owner_.check("a poller is driven by one thread; another one finished its wait");
  mailbox_.finish_sleep();
  starved_.store(false, std::memory_order_relaxed);
  asleep_.store(false, std::memory_order_seq_cst);  // before the look in note_wake()
  control_.note_wake();
  check_cold_now_ = true;
  count_.wakes.add();
}

// --- commands
// --------------------------------------------------------------------------------------

void Poller::execute(const PollerCommand& command) {
  switch (command.kind) {
    case PollerCommand::Kind::none: break;
    case PollerCommand::Kind::add_source: add_source(command.source); break;
    case PollerCommand::Kind::add_connection:
      add_connection(command.source, command.connection);
      break;
    case PollerCommand::Kind::fail_source:
      if (command.source->heat == Heat::hot || command.source->heat == Heat::cold) {
        fail(command.source, SourceFault::cq_error, 0);
      }
      break;
    case PollerCommand::Kind::remove_source:
    case PollerCommand::Kind::remove_connection:
      if (!try_remove(command)) removals_.push_back(command);
      break;
  }
}

void Poller::add_source(SourceState* source) {
  SLUICE_CHECK(!free_slots_.empty(), "more sources than sources_max");  // admission counts them
  source->slot = free_slots_.back();
  free_slots_.pop_back();
  source->generation = ++slots_[source->slot].generation;
  slots_[source->slot].source = source;
  source->polled_for_good = source->source->wait_fd() < 0;
  count_.sources.add();
  // Hot first: what completed before it came here has no event of its own (W2).
  source->heat = Heat::hot;
  source->empty_rounds = 0;
  hot_.push_back(source);
}

void Poller::add_connection(SourceState* source, ConnectionState* connection) {
  source->queue_pairs->insert(connection->qp_num, connection);
  // What came before it was known goes first, in its order.
  auto& early = source->early;
  const auto mine = std::stable_partition(early.begin(), early.end(), [&](const ibv_wc& wc) {
    return wc.qp_num != connection->qp_num;
  });
  // No more than kBatchSize may be open at once; there is a segment for each completion held.
  for (auto at = mine; at != early.end();) {
    const auto count = std::min<std::ptrdiff_t>(kBatchSize, early.end() - at);
    route(source, {&*at, static_cast<std::size_t>(count)});
    at += count;
  }
  early.erase(mine, early.end());
  if (early.empty()) std::erase(with_early_, source);
  source->pending_setups.fetch_sub(1, std::memory_order_seq_cst);
}

bool Poller::try_remove(const PollerCommand& command) {
  SourceState* const source = command.source;
  if (!poll_to_empty(source)) {
    if (source->heat == Heat::cold)
      turn_hot(source);  // among those that a starved poller waits for
    return false;
  }
  if (command.kind == PollerCommand::Kind::remove_connection) {
    ConnectionState* const connection = command.connection;
    source->queue_pairs->erase(connection->qp_num, connection);
    connection->removed.store(true, std::memory_order_seq_cst);
  } else {
    forget(source);
    source->removed.store(true, std::memory_order_seq_cst);
  }
  control_.poke();  // from here on neither may be touched
  return true;
}

/// Takes all that was in the source's CQs when it was called (what arrives meanwhile need not be
/// waited for: under load a shared CQ may never be empty). False: no buffer is free.
bool Poller::poll_to_empty(SourceState* source) {
  if (source->heat == Heat::failed || source->heat == Heat::gone) return true;
  const std::uint64_t enough = count_.completions.get() + source->source->capacity();
  for (;;) {  // bound: the source's capacity
    switch (poll_source(source)) {
      case Polled::empty:
      case Polled::failed: return true;
      case Polled::no_buffer: return false;
      case Polled::some:
        if (count_.completions.get() >= enough) return true;
        break;
    }
  }
}

void Poller::forget(SourceState* source) {
  if (source->heat == Heat::gone) return;  // the attach failed before the poller heard of it
  if (source->heat == Heat::hot) remove_from_hot(source);
  if (source->heat == Heat::cold) {
    ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, source->source->wait_fd(), nullptr);
  }
  if (!source->early.empty()) {
    std::erase(with_early_, source);
    for (const ibv_wc& wc : source->early) orphan(source, wc);
    source->early.clear();
  }
  source->heat = Heat::gone;
  slots_[source->slot].source = nullptr;
  free_slots_.push_back(source->slot);
  count_.sources.set(count_.sources.get() - 1);
}

// --- polling
// ---------------------------------------------------------------------------------------

Poller::Polled Poller::poll_source(SourceState* source) {
  switch (source->options.order) {
    case Order::none: return poll_into_batch(source);
    case Order::per_connection: return poll_into_lanes(source);
    case Order::inlined: return poll_inline(source);
  }
  return Polled::failed;
}

Poller::Polled Poller::poll_into_batch(SourceState* source) {
  Batch* const batch = take_batch();
  if (batch == nullptr) {
    count_.backpressure.add();
    return Polled::no_buffer;
  }
  const std::uint32_t count = poll_and_check(source, {batch->completions, batch_size_});
  if (count == 0) {
    batch->next = std::exchange(free_batches_, batch);
    return source->heat == Heat::failed ? Polled::failed : Polled::empty;
  }
  batch->source = source;
  batch->count = inspect(source, {batch->completions, count});
  if (batch->count == 0) {
    batch->next = std::exchange(free_batches_, batch);
    return Polled::some;
  }
  source->handover.hand(batch->count);
  SLUICE_CHECK(source->pool->batches[index_]->push(batch),
               "a batch ring is shorter than the batches");
  touched_pools_[source->pool->index] = true;
  return Polled::some;
}

Poller::Polled Poller::poll_into_lanes(SourceState* source) {
  const std::uint32_t room = std::min(batch_size_, free_segments(source));
  if (room == 0) {
    count_.backpressure.add();
    return Polled::no_buffer;
  }
  const std::uint32_t count = poll_and_check(source, {scratch_.data(), room});
  if (count == 0) return source->heat == Heat::failed ? Polled::failed : Polled::empty;
  route(source, {scratch_.data(), inspect(source, {scratch_.data(), count})});
  return Polled::some;
}

Poller::Polled Poller::poll_inline(SourceState* source) {
  const std::uint32_t count = poll_and_check(source, {scratch_.data(), batch_size_});
  if (count == 0) return source->heat == Heat::failed ? Polled::failed : Polled::empty;
  const std::uint32_t left = inspect(source, {scratch_.data(), count});
  if (left > 0) run_inline(source, {scratch_.data(), left});
  return Polled::some;
}

std::uint32_t Poller::poll_and_check(SourceState* source, std::span<ibv_wc> out) {
  const PollOutcome outcome = source->source->poll(out);
  count_.polls.add();
  if (outcome.count == 0) {
    count_.empty_polls.add();
  } else {
    count_.batches.add();
    count_.completions.add(outcome.count);
  }
  if (outcome.fault != SourceFault::none) [[unlikely]]
    fail(source, outcome.fault, outcome.error);
  return outcome.count;
}

/// Makes failed completions safe to read, tells of them, and takes the drain marker out. Returns
/// how many are left.
std::uint32_t Poller::inspect(SourceState* source, std::span<ibv_wc> completions) {
  std::uint32_t kept = 0;
  for (ibv_wc& wc : completions) {
    if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
      clear_invalid_fields(wc);
      if (source->drain_marker != 0 && wc.wr_id == source->drain_marker) {
        source->source->retire({&wc, 1});
        source->connection->marker_seen.store(true, std::memory_order_seq_cst);
        control_.poke();
        continue;
      }
      ConnectionState* connection = source->connection;
      if (connection == nullptr && source->queue_pairs)
        connection = source->queue_pairs->find(wc.qp_num);
      if (connection != nullptr) note_failed(connection);
    }
    if (&wc != &completions[kept]) completions[kept] = wc;
    ++kept;
  }
  return kept;
}

void Poller::note_failed(ConnectionState* connection) {
  if (connection->failure_reported.exchange(true, std::memory_order_relaxed)) return;
  ControlNote note;
  note.kind = ControlNote::Kind::connection_failed;
  note.connection = connection->id;
  // Full: the next failed completion tells; the connection manager's event will in any case.
  if (!control_.post(note)) connection->failure_reported.store(false, std::memory_order_relaxed);
}

void Poller::run_inline(SourceState* source, std::span<const ibv_wc> completions) {
  BatchInfo info;
  info.source = source->id;
  info.connection = source->connection != nullptr ? source->connection->id : ConnectionId::none;
  info.context = source->options.context;
  info.poller = index_;
  info.worker = BatchInfo::kOnPoller;
  info.receive_pool = source->options.receive_pool;
  handler_source_.store(source->id, std::memory_order_relaxed);
  const std::uint64_t sequence = handler_sequence_.load(std::memory_order_relaxed);
  handler_sequence_.store(sequence + 1, std::memory_order_relaxed);
  const auto count = static_cast<std::uint32_t>(completions.size());
  source->handover.hand(count);
  source->handler(completions, info);
  handler_sequence_.store(sequence + 2, std::memory_order_relaxed);
  source->source->retire(completions);
  source->handover.finish(count);
}

// --- lanes
// -----------------------------------------------------------------------------------------

/// Copies completions (at most kBatchSize) into segments of their connections' lanes: the one copy
/// that an ordered completion costs.
void Poller::route(SourceState* source, std::span<const ibv_wc> completions) {
  if (source->connection != nullptr) {
    for (const ibv_wc& wc : completions) append(source, source->connection, wc);
  } else {
    ConnectionState* connection = nullptr;
    for (const ibv_wc& wc : completions) {
      if (connection == nullptr || connection->qp_num != wc.qp_num) {
        connection = source->queue_pairs->find(wc.qp_num);
      }
      if (connection != nullptr) {
        append(source, connection, wc);
      } else {
        hold_or_orphan(source, wc);
      }
    }
  }
  flush_lanes(source);
}

void Poller::append(SourceState* source, ConnectionState* connection, const ibv_wc& wc) {
  // A connection's own CQ and the receive CQ it shares may belong to two pollers: each has its own.
  OpenSegments& open = source->connection != nullptr ? source->open : connection->open;
  Segment* segment = open.last;
  if (segment == nullptr || segment->count == kSegmentSize) {
    Segment* const fresh = take_segment(source);
    SLUICE_CHECK(fresh != nullptr, "a source was polled without a segment for each completion");
    fresh->connection = connection;
    fresh->count = 0;
    fresh->next = nullptr;
    if (segment == nullptr) {
      open.first = fresh;
      open_lanes_[open_lane_count_++] = connection;
    } else {
      segment->next = fresh;
    }
    open.last = segment = fresh;
  }
  segment->completions[segment->count++] = wc;
}

void Poller::flush_lanes(SourceState* source) {
  for (std::uint32_t i = 0; i < open_lane_count_; ++i) {
    ConnectionState* const connection = open_lanes_[i];
    const bool own = source->connection != nullptr;
    const OpenSegments segments =
        std::exchange(own ? source->open : connection->open, OpenSegments{});
    Handover& handover = own ? source->handover : connection->receives;
    for (Segment* segment = segments.first; segment != nullptr; segment = segment->next) {
      handover.hand(segment->count);
    }
    Pool* const pool = source->pool;
    Lane* const lane = &connection->lane;
    if (lane->queue.push_chain(segments.first, segments.last)) pool->schedule(lane);
    touched_pools_[pool->index] = true;
  }
  open_lane_count_ = 0;
}

void Poller::hold_or_orphan(SourceState* source, const ibv_wc& wc) {
  if (source->pending_setups.load(std::memory_order_seq_cst) == 0 ||
      source->early.size() == source->early.capacity()) {
    orphan(source, wc);
    return;
  }
  if (source->early.empty()) with_early_.push_back(source);
  source->early.push_back(wc);
  count_.early.add();
}

void Poller::orphan(SourceState* source, const ibv_wc& wc) {
  count_.orphans.add();
  ReceivePool* const pool = source->options.receive_pool;
  const bool ours = pool != nullptr && pool->owns(wc.wr_id);
  // Its buffer goes back, or the queue would run dry (R5).
  if (callbacks_.on_orphans) {
    callbacks_.on_orphans(source->id, {&wc, 1});
    if (ours) pool->reclaim(wc);
  } else if (ours) {
    pool->take(wc).release();
  }
  source->source->retire({&wc, 1});
}

/// Nothing is being set up any more: what is still held belongs to nobody.
void Poller::expire_early_completions() {
  std::erase_if(with_early_, [this](SourceState* source) {
    // An attach counts as a pending set-up until its command is executed, so none is overtaken
    // here.
    if (source->pending_setups.load(std::memory_order_seq_cst) > 0) return source->early.empty();
    for (const ibv_wc& wc : source->early) orphan(source, wc);
    source->early.clear();
    short_of_buffers_ = false;  // what was kept for them is free again
    return true;
  });
}

// --- temperature
// -----------------------------------------------------------------------------------

void Poller::turn_hot(SourceState* source) {
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, source->source->wait_fd(), nullptr);
  source->heat = Heat::hot;
  source->empty_rounds = 0;
  hot_.push_back(source);
  count_.turned_hot.add();
}

/// Consume every queued event, which re-arms; poll to empty, since arming takes no notice of what
/// is already there; only then may the source be slept on (INV-ARM, INV-EMPTY).
void Poller::try_turn_cold(SourceState* source) {
  if (source->polled_for_good) return;
  for (std::uint32_t i = 0;; ++i) {
    const EventOutcome event = source->source->consume_event();
    if (event.kind == EventOutcome::Kind::none) break;
    if (event.kind == EventOutcome::Kind::failed) {
      fail(source, event.fault, event.error);
      return;
    }
    count_.events.add();
    if (i == kEventsPerTurn) return;  // busy after all
  }
  if (poll_source(source) != Polled::empty) {
    source->empty_rounds = 0;
    return;
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = mark_of(*source);
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, source->source->wait_fd(), &event) != 0) {
    source->polled_for_good = true;
    return;
  }
  remove_from_hot(source);
  source->heat = Heat::cold;
  count_.turned_cold.add();
}

void Poller::remove_from_hot(SourceState* source) {
  const auto at = std::find(hot_.begin(), hot_.end(), source);
  if (at == hot_.end()) return;
  *at = hot_.back();
  hot_.pop_back();
}

/// A re-arm that failed leaves a source that can still be polled, for good; any other fault ends
/// it.
void Poller::fail(SourceState* source, SourceFault fault, int error) {
  if (fault == SourceFault::rearm_failed) {
    if (source->polled_for_good) return;
    source->polled_for_good = true;
  } else {
    if (source->heat == Heat::hot) remove_from_hot(source);
    if (source->heat == Heat::cold) {
      ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, source->source->wait_fd(), nullptr);
    }
    source->heat = Heat::failed;
    source->dead.store(true, std::memory_order_seq_cst);
  }
  count_.failed_sources.add();
  ControlNote note;
  note.kind = ControlNote::Kind::source_failed;
  note.fault = fault;
  note.error = error;
  note.source = source->id;
  SLUICE_CHECK(control_.post(note), "more source faults than sources");  // at most two a source
  control_.poke();
}

// --- buffers
// ---------------------------------------------------------------------------------------

Batch* Poller::take_batch() {
  if (free_batches_ == nullptr) free_batches_ = returned_.take_all();
  Batch* const batch = free_batches_;
  if (batch != nullptr) free_batches_ = batch->next;
  return batch;
}

std::uint32_t Poller::free_segments(SourceState* source) {
  // What is held early will need its segments, too.
  const auto held = static_cast<std::uint32_t>(source->early.size());
  if (source->free_segment_count < held + kBatchSize) {
    for (Segment* segment = source->returned.take_all(); segment != nullptr;) {
      Segment* const next = segment->next;
      segment->next = std::exchange(source->free_segments, segment);
      ++source->free_segment_count;
      segment = next;
    }
  }
  return source->free_segment_count > held ? source->free_segment_count - held : 0;
}

Segment* Poller::take_segment(SourceState* source) {
  Segment* const segment = source->free_segments;
  if (segment != nullptr) {
    source->free_segments = segment->next;
    --source->free_segment_count;
  }
  return segment;
}

PollerCounters Poller::counters() const noexcept {
  PollerCounters out;
  out.rounds = count_.rounds.get();
  out.polls = count_.polls.get();
  out.empty_polls = count_.empty_polls.get();
  out.completions = count_.completions.get();
  out.batches = count_.batches.get();
  out.sleeps = count_.sleeps.get();
  out.wakes = count_.wakes.get();
  out.events = count_.events.get();
  out.empty_wakes = count_.empty_wakes.get();
  out.turned_cold = count_.turned_cold.get();
  out.turned_hot = count_.turned_hot.get();
  out.backpressure = count_.backpressure.get();
  out.commands = count_.commands.get();
  out.early = count_.early.get();
  out.orphans = count_.orphans.get();
  out.failed_sources = count_.failed_sources.get();
  out.inline_stalls = inline_stalls_.load(std::memory_order_relaxed);
  out.sources = count_.sources.get();
  out.hot_sources = count_.hot_sources.get();
  return out;
}

}  // namespace sluice::detail
