// SPDX-License-Identifier: BSD-3-Clause
// The two embedding examples as a reader runs them, and what becomes of one side when the other is
// killed. Nothing sleeps: tests wait for what a program says, writes, or ends with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "sluice_test/process.hpp"

namespace {

namespace fs = std::filesystem;
using sluice::test::Ended;
using sluice::test::Process;
using sluice::test::run;
using sluice::test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kEngine = EMBEDDED_ENGINE;
const std::string kWal = ROCKSDB_WAL_REPLICA;
/// So many that nobody is through with them before being killed.
const std::string kEndless = "1000000";

/// One line on stderr, with the program's name in front.
void expect_one_line(const Ended& ended, int status, const std::string& why) {
  EXPECT_EQ(ended.status, status) << ended.out << ended.err;
  EXPECT_THAT(ended.err, HasSubstr(why));
  EXPECT_EQ(std::ranges::count(ended.err, '\n'), 1) << ended.err;
}

/// Waits until it listens; the port, or empty.
std::string port_of(Process& process) {
  const std::string before = "listening on ";
  const auto line = process.wait_for(before);
  if (!line) return {};
  const auto colon = line->find(':', line->find(before));
  const auto end = line->find_first_not_of("0123456789", colon + 1);
  return line->substr(colon + 1, end - colon - 1);
}

/// Waits until the file has so many bytes: whoever writes it is in the middle of its work.
void wait_until_it_has(const std::string& path, std::uintmax_t bytes) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{60};
  std::error_code not_there;
  for (;;) {
    const auto size = fs::file_size(path, not_there);
    if (!not_there && size >= bytes) return;
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << path << " does not grow";
    std::this_thread::yield();
  }
}

constexpr std::size_t kRecordBytes = 4096;

/// The number of whole records at the beginning of a log, judged by other means than the engine's.
std::uint32_t records_in(const std::string& path, std::uint32_t connection) {
  std::ifstream in(path, std::ios::binary);
  std::string record(kRecordBytes, '\0');
  std::uint32_t number = 0;
  for (; in.read(record.data(), kRecordBytes); ++number) {
    std::uint32_t header[3];
    std::memcpy(header, record.data(), sizeof header);
    if (header[0] != connection || header[1] != number) break;
    const std::size_t last = kRecordBytes - 1;
    if (static_cast<std::uint8_t>(record[last]) !=
        static_cast<std::uint8_t>(connection * 131 + number * 31 + last * 7))
      break;
  }
  return number;
}

// --- embedded_engine ---------------------------------------------------------------------------

TEST(EmbeddedEngine, RunsAsItIs) {
  const Ended ended = run({kEngine, "200"});
  EXPECT_EQ(ended.status, 0) << ended.out << ended.err;
  EXPECT_THAT(ended.err, IsEmpty());
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("sender    400 records sent, all acknowledged in order"),
                    HasSubstr("durable   400 of 400 records of 4096 bytes"),
                    HasSubstr("every durable record was read back"),
                    HasSubstr("threads   2 of the engine, "), HasSubstr(" 0 of the dispatcher\n")));
}

TEST(EmbeddedEngine, TheRecordsAreInItsLogs) {
  TemporaryFolder folder;
  Process engine({kEngine, "serve", folder.path()});
  const std::string port = port_of(engine);
  ASSERT_FALSE(port.empty());
  const Ended sender = run({kEngine, "send", port, "150"});
  EXPECT_EQ(sender.status, 0) << sender.err;
  const Ended ended = engine.finish();
  EXPECT_EQ(ended.status, 0) << ended.out << ended.err;
  for (std::uint32_t i = 0; i < 2; ++i) {
    const std::string path = folder / ("connection-" + std::to_string(i) + ".log");
    EXPECT_EQ(records_in(path, i), 150u);
    EXPECT_EQ(fs::file_size(path), 150 * kRecordBytes);
  }
}

