// SPDX-License-Identifier: BSD-3-Clause
// Admission, shared receive queues, overflow.
#include <fcntl.h>

#include <map>
#include <optional>

#include "sluice/core/verbs/cq_group.hpp"
#include "support/async_events.hpp"
#include "support/raw_link.hpp"

namespace sluice::contract {
namespace {

using rpma::ConnectionEvent;

class CapacityTest : public ContractTest {
 protected:
  std::shared_ptr<rpma::SharedReceiveQueue> srq(std::uint32_t depth,
                                                std::optional<std::uint32_t> receive_cq = {}) {
    return require(rpma::SharedReceiveQueue::create(
        site_.peer, {.depth = depth, .receive_cq_size = receive_cq}));
  }
};

// E2.
TEST_F(CapacityTest, AConnectionWhoseWorstCaseDoesNotFitIsRefusedBeforeItConnects) {
  std::string port;
  const auto endpoint = site_.listen(port);
  rpma::ConnectionConfig config = patient(64, 64);
  config.cq_size = 64;  // the drain marker makes it 65
  const auto request = rpma::ConnectionRequest::connect_to(site_.peer, site_.address, port, config);
  ASSERT_FALSE(request.ok());
  EXPECT_EQ(request.status().code(), StatusCode::does_not_fit) << request.status().to_string();
  EXPECT_NE(request.status().message().find("fit with 65"), std::string::npos)
      << request.status().message();
  EXPECT_EQ(endpoint->next_request(patient()).status().code(), StatusCode::no_completion);

  // The accepting side too, and the request is still there for one that fits.
  auto client = require(site_.ask(port, patient()).connect());
  await_readable(endpoint->fd(), "the endpoint");
  EXPECT_EQ(endpoint->next_request(config).status().code(), StatusCode::does_not_fit);
  config.cq_size = 65;
  auto server = require(await_request(*endpoint, config).connect());
  await_event(*client, ConnectionEvent::established);
  await_event(*server, ConnectionEvent::established);
}

TEST_F(CapacityTest, AnSrqTakesNoMoreReceivesThanItsCqHolds) {
  const auto too_small =
      rpma::SharedReceiveQueue::create(site_.peer, {.depth = 64, .receive_cq_size = 32});
  ASSERT_FALSE(too_small.ok());
  EXPECT_EQ(too_small.status().code(), StatusCode::does_not_fit);

  const auto queue = srq(16);
  const auto refused = queue->stock(17, 64);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::does_not_fit) << refused.status().to_string();
  EXPECT_EQ(queue->receive_ledger()->reserved(), 0U);
  (void)require(queue->stock(16, 64));
  EXPECT_EQ(queue->receive_ledger()->reserved(), 16U);
  EXPECT_EQ(queue->stock(1, 64).status().code(), StatusCode::invalid_argument);
}

TEST_F(CapacityTest, AConnectionWithAnSrqThatHasACqHasNoReceiveCqOfItsOwn) {
  rpma::ConnectionConfig config = patient();
  config.srq = srq(16);
  const Pair pair = site_.connect(config, patient());
  EXPECT_EQ(pair.server->receive_cq(), nullptr);
  EXPECT_EQ(pair.server->stock(4, 64).status().code(), StatusCode::invalid_argument);
  const auto memory = site_.memory(64);
  EXPECT_EQ(pair.server->receive(*memory, 0, 64, 1).code(), StatusCode::invalid_argument);
  config.receive_cq_size = 16;
  EXPECT_EQ(config.sizes().status().code(), StatusCode::invalid_argument);
}

TEST_F(CapacityTest, AnSrqServes32Connections) {
  constexpr std::uint32_t kConnections = 32;
  constexpr std::uint32_t kMessages = 12;
  constexpr std::uint32_t kDepth = 64;  // fewer than what is sent at once: it is reposted or waits
  rpma::ConnectionConfig config = patient(16, 16);
  config.srq = srq(kDepth);
  ReceivePool* const pool = require(config.srq->stock(kDepth, 64));
  std::vector<Pair> pairs;
  std::map<std::uint32_t, std::uint32_t> index;
  for (std::uint32_t i = 0; i < kConnections; ++i) {
    pairs.push_back(site_.connect(config, patient(16, 16)));
    index[pairs.back().server->qp_num()] = i;
  }
  ASSERT_EQ(index.size(), kConnections);

  struct Message {
    std::uint32_t connection;
    std::uint32_t sequence;
  };
  const auto memory = site_.memory(kConnections * kMessages * sizeof(Message));
  for (std::uint32_t m = 0; m < kMessages; ++m) {
    for (std::uint32_t c = 0; c < kConnections; ++c) {
      const std::size_t offset = (m * kConnections + c) * sizeof(Message);
      const Message message{c, m};
      std::memcpy(memory->memory().data() + offset, &message, sizeof message);
      require(pairs[c].client->send(memory.get(), offset, sizeof message, m, m == kMessages - 1));
    }
  }
  std::vector<std::uint32_t> next(kConnections, 0);
  const auto source = config.srq->receive_cq();
  Collector collector(*source);
  collector.collect(std::size_t{kConnections} * kMessages, [&](const ibv_wc& wc) {
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
    const ReceivedBuffer buffer = pool->take(wc);
    Message message{};
    ASSERT_EQ(buffer.bytes().size(), sizeof message);
    std::memcpy(&message, buffer.bytes().data(), sizeof message);
    ASSERT_EQ(message.connection, index.at(wc.qp_num));
    ASSERT_EQ(message.sequence, next[message.connection]) << "of connection " << message.connection;
    ++next[message.connection];
  });
  for (const Pair& pair : pairs) {
    const ibv_wc wc = await_completion(*pair.client->main_cq(), "the last send");
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    pair.client->main_cq()->retire(std::span(&wc, 1));
    EXPECT_EQ(pair.client->send_credits().outstanding(), 0U);
  }
  EXPECT_EQ(pool->posted(), kDepth);
}

TEST_F(CapacityTest, ReceivesOfAnSrqWithoutACqCompleteOnEachConnection) {
  const auto queue = srq(16, 0);
  EXPECT_EQ(queue->receive_cq(), nullptr);
  EXPECT_EQ(queue->receive_ledger(), nullptr);
  // No ledger counts for it, and the provider would take more: its depth is the bound.
  EXPECT_EQ(queue->stock(17, 64).status().code(), StatusCode::does_not_fit);
  ReceivePool* const pool = require(queue->stock(16, 64));
  rpma::ConnectionConfig own = patient();
  own.srq = queue;
  // All receives of the SRQ may complete on one connection.
  EXPECT_EQ(own.sizes()->receive_cq, 16U);
  rpma::ConnectionConfig mixed = own;
  mixed.receive_cq_size = 0;
  EXPECT_EQ(mixed.sizes()->cq, 128U + 1 + 16);
  rpma::ConnectionConfig small = own;
  small.receive_cq_size = 15;
  EXPECT_EQ(small.sizes().status().code(), StatusCode::does_not_fit);

  const Pair one = site_.connect(own, patient());
  const Pair two = site_.connect(mixed, patient());
  ASSERT_NE(one.server->receive_cq(), nullptr);
  EXPECT_EQ(two.server->receive_cq(), nullptr);
  for (std::uint64_t i = 0; i < 20; ++i) {
    for (const auto& [pair, source] :
         {std::pair(&one, one.server->receive_cq()), std::pair(&two, two.server->main_cq())}) {
      require(pair->client->send(nullptr, 0, 0, i));
      const ibv_wc wc = await_completion(*source, "the message");
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.qp_num, pair->server->qp_num());
      EXPECT_EQ(pool->posted(), 15U);
      source->retire(std::span(&wc, 1));
      (void)pool->take(wc);
      const ibv_wc sent = await_completion(*pair->client->main_cq(), "the send");
      pair->client->main_cq()->retire(std::span(&sent, 1));
    }
  }
  EXPECT_EQ(pool->posted(), 16U);
}

