// SPDX-License-Identifier: BSD-3-Clause
// rdma_cm: ids, events, set-up and the end of connections.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "pair.hpp"

namespace softrdma_test {
namespace {

struct Id {
  rdma_event_channel* events = rdma_create_event_channel();
  rdma_cm_id* id = nullptr;
  Id() { EXPECT_EQ(rdma_create_id(events, &id, nullptr, RDMA_PS_TCP), 0); }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  ~Id() {
    EXPECT_EQ(rdma_destroy_id(id), 0);
    rdma_destroy_event_channel(events);
  }
  void resolve(std::uint16_t port) {
    sockaddr_in to = loopback(port);
    ASSERT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000), 0);
    ASSERT_EQ(next_event(events), RDMA_CM_EVENT_ADDR_RESOLVED);
    ASSERT_EQ(rdma_resolve_route(id, 1000), 0);
    ASSERT_EQ(next_event(events), RDMA_CM_EVENT_ROUTE_RESOLVED);
  }
};

std::uint16_t listen_on(Id& id) {
  sockaddr_in a = loopback();
  EXPECT_EQ(rdma_bind_addr(id.id, reinterpret_cast<sockaddr*>(&a)), 0);
  EXPECT_EQ(rdma_listen(id.id, 1), 0);
  return ntohs(rdma_get_src_port(id.id));
}

