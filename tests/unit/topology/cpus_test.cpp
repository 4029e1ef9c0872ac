// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/cpus.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

namespace sluice::topology {
namespace {

using Cpus = std::vector<unsigned>;

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

TEST(Binding, ToASetReadsBack) {
  auto allowed = allowed_cpus();
  ASSERT_TRUE(allowed.ok());
  std::thread([&] {
    const CpuSet all(*allowed);
    EXPECT_EQ(current_thread_binding(), all);
    CpuSet without_first = all;
    if (all.count() > 1) without_first.remove(allowed->front());
    for (const CpuSet& set : {without_first, all}) {
      const Status status = bind_current_thread(set);
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(affinity_of_this_thread(), set.to_vector());
      EXPECT_EQ(current_thread_binding(), set);
    }
  }).join();
}

TEST(Binding, ToNoCpuIsRefused) {
  const Status status = bind_current_thread(CpuSet{});
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
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
