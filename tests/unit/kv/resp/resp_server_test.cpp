// SPDX-License-Identifier: BSD-3-Clause
#include "resp/resp_server.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <latch>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "handlers.hpp"
#include "peer.hpp"
#include "requests.hpp"

namespace sluice::kv::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using namespace std::chrono_literals;

std::string bulk(std::string_view bytes) {
  std::string out;
  ReplyBuilder(out).bulk(bytes);
  return out;
}

/// Collects what a server says.
class Messages {
 public:
  [[nodiscard]] std::function<void(std::string_view)> sink() {
    return [this](std::string_view text) {
      const std::lock_guard lock(mutex_);
      text_.append(text).append("\n");
    };
  }
  [[nodiscard]] std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

std::unique_ptr<RespServer> started(CommandHandler& handler, ServerOptions options = {}) {
  auto server = RespServer::start(std::move(options), handler);
  SLUICE_CHECK(server.ok(), server.status().to_string());
  return std::move(*server);
}

TEST(RespServer, AnswersRequestsInTheirOrder) {
  EchoHandler handler;
  const auto server = started(handler);
  Peer peer(server->port());
  const std::string all = "PING\r\n" + encoded({"GET", "a"}) + encoded({"ECHO", "b"}) +
                          encoded({"GET", "c"}) + "nonsense\r\n" + encoded({"GET"});
  const std::string replies = "+PONG\r\n" + bulk("a") + bulk("b") + bulk("c") +
                              "-ERR unknown command 'nonsense', with 0 arguments\r\n"
                              "-ERR wrong number of arguments for 'get' command\r\n";
  EXPECT_EQ(peer.ask(all, replies), replies);
  for (const char byte : all) peer.send({&byte, 1});
  EXPECT_EQ(peer.receive(replies.size()), replies);
  EXPECT_EQ(server->stats().requests, 12U);
}

TEST(RespServer, ManyRepliesGoOutInFewSends) {
  EchoHandler handler;
  const auto server = started(handler);
  Peer peer(server->port());
  std::string requests, replies;
  for (int i = 0; i < 1000; ++i) {
    requests += encoded({"GET", std::to_string(i)});
    replies += bulk(std::to_string(i));
  }
  EXPECT_EQ(peer.ask(requests, replies), replies);
  EXPECT_LE(server->stats().sends, 100U);
}

TEST(RespServer, TellsTheHandlerWhenARoundIsOver) {
  EchoHandler handler;
  const auto server = started(handler);
  Peer peer(server->port());
  EXPECT_EQ(peer.ask(encoded({"GET", "a"}), bulk("a")), bulk("a"));
  EXPECT_EQ(peer.ask(encoded({"GET", "b"}), bulk("b")), bulk("b"));
  EXPECT_EQ(handler.rounds, 2U);
  EXPECT_EQ(peer.ask("PING\r\n", "+PONG\r\n"), "+PONG\r\n");
  EXPECT_EQ(handler.rounds, 2U) << "nothing was handed over in that round";
  EXPECT_EQ(handler.empty_rounds, 0U);
}

TEST(RespServer, AReplyThatComesLaterHoldsUpThoseBehindIt) {
  HoldingHandler handler;
  const auto server = started(handler);
  Peer peer(server->port());
  peer.send(encoded({"GET", "a"}) + "PING\r\n" + encoded({"GET", "b"}) + "PING\r\n");
  auto held = handler.take(2);
  ASSERT_EQ(held.size(), 2U);
  held[1].ticket.reply().bulk("b");
  std::move(held[1].ticket).complete();
  // Another connection's reply, asked for later, overtakes: the one above has been taken in.
  Peer other(server->port());
  EXPECT_EQ(other.ask("PING\r\n", "+PONG\r\n"), "+PONG\r\n");
  // What was sent is counted a moment after it can be read.
  while (server->stats().bytes_out == 0) std::this_thread::yield();  // bound: the I/O thread
  EXPECT_EQ(server->stats().bytes_out, 7U);
  std::move(held[0].ticket).complete("$1\r\na\r\n");
  const std::string replies = bulk("a") + "+PONG\r\n" + bulk("b") + "+PONG\r\n";
  EXPECT_EQ(peer.receive(replies.size()), replies);
}

/// Takes held requests, and completes them in random order; every second time as a group.
void complete_at_random(HoldingHandler& handler, unsigned seed) {
  std::mt19937 random(seed);
  CompletionBatch batch;
  while (!handler.ended()) {
    auto held = handler.take(1);
    std::ranges::shuffle(held, random);
    const bool grouped = random() % 2 == 0;
    for (auto& one : held) {
      one.ticket.reply().bulk(one.last_word);
      grouped ? batch.add(std::move(one.ticket)) : std::move(one.ticket).complete();
    }
    batch.post();
  }
}

TEST(RespServer, KeepsEachConnectionsOrderWhicheverThreadsComplete) {
  constexpr unsigned kWorkers = 4, kPeers = 6, kRequests = 3000;
  HoldingHandler handler;
  const auto server =
      started(handler, {.io_threads = 2, .pipeline_max = 100, .in_flight_max = 150});
  std::vector<std::thread> workers, senders;
  for (unsigned i = 0; i < kWorkers; ++i)
    workers.emplace_back([&handler, i] { complete_at_random(handler, i); });
  std::vector<Peer> peers;
  for (unsigned p = 0; p < kPeers; ++p) peers.emplace_back(server->port());
  for (unsigned p = 0; p < kPeers; ++p)
    senders.emplace_back([&peers, p] {
      std::string out;
      for (unsigned i = 0; i < kRequests; ++i)
        out += encoded({"GET", std::to_string(p) + ":" + std::to_string(i)}) + "PING\r\n";
      peers[p].send(out);
    });
  for (unsigned p = 0; p < kPeers; ++p) {
    for (unsigned i = 0; i < kRequests; ++i) {
      const std::string expected = bulk(std::to_string(p) + ":" + std::to_string(i)) + "+PONG\r\n";
      ASSERT_EQ(peers[p].receive(expected.size()), expected) << "request " << i << " of " << p;
    }
  }
  for (std::thread& sender : senders) sender.join();
  handler.end();
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(server->stats().requests, 2U * kPeers * kRequests);
  EXPECT_EQ(server->stats().in_flight, 0U);
}

TEST(RespServer, ATicketThatIsDroppedAnswersAnError) {
  HoldingHandler handler;
  const auto server = started(handler);
  Peer peer(server->port());
  peer.send(encoded({"GET", "a"}) + encoded({"GET", "b"}));
  auto held = handler.take(2);
  ASSERT_EQ(held.size(), 2U);
  std::move(held[1].ticket).complete("+OK\r\n");
  held.clear();
  EXPECT_THAT(peer.line(), StartsWith("-ERR "));
  EXPECT_EQ(peer.line(), "+OK\r\n");
}

TEST(RespServer, AClientThatLeftIsForgottenWhenItsRepliesCome) {
  HoldingHandler handler;
  const auto server = started(handler);
  {
    Peer peer(server->port());
    peer.send(encoded({"GET", "a"}) + encoded({"GET", "b"}) + "PING\r\nPING\r\n");
    ASSERT_TRUE(eventually([&] { return handler.count() == 2; }));
  }  // it closes, and does not wait
  Peer other(server->port());
  other.send(encoded({"GET", "c"}));
  auto held = handler.take(3);
  ASSERT_EQ(held.size(), 3U);
  // The first reply finds nobody, which the server learns from the next one.
  std::move(held[0].ticket).complete(bulk("a"));
  std::move(held[1].ticket).complete(bulk("b"));
  std::move(held[2].ticket).complete(bulk("c"));
  EXPECT_EQ(other.receive(bulk("c").size()), bulk("c"));
  EXPECT_TRUE(eventually([&] { return server->stats().clients == 1; }));
  EXPECT_EQ(server->stats().in_flight, 0U);
}

TEST(RespServer, RepliesToAClientThatIsGoneReachNobodyElse) {
  HoldingHandler handler;
  const auto server = started(handler, {.output_pause_bytes = 500, .output_bytes_max = 1000});
  Peer gone(server->port());
  gone.send(encoded({"GET", "a"}) + encoded({"GET", "b"}) + "PING\r\n");
  auto held = handler.take(2);
  ASSERT_EQ(held.size(), 2U);
  gone.reset();
  ASSERT_TRUE(eventually([&] { return server->stats().clients == 0; }));
  // It may well be kept where the other was.
  Peer next(server->port());
  EXPECT_EQ(next.ask("PING\r\n", "+PONG\r\n"), "+PONG\r\n");
  for (auto& one : held) std::move(one.ticket).complete(bulk(std::string(900, 'x')));
  ASSERT_TRUE(eventually([&] { return server->stats().in_flight == 0; }));
  EXPECT_EQ(next.ask("PING\r\n", "+PONG\r\n"), "+PONG\r\n");
  EXPECT_EQ(server->stats().slow_readers, 0U);
}

TEST(RespServer, AClientThatEndsSendingGetsItsReplies) {
  HoldingHandler handler;
  const auto server = started(handler);
  Peer peer(server->port());
  peer.send(encoded({"GET", "a"}) + "PING\r\nPI");
  peer.end_sending();
  auto held = handler.take(1);
  ASSERT_EQ(held.size(), 1U);
  std::move(held[0].ticket).complete(bulk("a"));
  EXPECT_EQ(peer.rest(), bulk("a") + "+PONG\r\n");
}

TEST(RespServer, QuitIsAnsweredAfterWhatCameBefore) {
  HoldingHandler handler;
  const auto server = started(handler);
  Peer peer(server->port());
  peer.send(encoded({"GET", "a"}) + "QUIT\r\n" + encoded({"GET", "never"}));
  auto held = handler.take(1);
  ASSERT_EQ(held.size(), 1U);
  std::move(held[0].ticket).complete(bulk("a"));
  EXPECT_EQ(peer.rest(), bulk("a") + "+OK\r\n");
  EXPECT_EQ(handler.count(), 0U);
}

TEST(RespServer, AMalformedRequestGetsOneErrorAndTheEnd) {
  EchoHandler handler;
  const auto server = started(handler);
  Peer peer(server->port());
  // Much that stays unread: closing the socket at once would destroy the reply on its way.
  peer.send(encoded({"GET", "a"}) + "*1\r\n:5\r\n" + std::string(1'000'000, 'x'));
  peer.end_sending();
  bool reset = true;
  const std::string replies = peer.rest(&reset);
  EXPECT_THAT(replies, StartsWith(bulk("a") + "-ERR Protocol error: "));
  EXPECT_THAT(replies, testing::EndsWith("\r\n"));
  EXPECT_EQ(std::ranges::count(replies, '\n'), 3);
  EXPECT_FALSE(reset);
  EXPECT_EQ(server->stats().protocol_errors, 1U);
  EXPECT_TRUE(eventually([&] { return server->stats().clients == 0; }));
}

TEST(RespServer, AClientThatGoesOnAfterTheEndIsCutOff) {
  EchoHandler handler;
  const auto server = started(handler, {.linger = 20ms});
  Peer peer(server->port());
  peer.send("*x\r\n");
  EXPECT_THAT(peer.line(), StartsWith("-ERR Protocol error: "));
  // It neither sends more nor closes.
  EXPECT_TRUE(eventually([&] { return server->stats().clients == 0; }));
}

TEST(RespServer, LinesOfHttpAreNotRunAsCommands) {
  EchoHandler handler;
  const auto server = started(handler);
  Peer peer(server->port());
  peer.send("POST / HTTP/1.1\r\nSET a b\r\n\r\n");
  EXPECT_THAT(peer.rest(), StartsWith("-ERR Protocol error: "));
  EXPECT_EQ(handler.rounds, 0U);
}

TEST(RespServer, LimitsOfARequestAreTheOptions) {
  EchoHandler handler;
  const auto server = started(handler, {.limits = {.word_bytes_max = 10}});
  Peer peer(server->port());
  EXPECT_EQ(peer.ask(encoded({"GET", "1234567890"}), bulk("1234567890")), bulk("1234567890"));
  peer.send("*2\r\n$3\r\nGET\r\n$11\r\n");
  EXPECT_THAT(peer.rest(), HasSubstr("too long"));
}

TEST(RespServer, HalfRequestsOfManyClientsTakeBoundedMemory) {
  constexpr std::size_t kHalf = 300'000;
  EchoHandler handler;
  // Those that are refused stay connected.
  const auto server = started(handler, {.input_bytes_max = 2'000'000, .linger = kHangLimit});
  Peer small(server->port());
  small.send("*2\r\n$3\r\nGET\r\n$5\r\n12");
  std::vector<Peer> peers, refused;
  for (int i = 0; i < 20; ++i) {
    peers.emplace_back(server->port());
    const ServerStats before = server->stats();
    peers.back().send("*2\r\n$3\r\nGET\r\n$1000000\r\n" + std::string(kHalf, 'x'));
    ASSERT_TRUE(eventually([&] {
      const ServerStats now = server->stats();
      return now.bytes_in - before.bytes_in > kHalf || now.protocol_errors > before.protocol_errors;
    }));
    if (server->stats().protocol_errors == before.protocol_errors) continue;
    refused.push_back(std::move(peers.back()));
    peers.pop_back();
  }
  // Some fit; the others learn why not, and take no memory any more.
  EXPECT_GE(peers.size(), 2U);
  EXPECT_GE(refused.size(), 14U);
  EXPECT_THAT(refused.back().line(), HasSubstr("too much memory"));
  EXPECT_EQ(small.ask("345\r\n", bulk("12345")), bulk("12345"));
  // When the others are gone, too, there is room again.
  for (Peer& peer : peers) peer.reset();
  ASSERT_TRUE(eventually([&] { return server->stats().clients == 1 + refused.size(); }));
  const std::string large(700'000, 'x');
  EXPECT_EQ(small.ask(encoded({"GET", large}), bulk(large)), bulk(large));
}

TEST(RespServer, AClientThatDoesNotReadIsNotReadFrom) {
  constexpr std::size_t kWord = 1000, kEnough = 100'000'000;
  EchoHandler handler;
  const auto server =
      started(handler, {.output_pause_bytes = 50'000, .output_bytes_max = 10'000'000});
  Peer peer;
  peer.keep_buffers_small();
  peer.connect(server->port());
  std::string word(kWord, 'x');
  const std::string request = encoded({"GET", word});
  std::string many;
  while (many.size() < 1'000'000) many += request;
  // Sends for as long as somebody takes it.
  std::size_t sent = 0;
  for (long n = 1; n > 0 && sent < kEnough;) {
    n = peer.send_some(std::string_view(many).substr(sent % many.size()), 500);
    ASSERT_GE(n, 0) << "closed, after " << sent << " bytes";
    sent += static_cast<std::size_t>(n);
  }
  EXPECT_LT(sent, kEnough);
  const ServerStats stats = server->stats();
  EXPECT_EQ(stats.clients, 1U);
  EXPECT_EQ(stats.slow_readers, 0U);
  // Now it reads, and nothing is missing. The last request may be half sent.
  const std::size_t asked = sent / request.size();
  const std::string expected = bulk(word);
  for (std::size_t i = 0; i < asked; ++i) ASSERT_EQ(peer.receive(expected.size()), expected) << i;
  const std::string tail = request.substr(sent % request.size());
  EXPECT_EQ(peer.ask(tail == request ? "PING\r\n" : tail + "PING\r\n",
                     tail == request ? "+PONG\r\n" : expected + "+PONG\r\n"),
            tail == request ? "+PONG\r\n" : expected + "+PONG\r\n");
}

TEST(RespServer, AClientThatDoesNotReadWhatItAskedForIsClosed) {
  HoldingHandler handler;
  Messages messages;
  const auto server = started(
      handler,
      {.output_pause_bytes = 50'000, .output_bytes_max = 1'000'000, .message = messages.sink()});
  Peer peer;
  peer.keep_buffers_small();
  peer.connect(server->port());
  std::string requests;
  for (int i = 0; i < 200; ++i) requests += encoded({"GET", "k"});
  peer.send(requests);
  const std::string large = bulk(std::string(200'000, 'x'));
  std::size_t completed = 0;
  while (completed < 200) {
    auto held = handler.take(1);
    ASSERT_FALSE(held.empty());
    completed += held.size();
    for (auto& one : held) std::move(one.ticket).complete(large);
  }
  EXPECT_TRUE(eventually([&] { return server->stats().clients == 0; }));
  EXPECT_EQ(server->stats().slow_readers, 1U);
  EXPECT_EQ(server->stats().in_flight, 0U);
  EXPECT_THAT(messages.text(), HasSubstr("does not read"));
}

TEST(RespServer, RepliesHeldUpByAnEarlierOneCountAsOutput) {
  HoldingHandler handler;
  const auto server = started(handler, {.output_pause_bytes = 50'000,
                                        .output_bytes_max = 1'000'000,
                                        .message = [](std::string_view) {}});
  Peer peer(server->port());
  std::string requests;
  for (int i = 0; i < 20; ++i) requests += encoded({"GET", "k"});
  peer.send(requests);
  ASSERT_TRUE(eventually([&] { return handler.count() == 20; }));
  auto held = handler.take(20);
  const std::string large = bulk(std::string(200'000, 'x'));
  for (std::size_t i = 1; i < held.size(); ++i) std::move(held[i].ticket).complete(large);
  EXPECT_TRUE(eventually([&] { return server->stats().clients == 0; }));
  EXPECT_EQ(server->stats().slow_readers, 1U);
  std::move(held[0].ticket).complete(large);
}

TEST(RespServer, ADeepPipelineWaitsItsTurn) {
  HoldingHandler handler;
  const auto server = started(handler, {.pipeline_max = 3});
  Peer peer(server->port());
  std::string requests, replies;
  for (int i = 0; i < 100; ++i) {
    requests += encoded({"GET", std::to_string(i)});
    replies += bulk(std::to_string(i));
  }
  peer.send(requests);
  std::thread worker([&] {
    for (int done = 0; done < 100;) {
      auto held = handler.take(1);
      EXPECT_LE(held.size(), 3U);
      done += static_cast<int>(held.size());
      for (auto& one : held) std::move(one.ticket).complete(bulk(one.last_word));
      if (held.empty()) break;
    }
  });
  EXPECT_EQ(peer.receive(replies.size()), replies);
  worker.join();
}

TEST(RespServer, ClientsShareAFewReplies) {
  constexpr int kPeers = 12, kRequests = 50;
  HoldingHandler handler;
  const auto server = started(handler, {.in_flight_max = 2});
  std::vector<Peer> peers;
  for (int p = 0; p < kPeers; ++p) {
    peers.emplace_back(server->port());
    std::string requests;
    for (int i = 0; i < kRequests; ++i) requests += encoded({"GET", std::to_string(i)});
    peers.back().send(requests);
  }
  std::thread worker([&] {
    for (int done = 0; done < kPeers * kRequests;) {
      auto held = handler.take(1);
      EXPECT_LE(held.size(), 2U);
      done += static_cast<int>(held.size());
      for (auto& one : held) std::move(one.ticket).complete(bulk(one.last_word));
      if (held.empty()) break;
    }
  });
  for (Peer& peer : peers)
    for (int i = 0; i < kRequests; ++i) {
      const std::string expected = bulk(std::to_string(i));
      ASSERT_EQ(peer.receive(expected.size()), expected);
    }
  worker.join();
}

/// Keeps what it is given, and completes all of it when the round is over: on the I/O thread. The
/// very first request waits until the test lets it go.
class AtRoundsEnd : public HoldingHandler {
 public:
  void handle(const Request& request, Ticket ticket) noexcept override {
    if (request.words.back() == "first") go.wait();
    HoldingHandler::handle(request, std::move(ticket));
  }
  std::latch go{1};

  void round_done() noexcept override {
    for (auto& one : take(0)) std::move(one.ticket).complete(bulk(one.last_word));
  }
};

TEST(RespServer, ClientsThatWaitForAReplyGoOnWhenTheRoundsEndGivesSomeBack) {
  AtRoundsEnd handler;
  const auto server = started(handler, {.in_flight_max = 2});
  Peer first(server->port());
  std::vector<Peer> peers;
  for (int p = 0; p < 6; ++p) {
    peers.emplace_back(server->port());
    EXPECT_EQ(peers.back().ask("PING\r\n", "+PONG\r\n"), "+PONG\r\n");
  }
  first.send(encoded({"GET", "first"}));
  for (Peer& peer : peers) peer.send(encoded({"GET", "1"}) + encoded({"GET", "2"}));
  handler.go.count_down();  // now all the others are read in one round, with two replies for them
  EXPECT_EQ(first.receive(bulk("first").size()), bulk("first"));
  const std::string expected = bulk("1") + bulk("2");
  for (Peer& peer : peers) EXPECT_EQ(peer.receive(expected.size()), expected);
}

TEST(RespServer, WantsThePasswordFirst) {
  EchoHandler handler;
  const auto server = started(handler, {.requirepass = "secret"});
  Peer peer(server->port());
  peer.send(encoded({"GET", "a"}) + "PING\r\n" + encoded({"AUTH", "wrong"}) +
            encoded({"GET", "a"}));
  EXPECT_THAT(peer.line(), StartsWith("-NOAUTH "));
  EXPECT_THAT(peer.line(), StartsWith("-NOAUTH "));
  EXPECT_THAT(peer.line(), StartsWith("-WRONGPASS "));
  EXPECT_THAT(peer.line(), StartsWith("-NOAUTH "));
  EXPECT_EQ(handler.rounds, 0U);
  EXPECT_EQ(peer.ask(encoded({"AUTH", "secret"}), "+OK\r\n"), "+OK\r\n");
  const std::string word(100'000, 'x');
  EXPECT_EQ(peer.ask(encoded({"GET", word}), bulk(word)), bulk(word));
}

TEST(RespServer, TakesLittleFromClientsWithoutThePassword) {
  EchoHandler handler;
  const auto server = started(handler, {.requirepass = "secret"});
  Peer peer(server->port());
  peer.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n");
  EXPECT_THAT(peer.rest(), StartsWith("-ERR Protocol error: "));
  Peer other(server->port());
  other.send("*100\r\n");
  EXPECT_THAT(other.rest(), StartsWith("-ERR Protocol error: "));
}

TEST(RespServer, RefusesClientsAboveTheMaximum) {
  EchoHandler handler;
  Messages messages;
  const auto server = started(handler, {.clients_max = 2, .message = messages.sink()});
  Peer first(server->port()), second(server->port());
  EXPECT_EQ(first.ask("PING\r\n", "+PONG\r\n"), "+PONG\r\n");
  EXPECT_EQ(second.ask("PING\r\n", "+PONG\r\n"), "+PONG\r\n");
  Peer third(server->port());
  EXPECT_EQ(third.rest(), "-ERR max number of clients reached\r\n");
  EXPECT_EQ(server->stats().refused, 1U);
  EXPECT_THAT(messages.text(), HasSubstr("there are 2 already"));
  first.close();
  ASSERT_TRUE(eventually([&] { return server->stats().clients == 1; }));
  Peer fourth(server->port());
  EXPECT_EQ(fourth.ask("PING\r\n", "+PONG\r\n"), "+PONG\r\n");
}

/// Lowers the process's limit on descriptors to those that it has.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(STDERR_FILENO);
    close(next);
    const rlimit now{static_cast<rlim_t>(next), before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &now);
  }
  ~NoMoreDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(RespServer, RefusesClientsWhenDescriptorsAreUsedUp) {
  EchoHandler handler;
  Messages messages;
  const auto server = started(handler, {.message = messages.sink()});
  Peer first(server->port());
  EXPECT_EQ(first.ask("PING\r\n", "+PONG\r\n"), "+PONG\r\n");
  Peer second, third;
  {
    const NoMoreDescriptors limit;
    second.connect(server->port());
    EXPECT_EQ(second.rest(), "");
    EXPECT_EQ(first.ask("PING\r\n", "+PONG\r\n"), "+PONG\r\n");
  }
  EXPECT_EQ(server->stats().refused, 1U);
  EXPECT_THAT(messages.text(), HasSubstr("descriptors"));
  third.connect(server->port());
  EXPECT_EQ(third.ask("PING\r\n", "+PONG\r\n"), "+PONG\r\n");
}

TEST(RespServer, SaysInOneLineThatThePortIsTaken) {
  EchoHandler handler;
  const auto first = started(handler);
  const auto second = RespServer::start({.port = first->port()}, handler);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::address_in_use);
  EXPECT_EQ(second.status().message(),
            "cannot listen on 127.0.0.1:" + std::to_string(first->port()) + ": the port is taken");
}

TEST(RespServer, RefusesOptionsThatCannotWork) {
  EchoHandler handler;
  for (const ServerOptions& wrong :
       {ServerOptions{.address = "not an address"}, ServerOptions{.address = "192.0.2.1"},
        ServerOptions{.io_threads = 0}, ServerOptions{.io_threads = 65},
        ServerOptions{.clients_max = 0}, ServerOptions{.pipeline_max = 0},
        ServerOptions{.in_flight_max = 0},
        ServerOptions{.output_pause_bytes = 2, .output_bytes_max = 2}}) {
    const auto server = RespServer::start(wrong, handler);
    ASSERT_FALSE(server.ok());
    EXPECT_EQ(server.status().code(), StatusCode::invalid_argument) << server.status().message();
    EXPECT_EQ(server.status().message().find('\n'), std::string::npos);
  }
}

TEST(RespServer, SaysWhenOtherMachinesMayReachIt) {
  EchoHandler handler;
  Messages narrow, wide, guarded;
  const auto first = started(handler, {.message = narrow.sink()});
  EXPECT_EQ(narrow.text(), "");
  const auto second = started(handler, {.address = "0.0.0.0", .message = wide.sink()});
  EXPECT_THAT(wide.text(), HasSubstr("no password"));
  EXPECT_THAT(wide.text(), HasSubstr(second->listening_on()));
  const auto third =
      started(handler, {.address = "0.0.0.0", .requirepass = "x", .message = guarded.sink()});
  EXPECT_THAT(guarded.text(), HasSubstr("a password is asked for"));
}

TEST(RespServer, StopsWhenAllIsAnsweredAndSent) {
  HoldingHandler handler;
  const auto server = started(handler);
  Peer peer(server->port()), silent(server->port());
  const std::string large(3'000'000, 'x');
  peer.send(encoded({"GET", "a"}) + encoded({"GET", "b"}));
  EXPECT_EQ(silent.ask("PING\r\n", "+PONG\r\n"), "+PONG\r\n");
  auto held = handler.take(2);
  ASSERT_EQ(held.size(), 2U);
  Status stopped = {StatusCode::internal, "not yet"};
  std::thread stopper([&] { stopped = server->stop(kHangLimit); });
  EXPECT_EQ(silent.rest(), "");  // closed: the stop is under way
  std::move(held[1].ticket).complete(bulk("b"));
  std::move(held[0].ticket).complete(bulk(large));
  bool reset = true;
  EXPECT_EQ(peer.rest(&reset), bulk(large) + bulk("b"));
  EXPECT_FALSE(reset);
  stopper.join();
  EXPECT_TRUE(stopped.ok()) << stopped.to_string();
}

TEST(RespServer, AStopTakesNoNewRequests) {
  HoldingHandler handler;
  const auto server = started(handler);
  Peer peer(server->port()), silent(server->port());
  peer.send(encoded({"GET", "a"}));
  EXPECT_EQ(silent.ask("PING\r\n", "+PONG\r\n"), "+PONG\r\n");
  auto held = handler.take(1);
  ASSERT_EQ(held.size(), 1U);
  std::thread stopper([&] { EXPECT_TRUE(server->stop(kHangLimit).ok()); });
  EXPECT_EQ(silent.rest(), "");
  peer.send(encoded({"GET", "b"}));
  std::move(held[0].ticket).complete(bulk("a"));
  EXPECT_EQ(peer.receive(bulk("a").size()), bulk("a"));
  peer.close();
  stopper.join();
  EXPECT_EQ(handler.count(), 0U);
}

TEST(RespServer, AStopEndsAtItsDeadline) {
  HoldingHandler handler;
  auto server = started(handler, {.io_threads = 2});
  Peer peer(server->port());
  peer.send(encoded({"GET", "a"}));
  auto held = handler.take(1);
  ASSERT_EQ(held.size(), 1U);
  const Status stopped = server->stop(10ms);
  EXPECT_EQ(stopped.code(), StatusCode::timed_out);
  EXPECT_THAT(stopped.message(), HasSubstr("1 clients"));
  EXPECT_EQ(peer.rest(), "");
  // The ticket points into the server, which waits for it.
  std::thread late(
      [ticket = std::move(held[0].ticket)]() mutable { std::move(ticket).complete("+OK\r\n"); });
  server.reset();
  late.join();
}

TEST(RespServer, ThePortIsFreeAfterAStop) {
  EchoHandler handler;
  auto server = started(handler);
  const std::uint16_t port = server->port();
  Peer peer(port);
  EXPECT_EQ(peer.ask("PING\r\n", "+PONG\r\n"), "+PONG\r\n");
  server.reset();
  const auto again = started(handler, {.port = port});
  EXPECT_EQ(again->port(), port);
}

/// Notes which threads and connections there are.
class NotingHandler : public CommandHandler {
 public:
  void handle(const Request& request, Ticket ticket) noexcept override {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
    ids.insert(request.connection.id);
    levels.insert(request.connection.durability);
    std::move(ticket).complete("+OK\r\n");
  }
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::set<std::uint64_t> ids;
  std::set<Durability> levels;
};

TEST(RespServer, SpreadsClientsOverItsThreads) {
  NotingHandler handler;
  const auto server = started(handler, {.io_threads = 3, .durability = Durability::quorum_disk});
  std::vector<Peer> peers;
  for (int i = 0; i < 9; ++i) peers.emplace_back(server->port());
  for (Peer& peer : peers) EXPECT_EQ(peer.ask(encoded({"GET", "a"}), "+OK\r\n"), "+OK\r\n");
  const std::lock_guard lock(handler.mutex);
  EXPECT_EQ(handler.threads.size(), 3U);
  EXPECT_EQ(handler.ids.size(), 9U);
  EXPECT_THAT(handler.levels, testing::ElementsAre(Durability::quorum_disk));
}

TEST(RespServer, AConnectionsLevelIsItsOwn) {
  NotingHandler handler;
  const auto server = started(handler);
  Peer one(server->port()), two(server->port());
  EXPECT_EQ(one.ask("DURABILITY all_disk\r\n", "+OK\r\n"), "+OK\r\n");
  EXPECT_EQ(two.ask("GET a\r\n", "+OK\r\n"), "+OK\r\n");
  {
    const std::lock_guard lock(handler.mutex);
    EXPECT_THAT(handler.levels, testing::ElementsAre(Durability::memory));
  }
  EXPECT_EQ(one.ask("GET a\r\n", "+OK\r\n"), "+OK\r\n");
  const std::lock_guard lock(handler.mutex);
  EXPECT_THAT(handler.levels, testing::ElementsAre(Durability::memory, Durability::all_disk));
}

using RespServerDeathTest = testing::Test;

TEST(RespServerDeathTest, ARequestIsCompletedOnce) {
  EXPECT_DEATH(
      {
        Ticket ticket;
        std::move(ticket).complete("+OK\r\n");
      },
      "completed twice");
}

}  // namespace
}  // namespace sluice::kv::test
