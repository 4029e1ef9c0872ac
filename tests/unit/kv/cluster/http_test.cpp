// SPDX-License-Identifier: BSD-3-Clause
// The transport, and EtcdClient on top of it, against servers that do what etcd does not: each a
// few lines on a real socket. What etcd does is tested with etcd (tests/system/kv/cluster).
#include "kv/cluster/http.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kv/cluster/etcd_client.hpp"

namespace {

using namespace sluice;
using namespace sluice::kv;
using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr auto kPatience = 30s;

/// Takes connections, and lets `serve` speak on each, on a thread of its own, until it returns.
class Server {
 public:
  using Serve = std::function<void(int fd, int number)>;
  explicit Server(Serve serve) : serve_(std::move(serve)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        listen(listener_, 16) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0)
      std::abort();
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    shutdown(listener_, SHUT_RDWR);  // ends accept()
    thread_.join();
    for (const int fd : open_) shutdown(fd, SHUT_RDWR);
    for (auto& thread : speakers_) thread.join();
    for (const int fd : open_) close(fd);
    close(listener_);
  }
  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  /// Reads up to the end of one request's body; false: the client is gone.
  static bool read_request(int fd) {
    std::string text;
    char chunk[4096];
    for (;;) {
      if (const auto end = text.find("\r\n\r\n"); end != std::string::npos) {
        const auto at = text.find("Content-Length: ");
        const std::size_t length = at == std::string::npos ? 0 : std::stoul(text.substr(at + 16));
        if (text.size() >= end + 4 + length) return true;
      }
      const ssize_t got = read(fd, chunk, sizeof chunk);
      if (got <= 0) return false;
      text.append(chunk, static_cast<std::size_t>(got));
    }
  }
  static void say(int fd, const std::string& text) {
    std::string_view rest = text;
    while (!rest.empty()) {
      const ssize_t sent = send(fd, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      rest.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  static void answer(int fd, const std::string& body) {
    say(fd,
        "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }

 private:
  void run() {
    for (int fd = 0; (fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
      open_.push_back(fd);
      speakers_.emplace_back([this, fd, number = speakers_.size()] {
        serve_(fd, static_cast<int>(number));
        shutdown(fd, SHUT_RDWR);
      });
    }
  }
  Serve serve_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::vector<int> open_;  ///< the accepting thread's, until it has ended
  std::vector<std::thread> speakers_;
  std::thread thread_;
};

const std::string kPutAnswer = R"({"header":{"cluster_id":"1","revision":"2","raft_term":"1"}})";

std::unique_ptr<EtcdClient> client_of(std::vector<std::string> endpoints,
                                      std::chrono::milliseconds attempt = kPatience) {
  return std::move(
      *EtcdClient::create({.endpoints = std::move(endpoints), .attempt_limit = attempt}));
}
EtcdClient::Clock::time_point soon() {
  return EtcdClient::Clock::now() + kPatience;
}

TEST(Transport, AServerThatNeverAnswersIsATimeOut) {
  Server silent([](int fd, int) {
    while (Server::read_request(fd)) {
    }
  });
  const auto begun = EtcdClient::Clock::now();
  const auto answer = client_of({silent.url()}, 50ms)->range({.key = "k"}, soon());
  EXPECT_EQ(answer.status().code(), StatusCode::timed_out);
  EXPECT_THAT(answer.status().message(), HasSubstr(silent.url()));
  EXPECT_GE(EtcdClient::Clock::now() - begun, 50ms);
  EXPECT_LT(EtcdClient::Clock::now() - begun, kPatience);
}

TEST(Transport, TheCallersDeadlineBoundsAllAttemptsTogether) {
  Server silent([](int fd, int) {
    while (Server::read_request(fd)) {
    }
  });
  const auto begun = EtcdClient::Clock::now();
  const auto answer =
      client_of({silent.url(), silent.url(), silent.url()})->range({.key = "k"}, begun + 100ms);
  EXPECT_EQ(answer.status().code(), StatusCode::timed_out);
  EXPECT_THAT(answer.status().message(), HasSubstr("no time was left"));
  EXPECT_LT(EtcdClient::Clock::now() - begun, kPatience);
}

TEST(Transport, AServerThatIsNoEtcdIsSaidToBeNone) {
  for (const std::string text :
       {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nhere", "\r\n\r\n",
        "HTTP/1.1 200 OK\r\n"}) {
    Server other([&](int fd, int) {
      if (Server::read_request(fd)) Server::say(fd, text);
    });
    const auto answer = client_of({other.url()})->range({.key = "k"}, soon());
    ASSERT_FALSE(answer) << text;
    EXPECT_THAT(answer.status().message(), HasSubstr("etcd: reading 'k': " + other.url()));
    EXPECT_EQ(answer.status().message().find('\n'), std::string::npos);
  }
}

TEST(Transport, AnAnswerWithoutEndIsCutOff) {
  Server endless([](int fd, int) {
    if (!Server::read_request(fd)) return;
    Server::say(fd, "HTTP/1.1 200 OK\r\n\r\n");
    const std::string chunk(1 << 16, ' ');
    for (std::size_t sent = 0; sent < 2 * HttpClient::kAnswerBytesMax; sent += chunk.size())
      Server::say(fd, chunk);
  });
  const auto answer = client_of({endless.url()})->range({.key = "k"}, soon());
  EXPECT_FALSE(answer);
  EXPECT_THAT(answer.status().message(), HasSubstr("the answer is too long"));
}

TEST(Transport, AWatchsLineWithoutEndIsCutOff) {
  Server endless([](int fd, int) {
    if (!Server::read_request(fd)) return;
    Server::say(fd, "HTTP/1.1 200 OK\r\n\r\n");
    const std::string chunk(1 << 16, ' ');
    for (std::size_t sent = 0; sent < 2 * HttpClient::kLineBytesMax; sent += chunk.size())
      Server::say(fd, chunk);
  });
  auto client = client_of({endless.url()});
  client->watch("k", "", 1);
  WatchNews news;
  while (news.cut.ok() && EtcdClient::Clock::now() < soon()) news = client->watch_news(soon());
  EXPECT_THAT(news.cut.message(), HasSubstr("the answer is too long"));
}

TEST(Transport, AWatchThatBreaksInAnyWayIsCutAndComesAgain) {
  const std::string line = R"({"result":)" + kPutAnswer + "}\n";
  const std::string event =
      R"({"result":{"header":{"cluster_id":"1","revision":"5"},"events":[{"kv":{"key":"aw==","mod_revision":"5"}}]}})"
      "\n";
  Server server([&](int fd, int number) {
    if (!Server::read_request(fd)) return;
    const std::string begin = "HTTP/1.1 200 OK\r\n\r\n" + line;
    switch (number) {
      case 0: return Server::say(fd, "HTTP/1.1 503 No\r\nContent-Length: 1\r\n\r\n{");
      case 1: return;                                               // closed without an answer
      case 2: return Server::say(fd, begin);                        // closed after a line
      case 3: return Server::say(fd, begin + event.substr(0, 30));  // ... in the middle of one
      case 4: return Server::say(fd, begin + "garbage\n");
      case 5:
        return Server::say(fd, begin + R"({"error":{"grpc_code":14,"message":"no leader"}})"
                                       "\n");
      default: Server::say(fd, begin + event + event);  // twice: resumed too early
    }
    while (Server::read_request(fd)) {
    }
  });
  auto client = client_of({server.url()});
  client->watch("k", "", 1);
  std::vector<std::string> cuts;
  std::size_t events = 0;
  const auto deadline = soon();
  while (events == 0 && EtcdClient::Clock::now() < deadline) {
    const auto news = client->watch_news(deadline);
    if (!news.cut.ok()) cuts.push_back(news.cut.message());
    events += news.events.size();
  }
  EXPECT_EQ(events, 1U);
  EXPECT_EQ(client->next_revision(), 6);
  ASSERT_EQ(cuts.size(), 6U);
  EXPECT_THAT(cuts[0], HasSubstr("HTTP status 503"));
  EXPECT_THAT(cuts[2], HasSubstr("the stream has ended"));
  EXPECT_THAT(cuts[3], HasSubstr("the stream has ended"));
  EXPECT_THAT(cuts[4], HasSubstr("no JSON: 'garbage'"));
  EXPECT_THAT(cuts[5], HasSubstr("no leader"));
}

TEST(Transport, AWatchWhoseServerSaysNothingIsCut) {
  Server silent([](int fd, int) {
    while (Server::read_request(fd)) {
    }
  });
  auto client = client_of({silent.url()}, 50ms);
  client->watch("k", "", 1);
  WatchNews news;
  const auto deadline = soon();
  while (news.cut.ok() && EtcdClient::Clock::now() < deadline) news = client->watch_news(deadline);
  EXPECT_EQ(news.cut.code(), StatusCode::timed_out);
  EXPECT_THAT(news.cut.message(), HasSubstr("did not begin in time"));
}

/// libcurl sends a request again when a kept connection turns out to be closed. For a write that
/// would be twice.
TEST(Transport, AWriteIsSentOnceThoughTheKeptConnectionIsClosedUnderIt) {
  std::atomic<int> requests{0};
  Server server([&](int fd, int) {
    // One request for each connection; the second one on it is read and not answered.
    if (!Server::read_request(fd)) return;
    ++requests;
    Server::answer(fd, kPutAnswer);
    if (Server::read_request(fd)) ++requests;
  });
  auto client = client_of({server.url()});
  ASSERT_TRUE(client->range({.key = "k"}, soon()));
  ASSERT_EQ(requests, 1);
  const auto written = client->put({"k", "v"}, soon());
  // On a connection of its own, which answers.
  EXPECT_TRUE(written) << written.status().to_string();
  EXPECT_EQ(requests, 2);
}

TEST(Transport, ManyLinesAtOnceArePausedAndNoneIsLost) {
  constexpr std::int64_t kEvents = 5000;  // more than HttpClient::kLinesMax
  static_assert(kEvents > static_cast<std::int64_t>(HttpClient::kLinesMax));
  Server server([&](int fd, int) {
    if (!Server::read_request(fd)) return;
    std::string all = "HTTP/1.1 200 OK\r\n\r\n";
    for (std::int64_t i = 1; i <= kEvents; ++i)
      all +=
          R"({"result":{"header":{"cluster_id":"1"},"events":[{"kv":{"key":"aw==","mod_revision":")" +
          std::to_string(i) + "\"}}]}}\n";
    Server::say(fd, all);
    while (Server::read_request(fd)) {
    }
  });
  auto client = client_of({server.url()});
  client->watch("k", "", 1);
  std::int64_t seen = 0;
  const auto deadline = soon();
  while (seen < kEvents && EtcdClient::Clock::now() < deadline)
    for (const auto& event : client->watch_news(deadline).events)
      ASSERT_EQ(event.kv.mod_revision, ++seen);
  EXPECT_EQ(seen, kEvents);
}

}  // namespace
