// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sched.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "softrdma/softrdma.h"

/// Two connected queue pairs in this process, by plain librdmacm and libibverbs.
namespace softrdma_test {

/// Only ends a hang; nothing waits for it to pass.
inline constexpr std::chrono::seconds kPatience{30};

inline sockaddr_in loopback(std::uint16_t port = 0) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(port);
  return a;
}

inline bool readable(int fd, int timeout_ms) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, timeout_ms) == 1;
}

template <class Condition>
[[nodiscard]] bool eventually(Condition&& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    ::sched_yield();
  }
  return true;
}

/// The next completion; status -1 when none came.
inline ibv_wc next_wc(ibv_cq* cq) {
  ibv_wc wc{};
  int n = 0;
  if (!eventually([&] { return (n = ibv_poll_cq(cq, 1, &wc)) != 0; }) || n < 0)
    wc.status = static_cast<ibv_wc_status>(-1);
  return wc;
}

inline std::vector<ibv_wc> all_wcs(ibv_cq* cq) {
  std::vector<ibv_wc> out;
  ibv_wc wc{};
  while (ibv_poll_cq(cq, 1, &wc) == 1) out.push_back(wc);
  return out;
}

/// The next event, acknowledged; -1 when none came.
inline int next_event(rdma_event_channel* channel, rdma_cm_id** id = nullptr,
                      rdma_cm_event* copy = nullptr) {
  if (!readable(channel->fd, static_cast<int>(std::chrono::milliseconds(kPatience).count())))
    return -1;
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(channel, &event) != 0) return -1;
  const int type = event->event;
  if (id != nullptr) *id = event->id;
  if (copy != nullptr) *copy = *event;
  rdma_ack_cm_event(event);
  return type;
}

struct Options {
  std::uint32_t depth = 64;
  int cqe = 256;
  int recv_cqe = 0;  // 0: one CQ for both
  bool srq = false;
  bool signal_all = false;
  bool channel = false;              // a completion channel for both CQs of each side
  std::uint8_t server_asks_rnr = 7;  // the client's rnr_retry
  std::uint32_t inline_max = 64;
  std::uint32_t sge_max = 4;
  std::size_t memory = 1 << 20;
  unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                    IBV_ACCESS_REMOTE_ATOMIC;
};

struct Side {
  rdma_cm_id* id = nullptr;
  rdma_event_channel* events = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* scq = nullptr;
  ibv_cq* rcq = nullptr;
  ibv_srq* srq = nullptr;
  ibv_mr* mr = nullptr;
  std::vector<std::uint8_t> memory;

  void create(const Options& o) {
    ibv_context* verbs = id->verbs;
    ASSERT_NE(verbs, nullptr);
    pd = ibv_alloc_pd(verbs);
    ASSERT_NE(pd, nullptr);
    memory.assign(o.memory, 0);
    // Not a constant: the inline function is to take the way of ibv_reg_mr_iova2.
    const unsigned access = o.access;
    mr = ibv_reg_mr(pd, memory.data(), memory.size(), access);
    ASSERT_NE(mr, nullptr) << strerror(errno);
    if (o.channel) channel = ibv_create_comp_channel(verbs);
    scq = ibv_create_cq(verbs, o.cqe, this, channel, 0);
    ASSERT_NE(scq, nullptr);
    rcq = o.recv_cqe != 0 ? ibv_create_cq(verbs, o.recv_cqe, this, channel, 3) : scq;
    ASSERT_NE(rcq, nullptr);
    if (o.srq) {
      ibv_srq_init_attr attr{};
      attr.attr.max_wr = o.depth;
      attr.attr.max_sge = o.sge_max;
      srq = ibv_create_srq(pd, &attr);
      ASSERT_NE(srq, nullptr);
    }
    ibv_qp_init_attr init{};
    init.send_cq = scq;
    init.recv_cq = rcq;
    init.srq = srq;
    init.cap = {o.depth, o.depth, o.sge_max, o.sge_max, o.inline_max};
    init.qp_type = IBV_QPT_RC;
    init.sq_sig_all = o.signal_all ? 1 : 0;
    ASSERT_EQ(rdma_create_qp(id, pd, &init), 0) << strerror(errno);
  }

  void destroy() {
    if (id != nullptr && id->qp != nullptr) rdma_destroy_qp(id);
    if (srq != nullptr) {
      EXPECT_EQ(ibv_destroy_srq(srq), 0);
    }
    if (rcq != nullptr && rcq != scq) {
      EXPECT_EQ(ibv_destroy_cq(rcq), 0);
    }
    if (scq != nullptr) {
      EXPECT_EQ(ibv_destroy_cq(scq), 0);
    }
    if (channel != nullptr) {
      EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
    }
    if (mr != nullptr) {
      EXPECT_EQ(ibv_dereg_mr(mr), 0);
    }
    if (pd != nullptr) {
      EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    }
    if (id != nullptr) {
      EXPECT_EQ(rdma_destroy_id(id), 0);
    }
    if (events != nullptr) rdma_destroy_event_channel(events);
    *this = Side{};
  }

