// SPDX-License-Identifier: BSD-3-Clause
// What every CompletionSource keeps (completion_source.hpp, invariants 1 to 6), and the scenarios
// of arming and waiting, for each kind of source.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <future>
#include <map>
#include <thread>

#include "sluice/core/verbs/cq_group.hpp"
#include "support/raw_link.hpp"
#include "support/source_kinds.hpp"

namespace sluice::contract {
namespace {

class SourceContract : public ContractTest, public ::testing::WithParamInterface<SourceKind> {
 protected:
  SourceContract() : under_test_(SourceUnderTest::make(GetParam(), site_)) {
    source_ = under_test_->source();
  }

  /// Takes it, and checks that its stream has no gap and no repetition.
  void take(const ibv_wc& wc) {
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
    const SourceUnderTest::Item item = under_test_->take(wc);
    ASSERT_EQ(item.sequence, next_[item.stream]) << "in stream " << item.stream;
    ++next_[item.stream];
  }
  void poll_all(std::size_t count) {
    for (const ibv_wc& wc : await_completions(*source_, count, "what was produced")) take(wc);
  }
  std::uint32_t consume_all() {
    std::uint32_t events = 0;
    EventOutcome outcome = source_->consume_event();
    for (; outcome.kind == EventOutcome::Kind::consumed; outcome = source_->consume_event()) {
      ++events;
    }
    EXPECT_EQ(outcome.kind, EventOutcome::Kind::none);
    return events;
  }
  bool empty() {
    ibv_wc wc;
    const PollOutcome outcome = source_->poll(std::span(&wc, 1));
    EXPECT_EQ(outcome.fault, SourceFault::none);
    return outcome.count == 0;
  }

