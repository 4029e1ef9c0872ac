// SPDX-License-Identifier: BSD-3-Clause
// What travels, what fails, and in which order it comes back.
#include <arpa/inet.h>

#include "support/fixture.hpp"

namespace sluice::contract {
namespace {

using rpma::ConnectionEvent;

class DataTest : public ContractTest {
 protected:
  void expect_success(CompletionSource& source, ibv_wc_opcode opcode, const std::string& what) {
    const ibv_wc wc = await_completion(source, what);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << what << ": " << ibv_wc_status_str(wc.status);
    EXPECT_EQ(wc.opcode, opcode) << what;
    source.retire(std::span(&wc, 1));
  }
};

TEST_F(DataTest, EverySizeArrivesWhole) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  constexpr std::size_t kLargest = 64 * kMiB;
  const Pair pair = site_.connect(patient(), patient());
  const auto cq = pair.client->main_cq();
  const auto here = site_.memory(kLargest);
  const auto there = site_.memory(kLargest);
  const auto remote = Site::remote(*there);
  EXPECT_EQ(remote->size(), kLargest);
  fill(here->memory(), 1);
  std::uint64_t wr_id = 0;
  for (const std::size_t size : {std::size_t{1}, std::size_t{7}, std::size_t{4095},
                                 std::size_t{65'537}, kMiB + 3, kLargest}) {
    const std::size_t offset = size < kLargest ? 5 : 0;
    std::memset(there->memory().data(), 0, std::min(kLargest, size + 64));
    require(pair.client->write(*remote, offset, here.get(), offset, size, ++wr_id));
    expect_success(*cq, IBV_WC_RDMA_WRITE, "a write of " + std::to_string(size));
    EXPECT_EQ(checksum(there->memory().subspan(offset, size)),
              checksum(here->memory().subspan(offset, size)))
        << size << " bytes written";
    if (offset + size < kLargest) {
      EXPECT_EQ(there->memory()[offset + size], std::byte{0});
    }
  }
  // And back, from memory that only this reads.
  fill(there->memory().first(kMiB), 2);
  for (const std::size_t size : {std::size_t{1}, std::size_t{4097}, kMiB}) {
    require(pair.client->read(here.get(), 0, *remote, kMiB - size, size, ++wr_id));
    expect_success(*cq, IBV_WC_RDMA_READ, "a read of " + std::to_string(size));
    EXPECT_EQ(checksum(here->memory().first(size)),
              checksum(there->memory().subspan(kMiB - size, size)))
        << size << " bytes read";
  }
  EXPECT_EQ(pair.client->send_credits().outstanding(), 0U);
}

TEST_F(DataTest, MessagesOfEverySizeArriveWhole) {
  constexpr std::uint32_t kLargest = 1U << 20;
  const Pair pair = site_.connect(patient(), patient());
  ReceivePool* const pool = require(pair.server->stock(2, kLargest));
  const auto message = site_.memory(kLargest);
  fill(message->memory(), 3);
  for (const std::uint32_t size : {0U, 1U, 63U, 4096U, 100'000U, kLargest}) {
    require(pair.client->send(size == 0 ? nullptr : message.get(), 0, size, size));
    expect_success(*pair.client->main_cq(), IBV_WC_SEND, "a send");
    const ibv_wc wc = await_completion(*pair.server->receive_cq(), "the message");
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_RECV);
    EXPECT_EQ(wc.byte_len, size);
    const ReceivedBuffer buffer = pool->take(wc);
    ASSERT_EQ(buffer.bytes().size(), size);
    EXPECT_EQ(checksum(buffer.bytes()), checksum(message->memory().first(size)));
  }
}

TEST_F(DataTest, ImmediateDataAtomicWriteAndFlush) {
  const Pair pair = site_.connect(patient(), patient());
  ReceivePool* const pool = require(pair.server->stock(4, 64));
  const auto here = site_.memory(4096);
  const auto there = site_.memory(4096);
  const auto remote = Site::remote(*there);
  const auto cq = pair.client->main_cq();
  fill(here->memory(), 4);

  require(pair.client->send_with_imm(here.get(), 0, 16, 0x1234, 1));
  expect_success(*cq, IBV_WC_SEND, "a send with immediate");
  ibv_wc wc = await_completion(*pair.server->receive_cq(), "its message");
  EXPECT_EQ(wc.opcode, IBV_WC_RECV);
  EXPECT_NE(wc.wc_flags & IBV_WC_WITH_IMM, 0U);
  EXPECT_EQ(ntohl(wc.imm_data), 0x1234U);
  EXPECT_EQ(pool->take(wc).bytes().size(), 16U);

  require(pair.client->write_with_imm(*remote, 0, here.get(), 0, 100, 0xabcd, 2));
  expect_success(*cq, IBV_WC_RDMA_WRITE, "a write with immediate");
  wc = await_completion(*pair.server->receive_cq(), "its notice");
  EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(ntohl(wc.imm_data), 0xabcdU);
  EXPECT_TRUE(pool->take(wc).bytes().empty());
  EXPECT_EQ(checksum(there->memory().first(100)), checksum(here->memory().first(100)));

  const std::byte value[8] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4},
                              std::byte{5}, std::byte{6}, std::byte{7}, std::byte{8}};
  require(pair.client->atomic_write(*remote, 512, value, 3));
  expect_success(*cq, IBV_WC_RDMA_WRITE, "an atomic write");
  EXPECT_EQ(std::memcmp(there->memory().data() + 512, value, 8), 0);
  EXPECT_EQ(pair.client->atomic_write(*remote, 513, value, 3).code(), StatusCode::invalid_argument);

