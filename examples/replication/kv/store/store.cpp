// SPDX-License-Identifier: BSD-3-Clause
#include "kv/store/store.hpp"

#include <rocksdb/snapshot.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "kv/store/database.hpp"
#include "kv/store/error.hpp"
#include "kv/store/files.hpp"

namespace sluice::kv {
namespace {

constexpr std::string_view kNameOfForm = "sluice-kv store, format ";
constexpr std::uint64_t kStoreFileBytesMax = 256;
constexpr std::string_view kDatabasePrefix = "db-";

std::string database_name(std::uint64_t generation) {
  return std::string(kDatabasePrefix) + std::to_string(generation);
}

/// A number that is all of `text`.
std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return {};
  return number;
}

/// N of "db-N".
std::optional<std::uint64_t> generation_of(std::string_view name) {
  if (!name.starts_with(kDatabasePrefix)) return {};
  return number_of(name.substr(kDatabasePrefix.size()));
}

std::string store_file_text(std::uint64_t generation) {
  return std::string(kNameOfForm) + std::to_string(kStoreFormat) + "\n" +
         database_name(generation) + "\n";
}

/// What the file STORE says: the generation in force.
Result<std::uint64_t> parse_store_file(const std::string& folder, std::string_view text) {
  const Status damaged(StatusCode::io_error,
                       "the file " + folder + "/STORE is damaged, or the folder is no store");
  if (!text.starts_with(kNameOfForm)) return damaged;
  text.remove_prefix(kNameOfForm.size());
  const std::size_t line = text.find('\n');
  if (line == std::string_view::npos || text.back() != '\n') return damaged;
  const auto format = number_of(text.substr(0, line));
  if (!format) return damaged;
  if (*format > kStoreFormat)
    return Status(StatusCode::not_supported,
                  "the data folder " + folder + " has format " + std::to_string(*format) +
                      ", made by a newer version; this one reads format " +
                      std::to_string(kStoreFormat));
  text.remove_prefix(line + 1);
  const auto generation = generation_of(text.substr(0, text.size() - 1));
  if (text.empty() || !generation) return damaged;
  return *generation;
}

Status check(const StoreOptions& options) {
  const auto wrong = [](const char* name, auto value, const char* range) {
    return Status(StatusCode::invalid_argument, std::string("StoreOptions::") + name + " is " +
                                                    std::to_string(value) + "; " + range);
  };
  if (options.cluster_id == 0) return wrong("cluster_id", 0, "a cluster has a number above 0");
  constexpr std::size_t kLeast = std::size_t{64} << 10, kMost = std::size_t{4} << 30;
  if (options.write_buffer_bytes < kLeast || options.write_buffer_bytes > kMost)
    return wrong("write_buffer_bytes", options.write_buffer_bytes, "64 KiB to 4 GiB");
  if (options.background_threads < 1 || options.background_threads > 64)
    return wrong("background_threads", options.background_threads, "1 to 64");
  return {};
}

/// Of a WriteBatch: its own, and the position at its end. What keys take is in Overlay::kOverhead.
constexpr std::size_t kBatchHeaderBytes = 256;

/// What was applied and is not in RocksDB yet: the latest state of each key that changed.
struct Overlay {
  struct Hash {
    using is_transparent = void;
    /// Not noexcept: so the map keeps each key's hash, and need not compute it when it grows.
    std::size_t operator()(std::string_view key) const {
      return std::hash<std::string_view>{}(key);
    }
  };
  using Value = std::optional<std::string>;  ///< nothing: removed
  /// What a key takes beside its bytes, roughly.
  static constexpr std::size_t kOverhead = 96;
  static constexpr std::size_t kCapacityKept = 64;

  std::unordered_map<std::string, Value, Hash, std::equal_to<>> keys;
  std::size_t bytes = 0;
  Store::Position last;  ///< the entry up to which it holds what was applied

  [[nodiscard]] const Value* find(std::string_view key) const {
    const auto found = keys.find(key);
    return found == keys.end() ? nullptr : &found->second;
  }
  void put(std::string_view key, std::optional<std::string_view> value) {
    auto found = keys.find(key);
    if (found == keys.end()) {
      found = keys.emplace(key, Value()).first;
      bytes += kOverhead + key.size();
    }
    if (found->second) bytes -= found->second->size();
    if (value) {
      // Its memory is used again, unless that is much more than is counted.
      if (found->second && found->second->capacity() <= kCapacityKept + 2 * value->size())
        found->second->assign(*value);
      else
        found->second.emplace(*value);
      bytes += value->size();
    } else {
      found->second.reset();
    }
  }
};

/// What the commands of one apply() change, so that those which read (INCR, DEL) see the ones
/// before them, and a failure in the middle changes nothing.
class Batch {
 public:
  /// What a key held before the batch.
  using Read = std::function<Result<Overlay::Value>(std::string_view key)>;
  explicit Batch(Read read) : read_(std::move(read)) {}

