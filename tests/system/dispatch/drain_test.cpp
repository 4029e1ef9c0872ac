// SPDX-License-Identifier: BSD-3-Clause
// Detaching: nobody touches it afterwards, it ends in time, it is told once.
#include <malloc.h>

#include <functional>

#include "child.hpp"
#include "support.hpp"

namespace sluice::system_test {
namespace {

/// A server with or without an SRQ, and a client of it, whose handlers count into streams.
class Drain : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kWindow = 16;

  void TearDown() override {
    acceptor_.reset();
    client_.reset();
    server_.reset();
  }

  /// One connection; both ends' handlers hold it until `gone`. On the heap, so that a late touch
  /// shows.
  struct Ends {
    explicit Ends(std::uint32_t tag)
        : up(std::make_unique<Stream>(tag)), down(std::make_unique<Stream>(tag + 10000)) {}
    std::unique_ptr<Stream> up;    ///< client to server
    std::unique_ptr<Stream> down;  ///< server to client
    std::shared_ptr<ConnectionHandle> client, server;
    std::atomic<std::uint32_t> client_ends{0}, server_ends{0};
    std::atomic<rpma::ConnectionEvent> server_event{rpma::ConnectionEvent::established};
  };

  void use_srq(std::uint32_t depth) {
    srq_ = require(
        rpma::SharedReceiveQueue::create(site_.peer, {.depth = depth, .receive_cq_size = {}}));
    pool_ = require(srq_->stock(depth, 64));
    AttachOptions options;
    options.receive_pool = pool_;
    source_ = require(
        server_->attach(srq_->receive_cq(), options,
                        [this](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
                          auto& ends = *static_cast<Ends*>(info.context);
                          const Stream::Call call(*ends.up);
                          for (const ibv_wc& wc : batch) ends.up->receive(*pool_, wc);
                          if (gate_ != nullptr) gate_->pass();
                        }));
  }

  void listen() {
    rpma::ConnectionConfig config = patient(2 * kWindow, 2 * kWindow);
    config.srq = srq_;
    acceptor_ = std::make_unique<Acceptor>(site_, *server_, config, [this](std::uint32_t tag) {
      Ends* const ends = waiting_.at(tag);
      ConnectionOptions options;
      options.context = ends;
      options.receive_source = source_;
      options.handler = [this, ends](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
        const Stream::Call call(*ends->up);
        for (const ibv_wc& wc : batch) {
          ReceivePool* const pool = own_pool_.load();
          if (pool != nullptr && pool->owns(wc.wr_id)) {
            ends->up->receive(*pool, wc);
          } else {
            ends->down->note(wc);
          }
        }
      };
      options.on_event = [ends](ConnectionId, rpma::ConnectionEvent event) {
        ends->server_event = event;
        ++ends->server_ends;
      };
      return std::optional<ConnectionOptions>(std::move(options));
    });
  }

  void connect(Ends& ends) {
    if (!memory_) memory_ = site_.memory(std::size_t{2} * kWindow * kMessageSize);
    ends.up->use(memory_, 0, kWindow);
    ends.down->use(memory_, std::size_t{kWindow} * kMessageSize, kWindow);
    waiting_[ends.up->tag()] = &ends;
    ConnectionOptions options;
    options.handler = [ends = &ends](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
      const Stream::Call call(*ends->down);
      for (const ibv_wc& wc : batch) {
        ReceivePool* const pool = ends->client->connection().receive_pool();
        if (pool != nullptr && pool->owns(wc.wr_id)) {
          ends->down->receive(*pool, wc);
        } else {
          ends->up->note(wc);
        }
      }
    };
    options.on_event = [ends = &ends](ConnectionId, rpma::ConnectionEvent) { ++ends->client_ends; };
    ends.client =
        require(system_test::connect(site_, *client_, acceptor_->port(), ends.up->tag(),
                                     std::move(options), patient(2 * kWindow, 2 * kWindow)));
    (void)require(ends.client->connection().stock(2 * kWindow, 64));
    await("the accept", [&] {
      try {
        ends.server = acceptor_->handle(ends.up->tag());
        return true;
      } catch (const std::out_of_range&) {
        return false;
      }
    });
    if (srq_ == nullptr) own_pool_ = require(ends.server->connection().stock(2 * kWindow, 64));
  }

  /// The kernel's soft-RoCE sends no LAST_WQE_REACHED: each drain of a connection with an SRQ takes
  /// it.
  static Node::Options short_grace() {
    Node::Options options;
    options.last_wqe_grace = std::chrono::milliseconds(20);
    return options;
  }

