// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/status.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>

namespace sluice {
namespace {

TEST(Status, OkSaysNothing) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.to_string(), "ok");
  EXPECT_TRUE(status.with_context("anything").ok());
  EXPECT_TRUE(status.with_context("anything").message().empty());
}

TEST(Status, KeepsCodeMessageAndCauses) {
  const Status status(StatusCode::does_not_fit, "a CQ of 3", ENOMEM, -100002);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::does_not_fit);
  EXPECT_EQ(status.os_error(), ENOMEM);
  EXPECT_EQ(status.rpma_error(), -100002);
  EXPECT_EQ(status.to_string(), "does_not_fit: a CQ of 3 (errno 12: Cannot allocate memory)");
}

TEST(Status, ContextGoesInFrontAndKeepsTheCauses) {
  const Status status = Status(StatusCode::io_error, "write", EPIPE, 5).with_context("log");
  EXPECT_EQ(status.message(), "log: write");
  EXPECT_EQ(status.code(), StatusCode::io_error);
  EXPECT_EQ(status.os_error(), EPIPE);
  EXPECT_EQ(status.rpma_error(), 5);
}

TEST(Status, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(StatusCode::internal); ++i) {
    names.insert(to_string(static_cast<StatusCode>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(StatusCode::internal) + 1);
  EXPECT_EQ(names.count("unknown"), 0U);
}

TEST(Result, HoldsAValueThatCanOnlyBeMoved) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result.status().ok());
  EXPECT_EQ(**result, 7);
  const std::unique_ptr<int> taken = *std::move(result);
  EXPECT_EQ(*taken, 7);
}

TEST(Result, HoldsTheFailure) {
  const Result<int> result(Status(StatusCode::timed_out, "late"));
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::timed_out);
}

TEST(ResultDeathTest, TheValueOfAFailureStopsTheProgramAndSaysWhy) {
  Result<int> result(Status(StatusCode::timed_out, "late"));
  EXPECT_DEATH((void)result.value(), "timed_out: late");
}

TEST(ResultDeathTest, AnOkStatusIsNoFailure) {
  EXPECT_DEATH((void)Result<int>(Status()), "ok Status without a value");
}

Status passes_up(const Status& status) {
  SLUICE_RETURN_IF_ERROR(status);
  return Status(StatusCode::internal, "went on");
}

TEST(Status, ReturnIfErrorReturnsFailuresAlone) {
  EXPECT_EQ(passes_up(Status(StatusCode::rejected, "no")).code(), StatusCode::rejected);
  EXPECT_EQ(passes_up(Status()).code(), StatusCode::internal);
}

}  // namespace
}  // namespace sluice
