// SPDX-License-Identifier: BSD-3-Clause
// Connections being made: refused, rejected, early, orphaned, spread.
#include <poll.h>

#include <algorithm>

#include "sluice/core/rpma/sources.hpp"
#include "support.hpp"

namespace sluice::system_test {
namespace {

ConnectionOptions ignoring() {
  ConnectionOptions options;
  options.handler = [](std::span<const ibv_wc>, const BatchInfo&) noexcept {};
  return options;
}

std::function<std::optional<ConnectionOptions>(std::uint32_t)> accept_all() {
  return [](std::uint32_t) { return std::optional<ConnectionOptions>(ignoring()); };
}

/// The least time that one of three tries takes: what the code needs, not what a loaded machine
/// adds.
template <typename Attempt>
std::chrono::milliseconds least_time(Attempt&& attempt) {
  auto least = std::chrono::milliseconds::max();
  for (int i = 0; i < 3; ++i) {
    const auto begin = Clock::now();
    attempt();
    least = std::min(least, std::chrono::ceil<std::chrono::milliseconds>(Clock::now() - begin));
  }
  return least;
}

class SetUp : public ::testing::Test {
 protected:
  Site site_;
  Node server_, client_;
};

TEST_F(SetUp, ARejectedRequestIsToldToTheClientAtOnce) {
  Acceptor acceptor(site_, *server_, patient(), [](std::uint32_t tag) {
    return tag == 1 ? std::optional<ConnectionOptions>(ignoring()) : std::nullopt;
  });
  const auto refused = connect(site_, *client_, acceptor.port(), 0, ignoring());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::rejected) << refused.status().to_string();
  EXPECT_NE(refused.status().message().find(acceptor.port()), std::string::npos);
  // And the next one, which it likes, gets through.
  const auto accepted = require(connect(site_, *client_, acceptor.port(), 1, ignoring()));
  acceptor.await_connected(1);
  EXPECT_EQ(acceptor.connected(), 1u);
  EXPECT_TRUE(acceptor.failures().empty());
  detach_clean(*accepted);
}

TEST_F(SetUp, ConnectingToNobodyFailsClearlyAndSoon) {
  std::string port;
  site_.listen(port).reset();  // a port that was free a moment ago
  const auto took = least_time([&] {
    const auto refused = connect(site_, *client_, port, 0, ignoring());
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::rejected) << refused.status().to_string();
    EXPECT_NE(refused.status().message().find("nobody listens"), std::string::npos)
        << refused.status().to_string();
  });
  EXPECT_LT(took.count(), 1000);
  EXPECT_EQ(client_.sum(&PollerCounters::connections), 0u);
}

TEST_F(SetUp, AnUnreachableAddressFailsWithinItsTimeout) {
  const auto took = least_time([&] {
    const auto refused =
        client_->connect(site_.peer, "192.0.2.77", "7000", rpma::ConnectionConfig{}, {}, ignoring(),
                         std::chrono::milliseconds(400));
    ASSERT_FALSE(refused.ok());
    const StatusCode code = refused.status().code();
    EXPECT_TRUE(code == StatusCode::unreachable || code == StatusCode::timed_out)
        << refused.status().to_string();
    EXPECT_NE(refused.status().message().find("192.0.2.77"), std::string::npos)
        << refused.status().to_string();
  });
  // 400 ms for resolving, 400 for being established: whichever the device waits for.
  EXPECT_LT(took.count(), 1000);
}

TEST_F(SetUp, NonsenseAsAnAddressIsRefused) {
  const auto refused = client_->connect(site_.peer, "no.such.host.invalid", "7000",
                                        rpma::ConnectionConfig{}, {}, ignoring());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("no.such.host.invalid"), std::string::npos)
      << refused.status().to_string();
}

TEST_F(SetUp, APortInUseIsSaid) {
  Acceptor acceptor(site_, *server_, patient(), accept_all());
  const auto second = rpma::Endpoint::listen(site_.peer, site_.address, acceptor.port());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::address_in_use) << second.status().to_string();
}

