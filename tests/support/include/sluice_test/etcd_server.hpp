// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "sluice_test/process.hpp"

namespace sluice::test {

/// A TCP port of the loopback interface that the kernel chose, kept for whoever binds it with
/// SO_REUSEADDR (as etcd does), also between two runs of it: the socket is bound and never listens.
class ReservedPort {
 public:
  ReservedPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (fd_ < 0 || setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length) != 0)
      std::abort();
    number_ = ntohs(address.sin_port);
  }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  ~ReservedPort() { close(fd_); }
  [[nodiscard]] std::uint16_t number() const { return number_; }
  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(number_); }

 private:
  int fd_;
  std::uint16_t number_ = 0;
};

/// etcd processes that form one cluster, on loopback, their data in a temporary folder. The
/// election timeout is short enough that etcd grants leases of one second. etcd does not sync its
/// data: a killed process loses nothing by that, only a machine would.
class EtcdServers {
 public:
  explicit EtcdServers(std::size_t count = 1) : servers_(count) {
    for (std::size_t i = 0; i < count; ++i) start_process(i, "new");
    for (std::size_t i = 0; i < count; ++i) wait_until_ready(i);
  }

  [[nodiscard]] std::vector<std::string> endpoints() const {
    std::vector<std::string> urls;
    for (const auto& server : servers_) urls.push_back(server.client.url());
    return urls;
  }
  [[nodiscard]] std::size_t size() const { return servers_.size(); }
  [[nodiscard]] Process& operator[](std::size_t i) { return *servers_[i].process; }
  /// Starts one that was killed again, on the same ports, with its data.
  void restart(std::size_t i) {
    start_process(i, "existing");
    wait_until_ready(i);
  }
  /// The same, and without its data if `forget`; does not wait (a majority may be missing).
  void start(std::size_t i, bool forget = false) {
    if (forget) std::filesystem::remove_all(data(i));
    start_process(i, forget ? "new" : "existing");
  }
  void wait_until_ready(std::size_t i) {
    if (!servers_[i].process->wait_for("ready to serve client requests")) {
      for (const auto& line : servers_[i].process->lines()) fprintf(stderr, "%s\n", line.c_str());
      std::abort();
    }
  }

 private:
  struct Server {
    ReservedPort client, peer;
    std::unique_ptr<Process> process;
  };
  [[nodiscard]] std::string data(std::size_t i) const { return folder_ / std::to_string(i); }
  void start_process(std::size_t i, const std::string& state) {
    std::string cluster;
    for (std::size_t n = 0; n < servers_.size(); ++n)
      cluster += (n == 0 ? "" : ",") + std::to_string(n) + "=" + servers_[n].peer.url();
    Server& server = servers_[i];
    server.process.reset();
    server.process =
        std::make_unique<Process>(std::vector<std::string>{"etcd",
                                                           "--name",
                                                           std::to_string(i),
                                                           "--data-dir",
                                                           data(i),
                                                           "--unsafe-no-fsync",
                                                           "--listen-client-urls",
                                                           server.client.url(),
                                                           "--advertise-client-urls",
                                                           server.client.url(),
                                                           "--listen-peer-urls",
                                                           server.peer.url(),
                                                           "--initial-advertise-peer-urls",
                                                           server.peer.url(),
                                                           "--initial-cluster",
                                                           cluster,
                                                           "--initial-cluster-state",
                                                           state,
                                                           "--heartbeat-interval",
                                                           "60",
                                                           "--election-timeout",
                                                           "600"});
  }

  TemporaryFolder folder_;
  std::vector<Server> servers_;
};

}  // namespace sluice::test
