// SPDX-License-Identifier: BSD-3-Clause
#include "worker.hpp"

#include "inside.hpp"

namespace sluice::detail {
namespace {

/// Segments of one lane that a worker handles before the other runnable lanes get their turn.
constexpr std::uint32_t kLaneBudget = 16;

}  // namespace

std::size_t Worker::run_once() {
  owner_.check("a worker is driven by one thread; another one called it");
  const InsideRound inside;
  const std::uint64_t before = completions_.get();
  for (int turn = 0; turn < 2; ++turn) {
    const bool lane_turn = lane_first_ == (turn == 0);
    if (lane_turn) {
      Lane* lane = nullptr;
      if (!pool_.runnable.pop(lane)) continue;
      found();
      run_lane(lane);
    } else {
      Batch* const batch = next_batch();
      if (batch == nullptr) continue;
      found();
      run_batch(batch);
    }
  }
  lane_first_ = !lane_first_;
  const std::size_t work = completions_.get() - before;
  if (work == 0 && searching_ == host_driven_) {
    // A thread of ours is a searcher from here on, so that producers need not wake anybody. A host
    // may go elsewhere after this call; it is one only from prepare_to_wait() to its next round.
    host_driven_ ? end_search() : begin_search();
  }
  return work;
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

Batch* Worker::next_batch() {
  const auto rings = static_cast<std::uint32_t>(pool_.batches.size());
  for (std::uint32_t i = 0; i < rings; ++i) {
    Batch* batch = nullptr;
    if (pool_.batches[(next_ring_ + i) % rings]->pop(batch)) {
      next_ring_ = (next_ring_ + i + 1) % rings;
      return batch;
    }
  }
  return nullptr;
}

void Worker::run_lane(Lane* lane) {
  lane_runs_.add();
  Segment* segment = lane->leftover != nullptr ? lane->leftover : lane->queue.take_all();
  lane->leftover = nullptr;
  for (std::uint32_t handled = 0; segment != nullptr && handled < kLaneBudget; ++handled) {
    Segment* const next = segment->next;
    run_segment(segment);
    segment = next;
  }
  if (segment != nullptr) {
    lane->leftover = segment;
    pool_.schedule(lane);
  } else if (!lane->queue.try_idle()) {
    pool_.schedule(lane);
  }
  // From here on the lane is another worker's, or gone.
}

void Worker::run_segment(Segment* segment) {
  SourceState* const source = segment->source;
  ConnectionState* const connection = segment->connection;
  Poller* const poller = source->poller;
  BatchInfo info;
  info.source = source->id;
  info.connection = connection->id;
  info.context = connection->context != nullptr ? connection->context : source->options.context;
  info.poller = source->poller_index;
  info.worker = index_;
  info.receive_pool = source->options.receive_pool;
  const std::uint32_t handled = segment->count;
  call(source, {segment->completions, handled}, info);
  Handover& handover = source->connection != nullptr ? source->handover : connection->receives;
  source->returned.push(segment);
  handover.finish(handled);  // the last access to source and connection, but for the lane
  poller->wake_if_starved();
  control_.poke();
}

void Worker::run_batch(Batch* batch) {
  SourceState* const source = batch->source;
  Poller* const poller = batch->poller;
  BatchInfo info;
  info.source = source->id;
  info.connection = source->connection != nullptr ? source->connection->id : ConnectionId::none;
  info.context = source->options.context;
  info.poller = source->poller_index;
  info.worker = index_;
  info.receive_pool = source->options.receive_pool;
  const std::uint32_t handled = batch->count;
  call(source, {batch->completions, handled}, info);
  poller->give_back(batch);
  source->handover.finish(handled);  // the last access to the source
  control_.poke();
}

void Worker::call(SourceState* source, std::span<const ibv_wc> completions, const BatchInfo& info) {
  handler_source_.store(source->id, std::memory_order_relaxed);
  const std::uint64_t sequence = handler_sequence_.load(std::memory_order_relaxed);
  handler_sequence_.store(sequence + 1, std::memory_order_relaxed);
  source->handler(completions, info);
  handler_sequence_.store(sequence + 2, std::memory_order_relaxed);
  source->source->retire(completions);
  batches_.add();
  completions_.add(completions.size());
}

bool Worker::prepare_to_wait() {
  owner_.check("a worker is driven by one thread; another one wanted to wait for it");
  if (!searching_) begin_search();
  if (host_driven_ && wait_fd() < 0)
    return false;  // opens it: the host may ask for it only after this
  const auto by = host_driven_ ? ParkingLot::SleepBy::fd : ParkingLot::SleepBy::futex;
  if (!pool_.parking.prepare_park(index_, by)) return false;
  if (pool_.empty_seq_cst()) return true;
  pool_.parking.cancel_park(index_);
  control_.note_wake();  // it may have seen the mark
  return false;
}

void Worker::park() noexcept {
  pool_.parking.park(index_);
}

void Worker::finish_wait() {
  owner_.check("a worker is driven by one thread; another one finished its wait");
  if (host_driven_) pool_.parking.finish_wait(index_);
  control_.note_wake();
}

WorkerCounters Worker::counters() const {
  const ParkingLot::Counters parking = pool_.parking.counters(index_);
  WorkerCounters out;
  out.pool = pool_.config.name;
  out.batches = batches_.get();
  out.completions = completions_.get();
  out.parks = parking.parks;
  out.wakes = parking.wakes;
  out.lane_runs = lane_runs_.get();
  out.stalls = stalls_.load(std::memory_order_relaxed);
  return out;
}

}  // namespace sluice::detail