  Site site_;
  Node server_{short_grace()}, client_;
  std::shared_ptr<rpma::SharedReceiveQueue> srq_;
  ReceivePool* pool_ = nullptr;
  std::atomic<ReceivePool*> own_pool_{nullptr};
  std::shared_ptr<SourceHandle> source_;
  std::map<std::uint32_t, Ends*> waiting_;
  std::shared_ptr<rpma::MemoryRegion> memory_;
  std::unique_ptr<Acceptor> acceptor_;
  Gate* gate_ = nullptr;
};

/// Sends until told to stop or refused; the handle it uses is not detached before it ended.
class Traffic {
 public:
  Traffic(Stream& stream, ConnectionHandle& handle)
      : thread_([this, &stream, &handle] {
          while (!stop_ && !handle.down()) {
            const Status status = stream.send(handle.connection());
            if (!status.ok() && status.code() != StatusCode::resource_exhausted) break;
            if (!status.ok()) std::this_thread::yield();
          }
        }) {}
  ~Traffic() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// E4. One side detaches while both send; the other learns of it and detaches, too.
TEST_F(Drain, NobodyTouchesADetachedConnectionThatWasUnderTraffic) {
  for (const bool with_srq : {false, true}) {
    if (with_srq) use_srq(4 * kWindow);
    listen();
    for (std::uint32_t tag = 0; tag < 6; ++tag) {
      SCOPED_TRACE("with_srq " + std::to_string(with_srq) + ", tag " + std::to_string(tag));
      auto ends = std::make_unique<Ends>(tag);
      connect(*ends);
      auto up = std::make_unique<Traffic>(*ends->up, *ends->client);
      auto down = std::make_unique<Traffic>(*ends->down, *ends->server);
      await("traffic", [&] { return ends->up->received > 50 && ends->down->received > 20; });
      // A connection goes with its detach, so its own sender is stopped before: the application's
      // part. The other side goes on sending all the while.
      if (tag % 2 == 0) {
        up.reset();
        detach_clean(*ends->client);
        ends->down->gone = true;  // its handlers are the client's
        await("the server being told", [&] { return ends->server_ends == 1; });
        down.reset();
        detach_clean(*ends->server);
        ends->up->gone = true;
      } else {
        down.reset();
        detach_clean(*ends->server);
        ends->up->gone = true;
        await("the client being told", [&] { return ends->client_ends == 1; });
        up.reset();
        detach_clean(*ends->client);
        ends->down->gone = true;
      }
      EXPECT_EQ(ends->up->after_detach, 0u);
      EXPECT_EQ(ends->down->after_detach, 0u);
      EXPECT_EQ(ends->up->out_of_order, 0u);
      EXPECT_EQ(ends->down->out_of_order, 0u);
      EXPECT_EQ(ends->up->overlaps + ends->down->overlaps, 0u);
      EXPECT_LE(ends->server_ends, 1u);
      EXPECT_LE(ends->client_ends, 1u);
      own_pool_ = nullptr;
      waiting_.clear();
      acceptor_->forget();
      ends.reset();  // a late touch is a use after free
    }
  }
  await("the SRQ's buffers", [&] { return pool_->posted() == pool_->depth(); });
}

// C6: at the deadline what is stuck is left behind and said; its state lives until the call
// returns.
TEST_F(Drain, AStuckHandlerIsReportedAtTheDeadline) {
  Gate gate;
  gate_ = &gate;
  use_srq(4 * kWindow);
  listen();
  auto ends = std::make_unique<Ends>(0);
  connect(*ends);
  ends->up->send(ends->client->connection(), 1);
  await("the handler", [&] { return gate.arrived() == 1; });
  const auto begin = Clock::now();
  const DetachReport report = require(ends->server->detach(std::chrono::milliseconds(300)));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  EXPECT_FALSE(report.clean);
  EXPECT_TRUE(report.quarantined);
  EXPECT_EQ(report.completions_abandoned, 1u) << report.to_string();
  EXPECT_FALSE(report.marker_missing) << report.to_string();
  EXPECT_EQ(server_->counters().control.quarantined, 1u);
  // Another connection is none the worse for it.
  Ends other(1);
  connect(other);
  EXPECT_FALSE(other.server->down());
  gate.open();
  other.up->send(other.client->connection(), 5);
  await("the other's messages", [&] { return other.up->received == 5; });
  detach_clean(*ends->client);
  detach_clean(*other.client);
  detach_clean(*other.server);
  TearDown();  // what was left behind goes with the dispatcher
}

TEST_F(Drain, ADetachFromInsideAHandlerOrCallbackIsRefusedAndTheAsyncOneWorks) {
  listen();
  Ends ends(0);
  std::atomic<int> refused{0};
  std::atomic<int> done{0};
  waiting_[0] = &ends;
  ConnectionOptions options;
  std::weak_ptr<ConnectionHandle> mine;
  std::mutex mutex;
  options.handler = [&](std::span<const ibv_wc>, const BatchInfo&) noexcept {
    const std::scoped_lock lock(mutex);
    const auto handle = mine.lock();
    if (!handle || refused > 0) return;
    if (handle->detach(kDrainPatience).status().code() == StatusCode::invalid_argument) ++refused;
    handle->detach_async(kDrainPatience, [&](const DetachReport& report) {
      EXPECT_TRUE(report.clean) << report.to_string();
      ++done;
    });
  };
  {
    const std::scoped_lock lock(mutex);
    auto handle =
        require(system_test::connect(site_, *client_, acceptor_->port(), 0, std::move(options)));
    mine = handle;
    ends.client = std::move(handle);
  }
  require(ends.client->connection().send_with_imm(nullptr, 0, 0, 1, 1));
  acceptor_->await_connected(1);
  own_pool_ = require(acceptor_->handle(0)->connection().stock(8, 64));
  await("the detach", [&] { return done == 1; });
  EXPECT_EQ(refused, 1);
  detach_clean(*acceptor_->handle(0));  // its handler refers to `ends`
}

// E4: whoever asks second waits for the same end.
TEST_F(Drain, ASecondDetachReturnsOnlyWhenTheFirstHasFinished) {
  Gate gate;
  gate_ = &gate;
  use_srq(4 * kWindow);
  listen();
  Ends ends(0);
  connect(ends);
  ends.up->send(ends.client->connection(), 1);
  await("the handler", [&] { return gate.arrived() == 1; });
  std::atomic<int> done{0};
  ends.server->detach_async(kDrainPatience, [&](const DetachReport&) { ++done; });
  std::thread second([&] {
    const DetachReport report = require(ends.server->detach(kDrainPatience));
    EXPECT_TRUE(report.clean) << report.to_string();
    EXPECT_EQ(done, 1) << "it returned while a handler was running";
  });
  await("the drain under way", [&] { return ends.server->down(); });
  gate.open();
  second.join();
  const DetachReport third = detach_clean(*ends.server);  // long over
  EXPECT_TRUE(third.clean);
  detach_clean(*ends.client);
}

// A killed peer: told once, torn down once.
TEST_F(Drain, AConnectionWhosePeerWasKilledIsToldOnceAndTornDownOnce) {
  for (const bool with_srq : {false, true}) {
    SCOPED_TRACE(with_srq ? "with an SRQ" : "without an SRQ");
    if (with_srq) use_srq(kWindow);
    std::atomic<std::uint32_t> ends{0};
    std::atomic<rpma::ConnectionEvent> last{rpma::ConnectionEvent::established};
    std::atomic<std::uint32_t> arrived{0};
    Ends unused(77);  // context of the SRQ's handler
    unused.up->ordered = false;
    rpma::ConnectionConfig config = patient(kWindow, kWindow);
    config.srq = srq_;
    std::shared_ptr<rpma::MemoryRegion> landing = site_.memory(64);
    Acceptor acceptor(
        site_, *server_, config,
        [&](std::uint32_t) {
          ConnectionOptions options;
          options.context = &unused;
          options.receive_source = source_;
          options.handler = [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
            for (const ibv_wc& wc : batch) arrived += wc.status == IBV_WC_SUCCESS ? 1 : 0;
          };
          options.on_event = [&](ConnectionId, rpma::ConnectionEvent event) {
            last = event;
            ++ends;
          };
          return std::optional<ConnectionOptions>(std::move(options));
        },
        [&](std::uint32_t, ConnectionHandle& handle) {
          if (srq_ == nullptr) require(handle.connection().receive(*landing, 0, 64, 5));
        });
    PeerProcess peer(site_.address, acceptor.port());
    acceptor.await_connected(1);
    await("its message", [&] { return arrived + unused.up->strange + unused.up->received == 1; });
    const auto handle = acceptor.any();
    EXPECT_FALSE(handle->down());
    peer.kill();
    await("the end being told", [&] { return ends >= 1; });
    EXPECT_TRUE(last == rpma::ConnectionEvent::closed || last == rpma::ConnectionEvent::lost);
    EXPECT_TRUE(handle->down());
    detach_clean(*handle);
    const auto drains = server_->counters().control.drains;
    detach_clean(*handle);  // once more is no harm, and no second drain
    EXPECT_EQ(server_->counters().control.drains, drains);
    EXPECT_EQ(ends, 1u);
    EXPECT_EQ(server_.sum(&PollerCounters::connections), 0u);
  }
}

// Both sides disconnect at once, so that each finds out in several ways.
TEST_F(Drain, AConnectionFoundDeadInSeveralWaysIsToldOnce) {
  listen();
  for (std::uint32_t tag = 0; tag < 10; ++tag) {
    Ends ends(tag);
    connect(ends);
    // Requests that will be flushed, beside the event.
    for (std::uint32_t i = 0; i < kWindow; ++i) (void)ends.down->send(ends.server->connection());
    std::atomic<int> done{0};
    const auto finished = [&](const DetachReport& report) {
      EXPECT_TRUE(report.clean) << report.to_string();
      ++done;
    };
    ends.client->detach_async(kDrainPatience, finished);
    if (tag % 2 == 0) {
      await("the end being told", [&] { return ends.server_ends >= 1; });
    }
    ends.server->detach_async(kDrainPatience, finished);
    await("both detaches", [&] { return done == 2; });
    EXPECT_LE(ends.server_ends, 1u);
    EXPECT_LE(ends.client_ends, 1u);
    if (tag % 2 == 0) {
      EXPECT_EQ(ends.server_ends, 1u);
    }
    own_pool_ = nullptr;
    waiting_.clear();
    acceptor_->forget();
  }
}

TEST_F(Drain, ASourceThatStillServesConnectionsIsNotDetached) {
  use_srq(4 * kWindow);
  listen();
  Ends ends(0);
  connect(ends);
  const auto refused = source_->detach(kDrainPatience);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(refused.status().message().find("1 attached"), std::string::npos)
      << refused.status().to_string();
  detach_clean(*ends.server);
  EXPECT_TRUE(require(source_->detach(kDrainPatience)).clean);
  detach_clean(*ends.client);
}

// W9 with traffic pending: stop() alone ends everything.
TEST_F(Drain, StopDetachesWhatIsAttachedAndEndsInTime) {
  use_srq(4 * kWindow);
  listen();
  std::vector<std::unique_ptr<Ends>> all;
  for (std::uint32_t tag = 0; tag < 4; ++tag) {
    all.push_back(std::make_unique<Ends>(tag));
    connect(*all.back());
    all.back()->up->send(all.back()->client->connection(), 20);
  }
  EXPECT_TRUE(server_->stop(kDrainPatience).ok());
  EXPECT_TRUE(server_->stop(kDrainPatience).ok()) << "idempotent";
  EXPECT_EQ(server_->counters().control.quarantined, 0u);
  const auto late = server_->attach_connection(nullptr, {});
  EXPECT_FALSE(late.ok());
  EXPECT_TRUE(client_->stop(kDrainPatience).ok());
  for (auto& ends : all) EXPECT_EQ(ends->up->out_of_order + ends->up->strange, 0u);
}

// Again and again: nothing is lost, no descriptor and no memory is left behind.
TEST_F(Drain, TwoHundredConnectionsComeAndGoWithoutALeak) {
  constexpr std::uint32_t kCycles = 200;
  constexpr std::uint32_t kWarmUp = 40;
  constexpr std::uint32_t kMessages = 10;
  use_srq(4 * kWindow);
  listen();
  std::size_t descriptors = 0;
  std::size_t heap = 0;
  std::string growth;
  for (std::uint32_t cycle = 0; cycle < kCycles; ++cycle) {
    if (cycle == kWarmUp) {
      descriptors = open_descriptors();
      heap = ::mallinfo2().uordblks;
    }
    if (cycle % kWarmUp == 0) growth += " " + std::to_string(::mallinfo2().uordblks);
    Ends ends(cycle);
    connect(ends);
    ends.up->send(ends.client->connection(), kMessages);
    ends.down->send(ends.server->connection(), kMessages);
    await("the messages of cycle " + std::to_string(cycle), [&] {
      return ends.up->received == kMessages && ends.down->received == kMessages &&
             ends.up->completed_sends == kMessages && ends.down->completed_sends == kMessages;
    });
    ASSERT_EQ(ends.up->out_of_order + ends.up->strange + ends.up->failed, 0u);
    ASSERT_EQ(ends.down->out_of_order + ends.down->strange, 0u);
    if (cycle % 2 == 0) {
      detach_clean(*ends.client);
      detach_clean(*ends.server);
    } else {
      detach_clean(*ends.server);
      detach_clean(*ends.client);
    }
    waiting_.clear();
    acceptor_->forget();
  }
  // A device frees what a connection had when its last packets are through.
  await("the descriptors going back", [&] { return open_descriptors() <= descriptors; });
  const std::size_t now = ::mallinfo2().uordblks;
  const std::size_t grown = now > heap ? now - heap : 0;
  // softrdma keeps what a connection was in its timers for a while. The kernel's driver keeps
  // nothing.
  const std::size_t kept_by_device = contract::on_softrdma() ? 8192 : 0;
  EXPECT_LT(grown / (kCycles - kWarmUp), kept_by_device + 512)
      << "bytes left behind by each connection; the heap after every " << kWarmUp << ":" << growth;
  EXPECT_EQ(server_.sum(&PollerCounters::orphans), 0u);
  EXPECT_EQ(server_->counters().control.quarantined, 0u);
  await("the SRQ's buffers", [&] { return pool_->posted() == pool_->depth(); });
}

}  // namespace
}  // namespace sluice::system_test