TEST_F(CapacityTest, AConnectionTakesNoMoreReceivesThanItsQueueWasMadeFor) {
  const Pair pair = site_.connect(patient(16, 8), patient());
  EXPECT_EQ(pair.server->stock(9, 64).status().code(), StatusCode::does_not_fit);
  const auto memory = site_.memory(64);
  require(pair.server->receive(*memory, 0, 64, 1));
  EXPECT_EQ(pair.server->stock(8, 64).status().code(), StatusCode::does_not_fit);
  (void)require(pair.server->stock(7, 64));
  // Providers round up and would take more: 8 become 15 on rxe.
  EXPECT_EQ(pair.server->receive(*memory, 0, 64, 2).code(), StatusCode::resource_exhausted);
}

// R5.
TEST_F(CapacityTest, LowWaterIsReportedOnceEachTimeTheReceivesRunLow) {
  rpma::ConnectionConfig config = patient();
  config.srq = srq(8);
  std::vector<std::uint32_t> reports;
  ReceivePoolConfig options;
  options.low_water = 3;
  options.on_low_water = [&](std::uint32_t posted) { reports.push_back(posted); };
  ReceivePool* const pool = require(config.srq->stock(8, 64, options));
  const Pair pair = site_.connect(config, patient());
  const auto source = config.srq->receive_cq();
  for (int round = 1; round <= 2; ++round) {
    std::vector<ReceivedBuffer> held;
    for (std::uint64_t i = 0; i < 7; ++i) {
      require(pair.client->send(nullptr, 0, 0, i));
      held.push_back(pool->take(await_completion(*source, "a message")));
    }
    EXPECT_EQ(pool->posted(), 1U);
    EXPECT_EQ(pool->on_loan(), 7U);
    EXPECT_EQ(reports, std::vector<std::uint32_t>(static_cast<std::size_t>(round), 2));
    held.clear();
    EXPECT_EQ(pool->posted(), 8U);
  }
  EXPECT_EQ(pool->low_water_events(), 2U);
}

// E2, E5: what happens to those who do not count.
TEST_F(CapacityTest, AnOverflowingCqIsSeenAsAnAsynchronousEvent) {
  AsyncEvents events(site_.peer->context());
  auto group = require(verbs::CqGroup::create(site_.peer->context(),
                                              {.cq_count = 1,
                                               .cq_size = 4,
                                               .completion_vectors = {},
                                               .solicited_only = false,
                                               .ack_batch = 64},
                                              "small"));
  rpma::ConnectionConfig server = patient(8, 128);
  RawLink link(site_, {.send_cq = group->cq(0), .receive_cq = group->cq(0)});
  link.connect(server);
  (void)require(link.server().stock(120, 64));
  for (std::uint64_t i = 0; i < 100; ++i) link.send(0, 8, i);
  EXPECT_EQ(events.await_cq_error(), group->cq(0));
}

}  // namespace
}  // namespace sluice::contract
