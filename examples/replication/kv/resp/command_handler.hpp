// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "resp/command_table.hpp"
#include "resp/durability.hpp"
#include "resp/ticket.hpp"
#include "sluice/core/status.hpp"

namespace sluice::kv {

/// What the server keeps of a client, for the command layer to read and set.
/// Threads: the connection's I/O thread, that is, inside CommandHandler's calls.
struct ConnectionState {
  std::uint64_t id = 0;  ///< never used again in this process
  Durability durability = Durability::memory;
  bool authenticated = false;  ///< true from the start where there is no password
  std::string name;            ///< CLIENT SETNAME
  std::uint64_t mark = 0;      ///< the handler's own; the server does not look at it
};

/// A request that passed the checks of name, password and number of words.
struct Request {
  const CommandSpec& command;
  std::span<const std::string_view> words;  ///< the command's name first; valid in the call only
  ConnectionState& connection;              ///< valid in the call only
};

/// Answers the commands that have CommandSpec::kHandler.
/// Threads: called by the I/O threads, by several at once if there are several; requests of one
/// connection always come on the same thread, in their order. It must not block: every other
/// connection of the thread waits.
class CommandHandler {
 public:
  virtual ~CommandHandler() = default;

  /// Takes a request. The ticket may be completed now, or later and elsewhere.
  virtual void handle(const Request& request, Ticket ticket) noexcept = 0;

  /// The I/O thread has handed over all requests that had arrived: what they have in common (one
  /// log write, one wake of another thread) is best done now. Called after each round in which
  /// handle() was called, on the same thread.
  virtual void round_done() noexcept {}

  /// A client wants its later writes acknowledged at this level (DURABILITY, CONFIG SET
  /// durability). A failure is its error reply, and the level stays.
  [[nodiscard]] virtual Status set_durability(ConnectionState& connection, Durability level) {
    connection.durability = level;
    return {};
  }
};

}  // namespace sluice::kv
