// SPDX-License-Identifier: BSD-3-Clause
// From a client's send through the server's handler and back, over every way of receiving.
#include "support.hpp"

namespace sluice::system_test {
namespace {

/// Where the server's receives complete.
enum class Receives { srq_cq, own_cq, shared_channel, main_cq };

std::string name_of(Receives receives) {
  switch (receives) {
    case Receives::srq_cq: return "SrqCq";
    case Receives::own_cq: return "OwnReceiveCq";
    case Receives::shared_channel: return "SharedChannel";
    case Receives::main_cq: return "MainCq";
  }
  return "?";
}

constexpr std::uint32_t kWindow = 16;  ///< messages and replies in flight per connection

/// One connection: the client's messages and the server's replies.
struct Link {
  explicit Link(std::uint32_t tag) : request(tag), reply(tag + 10000) {}
  Stream request, reply;
  std::shared_ptr<ConnectionHandle> client, server;
  std::atomic<std::uint32_t> refused_replies{0};
  std::atomic<ReceivePool*> server_pool{nullptr};
};

struct Plan {
  std::uint32_t connections = 4;
  std::uint32_t messages = 48;
  Receives receives = Receives::srq_cq;
  Order order = Order::per_connection;
  Node::Options server;
  bool host_driven = false;
};

/// Sends `messages` over each connection, replies to each from its handler, and checks all of it.
class Exchange {
 public:
  explicit Exchange(Plan plan) : plan_(plan) {
    plan_.server.drive = plan_.host_driven ? Drive::host : Drive::own_threads;
    server_ = std::make_unique<Node>(plan_.server);
    client_ = std::make_unique<Node>(Node::Options{});
    if (plan_.host_driven) host_ = std::make_unique<HostLoop>(**server_);
    for (std::uint32_t tag = 0; tag < plan_.connections; ++tag) {
      links_.push_back(std::make_unique<Link>(tag));
    }
    if (plan_.receives == Receives::srq_cq) attach_srq();
    connect_all();
  }

  ~Exchange() {
    if (acceptor_) acceptor_->close();
  }

  void run() {
    const auto memory = site_.memory(std::size_t{2} * plan_.connections * kWindow * kMessageSize);
    for (std::uint32_t i = 0; i < plan_.connections; ++i) {
      links_[i]->request.use(memory, std::size_t{2 * i} * kWindow * kMessageSize, kWindow);
      links_[i]->reply.use(memory, std::size_t{2 * i + 1} * kWindow * kMessageSize, kWindow);
    }
    for (std::uint32_t sent = 0; sent < plan_.messages; ++sent) {
      for (auto& link : links_) {
        // No more than half a window is unanswered: the server's handler cannot wait for credits.
        await("replies", [&] {
          return link->request.sent() - link->reply.received < kWindow / 2 &&
                 link->request.sent() - link->reply.completed_sends < kWindow / 2;
        });
        link->request.send(link->client->connection(), 1);
      }
    }
    for (auto& link : links_) {
      await("all replies of connection " + std::to_string(link->request.tag()),
            [&] { return link->reply.received == plan_.messages; });
      await("the send completions of both sides", [&] {
        return link->reply.completed_sends == plan_.messages &&
               link->request.completed_sends == plan_.messages;
      });
    }
    judge();
  }

  void finish() {
    acceptor_->close();
    for (auto& link : links_) detach_clean(*link->client);
    if (plan_.host_driven) {
      std::atomic<std::uint32_t> done{0};
      for (auto& link : links_) {
        link->server->detach_async(kDrainPatience, [&](const DetachReport& report) {
          EXPECT_TRUE(report.clean) << report.to_string();
          ++done;
        });
      }
      await("the detaches", [&] { return done == plan_.connections; });
      if (source_) {
        source_->detach_async(kDrainPatience, [&](const DetachReport& report) {
          EXPECT_TRUE(report.clean) << report.to_string();
          ++done;
        });
        await("the source's detach", [&] { return done == plan_.connections + 1; });
      }
      await("the loop going to sleep", [&] { return host_->sleeps > 0; });
      EXPECT_EQ(host_->lost_wakes, 0u) << "work was there that no descriptor told of";
      host_->stop();
    } else {
      for (auto& link : links_) detach_clean(*link->server);
      if (source_) {
        const DetachReport report = require(source_->detach(kDrainPatience));
        EXPECT_TRUE(report.clean) << report.to_string();
      }
    }
    EXPECT_TRUE((*server_)->stop(kDrainPatience).ok());
    EXPECT_TRUE((*client_)->stop(kDrainPatience).ok());
    EXPECT_EQ(server_->sum(&PollerCounters::orphans), 0u);
    EXPECT_EQ(server_->failed_sources, 0u);
  }

