// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <endian.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sluice/core/cacheline.hpp"
#include "sluice/core/completion_source.hpp"
#include "sluice/core/mailbox.hpp"
#include "stamp.hpp"

namespace sluice::bench {

/// Sources without a device.

/// Always full: a poll does what a provider's does. For each completion it checks the owner bit of
/// a 64-byte entry of the queue, turns its fields from big endian, looks up the work request's id,
/// and writes an ibv_wc; at the end it writes the doorbell record. The entries lie there already.
class RingSource final : public CompletionSource {
 public:
  /// `entries`: a power of two. Their completions go round `connections` queue pairs.
  explicit RingSource(std::uint32_t entries = 1024, std::uint32_t connections = 1)
      : ring_(std::bit_ceil(entries)), ids_(ring_.size()), mask_(entries - 1) {
    for (std::uint32_t i = 0; i < ring_.size(); ++i) {
      ring_[i].byte_count = htobe32(64);
      ring_[i].queue_pair = htobe32(i % connections);
      ring_[i].request = htobe16(static_cast<std::uint16_t>(i & mask_));
      ring_[i].opcode_and_owner = kReceive << 4 | kSoftware;
      ids_[i] = i;
    }
  }

  [[gnu::noinline]] PollOutcome poll(std::span<ibv_wc> out) noexcept override {
    std::uint32_t count = 0;
    for (ibv_wc& wc : out) {
      const Entry& entry = ring_[consumed_ & mask_];
      const std::uint8_t code = std::atomic_ref<const std::uint8_t>(entry.opcode_and_owner)
                                    .load(std::memory_order_acquire);
      if ((code & 1) != kSoftware) break;
      switch (code >> 4) {
        case kReceive: wc.opcode = IBV_WC_RECV; break;
        case kSend: wc.opcode = IBV_WC_SEND; break;
        default: return {count, SourceFault::poll_failed, EIO};
      }
      wc.wr_id = ids_[be16toh(entry.request) & mask_];
      wc.status = IBV_WC_SUCCESS;
      wc.vendor_err = 0;
      wc.byte_len = be32toh(entry.byte_count);
      wc.imm_data = entry.immediate;
      wc.qp_num = be32toh(entry.queue_pair) & 0xFFFFFF;
      wc.src_qp = 0;
      wc.wc_flags = 0;
      wc.pkey_index = 0;
      wc.slid = 0;
      wc.sl = 0;
      wc.dlid_path_bits = 0;
      ++consumed_;
      ++count;
    }
    doorbell_.store(htobe32(consumed_ & 0xFFFFFF), std::memory_order_release);  // for the device
    return {count, SourceFault::none, 0};
  }
  EventOutcome consume_event() noexcept override { return {}; }
  [[nodiscard]] int wait_fd() const noexcept override { return -1; }
  [[nodiscard]] std::uint32_t capacity() const noexcept override {
    return static_cast<std::uint32_t>(ring_.size());
  }
  [[nodiscard]] std::string_view name() const noexcept override { return "ring"; }

 private:
  static constexpr std::uint8_t kSend = 0, kReceive = 2;
  static constexpr std::uint8_t kSoftware = 1;  ///< the owner
  struct alignas(64) Entry {
    std::uint32_t immediate = 0;
    std::uint32_t byte_count = 0;
    std::uint32_t queue_pair = 0;
    std::uint16_t request = 0;
    std::uint8_t signature = 0;
    std::uint8_t opcode_and_owner = 0;
  };
  std::vector<Entry> ring_;
  std::vector<std::uint64_t> ids_;
  const std::uint32_t mask_;
  std::uint32_t consumed_ = 0;
  alignas(kCacheLine) std::atomic<std::uint32_t> doorbell_{0};
};

/// One completion every `interval`, as long as it is told to; wr_id is the stamp taken in poll().
class TimedSource final : public CompletionSource {
 public:
  explicit TimedSource(std::chrono::nanoseconds interval) : interval_(ticks(interval)) {}

