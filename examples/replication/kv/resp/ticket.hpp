// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "resp/reply.hpp"

namespace sluice::kv {

class IoThread;
struct PendingReply;

/// The right, and the duty, to answer one request. Completed exactly once, from any thread, in any
/// order: the server sends a connection's replies in the order of its requests. One that is
/// destroyed without being completed replies an error, so that no later reply is held up for good.
///
/// Threads: any, one at a time. Its server must live: ~RespServer waits until all tickets are back.
/// Cost: on the I/O thread it came from next to nothing; from another thread one step of a
/// lock-free ring, and a system call only if the I/O thread sleeps. Many at once: CompletionBatch.
class Ticket {
 public:
  Ticket() noexcept = default;
  explicit Ticket(PendingReply* pending) noexcept : pending_(pending) {}
  Ticket(Ticket&& other) noexcept : pending_(std::exchange(other.pending_, nullptr)) {}
  Ticket& operator=(Ticket&& other) noexcept;
  ~Ticket();

  /// Whether it is still to be completed.
  explicit operator bool() const noexcept { return pending_ != nullptr; }

  /// Where the reply is written, in place, before complete(). One reply, not more.
  [[nodiscard]] ReplyBuilder reply() noexcept;

  /// Sends what reply() was given.
  void complete() && noexcept;
  /// Sends these bytes: one reply, well formed.
  void complete(std::string_view bytes) && noexcept;

 private:
  friend class CompletionBatch;
  [[nodiscard]] PendingReply* take() noexcept;

  PendingReply* pending_ = nullptr;
};

/// Completes many tickets with one step per I/O thread: for a worker that finishes requests in
/// groups (a group commit).
///
/// Threads: one. Cost: a list link per ticket; post() one ring step per I/O thread concerned.
class CompletionBatch {
 public:
  CompletionBatch() = default;
  CompletionBatch(const CompletionBatch&) = delete;
  CompletionBatch& operator=(const CompletionBatch&) = delete;
  ~CompletionBatch() { post(); }

  /// Takes a ticket whose reply has been written. It is sent by post().
  void add(Ticket&& ticket);
  /// Hands all of them over.
  void post() noexcept;

 private:
  struct Chain {
    IoThread* home;
    PendingReply* first;
    PendingReply* last;
  };
  std::vector<Chain> chains_;  ///< one per I/O thread seen; kept, so that it is grown once
};

}  // namespace sluice::kv