TEST(Connection, PrivateDataArrivesPaddedToTheFullSize) {
  Id listener;
  const std::uint16_t port = listen_on(listener);
  Id client;
  client.resolve(port);
  rdma_conn_param param{};
  param.private_data = "question";
  param.private_data_len = 9;
  ASSERT_EQ(rdma_connect(client.id, &param), 0);
  ASSERT_TRUE(readable(listener.events->fd, 30'000));
  rdma_cm_event* event = nullptr;
  ASSERT_EQ(rdma_get_cm_event(listener.events, &event), 0);
  ASSERT_EQ(event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_EQ(event->listen_id, listener.id);
  EXPECT_EQ(event->param.conn.private_data_len, 56);
  EXPECT_STREQ(static_cast<const char*>(event->param.conn.private_data), "question");
  rdma_cm_id* server = event->id;
  EXPECT_NE(server->verbs, nullptr);
  EXPECT_EQ(server->verbs, client.id->verbs);
  ASSERT_EQ(rdma_ack_cm_event(event), 0);
  ASSERT_EQ(rdma_reject(server, "no", 3), 0);
  ASSERT_TRUE(readable(client.events->fd, 30'000));
  ASSERT_EQ(rdma_get_cm_event(client.events, &event), 0);
  EXPECT_EQ(event->event, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(event->status, 28);
  EXPECT_EQ(event->param.conn.private_data_len, 148);
  EXPECT_STREQ(static_cast<const char*>(event->param.conn.private_data), "no");
  rdma_ack_cm_event(event);
  EXPECT_EQ(rdma_destroy_id(server), 0);
  param.private_data_len = 57;
  Id other;
  other.resolve(port);
  EXPECT_EQ(rdma_connect(other.id, &param), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(Connection, WithoutAListenerIsRejectedAtOnce) {
  std::uint16_t port = 0;
  {
    Id gone;
    port = listen_on(gone);
  }
  Id client;
  client.resolve(port);
  ASSERT_EQ(rdma_connect(client.id, nullptr), 0);
  EXPECT_EQ(next_event(client.events), RDMA_CM_EVENT_REJECTED);
}

TEST(Connection, DestroyingTheListenerRefusesWhoWaits) {
  auto listener = std::make_unique<Id>();
  const std::uint16_t port = listen_on(*listener);
  Id client;
  client.resolve(port);
  ASSERT_EQ(rdma_connect(client.id, nullptr), 0);
  ASSERT_TRUE(readable(listener->events->fd, 30'000));
  listener.reset();
  EXPECT_EQ(next_event(client.events), RDMA_CM_EVENT_REJECTED);
}

TEST(Connection, APortInUseIsRefused) {
  Id first;
  const std::uint16_t port = listen_on(first);
  Id second;
  sockaddr_in a = loopback(port);
  EXPECT_EQ(rdma_bind_addr(second.id, reinterpret_cast<sockaddr*>(&a)), -1);
  EXPECT_EQ(errno, EADDRINUSE);
}

TEST(Connection, AnAddressThatIsNotOursIsRefused) {
  Id id;
  sockaddr_in a = loopback();
  a.sin_addr.s_addr = htonl(0xC6336401);  // 198.51.100.1, documentation only
  EXPECT_EQ(rdma_bind_addr(id.id, reinterpret_cast<sockaddr*>(&a)), -1);
  EXPECT_EQ(errno, EADDRNOTAVAIL);
}

TEST(Connection, NoEventOnANonBlockingChannelIsEagain) {
  Id id;
  ASSERT_EQ(::fcntl(id.events->fd, F_SETFL, ::fcntl(id.events->fd, F_GETFL) | O_NONBLOCK), 0);
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(rdma_get_cm_event(id.events, &event), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST(Connection, SynchronousIdsStepWithoutAChannelAndMigrateToOne) {
  Id listener;
  const std::uint16_t port = listen_on(listener);
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP), 0);
  sockaddr_in to = loopback(port);
  ASSERT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000), 0);
  ASSERT_NE(id->verbs, nullptr);
  ASSERT_EQ(rdma_resolve_route(id, 1000), 0);
  rdma_event_channel* events = rdma_create_event_channel();
  ASSERT_EQ(rdma_migrate_id(id, events), 0);
  EXPECT_EQ(id->channel, events);
  ASSERT_EQ(rdma_connect(id, nullptr), 0);  // would block for ever if still synchronous
  rdma_cm_id* server = nullptr;
  ASSERT_EQ(next_event(listener.events, &server), RDMA_CM_EVENT_CONNECT_REQUEST);
  ASSERT_EQ(rdma_reject(server, nullptr, 0), 0);
  EXPECT_EQ(next_event(events), RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(rdma_destroy_id(server), 0);
  EXPECT_EQ(rdma_destroy_id(id), 0);
  rdma_destroy_event_channel(events);
}

TEST(Connection, EventsMoveWithAMigratingId) {
  Id id;
  sockaddr_in to = loopback(1);
  ASSERT_EQ(rdma_resolve_addr(id.id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000), 0);
  rdma_event_channel* other = rdma_create_event_channel();
  ASSERT_EQ(rdma_migrate_id(id.id, other), 0);
  EXPECT_FALSE(readable(id.events->fd, 0));
  EXPECT_EQ(next_event(other), RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_EQ(rdma_migrate_id(id.id, id.events), 0);
  rdma_destroy_event_channel(other);
}

TEST(Connection, DestroyingAnIdWaitsForItsEventsToBeAcknowledged) {
  rdma_event_channel* events = rdma_create_event_channel();
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(events, &id, nullptr, RDMA_PS_TCP), 0);
  sockaddr_in to = loopback(1);
  ASSERT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000), 0);
  rdma_cm_event* event = nullptr;
  ASSERT_EQ(rdma_get_cm_event(events, &event), 0);
  auto destroyed = std::async(std::launch::async, [&] { return rdma_destroy_id(id); });
  EXPECT_EQ(destroyed.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  ASSERT_EQ(rdma_ack_cm_event(event), 0);
  EXPECT_EQ(destroyed.get(), 0);
  rdma_destroy_event_channel(events);
}

TEST(Connection, EndpointsOfRdmaCreateEpConnect) {
  rdma_addrinfo hints{};
  hints.ai_port_space = RDMA_PS_TCP;
  hints.ai_flags = RAI_PASSIVE;
  rdma_addrinfo* res = nullptr;
  ASSERT_EQ(rdma_getaddrinfo("127.0.0.1", "0", &hints, &res), 0);
  ibv_qp_init_attr init{};
  init.cap = {4, 4, 1, 1, 16};
  init.qp_type = IBV_QPT_RC;
  rdma_cm_id* listen = nullptr;
  ASSERT_EQ(rdma_create_ep(&listen, res, nullptr, &init), 0) << strerror(errno);
  rdma_freeaddrinfo(res);
  ASSERT_EQ(rdma_listen(listen, 1), 0);
  const std::string port = std::to_string(ntohs(rdma_get_src_port(listen)));
  auto accepted = std::async(std::launch::async, [&] {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_get_request(listen, &id), 0);
    EXPECT_EQ(rdma_accept(id, nullptr), 0);
    return id;
  });
  hints.ai_flags = 0;
  ASSERT_EQ(rdma_getaddrinfo("127.0.0.1", port.c_str(), &hints, &res), 0);
  rdma_cm_id* client = nullptr;
  ASSERT_EQ(rdma_create_ep(&client, res, nullptr, &init), 0);
  rdma_freeaddrinfo(res);
  ASSERT_EQ(rdma_connect(client, nullptr), 0) << strerror(errno);
  rdma_cm_id* server = accepted.get();
  ASSERT_NE(server->qp, nullptr);
  ASSERT_NE(server->send_cq_channel, nullptr);
  auto closed = std::async(std::launch::async, [&] { return rdma_disconnect(client); });
  EXPECT_TRUE(readable(server->channel->fd, 30'000));
  EXPECT_EQ(rdma_disconnect(server), 0);
  EXPECT_EQ(closed.get(), 0);
  rdma_destroy_ep(client);
  rdma_destroy_ep(server);
  rdma_destroy_ep(listen);
}

TEST(Connection, TheDisconnectEventAloneLeavesTheQueuePairAsItIs) {
  Pair pair({.recv_cqe = 64});
  ASSERT_EQ(pair.server.recv(1, 0, 64), 0);
  ASSERT_EQ(rdma_disconnect(pair.client.id), 0);
  ASSERT_EQ(next_event(pair.server.events), RDMA_CM_EVENT_DISCONNECTED);
  ibv_qp_attr attr{};
  ASSERT_EQ(ibv_query_qp(pair.server.id->qp, &attr, IBV_QP_STATE, nullptr), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
  EXPECT_TRUE(all_wcs(pair.server.rcq).empty());
  EXPECT_FALSE(readable(pair.client.events->fd, 0));  // the answer has not been given
  ASSERT_EQ(rdma_disconnect(pair.server.id), 0);
  EXPECT_EQ(next_wc(pair.server.rcq).status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(next_event(pair.client.events), RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_EQ(next_event(pair.client.events), RDMA_CM_EVENT_TIMEWAIT_EXIT);
  EXPECT_EQ(next_event(pair.server.events), RDMA_CM_EVENT_TIMEWAIT_EXIT);
}

TEST(Connection, ASendThatNobodyWillAcknowledgeFailsInBoundedTime) {
  Pair pair;
  ASSERT_EQ(pair.client.send(1, 0, 8), 0);
  ASSERT_EQ(softrdma_cut_connection(pair.server.id->qp), 0);
  ASSERT_EQ(next_event(pair.client.events), RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_EQ(next_wc(pair.client.scq).status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(softrdma_cut_connection(pair.server.id->qp), ENOTCONN);
}

TEST(Connection, APeerWhoseQueuePairIsInErrorIsNoticed) {
  Pair pair;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(pair.server.id->qp, &attr, IBV_QP_STATE), 0);
  ASSERT_EQ(pair.client.send(1, 0, 8), 0);
  EXPECT_EQ(next_wc(pair.client.scq).status, IBV_WC_RETRY_EXC_ERR);
}

TEST(Connection, DataSentRightAfterTheAcceptArrives) {
  // The accepting side may send before it has its own event, and its receives are live before its
  // application knows.
  for (int round = 0; round < 50; ++round) {
    Pair pair({.recv_cqe = 16, .srq = true});
    ASSERT_EQ(pair.server.recv(1, 0, 64), 0);
    ASSERT_EQ(pair.client.recv(2, 0, 64), 0);
    ASSERT_EQ(pair.client.send(3, 0, 8), 0);
    ASSERT_EQ(pair.server.send(4, 0, 8), 0);
    ASSERT_EQ(next_wc(pair.server.rcq).wr_id, 1U);
    ASSERT_EQ(next_wc(pair.client.rcq).wr_id, 2U);
  }
}

TEST(Connection, AThousandAtOnceAndNothingIsLeft) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  constexpr std::size_t kConnections = 1000;
  if (limit.rlim_cur < 3 * kConnections) GTEST_SKIP() << "too few descriptors: " << limit.rlim_cur;
  softrdma_stats before{};
  softrdma_get_stats(&before);
  {
    Id listener;
    const std::uint16_t port = listen_on(listener);
    rdma_event_channel* events = rdma_create_event_channel();
    std::vector<rdma_cm_id*> clients(kConnections);
    std::vector<rdma_cm_id*> servers;
    ibv_cq* cq = nullptr;
    ibv_qp_init_attr init{};
    const auto make_qp = [&](rdma_cm_id* id) {
      if (cq == nullptr) cq = ibv_create_cq(id->verbs, 4 * kConnections, nullptr, nullptr, 0);
      init = ibv_qp_init_attr{};
      init.send_cq = init.recv_cq = cq;
      init.cap = {1, 1, 1, 1, 8};
      init.qp_type = IBV_QPT_RC;
      ASSERT_EQ(rdma_create_qp(id, nullptr, &init), 0);
    };
    for (auto& id : clients) {
      ASSERT_EQ(rdma_create_id(events, &id, nullptr, RDMA_PS_TCP), 0);
      sockaddr_in to = loopback(port);
      ASSERT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000), 0);
      ASSERT_EQ(next_event(events), RDMA_CM_EVENT_ADDR_RESOLVED);
      ASSERT_EQ(rdma_resolve_route(id, 1000), 0);
      ASSERT_EQ(next_event(events), RDMA_CM_EVENT_ROUTE_RESOLVED);
      make_qp(id);
      ASSERT_EQ(rdma_connect(id, nullptr), 0);
    }
    while (servers.size() < kConnections) {
      rdma_cm_id* id = nullptr;
      const int type = next_event(listener.events, &id);
      ASSERT_NE(type, -1);
      if (type != RDMA_CM_EVENT_CONNECT_REQUEST) continue;
      make_qp(id);
      ibv_recv_wr wr{};
      ibv_recv_wr* bad = nullptr;
      ASSERT_EQ(ibv_post_recv(id->qp, &wr, &bad), 0);
      ASSERT_EQ(rdma_accept(id, nullptr), 0);
      servers.push_back(id);
    }
    for (std::size_t i = 0; i < kConnections; ++i)
      ASSERT_EQ(next_event(events), RDMA_CM_EVENT_ESTABLISHED);
    for (rdma_cm_id* id : clients) {
      ibv_send_wr wr{};
      wr.opcode = IBV_WR_SEND;
      ibv_send_wr* bad = nullptr;
      ASSERT_EQ(ibv_post_send(id->qp, &wr, &bad), 0);
    }
    for (std::size_t i = 0; i < kConnections; ++i) ASSERT_EQ(next_wc(cq).opcode, IBV_WC_RECV);
    for (auto* list : {&clients, &servers}) {
      for (rdma_cm_id* id : *list) {
        rdma_destroy_qp(id);
        ASSERT_EQ(rdma_destroy_id(id), 0);
      }
    }
    ASSERT_EQ(ibv_destroy_cq(cq), 0);
    rdma_destroy_event_channel(events);
  }
  EXPECT_TRUE(eventually([&] {
    softrdma_stats now{};
    softrdma_get_stats(&now);
    return now.links == before.links;
  }));
  softrdma_stats after{};
  softrdma_get_stats(&after);
  EXPECT_EQ(after.qps, before.qps);
  EXPECT_EQ(after.cqs, before.cqs);
  EXPECT_EQ(after.cm_ids, before.cm_ids);
  EXPECT_EQ(after.event_channels, before.event_channels);
}

}  // namespace
}  // namespace softrdma_test
