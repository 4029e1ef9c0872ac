// SPDX-License-Identifier: BSD-3-Clause
#include "objects.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "endpoint.hpp"
#include "log.hpp"

namespace softrdma {
namespace {

// Generation 1 is the process that loaded the library; each fork that follows a use counts one up
// in the child.
std::atomic<std::uint32_t> current_generation{1};
std::atomic<Globals*> current{nullptr};
std::mutex create_mutex;

void before_fork() {
  create_mutex.lock();
}
void after_fork_in_parent() {
  create_mutex.unlock();
}
void after_fork_in_child() {
  create_mutex.unlock();
  // What the parent had is left alone, locks and all: this process starts anew.
  if (current.load(std::memory_order_relaxed) != nullptr) {
    current.store(nullptr, std::memory_order_relaxed);
    current_generation.fetch_add(1, std::memory_order_relaxed);
  }
}

void stop_engine() {
  if (Globals* all = current.load(std::memory_order_acquire))
    all->engine.stop();  // (G1) pairs with (G2)
}

std::uint32_t milliseconds(const char* name, std::uint32_t fallback) noexcept {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const unsigned long value = std::strtoul(text, &end, 10);
  constexpr unsigned long kMax = 3'600'000;
  if (*end == '\0' && value > 0 && value <= kMax) return static_cast<std::uint32_t>(value);
  log_line(LogLevel::kError, "%s=%s is not a number of milliseconds from 1 to %lu; using %u", name,
           text, kMax, fallback);
  return fallback;
}

}  // namespace

Globals::Globals()
    : generation(current_generation.load(std::memory_order_relaxed)),
      timing{milliseconds("SOFTRDMA_CONNECT_MS", 400), milliseconds("SOFTRDMA_REPLY_MS", 60'000),
             milliseconds("SOFTRDMA_DREQ_MS", 4'000),  milliseconds("SOFTRDMA_TIMEWAIT_MS", 1'000),
             milliseconds("SOFTRDMA_RETRY_MS", 200),   milliseconds("SOFTRDMA_SILENCE_MS", 10'000),
             milliseconds("SOFTRDMA_RNR_MS", 10)} {
  // Numbers that differ between processes make logs readable; with a seed they repeat instead.
  Faults& faults = Faults::instance();
  const std::uint64_t salt =
      faults.seed() != 0 ? faults.seed() : static_cast<std::uint64_t>(::getpid());
  next_qp_number = 0x11 + static_cast<std::uint32_t>(Random(salt).next() % 0x7FF) * 0x400;
}

Globals& globals() noexcept {
  Globals* all = current.load(std::memory_order_acquire);  // (G1) acquire: pairs with release (G2)
  if (all != nullptr) return *all;
  const std::lock_guard lock(create_mutex);
  all = current.load(std::memory_order_relaxed);
  if (all == nullptr) {
    static bool hooked = false;
    if (!hooked) {
      hooked = true;
      ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
      std::atexit(stop_engine);
    }
    all = new Globals;
    current.store(all, std::memory_order_release);  // (G2) release: pairs with acquire (G1)
  }
  return *all;
}

Owned::Owned() noexcept : generation(globals().generation) {}

bool Owned::usable(const char* function) const noexcept {
  if (generation == current_generation.load(std::memory_order_relaxed)) return true;
  log_line(LogLevel::kError,
           "%s: the object belongs to the parent process; make a new one after fork()", function);
  errno = EIO;
  return false;
}

ibv_device* device() noexcept {
  static ibv_device* const the_device = [] {
    auto* d = new ibv_device{};
    d->node_type = IBV_NODE_CA;
    d->transport_type = IBV_TRANSPORT_IB;
    std::strcpy(d->name, "softrdma0");
    std::strcpy(d->dev_name, "softrdma0");
    // No such folder: who looks for a NUMA node or a driver there finds nothing, as with any
    // virtual device.
    std::strcpy(d->dev_path, "/sys/class/infiniband_verbs/softrdma0");
    std::strcpy(d->ibdev_path, "/sys/class/infiniband/softrdma0");
    return d;
  }();
  return the_device;
}

std::uint32_t next_handle() noexcept {
  Globals& all = globals();
  const std::lock_guard lock(all.mu);
  return all.next_handle++;
}

Context* cm_context() noexcept {
  Globals& all = globals();
  {
    const std::lock_guard lock(all.mu);
    if (all.cm_context != nullptr) return all.cm_context;
  }
  Context* fresh = new_context();
  if (fresh == nullptr) return nullptr;
  const std::lock_guard lock(all.mu);
  if (all.cm_context == nullptr) {
    all.cm_context = fresh;
  } else {
    delete fresh;
  }
  return all.cm_context;
}

ibv_pd* cm_pd() noexcept {
  Context* context = cm_context();
  if (context == nullptr) return nullptr;
  Globals& all = globals();
  const std::lock_guard lock(all.mu);
  if (all.cm_pd == nullptr) {
    auto* pd = new ProtectionDomain;
    pd->base.context = context->public_context();
    pd->base.handle = all.next_handle++;
    all.cm_pd = pd->pd();
  }
  return all.cm_pd;
}

void raise_async(ibv_context* context, const ibv_async_event& event) noexcept {
  log_line(LogLevel::kDebug, "asynchronous event %d", static_cast<int>(event.event_type));
  Context::from(context)->async.push(event);
}

// ----------------------------------------------------------------------------------------------
// completions

namespace {

/// Ends the delay of an event that a coalescing fault holds back. Its lock comes before the CQ's.
class HeldEvent final : public CompletionQueue::Held {
 public:
  explicit HeldEvent(CompletionQueue& cq) : cq_(&cq) {}
  void on_events(std::uint32_t) noexcept override {}
  void on_timer(int, std::uint64_t) noexcept override {
    const std::lock_guard lock(mutex_);
    if (cq_ == nullptr) return;
    const std::lock_guard cq_lock(cq_->mu);
    if (!cq_->event_held) return;
    cq_->event_held = false;
    cq_->channel->events.push(cq_);
  }
  void detach() noexcept override {
    const std::lock_guard lock(mutex_);
    cq_ = nullptr;
  }

 private:
  std::mutex mutex_;
  CompletionQueue* cq_;
};

void notify(CompletionQueue& cq) noexcept {
  cq.arm = CompletionQueue::Arm::kNone;
  if (cq.channel == nullptr) return;
  const FaultPlan& plan = Faults::instance().plan();
  if (plan.any) {
    if (cq.random.percent(plan.coalesce_percent)) {
      Faults::instance().count();
      cq.event_held = true;
      if (!cq.timers) cq.timers = std::make_shared<HeldEvent>(cq);
      globals().engine.arm_timer(now_ns() + cq.random.between(100, 1000) * 1000, cq.timers, 0, 0);
      return;
    }
    if (cq.random.percent(plan.spurious_percent)) {
      Faults::instance().count();
      cq.channel->events.push(&cq);
    }
  }
  cq.channel->events.push(&cq);
}

/// With cq.mu held. The queue pairs follow on the engine's thread: their locks come before this
/// one.
void fail_locked(CompletionQueue& cq) noexcept {
  if (cq.failed) return;
  cq.failed = true;
  log_line(LogLevel::kInfo, "a completion queue of %u entries failed", cq.capacity);
  ibv_async_event event{};
  event.element.cq = &cq.base;
  event.event_type = IBV_EVENT_CQ_ERR;
  raise_async(cq.base.context, event);
  std::vector<std::weak_ptr<Endpoint>> victims;
  for (QueuePair* user : cq.users) victims.emplace_back(user->endpoint);
  globals().engine.post([victims = std::move(victims)] {
    for (const auto& weak : victims) {
      if (const auto endpoint = weak.lock()) {
        const std::lock_guard lock(endpoint->mu);
        endpoint->to_error();
      }
    }
  });
}

}  // namespace

void push_completion(CompletionQueue& cq, const ibv_wc& wc, bool solicited) noexcept {
  const FaultPlan& plan = Faults::instance().plan();
  const std::lock_guard lock(cq.mu);
  if (cq.failed) return;
  ++cq.pushed;
  const bool forced = plan.cq_error_after != 0 && cq.pushed > plan.cq_error_after;
  if (cq.count == cq.capacity || forced) {
    if (forced) Faults::instance().count();
    fail_locked(cq);
    return;
  }
  ibv_wc& slot = cq.ring[(cq.head + cq.count) & (cq.ring.size() - 1)];
  slot = wc;
  if (wc.status != IBV_WC_SUCCESS && plan.poison_failed_wc) {
    // Real devices leave whatever was there.
    std::memset(&slot, 0xA5, sizeof slot);
    slot.wr_id = wc.wr_id;
    slot.status = wc.status;
    slot.qp_num = wc.qp_num;
    slot.vendor_err = wc.vendor_err;
  }
  ++cq.count;
  using Arm = CompletionQueue::Arm;
  if (cq.arm == Arm::kNext ||
      (cq.arm == Arm::kSolicited && (solicited || wc.status != IBV_WC_SUCCESS))) {
    notify(cq);
  }
}

void fail_cq(CompletionQueue& cq) noexcept {
  const std::lock_guard lock(cq.mu);
  fail_locked(cq);
}

// ----------------------------------------------------------------------------------------------
// receives

void ReceiveRing::reset(std::uint32_t slots, std::uint32_t sge_max) {
  slots_ = slots;
  sge_max_ = sge_max;
  head_ = count_ = 0;
  ring_.assign(slots, Slot{});
  sges_.assign(std::size_t{slots} * sge_max, ibv_sge{});
}

void ReceiveRing::push(const ibv_recv_wr& wr) noexcept {
  const std::uint32_t at = (head_ + count_) & (slots_ - 1);
  ring_[at] = {wr.wr_id, static_cast<std::uint32_t>(wr.num_sge)};
  std::copy_n(wr.sg_list, wr.num_sge,
              sges_.begin() + static_cast<std::ptrdiff_t>(std::size_t{at} * sge_max_));
  ++count_;
}

bool ReceiveRing::pop(Taken& out) noexcept {
  if (count_ == 0) return false;
  const Slot& slot = ring_[head_];
  out.wr_id = slot.wr_id;
  out.num_sge = slot.num_sge;
  out.length = 0;
  for (std::uint32_t i = 0; i < slot.num_sge; ++i) {
    out.sge[i] = sges_[std::size_t{head_} * sge_max_ + i];
    out.length += out.sge[i].length;
  }
  head_ = (head_ + 1) & (slots_ - 1);
  --count_;
  return true;
}

// ----------------------------------------------------------------------------------------------
// keys

void KeyTable::add(MemoryRegion* mr) {
  static std::atomic<std::uint64_t> ordinal{0};
  const std::unique_lock lock(mutex_);
  Random draw = Faults::instance().stream(2, ordinal.fetch_add(1, std::memory_order_relaxed));
  std::uint32_t key = 0;
  do {
    key = static_cast<std::uint32_t>(draw.next() >> 32);
  } while (key == 0 || regions_.contains(key));
  mr->base.lkey = key;
  constexpr std::uint32_t kRemote =
      IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  mr->base.rkey = (mr->access & kRemote) != 0 ? key : 0;
  regions_.emplace(key, mr);
}

void KeyTable::remove(MemoryRegion* mr) {
  const std::unique_lock lock(mutex_);
  regions_.erase(mr->base.lkey);
}

std::uint8_t* KeyTable::locate(const ibv_pd* pd, std::uint32_t key, std::uint64_t address,
                               std::uint64_t length, Access access) const noexcept {
  const auto found = regions_.find(key);
  if (found == regions_.end()) return nullptr;
  const MemoryRegion& mr = *found->second;
  if (mr.base.pd != pd) return nullptr;
  std::uint32_t needed = 0;
  switch (access) {
    case Access::kLocalRead: break;
    case Access::kLocalWrite: needed = IBV_ACCESS_LOCAL_WRITE; break;
    case Access::kRemoteRead: needed = IBV_ACCESS_REMOTE_READ; break;
    case Access::kRemoteWrite: needed = IBV_ACCESS_REMOTE_WRITE; break;
    case Access::kRemoteAtomic: needed = IBV_ACCESS_REMOTE_ATOMIC; break;
  }
  if ((mr.access & needed) != needed) return nullptr;
  if (address < mr.iova || length > mr.base.length || address - mr.iova > mr.base.length - length)
    return nullptr;
  return static_cast<std::uint8_t*>(mr.base.addr) + (address - mr.iova);
}

bool KeyTable::check(const ibv_pd* pd, std::uint32_t key, std::uint64_t address,
                     std::uint64_t length, Access access) const {
  const std::shared_lock lock(mutex_);
  return locate(pd, key, address, length, access) != nullptr;
}

bool KeyTable::read(const ibv_pd* pd, std::uint32_t key, std::uint64_t address, std::uint8_t* to,
                    std::uint64_t length, Access access) const {
  const std::shared_lock lock(mutex_);
  const std::uint8_t* from = locate(pd, key, address, length, access);
  if (from == nullptr) return false;
  if (length == 8 && reinterpret_cast<std::uintptr_t>(from) % 8 == 0) {
    // Eight aligned bytes are read and written whole, as any host's bus does: an atomic write is
    // seen whole.
    const std::uint64_t value =
        __atomic_load_n(reinterpret_cast<const std::uint64_t*>(from), __ATOMIC_ACQUIRE);
    std::memcpy(to, &value, sizeof value);
  } else {
    std::memcpy(to, from, length);
  }
  return true;
}

bool KeyTable::write(const ibv_pd* pd, std::uint32_t key, std::uint64_t address,
                     const std::uint8_t* from, std::uint64_t length, Access access) const {
  const std::shared_lock lock(mutex_);
  std::uint8_t* to = locate(pd, key, address, length, access);
  if (to == nullptr) return false;
  if (length == 8 && reinterpret_cast<std::uintptr_t>(to) % 8 == 0) {
    std::uint64_t value = 0;
    std::memcpy(&value, from, sizeof value);
    // Release, for a user who polls the memory itself with an acquire load.
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(to), value, __ATOMIC_RELEASE);
  } else {
    std::memcpy(to, from, length);
  }
  return true;
}

KeyTable::AtomicResult KeyTable::atomic(const ibv_pd* pd, std::uint32_t key, std::uint64_t address,
                                        bool compare_swap, std::uint64_t first, std::uint64_t swap,
                                        std::uint64_t& before) const {
  const std::shared_lock lock(mutex_);
  std::uint8_t* at = locate(pd, key, address, 8, Access::kRemoteAtomic);
  if (at == nullptr) return AtomicResult::kAccess;
  if (reinterpret_cast<std::uintptr_t>(at) % 8 != 0) return AtomicResult::kMisaligned;
  auto* word = reinterpret_cast<std::uint64_t*>(at);
  if (compare_swap) {
    before = first;
    __atomic_compare_exchange_n(word, &before, swap, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  } else {
    before = __atomic_fetch_add(word, first, __ATOMIC_ACQ_REL);
  }
  return AtomicResult::kDone;
}

bool KeyTable::check_list(const ibv_pd* pd, SgeSpan list, Access access) const {
  const std::shared_lock lock(mutex_);
  for (std::uint32_t i = 0; i < list.count; ++i) {
    if (list.sge[i].length != 0 &&
        locate(pd, list.sge[i].lkey, list.sge[i].addr, list.sge[i].length, access) == nullptr) {
      return false;
    }
  }
  return true;
}

namespace {
/// Calls piece(sge, offset in it, position in the data, length) for each part of [offset, offset +
/// length).
template <class Piece>
bool for_each_piece(SgeSpan list, std::uint64_t offset, std::uint64_t length, Piece&& piece) {
  std::uint64_t done = 0;
  for (std::uint32_t i = 0; i < list.count && done < length; ++i) {
    const ibv_sge& sge = list.sge[i];
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const std::uint64_t part = std::min<std::uint64_t>(sge.length - offset, length - done);
    if (!piece(sge, offset, done, part)) return false;
    done += part;
    offset = 0;
  }
  return done == length;
}
}  // namespace

bool KeyTable::gather(const ibv_pd* pd, SgeSpan list, std::uint64_t offset, std::uint8_t* to,
                      std::uint64_t length) const {
  return for_each_piece(
      list, offset, length,
      [&](const ibv_sge& sge, std::uint64_t at, std::uint64_t done, std::uint64_t part) {
        return read(pd, sge.lkey, sge.addr + at, to + done, part, Access::kLocalRead);
      });
}

bool KeyTable::scatter(const ibv_pd* pd, SgeSpan list, std::uint64_t offset,
                       const std::uint8_t* from, std::uint64_t length) const {
  return for_each_piece(
      list, offset, length,
      [&](const ibv_sge& sge, std::uint64_t at, std::uint64_t done, std::uint64_t part) {
        return write(pd, sge.lkey, sge.addr + at, from + done, part, Access::kLocalWrite);
      });
}

}  // namespace softrdma