TEST_F(SetUp, AClosedListenerRejectsAndItsPortIsFree) {
  Acceptor acceptor(site_, *server_, patient(), accept_all());
  acceptor.close();
  const auto refused = connect(site_, *client_, acceptor.port(), 0, ignoring());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::rejected) << refused.status().to_string();
  EXPECT_TRUE(rpma::Endpoint::listen(site_.peer, site_.address, acceptor.port()).ok());
}

// E2.
TEST_F(SetUp, AConnectionThatDoesNotFitItsCqIsRefusedBeforeItConnects) {
  std::atomic<std::uint32_t> requests{0};
  Acceptor acceptor(site_, *server_, patient(), [&](std::uint32_t) {
    ++requests;
    return std::optional<ConnectionOptions>(ignoring());
  });
  rpma::ConnectionConfig small = patient(64, 64);
  small.cq_size = 16;
  const auto refused = connect(site_, *client_, acceptor.port(), 0, ignoring(), small);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::does_not_fit) << refused.status().to_string();
  EXPECT_NE(refused.status().message().find("65"), std::string::npos)
      << refused.status().to_string();
  // One that fits comes after it; had the first one asked, it would have been seen before this.
  const auto fits = require(connect(site_, *client_, acceptor.port(), 1, ignoring()));
  acceptor.await_connected(1);
  EXPECT_EQ(requests, 1u);
  detach_clean(*fits);
}

// E2, on the accepting side: no request would ever fit.
TEST_F(SetUp, AListenerWhoseConnectionsCannotFitIsRefused) {
  std::string port;
  ListenOptions options;
  options.config = patient(64, 64);
  options.config.cq_size = 16;
  options.on_request = [](std::span<const std::byte>) {
    return std::optional<ConnectionOptions>(ignoring());
  };
  const auto refused = server_->listen(site_.listen(port), std::move(options));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::does_not_fit) << refused.status().to_string();
}