  [[nodiscard]] std::uint64_t address(std::size_t offset) const {
    return reinterpret_cast<std::uint64_t>(memory.data()) + offset;
  }
  [[nodiscard]] ibv_sge sge(std::size_t offset, std::size_t length) const {
    return {address(offset), static_cast<std::uint32_t>(length), mr->lkey};
  }
  int recv(std::uint64_t wr_id, std::vector<ibv_sge> list) const {
    ibv_recv_wr wr{};
    wr.wr_id = wr_id;
    wr.sg_list = list.data();
    wr.num_sge = static_cast<int>(list.size());
    ibv_recv_wr* bad = nullptr;
    return srq != nullptr ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(id->qp, &wr, &bad);
  }
  int recv(std::uint64_t wr_id, std::size_t offset, std::size_t length) const {
    return recv(wr_id, {sge(offset, length)});
  }
  int post(ibv_wr_opcode opcode, std::uint64_t wr_id, std::vector<ibv_sge> list, unsigned flags,
           std::uint64_t remote = 0, std::uint32_t rkey = 0, std::uint32_t imm = 0) const {
    ibv_send_wr wr{};
    wr.wr_id = wr_id;
    wr.sg_list = list.data();
    wr.num_sge = static_cast<int>(list.size());
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr.imm_data = imm;
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = rkey;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(id->qp, &wr, &bad);
  }
  int send(std::uint64_t wr_id, std::size_t offset, std::size_t length,
           unsigned flags = IBV_SEND_SIGNALED) const {
    return post(IBV_WR_SEND, wr_id, {sge(offset, length)}, flags);
  }
};

class Pair {
 public:
  explicit Pair(const Options& o = {}) { open(o); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  ~Pair() { close(); }

  void close() {
    client.destroy();
    server.destroy();
    if (listen_id != nullptr) {
      EXPECT_EQ(rdma_destroy_id(listen_id), 0);
    }
    if (listen_events != nullptr) rdma_destroy_event_channel(listen_events);
    listen_id = nullptr;
    listen_events = nullptr;
  }

  Side client;
  Side server;
  rdma_cm_id* listen_id = nullptr;
  rdma_event_channel* listen_events = nullptr;

 private:
  void open(const Options& o) {
    listen_events = rdma_create_event_channel();
    ASSERT_EQ(rdma_create_id(listen_events, &listen_id, nullptr, RDMA_PS_TCP), 0);
    sockaddr_in a = loopback();
    ASSERT_EQ(rdma_bind_addr(listen_id, reinterpret_cast<sockaddr*>(&a)), 0);
    ASSERT_EQ(rdma_listen(listen_id, 1), 0);
    sockaddr_in to = loopback(ntohs(rdma_get_src_port(listen_id)));
    client.events = rdma_create_event_channel();
    ASSERT_EQ(rdma_create_id(client.events, &client.id, nullptr, RDMA_PS_TCP), 0);
    ASSERT_EQ(rdma_resolve_addr(client.id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000), 0);
    ASSERT_EQ(next_event(client.events), RDMA_CM_EVENT_ADDR_RESOLVED);
    ASSERT_EQ(rdma_resolve_route(client.id, 1000), 0);
    ASSERT_EQ(next_event(client.events), RDMA_CM_EVENT_ROUTE_RESOLVED);
    Options client_options = o;
    client_options.srq = false;
    ASSERT_NO_FATAL_FAILURE(client.create(client_options));
    rdma_conn_param param{};
    param.responder_resources = 16;
    param.initiator_depth = 16;
    param.retry_count = 7;
    param.rnr_retry_count = 7;
    ASSERT_EQ(rdma_connect(client.id, &param), 0);
    ASSERT_EQ(next_event(listen_events, &server.id), RDMA_CM_EVENT_CONNECT_REQUEST);
    server.events = rdma_create_event_channel();
    ASSERT_EQ(rdma_migrate_id(server.id, server.events), 0);
    ASSERT_NO_FATAL_FAILURE(server.create(o));
    param.rnr_retry_count = o.server_asks_rnr;
    ASSERT_EQ(rdma_accept(server.id, &param), 0);
    ASSERT_EQ(next_event(client.events), RDMA_CM_EVENT_ESTABLISHED);
    ASSERT_EQ(next_event(server.events), RDMA_CM_EVENT_ESTABLISHED);
  }
};

/// The next asynchronous event of the context that all rdma_cm ids share, acknowledged; -1 when
/// none came.
inline int next_async(ibv_context* verbs, ibv_async_event* copy = nullptr) {
  if (!readable(verbs->async_fd, static_cast<int>(std::chrono::milliseconds(kPatience).count())))
    return -1;
  ibv_async_event event{};
  if (ibv_get_async_event(verbs, &event) != 0) return -1;
  if (copy != nullptr) *copy = event;
  ibv_ack_async_event(&event);
  return event.event_type;
}

/// Takes away what earlier tests left there.
inline void drain_async(ibv_context* verbs) {
  while (readable(verbs->async_fd, 0)) {
    ibv_async_event event{};
    if (ibv_get_async_event(verbs, &event) != 0) return;
    ibv_ack_async_event(&event);
  }
}

struct FaultScope {
  explicit FaultScope(const char* spec, std::uint64_t seed = 1) {
    EXPECT_EQ(softrdma_set_faults(spec, seed), 0);
  }
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;
  ~FaultScope() { softrdma_set_faults("", 0); }
};

}  // namespace softrdma_test
