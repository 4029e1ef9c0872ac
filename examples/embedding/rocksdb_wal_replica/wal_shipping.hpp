// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/listener.h>
#include <rocksdb/transaction_log.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>

#include "sluice/dispatch/dispatcher.hpp"

/// A RocksDB whose writes go to another one: what to copy into an engine, all of it.
///
/// The replica applies the very batches of the primary's write-ahead log, in their order and
/// nothing else, so both count the same sequence numbers: GetLatestSequenceNumber() of the replica
/// is how far it is, after a crash as well, and needs no bookkeeping.
namespace wal_shipping {

using namespace sluice;
using rpma::MemoryRegion;

constexpr std::uint32_t kWindow = 16;  ///< batches on their way at most
constexpr std::size_t kBatchBytesMax = std::size_t{256} << 10;

/// In front of each batch; 0 bytes: there is no more.
struct Header {
  std::uint64_t sequence, bytes;
};
/// All up to `sequence` is synced; `batches` of them since the connection was made.
struct Acknowledgement {
  std::uint64_t sequence, batches;
};
constexpr std::size_t kSlotBytes = sizeof(Header) + kBatchBytesMax;

/// Give it to Options::listeners: after a flush RocksDB needs the WAL no more, but a replica that
/// has not got that far does. (Options::WAL_ttl_seconds is for one that is away.)
class KeepWal final : public rocksdb::EventListener {
 public:
  void OnFlushBegin(rocksdb::DB* db, const rocksdb::FlushJobInfo&) override {
    const std::lock_guard lock(mutex_);
    until_ = db->GetLatestSequenceNumber();  // the flush makes nothing beyond it superfluous
    if (held_ != nullptr || acknowledged_ >= until_ || !db->DisableFileDeletions().ok()) return;
    held_ = db;
    ++times_held;
  }
  void acknowledged(std::uint64_t sequence) {
    const std::lock_guard lock(mutex_);
    acknowledged_ = sequence;
    if (held_ == nullptr || acknowledged_ < until_) return;
    (void)std::exchange(held_, nullptr)->EnableFileDeletions(false);
  }
  std::uint64_t times_held = 0;  ///< to be read when all is done

 private:
  std::mutex mutex_;
  rocksdb::DB* held_ = nullptr;  ///< deletes no files for now
  std::uint64_t until_ = 0, acknowledged_ = 0;
};

/// Reads the WAL and sends it. ship() on a thread of the engine's, written() on any.
class Primary {
 public:
  Primary(rocksdb::DB& db, KeepWal& keep) : db_(db), keep_(keep) {}

  Status connect(Dispatcher& dispatcher, const std::shared_ptr<rpma::Peer>& peer,
                 const std::string& address, const std::string& port) {
    auto slots = MemoryRegion::allocate(peer, kWindow * kSlotBytes, RPMA_MR_USAGE_SEND);
    if (!slots) return slots.status();
    slots_ = *slots;
    ConnectionOptions options;
    options.handler = [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
      for (const ibv_wc& wc : batch) tell([&] { on_completion(wc); });
    };
    options.on_event = [this](ConnectionId, rpma::ConnectionEvent) { tell([&] { lost_ = true; }); };
    const rpma::ConnectionConfig config{.send_queue_size = 2 * kWindow,
                                        .receive_queue_size = 2 * kWindow};
    auto handle = dispatcher.connect(peer, address, port, config, {}, std::move(options));
    if (!handle) return handle.status();
    const std::lock_guard lock(mutex_);  // the handler looks at replies_
    handle_ = *handle;
    auto replies = handle_->connection().stock(2 * kWindow, sizeof(Acknowledgement));
    if (replies) replies_ = *replies;
    return replies.status();
  }

  /// After each DB::Write(), since the WAL wakes nobody. With `last` ship() ends when all is
  /// acknowledged.
  void written(bool last = false) {
    tell([&] { finished_ = finished_ || last; });
  }

