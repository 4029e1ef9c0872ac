// SPDX-License-Identifier: BSD-3-Clause
// What queue pairs do with work requests.
#include <sys/mman.h>

#include <numeric>

#include "pair.hpp"

namespace softrdma_test {
namespace {

void fill(std::vector<std::uint8_t>& memory, std::size_t offset, std::size_t length, int first) {
  for (std::size_t i = 0; i < length; ++i)
    memory[offset + i] = static_cast<std::uint8_t>(first + static_cast<int>(i * 7 + i / 251));
}

TEST(Data, SendWithAndWithoutImmediate) {
  Pair pair({.recv_cqe = 64});
  ASSERT_EQ(pair.server.recv(11, 0, 128), 0);
  ASSERT_EQ(pair.server.recv(12, 128, 128), 0);
  fill(pair.client.memory, 0, 100, 3);
  ASSERT_EQ(pair.client.send(21, 0, 100), 0);
  ASSERT_EQ(pair.client.post(IBV_WR_SEND_WITH_IMM, 22, {pair.client.sge(0, 50)}, IBV_SEND_SIGNALED,
                             0, 0, 0xAABBCCDD),
            0);
  ibv_wc wc = next_wc(pair.server.rcq);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wr_id, 11U);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV);
  EXPECT_EQ(wc.byte_len, 100U);
  EXPECT_EQ(wc.qp_num, pair.server.id->qp->qp_num);
  EXPECT_EQ(wc.src_qp, pair.client.id->qp->qp_num);
  EXPECT_EQ(wc.wc_flags & IBV_WC_WITH_IMM, 0U);
  EXPECT_EQ(std::memcmp(pair.server.memory.data(), pair.client.memory.data(), 100), 0);
  wc = next_wc(pair.server.rcq);
  EXPECT_EQ(wc.wr_id, 12U);
  EXPECT_EQ(wc.wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM + 0U);
  EXPECT_EQ(wc.imm_data, 0xAABBCCDDU);
  wc = next_wc(pair.client.scq);
  EXPECT_EQ(wc.wr_id, 21U);
  EXPECT_EQ(wc.opcode, IBV_WC_SEND);
  EXPECT_EQ(next_wc(pair.client.scq).wr_id, 22U);
}

