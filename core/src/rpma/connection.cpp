// SPDX-License-Identifier: BSD-3-Clause
#include <librpma.h>

#include <cerrno>
#include <cstdio>
#include <mutex>

#include "rpma/call.hpp"
#include "rpma/stock.hpp"
#include "sluice/core/rpma/error.hpp"
#include "sluice/core/rpma/handles.hpp"
#include "sluice/core/rpma/sources.hpp"

namespace sluice::rpma {
namespace {

const void* context_of(std::uint64_t wr_id) noexcept {
  return reinterpret_cast<const void*>(wr_id);
}

constexpr int flags_of(bool signalled) noexcept {
  return signalled ? RPMA_F_COMPLETION_ALWAYS : RPMA_F_COMPLETION_ON_ERROR;
}

rpma_mr_local* region_of(const MemoryRegion* region) noexcept {
  return region == nullptr ? nullptr : region->get();
}

/// Posts to a connection's own receive queue.
class ConnectionPoster final : public ReceivePoster {
 public:
  ConnectionPoster(rpma_conn* connection, rpma_mr_local* memory) noexcept
      : connection_(connection), memory_(memory) {}
  Status post(std::size_t offset, std::size_t length, std::uint64_t wr_id) override {
    const CallOutcome outcome =
        call([&] { return ::rpma_recv(connection_, memory_, offset, length, context_of(wr_id)); });
    if (outcome.ok()) return {};
    return make_status(outcome.code, outcome.os_error,
                       "post a receive of " + std::to_string(length) + " bytes to a connection");
  }

