// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sluice::kv {

enum class CommandId : std::uint8_t {
  // answered by the front end
  ping,
  echo,
  quit,
  auth,
  hello,
  select,
  client,
  command,
  config,
  durability,
  // for the CommandHandler
  set,
  get,
  del,
  exists,
  mset,
  mget,
  incr,
  info,
  wait,
};

/// What a command is, as COMMAND shows it.
struct CommandSpec {
  enum Flag : std::uint8_t {
    kWrite = 1,     ///< changes data
    kRead = 2,      ///< reads data
    kAdmin = 4,     ///< about the server
    kNoAuth = 8,    ///< allowed before the password
    kHandler = 16,  ///< the CommandHandler answers
    kFast = 32,     ///< takes constant time
  };

  CommandId id;
  std::string_view name;
  int arity;  ///< words with the name; negative: at least that many
  std::uint8_t flags;
  int first_key, last_key, key_step;  ///< positions of keys; last_key negative: from the end
  std::string_view group, summary;

  [[nodiscard]] bool has(Flag flag) const noexcept { return (flags & flag) != 0; }
};

/// All commands, sorted by name.
[[nodiscard]] std::span<const CommandSpec> command_table() noexcept;

/// The command of that name in any case; nullptr if there is none.
[[nodiscard]] const CommandSpec* find_command(std::string_view name) noexcept;

/// Empty if so many words, these, can be this command; else the error to reply, with its code.
[[nodiscard]] std::string check_words(const CommandSpec& spec,
                                      std::span<const std::string_view> words);

/// "ERR unknown command ..." for these words.
[[nodiscard]] std::string unknown_command(std::span<const std::string_view> words);

}  // namespace sluice::kv
