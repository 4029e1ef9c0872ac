// SPDX-License-Identifier: BSD-3-Clause
// Ending a connection without losing a completion (C6).
#include "support/async_events.hpp"
#include "support/fixture.hpp"

namespace sluice::contract {
namespace {

using rpma::ConnectionEvent;

/// How long LAST_WQE_REACHED may take where the device sends it.
constexpr std::chrono::milliseconds kSoftrdmaGrace{30'000};
constexpr std::chrono::milliseconds kKernelGrace{500};

class DrainTest : public ContractTest {};

TEST_F(DrainTest, TheMarkerIsTheLastCompletionOfTheSendQueue) {
  const Pair pair = site_.connect(patient(), patient());
  const auto cq = pair.client->main_cq();
  for (std::uint64_t i = 1; i <= 5; ++i) {
    require(pair.client->send(nullptr, 0, 0, i, i % 2 == 0));  // no receive: they stay
  }
  require(pair.client->disconnect());
  require(pair.client->post_drain_marker());
  // From here on nobody else gets in.
  EXPECT_EQ(pair.client->send(nullptr, 0, 0, 6).code(), StatusCode::connection_lost);
  EXPECT_EQ(pair.client->post_drain_marker().code(), StatusCode::invalid_argument);
  const auto wcs = await_completions(*cq, 6, "the flushed sends and the marker");
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(wcs[i].wr_id, i + 1);
  EXPECT_EQ(wcs[5].wr_id, pair.client->drain_marker_id());
  EXPECT_EQ(wcs[5].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(pair.client->send_credits().outstanding(), 5U);
  cq->retire(wcs);
  EXPECT_EQ(pair.client->send_credits().outstanding(), 0U);
  ibv_wc none;
  EXPECT_EQ(cq->poll(std::span(&none, 1)).count, 0U);
}

TEST_F(DrainTest, TheMarkerHasACreditOfItsOwn) {
  const Pair pair = site_.connect(patient(), patient(4));
  for (std::uint64_t i = 0; i < 4; ++i) require(pair.client->send(nullptr, 0, 0, i));
  require(pair.client->post_drain_marker());
  require(pair.client->disconnect());
  const auto wcs = await_completions(*pair.client->main_cq(), 5, "four sends and the marker");
  EXPECT_EQ(wcs.back().wr_id, pair.client->drain_marker_id());
}

TEST_F(DrainTest, TheMarkerOfAnUndisturbedQueuePairCompletesWithSuccess) {
  const Pair pair = site_.connect(patient(), patient());
  (void)require(pair.server->stock(4, 64));
  require(pair.client->post_drain_marker());
  const ibv_wc wc = await_completion(*pair.client->main_cq(), "the marker");
  EXPECT_EQ(wc.wr_id, pair.client->drain_marker_id());
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  pair.client->main_cq()->retire(std::span(&wc, 1));
  EXPECT_EQ(pair.client->send_credits().outstanding(), 0U);
}

TEST_F(DrainTest, WithoutAnSrqEachReceiveComesBackFlushed) {
  const Pair pair = site_.connect(patient(16, 16), patient());
  ReceivePool* const pool = require(pair.server->stock(16, 64));
  require(pair.server->disconnect());
  require(pair.server->post_drain_marker());
  EXPECT_EQ(await_completion(*pair.server->main_cq(), "the marker").wr_id,
            pair.server->drain_marker_id());
  const auto wcs = await_completions(*pair.server->receive_cq(), 16, "the flushed receives");
  for (const ibv_wc& wc : wcs) EXPECT_TRUE(pool->owns(wc.wr_id));
}

// softrdma sends LAST_WQE_REACHED; rxe does not: the drain ends with its grace.
TEST_F(DrainTest, WithAnSrqTheLastWqeEventEndsTheDrainWhereTheDeviceSendsIt) {
  AsyncEvents events(site_.peer->context());
  rpma::ConnectionConfig config = patient();
  config.srq =
      require(rpma::SharedReceiveQueue::create(site_.peer, {.depth = 16, .receive_cq_size = {}}));
  ReceivePool* const pool = require(config.srq->stock(16, 64));
  const auto source = config.srq->receive_cq();
  const Pair leaving = site_.connect(config, patient());
  const Pair staying = site_.connect(config, patient());
  constexpr std::uint64_t kMessages = 10;
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    require(leaving.client->send(nullptr, 0, 0, i, i == kMessages - 1));
  }
  (void)await_completion(*leaving.client->main_cq(), "the last send");

  require(leaving.server->disconnect());
  require(leaving.server->post_drain_marker());
  EXPECT_EQ(await_completion(*leaving.server->main_cq(), "the marker").wr_id,
            leaving.server->drain_marker_id());
  const bool came = events.last_wqe_reached(leaving.server->qp_num(),
                                            on_softrdma() ? kSoftrdmaGrace : kKernelGrace);
  if (on_softrdma()) {
    EXPECT_TRUE(came);
  }
  RecordProperty("last_wqe_reached", came ? "yes" : "no");

  // Either way: all that arrived is in the SRQ's CQ, and the SRQ's receives are not flushed.
  for (const ibv_wc& wc : await_completions(*source, kMessages, "what was sent")) {
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.qp_num, leaving.server->qp_num());
    (void)pool->take(wc);
  }
  ibv_wc wc;
  EXPECT_EQ(source->poll(std::span(&wc, 1)).count, 0U);
  EXPECT_EQ(pool->posted(), 16U);
  // The other connection goes on.
  require(staying.client->send(nullptr, 0, 0, 1));
  wc = await_completion(*source, "a message of the other connection");
  EXPECT_EQ(wc.qp_num, staying.server->qp_num());
  (void)pool->take(wc);
}

}  // namespace
}  // namespace sluice::contract
