// SPDX-License-Identifier: BSD-3-Clause
#include "kv/store/database.hpp"

#include <rocksdb/cache.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>

#include <array>
#include <cstring>
#include <utility>

#include "kv/store/error.hpp"

namespace sluice::kv {
namespace {

constexpr int kFilesBeforeCompaction = 8;
constexpr char kOwn = 0, kClients = 1;  ///< first byte of a key
constexpr std::string_view kIdentityKey("\0identity", 9);
constexpr std::string_view kPositionKey("\0position", 9);
constexpr double kBloomBitsPerKey = 10;
constexpr int kOpenFilesMax = 512;
constexpr int kMemtablesMax = 3;  ///< one that is written to, two that are being flushed

using Pair = std::array<std::uint64_t, 2>;

std::string pack(Pair pair) {
  std::string bytes;
  for (const std::uint64_t value : pair)
    for (unsigned shift = 0; shift < 64; shift += 8)
      bytes.push_back(static_cast<char>(value >> shift & 0xff));
  return bytes;
}

Result<Pair> unpack(const rocksdb::Slice& bytes, const std::string& what) {
  if (bytes.size() != 16)
    return Status(StatusCode::io_error, what + " has " + std::to_string(bytes.size()) +
                                            " bytes, not 16: the data is damaged");
  Pair pair{};
  for (std::size_t i = 0; i < bytes.size(); ++i)
    pair[i / 8] |= std::uint64_t{static_cast<std::uint8_t>(bytes[i])} << (i % 8 * 8);
  return pair;
}

/// RocksDB's own log, a file of its kind, ends the process when the disk is full (an assertion, in
/// Debian's build). What matters comes as a status.
class NoLog final : public rocksdb::Logger {
 public:
  using Logger::Logv;
  void Logv(const char*, va_list) override {}
};

/// nullopt: it is not there.
Result<std::optional<Pair>> find_pair(rocksdb::DB& db, std::string_view key, rocksdb::ReadTier tier,
                                      const std::string& folder) {
  rocksdb::ReadOptions read;
  read.read_tier = tier;
  rocksdb::PinnableSlice value;
  const std::string what = "the " + std::string(key.substr(1)) + " in " + folder;
  const auto status = db.Get(read, db.DefaultColumnFamily(), {key.data(), key.size()}, &value);
  if (status.IsNotFound()) return std::optional<Pair>();
  if (!status.ok()) return from_rocksdb(status, "cannot read " + what);
  const auto pair = unpack(value, what);
  if (!pair) return pair.status();
  return std::optional(*pair);
}

Result<Pair> read_pair(rocksdb::DB& db, std::string_view key, rocksdb::ReadTier tier,
                       const std::string& folder) {
  const auto pair = find_pair(db, key, tier, folder);
  if (!pair) return pair.status();
  if (!pair->has_value())
    return Status(StatusCode::io_error, "the data folder " + folder + " has no " +
                                            std::string(key.substr(1)) +
                                            ": it is damaged, or no store");
  return **pair;
}

rocksdb::Options options_for(const StoreOptions& options) {
  rocksdb::Options of;
  // What gathers before it comes here is more than that (Store), so each batch has its memtable.
  of.write_buffer_size = options.write_buffer_bytes / 4;
  of.max_write_buffer_number = kMemtablesMax;
  of.max_background_jobs = options.background_threads;
  of.max_open_files = kOpenFilesMax;
  of.info_log = std::make_shared<NoLog>();
  // What is written again soon is not worth the CPU of being compressed.
  of.compression = rocksdb::kLZ4Compression;
  of.compression_per_level.assign(static_cast<std::size_t>(of.num_levels),
                                  rocksdb::kLZ4Compression);
  of.compression_per_level[0] = of.compression_per_level[1] = rocksdb::kNoCompression;
  of.level_compaction_dynamic_level_bytes = true;
  // Files pile up for longer before they are merged, since the requests of clients come first;
  // writes are slowed down only when there are four times as many.
  of.level0_file_num_compaction_trigger = kFilesBeforeCompaction;
  of.level0_slowdown_writes_trigger = 4 * kFilesBeforeCompaction;
  of.level0_stop_writes_trigger = 6 * kFilesBeforeCompaction;
  rocksdb::BlockBasedTableOptions table;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(kBloomBitsPerKey));
  table.no_block_cache = options.block_cache_bytes == 0;
  if (!table.no_block_cache) table.block_cache = rocksdb::NewLRUCache(options.block_cache_bytes);
  of.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return of;
}

}  // namespace

/// Keeps what RocksDB says about the disk.
class Database::Listener final : public rocksdb::EventListener {
 public:
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* why) override {
    set(*why);
  }
  void OnErrorRecoveryEnd(const rocksdb::BackgroundErrorRecoveryInfo& info) override {
    set(info.new_bg_error);
  }
  void OnErrorRecoveryCompleted(rocksdb::Status) override { set({}); }
  void set(const rocksdb::Status& why) {
    const std::lock_guard lock(mutex_);
    error_ = why;
  }
  [[nodiscard]] rocksdb::Status get() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  mutable std::mutex mutex_;
  rocksdb::Status error_;
};

