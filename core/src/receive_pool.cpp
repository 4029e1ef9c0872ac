// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/receive_pool.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace sluice {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::uint32_t kDepthMax = 1U << 20;
constexpr std::uint32_t kNone = 0xffffffff;

/// Where a buffer is. Moved on by whoever holds it, so the moves need no compare-and-swap.
enum class SlotState : std::uint8_t {
  kept,    ///< with the pool: not posted yet, or not to be posted any more
  posted,  ///< the device may write into it; ends with polled(), or take() where nobody polled for
           ///< us
  polled,  ///< its completion is on the way to a handler; ends with take()
  loaned,  ///< a ReceivedBuffer holds it; ends with its release
};

}  // namespace

/// One line each: a poller, a worker and a poster write to neighbouring slots at the same time.
struct alignas(kCacheLine) ReceivePool::Slot {
  std::atomic<SlotState> state{SlotState::kept};
  std::atomic<std::uint32_t> next{kNone};  ///< link of the stack of released buffers
};

struct ReceivePool::State {
  static_assert(sizeof(Slot) == kCacheLine);

  State(std::uint32_t depth, std::unique_ptr<ReceivePoster> with)
      : slots(depth), poster(std::move(with)) {}

  std::vector<Slot> slots;
  std::unique_ptr<ReceivePoster> poster;  ///< called by one thread at a time: see `pending`

  /// The stack of released buffers, taken whole by the poster: no ABA.
  alignas(kCacheLine) std::atomic<std::uint32_t> released{kNone};
  /// Announced and not yet handled. Who raises it from 0 posts for everybody until it is 0 again;
  /// it is below 0 for a moment when a buffer was handled before it was announced.
  alignas(kCacheLine) std::atomic<std::int64_t> pending{0};
  alignas(kCacheLine) std::atomic<std::uint32_t> posted{0};
  /// Low half: buffers on loan. High half: threads inside give_back(), for the destructor.
  alignas(kCacheLine) std::atomic<std::uint64_t> loans{0};
  alignas(kCacheLine) std::atomic<bool> stopped{false};
  std::atomic<std::uint64_t> low_water_events{0};
  std::atomic<std::uint32_t> kept;

  std::mutex error_mutex;  ///< failures only
  Status error;
};

namespace {

constexpr std::uint64_t kOneLoan = 1;
constexpr std::uint64_t kOneInside = std::uint64_t{1} << 32;

}  // namespace

Result<std::unique_ptr<ReceivePool>> ReceivePool::create(ReceivePoolConfig config,
                                                         std::span<std::byte> memory,
                                                         std::unique_ptr<ReceivePoster> poster) {
  if (config.depth < 1 || config.depth > kDepthMax) {
    return Status(
        StatusCode::invalid_argument,
        "a receive pool of depth " + std::to_string(config.depth) + ": it must be 1..2^20");
  }
  if (config.buffer_size < 1) {
    return Status(StatusCode::invalid_argument, "a receive pool with buffers of 0 bytes");
  }
  if (config.low_water > config.depth) {
    return Status(StatusCode::invalid_argument,
                  "a receive pool of depth " + std::to_string(config.depth) +
                      " cannot have its low water at " + std::to_string(config.low_water));
  }
  const std::uint64_t needed = std::uint64_t{config.depth} * config.buffer_size;
  if (memory.size() < needed) {
    return Status(StatusCode::invalid_argument,
                  "a receive pool of " + std::to_string(config.depth) + " buffers of " +
                      std::to_string(config.buffer_size) + " bytes needs " +
                      std::to_string(needed) + " bytes of memory, not " +
                      std::to_string(memory.size()));
  }
  if (poster == nullptr) {
    return Status(StatusCode::invalid_argument, "a receive pool without a poster");
  }
  // A pool of a few buffers is low when it is empty.
  if (config.low_water == 0) config.low_water = std::max(1U, config.depth / 8);
  return std::unique_ptr<ReceivePool>(
      new ReceivePool(std::move(config), memory, std::move(poster)));
}

ReceivePool::ReceivePool(ReceivePoolConfig config, std::span<std::byte> memory,
                         std::unique_ptr<ReceivePoster> poster)
    : config_(std::move(config)),
      memory_(memory),
      state_(std::make_unique<State>(config_.depth, std::move(poster))) {
  state_->kept.store(config_.depth, std::memory_order_relaxed);
}

