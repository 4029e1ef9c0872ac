// SPDX-License-Identifier: BSD-3-Clause
#include "support/raw_link.hpp"

#include <netdb.h>

#include <cerrno>

namespace sluice::contract {
namespace {

constexpr int kTimeoutMs = 10'000;
constexpr std::size_t kMemory = 64 * 1024;

void check(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

}  // namespace

RawLink::RawLink(const Site& site, Config config)
    : site_(site), config_(config), memory_(kMemory) {}

RawLink::~RawLink() {
  destroy();
}

void RawLink::destroy() noexcept {
  if (id_ != nullptr) {
    if (id_->qp != nullptr) rdma_destroy_qp(id_);
    (void)rdma_destroy_id(id_);
  }
  if (region_ != nullptr) (void)ibv_dereg_mr(region_);
  if (pd_ != nullptr) (void)ibv_dealloc_pd(pd_);
  if (channel_ != nullptr) rdma_destroy_event_channel(channel_);
}

rdma_cm_event_type RawLink::next_event() {
  await_readable(channel_->fd, "the event channel of a raw connection");
  rdma_cm_event* event = nullptr;
  check(rdma_get_cm_event(channel_, &event) == 0, "rdma_get_cm_event");
  const rdma_cm_event_type type = event->event;
  check(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
  return type;
}

void RawLink::connect(const rpma::ConnectionConfig& server) {
  std::string port;
  const auto endpoint = site_.listen(port);

  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  check(getaddrinfo(site_.address.c_str(), port.c_str(), &hints, &found) == 0, "getaddrinfo");
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);

  channel_ = rdma_create_event_channel();
  check(channel_ != nullptr, "rdma_create_event_channel");
  check(rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  check(rdma_resolve_addr(id_, nullptr, found->ai_addr, kTimeoutMs) == 0, "rdma_resolve_addr");
  check(next_event() == RDMA_CM_EVENT_ADDR_RESOLVED, "address resolution");
  check(rdma_resolve_route(id_, kTimeoutMs) == 0, "rdma_resolve_route");
  check(next_event() == RDMA_CM_EVENT_ROUTE_RESOLVED, "route resolution");

  pd_ = ibv_alloc_pd(id_->verbs);
  check(pd_ != nullptr, "ibv_alloc_pd");
  region_ = ibv_reg_mr(pd_, memory_.data(), memory_.size(), int{IBV_ACCESS_LOCAL_WRITE});
  check(region_ != nullptr, "ibv_reg_mr");
  ibv_qp_init_attr attributes{};
  attributes.send_cq = config_.send_cq;
  attributes.recv_cq = config_.receive_cq;
  attributes.cap.max_send_wr = config_.send_depth;
  attributes.cap.max_recv_wr = config_.receive_depth;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  attributes.qp_type = IBV_QPT_RC;
  check(rdma_create_qp(id_, pd_, &attributes) == 0, "rdma_create_qp");

  rdma_conn_param parameters{};
  parameters.responder_resources = 1;
  parameters.initiator_depth = 1;
  parameters.retry_count = 7;
  parameters.rnr_retry_count = 7;
  check(rdma_connect(id_, &parameters) == 0, "rdma_connect");
  server_ = require(await_request(*endpoint, server).connect());
  check(next_event() == RDMA_CM_EVENT_ESTABLISHED, "connecting");  // first: see Site::connect()
  await_event(*server_, rpma::ConnectionEvent::established);
}

void RawLink::send(std::size_t offset, std::size_t length, std::uint64_t wr_id, bool signalled,
                   bool solicited) {
  ibv_sge sge{};
  sge.addr = reinterpret_cast<std::uint64_t>(memory_.data() + offset);
  sge.length = static_cast<std::uint32_t>(length);
  sge.lkey = region_->lkey;
  ibv_send_wr request{};
  request.wr_id = wr_id;
  request.sg_list = &sge;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = (signalled ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0U) |
                       (solicited ? static_cast<unsigned>(IBV_SEND_SOLICITED) : 0U);
  ibv_send_wr* bad = nullptr;
  errno = ibv_post_send(id_->qp, &request, &bad);
  check(errno == 0, "ibv_post_send");
}

void RawLink::disconnect() {
  check(rdma_disconnect(id_) == 0, "rdma_disconnect");
}

}  // namespace sluice::contract
