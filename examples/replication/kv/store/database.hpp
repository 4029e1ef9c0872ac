// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "kv/store/store.hpp"
#include "sluice/core/status.hpp"

namespace sluice::kv {

/// One RocksDB folder: how it is opened, and what is kept in it beside the clients' keys.
///
/// Keys begin with a byte that tells whose they are: 0 the store's own, 1 the clients'. One column
/// family for both: it has one memtable at a time, so a flush never tears a batch from its
/// position.
class Database {
 public:
  /// Makes a new one, of this cluster, with nothing applied; durable when it returns.
  static Result<std::unique_ptr<Database>> create(const std::string& folder,
                                                  const StoreOptions& options);
  /// Opens what is there; checks format and cluster.
  static Result<std::unique_ptr<Database>> open(const std::string& folder,
                                                const StoreOptions& options);
  /// The position in a folder that nobody has open, without writing anything; nullopt: it was being
  /// made, and holds nothing yet.
  static Result<std::optional<Store::Position>> peek(const std::string& folder);
  /// Flushes, unless it was dropped.
  ~Database();

  [[nodiscard]] rocksdb::DB& db() const noexcept { return *db_; }
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }
  /// As of now, or of what is in files alone.
  [[nodiscard]] Result<Store::Position> position(bool in_files_only) const;
  [[nodiscard]] Status health() const;
  /// Its data is not wanted any more: the destructor does not flush.
  void drop() noexcept { dropped_ = true; }

  static rocksdb::Slice user_key(std::string_view key, std::string& memory);
  /// Into a batch, as its last item.
  static void put_position(rocksdb::WriteBatchBase& batch, Store::Position position);

 private:
  class Listener;
  Database(std::string folder, std::shared_ptr<Listener> listener, rocksdb::DB* db);
  static Result<std::unique_ptr<Database>> open_any(const std::string& folder,
                                                    const StoreOptions& options, bool create);
  [[nodiscard]] Status check_identity(std::uint64_t cluster_id) const;

  std::string folder_;
  std::shared_ptr<Listener> listener_;
  std::unique_ptr<rocksdb::DB> db_;
  bool dropped_ = false;
};

}  // namespace sluice::kv