ReceivePool::~ReceivePool() {
  stop_posting();
  // (1) acquire: pairs with (3) and (4), so that nobody still uses what is freed here.
  std::uint64_t loans = state_->loans.load(std::memory_order_acquire);
  SLUICE_CHECK(static_cast<std::uint32_t>(loans) == 0,
               "a receive pool was destroyed while " +
                   std::to_string(static_cast<std::uint32_t>(loans)) +
                   " of its buffers are on loan");
  while (loans != 0) {  // bounded by the posts of whoever released last
    std::this_thread::yield();
    loans = state_->loans.load(std::memory_order_acquire);  // (1) as above
  }
}

Status ReceivePool::post_all() {
  if (state_->stopped.load(std::memory_order_relaxed)) {
    const Status why = last_error();
    return why.ok() ? Status(StatusCode::cancelled, "posting to this receive pool was stopped")
                    : why;
  }
  std::uint32_t count = 0;
  for (std::uint32_t index = 0; index < config_.depth; ++index) {
    if (state_->slots[index].state.load(std::memory_order_relaxed) != SlotState::kept) continue;
    push(index);
    ++count;
  }
  state_->kept.fetch_sub(count, std::memory_order_relaxed);
  if (count == 0) return last_error();
  // (2) acq_rel: who raises it from 0 posts; see give_back().
  if (state_->pending.fetch_add(count, std::memory_order_acq_rel) == 0) post_pending();
  return last_error();
}

bool ReceivePool::owns(std::uint64_t wr_id) const noexcept {
  const std::uint64_t distance = wr_id - reinterpret_cast<std::uintptr_t>(state_->slots.data());
  return distance < std::uint64_t{config_.depth} * sizeof(Slot) && distance % sizeof(Slot) == 0;
}

void ReceivePool::polled(std::span<const ibv_wc> completions) noexcept {
  std::uint32_t count = 0;
  for (const ibv_wc& wc : completions) {
    if (!owns(wc.wr_id)) continue;
    // Relaxed: the slot is ours alone from the completion until it is handed on.
    reinterpret_cast<Slot*>(wc.wr_id)->state.store(SlotState::polled, std::memory_order_relaxed);
    ++count;
  }
  if (count != 0) no_longer_posted(count);
}

ReceivedBuffer ReceivePool::take(const ibv_wc& wc) noexcept {
  SLUICE_CHECK(owns(wc.wr_id), "take() of a completion that is not of this receive pool");
  auto* const slot = reinterpret_cast<Slot*>(wc.wr_id);
  const SlotState before = slot->state.exchange(SlotState::loaned, std::memory_order_relaxed);
  SLUICE_CHECK(before == SlotState::posted || before == SlotState::polled,
               "take() of a completion whose buffer is not posted: was it taken twice?");
  state_->loans.fetch_add(kOneLoan, std::memory_order_relaxed);
  if (before == SlotState::posted) no_longer_posted(1);

  std::uint32_t length = 0;
  if (wc.status == IBV_WC_SUCCESS) {
    if (wc.opcode == IBV_WC_RECV) length = std::min(wc.byte_len, config_.buffer_size);
  } else if (!state_->poster->survives_failed_completion()) {
    stop_posting();
  }
  return ReceivedBuffer(this, static_cast<std::uint32_t>(slot - state_->slots.data()), length);
}

void ReceivePool::reclaim(const ibv_wc& wc) noexcept {
  // Relaxed: no one else can move it on from `polled`, and it cannot be polled again but by the
  // caller.
  if (reinterpret_cast<Slot*>(wc.wr_id)->state.load(std::memory_order_relaxed) ==
      SlotState::polled) {
    take(wc).release();
  }
}

void ReceivePool::no_longer_posted(std::uint32_t count) noexcept {
  const std::uint32_t before = state_->posted.fetch_sub(count, std::memory_order_relaxed);
  const std::uint32_t now = before - count;
  // Only the one decrement that crosses the line sees it on both sides.
  if (before < config_.low_water || now >= config_.low_water) return;
  state_->low_water_events.fetch_add(1, std::memory_order_relaxed);
  if (config_.on_low_water) config_.on_low_water(now);
}

