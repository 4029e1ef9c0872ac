// SPDX-License-Identifier: BSD-3-Clause
// A device that misbehaves on purpose.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <softrdma/softrdma.h>

#include "support.hpp"

namespace sluice::system_test {
namespace {

template <typename Function>
Function* hook(const char* name) {
  auto* const found = reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
  if (found == nullptr) throw std::runtime_error(std::string(name) + ": not on softrdma");
  return found;
}

/// The faults in force while it lives.
class Faults {
 public:
  explicit Faults(const char* spec, std::uint64_t seed = 1) { set(spec, seed); }
  ~Faults() { set("", 0); }
  static void set(const char* spec, std::uint64_t seed) {
    if (hook<decltype(softrdma_set_faults)>("softrdma_set_faults")(spec, seed) != 0) {
      throw std::runtime_error(std::string("the fault spec ") + spec);
    }
  }
};

/// One connection whose server has an SRQ.
class Misbehaving : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kWindow = 32;

  void TearDown() override {
    acceptor_.reset();
    client_.reset();
    server_.reset();
  }

  /// With an SRQ on the server, or without.
  void connect_one(bool with_srq) {
    memory_ = site_.memory(std::size_t{2} * kWindow * kMessageSize);
    up_.use(memory_, 0, kWindow);
    down_.use(memory_, std::size_t{kWindow} * kMessageSize, kWindow);
    rpma::ConnectionConfig config = patient(kWindow, kWindow);
    if (with_srq) {
      srq_ = require(
          rpma::SharedReceiveQueue::create(site_.peer, {.depth = kWindow, .receive_cq_size = {}}));
      server_pool_ = require(srq_->stock(kWindow, 64));
      config.srq = srq_;
      AttachOptions options;
      options.receive_pool = server_pool_;
      source_ =
          require(server_->attach(srq_->receive_cq(), options,
                                  [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
                                    const Stream::Call call(up_);
                                    for (const ibv_wc& wc : batch) up_.receive(*server_pool_, wc);
                                  }));
    }
    acceptor_ = std::make_unique<Acceptor>(site_, *server_, config, [this](std::uint32_t) {
      ConnectionOptions options;
      options.receive_source = source_;
      options.handler = [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
        const Stream::Call call(up_);
        for (const ibv_wc& wc : batch) {
          if (wc.status != IBV_WC_SUCCESS) check_failed(wc);
          ReceivePool* const pool = server_pool_;
          if (pool != nullptr && pool->owns(wc.wr_id)) {
            up_.receive(*pool, wc);
          } else {
            down_.note(wc);
          }
        }
      };
      options.on_event = [this](ConnectionId, rpma::ConnectionEvent) { ++server_ends_; };
      return std::optional<ConnectionOptions>(std::move(options));
    });
    reconnect();
    if (!with_srq) server_pool_ = require(server_end_->connection().stock(kWindow, 64));
  }

  /// Another connection, when the last one was detached.
  void reconnect() {
    acceptor_->forget();
    client_pool_ = nullptr;
    ConnectionOptions options;
    options.handler = [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
      const Stream::Call call(down_);
      for (const ibv_wc& wc : batch) {
        if (wc.status != IBV_WC_SUCCESS) check_failed(wc);
        ReceivePool* const pool = client_pool_;
        if (pool != nullptr && pool->owns(wc.wr_id)) {
          down_.receive(*pool, wc);
        } else {
          up_.note(wc);
        }
      }
    };
    options.on_event = [this](ConnectionId, rpma::ConnectionEvent) { ++client_ends_; };
    client_end_ = require(connect(site_, *client_, acceptor_->port(), 0, std::move(options),
                                  patient(kWindow, kWindow)));
    client_pool_ = require(client_end_->connection().stock(kWindow, 64));
    acceptor_->await_connected(1);
    server_end_ = acceptor_->any();
  }

  /// Nobody may read rubbish out of a failed completion.
  void check_failed(const ibv_wc& wc) {
    if (wc.opcode != IBV_WC_SEND || wc.byte_len != 0 || wc.imm_data != 0 || wc.wc_flags != 0) {
      ++rubbish_;
    }
  }

  void exchange(std::uint32_t messages) {
    const std::uint32_t ups = up_.received + messages;
    const std::uint32_t downs = down_.received + messages;
    for (std::uint32_t i = 0; i < messages; ++i) {
      up_.send(client_end_->connection(), 1);
      down_.send(server_end_->connection(), 1);
    }
    await("the messages", [&] { return up_.received == ups && down_.received == downs; });
    EXPECT_EQ(up_.out_of_order + up_.strange + down_.out_of_order + down_.strange, 0u);
  }

