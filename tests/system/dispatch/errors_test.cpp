// SPDX-License-Identifier: BSD-3-Clause
// A CQ that overflows, a receive queue that runs dry.
#include "support.hpp"

namespace sluice::system_test {
namespace {

ConnectionOptions handled_by(std::function<void(std::span<const ibv_wc>)> handle) {
  ConnectionOptions options;
  options.handler = [handle = std::make_shared<decltype(handle)>(std::move(handle))](
                        std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
    if (*handle) (*handle)(batch);
  };
  return options;
}

// E5. The server's poller is not run while more receives are posted, past all credits, than its
// receive CQ holds.
TEST(Errors, AnOverflowingCqIsToldAndTakesItsConnectionDown) {
  Site site;
  Node::Options options;
  options.drive = Drive::host;
  Node server(options), client;
  std::atomic<std::uint32_t> ends{0};
  Acceptor acceptor(site, *server, patient(8, 8), [&](std::uint32_t) {
    ConnectionOptions mine = handled_by({});
    mine.on_event = [&](ConnectionId, rpma::ConnectionEvent) { ++ends; };
    return std::optional<ConnectionOptions>(std::move(mine));
  });
  std::shared_ptr<ConnectionHandle> client_end;
  std::thread connecting([&] {
    client_end =
        require(connect(site, *client, acceptor.port(), 0, handled_by({}), patient(128, 8)));
  });
  await("the accept", [&] {
    server->control().run_once();
    return acceptor.connected() == 1;
  });
  connecting.join();
  const auto server_end = acceptor.any();
  const auto landing = site.memory(64);
  std::uint32_t sent = 0;
  await("the CQ error", [&] {
    for (int i = 0; i < 4; ++i) {
      (void)::rpma_recv(server_end->connection().get(), landing->get(), 0, 64, nullptr);
    }
    if (client_end->connection().send_with_imm(nullptr, 0, 0, sent, sent).ok()) ++sent;
    server->control().run_once();
    return server.async_events(IBV_EVENT_CQ_ERR) >= 1;  // rxe tells of each lost completion
  });
  await("the failed source being told and the connection's end", [&] {
    server->poller(0).run_once();
    server->worker(0).run_once();
    server->control().run_once();
    return server.failed_sources == 1 && ends == 1;
  });
  EXPECT_TRUE(server_end->down());
  EXPECT_EQ(server.sum(&PollerCounters::failed_sources), 1u);
  bool over = false;
  server_end->detach_async(kDrainPatience, [&](const DetachReport&) { over = true; });
  await("the detach", [&] {
    server->poller(0).run_once();
    server->worker(0).run_once();
    server->control().run_once();
    return over;
  });
  EXPECT_EQ(ends, 1u);
  // The client's requests may be stuck in the network; its own queue pair can be drained all the
  // same.
  detach_clean(*client_end);
}

// R5.
TEST(Errors, WhenHandlersHoldTheBuffersTheSenderIsSlowedAndNotKilled) {
  constexpr std::uint32_t kDepth = 32;
  constexpr std::uint32_t kMessages = 3 * kDepth;
  Site site;
  Node server, client;
  const auto srq = require(
      rpma::SharedReceiveQueue::create(site.peer, {.depth = kDepth, .receive_cq_size = {}}));
  std::atomic<std::uint32_t> low{0};
  std::atomic<std::uint32_t> left_when_low{~0U};
  ReceivePoolConfig pool_config;
  pool_config.low_water = 8;
  pool_config.on_low_water = [&](std::uint32_t posted) {
    left_when_low = posted;
    ++low;
  };
  ReceivePool* const pool = require(srq->stock(kDepth, 64, std::move(pool_config)));

  std::mutex mutex;
  std::vector<ReceivedBuffer> held;
  bool hold = true;
  std::atomic<std::uint32_t> taken{0};
  std::atomic<std::uint32_t> bad{0};
  AttachOptions attach;
  attach.receive_pool = pool;
  const auto source = require(server->attach(
      srq->receive_cq(), attach, [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
        for (const ibv_wc& wc : batch) {
          if (wc.status != IBV_WC_SUCCESS) ++bad;
          ReceivedBuffer buffer = pool->take(wc);
          const std::scoped_lock lock(mutex);
          if (hold) held.push_back(std::move(buffer));
          ++taken;
        }
      }));
  rpma::ConnectionConfig config = patient();
  config.srq = srq;
  Acceptor acceptor(site, *server, config, [&](std::uint32_t) {
    ConnectionOptions options = handled_by({});
    options.receive_source = source;
    return std::optional<ConnectionOptions>(std::move(options));
  });
  std::atomic<std::uint32_t> completed{0};
  std::atomic<std::uint32_t> failed{0};
  const auto sender = require(
      connect(site, *client, acceptor.port(), 0, handled_by([&](std::span<const ibv_wc> wcs) {
                for (const ibv_wc& wc : wcs) ++(wc.status == IBV_WC_SUCCESS ? completed : failed);
              })));
  acceptor.await_connected(1);
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    require(sender->connection().send_with_imm(nullptr, 0, 0, i, i));
  }
  await("the queue running dry", [&] { return taken == kDepth; });
  EXPECT_EQ(pool->posted(), 0u);
  EXPECT_EQ(pool->on_loan(), kDepth);
  EXPECT_EQ(low, 1u);
  EXPECT_LT(left_when_low, 8u);
  EXPECT_EQ(pool->low_water_events(), 1u);
  EXPECT_LE(completed, kDepth);
  EXPECT_FALSE(sender->down());
  {
    const std::scoped_lock lock(mutex);
    hold = false;
    held.clear();
  }
  await("the rest", [&] { return taken == kMessages && completed == kMessages; });
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(bad, 0u);
  EXPECT_FALSE(sender->down());
  await("the buffers", [&] { return pool->posted() == kDepth; });
  acceptor.close();
  detach_clean(*sender);
  detach_clean(*acceptor.any());
}

}  // namespace
}  // namespace sluice::system_test
