// SPDX-License-Identifier: BSD-3-Clause
#include "kv/replication/applier.hpp"

#include <algorithm>
#include <utility>

namespace sluice::kv {
namespace {

/// What is applied as one batch at most: replies wait for it.
constexpr std::size_t kBatchBytes = std::size_t{1} << 20;
constexpr std::size_t kBatchEntries = 1024;

}  // namespace

void Applier::raise(std::uint64_t index) noexcept {
  std::uint64_t known = target_.load(std::memory_order_relaxed);
  while (index > known && !target_.compare_exchange_weak(known, index, std::memory_order_relaxed)) {
  }
}

void Applier::kick() noexcept {
  // OneAtATime hands the target on to whoever is at work.
  if (target_.load(std::memory_order_relaxed) > store_.applied_index())
    turn_.run([this]() noexcept { work(); });
}

void Applier::cut(std::uint64_t index) {
  const std::lock_guard lock(mutex_);
  target_.store(std::min(target_.load(std::memory_order_relaxed), index),
                std::memory_order_relaxed);
}

void Applier::retry() noexcept {
  if (!stuck_.exchange(false, std::memory_order_relaxed)) return;
  turn_.run([this]() noexcept { work(); });
}

void Applier::observe(std::shared_ptr<const Observer> observer) {
  const std::lock_guard lock(mutex_);
  observer_ = std::move(observer);
}

Status Applier::pause_for(const std::function<Status()>& work) {
  const std::lock_guard lock(mutex_);
  const Status status = work();
  // The store may hold another history now: what counted in the one before does not name an entry
  // of this one.
  target_.store(store_.applied_index(), std::memory_order_relaxed);
  return status;
}

void Applier::work() noexcept {
  const std::lock_guard lock(mutex_);
  while (!stuck_.load(std::memory_order_relaxed)) {  // bound: each turn applies an entry, or ends
    const std::uint64_t target = target_.load(std::memory_order_relaxed);
    if (store_.applied_index() >= target) return;
    const Status status = apply_next(target);
    failing_.store(!status.ok(), std::memory_order_relaxed);
    if (!status.ok()) {
      stuck_.store(true, std::memory_order_relaxed);
      failed_(status);
    }
  }
}

Status Applier::apply_next(std::uint64_t target) {
  const std::uint64_t first = store_.applied_index() + 1;
  bytes_.clear();
  entries_.clear();
  std::vector<std::size_t> ends;
  const auto read = log_.read(first, kBatchBytes, [&](const Entry& entry) {
    if (entry.index > target) return false;
    bytes_.insert(bytes_.end(), entry.payload.begin(), entry.payload.end());
    entries_.push_back({entry.epoch, entry.index, {}});
    ends.push_back(bytes_.size());
    return entry.index < target && entries_.size() < kBatchEntries;
  });
  if (!read) return read.status().with_context("apply entry " + std::to_string(first));
  if (entries_.empty())
    return {StatusCode::internal, "entry " + std::to_string(first) + " counts, and is not there"};
  for (std::size_t i = 0, begin = 0; i < entries_.size(); begin = ends[i++])
    entries_[i].payload = std::span(bytes_).subspan(begin, ends[i] - begin);
  const auto outcomes = store_.apply(entries_);
  if (!outcomes) return outcomes.status();
  if (observer_ != nullptr) (*observer_)(first, *outcomes);
  return {};
}

}  // namespace sluice::kv
