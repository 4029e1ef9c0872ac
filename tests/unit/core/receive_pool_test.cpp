// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/receive_pool.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace sluice {
namespace {

constexpr std::uint32_t kBufferSize = 16;

/// A receive queue that keeps what was posted, and notices two posts at once.
struct Queue {
  std::mutex mutex;
  std::deque<std::pair<std::size_t, std::uint64_t>> posted;  // offset, wr_id
  std::atomic<int> inside{0};
  std::atomic<bool> twice{false};
  std::atomic<std::uint64_t> posts{0};
  std::atomic<std::uint64_t> fail_at{0};  ///< the post that fails; 0: none
  bool survives = false;

  std::optional<ibv_wc> complete(ibv_wc_status status = IBV_WC_SUCCESS,
                                 ibv_wc_opcode opcode = IBV_WC_RECV, std::uint32_t length = 4) {
    const std::lock_guard lock(mutex);
    if (posted.empty()) return std::nullopt;
    ibv_wc wc{};
    wc.wr_id = posted.front().second;
    wc.status = status;
    wc.opcode = opcode;
    wc.byte_len = length;
    posted.pop_front();
    return wc;
  }
};

class QueuePoster final : public ReceivePoster {
 public:
  explicit QueuePoster(Queue& queue) : queue_(queue) {}
  Status post(std::size_t offset, std::size_t length, std::uint64_t wr_id) override {
    if (queue_.inside.fetch_add(1) != 0) queue_.twice.store(true);
    EXPECT_EQ(length, kBufferSize);
    EXPECT_EQ(offset % kBufferSize, 0U);
    const bool fails = queue_.posts.fetch_add(1) + 1 == queue_.fail_at.load();
    if (!fails) {
      const std::lock_guard lock(queue_.mutex);
      queue_.posted.emplace_back(offset, wr_id);
    }
    queue_.inside.fetch_sub(1);
    return fails ? Status(StatusCode::device_failed, "the post failed") : Status();
  }
  bool survives_failed_completion() const noexcept override { return queue_.survives; }