  void put(std::string_view key, std::optional<std::string_view> value) {
    changed_.put(key, value);
  }
  [[nodiscard]] Result<Overlay::Value> read(std::string_view key) const {
    if (const Overlay::Value* const value = changed_.find(key)) return *value;
    return read_(key);
  }
  [[nodiscard]] const Overlay& changed() const noexcept { return changed_; }

 private:
  Read read_;
  Overlay changed_;
};

Result<Outcome> run(const Command& command, Batch& batch) {
  Outcome outcome;
  Status failed;
  switch (command.kind()) {
    case CommandKind::no_op: break;
    case CommandKind::set:
    case CommandKind::mset:
      command.each([&](const KeyValue& pair) { batch.put(pair.key, pair.value); });
      break;
    case CommandKind::del:
      outcome.kind = Outcome::Kind::integer;
      command.each([&](const KeyValue& pair) {
        if (!failed.ok()) return;
        const auto there = batch.read(pair.key);
        failed = there.status();
        if (!there || !there->has_value()) return;
        batch.put(pair.key, std::nullopt);
        ++outcome.integer;
      });
      break;
    case CommandKind::incr_by:
      command.each([&](const KeyValue& pair) {
        const auto there = batch.read(pair.key);
        failed = there.status();
        if (!there) return;
        std::string_view value;
        if (there->has_value()) value = **there;
        outcome = increment(there->has_value() ? &value : nullptr, command.summand());
        if (!outcome.failed()) batch.put(pair.key, std::to_string(outcome.integer));
      });
      break;
  }
  if (!failed.ok()) return failed;
  return outcome;
}

bool reads(const Command& command) {
  return command.kind() == CommandKind::del || command.kind() == CommandKind::incr_by;
}

std::string entry_name(const Store::Entry& entry) {
  return "entry " + std::to_string(entry.index) + " of epoch " + std::to_string(entry.epoch);
}

}  // namespace

class Store::Impl {
 public:
  Impl(std::string folder, StoreOptions options, StoreLock lock)
      : folder_(std::move(folder)), options_(std::move(options)), lock_(std::move(lock)) {}

  ~Impl();

  [[nodiscard]] Status open();
  [[nodiscard]] Result<std::vector<Outcome>> apply(std::span<const Entry> entries);
  [[nodiscard]] Result<bool> get(std::string_view key, std::string& value) const;
  /// Calls `found(i, value)` for the keys that are there, all of one moment.
  template <typename Found>
  [[nodiscard]] Status look_up(std::span<const std::string_view> keys, Found&& found) const;
  [[nodiscard]] Status flush(bool wait);
  [[nodiscard]] Status health() const;
  struct InMemory {
    std::size_t keys = 0, bytes = 0;
  };
  [[nodiscard]] InMemory in_memory() const;
  [[nodiscard]] Result<Checkpoint> make_checkpoint(const std::string& to);
  [[nodiscard]] Status install(const std::string& from);

  /// Calls `function` with the database in force, which stays meanwhile.
  template <typename F>
  auto with_database(F&& function) const {
    const std::shared_lock lock(changing_);
    return function(*database_);
  }