  std::unique_ptr<SourceUnderTest> under_test_;
  std::shared_ptr<CompletionSource> source_;
  std::map<std::uint32_t, std::uint64_t> next_;
};

// Invariant 1.
TEST_P(SourceContract, IsArmedFromCreation) {
  for (std::uint32_t which = 0; which < under_test_->cq_count(); ++which) {
    EXPECT_FALSE(readable(source_->wait_fd()));
    EXPECT_EQ(source_->consume_event().kind, EventOutcome::Kind::none);
    under_test_->produce_on(which);
    await_readable(source_->wait_fd(), "a new source with a completion");
    EXPECT_EQ(consume_all(), 1U);
    poll_all(1);
  }
}

// Invariants 1 and 2: polling takes no event and arms nothing; consuming re-arms.
TEST_P(SourceContract, PollingTouchesNoEvent) {
  for (int round = 0; round < 5; ++round) {
    under_test_->produce(6);
    poll_all(6);
    EXPECT_TRUE(empty());
    await_readable(source_->wait_fd(), "a source whose event nobody took");
    // Its CQs have no more than one event each: one event per arm.
    const std::uint32_t events = consume_all();
    EXPECT_GE(events, 1U);
    EXPECT_LE(events, under_test_->cq_count());
    EXPECT_FALSE(readable(source_->wait_fd()));
    EXPECT_TRUE(empty());
  }
}

// Invariant 2: not 0 as long as there is something in any CQ, however small the span.
TEST_P(SourceContract, PollsEveryCqWhateverTheSpan) {
  under_test_->produce(30);
  under_test_->settle();
  std::size_t got = 0;
  await("30 completions, one at a time", [&] {
    ibv_wc wc;
    const PollOutcome outcome = source_->poll(std::span(&wc, 1));
    EXPECT_LE(outcome.count, 1U);
    if (outcome.count == 1) take(wc);
    got += outcome.count;
    return got == 30;
  });
  EXPECT_TRUE(empty());
}

// Invariant 2: one poll is enough, whichever CQ it is and wherever the poll starts.
TEST_P(SourceContract, OnePollSeesACompletionOnAnyCq) {
  for (std::uint32_t round = 0; round < 4; ++round) {
    for (std::uint32_t which = 0; which < under_test_->cq_count(); ++which) {
      for (std::uint32_t i = 0; i < round; ++i) EXPECT_TRUE(empty());
      under_test_->produce_on(which);
      // Its event is queued: it is in the CQ.
      await_readable(source_->wait_fd(), "a source with a completion");
      ibv_wc wcs[4];
      const PollOutcome outcome = source_->poll(wcs);
      ASSERT_EQ(outcome.count, 1U) << "CQ " << which << ", round " << round;
      take(wcs[0]);
      EXPECT_EQ(consume_all(), 1U);
    }
  }
}

// Invariant 3.
TEST_P(SourceContract, ConsumingNeverBlocksEvenOnABlockingDescriptor) {
  const int flags = ::fcntl(source_->wait_fd(), F_GETFL);
  EXPECT_NE(flags & O_NONBLOCK, 0);
  ASSERT_EQ(::fcntl(source_->wait_fd(), F_SETFL, flags & ~O_NONBLOCK), 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(source_->consume_event().kind, EventOutcome::Kind::none);
  }
  under_test_->produce(1);
  await_readable(source_->wait_fd(), "a source with a completion");
  EXPECT_EQ(consume_all(), 1U);
  poll_all(1);
}

// Invariant 4.
TEST_P(SourceContract, TheDescriptorStaysReadableUntilTheEventIsTaken) {
  under_test_->produce(1);
  await_readable(source_->wait_fd(), "a source with a completion");
  poll_all(1);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(readable(source_->wait_fd()));
  EXPECT_EQ(consume_all(), 1U);
  EXPECT_FALSE(readable(source_->wait_fd()));
}

// Invariant 6, W10.
TEST_P(SourceContract, EventsNeverAcknowledgedWouldBlockTheDestructionOfTheCq) {
  for (int round = 0; round < 10; ++round) {
    under_test_->produce(2);
    poll_all(2);
    (void)consume_all();
  }
  under_test_->produce(2);
  await_readable(source_->wait_fd(), "a source whose last event nobody takes");
  std::promise<void> destroyed;
  std::future<void> done = destroyed.get_future();
  std::thread destroyer([&] {
    source_.reset();
    under_test_.reset();
    destroyed.set_value();
  });
  if (done.wait_for(kPatience) != std::future_status::ready) {
    std::fprintf(stderr, "the destruction of a source blocks: events were not acknowledged\n");
    std::abort();  // nothing that holds it can be destroyed, this fixture included
  }
  destroyer.join();
}

// W11.
TEST_P(SourceContract, ASecondOwnerIsRefused) {
  auto first = source_->take_ownership("the poller");
  ASSERT_TRUE(first.ok());
  const auto second = under_test_->source()->take_ownership("an inner call");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::already_owned);
  EXPECT_NE(second.status().message().find(source_->name()), std::string::npos);
  first->release();
  EXPECT_TRUE(under_test_->source()->take_ownership("the next poller").ok());
}

// W1.
TEST_P(SourceContract, TwoCompletionsForOneEventLeaveAnEmptyWakeThatIsNoError) {
  under_test_->produce_on(0);
  await_readable(source_->wait_fd(), "the first completion's event");
  under_test_->produce_on(under_test_->cq_count() == 2 ? 2 : 0);
  // Both are polled before their one event is taken: the wake finds nothing.
  poll_all(2);
  EXPECT_TRUE(readable(source_->wait_fd()));
  EXPECT_EQ(consume_all(), 1U);
  EXPECT_TRUE(empty());
  // It was no error: the source is armed, and the next completion is heard.
  under_test_->produce_on(0);
  Collector collector(*source_);
  collector.collect(1, [&](const ibv_wc& wc) { take(wc); });
  EXPECT_TRUE(empty());
}

// W2.
TEST_P(SourceContract, ACompletionFromBeforeTheFirstWaitIsNotSleptOver) {
  under_test_->produce(1);
  under_test_->settle();
  Collector collector(*source_);
  collector.collect(1, [&](const ibv_wc& wc) { take(wc); });
}

// W2: arming takes no notice of what is there already.
TEST_P(SourceContract, ACompletionFromBeforeTheRearmIsNotSleptOver) {
  for (int round = 0; round < 20; ++round) {
    under_test_->produce_on(0);
    await_readable(source_->wait_fd(), "the event of the first completion");
    under_test_->produce_on(0);  // no event for this one: the CQ is not armed
    under_test_->settle();
    (void)consume_all();
    Collector collector(*source_);
    collector.collect(2, [&](const ibv_wc& wc) { take(wc); });
  }
}

// W4.
TEST_P(SourceContract, AHundredCompletionsWithABudgetOf32AreAllDelivered) {
  under_test_->produce(100);
  under_test_->settle();
  Collector collector(*source_, 32);
  collector.collect(100, [&](const ibv_wc& wc) { take(wc); });
  EXPECT_TRUE(empty());
}

// W3, W5: whatever is produced while the other side goes to sleep is seen.
TEST_P(SourceContract, CompletionsAtAnyMomentWakeTheSleeper) {
  constexpr std::uint32_t kRounds = 300;
  std::atomic<std::uint32_t> taken{0};
  std::exception_ptr failed;
  // The sleeper is this thread; the other one produces as soon as it sees that all was taken.
  std::thread producer([&] {
    try {
      for (std::uint32_t i = 0; i < kRounds; ++i) {
        await("the previous one", [&] { return taken.load(std::memory_order_acquire) == i; });
        under_test_->produce_on(i);
      }
    } catch (...) {
      failed = std::current_exception();
    }
  });
  Collector collector(*source_);
  try {
    for (std::uint32_t i = 0; i < kRounds; ++i) {
      collector.collect(1, [&](const ibv_wc& wc) { take(wc); });
      taken.store(i + 1, std::memory_order_release);
    }
  } catch (...) {
    taken.store(kRounds, std::memory_order_release);
    producer.join();
    throw;
  }
  producer.join();
  if (failed) std::rethrow_exception(failed);
}

// W3.
TEST_P(SourceContract, EachOfTwoArmedCqsIsHeardWithoutAnEventOnTheOther) {
  // The first is busy and polled; the second has been silent since it was armed.
  for (int round = 0; round < 10; ++round) {
    for (std::uint32_t which = 0; which < under_test_->cq_count(); ++which) {
      for (int i = 0; i < 3; ++i) {
        under_test_->produce_on(which);
        Collector collector(*source_);
        collector.collect(1, [&](const ibv_wc& wc) { take(wc); });
      }
    }
  }
}

// W6.
TEST_P(SourceContract, TheCqWhoseEventWasTakenIsRearmedAndTheOtherStaysArmed) {
  const std::uint32_t cqs = under_test_->cq_count();
  for (std::uint32_t which = 0; which < 6; ++which) {
    under_test_->produce_on(which % cqs);
    await_readable(source_->wait_fd(), "the event of one CQ");
    EXPECT_EQ(consume_all(), 1U);
    poll_all(1);
    EXPECT_TRUE(empty());
    // Now both are armed again: the same CQ, then the other one, and both together.
    under_test_->produce_on(which % cqs);
    await_readable(source_->wait_fd(), "a second event of the CQ that was re-armed");
    EXPECT_EQ(consume_all(), 1U);
    poll_all(1);
    for (std::uint32_t each = 0; each < cqs; ++each) under_test_->produce_on(each);
    std::uint32_t events = 0;
    await("an event of each CQ", [&] {
      events += consume_all();
      return events == cqs;
    });
    poll_all(cqs);
    EXPECT_TRUE(empty());
  }
}

std::atomic<int> signals_seen{0};
void count_signal(int) {
  signals_seen.fetch_add(1, std::memory_order_relaxed);
}

// W7.
TEST_P(SourceContract, ASignalInterruptsTheWaitAndNothingIsLost) {
  struct sigaction action {};
  action.sa_handler = count_signal;  // no SA_RESTART: system calls return EINTR
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  signals_seen.store(0);
  const pthread_t sleeper = ::pthread_self();
  std::atomic<bool> over{false};
  std::atomic<std::uint32_t> wanted{0};
  std::thread disturber([&] {
    std::uint32_t produced = 0;
    while (!over.load()) {
      const int seen = signals_seen.load();
      (void)::pthread_kill(sleeper, SIGUSR1);
      // One signal after another, and a completion now and then: between two signals, or under one.
      await("the signal", [&] { return over.load() || signals_seen.load() != seen; });
      if (produced < 20 && wanted.load() == produced && signals_seen.load() % 7 == 0) {
        under_test_->produce_on(0);
        ++produced;
      }
    }
  });
  Collector collector(*source_);
  std::exception_ptr failed;
  try {
    for (std::uint32_t i = 0; i < 20; ++i) {
      collector.collect(1, [&](const ibv_wc& wc) { take(wc); });
      wanted.store(i + 1);
    }
  } catch (...) {
    failed = std::current_exception();
  }
  over.store(true);
  disturber.join();
  ASSERT_EQ(::sigaction(SIGUSR1, &before, nullptr), 0);
  if (failed) std::rethrow_exception(failed);
  EXPECT_GE(signals_seen.load(), 100);
  EXPECT_TRUE(empty());
}

TEST_P(SourceContract, SaysWhatItIs) {
  EXPECT_FALSE(source_->name().empty());
  EXPECT_GE(source_->capacity(), SourceUnderTest::kInFlightMax);
  EXPECT_GE(source_->wait_fd(), 0);
  EXPECT_EQ(source_, under_test_->source()) << "two sources of the same CQ could have two owners";
}

/// Of sources whose completions can fail.
using FailedCompletionContract = SourceContract;

// Only wr_id, status, qp_num and vendor_err of a failed completion are valid.
TEST_P(FailedCompletionContract, AFailedCompletionCarriesNothingThatIsNotValid) {
  under_test_->produce(4);  // leave something behind that the failed ones could show
  poll_all(4);
  const std::uint32_t count = under_test_->fail();
  // Successes may come first: what fails is what was posted before.
  std::uint32_t failures = 0;
  await("the failed completions", [&] {
    ibv_wc wcs[16];
    std::memset(wcs, 0xa5, sizeof wcs);
    const PollOutcome outcome = source_->poll(wcs);
    EXPECT_EQ(outcome.fault, SourceFault::none);
    for (const ibv_wc& wc : std::span(wcs).first(outcome.count)) {
      if (wc.status == IBV_WC_SUCCESS) continue;
      ++failures;
      ibv_wc valid{};
      valid.wr_id = wc.wr_id;
      valid.status = wc.status;
      valid.qp_num = wc.qp_num;
      valid.vendor_err = wc.vendor_err;
      EXPECT_EQ(std::memcmp(&valid, &wc, sizeof wc), 0);
    }
    return failures >= count;
  });
  EXPECT_EQ(failures, count);
}

// The device goes on with other completions of the source after one stream has failed.
TEST_P(FailedCompletionContract, AFaultOfOneCompletionIsNoFaultOfTheSource) {
  const std::uint32_t count = under_test_->fail();
  Collector collector(*source_);
  std::uint32_t failures = 0;
  while (failures < count) {
    collector.collect(1, [&](const ibv_wc& wc) { failures += wc.status != IBV_WC_SUCCESS; });
  }
  EXPECT_LE(consume_all(), under_test_->cq_count());
  EXPECT_TRUE(empty());
}

const auto kDeviceKinds = ::testing::Values(SourceKind::main_cq, SourceKind::receive_cq,
                                            SourceKind::mixed_cq, SourceKind::srq_receive_cq,
                                            SourceKind::shared_channel, SourceKind::verbs_group);

INSTANTIATE_TEST_SUITE_P(EachKind, SourceContract, kDeviceKinds,
                         [](const auto& instance) { return name_of(instance.param); });
INSTANTIATE_TEST_SUITE_P(Ring, SourceContract, ::testing::Values(SourceKind::uring_ring),
                         [](const auto& instance) { return name_of(instance.param); });
INSTANTIATE_TEST_SUITE_P(EachKind, FailedCompletionContract, kDeviceKinds,
                         [](const auto& instance) { return name_of(instance.param); });

// --- what only some kinds have ------------------------------------------------------------------

class VerbsGroupTest : public ContractTest {};

TEST_F(VerbsGroupTest, SpreadsTheCompletionVectors) {
  // R4
  const int vectors = std::max(1, site_.peer->context()->num_comp_vectors);
  auto group = require(verbs::CqGroup::create(site_.peer->context(),
                                              {.cq_count = 5,
                                               .cq_size = 16,
                                               .completion_vectors = {},
                                               .solicited_only = false,
                                               .ack_batch = 1},
                                              "spread"));
  ASSERT_EQ(group->cq_count(), 5U);
  for (std::uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(group->completion_vector(i), static_cast<int>(i) % vectors);
  }
  EXPECT_EQ(group->capacity(), 80U);
}

TEST_F(VerbsGroupTest, RefusesAVectorThatTheDeviceLacks) {
  const auto group = verbs::CqGroup::create(site_.peer->context(),
                                            {.cq_count = 1,
                                             .cq_size = 16,
                                             .completion_vectors = {100'000},
                                             .solicited_only = false,
                                             .ack_batch = 1},
                                            "spread");
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(group.status().message().find("100000"), std::string::npos);
}

TEST_F(VerbsGroupTest, SolicitedOnlyHearsNoOrdinaryCompletion) {
  auto group = require(verbs::CqGroup::create(site_.peer->context(),
                                              {.cq_count = 1,
                                               .cq_size = 256,
                                               .completion_vectors = {},
                                               .solicited_only = true,
                                               .ack_batch = 64},
                                              "solicited"));
  rpma::ConnectionConfig server = patient();
  RawLink link(site_, {.send_cq = group->cq(0), .receive_cq = group->cq(0)});
  link.connect(server);
  (void)require(link.server().stock(8, 64));
  link.send(0, 8, 1);
  // A send's completion is never solicited.
  EXPECT_EQ(await_completion(*group, "the send").status, IBV_WC_SUCCESS);
  EXPECT_EQ(group->consume_event().kind, EventOutcome::Kind::none);
  link.disconnect();
  link.send(0, 8, 2);
  if (on_softrdma()) {
    // A failed one always is (ibv_req_notify_cq(3)); rxe raises no event for it (README.md).
    await_readable(group->wait_fd(), "a failed completion's event");
    EXPECT_EQ(group->consume_event().kind, EventOutcome::Kind::consumed);
  }
  EXPECT_EQ(await_completion(*group, "the flushed send").status, IBV_WC_WR_FLUSH_ERR);
}

}  // namespace
}  // namespace sluice::contract
