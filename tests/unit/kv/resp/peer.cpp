// SPDX-License-Identifier: BSD-3-Clause
#include "peer.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "sluice/core/status.hpp"

namespace sluice::kv::test {
namespace {

constexpr timeval kHangLimit{60, 0};

}  // namespace

Peer::Peer() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  SLUICE_CHECK(fd_ >= 0, "no socket for a test's client");
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &kHangLimit, sizeof kHangLimit);
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &kHangLimit, sizeof kHangLimit);
}

Peer::Peer(Peer&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      ended_(other.ended_),
      reset_(other.reset_),
      received_(std::move(other.received_)),
      at_(other.at_) {}

Peer::~Peer() {
  close();
}

void Peer::connect(std::uint16_t port) const {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  SLUICE_CHECK(::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0,
               "a test's client cannot connect");
}

void Peer::keep_buffers_small() const {
  const int bytes = 4096;
  setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

void Peer::send(std::string_view bytes) const {
  while (!bytes.empty()) {  // bound: each round sends something or returns
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // what is missing then shows in what comes back
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

long Peer::send_some(std::string_view bytes, int patience_ms) const {
  pollfd ready{fd_, POLLOUT, 0};
  if (poll(&ready, 1, patience_ms) == 0) return 0;
  const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent < 0 && errno == EAGAIN ? 0 : sent;
}

void Peer::end_sending() const {
  shutdown(fd_, SHUT_WR);
}

void Peer::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void Peer::reset() {
  const linger at_once{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close();
}

bool Peer::receive_some() {
  if (ended_) return false;
  char chunk[16384];
  const ssize_t got = recv(fd_, chunk, sizeof chunk, 0);
  if (got > 0) {
    received_.append(chunk, static_cast<std::size_t>(got));
    return true;
  }
  ended_ = true;
  reset_ = got < 0;
  return false;
}

std::string Peer::receive(std::size_t bytes) {
  while (received_.size() - at_ < bytes && receive_some()) {
  }
  std::string out = received_.substr(at_, bytes);
  at_ += out.size();
  if (at_ > (std::size_t{1} << 20)) {
    received_.erase(0, at_);
    at_ = 0;
  }
  return out;
}

std::string Peer::line() {
  std::size_t end;
  while ((end = received_.find("\r\n", at_)) == std::string::npos && receive_some()) {
  }
  return receive(end == std::string::npos ? received_.size() - at_ : end + 2 - at_);
}

std::string Peer::rest(bool* reset) {
  while (receive_some()) {
  }
  if (reset != nullptr) *reset = reset_;
  return receive(received_.size() - at_);
}

std::string Peer::ask(std::string_view request, std::string_view expected) {
  send(request);
  return receive(expected.size());
}

}  // namespace sluice::kv::test
