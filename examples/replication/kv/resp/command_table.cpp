// SPDX-License-Identifier: BSD-3-Clause
#include "resp/command_table.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "resp/text.hpp"

namespace sluice::kv {
namespace {

using S = CommandSpec;
using Id = CommandId;

constexpr std::uint8_t kData = S::kHandler;

constexpr std::array kCommands{
    S{Id::auth, "auth", -2, S::kNoAuth | S::kFast, 0, 0, 0, "connection",
      "Gives the server's password."},
    S{Id::client, "client", -2, S::kAdmin, 0, 0, 0, "connection",
      "This connection's ID and name: CLIENT ID, SETNAME, GETNAME, SETINFO."},
    S{Id::command, "command", -1, S::kAdmin, 0, 0, 0, "server",
      "The commands of this server: COMMAND, COMMAND COUNT, COMMAND DOCS, COMMAND INFO."},
    S{Id::config, "config", -2, S::kAdmin, 0, 0, 0, "server",
      "Settings: CONFIG GET pattern, CONFIG SET durability level (of this connection)."},
    S{Id::del, "del", -2, S::kWrite | kData, 1, -1, 1, "generic", "Removes keys."},
    S{Id::durability, "durability", -1, S::kAdmin, 0, 0, 0, "connection",
      "The level at which this connection's writes are acknowledged; with a level, sets it."},
    S{Id::echo, "echo", 2, S::kFast, 0, 0, 0, "connection", "Returns its argument."},
    S{Id::exists, "exists", -2, S::kRead | kData | S::kFast, 1, -1, 1, "generic",
      "Counts which of the keys exist."},
    S{Id::get, "get", 2, S::kRead | kData | S::kFast, 1, 1, 1, "string", "The value of a key."},
    S{Id::hello, "hello", -1, S::kNoAuth | S::kFast, 0, 0, 0, "connection",
      "Greets the server; only version 2 of the protocol is spoken."},
    S{Id::incr, "incr", 2, S::kWrite | kData | S::kFast, 1, 1, 1, "string",
      "Adds one to the number that a key holds."},
    S{Id::info, "info", -1, S::kAdmin | kData, 0, 0, 0, "server", "The server's state."},
    S{Id::mget, "mget", -2, S::kRead | kData | S::kFast, 1, -1, 1, "string",
      "The values of several keys."},
    S{Id::mset, "mset", -3, S::kWrite | kData, 1, -1, 2, "string",
      "Sets several keys, all of them at once."},
    S{Id::ping, "ping", -1, S::kFast, 0, 0, 0, "connection", "Answers PONG, or its argument."},
    S{Id::quit, "quit", -1, S::kNoAuth | S::kFast, 0, 0, 0, "connection",
      "Closes the connection after what has been asked is answered."},
    S{Id::select, "select", 2, S::kFast, 0, 0, 0, "connection",
      "Chooses a database; there is one, number 0."},
    S{Id::set, "set", -3, S::kWrite | kData, 1, 1, 1, "string", "Sets the value of a key."},
    S{Id::wait, "wait", 3, S::kAdmin | kData, 0, 0, 0, "generic",
      "Waits until this connection's writes are on that many replicas."},
};
static_assert(std::ranges::is_sorted(kCommands, {}, &S::name));

}  // namespace

std::span<const CommandSpec> command_table() noexcept {
  return kCommands;
}

const CommandSpec* find_command(std::string_view name) noexcept {
  // A pass over some twenty names, most of which differ in length or first letter, is quicker than
  // making the lower-case copy that a look-up in a map would need.
  for (const CommandSpec& spec : kCommands)
    if (same_word(name, spec.name)) return &spec;
  return nullptr;
}

std::string check_words(const CommandSpec& spec, std::span<const std::string_view> words) {
  const auto count = static_cast<std::ptrdiff_t>(words.size());
  const bool counted = spec.arity >= 0 ? count == spec.arity : count >= -spec.arity;
  const bool paired = spec.id != Id::mset || count % 2 == 1;
  if (!counted || !paired)
    return "ERR wrong number of arguments for '" + std::string(spec.name) + "' command";
  if (spec.id == Id::set && count > 3)
    return "ERR syntax error: SET takes a key and a value, and here no options; there is " +
           quoted(words[3]);
  return {};
}

std::string unknown_command(std::span<const std::string_view> words) {
  return "ERR unknown command " + quoted(words[0]) + ", with " + std::to_string(words.size() - 1) +
         " arguments";
}

}  // namespace sluice::kv