  [[nodiscard]] Position applied() const {
    const std::lock_guard lock(position_mutex_);
    return position_;
  }
  [[nodiscard]] std::uint64_t applied_index() const noexcept {
    return applied_index_.load(std::memory_order_acquire);  // (1) acquire: pairs with (2)
  }
  [[nodiscard]] std::string path(std::string_view name) const {
    return folder_ + "/" + std::string(name);
  }
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }
  [[nodiscard]] const StoreOptions& options() const noexcept { return options_; }

 private:
  [[nodiscard]] Status step(std::string_view name) const {
    return options_.on_step ? options_.on_step(name) : Status();
  }
  [[nodiscard]] Status open_folder();
  [[nodiscard]] Status create();
  [[nodiscard]] Status refuse_data_without_store_file() const;
  [[nodiscard]] Status remove_all_but(std::optional<std::uint64_t> generation) const;
  [[nodiscard]] Status check_order(std::span<const Entry> entries) const;
  [[nodiscard]] Result<Overlay::Value> value_of(std::string_view key) const;
  [[nodiscard]] const Overlay::Value* find_in_memory(std::string_view key) const;
  [[nodiscard]] Status make_room();
  void freeze();
  /// Under memory_mutex_.
  [[nodiscard]] const Status& background_failure() const noexcept {
    return merge_failure_.ok() ? flush_failure_ : merge_failure_;
  }
  [[nodiscard]] Status merge();
  [[nodiscard]] Status merge_frozen(const std::shared_ptr<const Overlay>& frozen);
  void merge_in_background();
  [[nodiscard]] Status flush_database(bool wait);
  [[nodiscard]] bool in_force(std::uint64_t generation) const;
  [[nodiscard]] Result<std::unique_ptr<Database>> move_in(const std::string& from,
                                                          const std::string& to,
                                                          const Checkpoint& checkpoint);
  void set_position(Position position) {
    {
      const std::lock_guard lock(position_mutex_);
      position_ = position;
    }
    // (2) release: pairs with (1): who sees this index and then reads sees what was written.
    applied_index_.store(position.index, std::memory_order_release);
  }

  const std::string folder_;
  const StoreOptions options_;
  const StoreLock lock_;

  std::mutex writing_;             ///< held by whoever applies or installs
  std::uint64_t generation_ = 0;   ///< by the holder of writing_
  std::vector<Command> commands_;  ///< by the holder of writing_; kept for its memory

  /// Shared by who uses database_, alone by who puts another one there. Not fair to an installer,
  /// which may wait as long as reads overlap each other without a break.
  mutable std::shared_mutex changing_;
  std::unique_ptr<Database> database_;

  // What is not in RocksDB yet. Locks are taken in this order: writing_, merging_, changing_,
  // memory_mutex_.
  std::mutex merging_;                     ///< held by whoever merges or installs
  mutable std::mutex memory_mutex_;        ///< guards what follows; nobody does I/O under it
  Overlay active_;                         ///< what is applied goes here
  Position merged_;                        ///< RocksDB has everything up to here
  std::shared_ptr<const Overlay> frozen_;  ///< is being merged; older than active_
  Status merge_failure_, flush_failure_;   ///< of the last one
  bool flush_wanted_ = false, stop_ = false;
  std::condition_variable merge_wake_;   ///< for the merger
  std::condition_variable merged_wake_;  ///< for who waits until it is done
  std::thread merger_;

  mutable std::mutex position_mutex_;
  Position position_;
  std::atomic<std::uint64_t> applied_index_{0};
};

// --- opening -----------------------------------------------------------------------------------

Status Store::Impl::open() {
  SLUICE_RETURN_IF_ERROR(open_folder());
  // Received only in part, or never installed.
  SLUICE_RETURN_IF_ERROR(remove_folder(path("incoming")));
  SLUICE_RETURN_IF_ERROR(make_folder(path("incoming")));
  const auto position = database_->position(false);
  if (!position) return position.status();
  set_position(*position);
  active_.last = merged_ = *position;
  merger_ = std::thread([this] { merge_in_background(); });
  return {};
}

Store::Impl::~Impl() {
  if (!merger_.joinable()) return;  // it was never open
  {
    const std::lock_guard lock(memory_mutex_);
    stop_ = true;
    merge_wake_.notify_all();
  }
  merger_.join();
  (void)merge();  // a failure costs the time to apply it again; the database flushes as it closes
}

Status Store::Impl::open_folder() {
  std::error_code error;
  if (!std::filesystem::exists(path("STORE"), error)) return create();
  const auto text = read_file(path("STORE"), kStoreFileBytesMax);
  if (!text) return text.status();
  const auto generation = parse_store_file(folder_, *text);
  if (!generation) return generation.status();
  auto opened = Database::open(path(database_name(*generation)), options_);
  if (!opened) return opened.status();
  database_ = std::move(*opened);
  generation_ = *generation;
  return remove_all_but(generation_);
}

