// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include "sluice/core/rpma/handles.hpp"

namespace sluice::rpma {
namespace {

TEST(ConnectionConfig, SizesAreTheWorstCase) {
  ConnectionConfig config;
  config.send_queue_size = 10;
  config.receive_queue_size = 20;
  auto sizes = config.sizes();
  ASSERT_TRUE(sizes.ok());
  EXPECT_EQ(sizes->send_queue, 11U);  // the drain marker
  EXPECT_EQ(sizes->receive_queue, 20U);
  EXPECT_EQ(sizes->cq, 11U);
  EXPECT_EQ(sizes->receive_cq, 20U);

  config.receive_cq_size = 0;  // receives complete on the CQ
  sizes = config.sizes();
  ASSERT_TRUE(sizes.ok());
  EXPECT_EQ(sizes->cq, 31U);
  EXPECT_EQ(sizes->receive_cq, 0U);

  config.receive_queue_size = 0;
  config.receive_cq_size.reset();
  sizes = config.sizes();
  ASSERT_TRUE(sizes.ok());
  EXPECT_EQ(sizes->cq, 11U);
  EXPECT_EQ(sizes->receive_cq, 0U);
}

TEST(ConnectionConfig, ExplicitSizesThatCannotHoldTheWorstCaseAreRefused) {  // E2
  ConnectionConfig config;
  config.send_queue_size = 10;
  config.receive_queue_size = 20;
  config.cq_size = 11;
  EXPECT_TRUE(config.sizes().ok());
  config.cq_size = 10;
  const Status status = config.sizes().status();
  EXPECT_EQ(status.code(), StatusCode::does_not_fit);
  for (const char* part : {"10 entries", "10 sends", "drain marker", "fit with 11"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << ": " << status.message();
  }
  config.cq_size.reset();
  config.receive_cq_size = 19;
  EXPECT_EQ(config.sizes().status().code(), StatusCode::does_not_fit);
  config.receive_cq_size = 0;
  config.cq_size = 30;
  EXPECT_EQ(config.sizes().status().code(), StatusCode::does_not_fit);
  config.cq_size = 31;
  EXPECT_TRUE(config.sizes().ok());
}

TEST(ConnectionConfig, ImpossibleValuesAreNamed) {
  const auto refused = [](auto change, const char* part) {
    ConnectionConfig config;
    change(config);
    const Status status = config.sizes().status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << part;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  refused([](ConnectionConfig& c) { c.send_queue_size = 0; }, "send_queue_size = 0");
  refused([](ConnectionConfig& c) { c.send_queue_size = 65'537; }, "send_queue_size = 65537");
  refused([](ConnectionConfig& c) { c.receive_queue_size = 65'537; }, "receive_queue_size = 65537");
  refused([](ConnectionConfig& c) { c.cq_size = 0; }, "cq_size = 0");
  refused([](ConnectionConfig& c) { c.timeout = std::chrono::milliseconds(0); }, "timeout = 0 ms");
  refused([](ConnectionConfig& c) { c.timeout = std::chrono::minutes(2); }, "timeout = 120000 ms");
}

TEST(ConnectionEvent, EachHasAName) {
  EXPECT_EQ(to_string(ConnectionEvent::established), "established");
  EXPECT_EQ(to_string(ConnectionEvent::undefined), "undefined");
}

}  // namespace
}  // namespace sluice::rpma