 private:
  /// A completion on the server's side of this link.
  void serve(Link& link, ReceivePool* pool, const ibv_wc& wc) {
    if (pool == nullptr || !pool->owns(wc.wr_id)) {
      link.reply.note(wc);
      return;
    }
    link.request.receive(*pool, wc);
    if (wc.status != IBV_WC_SUCCESS) return;
    if (!link.reply.send(link.server->connection()).ok()) ++link.refused_replies;
  }

  void attach_srq() {
    const std::uint32_t depth = plan_.connections * kWindow;
    srq_ = require(
        rpma::SharedReceiveQueue::create(site_.peer, {.depth = depth, .receive_cq_size = {}}));
    srq_pool_ = require(srq_->stock(depth, 64));
    AttachOptions options;
    options.order = plan_.order;
    options.key = key();
    options.receive_pool = srq_pool_;
    source_ = require(
        (*server_)->attach(srq_->receive_cq(), options,
                           [this](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
                             for (const ibv_wc& wc : batch) {
                               Link* const link = static_cast<Link*>(info.context);
                               if (link != nullptr) {
                                 const Stream::Call call(link->request);
                                 serve(*link, srq_pool_, wc);
                               } else {
                                 Link& of = *by_qp_num(wc.qp_num);
                                 const auto call = call_of(of);
                                 serve(of, srq_pool_, wc);
                               }
                             }
                           }));
  }

  /// Without an order there is no connection in BatchInfo: by the application's own table.
  Link* by_qp_num(std::uint32_t qp_num) {
    const std::scoped_lock lock(mutex_);
    return by_qp_num_.at(qp_num);
  }

  rpma::ConnectionConfig server_config() const {
    rpma::ConnectionConfig config = patient(2 * kWindow, 2 * kWindow);
    if (plan_.receives == Receives::srq_cq) config.srq = srq_;
    if (plan_.receives == Receives::shared_channel) config.shared_channel = true;
    if (plan_.receives == Receives::main_cq) config.receive_cq_size = 0;
    return config;
  }

  /// Replies and receives may be handled at once where no order holds them together. The key is
  /// the queue pair: one key for the connection's own CQs and the SRQ's.
  std::optional<Stream::Call> call_of(Link& link) const {
    const bool together = plan_.order == Order::per_connection || plan_.order == Order::per_key;
    return together ? std::make_optional<Stream::Call>(link.request) : std::nullopt;
  }
  KeyFunction key() const {
    if (plan_.order != Order::per_key) return {};
    return [](const ibv_wc& wc) noexcept { return std::uint64_t{wc.qp_num}; };
  }