/// An engine and a sender that are at it.
class InTheMiddle : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string port = port_of(engine_);
    ASSERT_FALSE(port.empty());
    sender_.emplace(std::vector<std::string>{kEngine, "send", port, kEndless});
    wait_until_it_has(folder_ / "connection-1.log", 20 * kRecordBytes);
  }
  TemporaryFolder folder_;
  Process engine_{{kEngine, "serve", folder_.path()}};
  std::optional<Process> sender_;
};

TEST_F(InTheMiddle, SaysHowFarItCameWhenTheSenderIsKilled) {
  sender_->signal(SIGKILL);
  const Ended ended = engine_.finish();
  expect_one_line(ended, 1, "the sender went away after ");
  EXPECT_TRUE(engine_.group_is_empty());
  EXPECT_THAT(ended.out, AllOf(HasSubstr("every durable record was read back"),
                               HasSubstr(" 0 of the dispatcher\n")));
  EXPECT_GE(records_in(folder_ / "connection-0.log", 0), 19u);
  EXPECT_GE(records_in(folder_ / "connection-1.log", 1), 19u);
}

TEST_F(InTheMiddle, TheSenderSaysWhatWasAcknowledgedWhenTheEngineIsKilled) {
  engine_.signal(SIGKILL);
  const Ended ended = sender_->finish();
  expect_one_line(ended, 1, "sender: the engine went away: ");
  EXPECT_TRUE(sender_->group_is_empty());
  // What it counts is in the logs.
  const auto colon = ended.err.find("away: ") + 6;
  EXPECT_LE(std::stoul(ended.err.substr(colon)), records_in(folder_ / "connection-0.log", 0) +
                                                     records_in(folder_ / "connection-1.log", 1));
}

TEST_F(InTheMiddle, EndsCleanlyByASignalInTheMiddle) {
  engine_.signal(SIGTERM);
  const Ended ended = engine_.finish();
  expect_one_line(ended, 1, "stopped by a signal");
  EXPECT_THAT(ended.out, HasSubstr("every durable record was read back"));
  expect_one_line(sender_->finish(), 1, "the engine went away");
}

TEST(EmbeddedEngine, LeavesNoProcessWhenItIsKilled) {
  TemporaryFolder folder;  // what a killed program leaves is removed with it
  Process engine({kEngine, kEndless}, {.environment = {{"TMPDIR", folder.path().string()}}});
  ASSERT_TRUE(engine.says("listening on"));
  engine.signal(SIGKILL);
  EXPECT_EQ(engine.finish().status, 128 + SIGKILL);
  EXPECT_TRUE(engine.group_is_empty());
}

TEST(EmbeddedEngine, ALogThatCannotBeWrittenIsTold) {
  const Ended ended = run({kEngine, "serve", "/dev/null"});
  expect_one_line(ended, 1, "cannot write /dev/null/connection-0.log: Not a directory");
}

// --- rocksdb_wal_replica -----------------------------------------------------------------------

std::unique_ptr<rocksdb::DB> open(const std::string& folder) {
  rocksdb::DB* db = nullptr;
  EXPECT_TRUE(rocksdb::DB::OpenForReadOnly({}, folder, &db).ok()) << folder;
  return std::unique_ptr<rocksdb::DB>(db);
}

/// Keys and values of a database.
std::map<std::string, std::string> content_of(const std::string& folder) {
  std::map<std::string, std::string> content;
  const auto db = open(folder);
  if (db == nullptr) return content;
  const std::unique_ptr<rocksdb::Iterator> at(db->NewIterator({}));
  for (at->SeekToFirst(); at->Valid(); at->Next())
    content[at->key().ToString()] = at->value().ToString();
  return content;
}

/// Both are started again: the replica gets all that it has not.
void expect_the_rest_arrives(const TemporaryFolder& folder) {
  Process replica({kWal, "replica", folder / "replica"});
  const Ended primary = run({kWal, "primary", folder / "primary", port_of(replica), "100"});
  EXPECT_EQ(primary.status, 0) << primary.err;
  EXPECT_EQ(replica.finish().status, 0);
  EXPECT_EQ(content_of(folder / "primary"), content_of(folder / "replica"));
}