  Site site_;
  Stream up_{1}, down_{2};
  std::atomic<std::uint32_t> server_ends_{0}, client_ends_{0}, rubbish_{0};
  std::shared_ptr<rpma::MemoryRegion> memory_;
  std::shared_ptr<rpma::SharedReceiveQueue> srq_;
  std::atomic<ReceivePool*> server_pool_{nullptr}, client_pool_{nullptr};
  Node server_, client_;
  std::shared_ptr<SourceHandle> source_;
  std::unique_ptr<Acceptor> acceptor_;
  std::shared_ptr<ConnectionHandle> client_end_, server_end_;
};

// E3.
TEST_F(Misbehaving, AWithheldLastFlushEndsInAReportAtTheDeadline) {
  connect_one(true);
  exchange(5);
  const Faults faults("withhold_flush=1");
  const auto begin = Clock::now();
  const DetachReport report = require(server_end_->detach(std::chrono::milliseconds(300)));
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(300));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  EXPECT_FALSE(report.clean);
  EXPECT_TRUE(report.marker_missing) << report.to_string();
  EXPECT_TRUE(report.quarantined);
  EXPECT_NE(report.to_string().find("marker"), std::string::npos);
  EXPECT_EQ(server_->counters().control.quarantined, 1u);
  // The rest of the dispatcher is none the worse for it, and it ends.
  Faults::set("", 0);
  await("the peer being told", [&] { return client_ends_ == 1; });
  detach_clean(*client_end_);
  acceptor_->close();
  const auto stopping = Clock::now();
  (void)server_->stop(std::chrono::seconds(1));
  EXPECT_LT(Clock::now() - stopping, std::chrono::seconds(5));
}

// E3: neither the destructors nor the end of the process wait for what never comes.
TEST_F(Misbehaving, AProcessWhoseDeviceWithholdsTheLastFlushStillEnds) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::execl("/proc/self/exe", "child", "--gtest_filter=Misbehaving.DiesWithAQuarantinedQueuePair",
            nullptr);
    ::_exit(127);
  }
  int status = 0;
  await("the end of the process", [&] { return ::waitpid(child, &status, WNOHANG) == child; });
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

/// Run by the test above, too, in a process of its own.
TEST_F(Misbehaving, DiesWithAQuarantinedQueuePair) {
  connect_one(true);
  exchange(5);
  const Faults faults("withhold_flush=1");
  EXPECT_TRUE(require(server_end_->detach(std::chrono::milliseconds(100))).quarantined);
}

TEST_F(Misbehaving, AWithheldLastWqeCostsItsGraceAndNoMore) {
  connect_one(true);
  exchange(5);
  const Faults faults("withhold_last_wqe=1");
  const DetachReport report = detach_clean(*server_end_);
  EXPECT_TRUE(report.last_wqe_missing);
  EXPECT_GE(report.took, std::chrono::milliseconds(200));  // Node::Options::last_wqe_grace
  detach_clean(*client_end_);
  await("the SRQ's buffers", [&] { return server_pool_.load()->posted() == kWindow; });
}

// C6: where the device tells of the last receive, the drain needs no grace. The kernel's soft-RoCE
// does not tell. Both dispatchers of this process watch the device, and each event can be read but
// once.
TEST_F(Misbehaving, LastWqeReachedIsSeenByTheDispatcherThatItConcerns) {
  connect_one(true);
  for (std::uint32_t cycle = 0; cycle < 10; ++cycle) {
    SCOPED_TRACE("cycle " + std::to_string(cycle));
    if (cycle > 0) reconnect();
    exchange(3);
    const DetachReport report = detach_clean(*server_end_);
    EXPECT_FALSE(report.last_wqe_missing) << report.to_string();
    detach_clean(*client_end_);
  }
  EXPECT_GE(server_.async_events(IBV_EVENT_QP_LAST_WQE_REACHED), 10u);
}

// W8.
TEST_F(Misbehaving, ASourceWhoseRearmFailsIsToldAndPolledForGood) {
  connect_one(false);
  exchange(5);
  {
    const Faults faults("fail_notify_after=1");
    // Every source turns cold by re-arming. Each that cannot is told of.
    for (int i = 0; i < 5; ++i) exchange(1);
    await("the failed sources being told", [&] { return server_.failed_sources >= 1; });
  }
  EXPECT_FALSE(server_end_->down()) << "it can still be polled";
  exchange(50);
  EXPECT_EQ(server_ends_, 0u);
  detach_clean(*client_end_);
  detach_clean(*server_end_);
}

// A CQ in error, the other half of E5: whichever of a connection's CQs it is.
TEST_F(Misbehaving, ACqErrorTakesItsConnectionDownOnce) {
  connect_one(false);
  exchange(5);
  {
    const Faults faults("cq_error_after=8");
    for (int i = 0; i < 64 && !server_end_->down(); ++i) {
      (void)down_.send(server_end_->connection());
      (void)up_.send(client_end_->connection());
    }
    await("the end being told", [&] { return server_ends_ >= 1; });
  }
  await("the failed source being told", [&] { return server_.failed_sources >= 1; });
  EXPECT_TRUE(server_end_->down());
  EXPECT_GE(server_.async_events(IBV_EVENT_CQ_ERR), 1u);
  (void)require(server_end_->detach(std::chrono::seconds(2)));
  (void)require(client_end_->detach(std::chrono::seconds(2)));
  EXPECT_EQ(server_ends_, 1u);
}

