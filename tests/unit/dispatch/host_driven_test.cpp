// SPDX-License-Identifier: BSD-3-Clause
#include <dirent.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::testing {
namespace {

std::size_t threads_of_this_process() {
  DIR* const tasks = ::opendir("/proc/self/task");
  std::size_t count = 0;
  while (const dirent* const entry = ::readdir(tasks)) count += entry->d_name[0] != '.';
  ::closedir(tasks);
  return count;
}

/// What an engine's own loop does with a part: run it, and sleep on its descriptor when it may.
/// Never with a timeout: a wake that is lost is a test that hangs (and is then failed by its
/// bound).
void drive(Runnable& part, const std::atomic<bool>& end, int end_fd) {
  while (!end.load(std::memory_order_acquire)) {
    if (part.run_once() > 0) continue;
    if (!part.prepare_to_wait()) continue;
    pollfd fds[2] = {{part.wait_fd(), POLLIN, 0}, {end_fd, POLLIN, 0}};
    ::poll(fds, 2, -1);
    part.finish_wait();
  }
  part.release_thread();
}

TEST(HostDriven, CreatesNoThread) {
  const std::size_t before = threads_of_this_process();
  auto dispatcher = start(small_config(4, WaitMode::event, Drive::host));
  auto source = std::make_shared<SyntheticSource>();
  std::uint64_t handled = 0;
  auto handle = dispatcher->attach(
      source, {},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
  ASSERT_TRUE(handle.ok());
  auto connection = dispatcher->attach_queue_pair(1, {.receive_source = *handle});
  ASSERT_TRUE(connection.ok());
  run_all_once(*dispatcher);
  ASSERT_TRUE(source->complete(1, 1));
  EXPECT_TRUE(run_until(*dispatcher, [&] { return handled == 1; }));
  EXPECT_EQ(threads_of_this_process(), before);
  EXPECT_TRUE(detach_by_running(*dispatcher, **connection).clean);
  EXPECT_EQ(threads_of_this_process(), before);
  EXPECT_TRUE(dispatcher->stop(kGenerous).ok());
}

TEST(HostDriven, BlockingDetachIsRefused) {
  auto dispatcher = start(small_config(1, WaitMode::event, Drive::host));
  auto handle = dispatcher->attach(std::make_shared<SyntheticSource>(), {},
                                   [](auto, const auto&) noexcept {});
  ASSERT_TRUE(handle.ok());
  auto report = (*handle)->detach(kGenerous);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(report.status().message().find("detach_async"), std::string::npos);
}

// In the order in which the interface names them: prepare, then ask for the descriptor.
TEST(HostDriven, EachPartSaysWhenThereIsWorkAndItsDescriptorWakes) {
  auto dispatcher = start(small_config(1, WaitMode::event, Drive::host));
  auto source = std::make_shared<SyntheticSource>();
  std::uint64_t handled = 0;
  auto handle = dispatcher->attach(
      source, {.order = Order::none},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
  ASSERT_TRUE(handle.ok());
  Runnable &poller = dispatcher->poller(0), &worker = dispatcher->worker(0),
           &control = dispatcher->control();
  EXPECT_FALSE(poller.prepare_to_wait()) << "there is a command";
  while (poller.run_once() > 0 || !poller.prepare_to_wait()) {
  }
  EXPECT_EQ(worker.run_once(), 0u);
  ASSERT_TRUE(worker.prepare_to_wait());
  ASSERT_GE(worker.wait_fd(), 0);
  EXPECT_FALSE(readable(worker.wait_fd()));
  ASSERT_TRUE(source->complete(1, 1));
  EXPECT_TRUE(readable(poller.wait_fd()));
  poller.finish_wait();
  for (int i = 0; i < 100 && poller.run_once() == 0; ++i) {
  }
  EXPECT_TRUE(readable(worker.wait_fd()));
  worker.finish_wait();
  EXPECT_EQ(worker.run_once(), 1u);
  EXPECT_EQ(handled, 1u);
  while (control.run_once() > 0) {
  }
  ASSERT_TRUE(control.prepare_to_wait());
  EXPECT_FALSE(readable(control.wait_fd()));
  bool done = false;
  (*handle)->detach_async(kGenerous, [&](const DetachReport&) { done = true; });
  EXPECT_TRUE(readable(control.wait_fd()));
  control.finish_wait();
  EXPECT_TRUE(run_until(*dispatcher, [&] { return done; }));
}

// A worker that says "there is work" and one whose host goes elsewhere are no searchers: producers
// would keep quiet for their sake.
/// A queue that always gives full batches, and calls back at each poll.
class FullSource final : public CompletionSource {
 public:
  explicit FullSource(std::function<void(std::uint32_t poll)> at_poll)
      : at_poll_(std::move(at_poll)) {}
  PollOutcome poll(std::span<ibv_wc> out) noexcept override {
    at_poll_(polls_++);
    std::fill(out.begin(), out.end(), ibv_wc{});
    return {static_cast<std::uint32_t>(out.size()), SourceFault::none, 0};
  }
  EventOutcome consume_event() noexcept override { return {}; }
  [[nodiscard]] int wait_fd() const noexcept override { return -1; }
  [[nodiscard]] std::uint32_t capacity() const noexcept override { return 256; }
  [[nodiscard]] std::string_view name() const noexcept override { return "full"; }

 private:
  const std::function<void(std::uint32_t)> at_poll_;
  std::uint32_t polls_ = 0;
};

// While the poller polls on, the first of its batches is neither kept from a worker that looks nor
// from one that sleeps.
TEST(HostDriven, ABatchIsThereBeforeTheNextPoll) {
  bool begun = false;
  std::vector<bool> woken;
  std::vector<std::size_t> taken;
  std::uint64_t handled = 0;
  auto dispatcher = start(small_config(2, WaitMode::busy, Drive::host));
  Runnable& sleeper = dispatcher->worker(0);
  Runnable& awake = dispatcher->worker(1);
  auto source = std::make_shared<FullSource>([&](std::uint32_t) {
    if (!begun) return;
    woken.push_back(readable(sleeper.wait_fd()));
    if (woken.size() == 2) taken.push_back(awake.run_once());
  });
  auto handle = dispatcher->attach(
      source, {.order = Order::none},
      [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
  ASSERT_TRUE(handle.ok());
  for (int i = 0; i < 100 || handled == 0; ++i) run_all_once(*dispatcher);
  while (sleeper.run_once() > 0) {
  }
  ASSERT_TRUE(sleeper.prepare_to_wait());
  begun = true;
  dispatcher->poller(0).run_once();
  begun = false;
  sleeper.finish_wait();
  ASSERT_GE(woken.size(), 2u) << "a source that gives full batches is polled on";
  EXPECT_FALSE(woken[0]);
  EXPECT_TRUE(woken[1]);
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_GT(taken[0], 0u);
}

TEST(HostDriven, AWorkerWhoseHostGoesElsewhereDoesNotKeepTheOthersAsleep) {
  auto dispatcher = start(small_config(2, WaitMode::event, Drive::host));
  auto source = std::make_shared<SyntheticSource>();
  auto handle =
      dispatcher->attach(source, {.order = Order::none}, [](auto, const auto&) noexcept {});
  ASSERT_TRUE(handle.ok());
  while (dispatcher->poller(0).run_once() > 0) {
  }
  Runnable &sleeper = dispatcher->worker(0), &other = dispatcher->worker(1);
  sleeper.run_once();
  ASSERT_TRUE(sleeper.prepare_to_wait());
  // The other one slept, woke up for nothing, looked once, and its host is gone.
  ASSERT_TRUE(other.prepare_to_wait());
  other.finish_wait();
  other.run_once();
  ASSERT_TRUE(source->complete(1, 1));
  dispatcher->poller(0).run_once();
  EXPECT_TRUE(readable(sleeper.wait_fd()));
  sleeper.finish_wait();
  EXPECT_EQ(sleeper.run_once(), 1u);
}

// The control's deadlines pass while nothing happens: its descriptor has to say so, too.
TEST(HostDriven, TheControlsDescriptorWakesAtADeadline) {
  DispatcherConfig config = small_config(1, WaitMode::event, Drive::host);
  config.stall_threshold = std::chrono::milliseconds(0);
  auto dispatcher = start(config);
  auto source = std::make_shared<SyntheticSource>();
  auto handle =
      dispatcher->attach(source, {.order = Order::none}, [](auto, const auto&) noexcept {});
  ASSERT_TRUE(handle.ok());
  bool done = false;
  (*handle)->detach_async(std::chrono::milliseconds(20), [&](const DetachReport& report) {
    EXPECT_FALSE(report.clean);  // the poller is never run
    done = true;
  });
  Runnable& control = dispatcher->control();
  for (int i = 0; i < 1000 && !done; ++i) {
    if (control.run_once() > 0 || !control.prepare_to_wait()) continue;
    const bool woken = readable(control.wait_fd(), 30'000);
    control.finish_wait();
    ASSERT_TRUE(woken) << "asleep beyond the deadline";
  }
  EXPECT_TRUE(done);
}

// A wake lost between prepare_to_wait() and poll(2) would hang this.
TEST(HostDriven, NoWakeIsLostWithRealDescriptors) {
  for (const Order order : {Order::none, Order::per_connection, Order::inlined}) {
    DispatcherConfig config = small_config(2, WaitMode::event, Drive::host);
    config.pollers[0].hot_rounds = 1;
    auto dispatcher = start(config);
    auto source = std::make_shared<SyntheticSource>();
    std::atomic<std::uint64_t> handled{0};
    auto handle = dispatcher->attach(
        source, {.order = order, .single_connection = true},
        [&](std::span<const ibv_wc> batch, const BatchInfo&) noexcept { handled += batch.size(); });
    ASSERT_TRUE(handle.ok());
    std::atomic<bool> end{false};
    EventFd end_event;
    std::vector<std::thread> hosts;
    for (Runnable* part : {&dispatcher->poller(0), &dispatcher->worker(0), &dispatcher->worker(1),
                           &dispatcher->control()}) {
      hosts.emplace_back([&, part] { drive(*part, end, end_event.fd()); });
    }
    for (std::uint64_t i = 0; i < 3000; ++i) {
      EXPECT_TRUE(source->complete(1, i));
      for (std::uint64_t spin = 0; spin < i % 61; ++spin) cpu_relax();
      if (!eventually([&] { return handled == i + 1; })) {
        ADD_FAILURE() << "completion " << i << " was never handled: a wake was lost";
        break;
      }
    }
    std::atomic<bool> done{false};
    (*handle)->detach_async(kGenerous, [&](const DetachReport& report) {
      EXPECT_TRUE(report.clean);
      done = true;
    });
    EXPECT_TRUE(eventually([&] { return done.load(); })) << "the drain's wake was lost";
    end = true;
    end_event.signal();
    for (std::thread& host : hosts) host.join();
    if (HasFailure()) return;
    EXPECT_TRUE(
        dispatcher->stop(kGenerous).ok());  // on this thread: the others have released theirs
  }
}

}  // namespace
}  // namespace sluice::testing
