// SPDX-License-Identifier: BSD-3-Clause
#include "worker.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "inside.hpp"

namespace sluice::detail {
namespace {

/// Completions of one lane that a worker handles before the other runnable lanes get their turn.
constexpr std::uint32_t kLaneBudget = 128;
/// And so often in a row if no other lane and no batch waits.
constexpr std::uint32_t kLaneTurnsMax = 8;
/// Claims from one ring before another is looked at first.
constexpr std::uint32_t kStreakMax = 32;

}  // namespace

std::size_t Worker::run_once() {
  owner_.check("a worker is driven by one thread; another one called it");
  const InsideRound inside;
  handled_ = 0;
  if (lanes_first_) {
    run_lanes();
    run_batches();
  } else {
    run_batches();
    run_lanes();
  }
  lanes_first_ = !lanes_first_;
  if (handled_ > 0) {
    standby_was_in_vain_ = false;
    completions_.add(handled_);
  } else if (searching_ == host_driven_ && (host_driven_ || !alone_)) {
    // A thread of ours is a searcher from here on, so that producers need not wake anybody; one
    // without colleagues only on its way to sleep, since there is nobody else to be woken. A host
    // may go elsewhere after this call; it is one only from prepare_to_wait() to its next round.
    host_driven_ ? end_search() : begin_search();
  }
  return handled_;
}

void Worker::begin_search() {
  pool_.parking.begin_search(index_);
  searching_ = true;
}

void Worker::end_search() {
  searching_ = false;
  if (pool_.parking.end_search(index_) && !pool_.empty_seq_cst()) pool_.parking.notify_published();
}

/// Work was taken: no longer a searcher. The last searcher sees to it that somebody looks after
/// what is left, since producers kept quiet because of it.
void Worker::found() {
  if (!searching_) return;
  searching_ = false;
  if (pool_.parking.found_work(index_) && !pool_.empty_seq_cst()) pool_.parking.notify_published();
}

/// From one ring as long as it has something, for the caches' sake, but not for ever.
template <typename T>
std::size_t Worker::claim(const std::vector<std::unique_ptr<SpmcRing<T>>>& rings, Cursor& cursor,
                          std::span<T> out) {
  const auto turn = [&] {
    cursor.streak = 0;
    cursor.ring = cursor.ring + 1 < rings.size() ? cursor.ring + 1 : 0;
  };
  if (++cursor.streak > kStreakMax) turn();
  for (std::size_t i = 0; i < rings.size(); ++i) {
    if (const std::size_t count = rings[cursor.ring]->pop_bulk(out); count > 0) {
      if (!poller_fds_.empty() && (watched_ >> cursor.ring & 1) == 0) [[unlikely]]
        watch(cursor.ring);
      return count;
    }
    turn();
  }
  return 0;
}

void Worker::run_lanes() {
  Lane* lane = nullptr;
  resumed_first_ = !resumed_first_;
  const bool got = (resumed_first_ && pool_.resumed.pop(lane)) ||
                   claim(pool_.lanes, lanes_at_, std::span(&lane, 1)) > 0 ||
                   (!resumed_first_ && pool_.resumed.pop(lane));
  if (!got) return;
  found();
  run_lane(lane);
  settle();
  lane_runs_.add();
}

inline void Worker::call(SourceState* source, std::span<const ibv_wc> completions,
                         const BatchInfo& info) {
  const std::uint64_t sequence = handler_sequence_.load(std::memory_order_relaxed);
  handler_sequence_.store(sequence + 1, std::memory_order_relaxed);
  source->handler(completions, info);
  handler_sequence_.store(sequence + 2, std::memory_order_relaxed);
}

/// A sorted batch is handled group by group: each a connection's.
[[gnu::always_inline]] inline void Worker::run_batch(BatchTicket ticket) {
  Batch* const batch = ticket.batch();
  SourceState* const source = batch->stream->source;
  const std::span<const ibv_wc> completions{batch->completions, ticket.count()};
  handler_source_.store(source->id, std::memory_order_relaxed);
  if (!ticket.sorted()) {
    // What is kept says worker 0: the first one need not copy it.
    if (index_ == 0) {
      call(source, completions, batch->stream->info);
    } else {
      BatchInfo info = batch->stream->info;
      info.worker = index_;
      call(source, completions, info);
    }
  } else {
    const ibv_wc* at = completions.data();
    const ibv_wc* const end = at + completions.size();
    std::uint64_t sequence = handler_sequence_.load(std::memory_order_relaxed);
    for (const std::uintptr_t* group = batch->groups; at != end; ++group) {
      Stream* const stream = Stream::of_group(*group);
      const auto count = static_cast<std::uint32_t>(*group & Stream::kCountMask) + 1;
      handler_sequence_.store(sequence + 1, std::memory_order_relaxed);  // as call() does
      source->handler({at, count}, stream->info);  // its worker is 0, as is the only one's index
      handler_sequence_.store(sequence += 2, std::memory_order_relaxed);
      stream->handover.finish_in_lane(count);  // the last access to the connection
      at += count;
    }
  }
  source->source->retire_if_wanted(completions);
}

/// With colleagues it claims one batch after the other, and none before it is done with the last
/// one; only what comes after the handlers is done for several together.
void Worker::run_batches() {
  std::array<BatchTicket, kClaimMax> tickets;
  std::array<Parcel*, kClaimMax> done;  // all of one poller
  std::size_t done_count = 0;
  SourceState* source = nullptr;
  Poller* poller = nullptr;
  std::uint32_t completions = 0;  // of this source
  const auto finish = [&] {
    if (completions == 0) return;
    handled_ += completions;
    source->stream.handover.finish(std::exchange(completions, 0));  // the last access to the source
  };
  for (std::uint32_t claims = 0; claims < claims_max_; ++claims) {
    const std::size_t count =
        claim(pool_.batches, batches_at_, std::span(tickets.data(), alone_ ? kClaimMax : 1));
    if (count == 0) break;
    if (claims == 0) found();
    Poller* const of_ring = tickets[0].batch()->poller;
    if (of_ring != poller && done_count > 0) {
      finish();
      give_back(poller, {done.data(), std::exchange(done_count, 0)});
    }
    poller = of_ring;
    for (std::size_t i = 0; i < count; ++i) {
      if (i + 1 < count) __builtin_prefetch(tickets[i + 1].batch()->completions);
      Batch* const batch = tickets[i].batch();
      if (SourceState* const of_this = batch->stream->source; of_this != source) {
        finish();
        source = of_this;
      }
      run_batch(tickets[i]);
      done[done_count++] = batch;
      completions += tickets[i].count();
    }
  }
  if (done_count == 0) return;
  finish();
  give_back(poller, {done.data(), done_count});
}

void Worker::give_back(Poller* poller, std::span<Parcel* const> batches) {
  SLUICE_CHECK(returns_[poller->index()]->push_bulk(batches) == batches.size(),
               "a ring of returns is shorter than the batches");
  poller->wake_if_starved();
  control_.poke();
}

/// As long as nothing else is to be done here the same lane goes on: to put it back and to take it
/// up again moves it to and fro between the workers' caches.
void Worker::run_lane(Lane* lane) {
  Parcel* parcel = lane->leftover;
  for (std::uint32_t turn = 1;; ++turn) {
    if (parcel == nullptr) [[likely]]
      parcel = lane->queue.take_all();
    parcel = run_chain(parcel, kLaneBudget);
    if (lane->leftover != parcel) lane->leftover = parcel;
    // If it is idle, it is another worker's from here on, or gone.
    if (parcel == nullptr && lane->queue.try_idle()) return;
    if (turn == kLaneTurnsMax || !pool_.empty_seq_cst()) break;
    settle();
  }
  pool_.resume(lane);
}

/// The next one comes from the poller's cache: all of it while the handler is at work on this one.
/// Of a lent batch it is the head alone, and lines that are here already.
inline void prefetch_segment(const Parcel* parcel) noexcept {
  const auto* const line = reinterpret_cast<const std::byte*>(parcel);
  for (std::size_t offset = 0; offset < sizeof(Segment); offset += kCacheLine) {
    __builtin_prefetch(line + offset);
  }
}

/// Calls the handlers of linked parcels until `budget` completions are handled; returns what is
/// left. Those that were handled are homebound.
Parcel* Worker::run_chain(Parcel* parcel, std::uint32_t budget) {
  Homebound home = homebound_;
  std::uint32_t handled = 0;
  while (parcel != nullptr && handled < budget) {
    Stream* const stream = parcel->stream;
    SourceState* const source = stream->source;
    Poller* const poller = parcel->poller;
    BatchInfo info = stream->info;
    info.worker = index_;
    handler_source_.store(info.source, std::memory_order_relaxed);
    if (home.first != nullptr && (home.source != source || home.first->poller != poller)) {
      homebound_ = std::exchange(home, Homebound{});
      settle();
    }
    if (home.first == nullptr) {
      home.first = parcel;
    } else {
      home.last->next = parcel;
    }
    std::uint32_t of_stream = 0;
    Parcel* last = nullptr;
    do {  // the parcels of one stream and one home, linked already
      last = parcel;
      const std::span<const ibv_wc> completions{parcel->completions, parcel->count};
      parcel = parcel->next;
      if (parcel != nullptr) prefetch_segment(parcel);
      call(source, completions, info);
      source->source->retire_if_wanted(completions);
      of_stream += static_cast<std::uint32_t>(completions.size());
    } while (parcel != nullptr && parcel->stream == stream && parcel->poller == poller &&
             handled + of_stream < budget);
    home.last = last;
    home.source = source;
    home.completions += of_stream;
    handled += of_stream;
    // The last access to the connection, but for the lane.
    if (stream != &source->stream) stream->handover.finish_in_lane(of_stream);
  }
  homebound_ = home;
  handled_ += handled;
  return parcel;
}

/// Gives back what is homebound.
void Worker::settle() {
  if (homebound_.first == nullptr) return;
  SourceState* const source = homebound_.source;
  Poller* const poller = source->poller;
  const std::uint32_t completions = std::exchange(homebound_.completions, 0);
  Parcel* parcel = std::exchange(homebound_.first, nullptr);
  if (parcel->poller == nullptr) {
    source->returned.push_chain(parcel, homebound_.last);
    source->stream.handover.finish(completions);  // the last access to the source
    poller->wake_if_starved();
    control_.poke();
    return;
  }
  source->stream.handover.finish(completions);
  for (Parcel* const last = homebound_.last;;) {
    Parcel* const next = parcel->next;  // before it is given back
    const bool end = parcel == last;
    give_back(poller, {&parcel, 1});
    if (end) break;
    parcel = next;
  }
}

bool Worker::prepare_to_wait() {
  owner_.check("a worker is driven by one thread; another one wanted to wait for it");
  if (!searching_) begin_search();
  if (host_driven_ && wait_fd() < 0)
    return false;  // opens it: the host may ask for it only after this
  on_standby_ = watched_ != 0 && !standby_was_in_vain_;
  const auto by =
      host_driven_ || on_standby_ ? ParkingLot::SleepBy::fd : ParkingLot::SleepBy::futex;
  if (!pool_.parking.prepare_park(index_, by)) return false;
  if (pool_.empty_seq_cst()) return true;
  pool_.parking.cancel_park(index_);
  control_.note_wake();  // it may have seen the mark
  return false;
}

void Worker::park() noexcept {
  if (!on_standby_) {
    pool_.parking.park(index_);
    return;
  }
  pool_.standby.store(watched_, std::memory_order_relaxed);
  epoll_event event;
  ::epoll_wait(standby_fd_, &event, 1, -1);  // a signal ends it, too: as a wake for nothing
  // Until it has found work: a poller that is slow to see to its descriptor would wake us on and
  // on.
  standby_was_in_vain_ = true;
}

/// From now on this poller's wakes are this worker's, too.
void Worker::watch(std::uint32_t poller) noexcept {
  const auto add = [this](int fd) noexcept {
    epoll_event event{};
    event.events = EPOLLIN;
    return fd >= 0 && ::epoll_ctl(standby_fd_, EPOLL_CTL_ADD, fd, &event) == 0;
  };
  if (standby_fd_ < 0) {
    standby_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
    if (standby_fd_ < 0 || !add(pool_.parking.wait_fd(index_))) poller_fds_.clear();
  }
  if (!poller_fds_.empty() && add(poller_fds_[poller])) {
    watched_ |= std::uint64_t{1} << poller;
  } else {
    poller_fds_.clear();  // no descriptor to be had: it sleeps as the others do
    watched_ = 0;
  }
}

Worker::~Worker() {
  if (standby_fd_ >= 0) ::close(standby_fd_);
}

void Worker::finish_wait() {
  owner_.check("a worker is driven by one thread; another one finished its wait");
  if (host_driven_ || on_standby_) pool_.parking.finish_wait(index_);
  // A searcher by now, whom a poller need not wake either.
  if (on_standby_) pool_.standby.store(0, std::memory_order_relaxed);
  control_.note_wake();
}

WorkerCounters Worker::counters() const {
  const ParkingLot::Counters parking = pool_.parking.counters(index_);
  WorkerCounters out;
  out.pool = pool_.config.name;
  out.batches = handler_sequence_.load(std::memory_order_relaxed) / 2;
  out.completions = completions_.get();
  out.parks = parking.parks;
  out.wakes = parking.wakes;
  out.lane_runs = lane_runs_.get();
  out.stalls = stalls_.load(std::memory_order_relaxed);
  return out;
}

}  // namespace sluice::detail
