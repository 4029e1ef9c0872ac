// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/cpus.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#include <sched.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace sluice::topology {
namespace {

using Cpus = std::vector<unsigned>;

Cpus parsed(std::string_view text) {
  auto cpus = parse_cpu_list(text);
  EXPECT_TRUE(cpus.ok()) << cpus.status().to_string();
  return cpus.ok() ? *cpus : Cpus{};
}

Cpus affinity_of_this_thread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  Cpus cpus;
  for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
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
    const auto cpus = parse_cpu_list(bad);
    ASSERT_FALSE(cpus.ok()) << "'" << bad << "' was taken";
    EXPECT_EQ(cpus.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(cpus.status().message().find("'" + std::string(bad) + "'"), std::string::npos)
        << cpus.status().message();
  }
  const auto backwards = parse_cpu_list("0,7-3");
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
  auto cpus = parse_cpu_list(text);
  RC_ASSERT(cpus.ok());
  RC_ASSERT(*cpus == Cpus(expected.begin(), expected.end()));
}

RC_GTEST_PROP(CpuListProperty, AnyTextIsReadOrRefused, ()) {
  const auto text =
      *rc::gen::container<std::string>(rc::gen::elementOf(std::string("0123456789-,, ax")));
  const auto bounded = text.substr(0, 12);
  auto cpus = parse_cpu_list(bounded);
  if (cpus.ok()) {
    RC_ASSERT(!cpus->empty());
    RC_ASSERT(std::is_sorted(cpus->begin(), cpus->end()));
    RC_ASSERT(std::adjacent_find(cpus->begin(), cpus->end()) == cpus->end());
  } else {
    RC_ASSERT(cpus.status().code() == StatusCode::invalid_argument);
  }
}

TEST(AllowedCpus, AreThoseOfTheInheritedAffinity) {
  auto allowed = allowed_cpus();
  ASSERT_TRUE(allowed.ok()) << allowed.status().to_string();
  EXPECT_TRUE(std::is_sorted(allowed->begin(), allowed->end()));
  const Cpus here = affinity_of_this_thread();
  EXPECT_TRUE(std::includes(here.begin(), here.end(), allowed->begin(), allowed->end()));
  EXPECT_FALSE(allowed->empty());
}

TEST(Binding, ReadsBackForEachAllowedCpu) {
  auto allowed = allowed_cpus();
  ASSERT_TRUE(allowed.ok());
  std::thread([&] {
    for (const unsigned cpu : *allowed) {
      const Status status = bind_current_thread(cpu);
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(affinity_of_this_thread(), Cpus({cpu}));
      EXPECT_EQ(::sched_getcpu(), static_cast<int>(cpu));
    }
  }).join();
  EXPECT_GE(affinity_of_this_thread().size(), allowed->size())
      << "another thread was bound as well";
}

TEST(Binding, ToACpuThatIsNotThereIsRefused) {
  std::thread([] {
    const Cpus before = affinity_of_this_thread();
    const Status status = bind_current_thread(1000);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("1000"), std::string::npos) << status.message();
    EXPECT_EQ(affinity_of_this_thread(), before);
  }).join();
}

TEST(Naming, CutsToTheKernelsFifteenBytes) {
  const auto name_after = [](std::string_view wanted) {
    std::string name;
    std::thread([&] {
      name_current_thread(wanted);
      char text[16] = {};
      ASSERT_EQ(pthread_getname_np(pthread_self(), text, sizeof text), 0);
      name = text;
    }).join();
    return name;
  };
  EXPECT_EQ(name_after("sluice-poll-0"), "sluice-poll-0");
  EXPECT_EQ(name_after("a-name-that-is-too-long"), "a-name-that-is-");
}

}  // namespace
}  // namespace sluice::topology