Status Store::Impl::create() {
  SLUICE_RETURN_IF_ERROR(refuse_data_without_store_file());
  SLUICE_RETURN_IF_ERROR(remove_all_but({}));
  generation_ = 1;
  SLUICE_RETURN_IF_ERROR(step("create the database"));
  auto made = Database::create(path(database_name(generation_)), options_);
  if (!made) return made.status();
  SLUICE_RETURN_IF_ERROR(step("name the database"));
  SLUICE_RETURN_IF_ERROR(write_file_atomically(path("STORE"), store_file_text(generation_)));
  database_ = std::move(*made);
  return {};
}

/// A crash while the store was made leaves a database with nothing in it; anything more without the
/// file STORE is somebody's data, not ours to remove.
Status Store::Impl::refuse_data_without_store_file() const {
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder_, error), end; !error && at != end;
       at.increment(error)) {
    if (!generation_of(at->path().filename().string())) continue;
    std::error_code ignored;
    if (!std::filesystem::exists(at->path() / "CURRENT", ignored)) continue;
    const auto position = Database::peek(at->path().string());
    if (position && (!position->has_value() || (*position)->index == 0)) continue;
    return {StatusCode::io_error, "the data folder " + folder_ + " has data in " +
                                      at->path().filename().string() +
                                      " but no file STORE that says what is in force"};
  }
  if (error) return {StatusCode::io_error, "cannot list the data folder " + folder_, error.value()};
  return {};
}

Status Store::Impl::remove_all_but(std::optional<std::uint64_t> generation) const {
  std::error_code error;
  std::vector<std::string> others;
  for (std::filesystem::directory_iterator at(folder_, error), end; !error && at != end;
       at.increment(error)) {
    const auto found = generation_of(at->path().filename().string());
    if (found && found != generation) others.push_back(at->path().string());
  }
  if (error) return {StatusCode::io_error, "cannot list the data folder " + folder_, error.value()};
  for (const std::string& other : others) SLUICE_RETURN_IF_ERROR(remove_folder(other));
  return {};
}

// --- applying ----------------------------------------------------------------------------------

Status Store::Impl::check_order(std::span<const Entry> entries) const {
  Position last = applied();
  for (const Entry& entry : entries) {
    if (entry.index != last.index + 1 || entry.epoch < last.epoch || entry.epoch == 0)
      return {StatusCode::internal, entry_name(entry) + " does not follow entry " +
                                        std::to_string(last.index) + " of epoch " +
                                        std::to_string(last.epoch)};
    last = {entry.epoch, entry.index};
  }
  return {};
}

Result<std::vector<Outcome>> Store::Impl::apply(std::span<const Entry> entries) {
  std::vector<Outcome> outcomes;
  if (entries.empty()) return outcomes;
  const std::lock_guard lock(writing_);
  SLUICE_RETURN_IF_ERROR(check_order(entries));
  commands_.clear();
  for (const Entry& entry : entries) {
    const auto command = decode(entry.payload);
    if (!command) return command.status().with_context(entry_name(entry));
    commands_.push_back(*command);
  }
  SLUICE_RETURN_IF_ERROR(make_room());
  const Position position{entries.back().epoch, entries.back().index};
  outcomes.reserve(entries.size());
  if (std::ranges::none_of(commands_, reads)) {  // nothing can fail: straight to where it goes
    const std::lock_guard memory(memory_mutex_);
    for (const Command& command : commands_) {
      command.each([&](const KeyValue& pair) { active_.put(pair.key, pair.value); });
      outcomes.emplace_back();
    }
    active_.last = position;
  } else {
    Batch batch([this](std::string_view key) { return value_of(key); });
    for (const Command& command : commands_) {
      const auto outcome = run(command, batch);
      if (!outcome) return outcome.status();
      outcomes.push_back(*outcome);
    }
    const std::lock_guard memory(memory_mutex_);
    for (const auto& [key, value] : batch.changed().keys)
      active_.put(key, value ? std::optional<std::string_view>(*value) : std::nullopt);
    active_.last = position;
  }
  set_position(position);
  return outcomes;
}

// --- between memory and RocksDB ------------------------------------------------------------------

/// Under memory_mutex_.
const Overlay::Value* Store::Impl::find_in_memory(std::string_view key) const {
  if (const auto* const value = active_.find(key)) return value;
  return frozen_ != nullptr ? frozen_->find(key) : nullptr;
}