TEST(WalReplica, RunsAsItIs) {
  const Ended ended = run({kWal});
  EXPECT_EQ(ended.status, 0) << ended.out << ended.err;
  EXPECT_THAT(ended.err, IsEmpty());
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("primary   2000 batches written and acknowledged, sequence number"),
                    HasSubstr("replica   2000 batches applied and synced, sequence number"),
                    ContainsRegex("compared  [1-9][0-9]* keys, all the same")));
}

TEST(WalReplica, AReplicaThatWasAwayGoesOnWhereItWas) {
  TemporaryFolder folder;
  for (const char* writes : {"700", "300"}) {
    Process replica({kWal, "replica", folder / "replica"});
    const std::string port = port_of(replica);
    ASSERT_FALSE(port.empty());
    const Ended primary = run({kWal, "primary", folder / "primary", port, writes});
    EXPECT_EQ(primary.status, 0) << primary.err;
    const Ended ended = replica.finish();
    EXPECT_EQ(ended.status, 0) << ended.out << ended.err;
    EXPECT_THAT(ended.out, HasSubstr("replica   " + std::string(writes) + " batches applied"));
    EXPECT_EQ(content_of(folder / "primary"), content_of(folder / "replica"));
  }
  EXPECT_FALSE(content_of(folder / "replica").empty());
}

