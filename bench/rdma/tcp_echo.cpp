// SPDX-License-Identifier: BSD-3-Clause
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "../figures/samples.hpp"
#include "../figures/stamp.hpp"
#include "../harness/threads.hpp"
#include "processes.hpp"
#include "rdma.hpp"

namespace sluice::bench {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_;
};

/// A connected socket in an epoll set. Messages that came in parts are put together.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
    epoll_event interest{};
    interest.events = EPOLLIN;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &interest);
  }

  /// Looks once, without waiting; calls `handle(message)` for each whole message. False: the other
  /// side has gone.
  template <typename Handle>
  bool look(Handle handle) {
    epoll_event ready{};
    if (::epoll_wait(epoll_.get(), &ready, 1, 0) != 1) return true;
    const ssize_t got = ::read(fd_.get(), buffer_.data() + held_, buffer_.size() - held_);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    held_ += got > 0 ? static_cast<std::size_t>(got) : 0;
    std::size_t at = 0;
    for (; held_ - at >= kMessageSize; at += kMessageSize) {
      if (!handle(buffer_.data() + at)) return false;
    }
    std::memmove(buffer_.data(), buffer_.data() + at, held_ - at);
    held_ -= at;
    return true;
  }
  /// Sends a message; a window of them always fits into the socket's buffer.
  [[nodiscard]] bool send(const char* message) {
    return ::write(fd_.get(), message, kMessageSize) == kMessageSize;
  }

 private:
  Descriptor fd_, epoll_;
  std::array<char, 256 * kMessageSize> buffer_;
  std::size_t held_ = 0;
};

int serve(const std::function<void(std::uint16_t)>& tell) {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), generic, length) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), generic, &length) != 0) {
    return 1;
  }
  tell(ntohs(address.sin_port));
  Socket socket(::accept(listener.get(), nullptr, nullptr));
  while (socket.look([&](const char* message) { return socket.send(message); })) {
  }
  return 0;
}

/// Nanoseconds for the run.
Result<double> run(Socket& socket, std::uint32_t messages, std::uint32_t window, Samples* samples) {
  std::array<char, kMessageSize> out{};
  std::uint32_t sent = 0, answered = 0;
  const auto send_next = [&] {
    ++sent;
    const std::uint64_t now = stamp();
    std::memcpy(out.data(), &now, sizeof now);
    return socket.send(out.data());
  };
  const double begin = now_ns();
  bool fine = true;
  while (fine && sent < window) fine = send_next();
  while (fine && answered < messages) {
    fine = socket.look([&](const char* message) {
      std::uint64_t sent_at = 0;
      std::memcpy(&sent_at, message, sizeof sent_at);
      if (samples != nullptr) samples->add(sent_at, stamp());
      ++answered;
      return sent == messages || send_next();
    });
  }
  if (!fine) return Status(StatusCode::connection_lost, "the TCP echo broke", errno);
  return now_ns() - begin;
}

}  // namespace

Result<EchoResult> tcp_echo(const EchoOptions& options) {
  auto child = Child::start([](const auto& tell, int) { return serve(tell); });
  if (!child) return child.status();
  EchoResult result;
  {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(child->port());
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    Socket socket(fd);
    ::fcntl(fd, F_SETFL, 0);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      return Status(StatusCode::unreachable, "cannot connect to the echoing process", errno);
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
    Samples samples(options.round_trips / 10, options.round_trips - options.round_trips / 10);
    if (const auto took = run(socket, options.round_trips, 1, &samples); !took)
      return took.status();
    const auto took = run(socket, options.messages, options.window, nullptr);
    if (!took) return took.status();
    result = {samples.quantile_ns(0.5) / 1e3, samples.quantile_ns(0.99) / 1e3,
              options.messages / (*took / 1e9)};
  }
  if (child->finish() != 0) return Status(StatusCode::internal, "the echoing process failed");
  return result;
}

}  // namespace sluice::bench