Result<bool> Store::Impl::get(std::string_view key, std::string& value) const {
  value.clear();
  {
    const std::lock_guard memory(memory_mutex_);
    if (const auto* const found = find_in_memory(key)) {
      if (*found) value = **found;
      return found->has_value();
    }
  }
  // What is merged meanwhile is newer or the same: then this read came after it.
  return with_database([&](Database& database) -> Result<bool> {
    std::string space;
    rocksdb::DB& db = database.db();
    rocksdb::PinnableSlice found(&value);  // what is not pinned is in `value` already
    const auto status = db.Get(rocksdb::ReadOptions(), db.DefaultColumnFamily(),
                               Database::user_key(key, space), &found);
    if (status.IsNotFound()) return false;
    if (!status.ok()) return from_rocksdb(status, "cannot read a key in " + database.folder());
    if (found.IsPinned()) value.assign(found.data(), found.size());
    return true;
  });
}

Result<Overlay::Value> Store::Impl::value_of(std::string_view key) const {
  std::string value;
  const auto there = get(key, value);
  if (!there) return there.status();
  return *there ? Overlay::Value(std::move(value)) : Overlay::Value();
}

template <typename Found>
Status Store::Impl::look_up(std::span<const std::string_view> keys, Found&& found) const {
  return with_database([&](Database& database) -> Status {
    rocksdb::DB& db = database.db();
    std::vector<std::size_t> elsewhere;
    std::optional<rocksdb::ManagedSnapshot> snapshot;
    {
      const std::lock_guard memory(memory_mutex_);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const auto* const value = find_in_memory(keys[i]);
        if (value == nullptr)
          elsewhere.push_back(i);
        else if (*value)
          found(i, rocksdb::Slice(**value));
      }
      if (elsewhere.empty()) return {};
      // The rest is of the same moment: none of these keys is in memory, and what is merged or
      // applied from here on is not in the snapshot.
      snapshot.emplace(&db);
    }
    rocksdb::ReadOptions options;
    options.snapshot = snapshot->snapshot();
    std::vector<std::string> space(elsewhere.size());
    std::vector<rocksdb::Slice> slices(elsewhere.size());
    for (std::size_t i = 0; i < elsewhere.size(); ++i)
      slices[i] = Database::user_key(keys[elsewhere[i]], space[i]);
    std::vector<rocksdb::PinnableSlice> values(elsewhere.size());
    std::vector<rocksdb::Status> statuses(elsewhere.size());
    db.MultiGet(options, db.DefaultColumnFamily(), elsewhere.size(), slices.data(), values.data(),
                statuses.data());
    for (std::size_t i = 0; i < elsewhere.size(); ++i) {
      if (statuses[i].IsNotFound()) continue;
      if (!statuses[i].ok())
        return from_rocksdb(statuses[i], "cannot read a key in " + database.folder());
      found(elsewhere[i], values[i]);
    }
    return {};
  });
}

/// Before a batch is applied: what has gathered is put aside to be merged. Waits only when as much
/// has gathered again before that is done.
Status Store::Impl::make_room() {
  const std::size_t most = options_.write_buffer_bytes / 2;
  std::unique_lock memory(memory_mutex_);
  if (active_.bytes >= most && merge_failure_.ok()) {
    merged_wake_.wait(memory, [&] {
      return frozen_ == nullptr || !merge_failure_.ok() || active_.bytes < 2 * most;
    });
    if (frozen_ == nullptr) {
      freeze();
      merge_wake_.notify_all();
    }
  }
  if (merge_failure_.ok()) return {};
  memory.unlock();
  return merge();  // works again, or says why not
}

/// Under memory_mutex_, with nothing frozen.
void Store::Impl::freeze() {
  const Position last = active_.last;
  frozen_ = std::make_shared<const Overlay>(std::exchange(active_, Overlay()));
  active_.last = last;
}

/// Has everything that was applied before the call in RocksDB when it returns.
Status Store::Impl::merge() {
  const std::lock_guard merging(merging_);
  for (int turn = 0; turn < 2; ++turn) {  // what was put aside, and what came since
    std::shared_ptr<const Overlay> frozen;
    {
      const std::lock_guard memory(memory_mutex_);
      if (frozen_ == nullptr) {
        if (active_.last == merged_) return {};
        freeze();
        turn = 1;
      }
      frozen = frozen_;
    }
    SLUICE_RETURN_IF_ERROR(merge_frozen(frozen));
  }
  return {};
}

