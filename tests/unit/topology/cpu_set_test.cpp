// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/cpu_set.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sluice::topology {
namespace {

using Cpus = std::vector<unsigned>;

Cpus parsed(std::string_view text) {
  const auto cpus = CpuSet::parse(text);
  EXPECT_TRUE(cpus.ok()) << cpus.status().to_string();
  return cpus.ok() ? cpus->to_vector() : Cpus{};
}

TEST(CpuList, ReadsSinglesAndRangesAscendingEachOnce) {
  EXPECT_EQ(parsed("0"), Cpus({0}));
  EXPECT_EQ(parsed("0-3,8"), Cpus({0, 1, 2, 3, 8}));
  EXPECT_EQ(parsed("8,0-3"), Cpus({0, 1, 2, 3, 8}));
  EXPECT_EQ(parsed("5-5"), Cpus({5}));
  EXPECT_EQ(parsed("1-3,2-4,3"), Cpus({1, 2, 3, 4}));
  EXPECT_EQ(parsed("1048576"), Cpus({1048576}));
}

TEST(CpuList, SaysWhatWasWrongWhere) {
  for (const char* bad : {"", ",", "1,", ",1", "1,,2", "a", "1-", "-1", "1-2-3", "1 ", " 1", "0x1",
                          "1.5", "1048577", "4294967296", "99999999999999999999", "+1", "1;2"}) {
    const auto cpus = CpuSet::parse(bad);
    ASSERT_FALSE(cpus.ok()) << "'" << bad << "' was taken";
    EXPECT_EQ(cpus.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(cpus.status().message().find("'" + std::string(bad) + "'"), std::string::npos)
        << cpus.status().message();
  }
  const auto backwards = CpuSet::parse("0,7-3");
  ASSERT_FALSE(backwards.ok());
  EXPECT_NE(backwards.status().message().find("'7-3'"), std::string::npos);
}

RC_GTEST_PROP(CpuListProperty, WhatIsWrittenIsReadBack, ()) {
  const auto ranges =
      *rc::gen::nonEmpty(rc::gen::container<std::vector<std::pair<unsigned, unsigned>>>(
          rc::gen::pair(rc::gen::inRange(0U, 3000U), rc::gen::inRange(0U, 20U))));
  std::string text;
  std::set<unsigned> expected;
  for (const auto& [first, more] : ranges) {
    if (!text.empty()) text += ',';
    text += std::to_string(first);
    if (more > 0) text += '-' + std::to_string(first + more);
    for (unsigned cpu = first; cpu <= first + more; ++cpu) expected.insert(cpu);
  }
  const auto cpus = CpuSet::parse(text);
  RC_ASSERT(cpus.ok());
  RC_ASSERT(cpus->to_vector() == Cpus(expected.begin(), expected.end()));
}

RC_GTEST_PROP(CpuListProperty, AnyTextIsReadOrRefused, ()) {
  const auto text =
      *rc::gen::container<std::string>(rc::gen::elementOf(std::string("0123456789-,, ax")));
  const auto bounded = text.substr(0, 12);
  const auto cpus = CpuSet::parse(bounded);
  if (cpus.ok()) {
    RC_ASSERT(!cpus->empty());
  } else {
    RC_ASSERT(cpus.status().code() == StatusCode::invalid_argument);
  }
}

RC_GTEST_PROP(CpuSetProperty, BehavesAsASetOfNumbers, ()) {
  const auto left = *rc::gen::container<std::set<unsigned>>(rc::gen::inRange(0U, 200U));
  const auto right = *rc::gen::container<std::set<unsigned>>(rc::gen::inRange(0U, 200U));
  const CpuSet a(Cpus(left.begin(), left.end()));
  const CpuSet b(Cpus(right.begin(), right.end()));
  std::set<unsigned> both, either = left, only = left;
  for (const unsigned cpu : right) {
    if (left.contains(cpu)) both.insert(cpu);
    either.insert(cpu);
    only.erase(cpu);
  }
  const auto is = [](const CpuSet& set, const std::set<unsigned>& expected) {
    return set.to_vector() == Cpus(expected.begin(), expected.end());
  };
  RC_ASSERT(is(a & b, both));
  RC_ASSERT(is(a | b, either));
  RC_ASSERT(is(a - b, only));
  RC_ASSERT(a.count() == left.size());
  RC_ASSERT(a.intersects(b) == !both.empty());
  RC_ASSERT(a.is_within(b) == only.empty());
  if (!a.empty()) RC_ASSERT(*CpuSet::parse(a.to_string()) == a);
}

TEST(CpuSet, AnEmptyOneIsSaidInAWord) {
  EXPECT_EQ(CpuSet().to_string(), "none");
  EXPECT_EQ(CpuSet().first(), std::nullopt);
}

}  // namespace
}  // namespace sluice::topology
