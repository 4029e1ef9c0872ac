// SPDX-License-Identifier: BSD-3-Clause
// Sleeping pollers: nothing is lost, nothing burns, everything ends.
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support.hpp"

namespace sluice::system_test {
namespace {

/// One connection, the server's end on a shared channel, both handled by streams.
class Waiting : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kWindow = 32;

  void connect_one(const rpma::ConnectionConfig& server_config) {
    memory_ = site_.memory(std::size_t{2} * kWindow * kMessageSize);
    up_.use(memory_, 0, kWindow);
    down_.use(memory_, std::size_t{kWindow} * kMessageSize, kWindow);
    acceptor_ = std::make_unique<Acceptor>(site_, *server_, server_config, [this](std::uint32_t) {
      ConnectionOptions options;
      options.handler = [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
        const Stream::Call call(up_);
        for (const ibv_wc& wc : batch) {
          ReceivePool* const pool = server_pool_;
          if (pool != nullptr && pool->owns(wc.wr_id)) {
            up_.receive(*pool, wc);
          } else {
            down_.note(wc);
          }
        }
      };
      return std::optional<ConnectionOptions>(std::move(options));
    });
    ConnectionOptions options;
    options.handler = [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
      const Stream::Call call(down_);
      for (const ibv_wc& wc : batch) {
        ReceivePool* const pool = client_pool_;
        if (pool != nullptr && pool->owns(wc.wr_id)) {
          down_.receive(*pool, wc);
        } else {
          up_.note(wc);
        }
      }
    };
    client_end_ = require(connect(site_, *client_, acceptor_->port(), 0, std::move(options),
                                  patient(kWindow, kWindow)));
    client_pool_ = require(client_end_->connection().stock(kWindow, 64));
    acceptor_->await_connected(1);
    server_end_ = acceptor_->any();
    server_pool_ = require(server_end_->connection().stock(kWindow, 64));
  }

  void TearDown() override {
    acceptor_.reset();
    if (client_end_) detach_clean(*client_end_);
    if (server_end_) detach_clean(*server_end_);
    EXPECT_EQ(up_.out_of_order + up_.strange + up_.overlaps, 0u);
    EXPECT_EQ(down_.out_of_order + down_.strange + down_.overlaps, 0u);
    client_.reset();
    server_.reset();
  }

  /// Until the server's poller has nothing hot and has gone to sleep once more since.
  void await_asleep(Node& node) {
    const std::uint64_t sleeps = node.sum(&PollerCounters::sleeps);
    const auto all_cold = [&] { return node.sum(&PollerCounters::hot_sources) == 0; };
    await("the poller going to sleep", [&] {
      return all_cold() && (node.sum(&PollerCounters::sleeps) > sleeps ||
                            node.sum(&PollerCounters::sleeps) > node.sum(&PollerCounters::wakes));
    });
  }

