// SPDX-License-Identifier: BSD-3-Clause
// A device that misbehaves on purpose: on softrdma alone (a program of its own, not for the VM).
#include <dlfcn.h>

#include <map>

#include "softrdma/softrdma.h"
#include "support/source_kinds.hpp"

namespace sluice::contract {
namespace {

/// softrdma's controls, looked up at run time: it may be preloaded as well as linked.
class Softrdma {
 public:
  Softrdma()
      : set_faults_(find<decltype(&softrdma_set_faults)>("softrdma_set_faults")),
        get_stats_(find<decltype(&softrdma_get_stats)>("softrdma_get_stats")),
        fault_calls_(find<decltype(&softrdma_fault_calls)>("softrdma_fault_calls")) {
    set("");
  }
  ~Softrdma() { (void)set_faults_("", 0); }
  void set(const std::string& spec, std::uint64_t seed = 1) const {
    if (set_faults_(spec.c_str(), seed) != 0) {
      throw std::runtime_error("softrdma refuses the faults '" + spec + "'");
    }
  }
  [[nodiscard]] softrdma_stats stats() const {
    softrdma_stats now{};
    get_stats_(&now);
    return now;
  }
  [[nodiscard]] std::uint64_t calls(const char* point) const { return fault_calls_(point); }

 private:
  template <typename Function>
  static Function find(const char* name) {
    void* const symbol = ::dlsym(RTLD_DEFAULT, name);
    if (symbol == nullptr) {
      throw std::runtime_error(std::string("these tests run on softrdma alone: there is no ") +
                               name);
    }
    return reinterpret_cast<Function>(symbol);
  }
  decltype(&softrdma_set_faults) set_faults_;
  decltype(&softrdma_get_stats) get_stats_;
  decltype(&softrdma_fault_calls) fault_calls_;
};

class FaultyDevice : public ContractTest, public ::testing::WithParamInterface<SourceKind> {
 protected:
  FaultyDevice() : under_test_(SourceUnderTest::make(GetParam(), site_)) {
    source_ = under_test_->source();
  }
  ~FaultyDevice() override { device_.set(""); }

  void take(const ibv_wc& wc) {
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
    const SourceUnderTest::Item item = under_test_->take(wc);
    ASSERT_EQ(item.sequence, next_[item.stream]) << "in stream " << item.stream;
    ++next_[item.stream];
  }