  /// Blocks. connection_lost: the replica went away.
  Status ship() {
    std::uint64_t next = 0;  // known when the replica has said where it is
    while (wait([&] {
      next = next > 0 ? next : said_.sequence + 1;
      return next > 0 && (finished_ || db_.GetLatestSequenceNumber() >= next);
    })) {
      if (db_.GetLatestSequenceNumber() < next) {
        if (!wait([&] { return said_.sequence + 1 == next; })) break;
        return send({next, 0}, {});
      }
      std::unique_ptr<rocksdb::TransactionLogIterator> log;
      auto read = db_.GetUpdatesSince(next, &log);
      for (; read.ok() && log->Valid(); log->Next()) {
        const rocksdb::BatchResult update = log->GetBatch();
        if (update.sequence != next)
          return {StatusCode::io_error, "the WAL does not reach back: a checkpoint is needed"};
        const std::string& bytes = update.writeBatchPtr->Data();
        if (auto sent = send({next, bytes.size()}, bytes); !sent.ok()) return sent;
        next += update.writeBatchPtr->Count();
      }
      if (read.ok()) read = log->status();
      if (!read.ok() && !read.IsTryAgain()) return {StatusCode::io_error, read.ToString()};
    }
    return {StatusCode::connection_lost, "the replica went away"};
  }

 private:
  template <typename F>
  void tell(F&& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  template <typename F>
  bool wait(F&& done) {  // false: the replica is gone
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return lost_ || done(); });
    return !lost_;
  }

  void on_completion(const ibv_wc& wc) {
    lost_ = lost_ || wc.status != IBV_WC_SUCCESS;
    if (replies_ == nullptr || !replies_->owns(wc.wr_id)) return (void)++sends_done_;
    const auto buffer = replies_->take(wc);  // posted again when this returns
    if (buffer.bytes().size() != sizeof said_) return;
    std::memcpy(&said_, buffer.bytes().data(), sizeof said_);
    keep_.acknowledged(said_.sequence);
  }

  /// Waits for a slot whose batch was acknowledged and whose send has completed.
  Status send(const Header& header, const std::string& batch) {
    if (batch.size() > kBatchBytesMax)
      return {StatusCode::does_not_fit, "a batch of " + std::to_string(batch.size()) + " bytes"};
    if (!wait([&] { return sent_ - std::min(said_.batches, sends_done_) < kWindow; }))
      return {StatusCode::connection_lost, "the replica went away"};
    const std::size_t offset = sent_++ % kWindow * kSlotBytes;
    std::byte* const slot = slots_->memory().data() + offset;
    std::memcpy(slot, &header, sizeof header);
    std::memcpy(slot + sizeof header, batch.data(), batch.size());
    return handle_->connection().send(slots_.get(), offset, sizeof header + batch.size(), 0);
  }

  rocksdb::DB& db_;
  KeepWal& keep_;
  std::shared_ptr<MemoryRegion> slots_;
  std::shared_ptr<ConnectionHandle> handle_;
  std::uint64_t sent_ = 0;  ///< ship()'s
  std::mutex mutex_;
  std::condition_variable changed_;
  ReceivePool* replies_ = nullptr;  ///< this and the following under mutex_
  bool lost_ = false, finished_ = false;
  Acknowledgement said_{~std::uint64_t{0}, 0};  ///< one before the first number: nothing yet
  std::uint64_t sends_done_ = 0;
};

/// Applies what comes, on a worker of the dispatcher.
class Replica {
 public:
  /// `ended`: the primary is through (ok) or gone, or the disk failed. Called once, on any thread.
  Replica(rocksdb::DB& db, std::function<void(const Status&)> ended)
      : db_(db), ended_(std::move(ended)) {}

