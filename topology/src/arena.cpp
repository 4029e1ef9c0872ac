// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/arena.hpp"

#include <oneapi/tbb/task_scheduler_observer.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/topology/cpus.hpp"

namespace sluice::topology {
namespace {

/// A thread's stay in an arena. A thread can be in several at once, or in one several times: a task
/// of the one calls execute() of the other. It leaves them in the reverse order.
struct Stay {
  std::uint64_t arena = 0;           ///< a number and not an address, which may come again
  std::optional<CpuSet> to_restore;  ///< unset: it kept its own binding
};
thread_local std::vector<Stay> stays;

/// Binds what enters the arena. TBB calls it on the entering thread itself, when that comes from
/// elsewhere: an execute() from within the same arena is no entry.
class Binder : public tbb::task_scheduler_observer {
 public:
  Binder(tbb::task_arena& arena, CpuSet pus)
      : tbb::task_scheduler_observer(arena), pus_(std::move(pus)), number_(next_number()) {}

  void on_scheduler_entry(bool is_worker) noexcept override {
    try {
      enter(is_worker);
    } catch (const std::exception&) {  // no memory for the books: the thread stays where it was
      count_failure();
    }
    const std::lock_guard lock(mutex_);
    ++inside_;
  }

  void on_scheduler_exit(bool /*is_worker*/) noexcept override {
    try {
      leave();
    } catch (const std::exception&) {
      count_failure();
    }
    const std::lock_guard lock(mutex_);
    if (--inside_ == 0) left_.notify_all();
  }

  /// Until all threads have left; false if they have not done so in time.
  bool wait_until_empty() {
    std::unique_lock lock(mutex_);
    return left_.wait_for(lock, kLeaveTimeMax, [this] { return inside_ == 0; });
  }

  [[nodiscard]] bool this_thread_is_inside() const noexcept { return my_stay() != stays.rend(); }
  [[nodiscard]] const CpuSet& pus() const noexcept { return pus_; }
  [[nodiscard]] unsigned failures() const noexcept {
    return failures_.load(std::memory_order_relaxed);
  }

 private:
  /// TBB's threads leave an arena without work within a millisecond; on a busy machine later.
  static constexpr std::chrono::seconds kLeaveTimeMax{10};

  static std::uint64_t next_number() noexcept {
    static std::atomic<std::uint64_t> numbers{0};
    return numbers.fetch_add(1, std::memory_order_relaxed);
  }

  [[nodiscard]] std::vector<Stay>::reverse_iterator my_stay() const noexcept {
    return std::find_if(stays.rbegin(), stays.rend(),
                        [this](const Stay& stay) { return stay.arena == number_; });
  }

  void enter(bool is_worker) {
    // TBB's own threads may have inherited the binding of whoever was in an arena when they were
    // started: that is nothing to keep, nor to give back. They belong to the whole process.
    const bool from_the_pool = is_worker && stays.empty();
    CpuSet former = current_thread_binding();
    Stay& stay = stays.emplace_back(Stay{number_, std::nullopt});
    if (from_the_pool) {
      if (const auto cpus = allowed_cpus()) former = CpuSet(*cpus);
    } else if (!former.empty() && former.is_within(pus_)) {
      return;
    }
    // Restored even if the kernel binds to a part of the set only, which it tells as a failure.
    if (!former.empty()) stay.to_restore = std::move(former);
    if (!bind_current_thread(pus_)) count_failure();
  }

  void leave() {
    const auto stay = my_stay();
    if (stay == stays.rend()) return;  // enter() had no memory for it
    const std::optional<CpuSet> to_restore = std::move(stay->to_restore);
    stays.erase(std::next(stay).base());
    if (to_restore && !bind_current_thread(*to_restore)) count_failure();
  }

  void count_failure() noexcept { failures_.fetch_add(1, std::memory_order_relaxed); }

  const CpuSet pus_;
  const std::uint64_t number_;
  std::atomic<unsigned> failures_{0};
  std::mutex mutex_;  // taken when threads come and go, not on a data path
  std::condition_variable left_;
  unsigned inside_ = 0;
};

}  // namespace

namespace {

/// Binders of arenas that are gone, until the process ends: a TBB thread that was on its way in
/// when its arena was destroyed still enters, and has to be told when it leaves. A few hundred
/// bytes each.
void keep_for_late_comers(std::unique_ptr<Binder> binder) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::unique_ptr<Binder>>;  // TBB's threads outlive main
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(binder));
}

}  // namespace

struct BoundArena::Impl {
  Impl(const CpuSet& pus, int concurrency)
      : arena(concurrency), binder(std::make_unique<Binder>(arena, pus)) {
    arena.initialize();
    binder->observe(true);
  }

  ~Impl() {
    SLUICE_CHECK(!binder->this_thread_is_inside(),
                 "a thread destroys the BoundArena that it is in");
    // Once the arena is given up, its threads leave, and tell the observer. That is never taken
    // away: observe(false) tells no thread that it has left, so whoever is still looking for work
    // here, or comes late, would keep the binding for ever.
    arena.terminate();
    binder->wait_until_empty();
    keep_for_late_comers(std::move(binder));
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  tbb::task_arena arena;
  std::unique_ptr<Binder> binder;
};

Result<std::unique_ptr<BoundArena>> BoundArena::create(const CpuSet& pus, int concurrency) {
  if (pus.empty()) {
    return Status(StatusCode::invalid_argument, "an arena needs at least one PU");
  }
  if (concurrency < 0) {
    return Status(StatusCode::invalid_argument,
                  "an arena cannot have " + std::to_string(concurrency) + " threads");
  }
  const std::size_t each = std::min<std::size_t>(pus.count(), std::numeric_limits<int>::max());
  try {
    auto impl = std::make_unique<Impl>(pus, concurrency > 0 ? concurrency : static_cast<int>(each));
    return std::unique_ptr<BoundArena>(new BoundArena(std::move(impl)));
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::resource_exhausted, "oneTBB has no memory for an arena");
  } catch (const std::exception& error) {
    return Status(StatusCode::internal, std::string("oneTBB makes no arena: ") + error.what());
  }
}

BoundArena::BoundArena(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
BoundArena::~BoundArena() = default;

tbb::task_arena& BoundArena::arena() noexcept {
  return impl_->arena;
}
const CpuSet& BoundArena::pus() const noexcept {
  return impl_->binder->pus();
}
unsigned BoundArena::bind_failures() const noexcept {
  return impl_->binder->failures();
}

}  // namespace sluice::topology