TEST(Data, WriteReadAtomics) {
  Pair pair;
  const std::uint32_t rkey = pair.server.mr->rkey;
  fill(pair.client.memory, 0, 300'000, 1);
  ASSERT_EQ(pair.client.post(IBV_WR_RDMA_WRITE, 1, {pair.client.sge(0, 300'000)}, IBV_SEND_SIGNALED,
                             pair.server.address(1000), rkey),
            0);
  ibv_wc wc = next_wc(pair.client.scq);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(std::memcmp(pair.server.memory.data() + 1000, pair.client.memory.data(), 300'000), 0);
  ASSERT_EQ(pair.client.post(IBV_WR_RDMA_READ, 2,
                             {pair.client.sge(400'000, 100'000), pair.client.sge(500'001, 200'000)},
                             IBV_SEND_SIGNALED, pair.server.address(1000), rkey),
            0);
  wc = next_wc(pair.client.scq);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(std::memcmp(pair.client.memory.data() + 400'000, pair.client.memory.data(), 100'000),
            0);
  EXPECT_EQ(std::memcmp(pair.client.memory.data() + 500'001, pair.client.memory.data() + 100'000,
                        200'000),
            0);

  const std::size_t word = (8 - pair.server.address(0) % 8) % 8 + 512;
  const auto remote_word = [&] {
    std::uint64_t v = 0;
    std::memcpy(&v, pair.server.memory.data() + word, 8);
    return v;
  };
  std::memset(pair.server.memory.data() + word, 0, 8);
  const auto atomic = [&](ibv_wr_opcode opcode, std::uint64_t compare_add, std::uint64_t swap) {
    ibv_sge sge = pair.client.sge(0, 8);
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.atomic.remote_addr = pair.server.address(word);
    wr.wr.atomic.rkey = rkey;
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(pair.client.id->qp, &wr, &bad), 0);
    EXPECT_EQ(next_wc(pair.client.scq).status, IBV_WC_SUCCESS);
    std::uint64_t before = 0;
    std::memcpy(&before, pair.client.memory.data(), 8);
    return before;
  };
  EXPECT_EQ(atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 0), 0U);
  EXPECT_EQ(remote_word(), 5U);
  EXPECT_EQ(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 4, 9), 5U);
  EXPECT_EQ(remote_word(), 5U);
  EXPECT_EQ(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 5, 9), 5U);
  EXPECT_EQ(remote_word(), 9U);
}

TEST(Data, WriteWithImmediateConsumesAReceive) {
  Pair pair({.recv_cqe = 64});
  ASSERT_EQ(pair.server.recv(5, 0, 0), 0);
  fill(pair.client.memory, 0, 64, 9);
  ASSERT_EQ(
      pair.client.post(IBV_WR_RDMA_WRITE_WITH_IMM, 1, {pair.client.sge(0, 64)}, IBV_SEND_SIGNALED,
                       pair.server.address(4096), pair.server.mr->rkey, 77),
      0);
  const ibv_wc wc = next_wc(pair.server.rcq);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(wc.imm_data, 77U);
  EXPECT_EQ(wc.byte_len, 64U);
  EXPECT_EQ(std::memcmp(pair.server.memory.data() + 4096, pair.client.memory.data(), 64), 0);
  EXPECT_EQ(next_wc(pair.client.scq).opcode, IBV_WC_RDMA_WRITE);
}

TEST(Data, InlineDataMayChangeAfterThePostAndNeedsNoKey) {
  Pair pair;
  ASSERT_EQ(pair.server.recv(1, 0, 64), 0);
  char text[] = "first";
  const ibv_sge sge{reinterpret_cast<std::uint64_t>(text), 6, 0};
  ASSERT_EQ(pair.client.post(IBV_WR_SEND, 1, {sge}, IBV_SEND_SIGNALED | IBV_SEND_INLINE), 0);
  std::strcpy(text, "other");
  ASSERT_EQ(next_wc(pair.server.scq).status, IBV_WC_SUCCESS);
  EXPECT_STREQ(reinterpret_cast<const char*>(pair.server.memory.data()), "first");
  EXPECT_EQ(pair.client.post(IBV_WR_SEND, 1, {pair.client.sge(0, 65)}, IBV_SEND_INLINE), EINVAL);
}

TEST(Data, ListsOnBothSidesNeedNotMatch) {
  Pair pair;
  fill(pair.client.memory, 0, 4096, 1);
  ASSERT_EQ(pair.server.recv(1, {pair.server.sge(0, 3), pair.server.sge(100, 0),
                                 pair.server.sge(200, 500), pair.server.sge(1000, 2000)}),
            0);
  ASSERT_EQ(pair.client.post(
                IBV_WR_SEND, 1,
                {pair.client.sge(0, 400), pair.client.sge(400, 1), pair.client.sge(401, 599)},
                IBV_SEND_SIGNALED),
            0);
  const ibv_wc wc = next_wc(pair.server.scq);
  ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, 1000U);
  EXPECT_EQ(std::memcmp(pair.server.memory.data(), pair.client.memory.data(), 3), 0);
  EXPECT_EQ(std::memcmp(pair.server.memory.data() + 200, pair.client.memory.data() + 3, 500), 0);
  EXPECT_EQ(std::memcmp(pair.server.memory.data() + 1000, pair.client.memory.data() + 503, 497), 0);
  EXPECT_EQ(pair.client.post(IBV_WR_SEND, 1, std::vector<ibv_sge>(5, pair.client.sge(0, 1)), 0),
            EINVAL);
}

TEST(Data, UnsignalledSendsCompleteNothingAndFreeTheirSlots) {
  Pair pair({.depth = 4, .cqe = 16});
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(pair.client.post(IBV_WR_RDMA_WRITE, 1, {pair.client.sge(0, 8)}, 0,
                                 pair.server.address(0), pair.server.mr->rkey),
                0);
    }
    ASSERT_EQ(pair.client.post(IBV_WR_RDMA_WRITE, 2, {pair.client.sge(0, 8)}, IBV_SEND_SIGNALED,
                               pair.server.address(0), pair.server.mr->rkey),
              0);
    ASSERT_EQ(next_wc(pair.client.scq).wr_id, 2U);
    ASSERT_TRUE(all_wcs(pair.client.scq).empty());
  }
}

TEST(Data, SignalAllSignalsAll) {
  Pair pair({.signal_all = true});
  ASSERT_EQ(pair.client.post(IBV_WR_RDMA_WRITE, 3, {pair.client.sge(0, 8)}, 0,
                             pair.server.address(0), pair.server.mr->rkey),
            0);
  EXPECT_EQ(next_wc(pair.client.scq).wr_id, 3U);
}

TEST(Data, FullQueuesRefuseWithEnomem) {
  Pair pair({.depth = 4});
  int receives = 0;
  while (pair.client.recv(1, 0, 8) == 0) ++receives;
  EXPECT_EQ(receives, 7);
  EXPECT_EQ(pair.client.recv(1, 0, 8), ENOMEM);
  int sends = 0;
  while (pair.client.send(1, 0, 8) == 0) ++sends;  // the server has no receive
  EXPECT_EQ(sends, 7);
  EXPECT_EQ(pair.client.send(1, 0, 8), ENOMEM);
}

