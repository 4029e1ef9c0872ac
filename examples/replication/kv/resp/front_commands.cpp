// SPDX-License-Identifier: BSD-3-Clause
#include "resp/front_commands.hpp"

#include <fnmatch.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "resp/text.hpp"

namespace sluice::kv {
namespace {

constexpr std::size_t kNameBytesMax = 128;
/// Settings have short names; a long pattern only costs time.
constexpr std::size_t kPatternBytesMax = 64;
constexpr std::string_view kOnlyUser = "default";

void wrong_number(const CommandSpec& spec, ReplyBuilder reply) {
  reply.error("ERR wrong number of arguments for '" + std::string(spec.name) + "' command");
}

void unknown_subcommand(std::string_view command, std::string_view word, ReplyBuilder reply) {
  reply.error("ERR " + std::string(command) + " has no subcommand " + quoted(word) +
              ", or not with so many arguments");
}

bool is_clean_name(std::string_view name) {
  return name.size() <= kNameBytesMax &&
         std::ranges::all_of(name, [](char c) { return c > ' ' && c <= '~'; });
}

/// One element of COMMAND's reply, in the form of Redis 7.
void describe(const CommandSpec& spec, ReplyBuilder reply) {
  std::vector<std::string_view> flags;
  if (spec.has(CommandSpec::kWrite)) flags.emplace_back("write");
  if (spec.has(CommandSpec::kRead)) flags.emplace_back("readonly");
  if (spec.has(CommandSpec::kAdmin)) flags.emplace_back("admin");
  if (spec.has(CommandSpec::kNoAuth)) flags.emplace_back("no_auth");
  if (spec.has(CommandSpec::kFast)) flags.emplace_back("fast");
  reply.array(10).bulk(spec.name).integer(spec.arity);
  reply.array(flags.size());
  for (const std::string_view flag : flags) reply.simple(flag);
  reply.integer(spec.first_key).integer(spec.last_key).integer(spec.key_step);
  // ACL categories, tips, key specifications, subcommands: none.
  reply.array(0).array(0).array(0).array(0);
}

/// Name and documentation of a command: two elements of COMMAND DOCS's reply.
void document(const CommandSpec& spec, ReplyBuilder reply) {
  reply.bulk(spec.name);
  reply.array(6).bulk("summary").bulk(spec.summary);
  reply.bulk("since").bulk("0.1.0").bulk("group").bulk(spec.group);
}

}  // namespace

FrontCommands::After FrontCommands::answer(const Request& request, ReplyBuilder reply) const {
  const Words words = request.words;
  ConnectionState& connection = request.connection;
  switch (request.command.id) {
    case CommandId::ping: ping(words, reply); break;
    case CommandId::echo: reply.bulk(words[1]); break;
    case CommandId::quit: reply.ok(); return After::close;
    case CommandId::auth: auth(words, connection, reply); break;
    case CommandId::hello: hello(words, connection, reply); break;
    case CommandId::select:
      words[1] == "0" ? reply.ok() : reply.error("ERR there is one database, number 0");
      break;
    case CommandId::client: client(words, connection, reply); break;
    case CommandId::command: command(words, reply); break;
    case CommandId::config: config(words, connection, reply); break;
    case CommandId::durability:
      if (words.size() == 1)
        reply.bulk(to_string(connection.durability));
      else if (words.size() == 2)
        set_durability(words[1], connection, reply);
      else
        wrong_number(request.command, reply);
      break;
    default: fail_programmer_error(__FILE__, __LINE__, "the handler's command came here");
  }
  return After::go_on;
}

void FrontCommands::ping(Words words, ReplyBuilder reply) const {
  if (words.size() == 1)
    reply.simple("PONG");
  else if (words.size() == 2)
    reply.bulk(words[1]);
  else
    wrong_number(*find_command("ping"), reply);
}

std::string_view FrontCommands::log_in(std::string_view user, std::string_view password,
                                       ConnectionState& connection) const {
  const std::string& wanted = options_.requirepass;
  // The comparison takes as long for a password that is nearly right as for any other.
  if (user != kOnlyUser || password.size() != wanted.size() ||
      CRYPTO_memcmp(password.data(), wanted.data(), wanted.size()) != 0)
    return "WRONGPASS there is no such user with that password";
  connection.authenticated = true;
  return {};
}

void FrontCommands::auth(Words words, ConnectionState& connection, ReplyBuilder reply) const {
  if (words.size() > 3) return wrong_number(*find_command("auth"), reply);
  if (options_.requirepass.empty()) {
    reply.error("ERR AUTH was sent, but this server asks for no password");
    return;
  }
  const bool named = words.size() == 3;
  const std::string_view failed =
      log_in(named ? words[1] : kOnlyUser, words[named ? 2 : 1], connection);
  failed.empty() ? reply.ok() : reply.error(failed);
}

void FrontCommands::hello(Words words, ConnectionState& connection, ReplyBuilder reply) const {
  if (words.size() > 1 && words[1] != "2") {
    reply.error("NOPROTO this server speaks version 2 of the protocol");
    return;
  }
  std::string_view name = connection.name;
  for (std::size_t at = 2; at < words.size();) {
    if (same_word(words[at], "AUTH") && at + 2 < words.size()) {
      if (!options_.requirepass.empty()) {
        const std::string_view failed = log_in(words[at + 1], words[at + 2], connection);
        if (!failed.empty()) {
          reply.error(failed);
          return;
        }
      }
      at += 3;
    } else if (same_word(words[at], "SETNAME") && at + 1 < words.size() &&
               is_clean_name(words[at + 1])) {
      name = words[at + 1];
      at += 2;
    } else {
      reply.error("ERR HELLO does not understand " + quoted(words[at]));
      return;
    }
  }
  if (!connection.authenticated) {
    reply.error("NOAUTH Authentication required: HELLO 2 AUTH default password");
    return;
  }
  connection.name = std::string(name);
  reply.array(8).bulk("server").bulk("sluice-kv").bulk("proto").integer(2);
  reply.bulk("id").integer(static_cast<std::int64_t>(connection.id));
  reply.bulk("mode").bulk("standalone");
}

void FrontCommands::client(Words words, ConnectionState& connection, ReplyBuilder reply) const {
  const std::string_view sub = words[1];
  if (same_word(sub, "ID") && words.size() == 2) {
    reply.integer(static_cast<std::int64_t>(connection.id));
  } else if (same_word(sub, "GETNAME") && words.size() == 2) {
    connection.name.empty() ? reply.null() : reply.bulk(connection.name);
  } else if (same_word(sub, "SETNAME") && words.size() == 3) {
    if (!is_clean_name(words[2])) {
      reply.error("ERR a client's name is at most " + std::to_string(kNameBytesMax) +
                  " visible ASCII characters, without spaces");
      return;
    }
    connection.name = std::string(words[2]);
    reply.ok();
  } else if (same_word(sub, "SETINFO") && words.size() == 4) {
    reply.ok();  // the name of the client's library: of no use here
  } else {
    unknown_subcommand("CLIENT", sub, reply);
  }
}

void FrontCommands::command(Words words, ReplyBuilder reply) const {
  const auto all = command_table();
  if (words.size() == 1) {
    reply.array(all.size());
    for (const CommandSpec& spec : all) describe(spec, reply);
    return;
  }
  const std::string_view sub = words[1];
  const Words names = words.subspan(2);
  if (same_word(sub, "COUNT") && names.empty()) {
    reply.integer(static_cast<std::int64_t>(all.size()));
  } else if (same_word(sub, "LIST") && names.empty()) {
    reply.array(all.size());
    for (const CommandSpec& spec : all) reply.bulk(spec.name);
  } else if (same_word(sub, "INFO")) {
    reply.array(names.empty() ? all.size() : names.size());
    if (names.empty())
      for (const CommandSpec& spec : all) describe(spec, reply);
    for (const std::string_view name : names) {
      const CommandSpec* const spec = find_command(name);
      spec != nullptr ? describe(*spec, reply) : void(reply.null());
    }
  } else if (same_word(sub, "DOCS")) {
    std::vector<const CommandSpec*> shown;
    for (const CommandSpec& spec : all)
      if (names.empty() || std::ranges::any_of(names, [&](std::string_view name) {
            return same_word(name, spec.name);
          }))
        shown.push_back(&spec);
    reply.array(2 * shown.size());
    for (const CommandSpec* const spec : shown) document(*spec, reply);
  } else {
    unknown_subcommand("COMMAND", sub, reply);
  }
}

void FrontCommands::config(Words words, ConnectionState& connection, ReplyBuilder reply) const {
  const std::string_view sub = words[1];
  if (same_word(sub, "GET") && words.size() >= 3) {
    config_get(words.subspan(2), connection, reply);
  } else if (same_word(sub, "SET") && words.size() == 4) {
    if (same_word(words[2], "durability"))
      set_durability(words[3], connection, reply);
    else
      reply.error("ERR CONFIG SET changes durability alone, not " + quoted(words[2]));
  } else {
    unknown_subcommand("CONFIG", sub, reply);
  }
}

void FrontCommands::config_get(Words patterns, const ConnectionState& connection,
                               ReplyBuilder reply) const {
  std::vector<std::pair<std::string, std::string>> settings = options_.config;
  const auto or_default = [&](std::string name, std::string value) {
    if (std::ranges::find(settings, name, &std::pair<std::string, std::string>::first) ==
        settings.end())
      settings.emplace_back(std::move(name), std::move(value));
  };
  or_default("save", "");
  or_default("appendonly", "yes");
  or_default("maxmemory", "0");
  or_default("databases", "1");
  or_default("timeout", "0");
  or_default("maxclients", std::to_string(options_.clients_max));
  or_default("bind", options_.address);
  or_default("durability", std::string(to_string(connection.durability)));
  std::erase_if(settings, [&](const auto& setting) {
    return std::ranges::none_of(patterns, [&](std::string_view pattern) {
      return pattern.size() <= kPatternBytesMax &&
             fnmatch(std::string(pattern).c_str(), setting.first.c_str(), FNM_CASEFOLD) == 0;
    });
  });
  reply.array(2 * settings.size());
  for (const auto& [name, value] : settings) reply.bulk(name).bulk(value);
}

void FrontCommands::set_durability(std::string_view level, ConnectionState& connection,
                                   ReplyBuilder reply) const {
  const std::optional<Durability> wanted = parse_durability(level);
  if (!wanted) {
    std::string levels;
    for (const std::string_view name : kDurabilityNames)
      levels.append(levels.empty() ? "" : ", ").append(name);
    reply.error("ERR there is no durability level " + quoted(level) + "; there are: " + levels);
    return;
  }
  const Status set = handler_.set_durability(connection, *wanted);
  set.ok() ? reply.ok() : reply.error("ERR " + set.message());
}

}  // namespace sluice::kv
