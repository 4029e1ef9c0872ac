// SPDX-License-Identifier: BSD-3-Clause
// What is a ring's own. The invariants that it shares with every source, and W1 to W7, W10 and W11,
// are tests/contract's, for operations that complete while they are submitted. Here completions
// come as they do of disks and sockets: from the kernel's worker threads, and by interrupting the
// submitting thread.
#include "sluice/core/uring/ring.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "sluice_test/refused_system_calls.hpp"

namespace sluice::uring {
namespace {

constexpr std::chrono::seconds kGenerous{30};

std::shared_ptr<Ring> make_ring(std::uint32_t submissions = 16, std::uint32_t completions = 0) {
  auto ring = Ring::create({.submissions = submissions, .completions = completions}, "ring");
  if (!ring.ok()) throw std::runtime_error(ring.status().to_string());
  return *ring;
}

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.to_string());
}

io_uring_sqe* prepare(Ring& ring, std::uint64_t user_data) {
  auto sqe = ring.prepare();
  require(sqe.status());
  (*sqe)->user_data = user_data;
  return *sqe;
}

/// Takes completions as a poller does: sleeps only after it has seen the source empty since it last
/// took an event (INV-EMPTY).
class Reaper {
 public:
  explicit Reaper(Ring& ring) : ring_(ring) {}
  /// The next ones until there were `count`, retired.
  std::vector<io_uring_cqe> take(std::size_t count) {
    std::vector<io_uring_cqe> all;
    const auto deadline = std::chrono::steady_clock::now() + kGenerous;
    while (all.size() < count) {
      ibv_wc wcs[8];
      const PollOutcome outcome = ring_.poll(wcs);
      if (outcome.fault != SourceFault::none) throw std::runtime_error("the ring failed");
      for (const ibv_wc& wc : std::span(wcs).first(outcome.count)) all.push_back(to_cqe(wc));
      ring_.retire(std::span(wcs).first(outcome.count));
      if (outcome.count != 0) continue;
      if (std::chrono::steady_clock::now() > deadline) {
        throw std::runtime_error(std::to_string(all.size()) + " of " + std::to_string(count) +
                                 " completions came");
      }
      pollfd descriptor{ring_.wait_fd(), POLLIN, 0};
      if (::poll(&descriptor, 1, 5'000) == 0 && !empty()) {
        throw std::runtime_error("a completion came, and no signal told of it");
      }
      if (ring_.consume_event().kind == EventOutcome::Kind::failed) {
        throw std::runtime_error("taking an event failed");
      }
    }
    return all;
  }
  bool empty() {
    ibv_wc wc;
    return ring_.poll(std::span(&wc, 1)).count == 0;
  }

 private:
  Ring& ring_;
};

/// A file of the kind that a log is, gone with its descriptor.
class TemporaryFile {
 public:
  TemporaryFile() {
    char path[] = "/tmp/sluice-ring-XXXXXX";
    fd_ = ::mkostemp(path, O_CLOEXEC);
    if (fd_ < 0) throw std::runtime_error("no temporary file");
    (void)::unlink(path);
  }
  ~TemporaryFile() { (void)::close(fd_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

class Pipe {
 public:
  explicit Pipe(int flags = 0) {
    if (::pipe2(ends_, flags | O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  }
  ~Pipe() {
    (void)::close(ends_[0]);
    (void)::close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  [[nodiscard]] int out() const { return ends_[0]; }
  [[nodiscard]] int in() const { return ends_[1]; }
  void write(char byte) const { ASSERT_EQ(::write(in(), &byte, 1), 1); }

 private:
  int ends_[2];
};

// --- a completion as a wc -----------------------------------------------------------------------

TEST(Cqe, TravelsAsAWorkCompletionWithoutLoss) {
  std::mt19937_64 random(1);
  std::vector<io_uring_cqe> all;
  for (const std::uint64_t user_data : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
    for (const std::int32_t res : {0, 1, -1, -EIO, 4096, INT32_MIN, INT32_MAX}) {
      for (const std::uint32_t flags : {0U, 1U, IORING_CQE_F_BUFFER | 0xabcd0000U, ~0U}) {
        io_uring_cqe cqe;
        cqe.user_data = user_data;
        cqe.res = res;
        cqe.flags = flags;
        all.push_back(cqe);
      }
    }
  }
  for (int i = 0; i < 1000; ++i) {
    io_uring_cqe cqe;
    cqe.user_data = random();
    cqe.res = static_cast<std::int32_t>(random());
    cqe.flags = static_cast<std::uint32_t>(random());
    all.push_back(cqe);
  }
  for (const io_uring_cqe& cqe : all) {
    ibv_wc wc = to_wc(cqe);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, cqe.user_data);
    EXPECT_EQ(wc.qp_num, 0U);
    clear_invalid_fields(wc);  // pollers do
    const io_uring_cqe back = to_cqe(wc);
    EXPECT_EQ(back.user_data, cqe.user_data);
    EXPECT_EQ(back.res, cqe.res);
    EXPECT_EQ(back.flags, cqe.flags);
  }
}

// --- making one ---------------------------------------------------------------------------------

TEST(RingCreate, RefusesSizesThatCannotBe) {
  const std::pair<RingConfig, const char*> cases[] = {
      {{.submissions = 0, .completions = 0}, "submissions = 0"},
      {{.submissions = 32769, .completions = 0}, "submissions = 32769"},
      {{.submissions = 16, .completions = 15}, "completions = 15"},
      {{.submissions = 16, .completions = 65537}, "completions = 65537"},
  };
  for (const auto& [config, words] : cases) {
    const auto ring = Ring::create(config, "log");
    ASSERT_FALSE(ring.ok()) << words;
    EXPECT_EQ(ring.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(ring.status().message().find(words), std::string::npos) << ring.status().message();
    EXPECT_NE(ring.status().message().find("log"), std::string::npos);
  }
}

TEST(RingCreate, SaysHowManyItHolds) {
  EXPECT_EQ(make_ring(16)->capacity(), 32U);
  EXPECT_EQ(make_ring(16, 100)->capacity(), 128U);
  EXPECT_EQ(make_ring(1, 1)->capacity(), 1U);
}

class RingCreateDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  /// In a process to which these calls are refused: the status's code and text.
  static void create_refused(const std::vector<test::SystemCall>& calls, int error) {
    test::refuse_system_calls(calls, error);
    const auto ring = Ring::create({}, "log");
    std::fprintf(stderr, "%s\n", ring.ok() ? "made" : ring.status().to_string().c_str());
    std::exit(ring.ok() ? 0 : 3);
  }
};

TEST_F(RingCreateDeathTest, WithoutIoUringItSaysSoAndWhatToDo) {
  EXPECT_EXIT(create_refused({{SYS_io_uring_setup}}, ENOSYS), ::testing::ExitedWithCode(3),
              "not_supported: .*'log'.*no io_uring.*Linux 5.5");
  EXPECT_EXIT(create_refused({{SYS_io_uring_setup}}, EPERM), ::testing::ExitedWithCode(3),
              "permission_denied: .*kernel.io_uring_disabled.*seccomp");
  EXPECT_EXIT(create_refused({{SYS_io_uring_setup}}, ENOMEM), ::testing::ExitedWithCode(3),
              "resource_exhausted: .*ulimit -l");
  EXPECT_EXIT(create_refused({{SYS_eventfd2}}, EMFILE), ::testing::ExitedWithCode(3),
              "resource_exhausted: .*ulimit -n");
  EXPECT_EXIT(create_refused({{SYS_io_uring_register}}, EPERM), ::testing::ExitedWithCode(3),
              "permission_denied: ");
}

// --- credits (C4) -------------------------------------------------------------------------------

TEST(RingCredits, NeverMoreInFlightThanTheCompletionQueueHolds) {
  const auto ring = make_ring(8, 16);
  Reaper reaper(*ring);
  std::uint64_t next = 0;
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t i = 0; i < ring->capacity(); ++i) {
      ::io_uring_prep_nop(prepare(*ring, next++));
      require(ring->submit());
    }
    EXPECT_EQ(ring->in_flight(), ring->capacity());
    io_uring_sqe* sqe = nullptr;
    EXPECT_FALSE(ring->try_prepare(std::span(&sqe, 1)));
    const auto refused = ring->prepare();
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::resource_exhausted);
    EXPECT_NE(refused.status().message().find("16 of 16 credits"), std::string::npos)
        << refused.status().message();
    // The completion queue is full to the brim, and lost nothing. Polling gives no credit back:
    // the handler has not returned.
    std::vector<ibv_wc> wcs(ring->capacity() + 1);
    EXPECT_EQ(ring->poll(wcs).count, ring->capacity());
    EXPECT_EQ(ring->poll(wcs).fault, SourceFault::none);
    EXPECT_FALSE(ring->try_prepare(std::span(&sqe, 1)));
    ring->retire(std::span(wcs).first(1));
    EXPECT_EQ(ring->in_flight(), ring->capacity() - 1);
    EXPECT_TRUE(ring->try_prepare(std::span(&sqe, 1)));
    EXPECT_FALSE(ring->try_prepare(std::span(&sqe, 1)));
    ::io_uring_prep_nop(sqe);
    require(ring->submit());
    (void)reaper.take(1);
    ring->retire(std::span(wcs).first(ring->capacity() - 1));
    EXPECT_EQ(ring->in_flight(), 0U);
  }
}

TEST(RingCredits, AChainIsPreparedWholeOrNotAtAll) {
  const auto ring = make_ring(4, 8);
  Reaper reaper(*ring);
  io_uring_sqe* three[3];
  ASSERT_TRUE(ring->try_prepare(three));
  for (io_uring_sqe* sqe : three) ::io_uring_prep_nop(sqe);
  io_uring_sqe* two[2];
  EXPECT_FALSE(ring->try_prepare(two));
  const Status full = ring->prepare(std::span<io_uring_sqe*>(two));
  EXPECT_EQ(full.code(), StatusCode::resource_exhausted);
  EXPECT_NE(full.message().find("3 of 4 submissions wait for submit()"), std::string::npos)
      << full.message();
  require(ring->submit());
  EXPECT_EQ(ring->in_flight(), 3U) << "the refused chain took a credit";
  io_uring_sqe* four[4];
  ASSERT_TRUE(ring->try_prepare(four));
  for (io_uring_sqe* sqe : four) ::io_uring_prep_nop(sqe);
  require(ring->submit());
  EXPECT_FALSE(ring->try_prepare(two)) << "one credit is left";
  ASSERT_TRUE(ring->try_prepare(std::span(two, 1)));
  ::io_uring_prep_nop(two[0]);
  require(ring->submit());
  EXPECT_EQ(reaper.take(8).size(), 8U);
  io_uring_sqe* five[5];
  EXPECT_EQ(ring->prepare(std::span<io_uring_sqe*>(five)).code(), StatusCode::does_not_fit);
}

// liburing leaves in a slot what its last user wrote there.
TEST(RingCredits, APreparedOperationIsBlank) {
  const auto ring = make_ring(1, 2);  // one slot
  Reaper reaper(*ring);
  for (int i = 0; i < 3; ++i) {
    io_uring_sqe* sqe = nullptr;
    ASSERT_TRUE(ring->try_prepare(std::span(&sqe, 1)));
    const io_uring_sqe blank{};
    EXPECT_EQ(std::memcmp(sqe, &blank, sizeof blank), 0);
    sqe->flags = IOSQE_IO_DRAIN;
    sqe->user_data = ~0ULL;
    sqe->off = 7;
    require(ring->submit());
    (void)reaper.take(1);
  }
}

// What has none or many completions, or one elsewhere, no credit can stand for.
TEST(RingCredits, OperationsThatDoNotCompleteOnceAreRefusedAtSubmission) {
  const auto ring = make_ring(8);
  Reaper reaper(*ring);
  const Pipe pipe;
  const std::pair<const char*, std::function<void(io_uring_sqe*)>> kinds[] = {
      {"skips its completion",
       [](io_uring_sqe* sqe) {
         ::io_uring_prep_nop(sqe);
         sqe->flags |= IOSQE_CQE_SKIP_SUCCESS;
       }},
      {"multishot poll",
       [&](io_uring_sqe* sqe) { ::io_uring_prep_poll_multishot(sqe, pipe.out(), POLLIN); }},
      {"multishot accept",
       [](io_uring_sqe* sqe) { ::io_uring_prep_multishot_accept(sqe, 0, nullptr, nullptr, 0); }},
      {"multishot receive",
       [](io_uring_sqe* sqe) { ::io_uring_prep_recv_multishot(sqe, 0, nullptr, 0, 0); }},
      {"zero-copy send",
       [](io_uring_sqe* sqe) { ::io_uring_prep_send_zc(sqe, 0, nullptr, 0, 0, 0); }},
      {"message to a ring",
       [&](io_uring_sqe* sqe) { ::io_uring_prep_msg_ring(sqe, ring->native()->ring_fd, 0, 0, 0); }},
      {"multishot timeout",
       [](io_uring_sqe* sqe) { ::io_uring_prep_timeout(sqe, nullptr, 0, 1U << 6); }},
      {"multishot read", [](io_uring_sqe* sqe) { sqe->opcode = 49; }},
  };
  for (const auto& [what, prepare_kind] : kinds) {
    SCOPED_TRACE(what);
    ::io_uring_prep_nop(prepare(*ring, 1));
    io_uring_sqe* const sqe = prepare(*ring, 0);
    prepare_kind(sqe);
    sqe->user_data = 4711;
    const Status status = ring->submit();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find("4711"), std::string::npos) << status.message();
    // Nothing of it was submitted, no credit is lost, and the ring goes on.
    EXPECT_EQ(ring->in_flight(), 0U);
    EXPECT_TRUE(reaper.empty());
    ::io_uring_prep_nop(prepare(*ring, 2));
    require(ring->submit());
    EXPECT_EQ(reaper.take(1)[0].user_data, 2U);
    EXPECT_TRUE(reaper.empty());
  }
  for (std::uint32_t i = 0; i < ring->capacity(); ++i) {
    ::io_uring_prep_nop(prepare(*ring, i));
    require(ring->submit());
  }
}

// Past the credits, through liburing itself: seen as what an overflow is for any CQ.
TEST(RingCredits, AnOverflowIsAFaultAndFinal) {
  const auto ring = make_ring(4, 4);
  for (int i = 0; i < 6; ++i) {
    ::io_uring_prep_nop(::io_uring_get_sqe(ring->native()));
    ASSERT_EQ(::io_uring_submit(ring->native()), 1);
  }
  ibv_wc wcs[8];
  EXPECT_EQ(ring->poll(wcs).count, 4U);
  for (int i = 0; i < 2; ++i) {
    const PollOutcome outcome = ring->poll(wcs);
    EXPECT_EQ(outcome.count, 0U);
    EXPECT_EQ(outcome.fault, SourceFault::cq_error);
  }
  // Its end takes what the kernel kept back, too.
  std::uint32_t rest = 0;
  require(ring->close(kGenerous, [&](const io_uring_cqe&) { ++rest; }));
  EXPECT_EQ(rest, 2U);
}

// --- one thread submits
// ---------------------------------------------------------------------------

TEST(RingThreadDeathTest, ASecondSubmittingThreadStopsTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ring = make_ring();
  ::io_uring_prep_nop(prepare(*ring, 1));
  EXPECT_DEATH(std::thread([&] { (void)ring->submit(); }).join(), "submitted to by one thread");
  EXPECT_DEATH(std::thread([&] { (void)ring->prepare(); }).join(), "submitted to by one thread");
  EXPECT_DEATH(std::thread([&] { ring->release_thread(); }).join(), "does not drive it");
}

TEST(RingThread, IsHandedOverFromThreadToThread) {
  const auto ring = make_ring(16);
  Reaper reaper(*ring);
  for (std::uint64_t i = 0; i < 10; ++i) {
    std::thread([&] {
      if (i % 2 == 1) require(ring->submit());  // what the last one prepared
      ::io_uring_prep_nop(prepare(*ring, i));
      if (i % 2 == 1) require(ring->submit());
      ring->release_thread();
    }).join();
  }
  std::uint64_t expected = 0;
  for (const io_uring_cqe& cqe : reaper.take(10)) EXPECT_EQ(cqe.user_data, expected++);
}

// --- results
// --------------------------------------------------------------------------------------

TEST(RingResults, AWriteAndItsSyncCompleteInOrder) {
  const auto ring = make_ring();
  Reaper reaper(*ring);
  const TemporaryFile file;
  const std::string text = "written before it is synced";
  io_uring_sqe* chain[2];
  ASSERT_TRUE(ring->try_prepare(chain));
  ::io_uring_prep_write(chain[0], file.fd(), text.data(), static_cast<unsigned>(text.size()), 3);
  chain[0]->flags |= IOSQE_IO_LINK;
  chain[0]->user_data = 1;
  ::io_uring_prep_fsync(chain[1], file.fd(), IORING_FSYNC_DATASYNC);
  chain[1]->user_data = 2;
  require(ring->submit());
  const auto cqes = reaper.take(2);
  EXPECT_EQ(cqes[0].user_data, 1U);
  EXPECT_EQ(cqes[0].res, static_cast<int>(text.size()));
  EXPECT_EQ(cqes[1].user_data, 2U);
  EXPECT_EQ(cqes[1].res, 0);
  std::string read(text.size(), 0);
  ASSERT_EQ(::pread(file.fd(), read.data(), read.size(), 3), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(read, text);
}

/// Writes `size` bytes to `fd` with a linked sync: the two results.
std::pair<int, int> write_and_sync(int fd, std::size_t size) {
  const auto ring = make_ring();
  Reaper reaper(*ring);
  const std::vector<char> bytes(size, 'x');
  io_uring_sqe* chain[2];
  EXPECT_TRUE(ring->try_prepare(chain));
  ::io_uring_prep_write(chain[0], fd, bytes.data(), static_cast<unsigned>(size), 0);
  chain[0]->flags |= IOSQE_IO_LINK;
  chain[0]->user_data = 1;
  ::io_uring_prep_fsync(chain[1], fd, IORING_FSYNC_DATASYNC);
  chain[1]->user_data = 2;
  require(ring->submit());
  std::map<std::uint64_t, int> results;
  for (const io_uring_cqe& cqe : reaper.take(2)) results[cqe.user_data] = cqe.res;
  EXPECT_EQ(ring->in_flight(), 0U);
  EXPECT_TRUE(reaper.empty());
  return {results.at(1), results.at(2)};
}

TEST(RingResults, AFailedWriteTellsItsErrorAndItsSyncIsNotBegun) {
  EXPECT_EQ(write_and_sync(-1, 8), std::pair(-EBADF, -ECANCELED));
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  EXPECT_EQ(write_and_sync(full, 8), std::pair(-ENOSPC, -ECANCELED));
  (void)::close(full);
}

TEST(RingResults, AShortWriteTellsHowMuchAndItsSyncIsNotBegun) {
  // A file that may not grow beyond 6000 bytes.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{6000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const TemporaryFile file;
  const auto results = write_and_sync(file.fd(), 10'000);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(results, std::pair(6000, -ECANCELED));
}

// --- completions from elsewhere
// -------------------------------------------------------------------

/// How the kernel comes to complete an operation.
enum class From { submission, worker, interrupt };

/// An operation that completes when `trigger` is called (for `submission` and `worker`: by itself).
class Later {
 public:
  explicit Later(From from) : from_(from) {}
  void prepare_on(Ring& ring, std::uint64_t user_data) const {
    io_uring_sqe* const sqe = prepare(ring, user_data);
    if (from_ == From::interrupt) {
      ::io_uring_prep_poll_add(sqe, pipe_.out(), POLLIN);
    } else {
      ::io_uring_prep_nop(sqe);
      if (from_ == From::worker) sqe->flags |= IOSQE_ASYNC;
    }
    sqe->user_data = user_data;
  }
  void trigger() const {
    if (from_ == From::interrupt) pipe_.write('x');
  }
  void clear() const {
    char byte;
    if (from_ != From::interrupt) return;
    ASSERT_EQ(::read(pipe_.out(), &byte, 1), 1);
  }

 private:
  From from_;
  Pipe pipe_;
};

/// What the submitting thread does while its operation completes.
enum class Meanwhile { computes, sleeps };

class RingWakes : public ::testing::TestWithParam<std::tuple<From, Meanwhile>> {};

// INV-ARM, INV-EMPTY, W5: a poller asleep hears of a completion wherever the kernel posts it from,
// and whatever the submitting thread does, which makes no system call by itself.
TEST_P(RingWakes, ASleepingPollerHearsOfEveryCompletion) {
  const auto [from, meanwhile] = GetParam();
  constexpr std::uint64_t kRounds = 200;
  const auto ring = make_ring();
  const Later later(from);
  std::atomic<std::uint64_t> submitted{0}, taken{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::condition_variable changed;
  std::thread submitter([&, meanwhile = meanwhile] {
    for (std::uint64_t i = 0; i < kRounds && !failed; ++i) {
      later.prepare_on(*ring, i);
      require(ring->submit());
      submitted = i + 1;
      if (meanwhile == Meanwhile::computes) {
        while (taken <= i && !failed) cpu_relax();
      } else {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return taken > i || failed; });
      }
    }
  });
  Reaper reaper(*ring);
  try {
    for (std::uint64_t i = 0; i < kRounds; ++i) {
      while (submitted <= i) std::this_thread::yield();
      later.trigger();
      EXPECT_EQ(reaper.take(1)[0].user_data, i);
      later.clear();
      const std::scoped_lock lock(mutex);
      taken = i + 1;
      changed.notify_all();
    }
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  {
    const std::scoped_lock lock(mutex);
    failed = true;
    changed.notify_all();
  }
  submitter.join();
}

std::string name_of_way(const ::testing::TestParamInfo<RingWakes::ParamType>& instance) {
  const char* const names[] = {"FromSubmission", "FromAKernelWorker", "ByInterrupt"};
  const auto [from, meanwhile] = instance.param;
  return std::string(names[static_cast<int>(from)]) +
         (meanwhile == Meanwhile::computes ? "_Computing" : "_Asleep");
}
INSTANTIATE_TEST_SUITE_P(
    Ways, RingWakes,
    ::testing::Combine(::testing::Values(From::submission, From::worker, From::interrupt),
                       ::testing::Values(Meanwhile::computes, Meanwhile::sleeps)),
    name_of_way);

// One thread submits, another polls, a third retires: each operation completes once, and what is
// handed through the kernel is ordered (ThreadSanitizer judges).
TEST(RingThreads, SubmitterPollerAndHandlerEachOnItsOwn) {
  constexpr std::uint64_t kMany = 20'000;
  const auto ring = make_ring(32, 64);
  struct Operation {
    std::uint64_t written_by_submitter = 0;
    std::uint64_t written_by_handler = 0;
  };
  std::vector<Operation> slots(ring->capacity());
  std::mutex mutex;
  std::vector<std::uint32_t> free_slots;
  for (std::uint32_t i = 0; i < slots.size(); ++i) free_slots.push_back(i);
  std::vector<ibv_wc> handed;
  std::atomic<std::uint64_t> handled{0}, wrong{0};

  std::thread submitter([&] {
    std::uint64_t made = 0;
    while (made < kMany) {
      io_uring_sqe* sqe = nullptr;
      while (made < kMany && ring->try_prepare(std::span(&sqe, 1))) {
        std::uint32_t slot = 0;
        {
          const std::scoped_lock lock(mutex);  // there is a slot for each credit
          slot = free_slots.back();
          free_slots.pop_back();
        }
        if (slots[slot].written_by_handler != slots[slot].written_by_submitter) ++wrong;
        slots[slot].written_by_submitter = ++made;
        ::io_uring_prep_nop(sqe);
        if (made % 5 == 0) sqe->flags |= IOSQE_ASYNC;
        sqe->user_data = slot;
      }
      require(ring->submit());
    }
  });
  std::thread handler([&] {
    std::vector<ibv_wc> mine;
    while (handled < kMany) {
      {
        const std::scoped_lock lock(mutex);
        mine.swap(handed);
      }
      for (const ibv_wc& wc : mine) {
        Operation& operation = slots[to_cqe(wc).user_data];
        if (operation.written_by_handler == operation.written_by_submitter) ++wrong;
        operation.written_by_handler = operation.written_by_submitter;
        {
          const std::scoped_lock lock(mutex);
          free_slots.push_back(static_cast<std::uint32_t>(to_cqe(wc).user_data));
        }
        ring->retire(std::span(&wc, 1));
        ++handled;
      }
      mine.clear();
      std::this_thread::yield();
    }
  });
  const auto deadline = std::chrono::steady_clock::now() + 4 * kGenerous;
  for (std::uint64_t polled = 0; polled < kMany && std::chrono::steady_clock::now() < deadline;) {
    ibv_wc wcs[16];
    const PollOutcome outcome = ring->poll(wcs);
    ASSERT_EQ(outcome.fault, SourceFault::none);
    polled += outcome.count;
    if (outcome.count == 0) std::this_thread::yield();
    const std::scoped_lock lock(mutex);
    handed.insert(handed.end(), wcs, wcs + outcome.count);
  }
  submitter.join();
  handler.join();
  EXPECT_EQ(handled, kMany);
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(ring->in_flight(), 0U);
}

// --- ending
// ---------------------------------------------------------------------------------------

TEST(RingEnd, AThreadThatEndsLeavesNoOperationWithoutACompletion) {
  const auto ring = make_ring();
  const Pipe pipe;
  char bytes[8];
  std::thread([&] {
    ::io_uring_prep_read(prepare(*ring, 1), pipe.out(), bytes, sizeof bytes, 0);
    prepare(*ring, 2)->opcode = IORING_OP_NOP;
    require(ring->submit());
    ring->release_thread();
  }).join();
  pipe.write('x');
  std::set<std::uint64_t> which;
  for (const io_uring_cqe& cqe : Reaper(*ring).take(2)) {
    which.insert(cqe.user_data);
    if (cqe.user_data == 1) {
      EXPECT_TRUE(cqe.res == -ECANCELED || cqe.res == 1) << cqe.res;
    }
  }
  EXPECT_EQ(which, (std::set<std::uint64_t>{1, 2}));
}

TEST(RingEnd, CancelEndsWhatWaitsThroughTheUsualWay) {
  const auto ring = make_ring();
  Reaper reaper(*ring);
  const Pipe pipe;
  char bytes[4];
  require(ring->cancel());  // nothing there is fine
  for (std::uint64_t i = 0; i < 4; ++i) {
    ::io_uring_prep_read(prepare(*ring, i), pipe.out(), &bytes[i], 1, 0);
  }
  require(ring->submit());
  EXPECT_TRUE(reaper.empty());
  Status status;
  std::thread([&] { status = ring->cancel(); }).join();  // any thread
  require(status);
  for (const io_uring_cqe& cqe : reaper.take(4)) EXPECT_EQ(cqe.res, -ECANCELED);
  EXPECT_EQ(ring->in_flight(), 0U);
  // It goes on after that.
  ::io_uring_prep_nop(prepare(*ring, 9));
  require(ring->submit());
  EXPECT_EQ(reaper.take(1)[0].user_data, 9U);
}

TEST(RingEnd, CloseGivesBackEverythingThatNobodyHandled) {
  const auto ring = make_ring();
  const Pipe pipe;
  char bytes[4];
  ::io_uring_prep_nop(prepare(*ring, 1));  // completed and not polled
  // A chain that waits, with an end that was never begun.
  io_uring_sqe* const head = prepare(*ring, 0);
  ::io_uring_prep_read(head, pipe.out(), bytes, 1, 0);
  head->flags |= IOSQE_IO_LINK;
  head->user_data = 2;
  ::io_uring_prep_nop(prepare(*ring, 3));
  require(ring->submit());
  ::io_uring_prep_nop(prepare(*ring, 4));  // never submitted: the kernel does not know it
  std::map<std::uint64_t, int> abandoned;
  Status status;
  std::thread([&] {
    status = ring->close(kGenerous,
                         [&](const io_uring_cqe& cqe) { abandoned[cqe.user_data] = cqe.res; });
  }).join();
  require(status);
  EXPECT_EQ(abandoned, (std::map<std::uint64_t, int>{{1, 0}, {2, -ECANCELED}, {3, -ECANCELED}}));
  EXPECT_EQ(ring->in_flight(), 0U);
  // Nothing can be prepared any more.
  io_uring_sqe* sqe = nullptr;
  EXPECT_FALSE(ring->try_prepare(std::span(&sqe, 1)));
  EXPECT_EQ(ring->prepare().status().code(), StatusCode::cancelled);
  require(ring->close(kGenerous));
}

TEST(RingEnd, CloseIsRefusedWhileAPollerOwnsIt) {
  const auto ring = make_ring();
  auto owner = ring->take_ownership("the poller");
  ASSERT_TRUE(owner.ok());
  EXPECT_EQ(ring->close(kGenerous).code(), StatusCode::already_owned);
  ::io_uring_prep_nop(prepare(*ring, 1));  // and it is not closed
  require(ring->submit());
  owner->release();
  require(ring->close(kGenerous));
}

TEST(RingEnd, ItsDestructorCancelsWhatWaits) {
  const Pipe pipe;
  char byte = '-';
  {
    const auto ring = make_ring();
    ::io_uring_prep_read(prepare(*ring, 1), pipe.out(), &byte, 1, 0);
    require(ring->submit());
  }
  // The operation has ended: it takes nothing out of the pipe any more.
  pipe.write('x');
  char read = 0;
  EXPECT_EQ(::read(pipe.out(), &read, 1), 1);
  EXPECT_EQ(read, 'x');
  EXPECT_EQ(byte, '-');
}

TEST(RingEnd, AfterItsDestructorTheKernelTouchesNoMemory) {
  constexpr std::size_t kLarge = std::size_t{32} << 20;  // it takes a kernel worker a while
  const TemporaryFile file;
  std::vector<char> bytes(kLarge, 'x');
  {
    const auto ring = make_ring();
    io_uring_sqe* const sqe = prepare(*ring, 1);
    ::io_uring_prep_write(sqe, file.fd(), bytes.data(), kLarge, 0);
    sqe->flags |= IOSQE_ASYNC;
    sqe->user_data = 1;
    require(ring->submit());
    char first = 0;
    while (::pread(file.fd(), &first, 1, 0) == 0) std::this_thread::yield();  // it has begun
  }
  std::fill(bytes.begin(), bytes.end(), 'y');  // whoever frees it next does worse
  std::vector<char> written(kLarge);
  const ssize_t size = ::pread(file.fd(), written.data(), kLarge, 0);
  ASSERT_GT(size, 0);
  written.resize(static_cast<std::size_t>(size));
  EXPECT_EQ(std::count(written.begin(), written.end(), 'y'), 0);
}

class RingEndDeathTest : public RingCreateDeathTest {};

// As before Linux 6.0: nothing can be cancelled, so close() waits for what ends by itself, and says
// at its deadline that it has not.
TEST_F(RingEndDeathTest, WhatCannotBeCancelledIsWaitedForUntilTheDeadline) {
  const auto in_a_process_of_its_own = [] {
    const auto ring = make_ring();
    const Pipe pipe;
    char byte = '-';
    test::refuse_system_calls({{SYS_io_uring_register}}, EINVAL);
    ::io_uring_prep_read(prepare(*ring, 1), pipe.out(), &byte, 1, 0);
    require(ring->submit());
    std::fprintf(stderr, "%s\n", ring->cancel().to_string().c_str());
    const Status status = ring->close(std::chrono::milliseconds(30));
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    pipe.write('x');
    std::uint32_t ended = 0;
    require(ring->close(kGenerous, [&](const io_uring_cqe& cqe) { ended += cqe.res == 1; }));
    std::exit(status.code() == StatusCode::timed_out && ended == 1 && byte == 'x' ? 3 : 1);
  };
  EXPECT_EXIT(in_a_process_of_its_own(), ::testing::ExitedWithCode(3),
              "not_supported: cancel(.|\n)*timed_out: close .*not finished 1 operations");
}

TEST_F(RingEndDeathTest, DestroyingItWhileAPollerOwnsItStopsTheProgram) {
  const auto destroy = [] {
    auto ring = make_ring();
    auto owner = ring->take_ownership("the poller");
    ring.reset();
  };
  EXPECT_DEATH(destroy(), "destroyed in use");
}

}  // namespace
}  // namespace sluice::uring
