// SPDX-License-Identifier: BSD-3-Clause
// Disk completions through pollers, lanes and workers: the adapters, and a real ring as the source.
#include "sluice/dispatch/uring.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "sluice/core/uring/ring.hpp"
#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::testing {
namespace {

using Cqes = std::span<const io_uring_cqe>;
using uring::Ring;

io_uring_cqe cqe_of(std::uint64_t user_data, std::int32_t res, std::uint32_t flags) {
  io_uring_cqe cqe;
  cqe.user_data = user_data;
  cqe.res = res;
  cqe.flags = flags;
  return cqe;
}

std::shared_ptr<Ring> make_ring(std::uint32_t submissions, std::uint32_t completions = 0) {
  auto ring = Ring::create({.submissions = submissions, .completions = completions}, "ring");
  if (!ring.ok()) throw std::runtime_error(ring.status().to_string());
  return *ring;
}

// --- the adapters -------------------------------------------------------------------------------

TEST(UringHandler, GivesTheBatchAsItWas) {
  for (const std::size_t size : {1U, 31U, 32U, 33U, 64U, 70U}) {
    std::vector<ibv_wc> batch;
    for (std::size_t i = 0; i < size; ++i) {
      batch.push_back(uring::to_wc(cqe_of(i, -static_cast<std::int32_t>(i), 7)));
    }
    BatchInfo info;
    info.worker = 3;
    std::size_t seen = 0, calls = 0;
    Handler handler = uring_handler([&](Cqes cqes, const BatchInfo& told) noexcept {
      ++calls;
      EXPECT_EQ(&told, &info);
      for (const io_uring_cqe& cqe : cqes) {
        EXPECT_EQ(cqe.user_data, seen);
        EXPECT_EQ(cqe.res, -static_cast<std::int32_t>(seen));
        EXPECT_EQ(cqe.flags, 7U);
        ++seen;
      }
    });
    handler(batch, info);
    EXPECT_EQ(seen, size);
    EXPECT_EQ(calls, (size + 31) / 32);
  }
}

TEST(UringHandler, TakesNoMoreRoomThanTheCallable) {
  std::array<std::byte, Handler::kInlineSize> filler{};
  auto callable = [filler](Cqes, const BatchInfo&) noexcept { static_cast<void>(filler); };
  static_assert(sizeof(UringHandler<decltype(callable)>) == sizeof callable);
  // One that can be moved and not copied will do.
  Handler handler =
      uring_handler([moved = std::make_unique<int>(1)](Cqes cqes, const BatchInfo&) noexcept {
        *moved += static_cast<int>(cqes.size());
      });
  const ibv_wc wc{};
  handler(std::span(&wc, 1), BatchInfo{});
}

TEST(UringKey, SeesTheCompletionAsItWas) {
  const auto key = uring_key([](const io_uring_cqe& cqe) noexcept -> std::uint64_t {
    return cqe.user_data * 1000 + static_cast<std::uint32_t>(-cqe.res) * 10 + cqe.flags;
  });
  EXPECT_EQ(key(uring::to_wc(cqe_of(5, -7, 3))), 5073U);
  static_assert(noexcept(key(ibv_wc{})));
}

// --- a ring attached ----------------------------------------------------------------------------

struct Way {
  Order order;
  WaitMode wait;
};
class AttachedRing : public ::testing::TestWithParam<Way> {
 protected:
  static AttachOptions options() {
    // A ring is one stream: with an order, one lane.
    return {.order = GetParam().order, .single_connection = true};
  }
};
INSTANTIATE_TEST_SUITE_P(
    Ways, AttachedRing,
    ::testing::Values(Way{Order::inlined, WaitMode::event}, Way{Order::none, WaitMode::event},
                      Way{Order::per_connection, WaitMode::event}, Way{Order::none, WaitMode::busy},
                      Way{Order::per_connection, WaitMode::busy}),
    [](const auto& way) {
      return std::string(to_string(way.param.order)) + "_" + to_string(way.param.wait);
    });

TEST_P(AttachedRing, EachOperationIsHandledOnceAndInOrderWhereThereIsOne) {
  constexpr std::uint64_t kMany = 20'000;
  const bool ordered = GetParam().order != Order::none;
  const auto ring = make_ring(16, 32);
  auto dispatcher = start(small_config(2, GetParam().wait));
  std::atomic<std::uint64_t> handled{0}, out_of_order{0}, overlaps{0}, wrong{0};
  std::atomic<bool> inside{false};
  std::vector<std::atomic<std::uint8_t>> times(kMany);
  auto handle =
      dispatcher->attach(ring, options(), uring_handler([&](Cqes cqes, const BatchInfo&) noexcept {
                           if (inside.exchange(true) && ordered) ++overlaps;
                           std::uint64_t next = handled;
                           for (const io_uring_cqe& cqe : cqes) {
                             if (ordered && cqe.user_data != next++) ++out_of_order;
                             if (cqe.res != 0 || times.at(cqe.user_data)++ != 0) ++wrong;
                           }
                           inside = false;
                           handled += cqes.size();
                         }));
  ASSERT_TRUE(handle.ok()) << handle.status().to_string();
  const auto end = std::chrono::steady_clock::now() + 4 * kGenerous;
  for (std::uint64_t made = 0; made < kMany;) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << ring->in_flight() << " in flight";
    for (io_uring_sqe* sqe = nullptr; made < kMany && ring->try_prepare(std::span(&sqe, 1));
         ++made) {
      ::io_uring_prep_nop(sqe);
      sqe->user_data = made;
    }
    ASSERT_TRUE(ring->submit().ok());
    if (made % 1000 < 16) {  // now and then all goes to sleep
      ASSERT_TRUE(eventually([&] { return handled == made; }));
    }
  }
  ASSERT_TRUE(eventually([&] { return handled == kMany; })) << handled;
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(out_of_order, 0u);
  EXPECT_EQ(overlaps, 0u);
  EXPECT_TRUE(eventually([&] { return ring->in_flight() == 0; })) << "credits are lost";
  const auto report = (*handle)->detach(kGenerous);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->clean) << report->to_string();
  EXPECT_TRUE(ring->close(kGenerous).ok());
}

