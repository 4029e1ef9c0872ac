// SPDX-License-Identifier: BSD-3-Clause
#include "load.hpp"

#include <fmt/format.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// What must come comes within this; only a hang lasts so long.
constexpr std::chrono::seconds kPatience{20};
constexpr int kKeyDigits = 10;
constexpr std::size_t kShownBytes = 80;

std::int64_t now() noexcept {
  return Clock::now().time_since_epoch().count();
}

Status no_answer() {
  return {StatusCode::timed_out, fmt::format("no answer to a SET within {} s", kPatience.count())};
}

/// The element of `sorted` at that share of it. us
double quantile_us(std::vector<std::uint32_t>& times, double at) {
  const auto index = static_cast<std::ptrdiff_t>(at * static_cast<double>(times.size() - 1) + 0.5);
  std::nth_element(times.begin(), times.begin() + index, times.end());
  return times[static_cast<std::size_t>(index)] / 1e3;
}

std::string shown(std::string_view answer) {
  std::string text;
  for (const char c : answer.substr(0, kShownBytes)) {
    if (c == '\r') continue;
    text += c == '\n' ? ' ' : c;
  }
  return text;
}

}  // namespace

void CloseRedis::operator()(redisContext* context) const noexcept {
  ::redisFree(context);
}

Result<RedisConnection> connect_to(std::uint16_t port) {
  RedisConnection connection(
      ::redisConnectWithTimeout("127.0.0.1", port, timeval{kPatience.count(), 0}));
  if (connection == nullptr) return Status(StatusCode::resource_exhausted, "no memory");
  if (connection->err != 0)
    return Status(StatusCode::rejected, fmt::format("127.0.0.1:{}: {}", port, connection->errstr),
                  errno);
  ::redisSetTimeout(connection.get(), timeval{kPatience.count(), 0});
  return connection;
}

Result<std::string> ask(redisContext& connection, const std::string& command) {
  auto* const reply = static_cast<redisReply*>(::redisCommand(&connection, command.c_str()));
  if (reply == nullptr)
    return Status(StatusCode::connection_lost, command + ": " + connection.errstr);
  std::string text(reply->str == nullptr ? "" : reply->str, reply->len);
  const bool failed = reply->type == REDIS_REPLY_ERROR;
  ::freeReplyObject(reply);
  if (failed) return Status(StatusCode::rejected, command + " was answered: " + text);
  return text;
}

LoadClients::Descriptor::Descriptor(Descriptor&& other) noexcept
    : fd(std::exchange(other.fd, -1)) {}
LoadClients::Descriptor::~Descriptor() {
  if (fd >= 0) ::close(fd);
}
LoadClients::~LoadClients() = default;

