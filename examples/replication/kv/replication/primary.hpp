// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/cluster/membership.hpp"
#include "kv/replication/applier.hpp"
#include "kv/replication/feeder.hpp"
#include "kv/replication/journal.hpp"
#include "kv/replication/quorum.hpp"
#include "resp/command_table.hpp"
#include "resp/durability.hpp"
#include "resp/ticket.hpp"

namespace sluice::kv {

/// What a client asked for that cannot be answered at once.
struct Operation {
  enum class Kind : std::uint8_t { write, read, wait };
  enum class Answer : std::uint8_t { ok, integer };
  Kind kind = Kind::write;
  Answer answer = Answer::ok;  ///< of a write
  Durability durability = Durability::memory;
  CommandId command = CommandId::set;  ///< of a read
  Ticket ticket;
  std::uint64_t sequence = 0;                     ///< of a write: counted by whoever takes requests
  std::size_t payload_at = 0, payload_bytes = 0;  ///< of a write: in Round::bytes
  std::vector<std::string> keys;                  ///< of a read
  std::uint64_t replicas = 0;                     ///< WAIT
  std::chrono::milliseconds timeout{0};           ///< WAIT; 0: a minute
};

/// Operations that came in together; they are appended, and written to the replicas, as one.
struct Round {
  std::vector<std::byte> bytes;
  std::vector<Operation> operations;
  void clear() {
    bytes.clear();
    operations.clear();
  }
};

/// One term of leadership.
///
/// It begins as a candidate: it hears what the other members of the in-sync set have, until each
/// quorum must have somebody among those heard. If one has more, this node steps back so that the
/// other can lead. Else it appends an entry of its own epoch, lets replicas follow it, and serves
/// clients when a quorum has that entry on its disks: all that was ever acknowledged comes before
/// it and counts from then on.
///
/// A write is appended to the log, written to the replicas and to the disk at the same time,
/// *settles* when its durability level is reached and all writes before it have settled, is applied
/// then, and answered. So effects are in the order of the log, and what a client can read was
/// settled: it does not vanish again (at the quorum levels).
///
/// Invariants:
/// - P1 An acknowledgement at a quorum level counts members of the in-sync set alone; while the set
///   is being changed, the old and the new one must both agree (quorum.hpp).
/// - P2 A member is taken out of the set only after all that has settled is on the disks of a
/// quorum
///   of the rest; one is added only when it has all that has settled.
/// - P3 No read is answered unless the lease held after the value was read.
/// - P4 After depose() nothing is acknowledged.
///
/// Thread-safety: everything by any thread. `journal`'s lock guards the state.
class Primary final : public Feeder::Owner, public std::enable_shared_from_this<Primary> {
 public:
  struct Parts {
    Membership& membership;
    Transport* transport;  ///< null: no cluster
    Journal& journal;
    Applier& applier;
    Store& store;
    std::string self;
    std::string cluster;
    std::string folder;
    std::size_t entry_bytes_max;
    std::size_t min_in_sync;
    std::chrono::milliseconds replica_timeout;
    /// Whether another node can be elected in this one's place; without, the configuration names
    /// the primary.
    bool elected;
    /// This node has less than another one, or was superseded: it should not lead now.
    std::function<void(const std::string& why)> step_back;
    std::atomic<std::uint64_t>& answered_sequence;  ///< writes up to here are answered
  };
  enum class Phase : std::uint8_t { candidate, opening, serving, deposed };

  Primary(Parts parts, std::uint64_t epoch, InSyncSet in_sync);
  ~Primary() override;

  /// Takes all of the round, whatever comes of it.
  void submit(Round& round);
  /// Whether clients are served here now.
  [[nodiscard]] bool serving() const noexcept {
    return phase_.load(std::memory_order_acquire) == Phase::serving;  // (1) pairs with (2)
  }
  /// Whether this node may answer a read whose value is already there (P3).
  [[nodiscard]] bool lease_holds() const noexcept { return parts_.membership.leads(epoch_); }
  /// Answers a read, from the store as it is.
  void answer_read(CommandId command, std::span<const std::string_view> keys, Ticket& ticket);

  /// The log's durable index has moved, or a replica's acknowledgement came.
  void progress() noexcept;
  /// What time brings; every 20 ms or so, by a thread that may block a little.
  void tick();
  /// The in-sync set as etcd has it now.
  void in_sync_changed(const InSyncSet& set);
  /// It leads no more. Whoever waits is told that nobody knows. Does not block.
  void depose(const std::string& why);
  /// Ends the feeders. Not on a worker, and not on the membership's thread.
  void stop();

  struct Info {
    Phase phase = Phase::candidate;
    std::uint64_t epoch = 0;
    std::vector<std::string> in_sync;
    std::uint64_t settled = 0;
    std::size_t waiting = 0;  ///< clients
    std::string last_error;
    struct Replica {
      Feeder::Snapshot feeder;
      bool in_sync = false;
      std::uint64_t lag_entries = 0, lag_bytes = 0;
    };
    std::vector<Replica> replicas;
  };
  [[nodiscard]] Info info();
  /// The first entry that a replica which is catching up still needs; last_index + 1 if none.
  [[nodiscard]] std::uint64_t needed_from();

