// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/listener.h>
#include <rocksdb/transaction_log.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "sluice/dispatch/dispatcher.hpp"

/// A RocksDB whose writes go to another one: what to copy into an engine, all of it.
///
/// The replica applies the very batches of the primary's write-ahead log, in their order and
/// nothing else, so both count the same sequence numbers: GetLatestSequenceNumber() of the replica
/// is how far it is, after a crash as well, and needs no bookkeeping.
namespace sluice::wal_shipping {

/// Messages on their way at most; and what the queues hold, since a send's credit comes back only
/// after the handler of its completion has returned.
constexpr std::uint32_t kWindow = 16, kDepth = 2 * kWindow;
constexpr std::size_t kSlotBytes = std::size_t{256} << 10;  ///< a batch and its Header at most

/// In front of each batch: the first sequence number, and the bytes (0: there is no more). As the
/// answer: the last sequence number that is synced, and how many messages have been dealt with.
struct Header {
  std::uint64_t sequence, count;
};

/// Give it to Options::listeners: after a flush RocksDB needs the WAL no more, but a replica that
/// has not got that far does. (Options::WAL_ttl_seconds is for one that is away.)
struct KeepWal final : public rocksdb::EventListener {
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
    auto slots = rpma::MemoryRegion::allocate(peer, kWindow * kSlotBytes, RPMA_MR_USAGE_SEND);
    if (!slots) return slots.status();
    slots_ = *slots;
    ConnectionOptions options;
    options.handler = [this](auto batch, const BatchInfo&) noexcept {
      for (const ibv_wc& wc : batch) tell([&] { on_completion(wc); });
    };
    options.on_event = [this](ConnectionId, rpma::ConnectionEvent) { tell([&] { lost_ = true; }); };
    const rpma::ConnectionConfig config{.send_queue_size = kDepth, .receive_queue_size = kDepth};
    auto handle = dispatcher.connect(peer, address, port, config, {}, std::move(options));
    if (!handle) return handle.status();
    const std::lock_guard lock(mutex_);  // the handler looks at it
    handle_ = *handle;
    return handle_->connection().stock(kDepth, sizeof(Header)).status();
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
        if (auto sent = send(next, {}); !sent.ok()) return sent;
        if (!wait([&] { return said_.count == sent_; })) break;
        return {};
      }
      std::unique_ptr<rocksdb::TransactionLogIterator> log;
      auto read = db_.GetUpdatesSince(next, &log);
      for (; read.ok() && log->Valid(); log->Next()) {
        const rocksdb::BatchResult update = log->GetBatch();
        if (update.sequence != next)
          return {StatusCode::io_error, "the WAL does not reach back: a checkpoint is needed"};
        if (auto sent = send(next, update.writeBatchPtr->Data()); !sent.ok()) return sent;
        next += update.writeBatchPtr->Count();
      }
      if (read.ok()) read = log->status();
      if (!read.ok() && !read.IsTryAgain()) return {StatusCode::io_error, read.ToString()};
    }
    return {StatusCode::connection_lost, "the replica went away"};
  }

 private:
  void tell(const auto& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  bool wait(const auto& done) {  // false: the replica is gone
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return lost_ || done(); });
    return !lost_;
  }

  void on_completion(const ibv_wc& wc) {
    lost_ = lost_ || wc.status != IBV_WC_SUCCESS;
    ReceivePool* const replies = handle_->connection().receive_pool();
    if (replies == nullptr || !replies->owns(wc.wr_id)) return (void)++sends_done_;
    const auto buffer = replies->take(wc);  // posted again when this returns
    if (buffer.bytes().size() != sizeof said_) return;
    std::memcpy(&said_, buffer.bytes().data(), sizeof said_);
    keep_.acknowledged(said_.sequence);
  }

  /// Waits for a slot whose batch was acknowledged and whose send has completed.
  Status send(std::uint64_t sequence, const std::string& batch) {
    if (batch.size() > kSlotBytes - sizeof(Header))
      return {StatusCode::does_not_fit, "a batch of " + std::to_string(batch.size()) + " bytes"};
    if (!wait([&] { return sent_ - std::min(said_.count, sends_done_) < kWindow; }))
      return {StatusCode::connection_lost, "the replica went away"};
    const std::size_t offset = sent_++ % kWindow * kSlotBytes;
    const Header header{sequence, batch.size()};
    std::byte* const slot = slots_->memory().data() + offset;
    std::memcpy(slot, &header, sizeof header);
    std::memcpy(slot + sizeof header, batch.data(), batch.size());
    return handle_->connection().send(slots_.get(), offset, sizeof header + batch.size(), 0);
  }

  rocksdb::DB& db_;
  KeepWal& keep_;
  std::shared_ptr<rpma::MemoryRegion> slots_;
  std::shared_ptr<ConnectionHandle> handle_;
  std::uint64_t sent_ = 0;  ///< ship()'s
  std::mutex mutex_;
  std::condition_variable changed_;
  bool lost_ = false, finished_ = false;  ///< this and the following under mutex_
  Header said_{~std::uint64_t{0}, 0};     ///< one before the first number: nothing yet
  std::uint64_t sends_done_ = 0;
};

