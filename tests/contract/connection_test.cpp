// SPDX-License-Identifier: BSD-3-Clause
// Making, refusing, losing and ending connections.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "support/fixture.hpp"

extern char** environ;

namespace sluice::contract {
namespace {

using rpma::ConnectionEvent;

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto* const first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

bool starts_with(std::span<const std::byte> data, std::string_view text) {
  return data.size() >= text.size() && std::memcmp(data.data(), text.data(), text.size()) == 0;
}

class ConnectionTest : public ContractTest {};

TEST_F(ConnectionTest, CarriesPrivateDataBothWays) {
  std::string port;
  const auto endpoint = site_.listen(port);
  auto client = require(site_.ask(port, patient()).connect(bytes_of("who asks")));
  auto request = await_request(*endpoint, patient());
  EXPECT_TRUE(starts_with(request.private_data(), "who asks"));
  auto server = require(std::move(request).connect(bytes_of("who answers")));
  EXPECT_TRUE(starts_with(server->private_data(), "who asks"));
  await_event(*client, ConnectionEvent::established);
  await_event(*server, ConnectionEvent::established);
  EXPECT_TRUE(starts_with(client->private_data(), "who answers"));
}

TEST_F(ConnectionTest, RefusesMorePrivateDataThanFits) {
  std::string port;
  const auto endpoint = site_.listen(port);
  const std::vector<std::byte> much(57);
  const auto client = site_.ask(port, patient()).connect(much);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(client.status().message().find("57"), std::string::npos);
}

TEST_F(ConnectionTest, TellsQueuePairsApart) {
  const Pair one = site_.connect(patient(), patient());
  const Pair two = site_.connect(patient(), patient());
  const std::set<std::uint32_t> numbers{one.client->qp_num(), one.server->qp_num(),
                                        two.client->qp_num(), two.server->qp_num()};
  EXPECT_EQ(numbers.size(), 4U);
}

TEST_F(ConnectionTest, AskingForEventsNeverBlocks) {
  std::string port;
  const auto endpoint = site_.listen(port);
  const auto request = endpoint->next_request(patient());
  ASSERT_FALSE(request.ok());
  EXPECT_EQ(request.status().code(), StatusCode::no_completion);
  const Pair pair = site_.connect(patient(), patient());
  for (const auto& each : {pair.client, pair.server}) {
    const auto event = each->next_event();
    ASSERT_FALSE(event.ok());
    EXPECT_EQ(event.status().code(), StatusCode::no_completion);
  }
}

TEST_F(ConnectionTest, ARequestThatIsDroppedIsRejected) {
  std::string port;
  const auto endpoint = site_.listen(port);
  auto client = require(site_.ask(port, patient()).connect());
  { const auto refused = await_request(*endpoint, patient()); }
  EXPECT_EQ(await_event(*client), ConnectionEvent::rejected);
  // The endpoint still works.
  client = require(site_.ask(port, patient()).connect());
  auto server = require(await_request(*endpoint, patient()).connect());
  await_event(*client, ConnectionEvent::established);
  await_event(*server, ConnectionEvent::established);
}

TEST_F(ConnectionTest, NoListenerIsAnErrorAndNoHang) {
  std::string port;
  { const auto gone = site_.listen(port); }
  auto request = rpma::ConnectionRequest::connect_to(site_.peer, site_.address, port, patient());
  ASSERT_TRUE(request.ok()) << request.status().to_string();  // only resolves
  auto client = std::move(*request).connect();
  if (client.ok()) {
    const ConnectionEvent event = await_event(**client);
    EXPECT_TRUE(event == ConnectionEvent::rejected || event == ConnectionEvent::unreachable)
        << to_string(event);
  } else {
    EXPECT_TRUE(client.status().code() == StatusCode::rejected ||
                client.status().code() == StatusCode::unreachable)
        << client.status().to_string();
  }
}

TEST_F(ConnectionTest, TwoEndpointsOnOnePortAreRefused) {
  std::string port;
  const auto endpoint = site_.listen(port);
  const auto second = rpma::Endpoint::listen(site_.peer, site_.address, port);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::address_in_use) << second.status().to_string();
  EXPECT_NE(second.status().message().find(site_.address + ":" + port), std::string::npos);
}

TEST_F(ConnectionTest, AnAddressOfNoDeviceIsUnreachable) {
  const auto peer = rpma::Peer::listen_on("192.0.2.1");  // TEST-NET-1, RFC 5737
  ASSERT_FALSE(peer.ok());
  EXPECT_EQ(peer.status().code(), StatusCode::unreachable) << peer.status().to_string();
  EXPECT_NE(peer.status().message().find("192.0.2.1"), std::string::npos);
}

TEST_F(ConnectionTest, ARequestOutlivesItsEndpoint) {
  std::string port;
  auto endpoint = site_.listen(port);
  auto client = require(site_.ask(port, patient()).connect());
  auto request = await_request(*endpoint, patient());
  endpoint.reset();
  auto server = require(std::move(request).connect());
  await_event(*client, ConnectionEvent::established);
  await_event(*server, ConnectionEvent::established);
}

TEST_F(ConnectionTest, TheOtherSideHearsOfADisconnect) {
  const Pair pair = site_.connect(patient(), patient());
  require(pair.client->disconnect());
  EXPECT_TRUE(pair.client->disconnected());
  require(pair.client->disconnect());  // again: nothing happens
  await_event(*pair.server, ConnectionEvent::closed);
  require(pair.server->disconnect());  // the peer was first
  await_event(*pair.client, ConnectionEvent::closed);
}

TEST_F(ConnectionTest, TheOtherSideHearsOfADestruction) {
  Pair pair = site_.connect(patient(), patient());
  pair.client.reset();
  await_event(*pair.server, ConnectionEvent::closed);
}

TEST_F(ConnectionTest, ASourceKeepsItsConnectionAlive) {
  Pair pair = site_.connect(patient(), patient());
  const auto target = site_.memory(64);
  const auto remote = Site::remote(*target);
  require(pair.client->write(*remote, 0, site_.memory(64).get(), 0, 0, 7));
  const std::shared_ptr<CompletionSource> source = pair.client->main_cq();
  const std::weak_ptr<rpma::Connection> connection = pair.client;
  pair.client.reset();
  EXPECT_EQ(await_completion(*source, "the write").wr_id, 7U);
  EXPECT_FALSE(connection.expired());
}

TEST_F(ConnectionTest, NothingKeepsAConnectionWhoseSourcesAreGone) {
  Pair pair = site_.connect(patient(), patient());
  (void)pair.client->main_cq();
  (void)pair.client->receive_cq();
  const std::weak_ptr<rpma::Connection> connection = pair.client;
  pair.client.reset();
  EXPECT_TRUE(connection.expired());
}

/// The program beside this one: connects to address and port, sends one message, waits for its end.
class PeerProcess {
 public:
  PeerProcess(const std::string& address, const std::string& port) {
    char self[4096];
    const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) throw std::runtime_error("readlink /proc/self/exe");
    std::string path(self, static_cast<std::size_t>(length));
    path = path.substr(0, path.rfind('/')) + "/sluice_contract_peer";
    std::vector<std::string> arguments{path, address, port};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
    const int error = ::posix_spawn(&pid_, path.c_str(), nullptr, nullptr, argv, environ);
    if (error != 0) throw std::runtime_error("start " + path + ": " + std::strerror(error));
  }
  ~PeerProcess() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    (void)::kill(pid_, SIGKILL);
    int status = 0;
    (void)::waitpid(pid_, &status, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

TEST_F(ConnectionTest, AKilledPeerIsNoticed) {
  std::string port;
  const auto endpoint = site_.listen(port);
  rpma::ConnectionConfig config = patient();
  config.srq =
      require(rpma::SharedReceiveQueue::create(site_.peer, {.depth = 16, .receive_cq_size = {}}));
  ReceivePool* const pool = require(config.srq->stock(16, 64));
  PeerProcess peer(site_.address, port);
  auto server = require(await_request(*endpoint, config).connect());
  await_event(*server, ConnectionEvent::established);
  const ibv_wc wc = await_completion(*config.srq->receive_cq(), "the other process' message");
  EXPECT_EQ(wc.qp_num, server->qp_num());
  (void)pool->take(wc);

  peer.kill();
  const ConnectionEvent event = await_event(*server);
  EXPECT_TRUE(event == ConnectionEvent::closed || event == ConnectionEvent::lost)
      << to_string(event);
  // CONN_CLOSED alone does not move the local queue pair to error: disconnect() does.
  require(server->disconnect());
  require(server->post_drain_marker());
  const ibv_wc marker = await_completion(*server->main_cq(), "the drain marker");
  EXPECT_EQ(marker.wr_id, server->drain_marker_id());
  EXPECT_EQ(marker.status, IBV_WC_WR_FLUSH_ERR);
}

// An accepted queue pair is live before the application knows its qp_num.
TEST_F(ConnectionTest, DataThatComesBeforeTheAcceptingSideKnowsTheConnectionIsKept) {
  std::string port;
  const auto endpoint = site_.listen(port);
  rpma::ConnectionConfig config = patient();
  config.srq =
      require(rpma::SharedReceiveQueue::create(site_.peer, {.depth = 16, .receive_cq_size = {}}));
  ReceivePool* const pool = require(config.srq->stock(16, 64));
  const auto early = config.srq->receive_cq();

  auto client = require(site_.ask(port, patient()).connect());
  auto server = require(await_request(*endpoint, config).connect());
  // The accepting side has not taken its `established` yet.
  await_event(*client, ConnectionEvent::established);
  const auto message = site_.memory(64);
  std::memcpy(message->memory().data(), "early", 5);
  require(client->send(message.get(), 0, 5, 1));
  EXPECT_EQ(await_completion(*client->main_cq(), "the send").status, IBV_WC_SUCCESS);
  const ibv_wc wc = await_completion(*early, "the early message");
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.qp_num, server->qp_num());
  {
    const ReceivedBuffer buffer = pool->take(wc);
    ASSERT_EQ(buffer.bytes().size(), 5U);
    EXPECT_EQ(std::memcmp(buffer.bytes().data(), "early", 5), 0);
  }
  await_event(*server, ConnectionEvent::established);
}

// Receives posted to the request are there for a message that comes at once.
TEST_F(ConnectionTest, ReceivesPostedToARequestTakeTheFirstMessages) {
  std::string port;
  const auto endpoint = site_.listen(port);
  auto client = require(site_.ask(port, patient()).connect());
  auto request = await_request(*endpoint, patient(128, 2));
  const auto memory = site_.memory(256);
  require(request.receive(*memory, 0, 64, 0));
  require(request.receive(*memory, 64, 64, 1));
  const Status third = request.receive(*memory, 128, 64, 2);
  EXPECT_EQ(third.code(), StatusCode::resource_exhausted) << third.to_string();
  auto server = require(std::move(request).connect());
  await_event(*client, ConnectionEvent::established);
  await_event(*server, ConnectionEvent::established);
  for (std::uint64_t i = 0; i < 2; ++i) {
    require(client->send(memory.get(), 192, 8, i));
    EXPECT_EQ(await_completion(*server->receive_cq(), "the message").wr_id, i);
  }
  // Polled: their credits are there again.
  require(server->receive(*memory, 0, 64, 0));
  require(server->receive(*memory, 64, 64, 1));
  EXPECT_EQ(server->receive(*memory, 128, 64, 2).code(), StatusCode::resource_exhausted);
}

}  // namespace
}  // namespace sluice::contract