  Site site_;
  Node server_, client_;
  Stream up_{1}, down_{2};
  std::shared_ptr<rpma::MemoryRegion> memory_;
  std::atomic<ReceivePool*> server_pool_{nullptr}, client_pool_{nullptr};
  std::unique_ptr<Acceptor> acceptor_;
  std::shared_ptr<ConnectionHandle> client_end_, server_end_;
};

rpma::ConnectionConfig shared_channel() {
  rpma::ConnectionConfig config = patient(32, 32);
  config.shared_channel = true;
  return config;
}

// W3, W6: the CQ and the receive CQ of one channel take turns; each completion has to wake a poller
// that sleeps.
TEST_F(Waiting, EitherCqOfASharedChannelWakesTheSleepingPoller) {
  connect_one(shared_channel());
  constexpr std::uint32_t kTurns = 100;
  for (std::uint32_t turn = 0; turn < kTurns; ++turn) {
    SCOPED_TRACE("turn " + std::to_string(turn));
    await_asleep(server_);
    if (turn % 2 == 0) {
      up_.send(client_end_->connection(), 1);  // completes on the server's receive CQ
    } else {
      down_.send(server_end_->connection(), 1);  // completes on the server's CQ
    }
    await("the completion",
          [&] { return up_.received == turn / 2 + 1 && down_.completed_sends == (turn + 1) / 2; });
  }
  // Each woke it by an event of its own; the last one is taken when the source turns cold again.
  await("the last event", [&] { return server_.sum(&PollerCounters::events) >= kTurns; });
}

// W3, W6: the same CQ again and again, then the other, then both at once.
TEST_F(Waiting, ACqThatHasBeenQuietForLongStillWakesThePoller) {
  connect_one(shared_channel());
  std::uint32_t ups = 0;
  std::uint32_t downs = 0;
  const auto arrived = [&] { return up_.received == ups && down_.completed_sends == downs; };
  for (std::uint32_t round = 0; round < 8; ++round) {
    for (std::uint32_t i = 0; i < 6; ++i) {
      await_asleep(server_);
      up_.send(client_end_->connection(), 1);
      ++ups;
      await("a receive", arrived);
    }
    await_asleep(server_);
    down_.send(server_end_->connection(), 1);
    ++downs;
    await("a send", arrived);
    await_asleep(server_);
    up_.send(client_end_->connection(), 3);
    down_.send(server_end_->connection(), 3);
    ups += 3;
    downs += 3;
    await("both", arrived);
  }
}

// W4, W5: bursts beyond the poll budget, of every size, onto a poller that sleeps or is about to.
TEST_F(Waiting, BurstsOfEverySizeArriveWhole) {
  connect_one(patient(kWindow, kWindow));
  std::uint32_t total = 0;
  for (std::uint32_t size = 1; size <= 2 * kWindow; size += 3) {
    if (size % 2 == 0) await_asleep(server_);
    up_.send(client_end_->connection(), size);
    total += size;
    await("a burst of " + std::to_string(size), [&] { return up_.received == total; });
  }
}

// W7.
TEST_F(Waiting, SignalsInterruptTheWaitAndNothingIsLost) {
  struct sigaction action {};
  struct sigaction before {};
  static std::atomic<std::uint32_t> caught{0};
  caught = 0;
  action.sa_handler = [](int) { ++caught; };
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);  // no SA_RESTART
  connect_one(shared_channel());
  const std::vector<int> pollers = threads_named("sluice-poll-");
  ASSERT_EQ(pollers.size(), 2u);
  const std::vector<int> controls = threads_named("sluice-control");
  std::atomic<bool> stop{false};
  std::thread hammer([&] {
    while (!stop) {
      for (const int id : pollers) ::syscall(SYS_tgkill, ::getpid(), id, SIGUSR1);
      for (const int id : controls) ::syscall(SYS_tgkill, ::getpid(), id, SIGUSR1);
      ::poll(nullptr, 0, 1);  // a rhythm, not a synchronisation
    }
  });
  constexpr std::uint32_t kMessages = 300;
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    up_.send(client_end_->connection(), 1);
    if (i % 3 == 0) down_.send(server_end_->connection(), 1);
    await("a message", [&] { return up_.received == i + 1 && down_.received == i / 3 + 1; });
  }
  await("a few signals", [&] { return caught > 100; });
  // Detached under fire, too.
  acceptor_.reset();
  detach_clean(*std::exchange(client_end_, nullptr));
  detach_clean(*std::exchange(server_end_, nullptr));
  stop = true;
  hammer.join();
  ::sigaction(SIGUSR1, &before, nullptr);
}

// W9.
TEST_F(Waiting, StopReturnsAtOnceWhenEverythingSleeps) {
  connect_one(shared_channel());
  await_asleep(server_);
  await_asleep(client_);
  acceptor_->close();
  const auto begin = Clock::now();
  EXPECT_TRUE(server_->stop(kDrainPatience).ok());
  EXPECT_TRUE(client_->stop(kDrainPatience).ok());
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(3));
  client_end_.reset();
  server_end_.reset();
}

// W9: never anything attached.
TEST_F(Waiting, StopOfADispatcherThatNeverHadAnythingReturnsAtOnce) {
  const auto begin = Clock::now();
  EXPECT_TRUE(server_->stop(kDrainPatience).ok());
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(3));
}

// S1. The device's own threads included.
TEST(WaitingIdle, SixteenIdleConnectionsUseLessThanOnePercentOfACore) {
  Site site;
  Node server, client;
  const auto nothing = [](std::span<const ibv_wc>, const BatchInfo&) noexcept {};
  Acceptor acceptor(site, *server, patient(8, 8), [&](std::uint32_t) {
    ConnectionOptions options;
    options.handler = nothing;
    return std::optional<ConnectionOptions>(std::move(options));
  });
  std::vector<std::shared_ptr<ConnectionHandle>> clients;
  for (std::uint32_t tag = 0; tag < 16; ++tag) {
    ConnectionOptions options;
    options.handler = nothing;
    clients.push_back(
        require(connect(site, *client, acceptor.port(), tag, std::move(options), patient(8, 8))));
  }
  acceptor.await_connected(16);
  await("all sources turning cold", [&] {
    return server.sum(&PollerCounters::hot_sources) + client.sum(&PollerCounters::hot_sources) == 0;
  });
  // The least of some windows: what earlier tests left in the device's timers ends after a while.
  constexpr int kWindowsMax = 15;
  double least = 1;
  for (int window = 0; window < kWindowsMax && least >= 0.01; ++window) {
    const auto begin = Clock::now();
    const auto used = process_cpu_time();
    ::poll(nullptr, 0, 1000);  // what is measured is this very time
    const auto took = Clock::now() - begin;
    least = std::min(least, std::chrono::duration<double>(process_cpu_time() - used) /
                                std::chrono::duration<double>(took));
  }
  EXPECT_LT(least, 0.01);
  acceptor.close();
  for (auto& handle : clients) detach_clean(*handle);
}

}  // namespace
}  // namespace sluice::system_test
