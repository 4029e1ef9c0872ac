// SPDX-License-Identifier: BSD-3-Clause
// Send credits, seen through a dispatcher (C4).
#include "support.hpp"

namespace sluice::system_test {
namespace {

constexpr std::uint32_t kQueue = 4;

class Credits : public ::testing::Test {
 protected:
  Credits() {
    acceptor_ = std::make_unique<Acceptor>(site_, *server_, patient(64, 64), [this](std::uint32_t) {
      ConnectionOptions options;
      options.handler = [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
        for (const ibv_wc& wc : batch) {
          if (ReceivePool* const pool = pool_; pool != nullptr && pool->owns(wc.wr_id)) {
            (void)pool->take(wc);
            if (wc.status == IBV_WC_SUCCESS) ++arrived_;
          }
        }
      };
      return std::optional<ConnectionOptions>(std::move(options));
    });
    ConnectionOptions options;
    options.handler = [this](std::span<const ibv_wc> batch, const BatchInfo&) noexcept {
      completed_ += static_cast<std::uint32_t>(batch.size());
      if (hold_) gate_.pass();
    };
    client_end_ = require(connect(site_, *client_, acceptor_->port(), 0, std::move(options),
                                  patient(kQueue, kQueue)));
    acceptor_->await_connected(1);
    server_end_ = acceptor_->any();
    pool_ = require(server_end_->connection().stock(64, 64));
  }

  void TearDown() override {
    gate_.open();
    acceptor_.reset();
    client_.reset();
    server_.reset();
  }

  Status send(bool signalled = true) {
    return client_end_->connection().send_with_imm(nullptr, 0, 0, 0, 0, signalled);
  }
  std::uint32_t outstanding() { return client_end_->connection().send_credits().outstanding(); }

  Site site_;
  Gate gate_;
  std::atomic<bool> hold_{false};
  std::atomic<std::uint32_t> completed_{0}, arrived_{0};
  std::atomic<ReceivePool*> pool_{nullptr};
  Node server_, client_;
  std::unique_ptr<Acceptor> acceptor_;
  std::shared_ptr<ConnectionHandle> client_end_, server_end_;
};

TEST_F(Credits, AllInUseIsRefusedAndCompletionsGiveThemBack) {
  hold_ = true;  // credits go back when the handler has returned
  for (std::uint32_t i = 0; i < kQueue; ++i) require(send());
  const Status refused = send();
  EXPECT_EQ(refused.code(), StatusCode::resource_exhausted) << refused.to_string();
  EXPECT_NE(refused.message().find("4 of 4 send credits"), std::string::npos)
      << refused.to_string();
  await("the handler", [&] { return gate_.arrived() > 0; });
  EXPECT_EQ(outstanding(), kQueue);
  hold_ = false;
  gate_.open();
  await("the credits", [&] { return outstanding() == 0; });
  for (std::uint32_t i = 0; i < kQueue; ++i) require(send());
  await("the messages", [&] { return arrived_ == 2 * kQueue; });
  await("the credits", [&] { return outstanding() == 0; });
  EXPECT_EQ(completed_, 2 * kQueue);
}

TEST_F(Credits, UnsignalledSendsAreRetiredByTheNextSignalledOne) {
  for (std::uint32_t round = 1; round <= 10; ++round) {
    for (std::uint32_t i = 1; i < kQueue; ++i) require(send(false));
    const Status stuck = send(false);  // nothing would ever retire it
    EXPECT_EQ(stuck.code(), StatusCode::resource_exhausted) << stuck.to_string();
    EXPECT_EQ(outstanding(), kQueue - 1);
    require(send(true));
    await("the credits", [&] { return outstanding() == 0; });
    await("the completion", [&] { return completed_ == round; });
    await("the messages", [&] { return arrived_ == round * kQueue; });
  }
}

TEST_F(Credits, AfterAFailureNothingIsPosted) {
  detach_clean(*server_end_);
  await("the refusal", [&] {
    const Status status = send();
    if (status.code() == StatusCode::connection_lost) return true;
    // Until the failure is seen a post may be taken, or refused by the device or for want of
    // credits.
    return false;
  });
  EXPECT_EQ(send().code(), StatusCode::connection_lost);
  EXPECT_TRUE(client_end_->connection().send_credits().closed());
  await("the end being seen", [&] { return client_end_->down(); });
  detach_clean(*client_end_);
}

// 2500 messages over a queue of 4: each credit comes back.
TEST_F(Credits, ASmallQueueCarriesManyMessages) {
  constexpr std::uint32_t kMany = 2500;
  for (std::uint32_t sent = 0; sent < kMany;) {
    await("a credit", [&] {
      const Status status = send(sent % 3 == 0);
      if (!status.ok() && status.code() != StatusCode::resource_exhausted) require(status);
      // An unsignalled one may have to wait for a signalled one that nobody has sent yet.
      return status.ok() || send(true).ok();
    });
    ++sent;
  }
  require([&] {
    Status last(StatusCode::internal, "not tried");
    await("the last", [&] { return (last = send(true)).ok(); });
    return last;
  }());
  await("the messages", [&] { return arrived_ == kMany + 1; });
  await("the credits", [&] { return outstanding() == 0; });
}

}  // namespace
}  // namespace sluice::system_test
