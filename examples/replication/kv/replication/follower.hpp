// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "kv/replication/applier.hpp"
#include "kv/replication/journal.hpp"
#include "kv/replication/transport.hpp"
#include "kv/replication/wire.hpp"
#include "kv/store/store.hpp"

namespace sluice::kv {

/// A replica's side: takes what a primary writes into its ring, checks it, appends it to the log,
/// acknowledges, and applies what counts.
///
/// The fence. `promised` is the highest epoch that anybody has come with; it is on the disk before
/// the node answers that primary. From then on nothing of a lower epoch is taken, so a primary
/// that does not know that it was replaced gets no quorum any more (as a ballot is promised in
/// Paxos). A primary's own epoch is promised at its own node as well.
///
/// Thread-safety: everything by any thread.
class Follower final : public Transport::Acceptor {
 public:
  struct Parts {
    Transport& transport;
    Journal& journal;
    Applier& applier;
    Store& store;
    std::string self;
    std::string cluster;
    std::string folder;  ///< where EPOCH and REBUILDING are
    std::uint64_t ring_bytes;
    /// Somebody came with a later epoch than this node knew. On a set-up thread, without locks.
    std::function<void(std::uint64_t epoch)> on_newer_epoch;
    /// It lost its data and has all of it again.
    std::function<void()> on_rebuilt;
    /// Runs something that blocks, on a thread that may.
    std::function<void(std::function<void()>)> defer;
  };
  /// Reads what was promised. io_error.
  static Result<std::unique_ptr<Follower>> open(Parts parts);
  ~Follower() override;

  /// Promises an epoch, durably. rejected: a later one was promised before.
  [[nodiscard]] Status promise(std::uint64_t epoch);
  [[nodiscard]] std::uint64_t promised() const noexcept {
    return promised_.load(std::memory_order_relaxed);  // written under the journal's lock
  }
  /// From now on this node counts for nobody until it has caught up: what it had is lost.
  [[nodiscard]] Status begin_rebuilding();
  /// The mark on the disk alone, for a follower that is opened in this folder later.
  [[nodiscard]] static Status mark_rebuilding(const std::string& folder, const std::string& why);
  [[nodiscard]] bool rebuilding() const noexcept {
    return rebuilding_.load(std::memory_order_relaxed);  // a flag that is late is only late
  }

  /// The log's durable_index() has moved.
  void durable_moved() noexcept;
  /// Lets go of all connections.
  void close();

  std::shared_ptr<Channel> on_request(std::span<const std::byte> hello) override;
  void on_connected(std::shared_ptr<ConnectionHandle> handle, Channel& channel) override;

  struct Info {
    std::string primary;  ///< the node that it follows; empty: none is connected
    std::string last_error;
  };
  [[nodiscard]] Info info() const;

 private:
  struct Session;
  explicit Follower(Parts parts);
  [[nodiscard]] Status store_promise(std::uint64_t epoch);
  [[nodiscard]] wire::Report make_report(const Journal::Lock& lock) const;
  /// Under the journal's lock: whether what it sends still counts.
  [[nodiscard]] bool is_current(const Session& session) const noexcept;
  void take_frames(Session& session, std::span<const ibv_wc> batch, ReceivePool& pool) noexcept;
  [[nodiscard]] Status take_entries(Journal::Lock& lock, Session& session,
                                    const wire::Frame& frame);
  [[nodiscard]] Status take_entry(Journal::Lock& lock, Session& session, const Entry& entry);
  void answer_fetch(Session& session, std::uint64_t from);
  [[nodiscard]] Status take_checkpoint(Session& session, const wire::Frame& frame);
  void install(const std::shared_ptr<Session>& session);
  void acknowledge(Session& session) noexcept;
  void let_go(Session& session) noexcept;
  void send_message(Session& session, std::span<const std::byte> message);
  void end(Session& session, const Status& why) noexcept;
  void note_rebuilt(const Session& session) noexcept;
  void say(const std::string& text) const;

  const Parts parts_;
  std::atomic<std::uint64_t> promised_{0};  ///< changed under the journal's lock
  std::atomic<bool> rebuilding_{false};
  std::atomic<std::uint64_t> rebuild_target_{0};
  bool installing_ = false;                    ///< a checkpoint; guarded by the journal's lock
  std::atomic<std::uint64_t> checkpoints_{0};  ///< received: names their folders

  mutable std::mutex mutex_;
  std::shared_ptr<Session> current_;
  std::string last_error_;
};

}  // namespace sluice::kv
