// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace sluice {

/// The send credits of one queue pair (C4): one per posted work request. An unsignalled one makes
/// no completion of its own; it is retired by the next signalled one that completes, or by the end
/// of the queue pair.
///
/// An unsignalled request never takes the last credit while no signalled one is outstanding:
/// nothing would ever retire it, and the queue pair would be stuck for good.
///
/// After the first failed completion nothing is given back until `abandon()`: the queue pair is in
/// error, each outstanding request flushes, and no new post can succeed.
///
/// Thread-safety: all calls from any thread. A mutex orders posts (the provider serialises posts to
/// one queue pair as well); hold it across [take, post] with `Posting` so that credits are retired
/// in the order of the send queue.
class SendCredits {
 public:
  /// `limit` work requests may be outstanding; 1..2^20.
  explicit SendCredits(std::uint32_t limit);

  /// The right to post one work request; holds the order until destroyed. Unless `commit()` was
  /// called the credit goes back (the post failed).
  class Posting {
   public:
    Posting(Posting&&) noexcept;
    Posting(const Posting&) = delete;
    Posting& operator=(const Posting&) = delete;
    Posting& operator=(Posting&&) = delete;
    ~Posting();
    /// False: no credit is left (or the queue pair failed); do not post.
    explicit operator bool() const noexcept { return credits_ != nullptr; }
    void commit() noexcept { committed_ = true; }

   private:
    friend class SendCredits;
    Posting(SendCredits* credits, bool signalled, std::unique_lock<std::mutex> lock) noexcept
        : credits_(credits), signalled_(signalled), lock_(std::move(lock)) {}
    SendCredits* credits_;
    bool signalled_;
    bool committed_ = false;
    std::unique_lock<std::mutex> lock_;
  };
  [[nodiscard]] Posting take(bool signalled) noexcept;

  /// One signalled request completed with success: retires it and the unsignalled ones before it.
  /// Batches may be retired out of order (Order::none): completions of one queue pair are polled in
  /// order, so the oldest group is never given back before it was polled. Without an outstanding
  /// signalled request (one posted past this object) it does nothing.
  void completed() noexcept;
  /// A send completed with an error: from now on `take` refuses.
  void failed() noexcept;
  /// No post from now on; what is outstanding still retires. Returns once no `Posting` is held:
  /// what the caller posts then is the last in the send queue (the drain marker).
  void close() noexcept;
  /// The queue pair is gone: nothing is outstanding any more, and nothing can be posted.
  void abandon() noexcept;

  [[nodiscard]] std::uint32_t limit() const noexcept { return limit_; }
  [[nodiscard]] std::uint32_t outstanding() const noexcept;
  /// True after failed(), close() or abandon(): `take` refuses for good.
  [[nodiscard]] bool closed() const noexcept;

 private:
  void book(bool signalled) noexcept;

  const std::uint32_t limit_;
  mutable std::mutex mutex_;
  std::vector<std::uint32_t> groups_;  ///< ring: how many requests each signalled one retires
  std::uint32_t groups_head_ = 0;
  std::uint32_t groups_count_ = 0;
  std::uint32_t unsignalled_ = 0;  ///< posted since the last signalled one
  std::uint32_t outstanding_ = 0;
  bool failed_ = false;
  bool closed_ = false;
};

}  // namespace sluice