Database::Database(std::string folder, std::shared_ptr<Listener> listener, rocksdb::DB* db)
    : folder_(std::move(folder)), listener_(std::move(listener)), db_(db) {}

Database::~Database() {
  // A closing RocksDB flushes by itself as well, but not always: a flush that nobody waited for
  // makes it leave out what came after (7.8). A failure costs only the time to apply again.
  if (dropped_)
    (void)db_->SetDBOptions({{"avoid_flush_during_shutdown", "true"}});
  else
    (void)db_->Flush(rocksdb::FlushOptions());
  (void)db_->Close();
}

Result<std::unique_ptr<Database>> Database::open_any(const std::string& folder,
                                                     const StoreOptions& options, bool create) {
  auto listener = std::make_shared<Listener>();
  rocksdb::Options of = options_for(options);
  of.create_if_missing = create;
  of.error_if_exists = create;
  of.listeners.push_back(listener);
  rocksdb::DB* db = nullptr;
  const auto status = rocksdb::DB::Open(of, folder, &db);
  if (!status.ok())
    return from_rocksdb(
        status, (create ? "cannot make a store in " : "cannot open the store in ") + folder);
  return std::unique_ptr<Database>(new Database(folder, std::move(listener), db));
}

Result<std::unique_ptr<Database>> Database::create(const std::string& folder,
                                                   const StoreOptions& options) {
  auto made = open_any(folder, options, true);
  if (!made) return made;
  rocksdb::WriteBatch batch;
  rocksdb::WriteOptions write;
  write.disableWAL = true;
  batch.Put({kIdentityKey.data(), kIdentityKey.size()}, pack({kStoreFormat, options.cluster_id}));
  put_position(batch, {});
  auto status = (*made)->db().Write(write, &batch);
  if (status.ok()) status = (*made)->db().Flush(rocksdb::FlushOptions());
  if (!status.ok()) return from_rocksdb(status, "cannot make a store in " + folder);
  return made;
}

Result<std::unique_ptr<Database>> Database::open(const std::string& folder,
                                                 const StoreOptions& options) {
  auto opened = open_any(folder, options, false);
  if (!opened) return opened;
  SLUICE_RETURN_IF_ERROR((*opened)->check_identity(options.cluster_id));
  return opened;
}

Result<std::optional<Store::Position>> Database::peek(const std::string& folder) {
  rocksdb::Options of;
  of.info_log = std::make_shared<NoLog>();
  rocksdb::DB* opened = nullptr;
  const auto status = rocksdb::DB::OpenForReadOnly(of, folder, &opened);
  if (!status.ok()) return from_rocksdb(status, "cannot read the store in " + folder);
  const std::unique_ptr<rocksdb::DB> db(opened);
  const auto pair = find_pair(*db, kPositionKey, rocksdb::kReadAllTier, folder);
  if (!pair) return pair.status();
  if (!pair->has_value()) return std::optional<Store::Position>();
  return std::optional(Store::Position{(**pair)[0], (**pair)[1]});
}

Status Database::check_identity(std::uint64_t cluster_id) const {
  const auto identity = read_pair(*db_, kIdentityKey, rocksdb::kReadAllTier, folder_);
  if (!identity) return identity.status();
  if ((*identity)[0] > kStoreFormat)
    return {StatusCode::not_supported,
            "the store in " + folder_ + " has format " + std::to_string((*identity)[0]) +
                ", made by a newer version; this one reads format " + std::to_string(kStoreFormat)};
  if ((*identity)[1] != cluster_id)
    return {StatusCode::invalid_argument, "the store in " + folder_ + " belongs to cluster " +
                                              std::to_string((*identity)[1]) + ", not to cluster " +
                                              std::to_string(cluster_id)};
  return {};
}

Result<Store::Position> Database::position(bool in_files_only) const {
  const auto pair = read_pair(
      *db_, kPositionKey, in_files_only ? rocksdb::kPersistedTier : rocksdb::kReadAllTier, folder_);
  if (!pair) return pair.status();
  return Store::Position{(*pair)[0], (*pair)[1]};
}

Status Database::health() const {
  const auto status = listener_->get();
  if (status.ok()) return {};
  return from_rocksdb(status, "the store in " + folder_ + " takes no writes");
}

rocksdb::Slice Database::user_key(std::string_view key, std::string& memory) {
  memory.assign(1, kClients);
  memory.append(key);
  return memory;
}

void Database::put_position(rocksdb::WriteBatchBase& batch, Store::Position position) {
  static_assert(kOwn == 0, "the first byte of kPositionKey");
  // Cannot fail: a batch without a bound, in memory.
  const auto status =
      batch.Put({kPositionKey.data(), kPositionKey.size()}, pack({position.epoch, position.index}));
  SLUICE_CHECK(status.ok(), "a batch without a bound refused a key");
}

}  // namespace sluice::kv