/// Applies what comes, on a worker of the dispatcher.
class Replica {
 public:
  /// `ended`: the primary is through (ok) or gone, or the disk failed; on any thread. It may be
  /// called again: the first time counts.
  Replica(rocksdb::DB& db, std::function<void(const Status&)> ended)
      : db_(db), ended_(std::move(ended)) {}

  Status listen(Dispatcher& dispatcher, const std::shared_ptr<rpma::Peer>& peer,
                std::unique_ptr<rpma::Endpoint> endpoint) {
    auto replies = rpma::MemoryRegion::allocate(peer, kDepth * sizeof(Header), RPMA_MR_USAGE_SEND);
    if (!replies) return replies.status();
    replies_ = *replies;
    ListenOptions listen{.config = {.send_queue_size = kDepth, .receive_queue_size = kDepth}};
    listen.on_request = [this](std::span<const std::byte>) {
      ConnectionOptions options;  // per_connection: in order, one call at a time: no lock
      options.handler = [this](auto batch, const BatchInfo&) noexcept { deal_with(batch); };
      options.on_event = [this](ConnectionId, rpma::ConnectionEvent) {
        ended_(complete_ ? Status() : Status(StatusCode::connection_lost, "the primary went away"));
      };
      return std::optional(std::move(options));
    };
    listen.on_connected = [this](std::shared_ptr<ConnectionHandle> handle) {
      handle_ = std::move(handle);
      const Status stocked = handle_->connection().stock(kDepth, kSlotBytes).status();
      stocked.ok() ? acknowledge() : ended_(stocked);  // no batch comes before that is there
    };
    auto listener = dispatcher.listen(std::move(endpoint), std::move(listen));
    if (listener) listener_ = std::move(*listener);
    return listener.status();
  }
  std::atomic<std::uint64_t> messages{0};  ///< dealt with, the end included

 private:
  /// On a worker. What arrived together is synced together, and acknowledged once.
  void deal_with(std::span<const ibv_wc> batch) noexcept {
    const std::uint64_t before = messages;
    ReceivePool* const receives = handle_->connection().receive_pool();
    for (const ibv_wc& wc : batch) {
      if (receives == nullptr || !receives->owns(wc.wr_id)) continue;
      const auto buffer = receives->take(wc);  // posted again at the end of the loop
      if (wc.status == IBV_WC_SUCCESS) apply(buffer.bytes());
    }
    if (messages == before) return;
    const auto synced = db_.SyncWAL();
    synced.ok() ? acknowledge() : ended_({StatusCode::io_error, synced.ToString()});
  }

  void apply(std::span<const std::byte> message) {
    Header header{0, 0};
    if (message.size() >= sizeof header) std::memcpy(&header, message.data(), sizeof header);
    if (message.size() != sizeof header + header.count ||
        header.sequence != db_.GetLatestSequenceNumber() + 1)
      return ended_({StatusCode::internal, "a batch that does not follow"});
    if (header.count > 0) {
      const auto* const bytes = reinterpret_cast<const char*>(message.data() + sizeof header);
      rocksdb::WriteBatch batch(std::string(bytes, header.count));
      const auto written = db_.Write(rocksdb::WriteOptions(), &batch);
      if (!written.ok()) return ended_({StatusCode::io_error, written.ToString()});
    }
    complete_ = header.count == 0;
    ++messages;
  }

  void acknowledge() {
    const Header reply{db_.GetLatestSequenceNumber(), messages};
    const std::size_t offset = replies_sent_++ % kDepth * sizeof reply;
    std::memcpy(replies_->memory().data() + offset, &reply, sizeof reply);
    if (auto sent = handle_->connection().send(replies_.get(), offset, sizeof reply, 0); !sent.ok())
      ended_(sent);
  }

  rocksdb::DB& db_;
  const std::function<void(const Status&)> ended_;
  std::unique_ptr<Dispatcher::Listener> listener_;
  std::shared_ptr<rpma::MemoryRegion> replies_;
  std::shared_ptr<ConnectionHandle> handle_;
  std::uint64_t replies_sent_ = 0;     ///< the handler's, whose calls never overlap
  std::atomic<bool> complete_{false};  ///< all was sent, and is here
};

}  // namespace sluice::wal_shipping
