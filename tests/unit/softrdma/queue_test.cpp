// SPDX-License-Identifier: BSD-3-Clause
// Completion queues, events, shared receive queues.
#include <fcntl.h>
#include <sys/resource.h>

#include <atomic>
#include <future>
#include <thread>

#include "pair.hpp"

namespace softrdma_test {
namespace {

void set_nonblocking(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

int take_event(ibv_comp_channel* channel, ibv_cq** cq) {
  void* context = nullptr;
  return ibv_get_cq_event(channel, cq, &context);
}

TEST(CompletionQueue, SizesRoundUpToOneLessThanAPowerOfTwo) {
  Pair pair;
  ibv_context* verbs = pair.client.id->verbs;
  for (const auto& [wanted, got] : {std::pair{1, 1}, {2, 3}, {8, 15}, {15, 15}, {16, 31}}) {
    ibv_cq* cq = ibv_create_cq(verbs, wanted, nullptr, nullptr, 0);
    ASSERT_NE(cq, nullptr);
    EXPECT_EQ(cq->cqe, got);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
  }
  EXPECT_EQ(ibv_create_cq(verbs, 0, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_create_cq(verbs, 1, nullptr, nullptr, verbs->num_comp_vectors), nullptr);
}

TEST(CompletionQueue, OneEventPerArmAndArmingTakesNoNoticeOfWhatIsThere) {
  Pair pair({.recv_cqe = 64, .channel = true});
  Side& s = pair.server;
  set_nonblocking(s.channel->fd);
  ibv_cq* cq = nullptr;
  for (int i = 0; i < 8; ++i) ASSERT_EQ(s.recv(i, 0, 64), 0);
  // Not armed: completions come without an event.
  ASSERT_EQ(pair.client.send(1, 0, 8), 0);
  ASSERT_EQ(next_wc(pair.client.scq).status, IBV_WC_SUCCESS);
  EXPECT_EQ(take_event(s.channel, &cq), -1);
  EXPECT_EQ(errno, EAGAIN);
  // Armed with one there: still none.
  ASSERT_EQ(ibv_req_notify_cq(s.rcq, 0), 0);
  EXPECT_EQ(take_event(s.channel, &cq), -1);
  EXPECT_FALSE(readable(s.channel->fd, 0));
  // Two more completions: one event.
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(pair.client.send(2, 0, 8), 0);
    ASSERT_EQ(next_wc(pair.client.scq).status, IBV_WC_SUCCESS);
  }
  EXPECT_TRUE(readable(s.channel->fd, 0));
  ASSERT_EQ(take_event(s.channel, &cq), 0);
  EXPECT_EQ(cq, s.rcq);
  EXPECT_EQ(take_event(s.channel, &cq), -1);
  EXPECT_EQ(all_wcs(s.rcq).size(), 3U);
  ibv_ack_cq_events(s.rcq, 1);
}

TEST(CompletionQueue, SolicitedOnlyEventsComeForSolicitedMessagesAndFailures) {
  Pair pair({.recv_cqe = 64, .channel = true});
  Side& s = pair.server;
  set_nonblocking(s.channel->fd);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(s.recv(i, 0, 64), 0);
  ASSERT_EQ(ibv_req_notify_cq(s.rcq, 1), 0);
  ASSERT_EQ(pair.client.send(1, 0, 8), 0);
  ASSERT_EQ(next_wc(pair.client.scq).status, IBV_WC_SUCCESS);
  EXPECT_FALSE(readable(s.channel->fd, 0));
  ASSERT_EQ(pair.client.send(1, 0, 8, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED), 0);
  ASSERT_EQ(next_wc(pair.client.scq).status, IBV_WC_SUCCESS);
  ibv_cq* cq = nullptr;
  ASSERT_EQ(take_event(s.channel, &cq), 0);
  ibv_ack_cq_events(cq, 1);
  ASSERT_EQ(ibv_req_notify_cq(s.rcq, 1), 0);
  EXPECT_FALSE(readable(s.channel->fd, 0));
  ASSERT_EQ(rdma_disconnect(s.id), 0);  // the receives left are flushed
  ASSERT_EQ(take_event(s.channel, &cq), 0);
  ibv_ack_cq_events(cq, 1);
}

TEST(CompletionQueue, ArmingForSolicitedDoesNotTakeBackArmingForAll) {
  Pair pair({.recv_cqe = 64, .channel = true});
  ASSERT_EQ(pair.server.recv(1, 0, 64), 0);
  ASSERT_EQ(ibv_req_notify_cq(pair.server.rcq, 0), 0);
  ASSERT_EQ(ibv_req_notify_cq(pair.server.rcq, 1), 0);
  ASSERT_EQ(pair.client.send(1, 0, 8), 0);
  ibv_cq* cq = nullptr;
  ASSERT_TRUE(readable(pair.server.channel->fd, 30'000));
  ASSERT_EQ(take_event(pair.server.channel, &cq), 0);
  ibv_ack_cq_events(cq, 1);
}

// Scenario W6.
TEST(CompletionQueue, AnEventOnASharedChannelNamesTheQueueThatItIsFor) {
  Pair pair({.recv_cqe = 64, .channel = true});
  Side& s = pair.server;
  set_nonblocking(s.channel->fd);
  ASSERT_EQ(ibv_req_notify_cq(s.rcq, 0), 0);
  ASSERT_EQ(ibv_req_notify_cq(s.scq, 0), 0);
  ASSERT_EQ(s.recv(1, 0, 64), 0);
  ASSERT_EQ(pair.client.send(1, 0, 8), 0);
  ASSERT_TRUE(readable(s.channel->fd, 30'000));
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(s.channel, &cq, &context), 0);
  EXPECT_EQ(cq, s.rcq);
  EXPECT_EQ(context, &s);
  ibv_ack_cq_events(cq, 1);
  EXPECT_EQ(take_event(s.channel, &cq), -1);
  // The other one is still armed.
  ASSERT_EQ(pair.client.recv(1, 0, 64), 0);
  ASSERT_EQ(s.send(1, 0, 8), 0);
  ASSERT_TRUE(readable(s.channel->fd, 30'000));
  ASSERT_EQ(take_event(s.channel, &cq), 0);
  EXPECT_EQ(cq, s.scq);
  ibv_ack_cq_events(cq, 1);
}

// Scenario W10.
TEST(CompletionQueue, DestroyingItWaitsUntilItsEventsAreAcknowledged) {
  Pair pair({.recv_cqe = 64, .channel = true});
  ibv_context* verbs = pair.server.id->verbs;
  ibv_comp_channel* channel = ibv_create_comp_channel(verbs);
  ibv_cq* cq = ibv_create_cq(verbs, 4, nullptr, channel, 0);
  // An event by a raw queue pair that dies with one receive posted.
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.cap = {1, 1, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  ibv_qp* qp = ibv_create_qp(pair.server.pd, &init);
  ASSERT_NE(qp, nullptr);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
  ibv_recv_wr wr{};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(qp, &wr, &bad), 0);
  ASSERT_EQ(ibv_req_notify_cq(cq, 0), 0);
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
  ibv_cq* got = nullptr;
  ASSERT_EQ(take_event(channel, &got), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), EBUSY);  // a queue pair uses it
  ASSERT_EQ(ibv_destroy_qp(qp), 0);
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    destroyed.store(true);
  });
  // It must not get through on its own: given time enough for a call that does not wait.
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (std::chrono::steady_clock::now() < until && !destroyed.load()) ::sched_yield();
  EXPECT_FALSE(destroyed.load());
  ibv_ack_cq_events(cq, 1);
  destroyer.join();
  EXPECT_TRUE(destroyed.load());
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

TEST(CompletionQueue, AnEventNobodyTookGoesWithItsQueue) {
  Pair pair({.recv_cqe = 64, .channel = true});
  Side& s = pair.server;
  set_nonblocking(s.channel->fd);
  ASSERT_EQ(ibv_req_notify_cq(s.rcq, 0), 0);
  ASSERT_EQ(s.recv(1, 0, 64), 0);
  ASSERT_EQ(pair.client.send(1, 0, 8), 0);
  ASSERT_TRUE(readable(s.channel->fd, 30'000));
  rdma_destroy_qp(s.id);
  ASSERT_EQ(ibv_destroy_cq(s.rcq), 0);
  s.rcq = s.scq;
  EXPECT_FALSE(readable(s.channel->fd, 0));
}

TEST(CompletionQueue, OverflowIsACqErrorAndTheQueueStallsAndItsQueuePairsFail) {
  Pair pair({.depth = 64, .cqe = 256, .recv_cqe = 4});
  ibv_context* verbs = pair.server.id->verbs;
  drain_async(verbs);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(pair.server.recv(i, 0, 64), 0);
  for (int i = 0; i < 8; ++i) ASSERT_EQ(pair.client.send(i, 0, 8), 0);  // capacity is 7
  ibv_async_event event{};
  ASSERT_EQ(next_async(verbs, &event), IBV_EVENT_CQ_ERR);
  EXPECT_EQ(event.element.cq, pair.server.rcq);
  EXPECT_TRUE(eventually([&] {
    ibv_qp_attr attr{};
    ibv_query_qp(pair.server.id->qp, &attr, IBV_QP_STATE, nullptr);
    return attr.qp_state == IBV_QPS_ERR;
  }));
  EXPECT_EQ(all_wcs(pair.server.rcq).size(), 7U);
  EXPECT_TRUE(all_wcs(pair.server.rcq).empty());
}

TEST(CompletionQueue, APollingThreadSeesWhatTheWriterPlaced) {
  // TSan watches this one.
  Pair pair;
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(pair.server.recv(7, 0, 4096), 0);
    std::memset(pair.client.memory.data(), i + 1, 4096);
    ASSERT_EQ(pair.client.send(8, 0, 4096), 0);
    ASSERT_EQ(next_wc(pair.server.scq).status, IBV_WC_SUCCESS);
    ASSERT_EQ(pair.server.memory[4095], static_cast<std::uint8_t>(i + 1));
    ASSERT_EQ(next_wc(pair.client.scq).status, IBV_WC_SUCCESS);
  }
}

TEST(SharedReceiveQueue, FullAndEmptyAndQueried) {
  Pair pair({.depth = 8, .srq = true});
  ibv_srq_attr attr{};
  ASSERT_EQ(ibv_query_srq(pair.server.srq, &attr), 0);
  EXPECT_EQ(attr.max_wr, 15U);
  int posted = 0;
  int result = 0;
  while ((result = pair.server.recv(posted, 0, 64)) == 0) ++posted;
  EXPECT_EQ(posted, 15);
  EXPECT_EQ(result, ENOMEM);
}

TEST(SharedReceiveQueue, ItsLimitIsToldOnceEachTimeItIsSet) {
  Pair pair({.depth = 8, .srq = true});
  ibv_context* verbs = pair.server.id->verbs;
  drain_async(verbs);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(pair.server.recv(i, 0, 64), 0);
  ibv_srq_attr attr{};
  attr.srq_limit = 3;
  ASSERT_EQ(ibv_modify_srq(pair.server.srq, &attr, IBV_SRQ_LIMIT), 0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(pair.client.send(1, 0, 8), 0);
    ASSERT_EQ(next_wc(pair.client.scq).status, IBV_WC_SUCCESS);
  }
  ibv_async_event event{};
  ASSERT_EQ(next_async(verbs, &event), IBV_EVENT_SRQ_LIMIT_REACHED);
  EXPECT_EQ(event.element.srq, pair.server.srq);
  EXPECT_FALSE(readable(verbs->async_fd, 0));
  attr.srq_limit = 16;
  EXPECT_EQ(ibv_modify_srq(pair.server.srq, &attr, IBV_SRQ_LIMIT), EINVAL);
}

TEST(SharedReceiveQueue, ItsReceivesAreNotFlushedAndTheLastWqeIsTold) {
  Pair pair({.depth = 8, .recv_cqe = 64, .srq = true});
  ibv_context* verbs = pair.server.id->verbs;
  drain_async(verbs);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(pair.server.recv(i, 0, 64), 0);
  ASSERT_EQ(pair.client.send(1, 0, 8), 0);
  ASSERT_EQ(next_wc(pair.client.scq).status, IBV_WC_SUCCESS);
  ASSERT_EQ(rdma_disconnect(pair.server.id), 0);
  ibv_async_event event{};
  ASSERT_EQ(next_async(verbs, &event), IBV_EVENT_QP_LAST_WQE_REACHED);
  EXPECT_EQ(event.element.qp, pair.server.id->qp);
  const auto wcs = all_wcs(pair.server.rcq);
  ASSERT_EQ(wcs.size(), 1U);
  EXPECT_EQ(wcs[0].status, IBV_WC_SUCCESS);
}

TEST(AsyncEvents, OfTheTestHooksArrive) {
  Pair pair;
  ibv_context* verbs = pair.client.id->verbs;
  drain_async(verbs);
  ASSERT_EQ(softrdma_raise_async(verbs, IBV_EVENT_PORT_ERR, nullptr), 0);
  EXPECT_EQ(next_async(verbs), IBV_EVENT_PORT_ERR);
  ASSERT_EQ(softrdma_raise_async(verbs, IBV_EVENT_QP_FATAL, pair.client.id->qp), 0);
  ibv_async_event event{};
  EXPECT_EQ(next_async(verbs, &event), IBV_EVENT_QP_FATAL);
  EXPECT_EQ(event.element.qp, pair.client.id->qp);
  EXPECT_EQ(softrdma_raise_async(verbs, IBV_EVENT_QP_FATAL, nullptr), EINVAL);
  EXPECT_EQ(softrdma_raise_async(verbs, IBV_EVENT_CQ_ERR, nullptr), EINVAL);
  ASSERT_EQ(softrdma_force_cq_error(pair.client.scq), 0);
  EXPECT_EQ(next_async(verbs, &event), IBV_EVENT_CQ_ERR);
  EXPECT_EQ(event.element.cq, pair.client.scq);
}

// Scenario S1, for the device's own thread.
TEST(Engine, UsesNoProcessorTimeWhenIdle) {
  Pair pair;
  const auto cpu_us = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000L + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
  };
  const long before = cpu_us();
  // The wait is what is measured here.
  ::poll(nullptr, 0, 1000);
  EXPECT_LT(cpu_us() - before, 20'000);
}

}  // namespace
}  // namespace softrdma_test