TEST_F(Misbehaving, ASourceThatCannotBePolledAnyMoreTakesItsConnectionDown) {
  connect_one(false);
  exchange(5);
  const Faults faults("fail_poll_after=1");
  (void)down_.send(server_end_->connection());
  (void)up_.send(client_end_->connection());
  await("the end being told", [&] { return server_ends_ == 1; });
  EXPECT_GE(server_.failed_sources, 1u);
  EXPECT_TRUE(server_end_->down());
  const DetachReport report = require(server_end_->detach(std::chrono::seconds(2)));
  EXPECT_LT(report.took, std::chrono::seconds(20));
  (void)require(client_end_->detach(std::chrono::seconds(2)));
  EXPECT_EQ(server_ends_, 1u);
}

// W1.
TEST_F(Misbehaving, EventsThatAreCoalescedOrWithoutReasonAreNeitherWorkNorLoss) {
  const Faults faults("coalesce_events=40,spurious_events=40", 7);
  connect_one(true);
  for (int i = 0; i < 50; ++i) exchange(2);
  EXPECT_EQ(server_.failed_sources, 0u);
  await("the pollers sleeping again",
        [&] { return server_.sum(&PollerCounters::hot_sources) == 0; });
  detach_clean(*client_end_);
  detach_clean(*server_end_);
}

TEST_F(Misbehaving, OrderHoldsWithDelaysAndReorderingBetweenQueuePairs) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const Faults faults("delay_us=0-2000,reorder=30", seed);
    if (seed == 1) connect_one(true);
    exchange(60);
  }
  detach_clean(*client_end_);
  detach_clean(*server_end_);
}

TEST_F(Misbehaving, AConnectionThatDropsIsToldOnceOnEachSideAndTornDownClean) {
  const Faults faults("drop_after=40,poison_failed_wc=1");
  connect_one(true);
  await("both ends", [&] {
    (void)up_.send(client_end_->connection());
    (void)down_.send(server_end_->connection());
    return server_ends_ == 1 && client_ends_ == 1;
  });
  detach_clean(*client_end_);
  detach_clean(*server_end_);
  EXPECT_EQ(server_ends_, 1u);
  EXPECT_EQ(client_ends_, 1u);
  EXPECT_EQ(rubbish_, 0u);
  EXPECT_EQ(up_.out_of_order + up_.strange + down_.out_of_order + down_.strange, 0u);
}

// C6: a number comes back; the connection behind it is another.
TEST_F(Misbehaving, ReusedQueuePairNumbersAreNotMixedUp) {
  const Faults faults("reuse_qp_numbers=1");
  ConnectionId last = ConnectionId::none;
  connect_one(true);
  for (std::uint32_t cycle = 0; cycle < 30; ++cycle) {
    if (cycle > 0) reconnect();
    EXPECT_NE(server_end_->id(), last);
    last = server_end_->id();
    exchange(4);
    await("the completions", [&] {
      return up_.completed_sends == up_.sent() && down_.completed_sends == down_.sent();
    });
    detach_clean(*client_end_);
    detach_clean(*server_end_);
  }
  EXPECT_EQ(server_.sum(&PollerCounters::orphans), 0u);
}

// Each call into the device that a set-up makes, on either side, fails once, one after the other: a
// clear Status, and the next attempt works.
TEST_F(Misbehaving, ASetUpFailsCleanlyAtEachOfItsCalls) {
  connect_one(true);
  std::uint32_t failures = 0;
  std::uint32_t point = 1;
  std::size_t told_before = 0;
  std::uint32_t tag = 100;
  const auto handler = [](std::span<const ibv_wc>, const BatchInfo&) noexcept {};
  for (;; ++point, ++tag) {
    ASSERT_LT(point, 200u);
    SCOPED_TRACE("call " + std::to_string(point));
    ConnectionOptions options;
    options.handler = handler;
    Faults::set(("fail_any=" + std::to_string(point)).c_str(), 1);
    rpma::ConnectionConfig config = patient(8, 8);
    const auto begin = Clock::now();
    const auto made = client_->connect(site_.peer, site_.address, acceptor_->port(), config,
                                       std::as_bytes(std::span(&tag, 1)), std::move(options),
                                       std::chrono::milliseconds(500));
    const std::uint64_t calls = hook<decltype(softrdma_fault_calls)>("softrdma_fault_calls")("any");
    Faults::set("", 0);
    if (made) {
      (void)require((*made)->detach(kDrainPatience));
      if (calls < point) break;  // nothing failed any more
    } else {
      ++failures;
      EXPECT_FALSE(made.status().message().empty());
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(3)) << made.status().to_string();
      // librpma neither rejects nor frees a request whose queue pair it could not make: the client
      // can but wait, and the server's side says why.
      const std::size_t told = acceptor_->failures().size();
      if (made.status().code() == StatusCode::timed_out) {
        EXPECT_GT(told, told_before);
      }
      told_before = told;
    }
  }
  EXPECT_GT(failures, 5u);
  EXPECT_FALSE(server_end_->down());
  exchange(5);
}

}  // namespace
}  // namespace sluice::system_test