TEST(Data, ASendWithoutAReceiveWaitsForOne) {
  Pair pair({.recv_cqe = 64});
  softrdma_stats before{};
  softrdma_get_stats(&before);
  fill(pair.client.memory, 0, 200'000, 5);
  // Messages behind the one that has to wait are sent again after it.
  for (int i = 0; i < 3; ++i) ASSERT_EQ(pair.client.send(i, 0, 200'000), 0);
  ASSERT_TRUE(eventually([&] {
    softrdma_stats now{};
    softrdma_get_stats(&now);
    return now.rnr_waits > before.rnr_waits;
  }));
  EXPECT_TRUE(all_wcs(pair.client.scq).empty());
  for (int i = 0; i < 3; ++i) ASSERT_EQ(pair.server.recv(i, 200'000 * i, 200'000), 0);
  for (int i = 0; i < 3; ++i) {
    const ibv_wc wc = next_wc(pair.server.rcq);
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_EQ(wc.wr_id, static_cast<std::uint64_t>(i));
    ASSERT_EQ(
        std::memcmp(pair.server.memory.data() + 200'000 * i, pair.client.memory.data(), 200'000),
        0);
    ASSERT_EQ(next_wc(pair.client.scq).wr_id, static_cast<std::uint64_t>(i));
  }
}

TEST(Data, AFiniteRetryCountRunsOut) {
  Pair pair({.server_asks_rnr = 2});
  ASSERT_EQ(pair.client.send(1, 0, 8), 0);
  ASSERT_EQ(pair.client.send(2, 0, 8), 0);
  EXPECT_EQ(next_wc(pair.client.scq).status, IBV_WC_RNR_RETRY_EXC_ERR);
  const ibv_wc wc = next_wc(pair.client.scq);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(wc.wr_id, 2U);
}

TEST(Data, AMessageLargerThanItsReceiveFailsBothSides) {
  Pair pair({.recv_cqe = 64});
  ASSERT_EQ(pair.server.recv(1, 0, 64), 0);
  ASSERT_EQ(pair.server.recv(2, 0, 64), 0);
  ASSERT_EQ(pair.client.send(7, 0, 65), 0);
  ibv_wc wc = next_wc(pair.client.scq);
  EXPECT_EQ(wc.status, IBV_WC_REM_OP_ERR);
  EXPECT_EQ(wc.wr_id, 7U);
  wc = next_wc(pair.server.rcq);
  EXPECT_EQ(wc.status, IBV_WC_LOC_QP_OP_ERR);
  EXPECT_EQ(wc.wr_id, 1U);
  wc = next_wc(pair.server.rcq);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(wc.wr_id, 2U);
  ASSERT_EQ(pair.client.send(8, 0, 8), 0);
  wc = next_wc(pair.client.scq);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(wc.wr_id, 8U);
}

TEST(Data, AnErrorFlushesEverythingInOrder) {
  Pair pair({.recv_cqe = 64});
  for (int i = 0; i < 5; ++i) ASSERT_EQ(pair.client.recv(100 + i, 0, 8), 0);
  for (int i = 0; i < 5; ++i)
    ASSERT_EQ(pair.client.send(i, 0, 8, i % 2 != 0 ? IBV_SEND_SIGNALED : 0), 0);
  ASSERT_EQ(rdma_disconnect(pair.client.id), 0);
  for (int i = 0; i < 5; ++i) {
    const ibv_wc send = next_wc(pair.client.scq);
    EXPECT_EQ(send.wr_id, static_cast<std::uint64_t>(i));
    EXPECT_EQ(send.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(send.qp_num, pair.client.id->qp->qp_num);
    const ibv_wc recv = next_wc(pair.client.rcq);
    EXPECT_EQ(recv.wr_id, static_cast<std::uint64_t>(100 + i));
    EXPECT_EQ(recv.status, IBV_WC_WR_FLUSH_ERR);
  }
  ASSERT_EQ(pair.client.recv(9, 0, 8), 0);
  EXPECT_EQ(next_wc(pair.client.rcq).status, IBV_WC_WR_FLUSH_ERR);
}

TEST(Data, BothSidesWriteSixtyFourMebibytesAndReadAtOnce) {
  constexpr std::size_t kSize = 64 << 20;
  Pair pair({.memory = 2 * kSize});
  fill(pair.client.memory, 0, kSize, 1);
  fill(pair.server.memory, 0, kSize, 2);
  ASSERT_EQ(pair.client.post(IBV_WR_RDMA_WRITE, 1, {pair.client.sge(0, kSize)}, IBV_SEND_SIGNALED,
                             pair.server.address(kSize), pair.server.mr->rkey),
            0);
  ASSERT_EQ(pair.server.post(IBV_WR_RDMA_WRITE, 2, {pair.server.sge(0, kSize)}, IBV_SEND_SIGNALED,
                             pair.client.address(kSize), pair.client.mr->rkey),
            0);
  EXPECT_EQ(next_wc(pair.client.scq).status, IBV_WC_SUCCESS);
  EXPECT_EQ(next_wc(pair.server.scq).status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(pair.server.memory.data() + kSize, pair.client.memory.data(), kSize), 0);
  EXPECT_EQ(std::memcmp(pair.client.memory.data() + kSize, pair.server.memory.data(), kSize), 0);
  for (Side* side : {&pair.client, &pair.server}) {
    Side& other = side == &pair.client ? pair.server : pair.client;
    for (int i = 0; i < 4; ++i) {
      ASSERT_EQ(side->post(IBV_WR_RDMA_READ, 3, {side->sge(kSize + i * (kSize / 4), kSize / 4)},
                           IBV_SEND_SIGNALED, other.address(i * (kSize / 4)), other.mr->rkey),
                0);
    }
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(next_wc(pair.client.scq).status, IBV_WC_SUCCESS);
    EXPECT_EQ(next_wc(pair.server.scq).status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(std::memcmp(pair.client.memory.data() + kSize, pair.server.memory.data(), kSize), 0);
}

TEST(Data, MoreReadsThanMayBeOutstandingAllComplete) {
  Pair pair({.depth = 128, .cqe = 512});
  fill(pair.server.memory, 0, 1000, 3);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(pair.client.post(i % 10 == 9 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, i,
                               {pair.client.sge(i * 100, 100)},
                               IBV_SEND_SIGNALED | (i % 7 == 0 ? IBV_SEND_FENCE : 0),
                               pair.server.address(i % 10 == 9 ? 5000 : 0), pair.server.mr->rkey),
              0);
  }
  for (int i = 0; i < 100; ++i) {
    const ibv_wc wc = next_wc(pair.client.scq);
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_EQ(wc.wr_id, static_cast<std::uint64_t>(i));
  }
}

TEST(Memory, RegistrationChecksWhatTheKernelChecks) {
  Pair pair;
  ibv_pd* pd = pair.client.pd;
  char byte = 0;
  EXPECT_EQ(ibv_reg_mr(pd, &byte, 0, int{IBV_ACCESS_LOCAL_WRITE}), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_reg_mr(pd, &byte, 1, int{IBV_ACCESS_REMOTE_WRITE}), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_reg_mr(pd, &byte, 1, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  const std::size_t page = 4096;
  auto* pages = static_cast<char*>(
      ::mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(::mprotect(pages + page, page, PROT_READ), 0);
  EXPECT_EQ(ibv_reg_mr(pd, pages, 2 * page, int{IBV_ACCESS_LOCAL_WRITE}), nullptr);
  EXPECT_EQ(errno, EFAULT);
  ibv_mr* read_only = ibv_reg_mr(pd, pages, 2 * page, int{IBV_ACCESS_REMOTE_READ});
  EXPECT_NE(read_only, nullptr);
  if (read_only != nullptr) {
    EXPECT_EQ(ibv_dereg_mr(read_only), 0);
  }
  ASSERT_EQ(::munmap(pages + page, page), 0);
  EXPECT_EQ(ibv_reg_mr(pd, pages, 3 * page, int{IBV_ACCESS_LOCAL_WRITE}), nullptr);
  EXPECT_EQ(errno, EFAULT);
  ::munmap(pages, 3 * page);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
}

TEST(Memory, LocalKeysBoundsAndRightsAreChecked) {
  const auto status_of = [](auto&& spoil) {
    Pair pair;
    EXPECT_EQ(pair.server.recv(1, 0, 64), 0);
    ibv_sge sge = pair.client.sge(0, 8);
    spoil(sge, pair);
    EXPECT_EQ(pair.client.post(IBV_WR_SEND, 1, {sge}, IBV_SEND_SIGNALED), 0);
    return next_wc(pair.client.scq).status;
  };
  EXPECT_EQ(status_of([](ibv_sge&, Pair&) {}), IBV_WC_SUCCESS);
  EXPECT_EQ(status_of([](ibv_sge& sge, Pair&) { sge.lkey ^= 1; }), IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(status_of([](ibv_sge& sge, Pair& p) { sge.addr += p.client.memory.size() - 7; }),
            IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(status_of([](ibv_sge& sge, Pair&) { sge.addr -= 1; }), IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(status_of([](ibv_sge& sge, Pair& p) { sge.lkey = p.server.mr->lkey; }),
            IBV_WC_LOC_PROT_ERR);
}

TEST(QueuePair, TwoOfOneProcessCanBeBroughtUpByHand) {
  Pair pair;  // for its context, domain and memory
  ibv_context* verbs = pair.client.id->verbs;
  ibv_cq* cq = ibv_create_cq(verbs, 16, nullptr, nullptr, 0);
  ibv_qp* qps[2];
  for (auto& qp : qps) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.cap = {4, 4, 1, 1, 16};
    init.qp_type = IBV_QPT_RC;
    qp = ibv_create_qp(pair.client.pd, &init);
    ASSERT_NE(qp, nullptr);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    ASSERT_EQ(ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
              0);
  }
  for (int i = 0; i < 2; ++i) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.dest_qp_num = qps[1 - i]->qp_num;
    ASSERT_EQ(
        ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_DEST_QPN | IBV_QP_AV | IBV_QP_PATH_MTU),
        0);
    attr.qp_state = IBV_QPS_RTS;
    attr.rnr_retry = 7;
    ASSERT_EQ(ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_RNR_RETRY), 0);
  }
  ibv_sge sge = pair.client.sge(64, 8);
  ibv_recv_wr recv{};
  recv.wr_id = 1;
  recv.sg_list = &sge;
  recv.num_sge = 1;
  ibv_recv_wr* bad_recv = nullptr;
  ASSERT_EQ(ibv_post_recv(qps[1], &recv, &bad_recv), 0);
  ibv_sge from = pair.client.sge(0, 8);
  std::memcpy(pair.client.memory.data(), "by hand", 8);
  ibv_send_wr send{};
  send.wr_id = 2;
  send.sg_list = &from;
  send.num_sge = 1;
  send.opcode = IBV_WR_SEND;
  ibv_send_wr* bad_send = nullptr;
  ASSERT_EQ(ibv_post_send(qps[0], &send, &bad_send), 0);
  EXPECT_EQ(next_wc(cq).wr_id, 1U);
  EXPECT_STREQ(reinterpret_cast<char*>(pair.client.memory.data() + 64), "by hand");
  // Nobody has this number.
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(ibv_modify_qp(qps[0], &attr, IBV_QP_STATE), 0);
  attr.qp_state = IBV_QPS_INIT;
  ASSERT_EQ(ibv_modify_qp(qps[0], &attr, IBV_QP_STATE), 0);
  attr.qp_state = IBV_QPS_RTR;
  attr.dest_qp_num = 1;
  EXPECT_EQ(ibv_modify_qp(qps[0], &attr, IBV_QP_STATE | IBV_QP_DEST_QPN), EOPNOTSUPP);
  for (auto* qp : qps) EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST(Device, AnswersQuestionsAndRefusesWhatItCannot) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ASSERT_EQ(count, 1);
  EXPECT_STREQ(ibv_get_device_name(list[0]), "softrdma0");
  ibv_context* verbs = ibv_open_device(list[0]);
  ASSERT_NE(verbs, nullptr);
  ibv_free_device_list(list);
  ibv_device_attr_ex attr{};
  EXPECT_EQ(ibv_query_device_ex(verbs, nullptr, &attr), 0);
  EXPECT_GT(attr.orig_attr.max_qp_wr, 1000);
  EXPECT_EQ(attr.odp_caps.general_caps, 0U);
  ibv_port_attr port{};
  EXPECT_EQ(ibv_query_port(verbs, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_GE(verbs->num_comp_vectors, 4);
  ibv_cq_init_attr_ex cq_attr{};
  cq_attr.cqe = 4;
  errno = 0;
  EXPECT_EQ(ibv_create_cq_ex(verbs, &cq_attr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  errno = 0;
  EXPECT_EQ(ibv_alloc_td(verbs, nullptr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_pd* pd = ibv_alloc_pd(verbs);
  ibv_ah_attr ah{};
  errno = 0;
  EXPECT_EQ(ibv_create_ah(pd, &ah), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(ibv_close_device(verbs), 0);
  EXPECT_STREQ(ibv_wc_status_str(IBV_WC_WR_FLUSH_ERR), "Work Request Flushed Error");
  EXPECT_EQ(ibv_rate_to_mbps(IBV_RATE_100_GBPS), 103125);
}

}  // namespace
}  // namespace softrdma_test
