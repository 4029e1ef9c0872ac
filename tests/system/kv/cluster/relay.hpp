// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace sluice::kv::test {

/// A TCP relay in front of an etcd on loopback, which can do to the connection what a network does,
/// and make etcd look as it does when it has lost its leadership without noticing.
class Relay {
 public:
  explicit Relay(const std::string& target_url)
      : target_(
            static_cast<std::uint16_t>(std::stoul(target_url.substr(target_url.rfind(':') + 1)))) {
    sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        listen(listener_, 64) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
        pipe(ended_.data()) != 0)
      std::abort();
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  ~Relay() {
    close(ended_[1]);  // ends every poll()
    acceptor_.join();
    for (auto& thread : pairs_) thread.join();
    close(ended_[0]);
    close(listener_);
  }
  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  /// Nothing passes in either direction; connections stay open.
  std::atomic<bool> cut_off{false};
  /// What a watch has to say from now on is lost.
  std::atomic<bool> silent_watches{false};
  /// Keep-alives are answered, and the answer names another raft term.
  std::atomic<bool> stale_keep_alives{false};

 private:
  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
  }
  /// False: the relay ends.
  bool wait_for(std::vector<pollfd>& fds) const {
    fds.push_back({ended_[0], POLLIN, 0});
    poll(fds.data(), fds.size(), -1);
    return fds.back().revents == 0;
  }
  void accept_all() {
    for (;;) {
      std::vector<pollfd> fds{{listener_, POLLIN, 0}};
      if (!wait_for(fds)) return;
      const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client >= 0) pairs_.emplace_back([this, client] { relay(client); });
    }
  }
  void relay(int client) const {
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = loopback(target_);
    std::string path;  // of the request that is being answered
    std::array<char, 16384> chunk;
    if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      for (;;) {
        std::vector<pollfd> fds{{client, POLLIN, 0}, {server, POLLIN, 0}};
        if (!wait_for(fds)) break;
        const bool asks = fds[0].revents != 0;
        const ssize_t got = read(asks ? client : server, chunk.data(), chunk.size());
        if (got <= 0) break;
        if (cut_off) continue;
        std::string text(chunk.data(), static_cast<std::size_t>(got));
        if (asks && text.starts_with("POST ")) path = text.substr(5, text.find(' ', 5) - 5);
        if (!asks && silent_watches && path == "/v3/watch") continue;
        if (!asks && stale_keep_alives && path == "/v3/lease/keepalive") change_term(text);
        if (send(asks ? server : client, text.data(), text.size(), MSG_NOSIGNAL) !=
            static_cast<ssize_t>(text.size()))
          break;
      }
    }
    close(server);
    close(client);
  }
  /// To another one of the same length.
  static void change_term(std::string& text) {
    constexpr std::string_view kField = "\"raft_term\":\"";
    const auto field = text.find(kField);
    if (field == std::string::npos) return;
    char& digit = text[text.find('"', field + kField.size()) - 1];
    digit = digit == '0' ? '9' : static_cast<char>(digit - 1);
  }

  std::uint16_t target_;
  std::uint16_t port_ = 0;
  int listener_ = -1;
  std::array<int, 2> ended_{-1, -1};
  std::list<std::thread> pairs_;  ///< the acceptor's, until it has ended
  std::thread acceptor_;
};

}  // namespace sluice::kv::test