/// With merging_ held. In the order of the keys: RocksDB then finds each place beside the one
/// before. Each batch is larger than a memtable may be, so it goes into one of its own.
Status Store::Impl::merge_frozen(const std::shared_ptr<const Overlay>& frozen) {
  std::vector<const std::pair<const std::string, Overlay::Value>*> sorted;
  sorted.reserve(frozen->keys.size());
  for (const auto& key : frozen->keys) sorted.push_back(&key);
  std::ranges::sort(sorted, {}, [](const auto* key) -> const std::string& { return key->first; });
  // All of its room at once: growing copies tens of MiB again and again.
  rocksdb::WriteBatch batch(frozen->bytes + kBatchHeaderBytes);
  std::string space;
  for (const auto* const key : sorted) {
    const auto status = key->second ? batch.Put(Database::user_key(key->first, space), *key->second)
                                    : batch.Delete(Database::user_key(key->first, space));
    SLUICE_CHECK(status.ok(), "a batch without a bound refused a key");
  }
  Database::put_position(batch, frozen->last);
  const Status written = with_database([&](Database& database) -> Status {
    SLUICE_RETURN_IF_ERROR(step("merge"));
    rocksdb::WriteOptions write;
    write.disableWAL = true;
    const auto status = database.db().Write(write, &batch);
    if (!status.ok()) return from_rocksdb(status, "the store in " + folder_ + " takes no writes");
    return {};
  });
  const std::lock_guard memory(memory_mutex_);
  merge_failure_ = written;
  if (written.ok()) {
    merged_ = frozen->last;
    frozen_.reset();  // the caller has it, and frees it without the lock
  }
  merged_wake_.notify_all();
  return written;
}

void Store::Impl::merge_in_background() {
  pthread_setname_np(pthread_self(), "kv-store");
  constexpr auto kAgain = std::chrono::seconds(1);
  for (;;) {
    bool flush = false;
    {
      std::unique_lock memory(memory_mutex_);
      const auto wanted = [this] { return stop_ || frozen_ != nullptr || flush_wanted_; };
      if (merge_failure_.ok())
        merge_wake_.wait(memory, wanted);
      else  // RocksDB goes on by itself when there is room again
        merge_wake_.wait_for(memory, kAgain, [this] { return stop_; });
      if (stop_) return;
      flush = flush_wanted_;
    }
    if (!flush) {
      const std::lock_guard merging(merging_);
      std::shared_ptr<const Overlay> frozen;
      {
        const std::lock_guard memory(memory_mutex_);
        frozen = frozen_;
      }
      if (frozen != nullptr) (void)merge_frozen(frozen);  // whoever applies is told
      continue;
    }
    if (!merge().ok()) continue;
    {
      const std::lock_guard memory(memory_mutex_);
      flush_wanted_ = false;
    }
    (void)flush_database(false);
  }
}

Status Store::Impl::flush(bool wait) {
  if (!wait) {
    const std::lock_guard memory(memory_mutex_);
    flush_wanted_ = true;
    merge_wake_.notify_all();
    return background_failure();
  }
  SLUICE_RETURN_IF_ERROR(merge());
  return flush_database(true);
}

Status Store::Impl::flush_database(bool wait) {
  return with_database([&](Database& database) -> Status {
    const Status flushed = [&]() -> Status {
      SLUICE_RETURN_IF_ERROR(step("flush"));
      rocksdb::FlushOptions options;
      options.wait = wait;
      options.allow_write_stall = true;  // whoever asks for it wants it now
      const auto status = database.db().Flush(options);
      if (!status.ok())
        return from_rocksdb(status, "cannot write to the store in " + database.folder());
      return {};
    }();
    const std::lock_guard memory(memory_mutex_);
    flush_failure_ = flushed;
    return flushed;
  });
}

Status Store::Impl::health() const {
  SLUICE_RETURN_IF_ERROR(with_database([](Database& database) { return database.health(); }));
  const std::lock_guard memory(memory_mutex_);
  return background_failure();
}

Store::Impl::InMemory Store::Impl::in_memory() const {
  const std::lock_guard memory(memory_mutex_);
  InMemory out{active_.keys.size(), active_.bytes};
  if (frozen_ != nullptr) {
    out.keys += frozen_->keys.size();
    out.bytes += frozen_->bytes;
  }
  return out;
}

// --- checkpoints -------------------------------------------------------------------------------

