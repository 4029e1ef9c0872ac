// SPDX-License-Identifier: BSD-3-Clause
// A log in use: appending, groups through a ring, reading, cutting, trimming, and what the system
// refuses.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <thread>

#include "support.hpp"

namespace sluice::kv::testing {
namespace {

// --- appending and reading ----------------------------------------------------------------------

TEST(Log, BeginsEmpty) {
  const TemporaryFolder temp;
  const auto log = open(temp / "log");
  EXPECT_EQ(log->first_index(), 1u);
  EXPECT_EQ(log->last_index(), 0u);
  EXPECT_EQ(log->durable_index(), 0u);
  EXPECT_EQ(require(log->epoch_of(0)), 0u);
  EXPECT_EQ(log->epoch_of(1).status().code(), StatusCode::unreachable);
  EXPECT_FALSE(log->recovery().cut);
  EXPECT_EQ(require(log->read(1, 100, [](const Entry&) { return true; })).next_index, 1u);
  EXPECT_EQ(log->read(0, 100, [](const Entry&) { return true; }).status().code(),
            StatusCode::unreachable);
}

TEST(Log, GivesWhatWasAppendedBeforeAndAfterItIsDurableAndOpenedAgain) {
  const TemporaryFolder temp;
  Contents expected;
  {
    const auto log = open(temp / "log");
    const auto ring = make_ring();
    // All sizes around the edges of blocks, chunks and the eight bytes that entries are padded to.
    for (const std::size_t size : {0, 1, 7, 8, 9, 100, 4047, 4048, 4049, 4096, 8000, 16384, 16337,
                                   30000, 57296, 1, 2, 3, 4000}) {
      append(*log, expected, size);
      EXPECT_EQ(contents_of(*log), expected);
      if (size % 2 == 0) commit(*log, *ring);
      EXPECT_EQ(contents_of(*log), expected);
    }
    commit(*log, *ring);
    EXPECT_EQ(log->durable_index(), log->last_index());
    EXPECT_EQ(contents_of(*log), expected);
    EXPECT_GT(segment_files(temp / "log").size(), 3u);
  }
  const auto log = open(temp / "log");
  EXPECT_FALSE(log->recovery().cut) << log->recovery().cut->message;
  EXPECT_EQ(log->recovery().entries, expected.size());
  EXPECT_EQ(log->durable_index(), expected.size());
  EXPECT_EQ(contents_of(*log), expected);
  append(*log, expected, 50, 2);
  require(log->sync());
  EXPECT_EQ(contents_of(*log), expected);
}

TEST(Log, ReadsAPieceAtATimeFromAnyEntryOn) {
  const TemporaryFolder temp;
  const auto log = open(temp / "log");
  Contents expected;
  for (int i = 0; i < 2000; ++i) {
    append(*log, expected, 40 + static_cast<std::size_t>(i % 100));
    if (i % 17 == 0) require(log->sync());
  }
  for (std::uint64_t from = 1; from <= 2000; from += 37) {
    std::uint64_t next = from;
    std::size_t bytes = 0;
    const auto result = require(log->read(from, 300, [&](const Entry& entry) {
      EXPECT_EQ(entry.index, next);
      EXPECT_TRUE(std::ranges::equal(entry.payload, expected[next].payload));
      ++next;
      bytes += entry.payload.size();
      return true;
    }));
    EXPECT_EQ(result.next_index, next);
    EXPECT_EQ(result.bytes, bytes);
    EXPECT_TRUE(bytes >= 300 || next == 2001) << bytes;
    EXPECT_LT(bytes, 300u + 140);
    // A sink that has enough.
    EXPECT_EQ(require(log->read(from, 300, [](const Entry&) { return false; })).next_index,
              from + 1);
  }
  EXPECT_EQ(require(log->read(2001, 1, [](const Entry&) { return true; })).next_index, 2001u);
}

TEST(Log, RefusesWhatDoesNotFollow) {
  const TemporaryFolder temp;
  const auto log = open(temp / "log");
  const Bytes payload(10);
  EXPECT_EQ(log->append(0, payload).status().code(), StatusCode::rejected);
  require(log->append({3, 1, 0, payload}));
  EXPECT_EQ(log->append(2, payload).status().code(), StatusCode::rejected);
  EXPECT_EQ(log->append({3, 3, 3, payload}).code(), StatusCode::rejected) << "a gap";
  EXPECT_EQ(log->append({3, 1, 0, payload}).code(), StatusCode::rejected) << "again";
  EXPECT_EQ(log->append({3, 2, 2, payload}).code(), StatusCode::rejected) << "another history";
  require(log->append({3, 2, 3, payload}));
  require(log->append({7, 3, 3, payload}));
  EXPECT_EQ(log->append({3, 4, 7, payload}).code(), StatusCode::rejected) << "an old epoch";
  const std::size_t most = small_options().segment_bytes - 8192 - 48;
  EXPECT_EQ(log->append(7, Bytes(most + 1)).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(require(log->append(7, Bytes(most))), 4u);
  EXPECT_EQ(require(log->epoch_of(1)), 3u);
  EXPECT_EQ(require(log->epoch_of(3)), 7u);
}

TEST(Log, HoldsNoMoreThanItMayThatIsNotDurable) {
  const TemporaryFolder temp;
  LogOptions options = small_options();
  options.pending_bytes_max = 10'000;
  const auto log = open(temp / "log", options);
  EXPECT_EQ(require(log->append(1, Bytes(20'000))), 1u) << "one alone is always taken";
  EXPECT_EQ(log->append(1, Bytes(1)).status().code(), StatusCode::resource_exhausted);
  require(log->sync());
  std::size_t taken = 0;
  while (taken < 1000 && log->append(1, Bytes(56)).ok()) ++taken;
  EXPECT_EQ(taken, 10'000u / (48 + 56));
  require(log->sync());
  EXPECT_TRUE(log->append(1, Bytes(56)).ok());
}

// --- groups -------------------------------------------------------------------------------------

struct Way {
  const char* name;
  bool direct, dsync;
  std::uint32_t groups;
};
class LogGroups : public ::testing::TestWithParam<Way> {
 protected:
  static LogOptions options() {
    LogOptions options = small_options();
    options.direct = GetParam().direct;
    options.dsync = GetParam().dsync;
    options.groups_in_flight_max = GetParam().groups;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, LogGroups,
                         ::testing::Values(Way{"direct_dsync", true, true, 1},
                                           Way{"direct_linked", true, false, 1},
                                           Way{"buffered_linked", false, false, 1},
                                           Way{"buffered_dsync_4", false, true, 4},
                                           Way{"direct_linked_4", true, false, 4}),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(LogGroups, BecomeDurableOneAfterTheOther) {
  const TemporaryFolder temp;
  const auto ring = make_ring();
  const auto log = open(temp / "log", options());
  Contents expected;
  append(*log, expected, 10);
  EXPECT_TRUE(log->has_unsubmitted());
  require(log->submit(*ring));
  EXPECT_FALSE(log->has_unsubmitted());
  EXPECT_EQ(log->in_flight(), 1u);
  for (int i = 0; i < 50; ++i) append(*log, expected, 1000);  // several chunks, two segments
  require(log->submit(*ring));
  EXPECT_EQ(log->in_flight(), GetParam().groups);
  EXPECT_EQ(log->durable_index(), 0u) << "no completion was taken yet";
  std::uint64_t before = 0;
  while (log->in_flight() != 0) {
    for (const io_uring_cqe& cqe : reap(*ring)) {
      EXPECT_TRUE(log->owns(cqe));
      require(log->on_completion(cqe));
      EXPECT_GE(log->durable_index(), before);
      before = log->durable_index();
    }
    require(log->submit(*ring));
  }
  EXPECT_EQ(log->durable_index(), 51u);
  EXPECT_EQ(contents_of(*log), expected);
  EXPECT_EQ(ring->in_flight(), 0u);
}

// Nothing but a power cut would show that a sync is missing: so this looks at what the kernel is
// asked for.
TEST_P(LogGroups, AskForDurabilityOfWhatTheyWrite) {
  const TemporaryFolder temp;
  const auto ring = make_ring();
  const auto log = open(temp / "log", options());
  (void)require(log->append(1, Bytes(5000)));
  require(log->submit(*ring));
  const io_uring_sqe* const sqes = ring->native()->sq.sqes;
  EXPECT_EQ(sqes[0].opcode, IORING_OP_WRITE);
  EXPECT_EQ(sqes[0].off % 4096, 0u);
  EXPECT_EQ(sqes[0].len, 3 * 4096u) << "the segment's Activation, and the entry in whole blocks";
  if (GetParam().dsync) {
    EXPECT_EQ(sqes[0].rw_flags, RWF_DSYNC);
  } else {
    EXPECT_NE(sqes[0].flags & IOSQE_IO_LINK, 0);
    EXPECT_EQ(sqes[1].opcode, IORING_OP_FSYNC);
    EXPECT_EQ(sqes[1].fd, sqes[0].fd);
    EXPECT_EQ(sqes[1].fsync_flags, IORING_FSYNC_DATASYNC);
  }
  EXPECT_EQ((::fcntl(sqes[0].fd, F_GETFL) & O_DIRECT) != 0, GetParam().direct);
  commit(*log, *ring);
}

// Completions in an order of the test's: what is durable never has a gap.
TEST_P(LogGroups, CountOnlyBehindThoseBeforeThem) {
  if (GetParam().groups == 1) return;  // the others show it
  const TemporaryFolder temp;
  const auto ring = make_ring();
  const auto log = open(temp / "log", options());
  for (int i = 0; i < 4; ++i) {
    (void)require(log->append(1, Bytes(10)));
    require(log->submit(*ring));
  }
  EXPECT_EQ(log->in_flight(), 4u);
  std::vector<io_uring_cqe> all;
  const std::size_t count = GetParam().dsync ? 4 : 8;
  while (all.size() < count) {
    for (const io_uring_cqe& cqe : reap(*ring)) all.push_back(cqe);
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.user_data > b.user_data; });
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(log->durable_index(), 0u);
    require(log->on_completion(all[i]));
  }
  EXPECT_EQ(log->durable_index(), 4u);
}

// The numbers are the kernel's, but for one: a disk that fails cannot be had at will.
TEST_P(LogGroups, AfterAFailedSyncNothingIsAcknowledgedAnyMore) {
  const TemporaryFolder temp;
  const auto ring = make_ring();
  {
    const auto log = open(temp / "log", options());
    Contents expected;
    append(*log, expected, 10);
    commit(*log, *ring);
    append(*log, expected, 20);
    require(log->submit(*ring));
    Status status;
    while (log->in_flight() != 0) {
      for (io_uring_cqe cqe : reap(*ring)) {
        const bool sync = GetParam().dsync || (cqe.user_data & 1) != 0;
        if (sync) cqe.res = -EIO;
        status = log->on_completion(cqe);
      }
    }
    EXPECT_EQ(status.code(), StatusCode::io_error);
    EXPECT_EQ(status.os_error(), EIO);
    EXPECT_NE(status.message().find(segment_files(temp / "log")[0]), std::string::npos)
        << status.message();
    EXPECT_EQ(log->durable_index(), 1u);
    EXPECT_EQ(log->failed().code(), StatusCode::io_error);
    EXPECT_EQ(log->append(1, Bytes(1)).status().code(), StatusCode::io_error);
    EXPECT_EQ(log->submit(*ring).code(), StatusCode::io_error);
    EXPECT_EQ(log->sync().code(), StatusCode::io_error);
    EXPECT_EQ(log->truncate_after(1).code(), StatusCode::io_error);
    EXPECT_EQ(log->restart_after(1, 1).code(), StatusCode::io_error);
    EXPECT_EQ(log->durable_index(), 1u);
    EXPECT_EQ(contents_of(*log), expected) << "what is there can still be read";
  }
  const auto log = open(temp / "log", options());
  EXPECT_GE(log->durable_index(), 1u);
}

TEST_P(LogGroups, AreWrittenAgainWhenAWriteWasCancelledOrShort) {
  const TemporaryFolder temp;
  const auto ring = make_ring();
  const auto log = open(temp / "log", options());
  Contents expected;
  append(*log, expected, 10);
  for (const std::int32_t result : {-ECANCELED, -EAGAIN, 0, 512}) {
    require(log->submit(*ring));
    EXPECT_EQ(log->in_flight(), 1u);
    for (std::uint32_t left = GetParam().dsync ? 1 : 2; left > 0;) {
      for (io_uring_cqe cqe : reap(*ring)) {
        cqe.res = (cqe.user_data & 1) != 0 ? -ECANCELED : result;
        require(log->on_completion(cqe));
        --left;
      }
    }
    EXPECT_EQ(log->durable_index(), 0u);
    EXPECT_EQ(log->in_flight(), 1u);
  }
  commit(*log, *ring);
  EXPECT_EQ(log->durable_index(), 1u);
  EXPECT_EQ(log->counters().retried_groups, 4u);
  // Not for ever.
  append(*log, expected, 10);
  Status status;
  for (int turn = 0; turn < 100 && status.ok(); ++turn) {
    require(log->submit(*ring));
    for (std::uint32_t left = GetParam().dsync ? 1 : 2; left > 0;) {
      for (io_uring_cqe cqe : reap(*ring)) {
        cqe.res = (cqe.user_data & 1) != 0 ? -ECANCELED : 0;
        status = log->on_completion(cqe);
        --left;
      }
    }
  }
  EXPECT_EQ(status.code(), StatusCode::io_error);
  EXPECT_EQ(log->durable_index(), 1u);
}

TEST(Log, WaitsForRoomOnTheRing) {
  const TemporaryFolder temp;
  const auto ring = make_ring(2);
  const auto log = open(temp / "log");
  (void)require(log->append(1, Bytes(10)));
  io_uring_sqe* sqe = require(ring->prepare());
  ::io_uring_prep_nop(sqe);
  sqe->user_data = 7;
  EXPECT_EQ(log->submit(*ring).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(log->in_flight(), 1u);
  const auto others = reap(*ring);
  EXPECT_FALSE(log->owns(others[0]));
  commit(*log, *ring);
  EXPECT_EQ(log->durable_index(), 1u);
}

// --- cutting and trimming -----------------------------------------------------------------------

TEST(Log, TruncatedItGoesOnAsIfTheRestHadNeverBeen) {
  const TemporaryFolder temp;
  Contents expected;
  {
    const auto log = open(temp / "log");
    for (int i = 0; i < 300; ++i)
      append(*log, expected, 1000, 1 + static_cast<std::uint64_t>(i) / 100);
    require(log->sync());
    append(*log, expected, 1000, 4);  // never synced
    for (const std::uint64_t keep : {300, 299, 250, 100, 7}) {
      SCOPED_TRACE(keep);
      require(log->truncate_after(keep));
      expected.erase(expected.upper_bound(keep), expected.end());
      EXPECT_EQ(log->last_index(), keep);
      EXPECT_EQ(log->durable_index(), keep);
      EXPECT_EQ(contents_of(*log), expected);
      EXPECT_EQ(require(log->epoch_of(keep)), expected[keep].epoch);
      log->settle();
      copy_folder(temp / "log", temp / "copy");
      const auto copy = open(temp / "copy");
      EXPECT_FALSE(copy->recovery().cut) << copy->recovery().cut->message;
      EXPECT_EQ(contents_of(*copy), expected);
      EXPECT_EQ(copy->last_epoch(), expected[keep].epoch);
    }
    for (int i = 0; i < 20; ++i) append(*log, expected, 500, 9);
    require(log->sync());
    EXPECT_EQ(require(log->epoch_of(8)), 9u);
    EXPECT_EQ(contents_of(*log), expected);
    EXPECT_EQ(log->truncate_after(28).code(), StatusCode::invalid_argument);
  }
  {
    const auto log = open(temp / "log");
    EXPECT_EQ(contents_of(*log), expected);
    require(log->truncate_after(0));
    EXPECT_EQ(log->first_index(), 1u);
    EXPECT_EQ(log->last_index(), 0u);
  }
  const auto log = open(temp / "log");
  EXPECT_EQ(log->last_index(), 0u);
  expected.clear();
  append(*log, expected, 5, 1);
  EXPECT_EQ(contents_of(*log), expected);
}

TEST(Log, IsNotTruncatedWhileGroupsAreOnARing) {
  const TemporaryFolder temp;
  const auto ring = make_ring();
  const auto log = open(temp / "log");
  (void)require(log->append(1, Bytes(10)));
  require(log->submit(*ring));
  EXPECT_EQ(log->truncate_after(0).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(log->restart_after(5, 1).code(), StatusCode::resource_exhausted);
  commit(*log, *ring);
  require(log->truncate_after(0));
}

TEST(Log, RestartedItBeginsWhereACheckpointEnds) {
  const TemporaryFolder temp;
  Contents expected;
  {
    const auto log = open(temp / "log");
    for (int i = 0; i < 100; ++i) append(*log, expected, 1000);
    require(log->sync());
    EXPECT_EQ(log->restart_after(5, 0).code(), StatusCode::invalid_argument);
    require(log->restart_after(5000, 3));
    EXPECT_EQ(log->first_index(), 5001u);
    EXPECT_EQ(log->last_index(), 5000u);
    EXPECT_EQ(log->durable_index(), 5000u);
    EXPECT_EQ(require(log->epoch_of(5000)), 3u);
    EXPECT_EQ(log->append(2, Bytes(1)).status().code(), StatusCode::rejected);
    expected.clear();
    append(*log, expected, 10, 3);
    EXPECT_EQ(require(log->epoch_of(5001)), 3u);
    EXPECT_EQ(contents_of(*log), expected);
    require(log->sync());
    // As if it had died before the old files were put away.
    log->settle();
  }
  const auto log = open(temp / "log");
  EXPECT_EQ(log->first_index(), 5001u);
  EXPECT_EQ(require(log->epoch_of(5000)), 3u);
  EXPECT_EQ(require(log->epoch_of(5001)), 3u);
  EXPECT_EQ(contents_of(*log), expected);
}

TEST(Log, TrimmedSegmentsAreUsedAgainAndWhatTheyHeldNeverComesBack) {
  const TemporaryFolder temp;
  Contents expected;
  const auto log = open(temp / "log");
  for (int round = 0; round < 60; ++round) {
    for (int i = 0; i < 30; ++i)
      append(*log, expected, 1500, 1 + static_cast<std::uint64_t>(round) / 7);
    require(log->sync());
    const std::uint64_t keep = log->last_index() - 20;
    log->trim_before(keep);
    log->settle();
    EXPECT_LE(log->first_index(), keep);
    EXPECT_GT(log->first_index() + 70, keep) << "whole segments are let go of";
    expected.erase(expected.begin(), expected.find(log->first_index()));
    EXPECT_EQ(contents_of(*log), expected);
    EXPECT_EQ(require(log->epoch_of(log->first_index() - 1)),
              expected.begin()->second.previous_epoch);
    EXPECT_EQ(
        log->read(log->first_index() - 1, 1, [](const Entry&) { return true; }).status().code(),
        log->first_index() == 1 ? StatusCode::unreachable : StatusCode::unreachable);
    copy_folder(temp / "log", temp / "copy");
    const auto copy = open(temp / "copy");
    EXPECT_FALSE(copy->recovery().cut) << copy->recovery().cut->message;
    EXPECT_EQ(contents_of(*copy), expected);
  }
  EXPECT_GT(log->counters().segments_reused, 30u);
  EXPECT_LT(log->counters().segments_made, 8u);
  log->trim_before(log->last_index() + 100);
  EXPECT_LE(log->first_index(), log->last_index() + 1) << "the last segment stays";
}

TEST(Log, AnEntryOfOneSegmentNeverPassesInAnother) {
  // Two lives of one file with the same entries: byte by byte the same but for the salt.
  const TemporaryFolder temp;
  const auto log = open(temp / "log");
  Contents expected;
  for (int i = 0; i < 10; ++i) append(*log, expected, 3000);
  require(log->sync());
  const Bytes first_life = read_bytes(segment_files(temp / "log")[0]);
  require(log->truncate_after(0));
  log->settle();
  expected.clear();
  for (int i = 0; i < 3; ++i) append(*log, expected, 3000);
  require(log->sync());
  const std::string path = segment_files(temp / "log")[0];
  copy_folder(temp / "log", temp / "copy");
  const std::string copied = segment_files(temp / "copy")[0];
  Bytes second_life = read_bytes(copied);
  ASSERT_EQ(second_life.size(), first_life.size());
  // Behind the third entry: what the file held there before.
  std::copy(first_life.begin() + 4096 * 5, first_life.end(), second_life.begin() + 4096 * 5);
  write_bytes(copied, second_life);
  const auto copy = open(temp / "copy");
  EXPECT_EQ(contents_of(*copy), expected);
}

// --- what the system refuses --------------------------------------------------------------------

TEST(LogRefused, AFolderInUse) {
  const TemporaryFolder temp;
  const auto log = open(temp / "log");
  const Status status = open_status(temp / "log");
  EXPECT_EQ(status.code(), StatusCode::already_owned);
  EXPECT_NE(status.message().find(temp / "log"), std::string::npos);
  EXPECT_EQ(Log::erase(temp / "log").code(), StatusCode::already_owned);
}

TEST(LogRefused, AnotherCluster) {
  const TemporaryFolder temp;
  (void)open(temp / "log");
  const Status status = open_status(temp / "log", small_options(), "other");
  EXPECT_EQ(status.code(), StatusCode::rejected);
  EXPECT_NE(status.message().find("'test'"), std::string::npos);
  EXPECT_NE(status.message().find("'other'"), std::string::npos);
  EXPECT_TRUE(open_status(temp / "log").ok());
}

TEST(LogRefused, OptionsThatCannotWork) {
  const TemporaryFolder temp;
  LogOptions options = small_options();
  options.segment_bytes = 5000;
  EXPECT_EQ(open_status(temp / "log", options).code(), StatusCode::invalid_argument);
  options = small_options();
  options.chunk_bytes = 100;
  EXPECT_EQ(open_status(temp / "log", options).code(), StatusCode::invalid_argument);
  options = small_options();
  options.groups_in_flight_max = 9;
  EXPECT_EQ(open_status(temp / "log", options).code(), StatusCode::invalid_argument);
  EXPECT_EQ(open_status(temp / "log", small_options(), "").code(), StatusCode::invalid_argument);
  EXPECT_EQ(open_status(temp / "log", small_options(), std::string(65, 'x')).code(),
            StatusCode::invalid_argument);
  EXPECT_FALSE(fs::exists(temp / "log"));
}

TEST(LogRefused, AFolderThatIsNone) {
  const TemporaryFolder temp;
  EXPECT_EQ(open_status(temp / "none/log").code(), StatusCode::io_error);
  std::ofstream(temp / "file") << "x";
  EXPECT_EQ(open_status(temp / "file").code(), StatusCode::io_error);
  EXPECT_EQ(open_status("/proc/sluice-log").code(), StatusCode::io_error);
  EXPECT_EQ(open_status("/sys/kernel").code(), StatusCode::permission_denied);
}

// A link that the next file is written through: the kernel's own "no space left on device".
TEST(LogRefused, ADiskThatIsFullHoldsUpWhatComesAndLosesNothing) {
  const TemporaryFolder temp;
  Contents expected;
  const auto log = open(temp / "log");
  append(*log, expected, 100);
  require(log->sync());
  log->settle();  // the next segment is made by now
  fs::create_symlink("/dev/full", temp / "log/making.tmp");
  Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    const std::uint64_t index = log->last_index() + 1;
    const Bytes payload = payload_of(index, 20'000);
    status = log->append(1, payload).status();
    if (status.ok()) expected[index] = {1, 1, payload};
    require(log->sync());
    log->settle();
    if (fs::exists(temp / "log/making.tmp")) continue;
    fs::create_symlink("/dev/full", temp / "log/making.tmp");
  }
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted) << status.to_string();
  EXPECT_EQ(status.os_error(), ENOSPC);
  EXPECT_NE(status.message().find(temp / "log/making.tmp"), std::string::npos)
      << status.to_string();
  EXPECT_TRUE(log->failed().ok());
  EXPECT_GE(expected.size(), 4u);
  EXPECT_EQ(log->durable_index(), expected.rbegin()->first);
  EXPECT_EQ(contents_of(*log), expected);
  // Smaller ones may fit still; and trimming gives room at once.
  (void)::unlink((temp / "log/making.tmp").c_str());
  log->trim_before(log->last_index());
  log->settle();
  expected.erase(expected.begin(), expected.find(log->first_index()));
  append(*log, expected, 20'000);
  require(log->sync());
  EXPECT_EQ(contents_of(*log), expected);
  EXPECT_GE(log->counters().segments_reused, 1u);
}

TEST(LogRefused, AFileThatMayNotGrow) {
  const TemporaryFolder temp;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 20'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = open_status(temp / "log");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted) << status.to_string();
  EXPECT_EQ(status.os_error(), EFBIG);
  EXPECT_EQ(segment_files(temp / "log").size(), 0u);
  EXPECT_TRUE(open_status(temp / "log").ok()) << "and later there is room";
}

// A real error of a write that was prewritten: the limit came down behind our back.
TEST(LogRefused, AWriteThatFailsEndsTheLogAndKeepsWhatWasDurable) {
  const TemporaryFolder temp;
  Contents expected;
  std::signal(SIGXFSZ, SIG_IGN);
  {
    const auto log = open(temp / "log");
    for (int i = 0; i < 5; ++i) append(*log, expected, 3000);
    require(log->sync());
    (void)require(log->append(1, Bytes(3000)));
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit small = before;
    small.rlim_cur = 4096;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const Status status = log->sync();
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(status.code(), StatusCode::resource_exhausted) << status.to_string();
    EXPECT_EQ(status.os_error(), EFBIG);
    EXPECT_NE(status.message().find(segment_files(temp / "log")[0]), std::string::npos);
    EXPECT_EQ(log->durable_index(), 5u);
    EXPECT_FALSE(log->append(1, Bytes(1)).ok());
  }
  const auto log = open(temp / "log");
  EXPECT_EQ(contents_of(*log), expected);
}

TEST(LogRefusedDeathTest, AnotherThreadsUse) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        const TemporaryFolder temp;
        const auto log = open(temp / "log");
        (void)log->append(1, Bytes(1));
        std::thread([&] { (void)log->append(1, Bytes(1)); }).join();
      },
      "driven by one thread");
  const TemporaryFolder temp;
  const auto log = open(temp / "log");
  (void)require(log->append(1, Bytes(1)));
  log->release_thread();
  std::thread([&] {
    (void)require(log->append(1, Bytes(1)));
    log->release_thread();
  }).join();
  require(log->sync());
}

TEST(Log, EraseLeavesAFolderToBeginAnewIn) {
  const TemporaryFolder temp;
  {
    const auto log = open(temp / "log");
    (void)require(log->append(1, Bytes(1)));
    require(log->sync());
  }
  std::ofstream(temp / "log/other") << "x";
  require(Log::erase(temp / "log"));
  EXPECT_TRUE(fs::exists(temp / "log/other"));
  EXPECT_EQ(open(temp / "log")->last_index(), 0u);
}

TEST(Log, DescribeSaysWhatIsThere) {
  const TemporaryFolder temp;
  {
    const auto log = open(temp / "log");
    for (int i = 0; i < 50; ++i) (void)require(log->append(2, Bytes(3000)));
    require(log->sync());
    log->settle();
  }
  const std::string text = require(Log::describe(temp / "log"));
  EXPECT_NE(text.find("entries 1 to "), std::string::npos) << text;
  EXPECT_NE(text.find(" to 50"), std::string::npos) << text;
  EXPECT_NE(text.find(": ready"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice::kv::testing
