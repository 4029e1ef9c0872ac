// SPDX-License-Identifier: BSD-3-Clause
// sluice-replicate as a whole: real processes, on whatever RDMA device there is (softrdma, if
// nothing else). Nothing sleeps: tests wait for what a program says or for its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "errors.hpp"
#include "program.hpp"
#include "protocol.hpp"
#include "sluice/core/rpma/handles.hpp"
#include "sluice/core/rpma/sources.hpp"

namespace replicate::test {
namespace {

namespace fs = std::filesystem;
using sluice::test::content_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::size_t count_of(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

/// EXPECT_EQ would print megabytes.
bool same_content(const std::string& a, const std::string& b) {
  return content_of(a) == content_of(b);
}

/// Waits until something is in it: whoever writes it is in the middle of its work.
void wait_until_it_grows(const std::string& path) {
  std::error_code not_there;
  for (;;) {  // bound: the test's timeout
    const auto size = fs::file_size(path, not_there);
    if (!not_there && size > 0) return;
    std::this_thread::yield();
  }
}

/// So much that nobody is through with it before being looked at; the kernel's device in a VM is
/// some 50 times as slow.
std::size_t much(std::size_t bytes) {
  return std::getenv("RXE_ADDR") != nullptr ? bytes / 8 : bytes;
}

/// One line on stderr, and nothing half-done.
void expect_refused(const Ended& ended, int status, const std::string& why) {
  EXPECT_EQ(ended.status, status) << ended.out << ended.err;
  EXPECT_THAT(ended.err, HasSubstr(why));
  EXPECT_TRUE(ended.err.starts_with("sluice-replicate: ")) << ended.err;
  EXPECT_EQ(std::ranges::count(ended.err, '\n'), 1) << ended.err;
}

// --- it works ----------------------------------------------------------------------------------

TEST(Replicate, WithoutAnyOptionItShipsARealFile) {
  const Ended ended = run({});
  EXPECT_EQ(ended.status, kExitOk) << ended.out << ended.err;
  EXPECT_EQ(count_of(ended.out, "  identical"), 2U) << ended.out;
  EXPECT_THAT(ended.err, IsEmpty()) << "no progress bar in a pipe";
}

class Shapes : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(Shapes, CopiesAreIdentical) {
  TemporaryFolder folder;
  write_file(folder / "in", 300'001);
  std::vector<std::string> arguments{"--file", folder / "in", "--output-dir", folder / "out"};
  arguments.insert(arguments.end(), GetParam().begin(), GetParam().end());
  if (std::ranges::find(arguments, "--record-size") == arguments.end())
    arguments.insert(arguments.end(), {"--record-size", "4K"});
  const Ended ended = run(arguments);
  EXPECT_EQ(ended.status, kExitOk) << ended.out << ended.err;
  for (const char* copy : {"out/replica-0.copy", "out/replica-1.copy"})
    EXPECT_TRUE(same_content(folder / copy, folder / "in")) << copy;
}

INSTANTIATE_TEST_SUITE_P(
    Replicate, Shapes,
    ::testing::Values(std::vector<std::string>{},                      //
                      std::vector<std::string>{"--connections", "4"},  //
                      std::vector<std::string>{"--connections", "3", "--workers", "3", "--window",
                                               "2"},
                      std::vector<std::string>{"--window", "1"},   //
                      std::vector<std::string>{"--wait", "busy"},  //
                      std::vector<std::string>{"--pollers", "2", "--connections", "2"},
                      std::vector<std::string>{"--record-size", "1M"},    //
                      std::vector<std::string>{"--record-size", "1001"},  //
                      std::vector<std::string>{"--quorum", "2", "--fsync"}));

TEST(Replicate, AnEmptyFileHasAnEmptyCopy) {
  TemporaryFolder folder;
  write_file(folder / "in", 0);
  const Ended ended = run({"--file", folder / "in", "--output-dir", folder / "out"});
  EXPECT_EQ(ended.status, kExitOk) << ended.out << ended.err;
  EXPECT_EQ(count_of(ended.out, "  identical"), 2U) << ended.out;
  EXPECT_TRUE(fs::exists(folder / "out/replica-0.copy"));
  EXPECT_EQ(fs::file_size(folder / "out/replica-0.copy"), 0U);
}

TEST(Replicate, OneByteRecordsWork) {
  TemporaryFolder folder;
  write_file(folder / "in", 100);
  const Ended ended =
      run({"--file", folder / "in", "--output-dir", folder / "out", "--record-size", "1"});
  EXPECT_EQ(ended.status, kExitOk) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("100 of 100 records"));
}

TEST(Replicate, TheTemporaryFolderIsRemoved) {
  TemporaryFolder folder;
  write_file(folder / "in", 10'000);
  const Ended ended =
      run({"--file", folder / "in"}, {.environment = {{"TMPDIR", folder.path().string()}}});
  EXPECT_EQ(ended.status, kExitOk) << ended.err;
  EXPECT_THAT(folder.names(), ElementsAre("in"));
}

TEST(Replicate, JsonHasTheSummary) {
  TemporaryFolder folder;
  write_file(folder / "in", 100'000);
  const Ended ended = run({"--file", folder / "in", "--json", folder / "summary.json"});
  EXPECT_EQ(ended.status, kExitOk) << ended.err;
  EXPECT_THAT(content_of(folder / "summary.json"),
              AllOf(HasSubstr("\"failure\": null"), HasSubstr("\"identical\": true"),
                    HasSubstr("\"p99.9\": "), HasSubstr("\"wakes\": ")));
  EXPECT_THAT(folder.names(), ElementsAre("in", "summary.json"));
}

TEST(Replicate, StartedByHandItTakesAReplicaPerCommand) {
  TemporaryFolder folder;
  write_file(folder / "in", 200'000);
  HandStarted first(folder / "one"), second(folder / "two");
  const std::string one = first.at(), two = second.at();
  const Ended primary = run({"primary", "--file", folder / "in", "--replica", one, "--replica", two,
                             "--connections", "2"});
  EXPECT_EQ(primary.status, kExitOk) << primary.out << primary.err;
  for (HandStarted* replica : {&first, &second}) {
    const Ended ended = replica->finish();
    EXPECT_EQ(ended.status, kExitOk) << ended.err;
    EXPECT_THAT(ended.out, HasSubstr("identical"));
  }
  EXPECT_TRUE(same_content(folder / "one", folder / "in"));
  EXPECT_TRUE(same_content(folder / "two", folder / "in"));
}

// --- losing replicas ---------------------------------------------------------------------------

TEST(Replicate, KillOneCompletesWhenAQuorumIsLeft) {
  TemporaryFolder folder;
  write_file(folder / "in", 2'000'000);
  const Ended ended = run({"--file", folder / "in", "--output-dir", folder / "out", "--record-size",
                           "4K", "--kill-one"});
  EXPECT_EQ(ended.status, kExitOk) << ended.out << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("is lost after"));
  EXPECT_EQ(count_of(ended.out, "  identical"), 1U) << ended.out;
  EXPECT_TRUE(same_content(folder / "out/replica-0.copy", folder / "in"));
  EXPECT_FALSE(fs::exists(folder / "out/replica-1.copy"));
  EXPECT_FALSE(fs::exists(folder / "out/replica-1.copy.partial")) << "half-written";
}

TEST(Replicate, KillOneFailsWhenNoQuorumIsLeft) {
  TemporaryFolder folder;
  write_file(folder / "in", 2'000'000);
  const Ended ended = run({"--file", folder / "in", "--output-dir", folder / "out", "--record-size",
                           "4K", "--kill-one", "--quorum", "2", "--json", folder / "summary.json"});
  EXPECT_EQ(ended.status, kExitQuorum) << ended.out << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("no quorum any more: 1 of 2 replicas are left and it takes 2"));
  EXPECT_FALSE(fs::exists(folder / "out/replica-1.copy"));
  EXPECT_THAT(content_of(folder / "summary.json"), HasSubstr("\"failure\": \"no quorum"));
}

TEST(Replicate, AStoppedReplicaIsDroppedAfterTheTimeout) {
  TemporaryFolder folder;
  write_file(folder / "in", much(10'000'000));
  HandStarted first(folder / "one", {"--receive-depth", "16"});
  HandStarted second(folder / "two", {"--receive-depth", "16"});
  const std::string one = first.at(), two = second.at();
  Program primary({"primary", "--file", folder / "in", "--record-size", "1K", "--replica", one,
                   "--replica", two, "--timeout", "1", "--quorum", "1"});
  wait_until_it_grows(folder / "two.partial");
  second.signal(SIGSTOP);
  const Ended ended = primary.finish();
  EXPECT_EQ(ended.status, kExitOk) << ended.out << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("no progress"));
  EXPECT_TRUE(same_content(folder / "one", folder / "in"));
}

TEST(Replicate, AReplicaWhosePrimaryIsGoneEndsAndLeavesNothing) {
  TemporaryFolder folder;
  write_file(folder / "in", 30'000'000);
  HandStarted replica(folder / "copy");
  const std::string at = replica.at();
  Program primary({"primary", "--file", folder / "in", "--record-size", "512", "--replica", at});
  wait_until_it_grows(folder / "copy.partial");
  primary.signal(SIGKILL);
  const Ended ended = replica.finish();
  EXPECT_EQ(ended.status, kExitQuorum) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("the primary is gone"));
  EXPECT_THAT(folder.names(), ElementsAre("in"));
}

// --- being told to end -------------------------------------------------------------------------

class Signals : public ::testing::TestWithParam<int> {};

TEST_P(Signals, InTheMiddleEndEverything) {
  TemporaryFolder folder;
  write_file(folder / "in", 30'000'000);
  Program program({"--file", folder / "in", "--record-size", "512", "--output-dir", folder / "out",
                   "--replicas", "3"});
  wait_until_it_grows(folder / "out/replica-2.copy.partial");
  program.signal(GetParam());
  const Ended ended = program.finish();
  EXPECT_EQ(ended.status, 128 + GetParam()) << ended.out << ended.err;
  EXPECT_TRUE(program.group_is_empty());
  for (const auto& entry : fs::directory_iterator(folder / "out"))
    ADD_FAILURE() << entry << " was left";
}

INSTANTIATE_TEST_SUITE_P(Replicate, Signals, ::testing::Values(SIGINT, SIGTERM));

TEST(Replicate, KilledItTakesItsReplicasWithIt) {
  TemporaryFolder folder;
  write_file(folder / "in", 30'000'000);
  Program program(
      {"--file", folder / "in", "--record-size", "512", "--output-dir", folder / "out"});
  wait_until_it_grows(folder / "out/replica-1.copy.partial");
  EXPECT_EQ(program.children().size(), 2U);
  program.signal(SIGKILL);
  EXPECT_EQ(program.finish().status, 128 + SIGKILL);
  EXPECT_TRUE(program.group_is_empty());
  for (const auto& entry : fs::directory_iterator(folder / "out"))
    ADD_FAILURE() << entry << " was left";
}

// --- strangers ---------------------------------------------------------------------------------

TEST(Replicate, GarbageInTheConnectionRequestIsRefusedAndHarmsNobody) {
  TemporaryFolder folder;
  write_file(folder / "in", 100'000);
  HandStarted replica(folder / "copy");
  const std::string port = replica.port();

  auto peer = sluice::rpma::Peer::reach(address());
  ASSERT_TRUE(peer) << peer.status().message();
  auto hello = encode(
      Hello{.session = 1, .replica = 0, .connection = 0, .connections = 1, .record_size = 1024});
  hello[4] = std::byte{99};  // a version from the future
  const std::string garbage = "nobody knows what this is";
  for (const auto data : {std::as_bytes(std::span(garbage)), std::span<const std::byte>(hello),
                          std::span<const std::byte>()}) {
    auto request = sluice::rpma::ConnectionRequest::connect_to(*peer, address(), port, {});
    ASSERT_TRUE(request) << request.status().message();
    auto connection = std::move(*request).connect(data);
    if (!connection) continue;
    sluice::Result<sluice::rpma::ConnectionEvent> event = (*connection)->next_event();
    while (!event) event = (*connection)->next_event();  // bound: the test's timeout
    EXPECT_EQ(*event, sluice::rpma::ConnectionEvent::rejected);
  }
  EXPECT_TRUE(replica.says("version 99")) << replica.err();
  EXPECT_TRUE(replica.says("no sluice-replicate")) << replica.err();

  const Ended primary =
      run({"primary", "--file", folder / "in", "--replica", address() + ":" + port});
  EXPECT_EQ(primary.status, kExitOk) << primary.out << primary.err;
  EXPECT_EQ(replica.finish().status, kExitOk);
  EXPECT_TRUE(same_content(folder / "copy", folder / "in"));
}

TEST(Replicate, ADamagedRecordIsReportedAndNoCopyIsLeft) {
  TemporaryFolder folder;
  HandStarted replica(folder / "copy");
  const std::string port = replica.port();

  // A primary of one record, by hand.
  auto peer = sluice::rpma::Peer::reach(address());
  ASSERT_TRUE(peer) << peer.status().message();
  auto memory =
      sluice::rpma::MemoryRegion::allocate(*peer, 4096, RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV);
  ASSERT_TRUE(memory) << memory.status().message();
  auto request = sluice::rpma::ConnectionRequest::connect_to(*peer, address(), port, {});
  ASSERT_TRUE(request) << request.status().message();
  ASSERT_TRUE(request->receive(**memory, 2048, 2048, 1).ok());
  const Hello hello{
      .session = 1, .replica = 0, .connection = 0, .connections = 1, .record_size = 512};
  auto connection = std::move(*request).connect(encode(hello));
  ASSERT_TRUE(connection) << connection.status().message();
  auto event = (*connection)->next_event();
  while (!event) event = (*connection)->next_event();  // bound: the test's timeout
  ASSERT_EQ(*event, sluice::rpma::ConnectionEvent::established);

  const auto frame = (*memory)->memory().first(FrameHeader::kBytes + 100);
  seal_frame(frame, {.kind = FrameKind::data, .session = 1, .number = 0, .length = 100});
  frame[FrameHeader::kBytes + 50] ^= std::byte{1};
  ASSERT_TRUE((*connection)->send(memory->get(), 0, frame.size(), 2).ok());

  const auto receives = (*connection)->receive_cq();
  ibv_wc wc{};
  while (receives->poll({&wc, 1}).count == 0) {  // bound: the test's timeout
  }
  ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  const Frame answer = open_frame((*memory)->memory().subspan(2048, wc.byte_len), 1);
  ASSERT_TRUE(answer.ok()) << to_string(answer.error);
  const auto report = decode_report(answer.payload);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->outcome, Report::Outcome::failed);
  EXPECT_THAT(std::string(report->why()), HasSubstr("CRC32C mismatch"));

  EXPECT_TRUE((*connection)->disconnect().ok());
  const Ended ended = replica.finish();
  EXPECT_EQ(ended.status, kExitDiffers) << ended.err;
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(Replicate, RecordsThatTheReplicaHasNoRoomForAreRefused) {
  TemporaryFolder folder;
  write_file(folder / "in", 100'000);
  HandStarted replica(folder / "copy", {"--record-size", "1K"});
  const std::string at = replica.at();
  expect_refused(run({"primary", "--file", folder / "in", "--record-size", "2K", "--replica", at}),
                 kExitRdma, "refused");
  EXPECT_TRUE(replica.says("--record-size 1024 is what fits here")) << replica.err();
  expect_refused(run({"primary", "--file", folder / "in", "--record-size", "1K", "--connections",
                      "17", "--replica", at}),
                 kExitRdma, "refused");
  EXPECT_TRUE(replica.says("--connections-max is 16")) << replica.err();
}

// --- bad input ---------------------------------------------------------------------------------

TEST(BadInput, FilesThatCannotBeShipped) {
  TemporaryFolder folder;
  write_file(folder / "in", 10);
  expect_refused(run({"--file", folder / "nothing"}), kExitFile, "cannot open");
  expect_refused(run({"--file", folder.path().string()}), kExitFile, "is a directory");
  expect_refused(run({"--file", "/dev/null"}), kExitFile, "not a regular file");
  if (geteuid() != 0) {  // root can read everything
    fs::permissions(folder / "in", fs::perms::none);
    expect_refused(run({"--file", folder / "in"}), kExitFile, "cannot open");
  }
}

TEST(BadInput, OutputsThatCannotBeWritten) {
  TemporaryFolder folder;
  write_file(folder / "in", 10);
  expect_refused(run({"--file", folder / "in", "--output-dir", folder / "in"}), kExitFile,
                 "is not a folder");
  expect_refused(run({"--file", folder / "in", "--output-dir", folder / "a/b"}), kExitFile,
                 "cannot make the folder");
  expect_refused(run({"--file", folder / "in", "--json", folder / "a/b"}), kExitFile,
                 "cannot create");
  expect_refused(run({"--file", folder / "in", "--json", folder.path().string()}), kExitFile,
                 "is a directory");
  EXPECT_THAT(folder.names(), ElementsAre("in"));
}

struct BadOption {
  std::vector<std::string> arguments;
  std::string why;
};
class BadOptions : public ::testing::TestWithParam<BadOption> {};

TEST_P(BadOptions, AreRefusedInOneLineThatNamesThem) {
  expect_refused(run(GetParam().arguments), kExitUsage, GetParam().why);
}

INSTANTIATE_TEST_SUITE_P(
    BadInput, BadOptions,
    ::testing::Values(BadOption{{"--replicas", "0"}, "--replicas 0"},                          //
                      BadOption{{"--replicas", "65"}, "takes 1 to 64"},                        //
                      BadOption{{"--replicas", "-1"}, "--replicas"},                           //
                      BadOption{{"--replicas", "two"}, "--replicas"},                          //
                      BadOption{{"--quorum", "0"}, "--quorum 0"},                              //
                      BadOption{{"--quorum", "3"}, "there are 2 replicas"},                    //
                      BadOption{{"--record-size", "0"}, "--record-size 0"},                    //
                      BadOption{{"--record-size", "65M"}, "--record-size"},                    //
                      BadOption{{"--record-size", "99999999999999999999"}, "takes a number"},  //
                      BadOption{{"--connections", "0"}, "--connections 0"},                    //
                      BadOption{{"--connections", "1025"}, "takes 1 to 1024"},                 //
                      BadOption{{"--window", "0"}, "--window 0"},                              //
                      BadOption{{"--workers", "0"}, "--workers 0"},                            //
                      BadOption{{"--workers", "33"}, "takes 1 to 32"},                         //
                      BadOption{{"--pollers", "0"}, "--pollers 0"},                            //
                      BadOption{{"--timeout", "0"}, "--timeout 0"},                            //
                      BadOption{{"--port", "65535"}, "--port 65535"},                          //
                      BadOption{{"--port", "70000"}, "--port"},                                //
                      BadOption{{"--wait", "maybe"}, "takes busy or event"},                   //
                      BadOption{{"--record-size", "64M", "--window", "64"},
                                "registered memory"},                                           //
                      BadOption{{"--nonsense"}, "--nonsense"},                                  //
                      BadOption{{"primary"}, "--replica"},                                      //
                      BadOption{{"primary", "--replica", "nowhere"}, "ADDR:PORT"},              //
                      BadOption{{"primary", "--replica", "h:1", "--replica", "h:1"}, "twice"},  //
                      BadOption{{"replica", "--output", "x"}, "--listen"},                      //
                      BadOption{{"replica", "--listen", "h:99999", "--output", "x"}, "port"}));

TEST(BadInput, MoreConnectionsThanDescriptors) {
  TemporaryFolder folder;
  write_file(folder / "in", 10);
  Program program(
      {"--file", folder / "in", "--replicas", "64", "--connections", "100", "--window", "1"},
      {.descriptors_max = 1024});
  const Ended ended = program.finish();
  expect_refused(ended, kExitRdma, "file descriptors");
}

TEST(Replicate, AnOrdinaryDescriptorLimitIsEnough) {
  TemporaryFolder folder;
  write_file(folder / "in", 100'000);
  Program program({"--file", folder / "in", "--connections", "16", "--record-size", "1K"},
                  {.descriptors_max = 1024});
  const Ended ended = program.finish();
  EXPECT_EQ(ended.status, kExitOk) << ended.out << ended.err;
}

TEST(BadInput, AnAddressWithoutADevice) {
  TemporaryFolder folder;
  write_file(folder / "in", 10);
  const Ended ended =
      run({"--file", folder / "in", "--address", "192.0.2.1", "--output-dir", folder / "out"});
  expect_refused(ended, kExitRdma, "192.0.2.1");
  EXPECT_THAT(TemporaryFolder().names(), IsEmpty());
  EXPECT_TRUE(fs::is_empty(folder / "out"));
}

TEST(BadInput, AnUnreachableReplica) {
  TemporaryFolder folder;
  write_file(folder / "in", 10);
  std::string nobody;
  {
    HandStarted gone(folder / "x");
    nobody = gone.at();
  }
  expect_refused(run({"primary", "--file", folder / "in", "--replica", nobody}), kExitRdma,
                 "refused");
}

TEST(BadInput, APortThatIsTaken) {
  TemporaryFolder folder;
  write_file(folder / "in", 10);
  HandStarted holder(folder / "x");
  const std::string port = holder.port();
  const Ended ended =
      run({"--file", folder / "in", "--port", port, "--output-dir", folder / "out"});
  expect_refused(ended, kExitRdma, port);
  EXPECT_TRUE(fs::is_empty(folder / "out"));
}

TEST(BadInput, WithoutADeviceItSaysWhatToDo) {
  if (std::getenv("RXE_ADDR") != nullptr) GTEST_SKIP() << "there is a device here";
  TemporaryFolder folder;
  write_file(folder / "in", 10);
  const Ended ended = run({"--file", folder / "in"}, {.environment = {{"LD_PRELOAD", ""}}});
  expect_refused(ended, kExitRdma, "softrdma-run");
}

TEST(Help, NamesTheExitStatuses) {
  const Ended ended = run({"--help"});
  EXPECT_EQ(ended.status, 0);
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("Exit status"), HasSubstr("--kill-one"), HasSubstr("softrdma-run")));
}

}  // namespace
}  // namespace replicate::test
