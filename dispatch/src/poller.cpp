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
/// Polls between two looks at the cold sources while others are hot: each look is a system call.
constexpr std::uint32_t kColdCheckPolls = 64;
/// And at least so long between them: 64 polls may take no longer than the system call, and what is
/// cold would wait about as long to be woken for.
constexpr std::chrono::microseconds kColdCheckInterval{20};
/// Events that are taken in one go when a source turns cold: a channel of many CQs may queue more.
constexpr std::uint32_t kEventsPerTurn = 64;
/// Data of descriptors that are no source's; no source has these generations and slots.
constexpr std::uint64_t kMailboxMark = ~std::uint64_t{0};
constexpr std::uint64_t kProbeMark = kMailboxMark - 1;

std::uint64_t mark_of(const SourceState& source) noexcept {
  return (std::uint64_t{source.generation} << 32) | source.slot;
}

WaitController::Settings controller_settings(std::uint32_t index, const PollerConfig& config) {
  WaitController::Settings settings;
  if (config.latency_target.count() > 0) settings.latency_target_ns = config.latency_target.count();
  if (config.cpu_cap < 1) settings.cpu_cap = config.cpu_cap;
  settings.seed = index + std::uint64_t{1};
  return settings;
}

}  // namespace

Poller::Poller(std::uint32_t index, const PollerConfig& config, topology::NodeMemory memory,
               const std::vector<Pool*>& pools, ControlPort& control,
               const DispatcherCallbacks& callbacks,
               const std::function<std::chrono::steady_clock::time_point()>& clock)
    : index_(index),
      wait_(config.wait),
      hot_rounds_(config.hot_rounds),
      batch_size_(config.batch_size),
      segment_size_(std::min(config.batch_size, kSegmentSize)),
      lent_max_(config.batch_count / 2),
      control_(control),
      callbacks_(callbacks),
      mailbox_(kMailboxCapacity),
      slots_(config.sources_max),
      clock_(clock),
      controller_(controller_settings(index, config)),
      batch_memory_(std::move(memory)) {
  hot_.reserve(config.sources_max);
  with_early_.reserve(config.sources_max);
  to_unwatch_.reserve(ready_.size());
  free_slots_.reserve(config.sources_max);
  for (std::uint32_t slot = config.sources_max; slot-- > 0;) free_slots_.push_back(slot);
  static_assert(std::is_trivially_destructible_v<Batch>, "they go with their memory");
  free_batches_.reserve(config.batch_count + 1);
  for (std::uint32_t i = 0; i <= config.batch_count; ++i) {
    Batch* const batch = ::new (batch_memory_.bytes().data() + i * sizeof(Batch)) Batch;
    batch->poller = this;
    batch->completions = batch->storage;
    free_batches_.push_back(batch);
  }
  scratch_ = take_batch();
  for (const Pool* pool : pools) open_keys_.emplace_back(pool->config.key_lanes);
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
  event.data.u64 = kProbeMark;
  // Without a timer the cost of a wake stays what it is guessed to be.
  if (wait_ == WaitMode::adaptive && probe_.open())
    ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, probe_.fd(), &event);
  return {};
}

void Poller::give_way() noexcept {
  controller_.cap_limit(WaitController::kSharedLimitMax);
}

// --- a round
// ---------------------------------------------------------------------------------------

std::size_t Poller::run_once() {
  owner_.check("a poller is driven by one thread; another one called it");
  const InsideRound inside;
  count_.rounds.add();
  if (just_woken_) pre_wake_workers();
  std::size_t work = take_commands();
  if (check_cold_now_ || polls_since_cold_check_ >= kColdCheckPolls) check_cold_sources();
  if (!put_off_.empty()) [[unlikely]]
    retry_put_off();
  for (std::uint32_t pass = 0; pass < kPassesMax && tally_.polls < kRoundPollsMax; ++pass) {
    const std::size_t brought = poll_hot_sources();
    if (brought == 0) break;
    work += brought;
  }
  if (!to_unwatch_.empty()) unwatch_hot_sources();
  settle_tally();
  // An idle round of a poller with nothing hot looks at the cold ones in the next one.
  if (work == 0 && hot_.empty()) check_cold_now_ = true;
  if (!with_early_.empty()) [[unlikely]]
    expire_early_completions();
  count_.hot_sources.set(hot_.size());
  found_ = work > 0;
  if (found_ && controller_.is_idle()) end_gap();
  return work;
}

void Poller::settle_tally() {
  const Tally tally = std::exchange(tally_, Tally{});
  polls_since_cold_check_ += tally.polls;
  count_.polls.add(tally.polls);
  count_.empty_polls.add(tally.polls - tally.batches);
  count_.batches.add(tally.batches);
  count_.completions.add(tally.completions);
}

std::size_t Poller::take_commands() {
  std::size_t taken = 0;
  PollerCommand command;
  while (taken < kCommandsPerRound && mailbox_.take(command)) {
    execute(command);
    ++taken;
  }
  if (taken > 0) count_.commands.add(taken);
  return taken;
}

