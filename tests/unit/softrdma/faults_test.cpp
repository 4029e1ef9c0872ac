// SPDX-License-Identifier: BSD-3-Clause
#include "faults.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace softrdma {
namespace {

using testing::HasSubstr;

TEST(Faults, EveryFaultIsUnderstood) {
  FaultPlan plan;
  ASSERT_EQ(parse_faults(
                "delay_us=10-20,reorder=30,drop_after=5-9,coalesce_events=1,spurious_events=100,"
                "withhold_flush=1,withhold_last_wqe=1,cq_error_after=3,fail_notify_after=4,"
                "fail_poll_after=5,rnr_delay_us=7,reuse_qp_numbers=1,poison_failed_wc=1,fail_any=8,"
                "fail_create_cq=2",
                11, plan),
            "");
  EXPECT_EQ(plan.seed, 11U);
  EXPECT_EQ(plan.delay_us, (Range{10, 20}));
  EXPECT_EQ(plan.reorder_percent, 30U);
  EXPECT_EQ(plan.drop_after, (Range{5, 9}));
  EXPECT_EQ(plan.spurious_percent, 100U);
  EXPECT_TRUE(plan.withhold_flush && plan.withhold_last_wqe && plan.reuse_qp_numbers &&
              plan.poison_failed_wc);
  EXPECT_EQ(plan.rnr_delay_us, (Range{7, 7}));
  EXPECT_EQ(plan.fail_any, 8U);
  EXPECT_EQ(plan.fail_point[static_cast<std::size_t>(FaultPoint::kCreateCq)], 2U);
  EXPECT_EQ(parse_faults("", 0, plan), "");
  EXPECT_FALSE(plan.any);
}

TEST(Faults, AWrongSpecIsNamedInOneLine) {
  const auto error = [](const char* spec) {
    FaultPlan plan;
    return parse_faults(spec, 0, plan);
  };
  EXPECT_THAT(error("dely_us=1"), HasSubstr("unknown fault 'dely_us'"));
  EXPECT_THAT(error("delay_us=abc"), HasSubstr("'abc'"));
  EXPECT_THAT(error("delay_us=20-10"), HasSubstr("'20-10'"));
  EXPECT_THAT(error("delay_us"), HasSubstr("delay_us"));
  EXPECT_THAT(error("reorder=101"), HasSubstr("percentage"));
  EXPECT_THAT(error("withhold_flush=yes"), HasSubstr("0 or 1"));
  EXPECT_THAT(error("fail_create_qc=1"), HasSubstr("unknown fault point 'create_qc'"));
  EXPECT_THAT(error("cq_error_after=0"), HasSubstr("1 or more"));
  EXPECT_THAT(error("reorder=1,,reorder=2"), HasSubstr("empty item"));
  for (const char* spec : {"x=1", "reorder=x", "fail_x=1"})
    EXPECT_EQ(error(spec).find('\n'), std::string::npos);
}

std::vector<std::uint64_t> draws(std::uint64_t seed, std::uint32_t kind, std::uint64_t ordinal) {
  FaultPlan plan;
  EXPECT_EQ(parse_faults("reorder=1", seed, plan), "");
  Faults::instance().set(plan);
  Random random = Faults::instance().stream(kind, ordinal);
  std::vector<std::uint64_t> out;
  for (int i = 0; i < 8; ++i) out.push_back(random.between(0, 1'000'000));
  return out;
}

TEST(Faults, TheSameSeedDrawsTheSameAndObjectsDoNotShareAStream) {
  EXPECT_EQ(draws(7, 1, 3), draws(7, 1, 3));
  EXPECT_NE(draws(7, 1, 3), draws(8, 1, 3));
  EXPECT_NE(draws(7, 1, 3), draws(7, 2, 3));
  EXPECT_NE(draws(7, 1, 3), draws(7, 1, 4));
}

TEST(Faults, ThePointFailsAtItsCallAndNoOther) {
  FaultPlan plan;
  ASSERT_EQ(parse_faults("fail_reg_mr=3", 0, plan), "");
  Faults& faults = Faults::instance();
  faults.set(plan);
  std::vector<bool> failed;
  for (int i = 0; i < 5; ++i) {
    failed.push_back(faults.fails(FaultPoint::kRegMr));
    EXPECT_FALSE(faults.fails(FaultPoint::kCreateCq));
  }
  EXPECT_EQ(failed, (std::vector<bool>{false, false, true, false, false}));
  EXPECT_EQ(faults.calls("reg_mr"), 5U);
  EXPECT_EQ(faults.calls("any"), 10U);
  EXPECT_EQ(faults.calls("nonsense"), UINT64_MAX);
  ASSERT_EQ(parse_faults("fail_any=2", 0, plan), "");
  faults.set(plan);
  EXPECT_FALSE(faults.fails(FaultPoint::kListen));
  EXPECT_TRUE(faults.fails(FaultPoint::kAccept));
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_FALSE(faults.fails(FaultPoint::kAccept));
}

}  // namespace
}  // namespace softrdma
