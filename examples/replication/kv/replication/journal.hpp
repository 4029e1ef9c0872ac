// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "kv/log/log.hpp"
#include "sluice/core/status.hpp"
#include "sluice/core/uring/ring.hpp"
#include "sluice/dispatch/dispatcher.hpp"

namespace sluice::kv {

/// A node's log, with the io_uring that writes it and the lock under which it is owned.
///
/// The log belongs to one thread at a time; here that is whoever holds a Journal::Lock, and the
/// same lock guards what must change together with the log (a primary's list of entries that are
/// not answered, a follower's epoch). It is held for a copy of the entries of a round and for
/// system calls that begin writes, not for I/O: except when a follower cuts its log, or a new
/// segment is not ready. Reading needs no lock.
class Journal {
 public:
  class Lock {
   public:
    explicit Lock(Journal& journal) : journal_(journal), lock_(journal.mutex_) {}
    ~Lock() { release(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    /// Does something without the lock, in between: look again at what it guards.
    template <typename F>
    void give_up_for(F&& work) {
      release();
      lock_.unlock();
      work();
      lock_.lock();
    }

   private:
    friend class Journal;
    void release() noexcept {
      journal_.log_->release_thread();
      journal_.ring_->release_thread();
    }
    Journal& journal_;
    std::unique_lock<std::mutex> lock_;
  };

  /// Opens the log (Log::open says what fails) and its ring.
  static Result<std::unique_ptr<Journal>> open(const std::string& folder, const LogOptions& options,
                                               const std::string& cluster_id);
  /// The ring's completions come through the dispatcher from now on. `moved` is called on a worker,
  /// without the lock, when durable_index() has moved or the log has failed.
  [[nodiscard]] Status attach(Dispatcher& dispatcher, std::function<void()> moved);
  /// Writes what is left and waits until it is done. Before the dispatcher stops; nobody appends.
  [[nodiscard]] Status settle(std::chrono::milliseconds limit);

  // --- under the lock ----------------------------------------------------------------------------
  [[nodiscard]] Log& log(const Lock&) noexcept { return *log_; }
  /// As Log::append, and counts what is not yet on its way to the disk.
  [[nodiscard]] Result<std::uint64_t> append(const Lock&, std::uint64_t epoch,
                                             std::span<const std::byte> payload);
  [[nodiscard]] Status append(const Lock&, const Entry& entry);
  /// Somebody waits for the disk up to this index.
  void want_disk(const Lock&, std::uint64_t index) noexcept {
    disk_wanted_ = std::max(disk_wanted_, index);
  }
  [[nodiscard]] std::uint64_t disk_wanted(const Lock&) const noexcept { return disk_wanted_; }
  /// Begins to write if somebody waits for it, or if much has gathered. A failure is the log's.
  void submit_if_wanted(const Lock& lock);
  /// Begins to write what has waited for kLazyWrite or longer. Every some milliseconds.
  void submit_if_old(const Lock& lock);
  /// Waits until no write is in flight, which cutting the log needs, and gives the lock up
  /// meanwhile: look again at what it guards. On a worker another one has to be free, to take the
  /// completions. timed_out after a minute.
  /// `no_more`: cancelled as soon as that is true, which is looked at some times a second.
  [[nodiscard]] Status wait_until_idle(Lock& lock, const std::function<bool()>& no_more = {});
  [[nodiscard]] Status truncate_after(const Lock&, std::uint64_t index);
  [[nodiscard]] Status restart_after(const Lock&, std::uint64_t index, std::uint64_t epoch);

  // --- any thread --------------------------------------------------------------------------------
  [[nodiscard]] const Log& log() const noexcept { return *log_; }

  /// How many bytes of payload came after `index`; for what was there when the process began an
  /// estimate.
  [[nodiscard]] std::uint64_t bytes_after(const Lock&, std::uint64_t index) const noexcept;
  /// Lets go of entries before `index`, but keeps so many bytes of the latest.
  void trim(const Lock&, std::uint64_t index, std::uint64_t keep_bytes);

  static constexpr std::chrono::milliseconds kLazyWrite{20};
  static constexpr std::size_t kLazyBytes = std::size_t{1} << 20;

 private:
  struct Mark {
    std::uint64_t index, bytes;  ///< so many bytes were appended up to and with this entry
  };
  Journal(std::unique_ptr<Log> log, std::shared_ptr<uring::Ring> ring);
  void appended(std::uint64_t index, std::size_t bytes);
  void submit(const Lock&);

  std::mutex mutex_;
  std::condition_variable idle_;
  std::unique_ptr<Log> log_;
  std::shared_ptr<uring::Ring> ring_;
  std::function<void()> moved_;
  std::shared_ptr<SourceHandle> source_;
  std::uint64_t disk_wanted_ = 0;
  std::size_t unsubmitted_bytes_ = 0;
  std::chrono::steady_clock::time_point oldest_unsubmitted_{};
  std::uint64_t bytes_ = 0;
  std::deque<Mark> marks_;  ///< one per 64 KiB or so, oldest first
};

}  // namespace sluice::kv