// E2: nothing is half-open, also when many ask at once.
TEST_F(SetUp, MoreThanConnectionsMaxAreRejectedAndNothingIsHalfOpen) {
  constexpr std::uint32_t kMax = 4;
  constexpr std::uint32_t kAsking = 12;
  Node::Options options;
  options.connections_max = kMax;
  Node small(options);
  std::atomic<std::uint32_t> ended{0};
  std::atomic<std::uint32_t> told_connected{0};
  Acceptor acceptor(site_, *small, patient(), accept_all(),
                    [&](std::uint32_t, ConnectionHandle&) { ++told_connected; });
  std::mutex mutex;
  std::vector<std::shared_ptr<ConnectionHandle>> connected;
  std::atomic<std::uint32_t> rejected{0};
  std::vector<std::thread> threads;
  for (std::uint32_t tag = 0; tag < kAsking; ++tag) {
    threads.emplace_back([&, tag] {
      ConnectionOptions mine = ignoring();
      mine.on_event = [&](ConnectionId, rpma::ConnectionEvent) { ++ended; };
      auto made = connect(site_, *client_, acceptor.port(), tag, std::move(mine));
      if (made) {
        const std::scoped_lock lock(mutex);
        connected.push_back(std::move(*made));
      } else if (made.status().code() == StatusCode::rejected) {
        ++rejected;
      } else {
        ADD_FAILURE() << made.status().to_string();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(connected.size(), kMax);
  EXPECT_EQ(rejected, kAsking - kMax);
  acceptor.await_connected(kMax);
  await("the refusals being told", [&] { return acceptor.failures().size() == kAsking - kMax; });
  for (const Status& status : acceptor.failures()) {
    EXPECT_EQ(status.code(), StatusCode::does_not_fit) << status.to_string();
    EXPECT_NE(status.message().find("connections_max"), std::string::npos) << status.to_string();
  }
  EXPECT_EQ(ended, 0u) << "a connection was made and then dropped";
  EXPECT_EQ(told_connected, kMax);

  // One that leaves makes room for one.
  detach_clean(*acceptor.any());
  connected.push_back(require(connect(site_, *client_, acceptor.port(), 100, ignoring())));
  const auto no_more = connect(site_, *client_, acceptor.port(), 101, ignoring());
  ASSERT_FALSE(no_more.ok());
  EXPECT_EQ(no_more.status().code(), StatusCode::rejected);
  for (auto& handle : connected) detach_clean(*handle);
}

TEST_F(SetUp, TheClientsOwnConnectionsMaxIsCheckedBeforeItAsks) {
  Node::Options options;
  options.connections_max = 1;
  Node small(options);
  std::atomic<std::uint32_t> requests{0};
  Acceptor acceptor(site_, *server_, patient(), [&](std::uint32_t) {
    ++requests;
    return std::optional<ConnectionOptions>(ignoring());
  });
  constexpr std::uint32_t kThreads = 6;
  std::mutex mutex;
  std::vector<std::shared_ptr<ConnectionHandle>> connected;
  std::vector<std::thread> threads;
  for (std::uint32_t tag = 0; tag < kThreads; ++tag) {
    threads.emplace_back([&, tag] {
      auto made = connect(site_, *small, acceptor.port(), tag, ignoring());
      const std::scoped_lock lock(mutex);
      if (made) {
        connected.push_back(std::move(*made));
      } else {
        EXPECT_EQ(made.status().code(), StatusCode::does_not_fit) << made.status().to_string();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(connected.size(), 1u);
  acceptor.await_connected(1);
  EXPECT_EQ(requests, 1u) << "one that could not be attached was asked for";
  for (auto& handle : connected) detach_clean(*handle);
}

// R1.
TEST_F(SetUp, ConnectionsMadeAtOnceAreSpreadEvenly) {
  constexpr std::uint32_t kThreads = 8;
  constexpr std::uint32_t kEach = 8;
  Node::Options options;
  options.pollers = 4;
  Node many(options), far(options);
  Acceptor acceptor(site_, *far, patient(8, 8), accept_all());
  std::mutex mutex;
  std::vector<std::shared_ptr<ConnectionHandle>> connected;
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint32_t i = 0; i < kEach; ++i) {
        auto made = require(
            connect(site_, *many, acceptor.port(), thread * kEach + i, ignoring(), patient(8, 8)));
        const std::scoped_lock lock(mutex);
        connected.push_back(std::move(made));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  acceptor.await_connected(kThreads * kEach);
  for (Node* node : {&many, &far}) {
    std::uint64_t least = ~std::uint64_t{0};
    std::uint64_t most = 0;
    for (const PollerCounters& poller : (*node)->counters().pollers) {
      least = std::min(least, poller.connections);
      most = std::max(most, poller.connections);
    }
    EXPECT_LE(most - least, 1u);
    EXPECT_EQ(node->sum(&PollerCounters::connections), kThreads * kEach);
  }
  std::vector<std::uint32_t> by_handle(4, 0);
  for (auto& handle : connected) ++by_handle[handle->poller()];
  EXPECT_LE(*std::max_element(by_handle.begin(), by_handle.end()) -
                *std::min_element(by_handle.begin(), by_handle.end()),
            1u);
  acceptor.close();
  for (auto& handle : connected) detach_clean(*handle);
}

// --- early completions and orphans (C6, E1)
// --------------------------------------------------------

/// A server with an SRQ whose connections are accepted by hand, so that a test decides when one is
/// attached.
class ByHand : public SetUp {
 protected:
  static constexpr std::uint32_t kDepth = 64;

  ByHand()
      : srq_(require(rpma::SharedReceiveQueue::create(site_.peer,
                                                      {.depth = kDepth, .receive_cq_size = {}}))),
        pool_(require(srq_->stock(kDepth, 64))),
        endpoint_(site_.listen(port_)),
        memory_(site_.memory(std::size_t{kDepth} * kMessageSize)) {
    stream_.use(memory_, 0, kDepth);
    AttachOptions options;
    options.receive_pool = pool_;
    source_ = require(
        server_->attach(srq_->receive_cq(), options,
                        [this](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
                          Stream& stream = *static_cast<Stream*>(info.context);
                          const Stream::Call call(stream);
                          for (const ibv_wc& wc : batch) stream.receive(*pool_, wc);
                        }));
  }
  ~ByHand() override { server_.reset(); }

  rpma::ConnectionConfig with_srq() const {
    rpma::ConnectionConfig config = patient();
    config.srq = srq_;
    return config;
  }

  /// A client connection whose server end exists and is attached nowhere.
  contract::Pair connect_pair() {
    contract::Pair pair;
    pair.client = require(site_.ask(port_, patient()).connect());
    pair.server = require(contract::await_request(*endpoint_, with_srq()).connect());
    contract::await_event(*pair.client, rpma::ConnectionEvent::established);
    contract::await_event(*pair.server, rpma::ConnectionEvent::established);
    return pair;
  }

  ConnectionOptions attached_to(Stream& stream) {
    ConnectionOptions options = ignoring();
    options.receive_source = source_;
    options.context = &stream;
    return options;
  }

  std::shared_ptr<rpma::SharedReceiveQueue> srq_;
  ReceivePool* pool_;
  std::string port_;
  std::unique_ptr<rpma::Endpoint> endpoint_;
  std::shared_ptr<rpma::MemoryRegion> memory_;
  Stream stream_{1};
  std::shared_ptr<SourceHandle> source_;
};

TEST_F(ByHand, WhatComesBeforeTheAttachIsDeliveredInOrder) {
  constexpr std::uint32_t kEarly = 20;
  SetupTicket ticket = server_->expect_connection(*source_);
  const contract::Pair pair = connect_pair();
  stream_.send(*pair.client, kEarly);
  await("the early completions", [&] { return server_.sum(&PollerCounters::early) == kEarly; });
  EXPECT_EQ(stream_.received, 0u);
  const auto handle = require(server_->attach_connection(pair.server, attached_to(stream_)));
  ticket = SetupTicket{};
  stream_.send(*pair.client, kEarly);
  await("all of them", [&] { return stream_.received == 2 * kEarly; });
  EXPECT_EQ(stream_.out_of_order, 0u);
  EXPECT_EQ(stream_.strange, 0u);
  EXPECT_EQ(server_.sum(&PollerCounters::orphans), 0u);
  detach_clean(*handle);
}

TEST_F(ByHand, EarlyCompletionsOfAConnectionThatIsNeverAttachedBecomeOrphans) {
  constexpr std::uint32_t kEarly = 20;
  SetupTicket ticket = server_->expect_connection(*source_);
  const contract::Pair pair = connect_pair();
  stream_.send(*pair.client, kEarly);
  await("the early completions", [&] { return server_.sum(&PollerCounters::early) == kEarly; });
  EXPECT_EQ(server_.orphans, 0u);
  ticket = SetupTicket{};
  await("the orphans", [&] { return server_.orphans == kEarly; });
  await("their buffers being posted again", [&] { return pool_->posted() == kDepth; });
  EXPECT_EQ(server_.sum(&PollerCounters::orphans), kEarly);
  EXPECT_EQ(stream_.received, 0u);
}

// E1.
TEST_F(ByHand, CompletionsOfAConnectionNobodyAttachedAreOrphansAndTheirBuffersComeBack) {
  const contract::Pair pair = connect_pair();
  // More than the queue is deep: it would run dry if one buffer were lost.
  constexpr std::uint32_t kMany = 3 * kDepth;
  const auto completions = pair.client->main_cq();
  for (std::uint32_t i = 0; i < kMany; ++i) {
    stream_.send(*pair.client, 1);
    const ibv_wc sent = contract::await_completion(*completions, "a send");
    stream_.note(sent);
    completions->retire({&sent, 1});
    await("an orphan", [&] { return server_.orphans == i + 1; });
  }
  await("the buffers", [&] { return pool_->posted() == kDepth; });
  EXPECT_EQ(stream_.failed, 0u);
  EXPECT_EQ(server_.sum(&PollerCounters::orphans), kMany);
}

// E1.
TEST_F(ByHand, CompletionsOfADetachedQueuePairAreOrphans) {
  const contract::Pair pair = connect_pair();
  auto mine = std::make_unique<Stream>(1);
  mine->use(memory_, 0, kDepth);
  const auto handle =
      require(server_->attach_queue_pair(pair.server->qp_num(), attached_to(*mine)));
  mine->send(*pair.client, 10);
  await("the first", [&] { return mine->received == 10; });
  // Detaching a queue pair attached by number leaves it connected.
  detach_clean(*handle);
  EXPECT_EQ(mine->out_of_order, 0u);
  mine.reset();  // nothing may touch it any more
  stream_.send(*pair.client, 10);
  await("the orphans", [&] { return server_.orphans == 10; });
  await("the buffers", [&] { return pool_->posted() == kDepth; });

  // The same queue pair, attached once more.
  Stream again(1);
  const auto second =
      require(server_->attach_queue_pair(pair.server->qp_num(), attached_to(again)));
  EXPECT_NE(second->id(), handle->id());
  again.use(memory_, 0, kDepth);
  again.send(*pair.client, 10);
  await("the last", [&] { return again.received == 10; });
  EXPECT_EQ(server_.orphans, 10u);
  detach_clean(*second);
}

// With the listener, whose ticket is taken before the accept.
TEST_F(SetUp, AClientThatSendsAtOnceLosesNothing) {
  constexpr std::uint32_t kConnections = 16;
  constexpr std::uint32_t kAtOnce = 8;
  constexpr std::uint32_t kDepth = kConnections * kAtOnce;
  const auto srq = require(
      rpma::SharedReceiveQueue::create(site_.peer, {.depth = kDepth, .receive_cq_size = {}}));
  ReceivePool* const pool = require(srq->stock(kDepth, 64));
  const auto memory = site_.memory(std::size_t{kDepth} * kMessageSize);
  std::vector<std::unique_ptr<Stream>> streams;
  for (std::uint32_t tag = 0; tag < kConnections; ++tag) {
    streams.push_back(std::make_unique<Stream>(tag));
    streams.back()->use(memory, std::size_t{tag} * kAtOnce * kMessageSize, kAtOnce);
  }
  AttachOptions attach;
  attach.receive_pool = pool;
  const auto source = require(
      server_->attach(srq->receive_cq(), attach,
                      [pool](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
                        Stream& stream = *static_cast<Stream*>(info.context);
                        const Stream::Call call(stream);
                        for (const ibv_wc& wc : batch) stream.receive(*pool, wc);
                      }));
  rpma::ConnectionConfig config = patient();
  config.srq = srq;
  Acceptor acceptor(site_, *server_, config, [&](std::uint32_t tag) {
    ConnectionOptions options = ignoring();
    options.receive_source = source;
    options.context = streams.at(tag).get();
    return std::optional<ConnectionOptions>(std::move(options));
  });
  std::vector<std::shared_ptr<ConnectionHandle>> clients;
  for (auto& stream : streams) {
    clients.push_back(
        require(connect(site_, *client_, acceptor.port(), stream->tag(), ignoring())));
    stream->send(clients.back()->connection(), kAtOnce);
  }
  for (auto& stream : streams) {
    await("all that was sent at once", [&] { return stream->received == kAtOnce; });
    EXPECT_EQ(stream->out_of_order, 0u);
    EXPECT_EQ(stream->strange, 0u);
  }
  EXPECT_EQ(server_.sum(&PollerCounters::orphans), 0u);
  acceptor.close();
  for (auto& client : clients) detach_clean(*client);
  server_.reset();
}

}  // namespace
}  // namespace sluice::system_test