Result<Checkpoint> Store::Impl::make_checkpoint(const std::string& to) {
  std::error_code ignored;
  if (std::filesystem::exists(to, ignored))
    return Status(StatusCode::invalid_argument, "a checkpoint needs a new folder; there is " + to);
  SLUICE_RETURN_IF_ERROR(merge());
  const Status made = with_database([&](Database& database) -> Status {
    rocksdb::Checkpoint* maker = nullptr;
    auto status = rocksdb::Checkpoint::Create(&database.db(), &maker);
    const std::unique_ptr<rocksdb::Checkpoint> owner(maker);
    // Flushes first: without a write-ahead log that is what the checkpoint is made of.
    if (status.ok()) status = maker->CreateCheckpoint(to, 0);
    if (!status.ok()) return from_rocksdb(status, "cannot make a checkpoint in " + to);
    return {};
  });
  if (!made.ok()) return made;
  // Entries may have been applied meanwhile: which is the last one in it, only it can tell.
  const auto complete = [&]() -> Result<Checkpoint> {
    const auto position = Database::peek(to);
    if (!position) return position.status();
    if (!position->has_value())
      return Status(StatusCode::internal, "the checkpoint in " + to + " has no position");
    Checkpoint checkpoint;
    checkpoint.cluster_id = options_.cluster_id;
    checkpoint.epoch = (*position)->epoch;
    checkpoint.index = (*position)->index;
    SLUICE_RETURN_IF_ERROR(list_checkpoint(to, checkpoint));
    return checkpoint;
  };
  auto checkpoint = complete();
  if (!checkpoint) (void)remove_folder(to);  // what failed first is what is told
  return checkpoint;
}

/// Renames the folder to where databases live and opens it; what fails after the rename removes it.
Result<std::unique_ptr<Database>> Store::Impl::move_in(const std::string& from,
                                                       const std::string& to,
                                                       const Checkpoint& checkpoint) {
  SLUICE_RETURN_IF_ERROR(remove_folder(to));  // of an earlier attempt
  SLUICE_RETURN_IF_ERROR(step("move the checkpoint"));
  SLUICE_RETURN_IF_ERROR(rename_path(from, to));
  auto opened = [&]() -> Result<std::unique_ptr<Database>> {
    SLUICE_RETURN_IF_ERROR(sync_folder(folder_));
    SLUICE_RETURN_IF_ERROR(step("open the new database"));
    auto database = Database::open(to, options_);
    if (!database) return database;
    const auto position = (*database)->position(true);
    if (!position) return position.status();
    if (*position != Position{checkpoint.epoch, checkpoint.index})
      return Status(StatusCode::io_error,
                    "the checkpoint ends with entry " + std::to_string(position->index) +
                        ", its listing says " + std::to_string(checkpoint.index));
    SLUICE_RETURN_IF_ERROR(step("put the new database in force"));
    return database;
  }();
  if (!opened) (void)remove_folder(to);
  return opened;
}

Status Store::Impl::install(const std::string& from) {
  const auto checkpoint = read_checkpoint(from);
  if (!checkpoint) return checkpoint.status();
  if (checkpoint->cluster_id != options_.cluster_id)
    return {StatusCode::invalid_argument, "the checkpoint in " + from + " belongs to cluster " +
                                              std::to_string(checkpoint->cluster_id) +
                                              ", not to cluster " +
                                              std::to_string(options_.cluster_id)};
  SLUICE_RETURN_IF_ERROR(step("verify the checkpoint"));
  SLUICE_RETURN_IF_ERROR(verify_checkpoint(from, *checkpoint));
  SLUICE_RETURN_IF_ERROR(step("sync the checkpoint"));
  for (const auto& file : checkpoint->files)
    SLUICE_RETURN_IF_ERROR(sync_file(from + "/" + file.name));
  SLUICE_RETURN_IF_ERROR(sync_folder(from));

  const std::lock_guard lock(writing_);
  const std::lock_guard merging(merging_);
  const std::uint64_t next = generation_ + 1;
  const std::string to = path(database_name(next));
  auto opened = move_in(from, to, *checkpoint);
  if (!opened) return opened.status();
  // The moment of the change: STORE names one of two databases that are both whole.
  const Status named = write_file_atomically(path("STORE"), store_file_text(next));
  if (!named.ok() && !in_force(next)) {
    (*opened)->drop();
    opened->reset();
    (void)remove_folder(to);
    return named;
  }
  std::unique_ptr<Database> old;
  Overlay old_active;
  std::shared_ptr<const Overlay> old_frozen;
  {
    const std::unique_lock alone(changing_);
    const std::lock_guard memory(memory_mutex_);
    old = std::exchange(database_, std::move(*opened));
    old_active = std::exchange(active_, Overlay());
    old_frozen = std::exchange(frozen_, nullptr);
    merge_failure_ = flush_failure_ = Status();
    merged_wake_.notify_all();
    active_.last = merged_ = {checkpoint->epoch, checkpoint->index};
    set_position({checkpoint->epoch, checkpoint->index});
  }
  generation_ = next;
  const std::string old_folder = old->folder();
  old->drop();
  // The old data stays: a power cut may bring back the STORE that names it.
  if (!named.ok())
    return named.with_context("the checkpoint is in force, but may not survive a power cut");
  // From here on it is only tidying up, which open() does as well.
  if (!step("close the old database").ok()) return {};
  old.reset();
  if (step("remove the old database").ok()) (void)remove_folder(old_folder);
  return {};
}

