// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/mailbox.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>

#include "freeze_hooks.hpp"

namespace sluice {
namespace {

static_assert(alignof(Mailbox<int>) == kCacheLine);

bool readable(int fd, int timeout_ms = 0) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, timeout_ms) == 1;
}

TEST(EventFd, IsReadableFromSignalToDrain) {
  EventFd event;
  ASSERT_GE(event.fd(), 0);
  EXPECT_FALSE(readable(event.fd()));
  event.drain();  // of nothing: does not block
  event.signal();
  event.signal();
  EXPECT_TRUE(readable(event.fd()));
  event.drain();
  EXPECT_FALSE(readable(event.fd()));
  EXPECT_NE(::fcntl(event.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(EventFd, KeepsErrnoAndToleratesNoDescriptor) {
  errno = E2BIG;
  EventFd event;
  event.drain();
  EXPECT_EQ(errno, E2BIG);
  EventFd::signal(-1);
  EventFd::drain(-1);
  EXPECT_EQ(errno, E2BIG);
}

TEST(Mailbox, DeliversInOrderAndRefusesWhenFull) {
  Mailbox<int, 3> mailbox;
  ASSERT_TRUE(mailbox.status().ok());
  EXPECT_EQ(mailbox.capacity(), 3u);
  int out = 0;
  EXPECT_FALSE(mailbox.take(out));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(mailbox.post(i));
  EXPECT_FALSE(mailbox.post(3));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(mailbox.take(out));
    EXPECT_EQ(out, i);
  }
  EXPECT_TRUE(mailbox.empty_seq_cst());
}

TEST(Mailbox, CarriesMoveOnlyCommands) {
  Mailbox<std::unique_ptr<int>> mailbox(1);
  EXPECT_TRUE(mailbox.post(std::make_unique<int>(4)));
  auto refused = std::make_unique<int>(5);
  EXPECT_FALSE(mailbox.post(std::move(refused)));
  EXPECT_NE(refused, nullptr);  // NOLINT: a refused post leaves it alone
  std::unique_ptr<int> out;
  EXPECT_TRUE(mailbox.take(out));
  EXPECT_EQ(*out, 4);
}

TEST(Mailbox, APostToAnAwakeConsumerMakesNoSystemCall) {
  Mailbox<int> mailbox(4);
  EXPECT_TRUE(mailbox.post(1));
  EXPECT_FALSE(readable(mailbox.fd()));
}

TEST(Mailbox, APostToASleepingConsumerSignals) {
  Mailbox<int> mailbox(4);
  ASSERT_TRUE(mailbox.prepare_to_sleep());
  EXPECT_TRUE(mailbox.post(1));
  EXPECT_TRUE(readable(mailbox.fd()));
  mailbox.finish_sleep();
  mailbox.drain_fd();
  EXPECT_FALSE(readable(mailbox.fd()));
  int out = 0;
  EXPECT_TRUE(mailbox.take(out));
  EXPECT_TRUE(mailbox.post(2));
  EXPECT_FALSE(readable(mailbox.fd()));
}

TEST(Mailbox, SaysNoToSleepWhenThereIsMail) {
  Mailbox<int> mailbox(4);
  EXPECT_TRUE(mailbox.post(1));
  EXPECT_FALSE(mailbox.prepare_to_sleep());
  EXPECT_TRUE(mailbox.post(2));
  EXPECT_FALSE(readable(mailbox.fd()));  // the mark has been taken back
}

TEST(Mailbox, PokeEndsASleepWithoutMail) {
  Mailbox<int> mailbox(4);
  ASSERT_TRUE(mailbox.prepare_to_sleep());
  mailbox.poke();
  EXPECT_TRUE(readable(mailbox.fd()));
  EXPECT_TRUE(mailbox.empty_seq_cst());
}

TEST(Mailbox, NoPostIsLostOnASleepingConsumer) {
  constexpr int kPosts = 20000;
  Mailbox<int> mailbox(8);
  std::thread poster([&] {
    for (int i = 0; i < kPosts; ++i) {
      while (!mailbox.post(i)) std::this_thread::yield();
    }
  });
  int expected = 0;
  while (expected < kPosts) {
    int out = 0;
    while (mailbox.take(out)) ASSERT_EQ(out, expected++);
    if (expected == kPosts || !mailbox.prepare_to_sleep()) continue;
    const bool woken = readable(mailbox.fd(), 20000);
    mailbox.finish_sleep();
    ASSERT_TRUE(woken) << "a post did not wake the consumer";
    mailbox.drain_fd();
  }
  poster.join();
}

}  // namespace
}  // namespace sluice
