// SPDX-License-Identifier: BSD-3-Clause
#include <librpma.h>

#include <algorithm>
#include <mutex>

#include "rpma/call.hpp"
#include "rpma/connection_cfg.hpp"
#include "sluice/core/rpma/error.hpp"
#include "sluice/core/rpma/handles.hpp"

namespace sluice::rpma {
namespace {

constexpr std::uint32_t kQueueMax = 1U << 16;
constexpr std::uint32_t kCqMax = 1U << 24;
constexpr std::size_t kPrivateDataMax = 56;  ///< rdma_cm's limit for RC over IB and RoCE
constexpr std::uint32_t kDrainMarker =
    1;  ///< the work request kept for Connection::post_drain_marker

Status out_of_range(const char* what, std::uint64_t value, const char* range) {
  return {StatusCode::invalid_argument, std::string("a connection with ") + what + " = " +
                                            std::to_string(value) + ": it must be " + range};
}

Status too_small(const char* cq, std::uint32_t entries, std::uint32_t sends,
                 std::uint32_t receives) {
  std::string message = std::string("a connection whose ") + cq + " has " +
                        std::to_string(entries) + " entries: at worst ";
  if (sends != 0) {
    message += std::to_string(sends - kDrainMarker) + " sends, the drain marker";
    if (receives != 0) message += " and ";
  }
  if (receives != 0) message += std::to_string(receives) + " receives";
  message += " complete on it at once, it would fit with " + std::to_string(sends + receives);
  return {StatusCode::does_not_fit, std::move(message)};
}

}  // namespace

Result<ConnectionConfig::Sizes> ConnectionConfig::sizes() const {
  if (send_queue_size < 1 || send_queue_size > kQueueMax) {
    return out_of_range("send_queue_size", send_queue_size, "1..2^16");
  }
  if (receive_queue_size > kQueueMax) {
    return out_of_range("receive_queue_size", receive_queue_size, "0..2^16");
  }
  if (cq_size.value_or(1) < 1 || cq_size.value_or(1) > kCqMax) {
    return out_of_range("cq_size", *cq_size, "1..2^24");
  }
  if (receive_cq_size.value_or(0) > kCqMax) {
    return out_of_range("receive_cq_size", *receive_cq_size, "0..2^24");
  }
  if (timeout.count() < 1 || timeout.count() > 60'000) {
    return Status(StatusCode::invalid_argument,
                  "a connection with timeout = " + std::to_string(timeout.count()) +
                      " ms: it must be 1..60000 ms");
  }

  const bool srq_has_cq = srq != nullptr && srq->config().receive_cq_size.value_or(1) != 0;
  if (srq_has_cq && receive_cq_size.value_or(0) != 0) {
    return Status(
        StatusCode::invalid_argument,
        "a connection with receive_cq_size = " + std::to_string(*receive_cq_size) +
            " and an SRQ that has its own receive CQ: receives complete there, so it must "
            "be 0 or unset");
  }

  // How many receives may complete at once on this connection's own CQs.
  const std::uint32_t receives = srq_has_cq       ? 0
                                 : srq != nullptr ? srq->config().depth
                                                  : receive_queue_size;
  const std::uint32_t sends = send_queue_size + kDrainMarker;
  Sizes sizes{};
  sizes.receive_cq = srq_has_cq ? 0 : receive_cq_size.value_or(receives);
  const std::uint32_t receives_on_cq = sizes.receive_cq == 0 ? receives : 0;
  sizes.cq = cq_size.value_or(sends + receives_on_cq);
  sizes.send_queue = sends;
  sizes.receive_queue = srq != nullptr ? 0 : receive_queue_size;
  if (sizes.cq < sends + receives_on_cq) {
    return too_small("CQ", sizes.cq, sends, receives_on_cq);
  }
  if (sizes.receive_cq != 0 && sizes.receive_cq < receives) {
    return too_small("receive CQ", sizes.receive_cq, 0, receives);
  }
  return sizes;
}

Result<ConnectionCfg> ConnectionCfg::make(const ConnectionConfig& config,
                                          const ConnectionConfig::Sizes& sizes) {
  ConnectionCfg made;
  const CallOutcome outcome = call([&] {
    int code = ::rpma_conn_cfg_new(&made.cfg_);
    if (code == 0) code = ::rpma_conn_cfg_set_cq_size(made.cfg_, sizes.cq);
    if (code == 0) code = ::rpma_conn_cfg_set_rcq_size(made.cfg_, sizes.receive_cq);
    if (code == 0) code = ::rpma_conn_cfg_set_sq_size(made.cfg_, sizes.send_queue);
    if (code == 0) code = ::rpma_conn_cfg_set_rq_size(made.cfg_, sizes.receive_queue);
    if (code == 0) code = ::rpma_conn_cfg_set_compl_channel(made.cfg_, config.shared_channel);
    if (code == 0 && config.srq != nullptr) {
      code = ::rpma_conn_cfg_set_srq(made.cfg_, config.srq->get());
    }
    // librpma gives this to the address and to the route resolution each; the user's is for both.
    const int each = std::max(1, static_cast<int>(config.timeout.count() / 2));
    if (code == 0) code = ::rpma_conn_cfg_set_timeout(made.cfg_, each);
    return code;
  });
  if (!outcome.ok()) {
    return make_status(outcome.code, outcome.os_error,
                       "make a connection configuration with a CQ of " + std::to_string(sizes.cq) +
                           " and a receive CQ of " + std::to_string(sizes.receive_cq) + " entries");
  }
  return made;
}

ConnectionCfg::~ConnectionCfg() {
  if (cfg_ != nullptr) (void)::rpma_conn_cfg_delete(&cfg_);
}

Result<ConnectionRequest> ConnectionRequest::connect_to(std::shared_ptr<Peer> peer,
                                                        const std::string& address,
                                                        const std::string& port,
                                                        const ConnectionConfig& config) {
  std::string what = "connection to " + address + ":" + port;
  const Result<ConnectionConfig::Sizes> sizes = config.sizes();
  if (!sizes) return sizes.status().with_context(what);
  Result<ConnectionCfg> cfg = ConnectionCfg::make(config, *sizes);
  if (!cfg) return cfg.status().with_context(what);
  rpma_conn_req* request = nullptr;
  {
    // Held while it blocks, config.timeout at most: librpma's request functions are not
    // thread-safe.
    const std::lock_guard lock(library_mutex());
    const CallOutcome outcome = call([&] {
      return ::rpma_conn_req_new(peer->get(), address.c_str(), port.c_str(), cfg->get(), &request);
    });
    if (!outcome.ok()) {
      return make_status(
          outcome.code, outcome.os_error,
          "ask for a " + what + " within " + std::to_string(config.timeout.count()) + " ms");
    }
  }
  return ConnectionRequest(std::move(peer), config, *sizes, request, std::move(what));
}

ConnectionRequest::ConnectionRequest(std::shared_ptr<Peer> peer, ConnectionConfig config,
                                     ConnectionConfig::Sizes sizes, rpma_conn_req* request,
                                     std::string what)
    : peer_(std::move(peer)),
      config_(std::move(config)),
      sizes_(sizes),
      request_(request),
      what_(std::move(what)) {}

ConnectionRequest::ConnectionRequest(ConnectionRequest&& other) noexcept
    : peer_(std::move(other.peer_)),
      config_(std::move(other.config_)),
      sizes_(other.sizes_),
      request_(std::exchange(other.request_, nullptr)),
      what_(std::move(other.what_)),
      private_data_(std::move(other.private_data_)),
      listener_(std::move(other.listener_)),
      receives_(other.receives_) {}

ConnectionRequest& ConnectionRequest::operator=(ConnectionRequest&& other) noexcept {
  if (this != &other) {
    drop();
    peer_ = std::move(other.peer_);
    config_ = std::move(other.config_);
    sizes_ = other.sizes_;
    request_ = std::exchange(other.request_, nullptr);
    what_ = std::move(other.what_);
    private_data_ = std::move(other.private_data_);
    listener_ = std::move(other.listener_);
    receives_ = other.receives_;
  }
  return *this;
}

ConnectionRequest::~ConnectionRequest() {
  drop();
}

void ConnectionRequest::drop() noexcept {
  if (request_ == nullptr) return;
  const std::lock_guard lock(library_mutex());
  (void)::rpma_conn_req_delete(&request_);
  request_ = nullptr;
}

Status ConnectionRequest::receive(MemoryRegion& region, std::size_t offset, std::size_t length,
                                  std::uint64_t wr_id) {
  SLUICE_CHECK(request_ != nullptr,
               "receive() on a connection request that was connected or moved");
  if (config_.srq != nullptr) {
    return Status(StatusCode::invalid_argument,
                  "post a receive to the " + what_ + ": its receives are those of its SRQ");
  }
  if (receives_ == config_.receive_queue_size) {
    return Status(StatusCode::resource_exhausted, "post a receive to the " + what_ + ": all " +
                                                      std::to_string(receives_) +
                                                      " of its receive queue are posted");
  }
  const std::lock_guard lock(library_mutex());
  const CallOutcome outcome = call([&] {
    return ::rpma_conn_req_recv(request_, region.get(), offset, length,
                                reinterpret_cast<const void*>(wr_id));
  });
  if (!outcome.ok()) {
    return make_status(outcome.code, outcome.os_error,
                       "post a receive of " + std::to_string(length) + " bytes to the " + what_);
  }
  ++receives_;
  return {};
}

Result<std::shared_ptr<Connection>> ConnectionRequest::connect(
    std::span<const std::byte> private_data) && {
  SLUICE_CHECK(request_ != nullptr,
               "connect() on a connection request that was connected or moved");
  if (private_data.size() > kPrivateDataMax) {
    return Status(StatusCode::invalid_argument,
                  what_ + " with " + std::to_string(private_data.size()) +
                      " bytes of private data: it must be at most 56");
  }
  rpma_conn* connection = nullptr;
  {
    const std::lock_guard lock(library_mutex());
    const rpma_conn_private_data data{const_cast<std::byte*>(private_data.data()),
                                      static_cast<std::uint8_t>(private_data.size())};
    const CallOutcome outcome = call([&] {
      return ::rpma_conn_req_connect(&request_, private_data.empty() ? nullptr : &data,
                                     &connection);
    });
    request_ = nullptr;  // librpma has deleted it, also on failure
    if (!outcome.ok()) {
      return make_status(outcome.code, outcome.os_error, "make the " + what_);
    }
  }
  // From here on the destructor deletes it.
  std::shared_ptr<Connection> made(new Connection(std::move(peer_), std::move(config_), sizes_,
                                                  connection, std::move(what_), receives_));
  made->private_data_ = std::move(private_data_);
  SLUICE_RETURN_IF_ERROR(made->prepare());
  return made;
}

}  // namespace sluice::rpma