  Softrdma device_;
  std::unique_ptr<SourceUnderTest> under_test_;
  std::shared_ptr<CompletionSource> source_;
  std::map<std::uint32_t, std::uint64_t> next_;
};

// W8, invariant 5.
TEST_P(FaultyDevice, ARearmThatFailsIsReportedAndPollingGoesOn) {
  device_.set("fail_notify_after=1");
  under_test_->produce_on(0);
  await_readable(source_->wait_fd(), "the first event");
  EXPECT_EQ(source_->consume_event().kind, EventOutcome::Kind::consumed);
  under_test_->produce_on(0);
  await_readable(source_->wait_fd(), "the second event");
  EventOutcome outcome = source_->consume_event();
  ASSERT_EQ(outcome.kind, EventOutcome::Kind::failed);
  EXPECT_EQ(outcome.fault, SourceFault::rearm_failed);
  EXPECT_NE(outcome.error, 0);
  // Final, also when the device has recovered: an event may have been missed meanwhile.
  device_.set("");
  outcome = source_->consume_event();
  EXPECT_EQ(outcome.kind, EventOutcome::Kind::failed);
  EXPECT_EQ(outcome.fault, SourceFault::rearm_failed);
  under_test_->produce(10);
  for (const ibv_wc& wc : await_completions(*source_, 12, "what was produced")) take(wc);
}

TEST_P(FaultyDevice, APollThatFailsIsFinal) {
  under_test_->produce(2);
  for (const ibv_wc& wc : await_completions(*source_, 2, "what was produced")) take(wc);
  device_.set("fail_poll_after=1");  // once one more has been polled
  under_test_->produce(20);
  ibv_wc wcs[4];
  PollOutcome outcome;
  await("the failure of a poll", [&] {
    outcome = source_->poll(wcs);
    return outcome.fault != SourceFault::none;
  });
  EXPECT_EQ(outcome.fault, SourceFault::poll_failed);
  EXPECT_NE(outcome.error, 0);
  device_.set("");
  outcome = source_->poll(wcs);
  EXPECT_EQ(outcome.fault, SourceFault::poll_failed);
  EXPECT_EQ(outcome.count, 0U);
}

TEST_P(FaultyDevice, EventsForNothingAndEventsForManyLoseNoCompletion) {
  device_.set("spurious_events=50,coalesce_events=50,delay_us=0-300", 7);
  Collector collector(*source_, 4);
  for (int round = 0; round < 30; ++round) {
    under_test_->produce(5);
    collector.collect(5, [&](const ibv_wc& wc) { take(wc); });
  }
}

TEST_P(FaultyDevice, RubbishInAFailedCompletionIsNotPassedOn) {
  device_.set("poison_failed_wc=1");
  const std::uint32_t count = under_test_->fail();
  for (const ibv_wc& wc : await_completions(*source_, count, "the failed completions")) {
    ibv_wc valid{};
    valid.wr_id = wc.wr_id;
    valid.status = wc.status;
    valid.qp_num = wc.qp_num;
    valid.vendor_err = wc.vendor_err;
    EXPECT_NE(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(&valid, &wc, sizeof wc), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(EachKind, FaultyDevice,
                         ::testing::Values(SourceKind::main_cq, SourceKind::receive_cq,
                                           SourceKind::mixed_cq, SourceKind::srq_receive_cq,
                                           SourceKind::shared_channel, SourceKind::verbs_group),
                         [](const auto& instance) { return name_of(instance.param); });

/// Everything a program sets up, once through.
void set_up_and_tear_down() {
  const Site site;
  rpma::ConnectionConfig server = patient(8, 8);
  server.srq =
      require(rpma::SharedReceiveQueue::create(site.peer, {.depth = 4, .receive_cq_size = {}}));
  (void)require(server.srq->stock(4, 64));
  const Pair pair = site.connect(server, patient(8, 8));
  (void)require(pair.client->stock(4, 64));
  const auto memory = site.memory(64);
  require(pair.client->send(memory.get(), 0, 8, 1));
  (void)await_completion(*pair.client->main_cq(), "the send");
  require(pair.client->disconnect());
}

// Each call into the device fails once, in turn, until the set-up gets through.
TEST(FaultPoints, EachFailureIsAStatusAndLeavesNothingBehind) {
  const Softrdma device;
  set_up_and_tear_down();  // what is made once per process is there now
  const softrdma_stats before = device.stats();
  constexpr std::uint64_t kPointsMax = 500;
  std::uint64_t failures = 0;
  std::uint32_t lost_ids = 0;
  for (std::uint64_t k = 1;; ++k) {
    ASSERT_LT(k, kPointsMax);
    device.set("fail_any=" + std::to_string(k));
    bool failed = false;
    std::string how;
    try {
      set_up_and_tear_down();
    } catch (const std::exception& error) {
      failed = true;
      how = error.what();
    }
    const bool reached = device.calls("any") >= k;
    device.set("");
    EXPECT_EQ(failed, reached) << "call " << k << ": " << how;
    failures += failed ? 1 : 0;
    const softrdma_stats now = device.stats();
    const std::string where = "after the failure of call " + std::to_string(k) + ": " + how;
    EXPECT_EQ(now.pds, before.pds) << where;
    EXPECT_EQ(now.mrs, before.mrs) << where;
    EXPECT_EQ(now.srqs, before.srqs) << where;
    EXPECT_EQ(now.qps, before.qps) << where;
    EXPECT_EQ(now.cqs, before.cqs) << where;
    EXPECT_EQ(now.comp_channels, before.comp_channels) << where;
    // librpma forgets the id of an incoming request that it cannot equip or accept (README.md);
    // there is nothing we could free it by.
    if (how.find("take the next request") != std::string::npos ||
        how.find("make the connection accepted on") != std::string::npos) {
      ++lost_ids;
    }
    EXPECT_EQ(now.cm_ids, before.cm_ids + lost_ids) << where;
    EXPECT_EQ(now.event_channels, before.event_channels) << where;
    if (!reached) break;
  }
  EXPECT_GE(failures, 20U) << "too few calls failed for this to have tested anything";
}

}  // namespace
}  // namespace sluice::contract