  require(pair.client->flush(*remote, 0, 4096, RPMA_FLUSH_TYPE_VISIBILITY, 4));
  wc = await_completion(*cq, "a flush");
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wr_id, 4U);
  const Status refused = pair.client->flush(*remote, 0, 4096, RPMA_FLUSH_TYPE_PERSISTENT, 5);
  EXPECT_EQ(refused.code(), StatusCode::not_supported) << refused.to_string();
}

TEST_F(DataTest, AnUnsignalledSendIsRetiredByTheNextSignalledOne) {
  const Pair pair = site_.connect(patient(), patient(8));
  (void)require(pair.server->stock(128, 64));
  const auto cq = pair.client->main_cq();
  for (int round = 0; round < 5; ++round) {
    for (std::uint64_t i = 0; i < 3; ++i) {
      require(pair.client->send(nullptr, 0, 0, i, false));
    }
    require(pair.client->send(nullptr, 0, 0, 3, true));
    EXPECT_EQ(pair.client->send_credits().outstanding(), 4U);
    const ibv_wc wc = await_completion(*cq, "the signalled send");
    EXPECT_EQ(wc.wr_id, 3U);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    cq->retire(std::span(&wc, 1));
    EXPECT_EQ(pair.client->send_credits().outstanding(), 0U);
  }
  ibv_wc none;
  EXPECT_EQ(cq->poll(std::span(&none, 1)).count, 0U);
}

TEST_F(DataTest, AReceiveOnACqOfBothRetiresNoSend) {
  rpma::ConnectionConfig both = patient();
  both.receive_cq_size = 0;
  const Pair pair = site_.connect(both, patient());
  ReceivePool* const pool = require(pair.server->stock(4, 64));
  const auto cq = pair.server->main_cq();
  require(pair.server->send(nullptr, 0, 0, 1));  // no receive there: it stays
  require(pair.client->send(nullptr, 0, 0, 2));
  const ibv_wc wc = await_completion(*cq, "the message");
  ASSERT_TRUE(pool->owns(wc.wr_id));
  (void)pool->take(wc);
  cq->retire(std::span(&wc, 1));
  EXPECT_EQ(pair.server->send_credits().outstanding(), 1U);
}

TEST_F(DataTest, SendsBeyondTheCreditsAreRefusedAndNothingIsLost) {
  constexpr std::uint32_t kCredits = 8;
  const Pair pair = site_.connect(patient(), patient(kCredits));
  (void)require(pair.server->stock(64, 64));
  const auto cq = pair.client->main_cq();
  for (std::uint32_t i = 0; i < kCredits - 1; ++i) {
    require(pair.client->send(nullptr, 0, 0, i, false));
  }
  // The last credit is for a signalled request: nothing would retire an unsignalled one.
  EXPECT_EQ(pair.client->send(nullptr, 0, 0, 7, false).code(), StatusCode::resource_exhausted);
  require(pair.client->send(nullptr, 0, 0, 7, true));
  const Status refused = pair.client->send(nullptr, 0, 0, 8, true);
  EXPECT_EQ(refused.code(), StatusCode::resource_exhausted);
  EXPECT_NE(refused.message().find("8 of 8 send credits"), std::string::npos) << refused.message();
  const ibv_wc wc = await_completion(*cq, "the signalled send");
  EXPECT_EQ(wc.wr_id, 7U);
  cq->retire(std::span(&wc, 1));
  require(pair.client->send(nullptr, 0, 0, 9, true));
  EXPECT_EQ(await_completion(*cq, "the next send").wr_id, 9U);
}