std::size_t Poller::poll_hot_sources() {
  std::size_t brought = 0;
  std::size_t put_off = 0;
  for (std::size_t i = 0; i < hot_.size();) {
    SourceState* const source = hot_[i];
    const Poll poll = poll_source(source);
    brought += poll.count;
    if (poll.brought == Polled::some) [[likely]] {
      source->empty_rounds = 0;
      source->woken = false;
    } else if (poll.brought == Polled::empty) {
      brought += found_empty(source);
    } else {
      put_off += poll.brought == Polled::no_buffer ? 1 : 0;
    }
    if (i < hot_.size() && hot_[i] == source) [[likely]]
      ++i;  // else it left, and another took its place
  }
  short_of_buffers_ = put_off > 0 && put_off == hot_.size();
  cooling_ = false;
  return brought;
}

/// Returns what it brought after all.
std::uint32_t Poller::found_empty(SourceState* source) {
  if (source->woken) {
    count_.empty_wakes.add();
    source->woken = false;
  }
  return turns_cold(source) ? try_turn_cold(source) : 0;
}

void Poller::check_cold_sources() {
  polls_since_cold_check_ = 0;
  if (!std::exchange(check_cold_now_, false)) {
    if (cold_ == 0) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_cold_check_ < kColdCheckInterval) return;
    last_cold_check_ = now;
  }
  if (ready_count_ == 0) {
    ready_count_ = ::epoll_wait(epoll_fd_, ready_.data(), static_cast<int>(ready_.size()), 0);
  }
  for (int i = 0; i < ready_count_; ++i) {
    const epoll_event& event = ready_[static_cast<std::size_t>(i)];
    if (event.data.u64 == kMailboxMark) {
      mailbox_.drain_fd();
      continue;
    }
    SourceState* const source = cold_source_of(event);
    if (source == nullptr) continue;  // stale, and no work
    if ((event.events & EPOLLIN) == 0) {
      fail(source, SourceFault::device_removed, 0);
      continue;
    }
    source->woken = true;
    turn_hot(source);
    to_unwatch_.push_back(source);
  }
  ready_count_ = 0;
  if (cooled_for_ns_ != 0) {
    controller_.note_block_overhead(cooled_for_ns_ + steady_ns() - woken_at_ns_);
    cooled_for_ns_ = 0;
  }
}

/// The slot may have been reused since block(): nullptr, such an event is stale.
SourceState* Poller::cold_source_of(const epoll_event& event) const noexcept {
  if (event.data.u64 >= kProbeMark) return nullptr;
  const auto slot = static_cast<std::uint32_t>(event.data.u64);
  const auto generation = static_cast<std::uint32_t>(event.data.u64 >> 32);
  SourceState* const source = slots_[slot].source;
  return source != nullptr && source->generation == generation && source->heat == Heat::cold
             ? source
             : nullptr;
}

/// Of each pool that a cold source with an event belongs to, one: it wakes while this thread polls.
void Poller::pre_wake_workers() noexcept {
  just_woken_ = false;
  if (ready_count_ == 0) {  // the host slept, on the descriptor
    ready_count_ =
        std::max(0, ::epoll_wait(epoll_fd_, ready_.data(), static_cast<int>(ready_.size()), 0));
  }
  const Pool* last = nullptr;
  for (int i = 0; i < ready_count_; ++i) {
    const epoll_event& event = ready_[static_cast<std::size_t>(i)];
    const SourceState* const source = cold_source_of(event);
    if (source == nullptr || (event.events & EPOLLIN) == 0) continue;
    if (source->options.order == Order::inlined || source->pool == last) continue;
    last = source->pool;
    if ((source->pool->standby.load(std::memory_order_relaxed) >> index_ & 1) != 0) continue;
    if (source->pool->parking.pre_wake()) count_.pre_wakes.add();
  }
}

/// Whether one of the first `among` that were put off is of the same connection: it goes first.
bool Poller::waits(const PollerCommand& command, std::size_t among) const noexcept {
  const auto first = put_off_.begin();
  return command.connection != nullptr &&
         std::any_of(first, first + static_cast<std::ptrdiff_t>(among), [&](const PutOff& other) {
           return other.command.connection == command.connection;
         });
}

void Poller::retry_put_off() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < put_off_.size(); ++i) {
    PutOff of = put_off_[i];
    if (waits(of.command, kept) || !try_execute(of)) put_off_[kept++] = of;
  }
  put_off_.resize(kept);
}

// --- waiting
// ---------------------------------------------------------------------------------------

/// A source that was polled and is empty.
bool Poller::turns_cold(SourceState* source) noexcept {
  switch (wait_) {
    case WaitMode::busy: return false;
    case WaitMode::event: return source->empty_rounds++ >= hot_rounds_;
    case WaitMode::adaptive:
      // Empty rounds of all do not count: then it is the gap that decides, for all.
      return cooling_ || (found_ && source->empty_rounds++ >= hot_rounds_);
  }
  return false;
}

