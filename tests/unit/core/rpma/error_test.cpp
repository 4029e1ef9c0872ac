// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/rpma/error.hpp"

#include <gtest/gtest.h>
#include <librpma.h>

#include <cerrno>
#include <thread>

#include "sluice/core/rpma/handles.hpp"

namespace sluice::rpma {
namespace {

TEST(MakeStatus, SaysWhatWasTriedAndWhy) {
  const Status status = make_status(RPMA_E_PROVIDER, EADDRINUSE, "listen on 10.0.0.1:7204");
  EXPECT_EQ(status.code(), StatusCode::address_in_use);
  EXPECT_EQ(status.os_error(), EADDRINUSE);
  EXPECT_EQ(status.rpma_error(), RPMA_E_PROVIDER);
  EXPECT_NE(status.to_string().find("listen on 10.0.0.1:7204"), std::string::npos);
  EXPECT_NE(status.to_string().find("RPMA_E_PROVIDER"), std::string::npos);
  EXPECT_NE(status.to_string().find("Address already in use"), std::string::npos);
}

TEST(MakeStatus, ZeroIsOk) {
  EXPECT_TRUE(make_status(0, EINVAL, "anything").ok());
}

TEST(MakeStatus, TheCodeFollowsTheCause) {
  const auto of = [](int code, int os_error) { return make_status(code, os_error, "it").code(); };
  EXPECT_EQ(of(RPMA_E_NOSUPP, 0), StatusCode::not_supported);
  EXPECT_EQ(of(RPMA_E_NOMEM, 0), StatusCode::resource_exhausted);
  EXPECT_EQ(of(RPMA_E_INVAL, 0), StatusCode::invalid_argument);
  EXPECT_EQ(of(RPMA_E_NO_COMPLETION, 0), StatusCode::no_completion);
  EXPECT_EQ(of(RPMA_E_NO_EVENT, 0), StatusCode::no_completion);
  EXPECT_EQ(of(RPMA_E_UNKNOWN, 0), StatusCode::internal);
  EXPECT_EQ(of(RPMA_E_PROVIDER, ENODEV), StatusCode::unreachable);
  EXPECT_EQ(of(RPMA_E_PROVIDER, EHOSTUNREACH), StatusCode::unreachable);
  EXPECT_EQ(of(RPMA_E_PROVIDER, ENOMEM), StatusCode::resource_exhausted);
  EXPECT_EQ(of(RPMA_E_PROVIDER, ETIMEDOUT), StatusCode::timed_out);
  EXPECT_EQ(of(RPMA_E_PROVIDER, ECONNREFUSED), StatusCode::rejected);
  EXPECT_EQ(of(RPMA_E_PROVIDER, EACCES), StatusCode::permission_denied);
  EXPECT_EQ(of(RPMA_E_PROVIDER, 0), StatusCode::device_failed);
}

TEST(Log, KeepsErrnoAsItWas) {
  install_errno_safe_log();
  install_errno_safe_log();  // again: nothing happens
  rpma_log_level level = RPMA_LOG_DISABLED;
  ASSERT_EQ(rpma_log_get_threshold(RPMA_LOG_THRESHOLD, &level), 0);
  EXPECT_GE(level, RPMA_LOG_LEVEL_ERROR);
  // rpma_utils_get_ibv_context logs an error for an address that cannot be.
  ibv_context* context = nullptr;
  testing::internal::CaptureStderr();
  const int code =
      rpma_utils_get_ibv_context("no such host", RPMA_UTIL_IBV_CONTEXT_LOCAL, &context);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "quiet by default";
  EXPECT_NE(code, 0);
}

TEST(Log, TheStatusSaysWhatLibrpmaSaid) {
  const auto peer = Peer::listen_on("no such host");
  ASSERT_FALSE(peer.ok());
  EXPECT_EQ(peer.status().code(), StatusCode::unreachable);
  EXPECT_NE(peer.status().message().find("no such host"), std::string::npos);
  EXPECT_NE(peer.status().message().find("rdma_getaddrinfo"), std::string::npos)
      << peer.status().message();
}

TEST(LibraryMutex, IsRecursiveAndOneForAll) {
  const std::lock_guard outer(library_mutex());
  ASSERT_TRUE(library_mutex().try_lock());
  library_mutex().unlock();
  bool other = true;
  std::thread([&] { other = library_mutex().try_lock(); }).join();
  EXPECT_FALSE(other);
}

}  // namespace
}  // namespace sluice::rpma