TEST_F(DataTest, AFailedPostGivesItsCreditBack) {
  const Pair pair = site_.connect(patient(), patient(4));
  const auto memory = site_.memory(64);
  // librpma refuses a region with a length but without memory.
  const Status refused = pair.client->send(nullptr, 0, 8, 1);
  EXPECT_EQ(refused.code(), StatusCode::invalid_argument) << refused.to_string();
  EXPECT_NE(refused.message().find("8 bytes"), std::string::npos) << refused.message();
  EXPECT_EQ(refused.rpma_error(), RPMA_E_INVAL);
  EXPECT_EQ(pair.client->send_credits().outstanding(), 0U);
}

// R5: the sender waits, it is not killed.
TEST_F(DataTest, ASendToAnEmptyReceiveQueueWaitsForAReceive) {
  const Pair pair = site_.connect(patient(), patient());
  const auto memory = site_.memory(128);
  const auto cq = pair.client->main_cq();
  const auto receive_cq = pair.server->receive_cq();
  fill(memory->memory().first(64), 5);
  require(pair.client->send(memory.get(), 0, 64, 1));
  for (int i = 0; i < 1000; ++i) {
    ibv_wc wc;
    ASSERT_EQ(cq->poll(std::span(&wc, 1)).count, 0U) << "a send without a receive completed";
    ASSERT_EQ(receive_cq->poll(std::span(&wc, 1)).count, 0U);
  }
  require(pair.server->receive(*memory, 64, 64, 2));
  const ibv_wc received = await_completion(*receive_cq, "the message");
  EXPECT_EQ(received.status, IBV_WC_SUCCESS);
  EXPECT_EQ(received.wr_id, 2U);
  expect_success(*cq, IBV_WC_SEND, "the send that waited");
  EXPECT_EQ(checksum(memory->memory().first(64)), checksum(memory->memory().subspan(64)));
}

TEST_F(DataTest, AMessageLargerThanItsReceiveFailsBothSides) {
  const Pair pair = site_.connect(patient(), patient());
  const auto memory = site_.memory(4096);
  require(pair.server->receive(*memory, 1024, 64, 1));
  fill(memory->memory().first(256), 6);
  require(pair.client->send(memory.get(), 0, 256, 2));
  const ibv_wc sent = await_completion(*pair.client->main_cq(), "the send");
  EXPECT_NE(sent.status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent.wr_id, 2U);
  const ibv_wc received = await_completion(*pair.server->receive_cq(), "the receive");
  EXPECT_NE(received.status, IBV_WC_SUCCESS);
  EXPECT_EQ(received.wr_id, 1U);
  // Nothing beyond the receive was written.
  for (const std::byte byte : memory->memory().subspan(1024 + 64, 256)) {
    ASSERT_EQ(byte, std::byte{0});
  }
  pair.client->main_cq()->retire(std::span(&sent, 1));
  EXPECT_EQ(pair.client->send(memory.get(), 0, 8, 3).code(), StatusCode::connection_lost);
}

// One connection's failure is not that of the SRQ's other connections.
TEST_F(DataTest, AFailedReceiveOfAnSrqIsPostedAgainForTheOthers) {
  rpma::ConnectionConfig config = patient();
  config.srq =
      require(rpma::SharedReceiveQueue::create(site_.peer, {.depth = 4, .receive_cq_size = {}}));
  ReceivePool* const pool = require(config.srq->stock(4, 64));
  const auto source = config.srq->receive_cq();
  const Pair bad = site_.connect(config, patient());
  const Pair good = site_.connect(config, patient());
  const auto memory = site_.memory(256);
  require(bad.client->send(memory.get(), 0, 256, 1));
  const ibv_wc failed = await_completion(*source, "the receive that is too small");
  EXPECT_NE(failed.status, IBV_WC_SUCCESS);
  EXPECT_EQ(failed.qp_num, bad.server->qp_num());
  ASSERT_TRUE(pool->owns(failed.wr_id));
  EXPECT_EQ(pool->posted(), 3U);
  EXPECT_TRUE(pool->take(failed).bytes().empty());
  EXPECT_EQ(pool->posted(), 4U);
  require(pool->last_error());
  for (std::uint64_t i = 0; i < 10; ++i) {
    require(good.client->send(memory.get(), 0, 8, i));
    const ibv_wc wc = await_completion(*source, "a message of the other connection");
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.qp_num, good.server->qp_num());
    EXPECT_EQ(pool->take(wc).bytes().size(), 8U);
    expect_success(*good.client->main_cq(), IBV_WC_SEND, "its send");
  }
}

