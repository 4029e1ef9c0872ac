// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "resp/command_handler.hpp"
#include "resp/reply.hpp"
#include "resp/server_options.hpp"

namespace sluice::kv {

/// The commands about the connection and the server itself, which need no data: those without
/// CommandSpec::kHandler.
/// Threads: any; what is written is the ConnectionState alone.
class FrontCommands {
 public:
  enum class After : std::uint8_t { go_on, close };

  /// Both must outlive it.
  FrontCommands(const ServerOptions& options, CommandHandler& handler) noexcept
      : options_(options), handler_(handler) {}

  /// Writes exactly one reply.
  After answer(const Request& request, ReplyBuilder reply) const;

 private:
  using Words = std::span<const std::string_view>;

  void ping(Words words, ReplyBuilder reply) const;
  void auth(Words words, ConnectionState& connection, ReplyBuilder reply) const;
  void hello(Words words, ConnectionState& connection, ReplyBuilder reply) const;
  void client(Words words, ConnectionState& connection, ReplyBuilder reply) const;
  void command(Words words, ReplyBuilder reply) const;
  void config(Words words, ConnectionState& connection, ReplyBuilder reply) const;
  void config_get(Words patterns, const ConnectionState& connection, ReplyBuilder reply) const;
  void set_durability(std::string_view level, ConnectionState& connection,
                      ReplyBuilder reply) const;
  /// Empty, or the error.
  [[nodiscard]] std::string_view log_in(std::string_view user, std::string_view password,
                                        ConnectionState& connection) const;

  const ServerOptions& options_;
  CommandHandler& handler_;
};

}  // namespace sluice::kv