TEST(WalReplica, WhenThePrimaryIsKilledTheReplicaSaysWhereItIsAndLaterGetsTheRest) {
  TemporaryFolder folder;
  {
    Process replica({kWal, "replica", folder / "replica"});
    const std::string port = port_of(replica);
    ASSERT_FALSE(port.empty());
    Process primary({kWal, "primary", folder / "primary", port, kEndless});
    wait_until_it_has(folder / "replica/000004.log", 20'000);
    primary.signal(SIGKILL);
    const Ended ended = replica.finish();
    expect_one_line(ended, 1, "the primary went away at sequence number ");
    EXPECT_TRUE(replica.group_is_empty());
    EXPECT_EQ(primary.finish().status, 128 + SIGKILL);
  }
  expect_the_rest_arrives(folder);
}

TEST(WalReplica, WhenTheReplicaIsKilledThePrimarySaysSoAndItLaterGetsTheRest) {
  TemporaryFolder folder;
  {
    Process replica({kWal, "replica", folder / "replica"});
    const std::string port = port_of(replica);
    ASSERT_FALSE(port.empty());
    Process primary({kWal, "primary", folder / "primary", port, "3000"});
    wait_until_it_has(folder / "replica/000004.log", 20'000);
    replica.signal(SIGKILL);
    const Ended ended = primary.finish();
    expect_one_line(ended, 1, "primary: the replica went away");
    EXPECT_TRUE(primary.group_is_empty());
    EXPECT_EQ(replica.finish().status, 128 + SIGKILL);
  }
  expect_the_rest_arrives(folder);
}

/// How many files of the folder have this extension.
std::size_t files_with(const std::string& folder, const std::string& extension) {
  std::size_t count = 0;
  std::error_code gone;  // files come and go while one looks
  for (fs::directory_iterator at(folder, gone), end; !gone && at != end; at.increment(gone))
    count += at->path().extension() == extension;
  return count;
}

// Flushes make WAL files superfluous for the primary's database: it would move them away.
TEST(WalReplica, AReplicaThatStandsStillFindsTheWalKept) {
  TemporaryFolder folder;
  Process replica({kWal, "replica", folder / "replica"});
  const std::string port = port_of(replica);
  ASSERT_FALSE(port.empty());
  Process primary({kWal, "primary", folder / "primary", port, "3000"});
  wait_until_it_has(folder / "replica/000004.log", 5'000);
  replica.signal(SIGSTOP);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{60};
  while (files_with(folder / "primary", ".sst") < 6) {  // all that it flushes
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
  EXPECT_GE(files_with(folder / "primary", ".log"), 6u);
  replica.signal(SIGCONT);
  const Ended ended = primary.finish();
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_THAT(ended.out, ContainsRegex("WAL files kept [1-9][0-9]* times"));
  EXPECT_EQ(replica.finish().status, 0);
  EXPECT_EQ(content_of(folder / "primary"), content_of(folder / "replica"));
}

TEST(WalReplica, LeavesNoProcessWhenItIsKilled) {
  TemporaryFolder folder;  // what a killed program leaves is removed with it
  Process both({kWal, kEndless}, {.environment = {{"TMPDIR", folder.path().string()}}});
  ASSERT_TRUE(both.says("listening on"));
  both.signal(SIGKILL);
  EXPECT_EQ(both.finish().status, 128 + SIGKILL);
  EXPECT_TRUE(both.group_is_empty());
}

TEST(WalReplica, EndsByASignal) {
  Process both({kWal, kEndless});
  ASSERT_TRUE(both.says("listening on"));
  both.signal(SIGTERM);
  expect_one_line(both.finish(), 1, "stopped by a signal at sequence number");
  EXPECT_TRUE(both.group_is_empty());
}

// What is to be copied is as short as its README says.
TEST(WalReplica, WhatIsToBeCopiedIsUnder200Lines) {
  std::ifstream in(SLUICE_SOURCE_DIR "/examples/embedding/rocksdb_wal_replica/wal_shipping.hpp");
  int lines = 0;
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find_first_not_of(' ');
    lines += first != std::string::npos && line.compare(first, 2, "//") != 0;
  }
  EXPECT_GT(lines, 100);
  EXPECT_LT(lines, 200);
}

// --- arguments ---------------------------------------------------------------------------------

TEST(BadArguments, GetOneLine) {
  TemporaryFolder folder;
  expect_one_line(run({kEngine, "0"}), 2, "'0' is no number of records");
  expect_one_line(run({kEngine, "99999999999"}), 2, "is no number of records");
  expect_one_line(run({kEngine, "fly"}), 2, "usage: embedded_engine");
  expect_one_line(run({kEngine, "--help"}), 2, "usage: embedded_engine");
  expect_one_line(run({kEngine, ""}), 2, "usage: embedded_engine");
  expect_one_line(run({kEngine, "serve"}), 2, "usage: embedded_engine");
  expect_one_line(run({kEngine, "send", "port"}), 2, "'port' is no port");
  expect_one_line(run({kEngine, "send", "70000"}), 2, "'70000' is no port");
  expect_one_line(run({kEngine, "send", "7000", "many"}), 2, "'many' is no number of records");
  expect_one_line(run({kEngine, "serve", folder / "not/there"}), 1, "No such file or directory");
  expect_one_line(run({kWal, "fly"}), 2, "usage: rocksdb_wal_replica");
  expect_one_line(run({kWal, "0"}), 2, "'0' is no number of writes");
  expect_one_line(run({kWal, ""}), 2, "is no number of writes");
  expect_one_line(run({kWal, "primary", folder / "p", "0"}), 2, "'0' is no port");
  expect_one_line(run({kWal, "primary", folder / "p", "7", "x"}), 2, "'x' is no number of writes");
  expect_one_line(run({kWal, "replica", "/dev/null/x"}), 1, "cannot open /dev/null/x");
}

TEST(BadArguments, APortWhereNobodyListensIsTold) {
  TemporaryFolder folder;
  expect_one_line(run({kEngine, "send", "9"}), 1, "sender: ");
  expect_one_line(run({kWal, "primary", folder / "p", "9"}), 1, "primary: ");
}

TEST(BadArguments, AnAddressWithoutADeviceIsToldWithWhatToDo) {
  TemporaryFolder folder;
  const std::string nobodys = "192.0.2.1";  // of RFC 5737
  const std::string why = "no RDMA device for 192.0.2.1 (";
  expect_one_line(run({kEngine, "serve", folder.path(), nobodys}), 1, why);
  expect_one_line(run({kWal, "replica", folder / "r", nobodys}), 1, "run this under softrdma-run");
}

}  // namespace
