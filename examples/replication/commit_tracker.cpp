// SPDX-License-Identifier: BSD-3-Clause
#include "commit_tracker.hpp"

#include <algorithm>
#include <array>
#include <functional>

#include "sluice/core/status.hpp"

namespace replicate {
namespace {
constexpr std::size_t kReplicasMax = 64;
}

std::uint64_t quorum_mark(std::span<const std::uint64_t> values, std::uint32_t quorum) noexcept {
  SLUICE_CHECK(quorum >= 1 && quorum <= values.size() && values.size() <= kReplicasMax,
               "quorum_mark: the quorum must be 1 to the number of replicas, 64 at most");
  std::array<std::uint64_t, kReplicasMax> sorted{};
  std::ranges::copy(values, sorted.begin());
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(values.size());
  const auto wanted = sorted.begin() + (quorum - 1);
  std::nth_element(sorted.begin(), wanted, end, std::greater<>{});
  return *wanted;
}

CommitTracker::CommitTracker(std::uint32_t replicas, std::uint32_t quorum,
                             std::uint64_t in_flight_max)
    : quorum_(quorum), marks_(replicas), sent_at_(in_flight_max) {}

void CommitTracker::sent() noexcept {
  const std::uint64_t record = sent_.load(std::memory_order_relaxed);
  sent_at_[record % sent_at_.size()] = Clock::now();
  sent_.store(record + 1, std::memory_order_release);  // (5) release: pairs with (6), the time
}

bool CommitTracker::appended(std::uint32_t replica, std::uint64_t count) noexcept {
  // (6) acquire: pairs with (5). The replica's answer cannot be ahead of what was sent, but it came
  // over the device, which the language knows nothing of: this load is what orders the two.
  if (count > sent_.load(std::memory_order_acquire)) return false;
  auto& mark = marks_[replica].count;
  std::uint64_t before = mark.load(std::memory_order_relaxed);
  // Answers over different connections may overtake each other: the mark keeps the highest.
  // (4) release: pairs with (3), and makes (6) known to whoever advances.
  while (before < count && !mark.compare_exchange_weak(before, count, std::memory_order_acq_rel,
                                                       std::memory_order_relaxed)) {
  }
  one_at_a_time_.run([this]() noexcept { advance(); });
  return true;
}

void CommitTracker::advance() noexcept {
  std::array<std::uint64_t, kReplicasMax> counts;
  for (std::size_t i = 0; i < marks_.size(); ++i)
    counts[i] = appended_by(static_cast<std::uint32_t>(i));
  const std::uint64_t from = committed_.load(std::memory_order_relaxed);
  const std::uint64_t to = quorum_mark(std::span(counts).first(marks_.size()), quorum_);
  if (to <= from) return;
  const auto now = Clock::now();
  for (std::uint64_t record = from; record < to; ++record)
    latencies_.add(static_cast<std::uint64_t>((now - sent_at_[record % sent_at_.size()]).count()));
  // (2) release: pairs with (1): the feeder may now use these records' places in sent_at_.
  committed_.store(to, std::memory_order_release);
}

}  // namespace replicate
