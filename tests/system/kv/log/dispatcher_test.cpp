// SPDX-License-Identifier: BSD-3-Clause
// The log as a server has it: completions come through a dispatcher, whose worker submits what has
// been appended meanwhile; and a process that dies in the middle of that.
#include <sys/wait.h>

#include <csignal>
#include <mutex>
#include <thread>

#include "sluice/dispatch/uring.hpp"
#include "sluice_test/dispatch_fixture.hpp"
#include "support.hpp"

namespace sluice::kv::testing {
namespace {

using sluice::testing::eventually;
using sluice::testing::kGenerous;
using sluice::testing::small_config;

/// A log and its ring behind a dispatcher. Appends come from one thread, completions on workers;
/// a mutex makes them one owner (a server appends on the same lane, and needs none).
class Server {
 public:
  Server(const std::string& folder, const LogOptions& options, std::uint32_t workers)
      : log_(open(folder, options)), ring_(make_ring(16)) {
    auto config = small_config(workers);
    config.connections_max = 1;  // a VM has few descriptors, and there is no connection at all
    auto started = Dispatcher::start(config);
    dispatcher_ = require(std::move(started));
    source_ = require(dispatcher_->attach(
        ring_, {.order = Order::per_connection, .single_connection = true},
        uring_handler([this](std::span<const io_uring_cqe> cqes, const BatchInfo&) noexcept {
          const std::lock_guard lock(mutex_);
          for (const io_uring_cqe& cqe : cqes) {
            if (!log_->on_completion(cqe).ok()) ++failures;
          }
          submit();
        })));
  }
  ~Server() {
    EXPECT_TRUE(eventually([&] { return ring_->in_flight() == 0; }));
    EXPECT_TRUE(require(source_->detach(kGenerous)).clean);
    EXPECT_TRUE(ring_->close(kGenerous).ok());
  }

  void append(std::uint64_t index, std::size_t size) {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        const auto appended = log_->append(1, payload_of(index, size));
        if (appended.ok()) {
          EXPECT_EQ(*appended, index);
          submit();
          return;
        }
        EXPECT_EQ(appended.status().code(), StatusCode::resource_exhausted);
        log_->release_thread();
      }
      std::this_thread::yield();  // until completions make room
    }
  }
  [[nodiscard]] Log& log() { return *log_; }
  std::atomic<std::uint32_t> failures{0};

 private:
  void submit() {
    const Status status = log_->submit(*ring_);
    // No room on the ring: the handler that makes some submits.
    if (!status.ok() && status.code() != StatusCode::resource_exhausted) ++failures;
    log_->release_thread();
    ring_->release_thread();
  }

  std::mutex mutex_;
  std::unique_ptr<Log> log_;
  std::shared_ptr<uring::Ring> ring_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::shared_ptr<SourceHandle> source_;
};

class LogBehindADispatcher : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Ways, LogBehindADispatcher, ::testing::Bool(), [](const auto& way) {
  return std::string(way.param ? "dsync" : "linked");
});

TEST_P(LogBehindADispatcher, CommitsInGroupsWhatComesMeanwhile) {
  constexpr std::uint64_t kMany = 3000;
  const TemporaryFolder temp;
  LogOptions options = small_options();
  options.dsync = GetParam();
  options.pending_bytes_max = 20'000;
  {
    Server server(temp / "log", options, 2);
    for (std::uint64_t index = 1; index <= kMany; ++index) server.append(index, index % 700);
    ASSERT_TRUE(eventually([&] { return server.log().durable_index() == kMany; }))
        << server.log().durable_index();
    EXPECT_EQ(server.failures, 0u);
    EXPECT_LT(server.log().counters().groups, kMany) << "every entry was a group of its own";
  }
  const auto log = open(temp / "log", options);
  EXPECT_FALSE(log->recovery().cut);
  const Contents contents = contents_of(*log);
  ASSERT_EQ(contents.size(), kMany);
  for (const auto& [index, stored] : contents) {
    ASSERT_EQ(stored.payload, payload_of(index, index % 700));
  }
}

// What was told to be durable is there after kill -9, and what else there is, is whole.
TEST(LogProcess, KilledInTheMiddleItHasWhatItAcknowledged) {
  const TemporaryFolder temp;
  std::uint64_t had = 0;
  for (int round = 0; round < 8; ++round) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      (void)::close(pipe[0]);
      const auto ring = make_ring();
      const auto log = open(temp / "log");
      for (;;) {
        const std::uint64_t index = log->last_index() + 1;
        if (!log->append(1, payload_of(index, index % 3000)).ok()) ::_exit(1);
        if (!log->submit(*ring).ok()) ::_exit(2);
        if (index % 3 != 0) continue;
        for (const io_uring_cqe& cqe : reap(*ring)) {
          if (!log->on_completion(cqe).ok()) ::_exit(3);
        }
        const std::uint64_t durable = log->durable_index();
        if (::write(pipe[1], &durable, sizeof durable) != sizeof durable) ::_exit(4);
      }
    }
    (void)::close(pipe[1]);
    std::uint64_t told = 0;
    for (int i = 0; i < 30 + 13 * round; ++i) {
      ASSERT_EQ(::read(pipe[0], &told, sizeof told), ssize_t{sizeof told}) << "it ended by itself";
    }
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    while (::read(pipe[0], &told, sizeof told) == ssize_t{sizeof told}) {
    }
    (void)::close(pipe[0]);
    EXPECT_GT(told, had);
    had = told;
    const auto log = open(temp / "log");
    EXPECT_GE(log->last_index(), told);
    const Contents contents = contents_of(*log);
    ASSERT_EQ(contents.size(), log->last_index());
    for (const auto& [index, stored] : contents) {
      ASSERT_EQ(stored.payload, payload_of(index, index % 3000)) << index;
    }
  }
}

}  // namespace
}  // namespace sluice::kv::testing