  Status listen(Dispatcher& dispatcher, const std::shared_ptr<rpma::Peer>& peer,
                std::unique_ptr<rpma::Endpoint> endpoint) {
    auto replies =
        MemoryRegion::allocate(peer, kReplies * sizeof(Acknowledgement), RPMA_MR_USAGE_SEND);
    if (!replies) return replies.status();
    replies_ = *replies;
    ListenOptions listen{.config = {.send_queue_size = kReplies, .receive_queue_size = kReceives}};
    listen.on_request = [this](std::span<const std::byte>) {
      ConnectionOptions options;  // per_connection: in order, one call at a time: no lock
      options.handler = [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
        on_completions(batch);
      };
      options.on_event = [this](ConnectionId, rpma::ConnectionEvent) {
        end({StatusCode::connection_lost, "the primary went away"});
      };
      return std::optional(std::move(options));
    };
    listen.on_connected = [this](std::shared_ptr<ConnectionHandle> handle) {
      handle_ = std::move(handle);
      auto receives = handle_->connection().stock(kReceives, kSlotBytes);
      if (!receives) return end(receives.status());
      receives_ = *receives;
      acknowledge();  // where to begin; no batch comes before the primary has this
    };
    auto listener = dispatcher.listen(std::move(endpoint), std::move(listen));
    if (listener) listener_ = std::move(*listener);
    return listener.status();
  }
  [[nodiscard]] std::uint64_t batches() const noexcept { return batches_; }  ///< when it has ended

 private:
  static constexpr std::uint32_t kReceives = kWindow + 1, kReplies = 4 * kWindow;

  /// On a worker. What arrived together is synced together, and acknowledged once.
  void on_completions(std::span<const ibv_wc> batch) noexcept {
    const std::uint64_t before = batches_;
    for (const ibv_wc& wc : batch) {
      if (receives_ == nullptr || !receives_->owns(wc.wr_id)) continue;
      const auto buffer = receives_->take(wc);  // posted again at the end of the loop
      if (wc.status == IBV_WC_SUCCESS) apply(buffer.bytes());
    }
    if (batches_ == before) return;
    if (const auto synced = db_.SyncWAL(); !synced.ok())
      return end({StatusCode::io_error, synced.ToString()});
    acknowledge();
  }

  void apply(std::span<const std::byte> message) {
    Header header{0, 0};
    if (message.size() >= sizeof header) std::memcpy(&header, message.data(), sizeof header);
    if (message.size() != sizeof header + header.bytes ||
        header.sequence != db_.GetLatestSequenceNumber() + 1)
      return end({StatusCode::internal, "a batch that does not follow"});
    if (header.bytes == 0) return end({});
    const auto* const bytes = reinterpret_cast<const char*>(message.data() + sizeof header);
    rocksdb::WriteBatch batch(std::string(bytes, header.bytes));
    const auto written = db_.Write(rocksdb::WriteOptions(), &batch);
    if (!written.ok()) return end({StatusCode::io_error, written.ToString()});
    ++batches_;
  }

  void acknowledge() {
    const Acknowledgement reply{db_.GetLatestSequenceNumber(), batches_};
    const std::size_t offset = replies_sent_++ % kReplies * sizeof reply;
    std::memcpy(replies_->memory().data() + offset, &reply, sizeof reply);
    if (auto sent = handle_->connection().send(replies_.get(), offset, sizeof reply, 0); !sent.ok())
      end(sent);
  }

  void end(const Status& why) {
    std::call_once(once_, [&] { ended_(why); });  // the first reason stands
  }

  rocksdb::DB& db_;
  const std::function<void(const Status&)> ended_;
  std::unique_ptr<Dispatcher::Listener> listener_;
  std::shared_ptr<MemoryRegion> replies_;
  std::shared_ptr<ConnectionHandle> handle_;
  ReceivePool* receives_ = nullptr;
  std::uint64_t replies_sent_ = 0, batches_ = 0;  ///< the handlers', which never overlap
  std::once_flag once_;
};

}  // namespace wal_shipping