Result<LoadClients> LoadClients::connect(std::uint16_t port, unsigned count,
                                         const std::string& greeting, std::string behind,
                                         std::string replies) {
  LoadClients made;
  made.behind_ = std::move(behind);
  made.replies_ = std::move(replies);
  made.epoll_.fd = ::epoll_create1(EPOLL_CLOEXEC);
  if (made.epoll_.fd < 0) return Status(StatusCode::resource_exhausted, "no epoll", errno);
  for (unsigned i = 0; i < count; ++i) {
    auto connection = connect_to(port);
    if (!connection) return connection.status();
    if (!greeting.empty()) {
      auto answer = ask(**connection, greeting);
      if (!answer) return answer.status();
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    if (::epoll_ctl(made.epoll_.fd, EPOLL_CTL_ADD, (*connection)->fd, &event) != 0)
      return Status(StatusCode::resource_exhausted, "epoll_ctl", errno);
    made.clients_.push_back({std::move(*connection), {}, {}, 0});
  }
  return made;
}

void LoadClients::make_requests(const Load& load) {
  const std::string head =
      fmt::format("*3\r\n$3\r\nSET\r\n${}\r\nkey:", kKeyDigits + std::strlen("key:"));
  const std::string middle = fmt::format("\r\n${}\r\n", load.value_bytes);
  key_at_ = head.size();
  value_at_ = key_at_ + kKeyDigits + middle.size();
  for (unsigned i = 0; i < load.clients; ++i) {
    std::string value(load.value_bytes, '\0');
    for (char& byte : value) byte = static_cast<char>(random_());
    clients_[i].request = head + std::string(kKeyDigits, '0') + middle + value + "\r\n" + behind_;
    clients_[i].answer.clear();
  }
}

Status LoadClients::send_next(Client& client) {
  std::uint64_t key = random_() % kKeys;
  for (int digit = kKeyDigits; digit-- > 0; key /= 10)
    client.request[key_at_ + static_cast<std::size_t>(digit)] = static_cast<char>('0' + key % 10);
  const std::uint64_t fresh = random_();
  std::memcpy(&client.request[value_at_], &fresh, sizeof fresh);
  client.answer.clear();
  client.sent_ns = now();
  for (std::string_view rest = client.request; !rest.empty();) {  // bound: kPatience each time
    const ssize_t sent =
        ::send(client.connection->fd, rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno != EAGAIN && errno != EINTR)
      return {StatusCode::connection_lost, "could not send a SET", errno};
    // One request does not fit the socket's buffer: the server has not read what came before.
    pollfd room{client.connection->fd, POLLOUT, 0};
    if (::poll(&room, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) == 0)
      return no_answer();
  }
  return {};
}

/// Takes what has come. Afterwards client.answer is replies_, or a beginning of it.
Status LoadClients::receive(Client& client) {
  std::array<char, 512> bytes;
  const ssize_t got = ::recv(client.connection->fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (got < 0) return {StatusCode::connection_lost, "no answer to a SET", errno};
  if (got == 0) return {StatusCode::connection_lost, "the server closed a connection"};
  client.answer.append(bytes.data(), static_cast<std::size_t>(got));
  if (!replies_.starts_with(client.answer))
    return {StatusCode::rejected, "a SET was answered: " + shown(client.answer)};
  return {};
}

Result<Throughput> LoadClients::run(const Load& load) {
  SLUICE_CHECK(load.clients >= 1 && load.clients <= clients_.size() &&
                   load.value_bytes >= sizeof(std::uint64_t),
               "a load that these clients were not made for");
  make_requests(load);
  took_ns_.clear();
  const std::int64_t begin = now() + static_cast<std::int64_t>(load.warm_up_s * 1e9);
  const std::int64_t end = begin + static_cast<std::int64_t>(load.measured_s * 1e9);
  for (unsigned i = 0; i < load.clients; ++i) SLUICE_RETURN_IF_ERROR(send_next(clients_[i]));
  std::int64_t last = begin;
  std::uint64_t answered = 0;
  std::array<epoll_event, 64> ready{};
  for (unsigned in_flight = load.clients; in_flight > 0;) {  // bound: `end`, then kPatience
    const int count = ::epoll_wait(epoll_.fd, ready.data(), static_cast<int>(ready.size()),
                                   static_cast<int>(std::chrono::milliseconds(kPatience).count()));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Status(StatusCode::internal, "epoll_wait", errno);
    if (count == 0) return no_answer();
    for (int i = 0; i < count; ++i) {
      Client& client = clients_[ready[static_cast<std::size_t>(i)].data.u64];
      SLUICE_RETURN_IF_ERROR(receive(client));
      if (client.answer.size() < replies_.size()) continue;
      const std::int64_t at = now();
      ++answered;
      // A stalled machine may answer nothing in so short a time: then the first answer ends it.
      const bool over = at >= end && !took_ns_.empty();
      if (at >= begin && !over) {
        last = at;
        took_ns_.push_back(static_cast<std::uint32_t>(std::clamp<std::int64_t>(
            at - client.sent_ns, 0, std::numeric_limits<std::uint32_t>::max())));
      }
      if (at < end || took_ns_.empty()) {
        SLUICE_RETURN_IF_ERROR(send_next(client));
      } else {
        --in_flight;
      }
    }
  }
  const double seconds = static_cast<double>(std::max(end, last) - begin) / 1e9;
  return Throughput{static_cast<double>(took_ns_.size()) / seconds, quantile_us(took_ns_, 0.5),
                    quantile_us(took_ns_, 0.99), answered};
}

}  // namespace sluice::bench