  /// So many more from now on. Any thread, when the last ones are over.
  void allow(std::uint64_t completions) noexcept {
    allowed_.store(completions, std::memory_order_release);  // (1) release: pairs with (2)
  }

  PollOutcome poll(std::span<ibv_wc> out) noexcept override {
    // (2) acquire: pairs with (1).
    const std::uint64_t left = allowed_.load(std::memory_order_acquire);
    if (left == 0) return {};
    const std::uint64_t now = stamp();
    if (now < next_) return {};
    next_ = now + interval_;
    allowed_.store(left - 1, std::memory_order_relaxed);
    out[0] = ibv_wc{};
    out[0].opcode = IBV_WC_RECV;
    out[0].byte_len = 64;
    out[0].wr_id = stamp();
    return {1, SourceFault::none, 0};
  }
  EventOutcome consume_event() noexcept override { return {}; }
  [[nodiscard]] int wait_fd() const noexcept override { return -1; }
  [[nodiscard]] std::uint32_t capacity() const noexcept override { return 64; }
  [[nodiscard]] std::string_view name() const noexcept override { return "timed"; }

 private:
  const std::uint64_t interval_;
  std::uint64_t next_ = 0;
  alignas(kCacheLine) std::atomic<std::uint64_t> allowed_{0};
};

/// A queue that another thread fills, with an event descriptor as a completion channel's: one event
/// per arm, and arming takes no notice of what is already there.
class EventSource final : public CompletionSource {
 public:
  explicit EventSource(std::uint32_t capacity = 64) : ring_(std::bit_ceil(capacity)) {}

  [[nodiscard]] bool usable() const noexcept { return event_.fd() >= 0; }

  /// One completion, whose wr_id is a stamp taken just before. One thread at a time. False: full.
  bool complete(std::uint32_t qp_num = 0) noexcept {
    const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) == ring_.size()) return false;  // (1) with (4)
    ibv_wc& wc = ring_[tail & (ring_.size() - 1)];
    wc = ibv_wc{};
    wc.opcode = IBV_WC_RECV;
    wc.qp_num = qp_num;
    wc.byte_len = 64;
    wc.wr_id = stamp();
    // (2) seq_cst: with (3) a Dekker pair of the consumer's arming and its poll; release for (5).
    tail_.store(tail + 1, std::memory_order_seq_cst);
    // (3) seq_cst. A plain look first: a queue that is polled is not armed.
    if (armed_.load(std::memory_order_seq_cst) &&
        armed_.exchange(false, std::memory_order_seq_cst)) {
      event_.signal();
    }
    return true;
  }

  PollOutcome poll(std::span<ibv_wc> out) noexcept override {
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    const std::uint64_t tail = tail_.load(std::memory_order_seq_cst);  // (5) pairs with (2)
    std::uint32_t count = 0;
    for (; count < out.size() && head + count != tail; ++count) {
      out[count] = ring_[(head + count) & (ring_.size() - 1)];
    }
    if (count > 0) head_.store(head + count, std::memory_order_release);  // (4) pairs with (1)
    return {count, SourceFault::none, 0};
  }
  EventOutcome consume_event() noexcept override {
    std::uint64_t events = 0;
    if (::read(event_.fd(), &events, sizeof events) < 0) return {};
    armed_.store(true, std::memory_order_seq_cst);  // pairs with (3); then it is polled, (5)
    return {EventOutcome::Kind::consumed, SourceFault::none, 0};
  }
  [[nodiscard]] int wait_fd() const noexcept override { return event_.fd(); }
  [[nodiscard]] std::uint32_t capacity() const noexcept override {
    return static_cast<std::uint32_t>(ring_.size());
  }
  [[nodiscard]] std::string_view name() const noexcept override { return "event"; }

 private:
  std::vector<ibv_wc> ring_;
  EventFd event_;
  alignas(kCacheLine) std::atomic<std::uint64_t> tail_{0};  ///< the filling thread's
  alignas(kCacheLine) std::atomic<std::uint64_t> head_{0};  ///< the poller's
  alignas(kCacheLine) std::atomic<bool> armed_{true};
};

}  // namespace sluice::bench
