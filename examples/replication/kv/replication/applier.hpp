// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kv/log/log.hpp"
#include "kv/store/store.hpp"
#include "one_at_a_time.hpp"

namespace sluice::kv {

/// Takes entries that count for good from the log to the store, each once, in their order.
///
/// Thread-safety: advance() by any thread; one at a time is at it, and nobody waits for it: whoever
/// comes meanwhile leaves a note (OneAtATime).
class Applier {
 public:
  /// What entries from `first` on did. On the thread that applies.
  using Observer = std::function<void(std::uint64_t first, std::span<const Outcome> outcomes)>;
  /// The store or the log let us down: nothing is applied any more until retry().
  using Failed = std::function<void(const Status&)>;

  Applier(const Log& log, Store& store, Failed failed)
      : log_(log), store_(store), failed_(std::move(failed)) {}

  /// All entries up to this one count. A lower number than before changes nothing. With the
  /// journal's lock held, so that it comes in order with cut(); then kick(), without it.
  void raise(std::uint64_t index) noexcept;
  /// Applies what counts, unless somebody is at it.
  void kick() noexcept;
  /// The log is about to be cut behind this entry: nothing beyond it is applied any more when this
  /// returns. Without the journal's lock: whoever applies may need it.
  void cut(std::uint64_t index);
  /// Whoever answers clients; nullptr: nobody. After it has returned the one before is not called
  /// any more.
  void observe(std::shared_ptr<const Observer> observer);
  /// Runs `work` while nothing is applied: the store is replaced, the position goes elsewhere.
  [[nodiscard]] Status pause_for(const std::function<Status()>& work);
  /// Tries again what failed. Every second or so.
  void retry() noexcept;
  /// Since something failed nothing could be applied: more would only wait for it.
  [[nodiscard]] bool failing() const noexcept { return failing_.load(std::memory_order_relaxed); }

 private:
  void work() noexcept;
  [[nodiscard]] Status apply_next(std::uint64_t target);

  const Log& log_;
  Store& store_;
  const Failed failed_;
  replicate::OneAtATime turn_;
  std::atomic<std::uint64_t> target_{0};
  std::atomic<bool> stuck_{false}, failing_{false};
  std::mutex mutex_;  ///< who holds it applies, or keeps others from it
  std::shared_ptr<const Observer> observer_;
  std::vector<std::byte> bytes_;
  std::vector<Store::Entry> entries_;
};

}  // namespace sluice::kv