/// After a round. The spin budget is asked about here and not in the round, since a host need not
/// sleep at all.
bool Poller::goes_on_spinning() noexcept {
  if (found_) return true;
  const std::int64_t now = now_ns();
  if (controller_.idle(now)) return true;
  if (hot_.empty() || short_of_buffers_) return false;
  cooling_ = true;
  cooling_since_ns_ = steady_ns();
  return true;
}

/// A round has brought something: completions or a command, nothing else counts (S2).
void Poller::end_gap() noexcept {
  cooling_since_ns_ = 0;
  controller_.worked(now_ns());
  const WaitController::Counters& counters = controller_.counters();
  count_.spins_found.set(counters.found_spinning);
  count_.spun_ns.set(counters.spun_ns);
  count_.spun_in_vain_ns.set(counters.wasted_ns);
  count_.spin_capped.set(counters.capped);
  count_.wake_cost_ns.set(static_cast<std::uint64_t>(controller_.wake_cost_ns()));
  count_.spin_limit_ns.set(static_cast<std::uint64_t>(controller_.spin_limit_ns()));
}

std::int64_t Poller::now_ns() const {
  if (!clock_) return steady_ns();
  return std::chrono::nanoseconds(clock_().time_since_epoch()).count();
}

bool Poller::prepare_to_wait() {
  owner_.check("a poller is driven by one thread; another one wanted to wait for it");
  if (wait_ == WaitMode::busy) return false;
  if (wait_ == WaitMode::adaptive && goes_on_spinning()) return false;
  if (!hot_.empty() && !short_of_buffers_) return false;
  if (!put_off_.empty() && !short_of_buffers_) return false;
  if (!mailbox_.prepare_to_sleep()) return false;
  if (short_of_buffers_) {
    starved_.store(true, std::memory_order_seq_cst);  // (1) pairs with (2) in wake_if_starved()
    bool returned = false;
    for (const SpmcRing<Parcel*>* ring : returns_) returned |= !ring->empty_seq_cst();
    for (SourceState* source : hot_) {
      returned |= collect_segments(source, source->returned.take_all_ordered());
    }
    if (returned) {
      collect_batches();
      starved_.store(false, std::memory_order_relaxed);
      mailbox_.finish_sleep();
      return false;
    }
  }
  asleep_.store(true, std::memory_order_seq_cst);
  count_.sleeps.add();
  if (wait_ == WaitMode::adaptive) {
    controller_.blocked(now_ns());
    if (cooling_since_ns_ != 0) cooled_for_ns_ = steady_ns() - cooling_since_ns_;
    cooling_since_ns_ = 0;
  }
  return true;
}

void Poller::block() noexcept {
  for (;;) {  // bound: as many probes as a measurement takes; then there is none for a second
    const bool probing = wait_ == WaitMode::adaptive && probe_.begin();
    ready_count_ =
        std::max(0, ::epoll_wait(epoll_fd_, ready_.data(), static_cast<int>(ready_.size()), -1));
    if (!probing) return;
    const auto latency_ns = probe_.finish();
    if (latency_ns) controller_.note_wake_latency(*latency_ns);
    const bool by_probe = ready_count_ == 1 && ready_[0].data.u64 == kProbeMark;
    if (!by_probe) return;
    ready_count_ = 0;
  }
}

void Poller::finish_wait() {
  owner_.check("a poller is driven by one thread; another one finished its wait");
  mailbox_.finish_sleep();
  starved_.store(false, std::memory_order_relaxed);
  asleep_.store(false, std::memory_order_seq_cst);  // before the look in note_wake()
  control_.note_wake();
  check_cold_now_ = just_woken_ = true;
  count_.wakes.add();
  if (wait_ != WaitMode::adaptive) return;
  controller_.woke(now_ns());
  woken_at_ns_ = steady_ns();
}

// --- commands
// --------------------------------------------------------------------------------------