/// Whether STORE names this generation.
bool Store::Impl::in_force(std::uint64_t generation) const {
  const auto text = read_file(path("STORE"), kStoreFileBytesMax);
  if (!text) return false;
  const auto named = parse_store_file(folder_, *text);
  return named && *named == generation;
}

// --- the interface -----------------------------------------------------------------------------

Store::Store(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Store::~Store() = default;

Result<std::unique_ptr<Store>> Store::open(const std::string& folder, StoreOptions options) {
  SLUICE_RETURN_IF_ERROR(check(options));
  SLUICE_RETURN_IF_ERROR(make_folder(folder));
  auto lock = StoreLock::take(folder);
  if (!lock) return lock.status();
  auto impl = std::make_unique<Impl>(folder, std::move(options), std::move(*lock));
  SLUICE_RETURN_IF_ERROR(impl->open());
  return std::unique_ptr<Store>(new Store(std::move(impl)));
}

Result<std::vector<Outcome>> Store::apply(std::span<const Entry> entries) {
  return impl_->apply(entries);
}

Result<bool> Store::get(std::string_view key, std::string& value) const {
  return impl_->get(key, value);
}

Result<std::vector<std::optional<std::string>>> Store::mget(
    std::span<const std::string_view> keys) const {
  std::vector<std::optional<std::string>> values(keys.size());
  SLUICE_RETURN_IF_ERROR(impl_->look_up(
      keys, [&](std::size_t i, const rocksdb::Slice& value) { values[i] = value.ToString(); }));
  return values;
}

Result<std::uint64_t> Store::exists(std::span<const std::string_view> keys) const {
  std::uint64_t count = 0;
  SLUICE_RETURN_IF_ERROR(
      impl_->look_up(keys, [&](std::size_t, const rocksdb::Slice&) { ++count; }));
  return count;
}

std::uint64_t Store::applied_index() const noexcept {
  return impl_->applied_index();
}

Store::Position Store::applied() const {
  return impl_->applied();
}

Result<Store::Position> Store::durable() const {
  return impl_->with_database([](Database& database) { return database.position(true); });
}

Result<std::uint64_t> Store::durable_applied_index() const {
  const auto position = durable();
  if (!position) return position.status();
  return position->index;
}

Status Store::flush(bool wait) {
  return impl_->flush(wait);
}

Result<Checkpoint> Store::make_checkpoint(const std::string& folder) const {
  return impl_->make_checkpoint(folder);
}

Status Store::install_checkpoint(const std::string& folder) {
  return impl_->install(folder);
}

std::string Store::incoming() const {
  return impl_->path("incoming");
}

Status Store::health() const {
  return impl_->health();
}

Store::Numbers Store::numbers() const {
  const auto in_memory = impl_->in_memory();
  return impl_->with_database([in_memory](Database& database) {
    Numbers numbers;
    rocksdb::DB& db = database.db();
    // A property that RocksDB does not have stays 0.
    (void)db.GetIntProperty(rocksdb::DB::Properties::kEstimateNumKeys, &numbers.keys_estimate);
    (void)db.GetIntProperty(rocksdb::DB::Properties::kSizeAllMemTables, &numbers.memory_bytes);
    (void)db.GetIntProperty(rocksdb::DB::Properties::kLiveSstFilesSize, &numbers.file_bytes);
    numbers.memory_bytes += in_memory.bytes;
    numbers.keys_estimate += in_memory.keys;
    return numbers;
  });
}

const std::string& Store::folder() const noexcept {
  return impl_->folder();
}

std::uint64_t Store::cluster_id() const noexcept {
  return impl_->options().cluster_id;
}

}  // namespace sluice::kv
