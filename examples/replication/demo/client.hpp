// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sluice/core/status.hpp"

struct redisContext;
struct redisReply;

namespace demo {

/// A reply to one command.
struct Reply {
  enum class Kind : std::uint8_t { text, error, nothing, other };
  Kind kind = Kind::other;
  std::string text;  ///< what it says: the value, the status, the error
};

/// A connection to one node, through hiredis. One thread at a time.
class Client {
 public:
  /// `limit` is for the connecting, and for each reply.
  [[nodiscard]] static sluice::Result<Client> connect(const std::string& host, std::uint16_t port,
                                                      std::chrono::milliseconds limit);
  /// Sends the commands in one go and reads their replies. connection_lost: what became of them is
  /// not known, and the client is of no more use.
  [[nodiscard]] sluice::Result<std::vector<Reply>> ask_all(
      const std::vector<std::vector<std::string>>& commands);
  /// One command.
  [[nodiscard]] sluice::Result<Reply> ask(const std::vector<std::string>& command);

 private:
  struct Free {
    void operator()(redisContext* context) const noexcept;
  };
  explicit Client(redisContext* context) noexcept : context_(context) {}
  std::unique_ptr<redisContext, Free> context_;
};

/// "MOVED 0 HOST:PORT": who is asked instead.
struct Address {
  std::string host;
  std::uint16_t port = 0;
};
[[nodiscard]] std::optional<Address> moved_to(const Reply& reply);

}  // namespace demo