// A detach waits for the handlers of what was polled; what is in the kernel goes to close().
TEST_P(AttachedRing, DetachedWithOperationsInFlightEachIsHandledOrGivenBack) {
  constexpr std::uint64_t kWaiting = 5;
  for (int round = 0; round < 50; ++round) {
    const auto ring = make_ring(64);
    auto dispatcher = start(small_config(2, GetParam().wait));
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    std::atomic<std::uint64_t> handled{0};
    std::atomic<bool> over{false}, too_late{false};
    auto handle = dispatcher->attach(ring, options(),
                                     uring_handler([&](Cqes cqes, const BatchInfo&) noexcept {
                                       if (over) too_late = true;
                                       handled += cqes.size();
                                     }));
    ASSERT_TRUE(handle.ok());
    char bytes[kWaiting];
    io_uring_sqe* sqes[40];
    ASSERT_TRUE(ring->try_prepare(sqes));
    for (std::uint64_t i = 0; i < 40; ++i) {
      if (i < kWaiting) {
        ::io_uring_prep_read(sqes[i], ends[0], &bytes[i], 1, 0);
      } else {
        ::io_uring_prep_nop(sqes[i]);
        if (i % 2 == 0) sqes[i]->flags |= IOSQE_ASYNC;
      }
      sqes[i]->user_data = i;
    }
    ASSERT_TRUE(ring->submit().ok());
    EXPECT_EQ(ring->close(kGenerous).code(), StatusCode::already_owned);
    const auto report = (*handle)->detach(kGenerous);
    over = true;
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(report->clean) << report->to_string();
    EXPECT_EQ(ring->in_flight(), 40 - handled);
    std::uint64_t cancelled = 0, others = 0;
    const Status status = ring->close(kGenerous, [&](const io_uring_cqe& cqe) {
      cqe.user_data < kWaiting ? cancelled += cqe.res == -ECANCELED : ++others;
    });
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(cancelled, kWaiting);
    EXPECT_EQ(handled + cancelled + others, 40U);
    EXPECT_EQ(ring->in_flight(), 0U);
    EXPECT_FALSE(too_late);
    ::close(ends[0]);
    ::close(ends[1]);
  }
}

