// SPDX-License-Identifier: BSD-3-Clause
// The clients and the checker that judge sluice-kv, on a server that others have written: with each
// write on its disk Redis is found right, also when it is killed; when it forgets, that is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client.hpp"
#include "history.hpp"
#include "load.hpp"
#include "sluice_test/etcd_server.hpp"
#include "sluice_test/process.hpp"

namespace sluice::kv::test {
namespace {

using namespace std::chrono_literals;
using sluice::test::Process;
using sluice::test::ReservedPort;
using sluice::test::TemporaryFolder;
using testing::HasSubstr;

class RedisServer {
 public:
  explicit RedisServer(bool keeps_all, std::vector<std::string> more = {})
      : words_{SLUICE_REDIS_SERVER,
               "--port",
               std::to_string(port_.number()),
               "--bind",
               "127.0.0.1",
               "--dir",
               folder_ / "",
               "--save",
               "",
               "--appendfsync",
               "always",
               "--appendonly",
               keeps_all ? "yes" : "no"} {
    words_.insert(words_.end(), more.begin(), more.end());
    start();
  }
  void start() {
    process_.reset();
    process_ = std::make_unique<Process>(words_);
    ready_ = process_->wait_for("Ready to accept connections").has_value();
  }
  [[nodiscard]] bool ready() const { return ready_; }
  [[nodiscard]] Process& process() { return *process_; }
  [[nodiscard]] Address address() const { return {"127.0.0.1", port_.number()}; }

 private:
  TemporaryFolder folder_;
  ReservedPort port_;
  std::vector<std::string> words_;
  std::unique_ptr<Process> process_;
  bool ready_ = false;
};

LoadOptions load_on(const RedisServer& server) {
  LoadOptions options;
  options.client.nodes = {server.address()};
  return options;
}

/// Load, interrupted by kills; then what the checker says, and what is missing at the end.
struct Judged {
  Verdict verdict;
  std::optional<Violation> lost;
  std::string summary;
};
Judged killed_under_load(RedisServer& server, int kills) {
  Load load(load_on(server));
  for (int i = 0; i < kills; ++i) {
    EXPECT_TRUE(load.wait_for_more(300, 60s)) << load.refusal();
    server.process().kill();
    server.start();
    EXPECT_TRUE(server.ready());
  }
  EXPECT_TRUE(load.wait_for_more(300, 60s)) << load.refusal();
  auto history = load.stop();
  const auto written = history;
  ClusterClient client(load_on(server).client);
  const auto at_the_end = read_all(client, history);
  EXPECT_TRUE(at_the_end);
  return {check(history), check_nothing_lost(written, *at_the_end), summary(history)};
}

TEST(ClientsAndChecker, FindAServerRightThatIs) {
  RedisServer server(true);
  ASSERT_TRUE(server.ready());
  const Judged judged = killed_under_load(server, 3);
  EXPECT_TRUE(judged.verdict.linearizable()) << judged.verdict.to_string();
  EXPECT_FALSE(judged.lost) << judged.lost->to_string();
  RecordProperty("summary", judged.summary);
}

TEST(ClientsAndChecker, FindWhatAServerForgets) {
  RedisServer server(false);
  ASSERT_TRUE(server.ready());
  const Judged judged = killed_under_load(server, 1);
  ASSERT_TRUE(judged.verdict.violation);
  ASSERT_TRUE(judged.lost);
  EXPECT_THAT(judged.lost->to_string(), HasSubstr("is lost"));
}

TEST(ClientsAndChecker, AWriteThatIsCutOffIsOfUnknownOutcomeAndNotDoneTwice) {
  RedisServer server(true);
  ASSERT_TRUE(server.ready());
  ClientOptions options = load_on(server).client;
  options.answer_timeout = 200ms;
  ClusterClient client(options);
  ASSERT_TRUE(client.write({"INCR", "k"}).ok());
  server.process().freeze();
  EXPECT_EQ(client.write({"INCR", "k"}).outcome, Outcome::unknown);
  server.process().go_on();
  // A read is asked again until it is answered. What was frozen with the server is done by then or
  // never: it was in the socket.
  const Answer read = client.read({"GET", "k"});
  ASSERT_TRUE(read.ok());
  EXPECT_THAT(read.reply.to_string(), testing::AnyOf("1", "2"));
}

TEST(ClientsAndChecker, AServerThatIsAwayIsWaitedFor) {
  RedisServer server(true, {"--requirepass", "secret"});
  ASSERT_TRUE(server.ready());
  ClientOptions options = load_on(server).client;
  options.password = "secret";
  options.nodes.insert(options.nodes.begin(), Address{"127.0.0.1", 1});  // nobody is there
  ClusterClient client(options);
  EXPECT_TRUE(client.write({"SET", "k", "v"}).ok());
  EXPECT_EQ(client.node(), server.address());
  server.process().kill();
  EXPECT_FALSE(client.write({"SET", "k", "w"}).ok());
  server.start();
  ASSERT_TRUE(server.ready());
  EXPECT_EQ(client.read({"GET", "k"}).reply.text, "v");
  // A request that is wrong is not tried again.
  const Answer wrong = client.write({"SET", "k"});
  EXPECT_EQ(wrong.outcome, Outcome::failed);
  EXPECT_TRUE(wrong.reply.is_error("ERR"));
}

TEST(Clients, GiveUpWhenTheirPatienceIsOver) {
  const ReservedPort nobody;
  ClientOptions options;
  options.nodes = {{"127.0.0.1", nobody.number()}};
  options.patience = 100ms;
  ClusterClient client(options);
  EXPECT_EQ(client.write({"SET", "k", "v"}).outcome, Outcome::failed);
  EXPECT_EQ(client.read({"GET", "k"}).outcome, Outcome::failed);
}

TEST(Clients, ReadInfo) {
  const Info info(
      "# Replication\r\nrole:primary\r\nepoch:7\r\nprimary:\r\nin_sync:c,a,b\r\n"
      "connected_replicas:2\r\n"
      "replica0:node=b,state=streaming,in_sync=yes,memory=10,durable=9,last_error=\r\n"
      "replica1:node=c,state=connecting,in_sync=no,last_error=no route\r\n");
  EXPECT_EQ(info["role"], "primary");
  EXPECT_EQ(info["rol"], "");
  EXPECT_EQ(info["primary"], "");
  EXPECT_EQ(info.number("epoch"), 7U);
  EXPECT_THAT(info.list("in_sync"), testing::ElementsAre("a", "b", "c"));
  EXPECT_EQ(info.replica("b", "durable"), "9");
  EXPECT_EQ(info.replica("c", "state"), "connecting");
  EXPECT_EQ(info.replica("c", "last_error"), "no route");
  EXPECT_EQ(info.replica("d", "state"), "");
  EXPECT_EQ(Address::parse("127.0.0.1:6379")->port, 6379);
  EXPECT_FALSE(Address::parse("127.0.0.1"));
  EXPECT_FALSE(Address::parse("127.0.0.1:x"));
}

}  // namespace
}  // namespace sluice::kv::test
