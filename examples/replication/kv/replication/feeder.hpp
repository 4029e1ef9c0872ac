// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "kv/log/log.hpp"
#include "kv/replication/quorum.hpp"
#include "kv/replication/transport.hpp"
#include "kv/replication/wire.hpp"
#include "kv/store/store.hpp"
#include "one_at_a_time.hpp"

namespace sluice::kv {

/// A primary's side of one replica: connects, hears what it has, and writes to it what it lacks,
/// from the log (memory for what is recent, the files for what is older) or, where the log no
/// longer reaches back, a checkpoint first.
///
/// A thread of its own does what may block: connecting, catching up, checkpoints. Once the replica
/// is close behind, whoever appends or gets an acknowledgement writes on (pump()).
///
/// Flow control: a frame goes out only if the replica's ring has room for it and fewer than
/// Transport::kFramesMax are not consumed, so a slow replica costs nothing but its lag.
///
/// Thread-safety: everything by any thread, but start(), stop() and the destructor.
class Feeder {
 public:
  enum class State : std::uint8_t {
    connecting,
    waiting,
    catching_up,
    checkpoint,
    streaming,
    refused
  };

  /// What a feeder asks of its primary. Any thread.
  class Owner {
   public:
    virtual ~Owner() = default;
    [[nodiscard]] virtual std::uint64_t epoch() const noexcept = 0;
    [[nodiscard]] virtual std::uint64_t commit_index() const noexcept = 0;
    [[nodiscard]] virtual std::uint64_t disk_index() const noexcept = 0;
    /// Where the replica listens now; empty: not known.
    [[nodiscard]] virtual std::string address_of(const std::string& node) const = 0;
    /// Until it is, nothing may be written to a replica: it would be cut to this node's log.
    [[nodiscard]] virtual bool may_write() const noexcept = 0;
    virtual void on_report(const std::string& node, const wire::Report& report) = 0;
    /// Whether this node takes over what that one has more, before it leads.
    [[nodiscard]] virtual bool wants_from(const std::string& node) = 0;
    /// Drops what comes after, which nobody else has.
    [[nodiscard]] virtual Status cut_after(std::uint64_t index) = 0;
    [[nodiscard]] virtual Status take_fetched(const wire::Frame& frame) = 0;
    virtual void on_fetched(const std::string& node) = 0;
    /// The replica has promised to follow a later primary.
    virtual void on_superseded(std::uint64_t epoch) = 0;
    virtual void on_progress() noexcept = 0;
  };
  struct Parts {
    Owner& owner;
    Transport& transport;
    const Log& log;
    Store& store;
    std::string self;
    std::string cluster;
    std::size_t entry_bytes_max;        ///< that clients may write
    std::string checkpoint_folder;      ///< made and removed as needed; this replica's own
    std::chrono::milliseconds silence;  ///< a connection that is silent for longer is given up
  };

  Feeder(std::string node, Parts parts);
  ~Feeder();
  void start();
  /// Asks the thread to end; it may write no more. Does not wait.
  void ask_to_stop() noexcept;
  /// Waits for it. Not on a worker.
  void stop();

  /// Writes what there is to write if the replica is close behind, and a sign of life if nothing
  /// was written lately.
  void pump() noexcept;
  /// Something may go on that waited for the primary (may_write()).
  void nudge() noexcept;

  struct Snapshot {
    std::string node;
    State state = State::connecting;
    Progress progress;
    std::uint64_t applied = 0;
    std::uint64_t next = 0;  ///< the first entry that was not yet written to it
    bool connected = false;
    std::chrono::steady_clock::duration silent_for{};
    std::string last_error;
  };
  [[nodiscard]] Snapshot snapshot() const;
  /// What acknowledgements count it for.
  [[nodiscard]] Progress progress() const;
  [[nodiscard]] bool connected() const;
  [[nodiscard]] const std::string& node() const noexcept { return node_; }

 private:
  struct Session;
  enum class Filled : std::uint8_t { all, no_room, broken };

  void run();
  [[nodiscard]] Status serve_once();
  [[nodiscard]] Result<wire::Report> await_report(Session& session,
                                                  std::chrono::milliseconds limit);
  /// The last entry that both logs have.
  [[nodiscard]] std::optional<std::uint64_t> last_common(const wire::Report& report) const;
  [[nodiscard]] Status fetch(Session& session, const wire::Report& report);
  /// Where to go on from; nothing: the replica needs a checkpoint.
  [[nodiscard]] std::optional<std::uint64_t> common_point(const wire::Report& report) const;
  [[nodiscard]] Status feed(Session& session, wire::Report report);
  [[nodiscard]] Status send_checkpoint(Session& session);
  [[nodiscard]] Filled fill(Session& session);
  [[nodiscard]] Status send_blocking(Session& session, wire::FrameKind kind,
                                     const std::function<std::size_t(std::span<std::byte>)>& body,
                                     std::size_t bytes_max);
  void on_ack(const wire::Ack& ack) noexcept;
  void set_state(State state) noexcept { state_.store(state, std::memory_order_relaxed); }
  [[nodiscard]] bool stopping() const noexcept { return stop_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::shared_ptr<Session> session() const;

  const std::string node_;
  const Parts parts_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<State> state_{State::connecting};
  replicate::OneAtATime pumping_;

  // What the replica has acknowledged. Relaxed: a count that is late is only late.
  std::atomic<std::uint64_t> memory_{0}, durable_{0}, applied_{0}, next_{0};

  mutable std::mutex mutex_;  ///< guards what follows, and is what the thread sleeps on
  std::condition_variable wake_;
  std::shared_ptr<Session> session_;
  std::string last_error_;
};

[[nodiscard]] std::string_view to_string(Feeder::State state) noexcept;

}  // namespace sluice::kv
