// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/store/checkpoint.hpp"
#include "kv/store/command.hpp"
#include "sluice/core/status.hpp"

namespace sluice::kv {

struct StoreOptions {
  /// Whose data this is; not 0. A folder of another cluster is refused.
  std::uint64_t cluster_id = 0;
  /// What may lie in memory before it is written to files: so much of the log has to be applied
  /// again after a crash, about, and up to four times that is in memory for a while. What is
  /// written over while it gathers never reaches RocksDB. 64 KiB..4 GiB
  std::size_t write_buffer_bytes = std::size_t{128} << 20;
  std::size_t block_cache_bytes = std::size_t{64} << 20;  ///< of what is read; 0: none
  std::int32_t background_threads = 2;                    ///< flushes and compactions; 1..64
  /// For tests: called before each step that changes the disk, with its name; a failure is taken
  /// for the step's own.
  std::function<Status(std::string_view step)> on_step;
};

/// The state machine: a RocksDB that log entries are applied to, in their order, each once.
///
/// The replicated log is the write-ahead log, so RocksDB's own is off. What is applied gathers in
/// a map, which a thread of this store's own puts into RocksDB when it is large: one WriteBatch,
/// sorted, with the position of its last entry beside the data, in the same column family; and a
/// memtable is flushed as a whole. So whatever a crash leaves is the state after some entry, and
/// says after which. What memory held is lost with the process; the log from applied_index() + 1 on
/// brings it back (invariants: README.md).
///
/// In the folder:
///     LOCK        held while it is open
///     STORE       the format, and which of the folders below is in force
///     db-N/       a RocksDB
///     incoming/   for a checkpoint that is being received; emptied by open()
///
/// Thread-safety: get, mget, exists, the positions, health, numbers: any thread, beside everything
/// else. apply, flush, make_checkpoint, install_checkpoint: any thread; apply and
/// install_checkpoint go one at a time (a mutex), the others run beside them.
/// Blocking: apply blocks when RocksDB stalls writes (its files cannot be merged as fast as they
/// are made) and memory is used up; flush(true) and the checkpoints do disk work as long as it
/// takes.
class Store {
 public:
  struct Entry {
    std::uint64_t epoch = 0;  ///< > 0; never falls
    std::uint64_t index = 0;  ///< > 0; no gaps
    std::span<const std::byte> payload;
  };
  struct Position {
    std::uint64_t epoch = 0;
    std::uint64_t index = 0;  ///< 0: nothing yet
    friend bool operator==(const Position&, const Position&) = default;
  };

  /// Opens the data folder; makes it, and its parents, if it is not there. Blocks.
  /// permission_denied, io_error: it cannot be written or read; already_owned: another process has
  /// it; invalid_argument: it is another cluster's, or an option is out of range; not_supported:
  /// a newer version made it; resource_exhausted: the disk is full.
  static Result<std::unique_ptr<Store>> open(const std::string& folder, StoreOptions options);
  /// Flushes what is in memory, so that the next open has nothing to apply again; a failure of that
  /// costs only the time to do so.
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Applies the entries, which begin with applied_index() + 1, as one batch: all of them or, on
  /// failure, none. Returns an outcome for each. Malformed payloads (invalid_argument,
  /// not_supported) and entries that do not follow (internal) leave everything as it was; after a
  /// failure of the disk (io_error, resource_exhausted) the same call may be repeated.
  [[nodiscard]] Result<std::vector<Outcome>> apply(std::span<const Entry> entries);

  /// What the key holds: false, and `value` empty, if nothing.
  [[nodiscard]] Result<bool> get(std::string_view key, std::string& value) const;
  /// All of one moment, between two batches.
  [[nodiscard]] Result<std::vector<std::optional<std::string>>> mget(
      std::span<const std::string_view> keys) const;
  /// How many of them are there, of one moment; a key named twice counts twice.
  [[nodiscard]] Result<std::uint64_t> exists(std::span<const std::string_view> keys) const;

  /// The last applied entry. A read that begins after it has returned sees that entry.
  [[nodiscard]] std::uint64_t applied_index() const noexcept;
  [[nodiscard]] Position applied() const;
  /// The last entry whose effect survives a crash of process and machine: the log is needed from
  /// the next one on, and may be trimmed up to this. Grows when a memtable was flushed. A read of
  /// RocksDB's files: some microseconds.
  [[nodiscard]] Result<Position> durable() const;
  [[nodiscard]] Result<std::uint64_t> durable_applied_index() const;
  /// Makes what is applied now durable: `wait` until it is, or only begins. When the log grows
  /// beyond what one is ready to apply again, this makes it trimmable.
  [[nodiscard]] Status flush(bool wait);

  /// Writes the present state into a new folder (which must not exist, on the same file system: the
  /// data files are hard links), with its listing. Writes go on meanwhile. Whoever made it removes
  /// it.
  [[nodiscard]] Result<Checkpoint> make_checkpoint(const std::string& folder) const;
  /// Replaces the data by a checkpoint's, which is verified first and must be of this cluster; the
  /// position may go back. The folder is taken over (renamed), so it has to be on the same file
  /// system: incoming() is. A crash at any moment, and each failure, leaves the old or the new
  /// data; after a failure the old is in force, unless the message says otherwise (the last sync
  /// failed). Reads go on until the moment of the change.
  [[nodiscard]] Status install_checkpoint(const std::string& folder);
  /// Where to receive a checkpoint: exists, and is empty after open(). A second one in it needs a
  /// folder of its own beneath.
  [[nodiscard]] std::string incoming() const;

  /// ok, or why RocksDB takes no writes (a full disk, a failed one); reads go on. After a full disk
  /// RocksDB goes on by itself, some seconds after there is room again. After most other failures
  /// it does not: close and open the store; the log brings back what was in memory. (DB::Resume()
  /// is not offered: beside RocksDB's own attempts it can wait for ever, 7.8.)
  [[nodiscard]] Status health() const;

  struct Numbers {
    std::uint64_t keys_estimate = 0;
    std::uint64_t memory_bytes = 0;  ///< in memtables, not yet durable or not yet freed
    std::uint64_t file_bytes = 0;    ///< of the data files in force
  };
  [[nodiscard]] Numbers numbers() const;
  [[nodiscard]] const std::string& folder() const noexcept;
  [[nodiscard]] std::uint64_t cluster_id() const noexcept;

 private:
  class Impl;
  explicit Store(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::kv
