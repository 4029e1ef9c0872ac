// SPDX-License-Identifier: BSD-3-Clause
#include <librpma.h>

#include <mutex>

#include "rpma/call.hpp"
#include "rpma/stock.hpp"
#include "sluice/core/rpma/error.hpp"
#include "sluice/core/rpma/handles.hpp"
#include "sluice/core/rpma/sources.hpp"

namespace sluice::rpma {
namespace {

constexpr std::uint32_t kDepthMax = 1U << 20;

/// Posts to an SRQ. The pool never calls it twice at once: rpma_srq_recv is in no list of functions
/// that are thread-safe.
class SrqPoster final : public ReceivePoster {
 public:
  SrqPoster(rpma_srq* srq, rpma_mr_local* memory) noexcept : srq_(srq), memory_(memory) {}
  Status post(std::size_t offset, std::size_t length, std::uint64_t wr_id) override {
    const CallOutcome outcome = call([&] {
      return ::rpma_srq_recv(srq_, memory_, offset, length, reinterpret_cast<const void*>(wr_id));
    });
    if (outcome.ok()) return {};
    return make_status(outcome.code, outcome.os_error,
                       "post a receive of " + std::to_string(length) + " bytes to an SRQ");
  }
  bool survives_failed_completion() const noexcept override { return true; }

 private:
  rpma_srq* srq_;
  rpma_mr_local* memory_;
};

}  // namespace

Result<std::shared_ptr<SharedReceiveQueue>> SharedReceiveQueue::create(
    std::shared_ptr<Peer> peer, SharedReceiveQueueConfig config) {
  const std::uint32_t entries = config.receive_cq_size.value_or(config.depth);
  if (config.depth < 1 || config.depth > kDepthMax) {
    return Status(StatusCode::invalid_argument,
                  "make an SRQ of depth " + std::to_string(config.depth) + ": it must be 1..2^20");
  }
  if (entries != 0 && entries < config.depth) {
    return Status(StatusCode::does_not_fit,
                  "make an SRQ of depth " + std::to_string(config.depth) +
                      " with a receive CQ of " + std::to_string(entries) +
                      " entries: all its receives may complete at once, it would fit with " +
                      std::to_string(config.depth));
  }
  config.receive_cq_size = entries;
  const std::string tried = "make an SRQ of depth " + std::to_string(config.depth) +
                            " with a receive CQ of " + std::to_string(entries) + " entries on " +
                            peer->device_name();
  rpma_srq* srq = nullptr;
  {
    const std::lock_guard lock(library_mutex());
    rpma_srq_cfg* cfg = nullptr;
    CallOutcome outcome = call([&] { return ::rpma_srq_cfg_new(&cfg); });
    if (!outcome.ok()) return make_status(outcome.code, outcome.os_error, tried);
    outcome = call([&] {
      int code = ::rpma_srq_cfg_set_rq_size(cfg, config.depth);
      if (code == 0) code = ::rpma_srq_cfg_set_rcq_size(cfg, entries);
      if (code == 0) code = ::rpma_srq_new(peer->get(), cfg, &srq);
      return code;
    });
    Status status = make_status(outcome.code, outcome.os_error, tried);
    (void)::rpma_srq_cfg_delete(&cfg);
    if (!status.ok()) return status;
  }
  return std::shared_ptr<SharedReceiveQueue>(new SharedReceiveQueue(std::move(peer), config, srq));
}

SharedReceiveQueue::SharedReceiveQueue(std::shared_ptr<Peer> peer, SharedReceiveQueueConfig config,
                                       rpma_srq* srq)
    : peer_(std::move(peer)), config_(config), srq_(srq) {
  if (const std::uint32_t entries = config_.receive_cq_size.value_or(0); entries != 0) {
    ledger_ = CqLedger::create("srq-rcq " + peer_->device_name(), entries);
  }
}

SharedReceiveQueue::~SharedReceiveQueue() {
  if (pool_ != nullptr) pool_->stop_posting();
  {
    const std::lock_guard lock(library_mutex());
    (void)::rpma_srq_delete(&srq_);
  }
  // Only now may the device no longer write into the pool's memory: the members go after this, the
  // pool first, then its memory, the peer last.
}

std::shared_ptr<CqSource> SharedReceiveQueue::receive_cq() {
  if (ledger_ == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  if (std::shared_ptr<CqSource> source = source_.lock()) return source;
  rpma_cq* cq = nullptr;
  (void)::rpma_srq_get_rcq(srq_, &cq);  // fails only for nullptr
  auto source = CqSource::create(cq, ledger_->capacity(), ledger_->cq_name(), shared_from_this(),
                                 {}, [this](std::span<const ibv_wc> completions) {
                                   if (ReceivePool* const pool = receive_pool()) {
                                     pool->polled(completions);
                                   }
                                 });
  SLUICE_CHECK(source.ok(),
               "an SRQ's receive CQ has no usable descriptor: " + source.status().to_string());
  source_ = *source;
  return *source;
}

Result<ReceivePool*> SharedReceiveQueue::stock(std::uint32_t depth, std::uint32_t buffer_size,
                                               ReceivePoolConfig options, ProvidedMemory memory) {
  const std::string tried = "stock an SRQ of depth " + std::to_string(config_.depth) + " with " +
                            std::to_string(depth) + " receives of " + std::to_string(buffer_size) +
                            " bytes";
  const std::lock_guard lock(mutex_);
  if (pool_ != nullptr) {
    return Status(StatusCode::invalid_argument, tried + ": it has a receive pool already");
  }
  if (depth > config_.depth) {
    // The provider might take more than was asked of it; the CQs are not made for that (C4).
    return Status(StatusCode::does_not_fit, tried + ": it holds no more than its depth");
  }
  CqReservation reservation;
  if (ledger_ != nullptr) {
    Result<CqReservation> reserved = ledger_->reserve(depth, "a receive pool");
    if (!reserved) return reserved.status().with_context(tried);
    reservation = std::move(*reserved);
  }
  Result<Stock> stock = make_stock(
      peer_, depth, buffer_size, std::move(options), memory.bytes,
      [this](rpma_mr_local* region) { return std::make_unique<SrqPoster>(srq_, region); });
  if (!stock) return stock.status().with_context(tried);
  reservation_ = std::move(reservation);
  memory_owner_ = std::move(memory.owner);
  memory_ = std::move(stock->memory);
  pool_ = std::move(stock->pool);
  stocked_.store(pool_.get(), std::memory_order_release);  // (2) release: pairs with acquire (1)
  if (Status status = pool_->post_all(); !status.ok()) {
    // Some receives are posted: the pool has to stay until the queue is gone.
    pool_->stop_posting();
    return status.with_context(tried);
  }
  return pool_.get();
}

}  // namespace sluice::rpma
