// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/core/cacheline.hpp"
#include "sluice/core/completion_source.hpp"
#include "sluice/core/status.hpp"

namespace sluice::bench {

/// A completion queue that is never at a loss: poll() copies the next completions of a pattern,
/// numbered by wr_id, until as many were given as allow() has allowed. There is no device, no lock
/// and no event; what is measured with it is what comes after the poll.
///
/// Thread-safety: poll() and allow() by the owner, retire() by any thread (with one worker at a
/// time if `one_worker`). Cost: a copy of each completion and one store into it.
class InstantSource final : public CompletionSource {
 public:
  struct Options {
    /// What is given, over and over; its length is a multiple of `batch`. wr_id is set by poll().
    std::vector<ibv_wc> pattern;
    std::uint32_t batch = 32;  ///< completions of a full poll; none is given in parts
    std::uint32_t capacity = 1024;
    /// Completions that may be between poll() and retire(); 0: no limit, and retire() does nothing.
    std::uint32_t in_flight_max = 0;
    bool one_worker = true;
    std::string name = "instant";
  };

  explicit InstantSource(Options options) : options_(std::move(options)) {
    SLUICE_CHECK(!options_.pattern.empty() && options_.pattern.size() % options_.batch == 0,
                 "a pattern is a number of whole batches");
    SLUICE_CHECK(options_.in_flight_max == 0 || options_.in_flight_max >= options_.batch,
                 "less than a batch in flight: nothing would ever be given");
  }

  /// Lets `completions` more be polled; a number of whole batches. Between rounds.
  void allow(std::uint64_t completions) noexcept { allowed_ += completions; }
  /// All that was allowed has been polled.
  [[nodiscard]] bool exhausted() const noexcept { return given_ == allowed_; }
  [[nodiscard]] std::uint64_t given() const noexcept { return given_; }

  PollOutcome poll(std::span<ibv_wc> out) noexcept override {
    const std::uint32_t count = options_.batch;
    if (given_ == allowed_ || out.size() < count) return {};
    if (options_.in_flight_max != 0 && given_ + count - seen_retired_ > options_.in_flight_max) {
      // (1) acquire: pairs with (2): what is given next may reuse what the handler has let go of.
      seen_retired_ = retired_.load(std::memory_order_acquire);
      if (given_ + count - seen_retired_ > options_.in_flight_max) return {};
    }
    std::memcpy(out.data(), &options_.pattern[at_], count * sizeof(ibv_wc));
    for (std::uint32_t i = 0; i < count; ++i) out[i].wr_id = given_ + i;
    at_ += count;
    if (at_ == options_.pattern.size()) at_ = 0;
    given_ += count;
    return {count, SourceFault::none, 0};
  }

  EventOutcome consume_event() noexcept override { return {}; }
  [[nodiscard]] int wait_fd() const noexcept override { return -1; }
  [[nodiscard]] std::uint32_t capacity() const noexcept override { return options_.capacity; }
  [[nodiscard]] std::string_view name() const noexcept override { return options_.name; }

  void retire(std::span<const ibv_wc> completions) noexcept override {
    if (options_.in_flight_max == 0) return;
    // (2) release: pairs with (1).
    if (options_.one_worker) {
      retired_.store(retired_.load(std::memory_order_relaxed) + completions.size(),
                     std::memory_order_release);
    } else {
      retired_.fetch_add(completions.size(), std::memory_order_release);
    }
  }

 private:
  const Options options_;
  std::size_t at_ = 0;  ///< in the pattern
  std::uint64_t given_ = 0;
  std::uint64_t allowed_ = 0;
  std::uint64_t seen_retired_ = 0;
  alignas(kCacheLine) std::atomic<std::uint64_t> retired_{0};
};

/// `count` successful receives; `qp_of(i)` says whose the i-th is.
template <typename QpOf>
[[nodiscard]] std::vector<ibv_wc> receives(std::size_t count, QpOf qp_of) {
  std::vector<ibv_wc> pattern(count);
  for (std::size_t i = 0; i < count; ++i) {
    pattern[i].status = IBV_WC_SUCCESS;
    pattern[i].opcode = IBV_WC_RECV;
    pattern[i].qp_num = qp_of(i);
    pattern[i].byte_len = 64;
  }
  return pattern;
}

}  // namespace sluice::bench