// The way to end without abandoning anything.
TEST_P(AttachedRing, CancelledBeforeTheDetachEverythingIsHandled) {
  const auto ring = make_ring(16);
  auto dispatcher = start(small_config(2, GetParam().wait));
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  std::atomic<std::uint64_t> cancelled{0};
  auto handle =
      dispatcher->attach(ring, options(), uring_handler([&](Cqes cqes, const BatchInfo&) noexcept {
                           for (const io_uring_cqe& cqe : cqes) cancelled += cqe.res == -ECANCELED;
                         }));
  ASSERT_TRUE(handle.ok());
  char bytes[8];
  io_uring_sqe* sqes[8];
  ASSERT_TRUE(ring->try_prepare(sqes));
  for (std::uint64_t i = 0; i < 8; ++i) ::io_uring_prep_read(sqes[i], ends[0], &bytes[i], 1, 0);
  ASSERT_TRUE(ring->submit().ok());
  ASSERT_TRUE(ring->cancel().ok());
  ASSERT_TRUE(eventually([&] { return ring->in_flight() == 0; }));
  EXPECT_EQ(cancelled, 8U);
  EXPECT_TRUE((*handle)->detach(kGenerous)->clean);
  EXPECT_TRUE(ring->close(kGenerous, [](const io_uring_cqe&) { ADD_FAILURE(); }).ok());
  ::close(ends[0]);
  ::close(ends[1]);
}

// One ring for each worker, and handlers that submit: each completion causes the next operation, on
// the ring of the worker that handles it.
TEST(RingPerWorker, HandlersSubmitToTheirWorkersRing) {
  constexpr std::uint32_t kWorkers = 2, kChains = 32, kSteps = 200;
  const Way ways[] = {{Order::none, WaitMode::event}, {Order::per_connection, WaitMode::event}};
  for (const Way& way : ways) {
    std::vector<std::shared_ptr<Ring>> rings;
    // All chains may be on one ring, each with its next operation and, on every worker, one whose
    // handler is just about to return.
    for (std::uint32_t i = 0; i < kWorkers; ++i) {
      rings.push_back(make_ring(kChains, (kWorkers + 1) * kChains));
    }
    const auto seed = make_ring(kChains, kChains);
    auto dispatcher = start(small_config(kWorkers, way.wait));
    std::atomic<std::uint64_t> finished{0}, wrong{0};
    std::array<std::atomic<std::uint32_t>, kChains> steps{};
    const auto advance = [&](Cqes cqes, const BatchInfo& info) noexcept {
      Ring& ring = *rings.at(info.worker);
      for (const io_uring_cqe& cqe : cqes) {
        if (cqe.res != 0) ++wrong;
        if (++steps.at(cqe.user_data) == kSteps) {
          ++finished;
          continue;
        }
        io_uring_sqe* sqe = nullptr;
        if (!ring.try_prepare(std::span(&sqe, 1))) {
          ++wrong;
          continue;
        }
        ::io_uring_prep_nop(sqe);
        if (cqe.user_data % 3 == 0) sqe->flags |= IOSQE_ASYNC;
        sqe->user_data = cqe.user_data;
      }
      if (!ring.submit().ok()) ++wrong;
    };
    std::vector<std::shared_ptr<SourceHandle>> handles;
    for (const auto& ring : {rings[0], rings[1], seed}) {
      auto handle = dispatcher->attach(ring, {.order = way.order, .single_connection = true},
                                       uring_handler(advance));
      ASSERT_TRUE(handle.ok());
      handles.push_back(*handle);
    }
    io_uring_sqe* sqes[kChains];
    ASSERT_TRUE(seed->try_prepare(sqes));
    for (std::uint32_t i = 0; i < kChains; ++i) {
      ::io_uring_prep_nop(sqes[i]);
      sqes[i]->user_data = i;
    }
    ASSERT_TRUE(seed->submit().ok());
    EXPECT_TRUE(eventually([&] { return finished == kChains || wrong != 0; })) << finished;
    EXPECT_EQ(wrong, 0U);
    for (const auto& handle : handles) EXPECT_TRUE(handle->detach(kGenerous)->clean);
    for (const auto& ring : {rings[0], rings[1], seed}) EXPECT_EQ(ring->in_flight(), 0U);
    EXPECT_TRUE(dispatcher->stop(kGenerous).ok());
  }
}

}  // namespace
}  // namespace sluice::testing
