// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "sluice/core/status.hpp"

namespace sluice {

class ReceivePool;

/// Where a ReceivePool posts: a connection, a connection request or an SRQ, over librpma or verbs.
/// `post` posts one receive of `length` bytes at `offset` of the pool's memory with this wr_id. The
/// pool never calls it from two threads at once.
class ReceivePoster {
 public:
  virtual ~ReceivePoster() = default;
  [[nodiscard]] virtual Status post(std::size_t offset, std::size_t length,
                                    std::uint64_t wr_id) = 0;
  /// Whether the queue still takes receives after one of them completed with an error: an SRQ does
  /// (only the connection failed), a connection's own receive queue does not (it is being flushed).
  [[nodiscard]] virtual bool survives_failed_completion() const noexcept { return false; }
};

/// A received message on loan to a handler: reposted when it is destroyed. Movable, any thread.
class ReceivedBuffer {
 public:
  ReceivedBuffer() noexcept = default;
  ReceivedBuffer(ReceivedBuffer&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), index_(other.index_), length_(other.length_) {}
  ReceivedBuffer& operator=(ReceivedBuffer&& other) noexcept;
  ~ReceivedBuffer() { release(); }

  [[nodiscard]] bool held() const noexcept { return pool_ != nullptr; }
  /// The bytes received (empty for a write with immediate).
  [[nodiscard]] std::span<std::byte> bytes() const noexcept;
  /// Gives the buffer back to be posted again.
  void release() noexcept;

 private:
  friend class ReceivePool;
  ReceivedBuffer(ReceivePool* pool, std::uint32_t index, std::uint32_t length) noexcept
      : pool_(pool), index_(index), length_(length) {}
  ReceivePool* pool_ = nullptr;
  std::uint32_t index_ = 0;
  std::uint32_t length_ = 0;
};

struct ReceivePoolConfig {
  std::uint32_t depth = 256;         ///< receives kept posted; 1..2^20
  std::uint32_t buffer_size = 4096;  ///< bytes of each; >= 1
  std::uint32_t low_water = 0;       ///< report when fewer are posted; 0: depth / 8
  /// Called once each time the posted receives fall below `low_water` (again after they rose above
  /// it). On the thread that noticed; must not block. `posted` is how many are left.
  std::function<void(std::uint32_t posted)> on_low_water;
};

/// Keeps an SRQ's or a connection's receive queue stocked (C4, R5): owns the buffers, posts them
/// all, takes each back when the handler lets go of it and posts it again.
///
/// Accounting: posted() + on_loan() + undelivered completions + kept() == depth, at rest. A buffer
/// is "on loan" from `take()` until its ReceivedBuffer is released; "undelivered" from `polled()`
/// until `take()`; "kept" when it is not to be posted any more (the queue failed or posting was
/// stopped).
///
/// Reposting: the releasing thread posts, unless another one is just doing so; then that one posts
/// this buffer too (combining: nobody waits, and rpma_srq_recv, which is in no list of thread-safe
/// functions, is never called twice at once for one SRQ).
///
/// wr_id: the address of the pool's slot. `owns()` tells a receive of this pool from anything else,
/// also when the completion failed and its opcode is not valid.
///
/// Thread-safety: `polled`, `take`, `owns`, counters: any thread. Destroy it only when its queue is
/// gone (the device may write into the buffers until then) and no buffer is on loan (checked).
/// Cost: no allocation after creation; releasing is two atomic operations besides the post.
class ReceivePool {
 public:
  /// Memory of depth * buffer_size bytes is the caller's: registered for receives, and outlives the
  /// pool. Posts nothing yet.
  static Result<std::unique_ptr<ReceivePool>> create(ReceivePoolConfig config,
                                                     std::span<std::byte> memory,
                                                     std::unique_ptr<ReceivePoster> poster);
  ReceivePool(const ReceivePool&) = delete;
  ReceivePool& operator=(const ReceivePool&) = delete;
  ~ReceivePool();

  /// Posts every buffer that is not posted. Call once after creation.
  [[nodiscard]] Status post_all();

  [[nodiscard]] bool owns(std::uint64_t wr_id) const noexcept;
  /// The source that polled these says so, before anybody takes them: those of this pool count as
  /// posted no longer, which is when low water is noticed. Where no source says so, take() does it.
  void polled(std::span<const ibv_wc> completions) noexcept;
  /// The message of a completion of this pool. Success: its bytes on loan. A failed (flushed)
  /// completion: an empty loan; its buffer is not posted again once the queue has failed.
  [[nodiscard]] ReceivedBuffer take(const ibv_wc& wc) noexcept;

  /// Takes and releases the message of a completion that was polled() and that nobody took; does
  /// nothing when somebody did. By the thread that polled it.
  void reclaim(const ibv_wc& wc) noexcept;

  /// From now on released buffers are kept, not posted (the queue is going away).
  void stop_posting() noexcept;

  [[nodiscard]] std::uint32_t depth() const noexcept { return config_.depth; }
  /// All buffers together.
  [[nodiscard]] std::span<const std::byte> memory() const noexcept { return memory_; }
  [[nodiscard]] std::uint32_t buffer_size() const noexcept { return config_.buffer_size; }
  [[nodiscard]] std::uint32_t posted() const noexcept;
  [[nodiscard]] std::uint32_t on_loan() const noexcept;
  [[nodiscard]] std::uint32_t kept() const noexcept;
  [[nodiscard]] std::uint64_t low_water_events() const noexcept;
  /// Why posting stopped, ok while all is well.
  [[nodiscard]] Status last_error() const;

 private:
  friend class ReceivedBuffer;
  struct Slot;
  struct State;
  ReceivePool(ReceivePoolConfig config, std::span<std::byte> memory,
              std::unique_ptr<ReceivePoster> poster);
  void give_back(std::uint32_t index) noexcept;
  void push(std::uint32_t index) noexcept;
  void post_pending() noexcept;
  void post_one(std::uint32_t index) noexcept;
  void no_longer_posted(std::uint32_t count) noexcept;
  void fail(Status why) noexcept;

  ReceivePoolConfig config_;
  std::span<std::byte> memory_;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