 private:
  rpma_conn* connection_;
  rpma_mr_local* memory_;
};

ConnectionEvent event_of(rpma_conn_event event) noexcept {
  switch (event) {
    case RPMA_CONN_ESTABLISHED: return ConnectionEvent::established;
    case RPMA_CONN_CLOSED: return ConnectionEvent::closed;
    case RPMA_CONN_LOST: return ConnectionEvent::lost;
    case RPMA_CONN_REJECTED: return ConnectionEvent::rejected;
    case RPMA_CONN_UNREACHABLE: return ConnectionEvent::unreachable;
    case RPMA_CONN_UNDEFINED: break;
  }
  return ConnectionEvent::undefined;
}

}  // namespace

std::string_view to_string(ConnectionEvent event) noexcept {
  switch (event) {
    case ConnectionEvent::established: return "established";
    case ConnectionEvent::closed: return "closed";
    case ConnectionEvent::lost: return "lost";
    case ConnectionEvent::rejected: return "rejected";
    case ConnectionEvent::unreachable: return "unreachable";
    case ConnectionEvent::undefined: return "undefined";
  }
  return "unknown";
}

Connection::Connection(std::shared_ptr<Peer> peer, ConnectionConfig config,
                       ConnectionConfig::Sizes sizes, rpma_conn* connection, std::string what,
                       std::uint32_t receives)
    : peer_(std::move(peer)),
      config_(std::move(config)),
      sizes_(sizes),
      connection_(connection),
      what_(std::move(what)),
      send_credits_(config_.send_queue_size),
      receives_(receives),
      receives_max_(config_.srq != nullptr ? 0 : config_.receive_queue_size) {}

Status Connection::prepare() {
  (void)::rpma_conn_get_event_fd(connection_, &event_fd_);  // these fail only for nullptr
  (void)::rpma_conn_get_qp_num(connection_, &qp_num_);
  return set_nonblocking(event_fd_, what_);
}

Connection::~Connection() {
  if (pool_ != nullptr) pool_->stop_posting();
  send_credits_.abandon();
  {
    const std::lock_guard lock(library_mutex());
    (void)::rpma_conn_delete(&connection_);
  }
  // Only now may the device no longer write into the pool's memory: the members go after this, the
  // pool first, then its memory; the SRQ (in config_) and the peer last.
}

Result<ConnectionEvent> Connection::next_event() {
  rpma_conn_event event = RPMA_CONN_UNDEFINED;
  const CallOutcome outcome = call([&] { return ::rpma_conn_next_event(connection_, &event); });
  if (outcome.code == RPMA_E_NO_EVENT ||
      (outcome.code == RPMA_E_PROVIDER &&
       (outcome.os_error == EAGAIN || outcome.os_error == EINTR))) {
    return Status(StatusCode::no_completion, what_ + ": no event is there now");
  }
  // One that librpma does not know: taken and acknowledged all the same.
  if (outcome.code == RPMA_E_UNKNOWN) return ConnectionEvent::undefined;
  if (!outcome.ok()) {
    return make_status(outcome.code, outcome.os_error, "take the next event of the " + what_);
  }
  const ConnectionEvent made = event_of(event);
  if (made == ConnectionEvent::established && private_data_.empty()) {
    rpma_conn_private_data data{nullptr, 0};
    if (::rpma_conn_get_private_data(connection_, &data) == 0 && data.ptr != nullptr) {
      const auto* const bytes = static_cast<const std::byte*>(data.ptr);
      private_data_.assign(bytes, bytes + data.len);
    }
  }
  if (made != ConnectionEvent::established && made != ConnectionEvent::undefined) peer_gone_ = true;
  return made;
}

Status Connection::disconnect() {
  if (disconnected_) return {};
  const CallOutcome outcome = call([&] { return ::rpma_conn_disconnect(connection_); });
  // With the peer gone there is nobody to tell; rdma_disconnect has moved the queue pair before
  // that.
  const bool nobody_to_tell = peer_gone_ && outcome.code == RPMA_E_PROVIDER &&
                              (outcome.os_error == EINVAL || outcome.os_error == ENOTCONN);
  if (!outcome.ok() && !nobody_to_tell) {
    return make_status(outcome.code, outcome.os_error, "disconnect the " + what_);
  }
  disconnected_ = true;
  return {};
}

// --- posting ----------------------------------------------------------------------------------

template <typename Post>
Status Connection::post(const char* operation, std::size_t length, bool signalled, Post&& attempt) {
  SendCredits::Posting posting = send_credits_.take(signalled);
  if (posting) {
    const CallOutcome outcome = call(std::forward<Post>(attempt));
    if (outcome.ok()) {
      posting.commit();
      return {};
    }
    return make_status(
        outcome.code, outcome.os_error,
        std::string(operation) + " " + std::to_string(length) + " bytes over the " + what_);
  }
  if (send_credits_.closed()) {
    return Status(StatusCode::connection_lost, std::string(operation) + " " +
                                                   std::to_string(length) + " bytes over the " +
                                                   what_ + ": it has failed or is being drained");
  }
  return Status(StatusCode::resource_exhausted,
                std::string(operation) + " " + std::to_string(length) + " bytes over the " + what_ +
                    ": " + std::to_string(send_credits_.outstanding()) + " of " +
                    std::to_string(send_credits_.limit()) + " send credits are in use" +
                    (signalled ? "" : ", and the last one is for a signalled request"));
}

Status Connection::send(const MemoryRegion* region, std::size_t offset, std::size_t length,
                        std::uint64_t wr_id, bool signalled) {
  return post("send", length, signalled, [&] {
    return ::rpma_send(connection_, region_of(region), offset, length, flags_of(signalled),
                       context_of(wr_id));
  });
}

Status Connection::send_with_imm(const MemoryRegion* region, std::size_t offset, std::size_t length,
                                 std::uint32_t imm, std::uint64_t wr_id, bool signalled) {
  return post("send with immediate", length, signalled, [&] {
    return ::rpma_send_with_imm(connection_, region_of(region), offset, length, flags_of(signalled),
                                imm, context_of(wr_id));
  });
}

Status Connection::write(RemoteRegion& destination, std::size_t destination_offset,
                         const MemoryRegion* source, std::size_t source_offset, std::size_t length,
                         std::uint64_t wr_id, bool signalled) {
  return post("write", length, signalled, [&] {
    return ::rpma_write(connection_, destination.get(), destination_offset, region_of(source),
                        source_offset, length, flags_of(signalled), context_of(wr_id));
  });
}

Status Connection::write_with_imm(RemoteRegion& destination, std::size_t destination_offset,
                                  const MemoryRegion* source, std::size_t source_offset,
                                  std::size_t length, std::uint32_t imm, std::uint64_t wr_id) {
  return post("write with immediate", length, true, [&] {
    return ::rpma_write_with_imm(connection_, destination.get(), destination_offset,
                                 region_of(source), source_offset, length, flags_of(true), imm,
                                 context_of(wr_id));
  });
}

Status Connection::read(MemoryRegion* destination, std::size_t destination_offset,
                        RemoteRegion& source, std::size_t source_offset, std::size_t length,
                        std::uint64_t wr_id) {
  return post("read", length, true, [&] {
    return ::rpma_read(connection_, region_of(destination), destination_offset, source.get(),
                       source_offset, length, flags_of(true), context_of(wr_id));
  });
}

Status Connection::atomic_write(RemoteRegion& destination, std::size_t destination_offset,
                                std::span<const std::byte, 8> value, std::uint64_t wr_id,
                                bool signalled) {
  return post("atomic write of", value.size(), signalled, [&] {
    return ::rpma_atomic_write(connection_, destination.get(), destination_offset,
                               reinterpret_cast<const char*>(value.data()), flags_of(signalled),
                               context_of(wr_id));
  });
}

Status Connection::flush(RemoteRegion& destination, std::size_t offset, std::size_t length,
                         rpma_flush_type type, std::uint64_t wr_id) {
  return post("flush", length, true, [&] {
    return ::rpma_flush(connection_, destination.get(), offset, length, type, flags_of(true),
                        context_of(wr_id));
  });
}

Status Connection::receive(MemoryRegion& region, std::size_t offset, std::size_t length,
                           std::uint64_t wr_id) {
  const std::uint32_t max = receives_max_.load(std::memory_order_relaxed);
  if (receives_.fetch_add(1, std::memory_order_relaxed) >= max) {
    receives_.fetch_sub(1, std::memory_order_relaxed);
    return Status(
        config_.srq != nullptr ? StatusCode::invalid_argument : StatusCode::resource_exhausted,
        "post a receive to the " + what_ +
            (config_.srq != nullptr
                 ? std::string(": its receives are those of its SRQ")
                 : ": its receive queue has room for " + std::to_string(max) +
                       " besides the receive pool's, and all of them are posted"));
  }
  const CallOutcome outcome = call(
      [&] { return ::rpma_recv(connection_, region.get(), offset, length, context_of(wr_id)); });
  if (outcome.ok()) return {};
  receives_.fetch_sub(1, std::memory_order_relaxed);
  return make_status(outcome.code, outcome.os_error,
                     "post a receive of " + std::to_string(length) + " bytes to the " + what_);
}

Status Connection::post_drain_marker() {
  if (drain_marker_posted_.exchange(true, std::memory_order_relaxed)) {
    return Status(StatusCode::invalid_argument,
                  "post the drain marker of the " + what_ + ": it was posted before");
  }
  send_credits_.close();
  const CallOutcome outcome = call([&] {
    return ::rpma_send(connection_, nullptr, 0, 0, flags_of(true), context_of(drain_marker_id()));
  });
  if (outcome.ok()) return {};
  drain_marker_posted_.store(false, std::memory_order_relaxed);
  return make_status(outcome.code, outcome.os_error, "post the drain marker of the " + what_);
}

Result<ReceivePool*> Connection::stock(std::uint32_t depth, std::uint32_t buffer_size,
                                       ReceivePoolConfig options) {
  const std::string tried = "stock the " + what_ + " with " + std::to_string(depth) +
                            " receives of " + std::to_string(buffer_size) + " bytes";
  if (config_.srq != nullptr) {
    return Status(StatusCode::invalid_argument, tried + ": its receives are those of its SRQ");
  }
  if (pool_ != nullptr) {
    return Status(StatusCode::invalid_argument, tried + ": it has a receive pool already");
  }
  const std::uint32_t posted = receives_.load(std::memory_order_relaxed);
  if (depth > config_.receive_queue_size - posted) {
    return Status(StatusCode::does_not_fit,
                  tried + ": its receive queue has " + std::to_string(config_.receive_queue_size) +
                      " entries, " + std::to_string(posted) + " of them in use");
  }
  Result<Stock> stock =
      make_stock(peer_, depth, buffer_size, std::move(options), {}, [this](rpma_mr_local* memory) {
        return std::make_unique<ConnectionPoster>(connection_, memory);
      });
  if (!stock) return stock.status().with_context(tried);
  receives_max_.fetch_sub(depth, std::memory_order_relaxed);
  pool_memory_ = std::move(stock->memory);
  pool_ = std::move(stock->pool);
  stocked_.store(pool_.get(), std::memory_order_release);  // (4) release: pairs with acquire (3)
  if (Status status = pool_->post_all(); !status.ok()) {
    // Some receives are posted: the pool has to stay until the queue is gone.
    pool_->stop_posting();
    return status.with_context(tried);
  }
  return pool_.get();
}

// --- sources ----------------------------------------------------------------------------------

bool Connection::receives_on_main_cq() const noexcept {
  return sizes_.receive_cq == 0 &&
         (config_.srq == nullptr || config_.srq->receive_ledger() == nullptr);
}

void Connection::retire_sends(std::span<const ibv_wc> completions) noexcept {
  const ReceivePool* const pool = receive_pool();
  const ReceivePool* const srq_pool =
      config_.srq != nullptr ? config_.srq->receive_pool() : nullptr;
  for (const ibv_wc& wc : completions) {
    if (wc.wr_id == drain_marker_id()) {
      send_credits_.abandon();
    } else if (wc.status == IBV_WC_SUCCESS) {
      if ((wc.opcode & IBV_WC_RECV) == 0) send_credits_.completed();
    } else if ((pool == nullptr || !pool->owns(wc.wr_id)) &&
               (srq_pool == nullptr || !srq_pool->owns(wc.wr_id))) {
      send_credits_.failed();
    }
  }
}

void Connection::count_receives(std::span<const ibv_wc> completions, bool receives_only) noexcept {
  ReceivePool* const pool = config_.srq != nullptr ? config_.srq->receive_pool() : receive_pool();
  if (pool != nullptr) pool->polled(completions);
  if (receives_.load(std::memory_order_relaxed) == 0) return;
  for (const ibv_wc& wc : completions) {
    if (pool != nullptr && pool->owns(wc.wr_id)) continue;
    // A failed completion on a CQ of sends and receives may be either: its credit is not given
    // back, which is safe, and the queue pair has failed anyway.
    const bool is_receive =
        receives_only || (wc.status == IBV_WC_SUCCESS && (wc.opcode & IBV_WC_RECV) != 0);
    if (is_receive) receives_.fetch_sub(1, std::memory_order_relaxed);
  }
}

namespace {

std::string source_name(const char* kind, std::uint32_t qp_num) {
  char name[64];
  std::snprintf(name, sizeof name, "%s qp 0x%x", kind, qp_num);
  return name;
}

}  // namespace

std::shared_ptr<CqSource> Connection::main_cq() {
  if (config_.shared_channel) return nullptr;
  if (std::shared_ptr<CqSource> source = main_source_.lock()) return source;
  rpma_cq* cq = nullptr;
  (void)::rpma_conn_get_cq(connection_, &cq);  // fails only for nullptr
  CqSource::Polled polled;
  if (receives_on_main_cq()) {
    polled = [this](std::span<const ibv_wc> wcs) { count_receives(wcs, false); };
  }
  auto source = CqSource::create(
      cq, sizes_.cq, source_name("cq", qp_num_), shared_from_this(),
      [this](std::span<const ibv_wc> wcs) { retire_sends(wcs); }, std::move(polled));
  SLUICE_CHECK(source.ok(),
               "a connection's CQ has no usable descriptor: " + source.status().to_string());
  main_source_ = *source;
  return *source;
}

std::shared_ptr<CqSource> Connection::receive_cq() {
  if (config_.shared_channel || sizes_.receive_cq == 0) return nullptr;
  if (std::shared_ptr<CqSource> source = receive_source_.lock()) return source;
  rpma_cq* cq = nullptr;
  (void)::rpma_conn_get_rcq(connection_, &cq);  // fails only for nullptr
  auto source = CqSource::create(
      cq, sizes_.receive_cq, source_name("receive cq", qp_num_), shared_from_this(), {},
      [this](std::span<const ibv_wc> wcs) { count_receives(wcs, true); });
  SLUICE_CHECK(source.ok(), "a connection's receive CQ has no usable descriptor: " +
                                source.status().to_string());
  receive_source_ = *source;
  return *source;
}

std::shared_ptr<SharedChannelSource> Connection::shared_channel() {
  if (!config_.shared_channel) return nullptr;
  if (std::shared_ptr<SharedChannelSource> source = shared_source_.lock()) return source;
  auto source = SharedChannelSource::create(
      connection_, sizes_.cq + sizes_.receive_cq, source_name("shared channel", qp_num_),
      shared_from_this(), [this](std::span<const ibv_wc> wcs) { retire_sends(wcs); },
      [this](std::span<const ibv_wc> wcs) { count_receives(wcs, false); });
  SLUICE_CHECK(source.ok(), "a connection's shared channel has no usable descriptor: " +
                                source.status().to_string());
  shared_source_ = *source;
  return *source;
}

}  // namespace sluice::rpma