void ReceivePool::give_back(std::uint32_t index) noexcept {
  // (3) release: pairs with (1). Off loan, but still inside, in one step.
  state_->loans.fetch_add(kOneInside - kOneLoan, std::memory_order_release);
  push(index);
  // (2) acq_rel: whoever raises it from 0 posts this buffer and all that come meanwhile; everybody
  // else leaves. release: our push is seen by the poster whose fetch_sub (5) reads from this.
  // acquire: the last poster's calls are over before ours begin.
  if (state_->pending.fetch_add(1, std::memory_order_acq_rel) == 0) post_pending();
  state_->loans.fetch_sub(kOneInside, std::memory_order_release);  // (4) release: pairs with (1)
}

void ReceivePool::push(std::uint32_t index) noexcept {
  Slot& slot = state_->slots[index];
  std::uint32_t top = state_->released.load(std::memory_order_relaxed);
  do {
    slot.next.store(top, std::memory_order_relaxed);
    // (6) release: pairs with acquire (7); publishes `next` and the handler's last use of the
    // bytes.
  } while (!state_->released.compare_exchange_weak(top, index, std::memory_order_release,
                                                   std::memory_order_relaxed));
}

void ReceivePool::post_pending() noexcept {
  std::int64_t handled = 0;
  do {
    handled = 0;
    // (7) acquire: pairs with release (6).
    std::uint32_t index = state_->released.exchange(kNone, std::memory_order_acquire);
    while (index != kNone) {
      const std::uint32_t next = state_->slots[index].next.load(std::memory_order_relaxed);
      post_one(index);
      ++handled;
      index = next;
    }
    // (5) acq_rel: pairs with (2), both ways. Above 0: more was announced while we posted. At or
    // below 0 somebody whose buffer we have handled has yet to announce it; who raises it from 0 is
    // next.
  } while (state_->pending.fetch_sub(handled, std::memory_order_acq_rel) - handled > 0);
}

void ReceivePool::post_one(std::uint32_t index) noexcept {
  Slot& slot = state_->slots[index];
  if (state_->stopped.load(std::memory_order_relaxed)) {
    slot.state.store(SlotState::kept, std::memory_order_relaxed);
    state_->kept.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  // Before the post: its completion may be taken on another thread before post() has returned.
  slot.state.store(SlotState::posted, std::memory_order_relaxed);
  state_->posted.fetch_add(1, std::memory_order_relaxed);
  Status status = state_->poster->post(std::size_t{index} * config_.buffer_size,
                                       config_.buffer_size, reinterpret_cast<std::uint64_t>(&slot));
  if (status.ok()) return;
  slot.state.store(SlotState::kept, std::memory_order_relaxed);
  state_->posted.fetch_sub(1, std::memory_order_relaxed);
  state_->kept.fetch_add(1, std::memory_order_relaxed);
  fail(std::move(status));
}

void ReceivePool::fail(Status why) noexcept {
  const std::lock_guard lock(state_->error_mutex);
  if (state_->error.ok()) state_->error = std::move(why);
  stop_posting();
}

void ReceivePool::stop_posting() noexcept {
  state_->stopped.store(true, std::memory_order_relaxed);
}

std::uint32_t ReceivePool::posted() const noexcept {
  return state_->posted.load(std::memory_order_relaxed);
}

std::uint32_t ReceivePool::on_loan() const noexcept {
  return static_cast<std::uint32_t>(state_->loans.load(std::memory_order_relaxed));
}

std::uint32_t ReceivePool::kept() const noexcept {
  return state_->kept.load(std::memory_order_relaxed);
}

std::uint64_t ReceivePool::low_water_events() const noexcept {
  return state_->low_water_events.load(std::memory_order_relaxed);
}

Status ReceivePool::last_error() const {
  const std::lock_guard lock(state_->error_mutex);
  return state_->error;
}

ReceivedBuffer& ReceivedBuffer::operator=(ReceivedBuffer&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::exchange(other.pool_, nullptr);
    index_ = other.index_;
    length_ = other.length_;
  }
  return *this;
}

std::span<std::byte> ReceivedBuffer::bytes() const noexcept {
  if (pool_ == nullptr) return {};
  return pool_->memory_.subspan(std::size_t{index_} * pool_->config_.buffer_size, length_);
}

void ReceivedBuffer::release() noexcept {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->give_back(index_);
}

}  // namespace sluice