 private:
  Queue& queue_;
};

class ReceivePoolTest : public ::testing::Test {
 protected:
  std::unique_ptr<ReceivePool> make(std::uint32_t depth, ReceivePoolConfig config = {}) {
    config.depth = depth;
    config.buffer_size = kBufferSize;
    memory_.assign(std::size_t{depth} * kBufferSize, std::byte{0});
    auto pool =
        ReceivePool::create(std::move(config), memory_, std::make_unique<QueuePoster>(queue_));
    EXPECT_TRUE(pool.ok()) << pool.status().to_string();
    EXPECT_TRUE((*pool)->post_all().ok());
    return std::move(*pool);
  }
  Queue queue_;
  std::vector<std::byte> memory_;
};

TEST_F(ReceivePoolTest, PostsEveryBufferOnce) {
  const auto pool = make(8);
  EXPECT_EQ(pool->posted(), 8U);
  EXPECT_EQ(pool->kept(), 0U);
  std::set<std::size_t> offsets;
  for (const auto& [offset, wr_id] : queue_.posted) {
    EXPECT_TRUE(offsets.insert(offset).second);
    EXPECT_TRUE(pool->owns(wr_id));
  }
  EXPECT_EQ(offsets.size(), 8U);
  EXPECT_TRUE(pool->post_all().ok());  // nothing left to post
  EXPECT_EQ(queue_.posted.size(), 8U);
}

TEST_F(ReceivePoolTest, OwnsItsSlotsAndNothingElse) {
  const auto pool = make(4);
  const std::uint64_t wr_id = queue_.posted.front().second;
  EXPECT_FALSE(pool->owns(0));
  EXPECT_FALSE(pool->owns(1));
  EXPECT_FALSE(pool->owns(wr_id + 1));
  EXPECT_FALSE(pool->owns(~0ULL));
  EXPECT_FALSE(pool->owns(reinterpret_cast<std::uint64_t>(pool.get())));
  int owned = 0;
  for (std::int64_t i = -8; i <= 8; ++i) {
    owned += pool->owns(wr_id + static_cast<std::uint64_t>(i * 64)) ? 1 : 0;
  }
  EXPECT_EQ(owned, 4);
}

TEST_F(ReceivePoolTest, ALoanShowsTheBytesAndIsPostedAgainAfterIt) {
  const auto pool = make(2);
  const auto [offset, wr_id] = queue_.posted.front();
  memory_[offset + 3] = std::byte{42};
  const ibv_wc wc = *queue_.complete();
  pool->polled(std::span(&wc, 1));
  EXPECT_EQ(pool->posted(), 1U);
  EXPECT_EQ(pool->on_loan(), 0U);  // undelivered
  ReceivedBuffer buffer = pool->take(wc);
  EXPECT_EQ(pool->on_loan(), 1U);
  ASSERT_EQ(buffer.bytes().size(), 4U);
  EXPECT_EQ(buffer.bytes()[3], std::byte{42});
  EXPECT_EQ(queue_.posted.size(), 1U);
  buffer.release();
  EXPECT_FALSE(buffer.held());
  EXPECT_EQ(queue_.posted.size(), 2U);
  EXPECT_EQ(pool->posted(), 2U);
  EXPECT_EQ(pool->on_loan(), 0U);
}

TEST_F(ReceivePoolTest, AMovedLoanIsPostedOnce) {
  const auto pool = make(4);
  ReceivedBuffer one = pool->take(*queue_.complete());
  ReceivedBuffer two(std::move(one));
  ReceivedBuffer three;
  three = std::move(two);
  EXPECT_EQ(pool->on_loan(), 1U);
  three = pool->take(*queue_.complete());  // lets go of the first
  EXPECT_EQ(pool->on_loan(), 1U);
  EXPECT_EQ(pool->posted(), 3U);
}

TEST_F(ReceivePoolTest, AWriteWithImmediateAndAFailureHaveNoBytes) {
  queue_.survives = true;
  const auto pool = make(4);
  EXPECT_TRUE(
      pool->take(*queue_.complete(IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, 8)).bytes().empty());
  EXPECT_TRUE(pool->take(*queue_.complete(IBV_WC_LOC_LEN_ERR)).bytes().empty());
  // A length that cannot be is not believed.
  EXPECT_EQ(pool->take(*queue_.complete(IBV_WC_SUCCESS, IBV_WC_RECV, 1000)).bytes().size(),
            kBufferSize);
  EXPECT_EQ(pool->posted(), 4U);
}

TEST_F(ReceivePoolTest, AFlushedReceiveEndsThePostingToAConnection) {
  const auto pool = make(4);
  ReceivedBuffer before = pool->take(*queue_.complete());
  { const ReceivedBuffer failed = pool->take(*queue_.complete(IBV_WC_WR_FLUSH_ERR)); }
  before.release();
  EXPECT_EQ(pool->posted(), 2U);
  EXPECT_EQ(pool->kept(), 2U);
  EXPECT_EQ(queue_.posts.load(), 4U);
}

TEST_F(ReceivePoolTest, AFailedReceiveOfAnSrqIsPostedAgain) {
  queue_.survives = true;
  const auto pool = make(4);
  { const ReceivedBuffer failed = pool->take(*queue_.complete(IBV_WC_LOC_LEN_ERR)); }
  EXPECT_EQ(pool->posted(), 4U);
}

TEST_F(ReceivePoolTest, StopPostingKeepsWhatIsReleased) {
  const auto pool = make(4);
  ReceivedBuffer buffer = pool->take(*queue_.complete());
  pool->stop_posting();
  buffer.release();
  EXPECT_EQ(pool->posted(), 3U);
  EXPECT_EQ(pool->kept(), 1U);
  EXPECT_EQ(pool->post_all().code(), StatusCode::cancelled);
}

TEST_F(ReceivePoolTest, AFailedPostIsKeptAsTheError) {
  const auto pool = make(4);
  queue_.fail_at = 5;
  pool->take(*queue_.complete()).release();
  EXPECT_EQ(pool->last_error().code(), StatusCode::device_failed);
  EXPECT_EQ(pool->posted(), 3U);
  EXPECT_EQ(pool->kept(), 1U);
  pool->take(*queue_.complete()).release();  // not tried again
  EXPECT_EQ(queue_.posts.load(), 5U);
  EXPECT_EQ(pool->post_all().code(), StatusCode::device_failed);
}

TEST_F(ReceivePoolTest, AFailureWhilePostingAllIsReturned) {
  queue_.fail_at = 3;
  memory_.assign(8 * kBufferSize, std::byte{0});
  auto pool = ReceivePool::create(
      {.depth = 8, .buffer_size = kBufferSize, .low_water = 0, .on_low_water = {}}, memory_,
      std::make_unique<QueuePoster>(queue_));
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ((*pool)->post_all().code(), StatusCode::device_failed);
  EXPECT_EQ((*pool)->posted(), 2U);
  EXPECT_EQ((*pool)->kept(), 6U);
}

TEST_F(ReceivePoolTest, LowWaterIsToldOncePerCrossing) {  // R5
  std::vector<std::uint32_t> told;
  ReceivePoolConfig config;
  config.low_water = 3;
  config.on_low_water = [&](std::uint32_t posted) { told.push_back(posted); };
  const auto pool = make(6, std::move(config));
  std::vector<ReceivedBuffer> held;
  for (int i = 0; i < 6; ++i) held.push_back(pool->take(*queue_.complete()));
  EXPECT_EQ(told, std::vector<std::uint32_t>{2});
  held.resize(4);  // two are posted again: still below
  held.push_back(pool->take(*queue_.complete()));
  EXPECT_EQ(told.size(), 1U);
  held.clear();
  std::vector<ibv_wc> wcs;
  for (int i = 0; i < 5; ++i) wcs.push_back(*queue_.complete());
  pool->polled(wcs);  // at once, and before anybody takes them
  EXPECT_EQ(told, (std::vector<std::uint32_t>{2, 1}));
  EXPECT_EQ(pool->low_water_events(), 2U);
  for (const ibv_wc& wc : wcs) (void)pool->take(wc);
  EXPECT_EQ(pool->posted(), 6U);
}

TEST_F(ReceivePoolTest, RefusesWhatCannotWork) {
  std::vector<std::byte> memory(64);
  const auto attempt = [&](std::uint32_t depth, std::uint32_t size, std::uint32_t low_water) {
    return ReceivePool::create(
               {.depth = depth, .buffer_size = size, .low_water = low_water, .on_low_water = {}},
               memory, std::make_unique<QueuePoster>(queue_))
        .status();
  };
  EXPECT_TRUE(attempt(4, 16, 0).ok());
  EXPECT_EQ(attempt(0, 16, 0).code(), StatusCode::invalid_argument);
  EXPECT_EQ(attempt((1U << 20) + 1, 16, 0).code(), StatusCode::invalid_argument);
  EXPECT_EQ(attempt(4, 0, 0).code(), StatusCode::invalid_argument);
  EXPECT_EQ(attempt(4, 16, 5).code(), StatusCode::invalid_argument);
  const Status small = attempt(5, 16, 0);
  EXPECT_EQ(small.code(), StatusCode::invalid_argument);
  EXPECT_NE(small.message().find("80 bytes"), std::string::npos) << small.message();
}

using ReceivePoolDeathTest = ReceivePoolTest;

TEST_F(ReceivePoolDeathTest, ACompletionIsTakenOnce) {
  const auto pool = make(2);
  const ibv_wc wc = *queue_.complete();
  ReceivedBuffer buffer = pool->take(wc);
  EXPECT_DEATH((void)pool->take(wc), "taken twice");
  ibv_wc foreign{};
  foreign.wr_id = 4711;
  EXPECT_DEATH((void)pool->take(foreign), "not of this receive pool");
}

TEST_F(ReceivePoolDeathTest, APoolIsNotDestroyedUnderALoan) {
  EXPECT_DEATH(
      {
        auto pool = make(2);
        ReceivedBuffer buffer = pool->take(*queue_.complete());
        pool.reset();
      },
      "1 of its buffers are on loan");
}

// Many threads let go at once: each buffer is posted exactly once, never by two at the same time.
TEST_F(ReceivePoolTest, ThreadsReleaseAndNobodyPostsTwiceAtOnce) {
  constexpr std::uint32_t kDepth = 64;
  constexpr int kThreads = 4;
  constexpr int kEach = 20'000;
  queue_.survives = true;
  const auto pool = make(kDepth);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<std::uint32_t>(t));
      std::vector<ReceivedBuffer> held;
      for (int i = 0; i < kEach; ++i) {
        if (const auto wc = queue_.complete()) {
          if (random() % 2 == 0) pool->polled(std::span(&*wc, 1));
          held.push_back(pool->take(*wc));
          held.back().bytes()[0] = static_cast<std::byte>(t);  // nobody else's now
        }
        if (held.size() > random() % 8) held.clear();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(queue_.twice.load());
  EXPECT_EQ(pool->posted(), kDepth);
  EXPECT_EQ(pool->on_loan(), 0U);
  EXPECT_EQ(queue_.posted.size(), kDepth);
  std::set<std::uint64_t> ids;
  for (const auto& entry : queue_.posted) ids.insert(entry.second);
  EXPECT_EQ(ids.size(), kDepth);
}

}  // namespace
}  // namespace sluice
