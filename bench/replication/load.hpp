// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/core/status.hpp"

struct redisContext;

namespace sluice::bench {

/// A connection to a server that speaks RESP.
struct CloseRedis {
  void operator()(redisContext* context) const noexcept;
};
using RedisConnection = std::unique_ptr<redisContext, CloseRedis>;

/// Connects to that port of 127.0.0.1; fails at once when nobody listens there.
[[nodiscard]] Result<RedisConnection> connect_to(std::uint16_t port);
/// The text of the reply to a command without arguments that need care; fails on an error reply.
[[nodiscard]] Result<std::string> ask(redisContext& connection, const std::string& command);

/// What the clients do in one slice of time.
struct Load {
  unsigned clients = 1;  ///< connections, each with one SET in flight
  std::size_t value_bytes = 100;
  double warm_up_s = 0;   ///< before anything is counted
  double measured_s = 0;  ///< that is counted
};

/// What came of it.
struct Throughput {
  double per_second = 0;
  double p50_us = 0, p99_us = 0;  ///< from before the request is sent to its last reply
  std::uint64_t answered = 0;     ///< with those of the warm-up and the end
};

/// The clients of one server: one thread, one epoll, and on each connection one SET in flight, of a
/// random key out of kKeys and a value that does not compress. Made once, used for many slices; the
/// connections that a slice does not use are idle. One thread at a time.
class LoadClients {
 public:
  static constexpr std::uint32_t kKeys = 10'000;

  /// So many connections to the port, on each of which `greeting` (may be empty) was answered OK.
  /// `behind` is sent behind each SET, in the same write; `replies` is what SET and it are answered
  /// with, byte for byte: any other answer is a failure.
  [[nodiscard]] static Result<LoadClients> connect(std::uint16_t port, unsigned count,
                                                   const std::string& greeting, std::string behind,
                                                   std::string replies);
  LoadClients(LoadClients&& other) noexcept = default;
  LoadClients& operator=(LoadClients&&) = delete;
  ~LoadClients();

  [[nodiscard]] Result<Throughput> run(const Load& load);

 private:
  struct Client {
    RedisConnection connection;
    std::string request;
    std::string answer;  ///< so far
    std::int64_t sent_ns = 0;
  };
  struct Descriptor {
    int fd = -1;
    Descriptor() = default;
    Descriptor(Descriptor&& other) noexcept;
    Descriptor& operator=(Descriptor&&) = delete;
    ~Descriptor();
  };

  LoadClients() = default;
  void make_requests(const Load& load);
  [[nodiscard]] Status send_next(Client& client);
  [[nodiscard]] Status receive(Client& client);

  std::vector<Client> clients_;
  std::string behind_, replies_;
  std::size_t key_at_ = 0, value_at_ = 0;  ///< where in a request
  Descriptor epoll_;
  std::mt19937_64 random_{1};
  std::vector<std::uint32_t> took_ns_;  ///< of what was counted
};

}  // namespace sluice::bench