void Poller::execute(const PollerCommand& command) {
  switch (command.kind) {
    case PollerCommand::Kind::none: break;
    case PollerCommand::Kind::add_source: add_source(command.source); break;
    case PollerCommand::Kind::fail_source:
      if (command.source->heat == Heat::hot || command.source->heat == Heat::cold) {
        fail(command.source, SourceFault::cq_error, 0);
      }
      break;
    case PollerCommand::Kind::add_connection:
    case PollerCommand::Kind::remove_source:
    case PollerCommand::Kind::remove_connection: {
      PutOff of{command, command.source->source->capacity()};
      if (waits(command, put_off_.size()) || !try_execute(of)) put_off_.push_back(of);
      break;
    }
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

/// False: no buffer is free for what it would have to hand over.
bool Poller::try_execute(PutOff& of) {
  const PollerCommand& command = of.command;
  if (command.kind == PollerCommand::Kind::add_connection) {
    return add_connection(command.source, command.connection);
  }
  return try_remove(of);
}

[[gnu::always_inline]] inline void Poller::publish(SourceState* source, Parcel* batch,
                                                   std::uint32_t count, bool sorted) {
  // Written only if it changes: the worker has this line in its cache.
  if (batch->stream != &source->stream) batch->stream = &source->stream;
  source->stream.handover.hand(count);
  Pool* const pool = source->pool;
  SLUICE_CHECK(
      pool->batches[index_]->append(BatchTicket(static_cast<Batch*>(batch), count, sorted)),
      "a batch ring is shorter than the batches");
  // Who is seen asleep is woken now; who is on the way to sleep is so after announce().
  pool->parking.notify_if_seen();
}

/// After any number of publish().
inline void Poller::announce(const SourceState* source) {
  source->pool->batches[index_]->announce();
  source->pool->parking.notify_published();
}

bool Poller::add_connection(SourceState* source, ConnectionState* connection) {
  // What came before it was known goes first, in its order.
  auto& early = source->early;
  const auto mine = std::stable_partition(early.begin(), early.end(), [&](const ibv_wc& wc) {
    return wc.qp_num != connection->qp_num;
  });
  if (source->lanes_needed) source->queue_pairs->insert(connection->qp_num, connection);
  // No more than kBatchSize may be open at once; there is a segment for each completion held.
  auto at = mine;
  while (at != early.end()) {
    const auto count = std::min<std::ptrdiff_t>(kBatchSize, early.end() - at);
    const std::span<const ibv_wc> completions{&*at, static_cast<std::size_t>(count)};
    if (source->lanes_needed) {
      route(source, completions);
      publish_lanes(source);
    } else {
      // If more is held than batches are free, the rest waits, and what comes meanwhile behind it.
      Parcel* const batch = take_batch();
      if (batch == nullptr) break;
      std::copy(completions.begin(), completions.end(), batch->completions);
      connection->receives.handover.hand(static_cast<std::uint32_t>(count));
      static_cast<Batch*>(batch)->groups[0] =
          connection->receives.group(static_cast<std::uint32_t>(count));
      publish(source, batch, static_cast<std::uint32_t>(count), true);
    }
    at += count;
  }
  if (!source->lanes_needed && at != mine) announce(source);
  const bool all = at == early.end();
  early.erase(mine, at);
  if (!all) return false;
  if (!source->lanes_needed) source->queue_pairs->insert(connection->qp_num, connection);
  if (early.empty()) std::erase(with_early_, source);
  source->pending_setups.fetch_sub(1, std::memory_order_seq_cst);
  return true;
}

bool Poller::try_remove(PutOff& of) {
  const PollerCommand& command = of.command;
  SourceState* const source = command.source;
  if (!poll_to_empty(source, of.left)) {
    if (source->heat == Heat::cold) {
      turn_hot(source);  // among those that a starved poller waits for
      unwatch(source);
    }
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
bool Poller::poll_to_empty(SourceState* source, std::uint32_t& left) {
  while (left > 0 && source->heat != Heat::failed && source->heat != Heat::gone) {
    const Poll poll = poll_source(source);
    if (poll.brought == Polled::no_buffer) return false;
    if (poll.brought != Polled::some) return true;
    left -= std::min(left, poll.count);
  }
  return true;
}

void Poller::forget(SourceState* source) {
  if (source->heat == Heat::gone) return;  // the attach failed before the poller heard of it
  if (source->heat == Heat::hot) remove_from_hot(source);
  if (source->heat == Heat::cold) --cold_;
  unwatch(source);
  std::erase(to_unwatch_, source);
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

inline Parcel* Poller::take_batch() {
  if (free_batches_.empty()) collect_batches();
  if (free_batches_.empty()) return nullptr;
  Parcel* const batch = free_batches_.back();
  free_batches_.pop_back();
  return batch;
}

inline Parcel* Poller::take_segment(SourceState* source) {
  Parcel* const segment = source->free_segments;
  if (segment != nullptr) {
    source->free_segments = segment->next;
    --source->free_segment_count;
  }
  return segment;
}

// --- polling
// ---------------------------------------------------------------------------------------

Poller::Poll Poller::poll_source(SourceState* source) {
  switch (source->options.order) {
    case Order::none: return poll_into_batches(source);
    case Order::per_connection:
    case Order::per_key:
      return source->lanes_needed ? poll_into_lanes(source) : poll_into_batches(source);
    case Order::inlined: return poll_inline(source);
  }
  return {Polled::failed};
}

/// Polls on while the queue gives full batches: each is handed over at once, and all of them
/// together are announced.
Poller::Poll Poller::poll_into_batches(SourceState* source) {
  const bool sorting = source->queue_pairs != nullptr;
  Poll sum;
  std::uint32_t polls = 0;
  std::uint32_t last = 0;
  do {
    const Poll poll = sorting ? poll_sorted(source) : poll_into_batch(source);
    if (polls == 0) sum.brought = poll.brought;
    last = poll.count;
    sum.count += last;
  } while (++polls < kPollBurstMax && last == batch_size_ && source->heat != Heat::failed);
  if (sum.count > 0) announce(source);
  return sum;
}

[[gnu::always_inline]] inline Poller::Poll Poller::poll_into_batch(SourceState* source) {
  Parcel* const batch = take_batch();
  if (batch == nullptr) [[unlikely]] {
    count_.backpressure.add();
    return {Polled::no_buffer};
  }
  const std::uint32_t count = poll_and_check(source, {batch->completions, batch_size_});
  const std::uint32_t left = count == 0 ? 0 : inspect(source, {batch->completions, count});
  if (left == 0) {
    free_batches_.push_back(batch);
    return count > 0 ? Poll{Polled::some, count} : nothing(source);
  }
  publish(source, batch, left, false);
  return {Polled::some, count};
}

/// For a pool of one worker: completions of many connections, sorted by connection on the way from
/// the scratch buffer into a batch. What one worker gets in order it handles in order.
Poller::Poll Poller::poll_sorted(SourceState* source) {
  Parcel* const parcel = take_batch();
  if (parcel == nullptr) [[unlikely]] {
    count_.backpressure.add();
    return {Polled::no_buffer};
  }
  // What is held early is bounded: beyond that, what may be of an unknown connection stays where it
  // is.
  const std::size_t holdable = source->early.capacity() - source->early.size();
  const auto room = static_cast<std::uint32_t>(std::min<std::size_t>(batch_size_, holdable));
  if (room == 0) [[unlikely]] {
    free_batches_.push_back(parcel);
    count_.backpressure.add();
    return {Polled::no_buffer};
  }
  const std::uint32_t polled = poll_and_check(source, {scratch_->completions, room});
  if (polled == 0) {
    free_batches_.push_back(parcel);
    return nothing(source);
  }
  const std::uint32_t count = inspect(source, {scratch_->completions, polled});
  const ibv_wc* const completions = scratch_->completions;
  const QueuePairTable::View queue_pairs = source->queue_pairs->view();
  // Whose each completion is, and each connection once.
  std::array<ConnectionState*, kBatchSize> of;
  std::array<ConnectionState*, kBatchSize> groups;
  std::uint32_t group_count = 0;
  std::uint32_t unknown = 0;
  const auto note = [&](std::uint32_t i, ConnectionState* connection) {
    of[i] = connection;
    if (++connection->in_batch_less_one == 0) groups[group_count++] = connection;
  };
  std::uint32_t i = 0;
#pragma GCC unroll 8
  for (; i < count; ++i) {  // as a rule all of them
    ConnectionState* const connection = queue_pairs.at_home(completions[i].qp_num);
    if (connection == nullptr) [[unlikely]]
      break;
    note(i, connection);
  }
  for (; i < count; ++i) {
    ConnectionState* const connection = queue_pairs.find(completions[i].qp_num);
    if (connection != nullptr) [[likely]] {
      note(i, connection);
    } else {
      of[i] = nullptr;
      ++unknown;
      hold_or_orphan(source, completions[i]);
    }
  }
  if (group_count == 0) {
    free_batches_.push_back(parcel);
    return {Polled::some, polled};
  }
  // All of one connection, or each of another one: handed over as it is, and the empty one is
  // polled into next time.
  const bool each_of_another = group_count == count;  // so all are known
  const bool as_it_is = each_of_another || (group_count == 1 && unknown == 0);
  auto* const batch = static_cast<Batch*>(as_it_is ? std::exchange(scratch_, parcel) : parcel);
  if (each_of_another) {
    for (i = 0; i < count; ++i) {
      ConnectionState* const connection = groups[i];
      connection->in_batch_less_one = ConnectionState::kNotInBatch;
      connection->receives.handover.hand(1);
      batch->groups[i] = connection->receives.group(1);
    }
    publish(source, batch, count, true);
    return {Polled::some, polled};
  }
  ibv_wc* at = batch->completions;
  for (std::uint32_t group = 0; group < group_count; ++group) {
    ConnectionState* const connection = groups[group];
    const std::uint32_t of_group =
        std::exchange(connection->in_batch_less_one, ConnectionState::kNotInBatch) + 1;
    connection->batch_at = at;
    at += of_group;
    connection->receives.handover.hand(of_group);
    batch->groups[group] = connection->receives.group(of_group);
  }
  if (unknown > 0) [[unlikely]] {
    for (i = 0; i < count; ++i) {
      if (of[i] != nullptr) *of[i]->batch_at++ = completions[i];
    }
  } else if (!as_it_is) {
#pragma GCC unroll 8
    for (i = 0; i < count; ++i) *of[i]->batch_at++ = completions[i];
  }
  const std::uint32_t known = count - unknown;
  publish(source, batch, known, true);
  return {Polled::some, polled};
}

/// Polls on while the queue gives full batches and the workers lag behind: the more completions a
/// lane gets at once, the less each costs. With workers that keep up it is one poll at a time, or
/// they would wait for the second.
Poller::Poll Poller::poll_into_lanes(SourceState* source) {
  Poll sum = poll_into_lanes_once(source);
  std::uint32_t last = sum.count;
  for (std::uint32_t poll = 1; poll < source->burst && last == batch_size_; ++poll) {
    const Poll more = poll_into_lanes_once(source);
    last = more.count;
    sum.count += more.count;
    if (source->heat == Heat::failed) break;
  }
  publish_lanes(source);
  return sum;
}

inline Poller::Poll Poller::poll_into_lanes_once(SourceState* source) {
  std::uint32_t room = batch_size_;
  if (source->free_segment_count < source->early.size() + batch_size_) {
    room = std::min(batch_size_, free_segments(source));
  }
  if (room == 0) [[unlikely]] {
    count_.backpressure.add();
    return {Polled::no_buffer};
  }
  const std::uint32_t count = poll_and_check(source, {scratch_->completions, room});
  if (count == 0) return nothing(source);
  const std::span<const ibv_wc> completions{scratch_->completions,
                                            inspect(source, {scratch_->completions, count})};
  const bool perhaps_of_one =
      completions.size() > kSegmentSize && completions.front().qp_num == completions.back().qp_num;
  if (!perhaps_of_one || !lend(source, completions)) route(source, completions);
  return {Polled::some, count};
}

/// Polls on while the queue gives full batches, if no other hot source has to wait for the
/// handlers. With a cheap handler each instruction of the loop shows; so full batches without a
/// failed completion, all alike, are marked as handed over once, and the mark of a running handler
/// stays from one to the next: a poll does not take long.
Poller::Poll Poller::poll_inline(SourceState* source) {
  CompletionSource& queue = *source->source;
  const std::span<ibv_wc> batch{scratch_->completions, batch_size_};
  const std::uint32_t polls_max = hot_.size() == 1 ? kRoundPollsMax : 1;
  handler_source_.store(source->id, std::memory_order_relaxed);
  std::uint64_t sequence = handler_sequence_.load(std::memory_order_relaxed) - 1;
  PollOutcome outcome;
  std::uint32_t polls = 0;
  for (;;) {
    outcome = queue.poll(batch);
    if (outcome.count != batch.size() || outcome.fault != SourceFault::none ||
        !all_succeeded(batch)) {
      break;
    }
    if (polls == 0) source->stream.handover.hand(batch_size_);
    handler_sequence_.store(sequence += 2, std::memory_order_relaxed);
    source->handler(batch, source->stream.info);
    queue.retire_if_wanted(batch);
    if (++polls == polls_max) break;
  }
  if (polls > 0) {
    handler_sequence_.store(sequence + 1, std::memory_order_relaxed);
    // Nobody else counts for an inlined one.
    source->stream.handover.finish_in_lane(batch_size_);
    tally_.polls += polls;
    tally_.batches += polls;
    tally_.completions += polls * batch_size_;
    if (polls == polls_max) return {Polled::some, polls * batch_size_};
  }
  // The last one is not like that.
  note_poll(source, outcome);
  if (outcome.count > 0) {
    const std::uint32_t left = inspect(source, batch.first(outcome.count));
    if (left > 0) run_inline(source, batch.first(left));
  } else if (polls == 0) {
    return nothing(source);
  }
  return {Polled::some, polls * batch_size_ + outcome.count};
}

inline std::uint32_t Poller::poll_and_check(SourceState* source, std::span<ibv_wc> out) {
  const PollOutcome outcome = source->source->poll(out);
  note_poll(source, outcome);
  return outcome.count;
}

inline void Poller::note_poll(SourceState* source, const PollOutcome& outcome) {
  ++tally_.polls;
  if (outcome.count > 0) {
    ++tally_.batches;
    tally_.completions += outcome.count;
  }
  if (outcome.fault != SourceFault::none) [[unlikely]]
    fail(source, outcome.fault, outcome.error);
}

/// One instruction for each in the common case: a full batch.
inline bool Poller::all_succeeded(std::span<const ibv_wc> completions) noexcept {
  static_assert(IBV_WC_SUCCESS == 0);
  unsigned failed = 0;
  const ibv_wc* wc = completions.data();
  std::size_t left = completions.size();
  if (left == kBatchSize) {
#pragma GCC unroll 32
    for (std::size_t i = 0; i < kBatchSize; ++i) failed |= static_cast<unsigned>(wc[i].status);
    left = 0;
  }
  for (; left > 0; --left, ++wc) failed |= static_cast<unsigned>(wc->status);
  return failed == 0;
}

/// Makes failed completions safe to read, tells of them, and takes the drain marker out. Returns
/// how many are left.
inline std::uint32_t Poller::inspect(SourceState* source, std::span<ibv_wc> completions) {
  if (!all_succeeded(completions)) [[unlikely]]
    return inspect_failed(source, completions);
  return static_cast<std::uint32_t>(completions.size());
}

std::uint32_t Poller::inspect_failed(SourceState* source, std::span<ibv_wc> completions) {
  std::uint32_t kept = 0;
  for (ibv_wc& wc : completions) {
    if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
      clear_invalid_fields(wc);
      if (source->drain_marker != 0 && wc.wr_id == source->drain_marker) {
        source->source->retire_if_wanted({&wc, 1});
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
  const std::uint64_t sequence = handler_sequence_.load(std::memory_order_relaxed);
  const auto count = static_cast<std::uint32_t>(completions.size());
  source->stream.handover.hand(count);
  handler_sequence_.store(sequence + 1, std::memory_order_relaxed);
  source->handler(completions, source->stream.info);
  handler_sequence_.store(sequence + 2, std::memory_order_relaxed);
  source->source->retire_if_wanted(completions);
  source->stream.handover.finish_in_lane(count);
}

// --- lanes
// -----------------------------------------------------------------------------------------

/// Hands over the batch itself, not copied, if all of it belongs to one connection. False: it does
/// not, or too many batches lie in lanes already: a slow lane must not keep them from others.
bool Poller::lend(SourceState* source, std::span<const ibv_wc> completions) {
  if (source->options.order != Order::per_connection) return false;
  ConnectionState* connection = source->connection;
  Stream* stream = &source->stream;
  OpenParcels* open = &source->open;
  if (connection == nullptr) {
    const std::uint32_t qp_num = completions.front().qp_num;
    if (!std::all_of(completions.begin(), completions.end(),
                     [qp_num](const ibv_wc& wc) { return wc.qp_num == qp_num; })) {
      return false;
    }
    connection = source->queue_pairs->find(qp_num);
    if (connection == nullptr) return false;
    stream = &connection->receives;
    open = &connection->open;
  }
  if (lent_ >= lent_max_) collect_batches();
  Parcel* const next = lent_ < lent_max_ ? take_batch() : nullptr;
  if (next == nullptr) return false;
  Parcel* const batch = std::exchange(scratch_, next);
  batch->lent = true;
  ++lent_;
  batch->stream = stream;
  batch->count = static_cast<std::uint32_t>(completions.size());
  source->stream.handover.hand(batch->count);
  link(*open, &connection->lane, stream, batch);
  open->at = open->end = nullptr;
  return true;
}

/// Behind what is open for the lane.
inline void Poller::link(OpenParcels& open, Lane* lane, Stream* stream, Parcel* parcel) {
  parcel->next = nullptr;
  if (open.last == nullptr) {
    open.first = parcel;
    open_lanes_[open_lane_count_++] = {&open, lane, stream};
  } else {
    // It is not the last one any more, and a segment before a lent batch may not be full.
    open.last->count -= static_cast<std::uint32_t>(open.end - open.at);
    open.last->next = parcel;
  }
  open.last = parcel;
}

/// Copies completions (at most kBatchSize) into segments of their lanes: the one copy that an
/// ordered completion costs. They are in the lanes once publish_lanes() is called.
void Poller::route(SourceState* source, std::span<const ibv_wc> completions) {
  source->stream.handover.hand(static_cast<std::uint32_t>(completions.size()));
  if (source->options.order == Order::per_key) return route_by_key(source, completions);
  if (ConnectionState* const connection = source->connection; connection != nullptr) {
    for (const ibv_wc& wc : completions) {
      append(source->open, &connection->lane, &source->stream, wc);
    }
    return;
  }
  const QueuePairTable::View queue_pairs = source->queue_pairs->view();
  for (const ibv_wc& wc : completions) {
    ConnectionState* connection = queue_pairs.at_home(wc.qp_num);
    if (connection == nullptr) [[unlikely]] {
      connection = queue_pairs.find(wc.qp_num);
      if (connection == nullptr) {
        source->stream.handover.take_back(1);
        hold_or_orphan(source, wc);
        continue;
      }
    }
    append(connection->open, &connection->lane, &connection->receives, wc);
  }
}

/// A failed completion is not shown to the key function: it follows its queue pair.
void Poller::route_by_key(SourceState* source, std::span<const ibv_wc> completions) {
  const Pool& pool = *source->pool;
  auto& open = open_keys_[pool.index];
  for (const ibv_wc& wc : completions) {
    const std::uint64_t key =
        wc.status == IBV_WC_SUCCESS ? source->options.key(wc) : std::uint64_t{wc.qp_num};
    const std::uint32_t lane = pool.key_lane(key);
    append(open[lane], &pool.key_lanes[lane], &source->stream, wc);
  }
}

inline void Poller::append(OpenParcels& open, Lane* lane, Stream* stream, const ibv_wc& wc) {
  if (open.at == open.end) [[unlikely]]
    extend(open, lane, stream);
  *open.at++ = wc;
}

void Poller::extend(OpenParcels& open, Lane* lane, Stream* stream) {
  Parcel* const fresh = take_segment(stream->source);
  SLUICE_CHECK(fresh != nullptr, "a source was polled without a segment for each completion");
  fresh->stream = stream;
  fresh->count = segment_size_;  // unless it is the last: see publish_lanes()
  link(open, lane, stream, fresh);
  open.at = fresh->completions;
  open.end = open.at + segment_size_;
}

/// Puts what was routed into the lanes, and those lanes that were idle before the workers.
void Poller::publish_lanes(SourceState* source) {
  const std::uint32_t lanes = std::exchange(open_lane_count_, 0);
  if (lanes == 0) return;
  std::uint32_t fresh = 0;
  for (std::uint32_t i = 0; i < lanes; ++i) {
    const OpenLane& open = open_lanes_[i];
    const OpenParcels parcels = std::exchange(*open.parcels, OpenParcels{});
    parcels.last->count -= static_cast<std::uint32_t>(parcels.end - parcels.at);
    if (open.stream != &source->stream) {  // the source's own has been told by route()
      std::uint32_t count = parcels.first->count;
      for (const Parcel* parcel = parcels.first; parcel != parcels.last;) {
        parcel = parcel->next;
        count += parcel->count;
      }
      open.stream->handover.hand(count);
    }
    if (open.lane->queue.push_chain(parcels.first, parcels.last)) fresh_lanes_[fresh++] = open.lane;
  }
  // Lanes that are still scheduled say that the workers lag behind.
  source->burst = fresh * 2 <= lanes ? std::min(source->burst * 2, kPollBurstMax)
                                     : std::max(source->burst / 2, 1U);
  if (fresh == 0) return;
  Pool* const pool = source->pool;
  SLUICE_CHECK(pool->lanes[index_]->push_bulk({fresh_lanes_.data(), fresh}) == fresh,
               "a ring of runnable lanes is shorter than the lanes");
  pool->parking.notify_published();
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
  source->source->retire_if_wanted({&wc, 1});
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
  --cold_;
  source->heat = Heat::hot;
  source->empty_rounds = 0;
  hot_.push_back(source);
  count_.turned_hot.add();
}

/// Consume every queued event, which re-arms; poll to empty, since arming takes no notice of what
/// is already there; only then may the source be slept on (INV-ARM, INV-EMPTY).
/// Returns what that poll brought: then it stays hot.
std::uint32_t Poller::try_turn_cold(SourceState* source) {
  if (source->polled_for_good) return 0;
  for (std::uint32_t i = 0;; ++i) {
    const EventOutcome event = source->source->consume_event();
    if (event.kind == EventOutcome::Kind::none) break;
    if (event.kind == EventOutcome::Kind::failed) {
      fail(source, event.fault, event.error);
      return 0;
    }
    count_.events.add();
    if (i == kEventsPerTurn) return 0;  // busy after all
  }
  if (const Poll poll = poll_source(source); poll.brought != Polled::empty) {
    source->empty_rounds = 0;
    return poll.count;
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = mark_of(*source);
  if (!source->watched &&
      ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, source->source->wait_fd(), &event) != 0) {
    source->polled_for_good = true;
    return 0;
  }
  source->watched = true;
  remove_from_hot(source);
  source->heat = Heat::cold;
  ++cold_;
  count_.turned_cold.add();
  return 0;
}

void Poller::unwatch(SourceState* source) {
  if (std::exchange(source->watched, false)) {
    ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, source->source->wait_fd(), nullptr);
  }
}

/// Hot sources leave epoll only after their first polls: a worker that was woken by the same event
/// (the standby) would otherwise find nothing to have been woken for, and sleep on.
void Poller::unwatch_hot_sources() {
  for (SourceState* source : to_unwatch_) {
    if (source->heat == Heat::hot) unwatch(source);
  }
  to_unwatch_.clear();
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
  if (source->heat == Heat::failed) return;  // told already
  if (fault == SourceFault::rearm_failed) {
    if (source->polled_for_good) return;
    source->polled_for_good = true;
  } else {
    if (source->heat == Heat::hot) remove_from_hot(source);
    if (source->heat == Heat::cold) --cold_;
    unwatch(source);
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

/// Takes in what the workers have given back.
void Poller::collect_batches() {
  std::array<Parcel*, 64> back;
  for (SpmcRing<Parcel*>* ring : returns_) {
    for (std::size_t count = back.size(); count == back.size();) {  // bound: the batches there are
      count = ring->pop_bulk(back);
      free_batches_.insert(free_batches_.end(), back.begin(), back.begin() + count);
      for (std::size_t i = 0; lent_ > 0 && i < count; ++i) {
        if (std::exchange(back[i]->lent, false)) --lent_;
      }
    }
  }
}

/// Takes in a list of segments that have come back. True: it was not empty.
bool Poller::collect_segments(SourceState* source, Parcel* list) {
  for (Parcel* segment = list; segment != nullptr;) {
    Parcel* const next = segment->next;
    segment->next = std::exchange(source->free_segments, segment);
    ++source->free_segment_count;
    segment = next;
  }
  return list != nullptr;
}

std::uint32_t Poller::free_segments(SourceState* source) {
  // What is held early will need its segments, too; and so does what this burst has polled.
  const auto held = static_cast<std::uint32_t>(source->early.size());
  if (source->free_segment_count < held + kBatchSize) {
    collect_segments(source, source->returned.take_all());
  }
  return source->free_segment_count > held ? source->free_segment_count - held : 0;
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
  out.pre_wakes = count_.pre_wakes.get();
  out.spins_found = count_.spins_found.get();
  out.spun_ns = count_.spun_ns.get();
  out.spun_in_vain_ns = count_.spun_in_vain_ns.get();
  out.spin_capped = count_.spin_capped.get();
  out.wake_cost_ns = count_.wake_cost_ns.get();
  out.spin_limit_ns = count_.spin_limit_ns.get();
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