  void connect_all() {
    acceptor_ = std::make_unique<Acceptor>(
        site_, **server_, server_config(),
        [this](std::uint32_t tag) {
          Link* const link = links_.at(tag).get();
          link->request.ordered = plan_.order != Order::none;
          ConnectionOptions options;
          options.order = plan_.order;
          options.key = key();
          options.context = link;
          if (source_ && plan_.order == Order::per_connection) options.receive_source = source_;
          options.handler = [this, link](std::span<const ibv_wc> batch,
                                         const BatchInfo& info) noexcept {
            if (info.context != link) ++link->request.strange;
            const auto call = call_of(*link);
            for (const ibv_wc& wc : batch) serve(*link, link->server_pool, wc);
          };
          return std::optional<ConnectionOptions>(std::move(options));
        },
        [this](std::uint32_t tag, ConnectionHandle& handle) {
          const std::scoped_lock lock(mutex_);
          by_qp_num_[handle.connection().qp_num()] = links_.at(tag).get();
        });
    for (auto& link : links_) {
      ConnectionOptions options;
      options.handler = [link = link.get()](std::span<const ibv_wc> batch,
                                            const BatchInfo&) noexcept {
        const Stream::Call call(link->reply);
        for (const ibv_wc& wc : batch) {
          ReceivePool* const pool = link->client->connection().receive_pool();
          if (pool != nullptr && pool->owns(wc.wr_id)) {
            link->reply.receive(*pool, wc);
          } else {
            link->request.note(wc);
          }
        }
      };
      link->client = require(connect(site_, **client_, acceptor_->port(), link->request.tag(),
                                     std::move(options), patient(2 * kWindow, 2 * kWindow)));
      (void)require(link->client->connection().stock(2 * kWindow, 64));
    }
    acceptor_->await_connected(plan_.connections);
    for (auto& link : links_) {
      link->server = acceptor_->handle(link->request.tag());
      if (plan_.receives != Receives::srq_cq) {
        link->server_pool = require(link->server->connection().stock(2 * kWindow, 64));
      }
    }
  }

  void judge() {
    for (auto& link : links_) {
      SCOPED_TRACE("connection " + std::to_string(link->request.tag()));
      EXPECT_EQ(link->request.received, plan_.messages);
      EXPECT_EQ(link->request.completed_sends, plan_.messages);
      EXPECT_EQ(link->refused_replies, 0u);
      for (const Stream* stream : {&link->request, &link->reply}) {
        EXPECT_EQ(stream->out_of_order, 0u);
        EXPECT_EQ(stream->strange, 0u);
        EXPECT_EQ(stream->failed, 0u);
        EXPECT_EQ(stream->overlaps, 0u);
      }
    }
  }

  Plan plan_;
  Site site_;
  std::mutex mutex_;
  std::map<std::uint32_t, Link*> by_qp_num_;
  std::shared_ptr<rpma::SharedReceiveQueue> srq_;
  ReceivePool* srq_pool_ = nullptr;
  std::vector<std::unique_ptr<Link>> links_;
  std::unique_ptr<Node> server_, client_;
  std::unique_ptr<HostLoop> host_;
  std::shared_ptr<SourceHandle> source_;
  std::unique_ptr<Acceptor> acceptor_;
};

void exchange(const Plan& plan) {
  Exchange run(plan);
  run.run();
  run.finish();
}

class EndToEnd : public ::testing::TestWithParam<std::tuple<Receives, Order, WaitMode>> {};

TEST_P(EndToEnd, EachMessageIsHandledAndAnsweredOnce) {
  Plan plan;
  std::tie(plan.receives, plan.order, plan.server.wait) = GetParam();
  exchange(plan);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, EndToEnd,
    ::testing::Combine(::testing::Values(Receives::srq_cq, Receives::own_cq,
                                         Receives::shared_channel, Receives::main_cq),
                       ::testing::Values(Order::inlined, Order::none, Order::per_connection,
                                         Order::per_key),
                       ::testing::Values(WaitMode::event, WaitMode::busy, WaitMode::adaptive)),
    [](const auto& instance) {
      return name_of(std::get<0>(instance.param)) + "_" + to_string(std::get<1>(instance.param)) +
             "_" + to_string(std::get<2>(instance.param));
    });

// R3.
TEST(EndToEndOrder, ThirtyTwoConnectionsOfOneSrqAreEachHandledInOrder) {
  Plan plan;
  plan.connections = 32;
  plan.messages = 24;
  plan.server.workers = 4;
  plan.server.pollers = 2;
  exchange(plan);
}

// C8: with a listener that control() steps.
TEST(EndToEndHostDriven, AnEngineDrivesEverythingFromItsOwnLoopAsleepInBetween) {
  for (const Receives receives : {Receives::srq_cq, Receives::shared_channel}) {
    Plan plan;
    plan.receives = receives;
    plan.host_driven = true;
    exchange(plan);
  }
}

}  // namespace
}  // namespace sluice::system_test
