// SPDX-License-Identifier: BSD-3-Clause
#include "resp/socket.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace sluice::kv {
namespace {

/// The kernel cuts it down to net.core.somaxconn.
constexpr int kBacklog = 4096;
/// A peer that answers no probe for some minutes is gone.
constexpr int kKeepAliveSeconds = 120;
constexpr int kKeepAliveBetweenSeconds = 30;
constexpr int kKeepAliveProbes = 3;

Status listen_error(const std::string& where, int error) {
  const std::string tried = "cannot listen on " + where + ": ";
  switch (error) {
    case EADDRINUSE: return {StatusCode::address_in_use, tried + "the port is taken", error};
    case EADDRNOTAVAIL:
      return {StatusCode::invalid_argument, tried + "this machine does not have the address",
              error};
    case EACCES:
      return {StatusCode::permission_denied, tried + "a port below 1024 needs privileges", error};
    case EMFILE:
    case ENFILE: return {StatusCode::resource_exhausted, tried + "no more descriptors", error};
    default: return {StatusCode::io_error, tried + std::strerror(error), error};
  }
}

std::string printed(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST], service[NI_MAXSERV];
  if (getnameinfo(address, length, host, sizeof host, service, sizeof service,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "?";
  const std::string name = host;
  return (address->sa_family == AF_INET6 ? "[" + name + "]" : name) + ":" + service;
}

bool is_loopback(const sockaddr_storage& address) {
  constexpr std::uint32_t kLoopbackNet = 127;
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == kLoopbackNet;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

Result<Listener> listen_at(const addrinfo& at) {
  Listener made;
  made.where = printed(at.ai_addr, at.ai_addrlen);
  made.fd = Descriptor(socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.fd) return listen_error(made.where, errno);
  const int on = 1;
  // Connections of an earlier run may be in TIME_WAIT; they are no reason to refuse the port.
  setsockopt(made.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (at.ai_family == AF_INET6)
    setsockopt(made.fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  if (bind(made.fd.get(), at.ai_addr, at.ai_addrlen) != 0 || listen(made.fd.get(), kBacklog) != 0)
    return listen_error(made.where, errno);
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (getsockname(made.fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0)
    return listen_error(made.where, errno);
  made.where = printed(reinterpret_cast<const sockaddr*>(&bound), length);
  made.port =
      ntohs(bound.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(bound).sin_port
                                       : reinterpret_cast<const sockaddr_in6&>(bound).sin6_port);
  made.loopback = is_loopback(bound);
  return made;
}

}  // namespace

Result<Listener> listen_on(const std::string& address, std::uint16_t port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (failed != 0)
    return Status{StatusCode::invalid_argument,
                  "cannot listen on '" + address + "': " + gai_strerror(failed)};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  return listen_at(*found);
}

void prepare_client(int fd) noexcept {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepAliveSeconds, sizeof kKeepAliveSeconds);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepAliveBetweenSeconds,
             sizeof kKeepAliveBetweenSeconds);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kKeepAliveProbes, sizeof kKeepAliveProbes);
}

}  // namespace sluice::kv