TEST_F(DataTest, AWrongKeyIsRefusedAndNothingIsWritten) {
  const Pair pair = site_.connect(patient(), patient());
  const auto here = site_.memory(4096);
  const auto there = site_.memory(4096);
  fill(here->memory(), 7);
  // librpma's descriptor: address (8), size (8), rkey (4), usage (1).
  std::vector<std::byte> descriptor = require(there->descriptor());
  ASSERT_GE(descriptor.size(), 20U);
  for (std::size_t i = 16; i < 20; ++i) descriptor[i] ^= std::byte{0x5a};
  const auto wrong = require(rpma::RemoteRegion::from_descriptor(descriptor));
  require(pair.client->write(*wrong, 0, here.get(), 0, 64, 1));
  require(pair.client->write(*Site::remote(*there), 0, here.get(), 0, 64, 2));
  const auto wcs = await_completions(*pair.client->main_cq(), 2, "both writes");
  EXPECT_EQ(wcs[0].wr_id, 1U);
  EXPECT_EQ(wcs[0].status, IBV_WC_REM_ACCESS_ERR) << ibv_wc_status_str(wcs[0].status);
  EXPECT_EQ(wcs[1].wr_id, 2U);
  EXPECT_EQ(wcs[1].status, IBV_WC_WR_FLUSH_ERR) << ibv_wc_status_str(wcs[1].status);
  for (const std::byte byte : there->memory()) ASSERT_EQ(byte, std::byte{0});
}

TEST_F(DataTest, AWriteBeyondTheRegionIsRefused) {
  const Pair pair = site_.connect(patient(), patient());
  const auto here = site_.memory(8192);
  const auto there = site_.memory(8192);
  const auto part = require(
      rpma::MemoryRegion::register_memory(site_.peer, there->memory().first(4096), kAllUsages));
  fill(here->memory(), 8);
  require(pair.client->write(*Site::remote(*part), 4000, here.get(), 0, 200, 1));
  const ibv_wc wc = await_completion(*pair.client->main_cq(), "the write");
  EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR) << ibv_wc_status_str(wc.status);
  for (const std::byte byte : there->memory().subspan(4096)) ASSERT_EQ(byte, std::byte{0});
}

TEST_F(DataTest, ADescriptorThatIsNoneIsRefused) {
  const std::vector<std::byte> rubbish(5);
  const auto region = rpma::RemoteRegion::from_descriptor(rubbish);
  ASSERT_FALSE(region.ok());
  EXPECT_EQ(region.status().code(), StatusCode::invalid_argument) << region.status().to_string();
  EXPECT_NE(region.status().message().find("5 bytes"), std::string::npos);
}

// What was posted comes back in the order of its queue, all of it.
TEST_F(DataTest, TheFlushOfAFailedQueuePairKeepsTheOrder) {
  constexpr std::uint32_t kSends = 20;
  const Pair pair = site_.connect(patient(), patient());
  const auto memory = site_.memory(4096);
  for (std::uint64_t i = 0; i < 20; ++i)
    require(pair.client->receive(*memory, i * 64, 64, 100 + i));
  // No receive on the other side: none of these can complete.
  for (std::uint64_t i = 0; i < kSends; ++i) {
    require(pair.client->send(memory.get(), 0, 8, i, i % 3 == 0 || i == kSends - 1));
  }
  require(pair.client->disconnect());
  // Unsignalled ones are flushed as well: a failure is always told.
  const auto sent = await_completions(*pair.client->main_cq(), kSends, "the flushed sends");
  for (std::uint64_t i = 0; i < kSends; ++i) {
    EXPECT_EQ(sent[i].wr_id, i);
    EXPECT_NE(sent[i].status, IBV_WC_SUCCESS);
    EXPECT_EQ(sent[i].qp_num, pair.client->qp_num());
  }
  const auto received = await_completions(*pair.client->receive_cq(), 20, "the flushed receives");
  for (std::uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(received[i].wr_id, 100 + i);
    EXPECT_EQ(received[i].status, IBV_WC_WR_FLUSH_ERR);
  }
}

TEST_F(DataTest, AFlushedReceivePoolStopsPosting) {
  const Pair pair = site_.connect(patient(), patient());
  ReceivePool* const pool = require(pair.server->stock(8, 64));
  require(pair.server->disconnect());
  const auto wcs = await_completions(*pair.server->receive_cq(), 8, "the flushed receives");
  for (const ibv_wc& wc : wcs) {
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    ASSERT_TRUE(pool->owns(wc.wr_id));
    EXPECT_TRUE(pool->take(wc).bytes().empty());
  }
  EXPECT_EQ(pool->posted(), 0U);
  EXPECT_EQ(pool->on_loan(), 0U);
  EXPECT_EQ(pool->kept(), 8U);
  ibv_wc none;
  EXPECT_EQ(pair.server->receive_cq()->poll(std::span(&none, 1)).count, 0U);
}

}  // namespace
}  // namespace sluice::contract