  // Feeder::Owner
  [[nodiscard]] std::uint64_t epoch() const noexcept override { return epoch_; }
  [[nodiscard]] std::uint64_t commit_index() const noexcept override {
    return settled_.load(std::memory_order_relaxed);  // late is only late
  }
  [[nodiscard]] std::uint64_t disk_index() const noexcept override {
    return disk_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::string address_of(const std::string& node) const override;
  [[nodiscard]] bool may_write() const noexcept override {
    const Phase phase = phase_.load(std::memory_order_acquire);  // (3) pairs with (2)
    return phase == Phase::opening || phase == Phase::serving;
  }
  void on_report(const std::string& node, const wire::Report& report) override;
  [[nodiscard]] bool wants_from(const std::string& node) override;
  [[nodiscard]] Status cut_after(std::uint64_t index) override;
  [[nodiscard]] Status take_fetched(const wire::Frame& frame) override;
  void on_fetched(const std::string& node) override;
  void on_superseded(std::uint64_t epoch) override;
  void on_progress() noexcept override { progress(); }

 private:
  /// What waits for an entry, in the order of the log.
  struct Pending {
    std::uint64_t index = 0;  ///< a read: of the entry that it has to see
    Operation operation;
    std::chrono::steady_clock::time_point since;
  };
  struct Held {
    Operation operation;
    std::vector<std::byte> payload;
    std::chrono::steady_clock::time_point since;
  };
  struct Waiter {
    std::uint64_t index = 0;
    Operation operation;
    std::chrono::steady_clock::time_point deadline;
  };
  using Lock = Journal::Lock;

  void admit(const Lock& lock, Operation operation, std::span<const std::byte> bytes);
  [[nodiscard]] bool append(const Lock& lock, Operation& operation,
                            std::span<const std::byte> payload);
  void admit_backlog(const Lock& lock);
  [[nodiscard]] std::optional<std::string> refuse(const Lock& lock, Durability level) const;
  void count_members_there(const Lock& lock);
  /// Moves settled_; whether it moved.
  bool settle(const Lock& lock);
  [[nodiscard]] Reached reached(const Lock& lock);
  void on_applied(std::uint64_t first, std::span<const Outcome> outcomes);
  void answer_ready_reads();
  void note_answered(std::uint64_t sequence) noexcept;
  void go_on_behind_reads();
  void answer_waiters();
  void judge();
  void open();
  void tend_in_sync(std::chrono::steady_clock::time_point now);
  void change_done(std::uint64_t number, const Result<InSyncSet>& result);
  [[nodiscard]] bool withdraw(const std::vector<std::pair<Feeder::Snapshot, bool>>& replicas) const;
  void serve_if_ready();
  void tend_feeders();
  void give_up_old(std::chrono::steady_clock::time_point now);
  void pump_all() noexcept;
  [[nodiscard]] std::vector<std::shared_ptr<Feeder>> feeders() const;

  const Parts parts_;
  const std::uint64_t epoch_;
  std::atomic<Phase> phase_{Phase::candidate};
  std::atomic<std::uint64_t> settled_{0};  ///< all entries up to here have settled
  std::atomic<std::uint64_t> disk_{0};     ///< somebody waits for the disk up to here

  // Guarded by the journal's lock.
  InSyncSet in_sync_;
  std::optional<std::vector<std::string>> proposed_;
  std::uint64_t proposed_at_ = 0;     ///< what had settled then has to be on the new set's disks
  std::uint64_t settled_before_ = 0;  ///< at the last look
  bool change_asked_ = false;         ///< the membership is at it
  bool change_uncertain_ = false;     ///< asked for before, and nobody knows whether it was made
  std::uint64_t change_number_ = 0;
  std::chrono::steady_clock::time_point change_again_at_{};
  std::size_t members_there_ = 0;  ///< of the in-sync set, connected; this node counts
  std::uint64_t first_index_ = 0;  ///< of this term's first entry
  std::deque<Pending> pending_;
  std::size_t settled_count_ = 0;  ///< so many of pending_ have settled
  /// Reads among these. Writes behind them settle later: a read sees what was asked for before it
  /// in its pipeline, and nothing that was asked for after it.
  std::size_t reads_waiting_ = 0;
  std::deque<Held> backlog_;  ///< the log is full just now
  std::deque<Waiter> waiters_;
  std::map<std::string, Position> heard_;
  std::string last_error_;
  std::vector<Progress> progress_;  ///< scratch
  /// Before it nobody had the time to be heard.
  const std::chrono::steady_clock::time_point silence_counts_from_;

  /// Taken last: feeders ask with a mutex of theirs held.
  std::mutex fetch_mutex_;
  std::string fetch_from_;  ///< who has more, and is asked for it

  mutable std::mutex feeders_mutex_;
  std::vector<std::shared_ptr<Feeder>> feeders_;
  bool stopped_ = false;
  std::atomic<bool> stop_begun_{false};

  std::atomic<bool> waiters_there_{false};
};

}  // namespace sluice::kv
