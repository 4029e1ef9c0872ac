// SPDX-License-Identifier: BSD-3-Clause
// The wall clock is set while a cluster works. It changes the machine's clock: only in a VM.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "client.hpp"
#include "cluster.hpp"
#include "load.hpp"

namespace sluice::kv::test {
namespace {

/// Sets the wall clock so many seconds ahead, or back.
void jump(time_t seconds) {
  timespec now{};
  ASSERT_EQ(::clock_gettime(CLOCK_REALTIME, &now), 0);
  now.tv_sec += seconds;
  ASSERT_EQ(::clock_settime(CLOCK_REALTIME, &now), 0) << std::strerror(errno);
}

TEST(Clock, JumpsChangeNeitherThePrimaryNorWhatIsAcknowledged) {
  Cluster cluster({.lease_s = 10});
  cluster.start_all();
  const std::string primary = cluster.wait_until_in_sync();
  ASSERT_NE(primary, "") << cluster.state();
  const std::string epoch = (*cluster[primary].info())["epoch"];
  LoadOptions options;
  options.client = cluster.client_options("quorum_disk");
  Load load(options);
  for (const time_t seconds : {3600, -7200, 86400, -40000}) {
    ASSERT_TRUE(load.wait_for_more(100, kStatePatience)) << load.refusal() << cluster.state();
    jump(seconds);
    ASSERT_TRUE(load.wait_for_more(200, kStatePatience))
        << "after " << seconds << " s: " << load.refusal() << cluster.state();
    const auto info = cluster[primary].info();
    ASSERT_TRUE(info);
    EXPECT_EQ((*info)["role"], "primary") << "after " << seconds << " s";
    EXPECT_EQ((*info)["epoch"], epoch) << "after " << seconds << " s";
  }
  const Judgement judgement = judge(load, cluster.client_options());
  RecordProperty("summary", judgement.summary);
  EXPECT_EQ(judgement.wrong, "") << cluster.state();
}

}  // namespace
}  // namespace sluice::kv::test
