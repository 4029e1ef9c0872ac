// SPDX-License-Identifier: BSD-3-Clause
#include "resp/front_commands.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "resp/command_table.hpp"

namespace sluice::kv::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

/// Refuses one level, as a node without replicas does.
class Handler : public CommandHandler {
 public:
  void handle(const Request&, Ticket) noexcept override { ADD_FAILURE() << "not for the handler"; }
  Status set_durability(ConnectionState& connection, Durability level) override {
    if (level == Durability::all_disk)
      return {StatusCode::not_supported, "there are no replicas to wait for"};
    return CommandHandler::set_durability(connection, level);
  }
};

class FrontCommandsTest : public testing::Test {
 protected:
  std::string ask(std::vector<std::string_view> words) {
    const CommandSpec* const spec = find_command(words[0]);
    if (spec == nullptr) return unknown_command(words);
    if (const std::string wrong = check_words(*spec, words); !wrong.empty()) return wrong;
    std::string out;
    after_ =
        FrontCommands(options_, handler_).answer({*spec, words, connection_}, ReplyBuilder(out));
    return out;
  }

  ServerOptions options_;
  Handler handler_;
  ConnectionState connection_{.id = 7, .authenticated = true};
  FrontCommands::After after_ = FrontCommands::After::go_on;
};

TEST(CommandTable, FindsNamesInAnyCase) {
  ASSERT_NE(find_command("mGeT"), nullptr);
  EXPECT_EQ(find_command("mGeT")->id, CommandId::mget);
  EXPECT_EQ(find_command("mgets"), nullptr);
  EXPECT_EQ(find_command(""), nullptr);
  for (const CommandSpec& spec : command_table()) EXPECT_EQ(find_command(spec.name), &spec);
}

TEST(CommandTable, ChecksTheNumberOfWords) {
  const auto check = [](std::vector<std::string_view> words) {
    return check_words(*find_command(words[0]), words);
  };
  EXPECT_EQ(check({"get", "k"}), "");
  EXPECT_EQ(check({"GET"}), "ERR wrong number of arguments for 'get' command");
  EXPECT_EQ(check({"get", "k", "x"}), "ERR wrong number of arguments for 'get' command");
  EXPECT_EQ(check({"del", "a", "b", "c"}), "");
  EXPECT_EQ(check({"del"}), "ERR wrong number of arguments for 'del' command");
  EXPECT_EQ(check({"mset", "a", "1", "b", "2"}), "");
  EXPECT_EQ(check({"mset", "a", "1", "b"}), "ERR wrong number of arguments for 'mset' command");
  EXPECT_EQ(check({"set", "k", "v"}), "");
  EXPECT_THAT(check({"set", "k", "v", "EX", "9"}), StartsWith("ERR syntax error"));
  EXPECT_EQ(check({"wait", "1", "0"}), "");
}

TEST(CommandTable, AnUnknownCommandIsNamedButNotAtLength) {
  const std::string long_name(5000, 'x');
  const std::vector<std::string_view> words{long_name, "a"};
  EXPECT_THAT(unknown_command(words), StartsWith("ERR unknown command 'xxx"));
  EXPECT_LT(unknown_command(words).size(), 200U);
}

TEST_F(FrontCommandsTest, AnswersWhatNeedsNoData) {
  EXPECT_EQ(ask({"PING"}), "+PONG\r\n");
  EXPECT_EQ(ask({"ping", "hi"}), "$2\r\nhi\r\n");
  EXPECT_EQ(ask({"ping", "a", "b"}), "-ERR wrong number of arguments for 'ping' command\r\n");
  EXPECT_EQ(ask({"echo", "x"}), "$1\r\nx\r\n");
  EXPECT_EQ(ask({"select", "0"}), "+OK\r\n");
  EXPECT_THAT(ask({"select", "1"}), StartsWith("-ERR "));
  EXPECT_EQ(after_, FrontCommands::After::go_on);
  EXPECT_EQ(ask({"quit"}), "+OK\r\n");
  EXPECT_EQ(after_, FrontCommands::After::close);
}

TEST_F(FrontCommandsTest, KnowsItsClient) {
  EXPECT_EQ(ask({"client", "id"}), ":7\r\n");
  EXPECT_EQ(ask({"client", "getname"}), "$-1\r\n");
  EXPECT_EQ(ask({"client", "setname", "loader"}), "+OK\r\n");
  EXPECT_EQ(ask({"client", "getname"}), "$6\r\nloader\r\n");
  EXPECT_THAT(ask({"client", "setname", "a b"}), StartsWith("-ERR "));
  EXPECT_THAT(ask({"client", "setname", std::string(129, 'x')}), StartsWith("-ERR "));
  EXPECT_EQ(ask({"client", "setinfo", "lib-name", "x"}), "+OK\r\n");
  EXPECT_THAT(ask({"client", "kill"}), HasSubstr("no subcommand 'kill'"));
  EXPECT_EQ(connection_.name, "loader");
}

TEST_F(FrontCommandsTest, DescribesItsCommands) {
  const auto count = std::to_string(command_table().size());
  EXPECT_EQ(ask({"command", "count"}), ":" + count + "\r\n");
  EXPECT_THAT(ask({"command"}), StartsWith("*" + count + "\r\n*10\r\n"));
  EXPECT_THAT(ask({"command", "docs", "GET"}),
              StartsWith("*2\r\n$3\r\nget\r\n*6\r\n$7\r\nsummary"));
  EXPECT_EQ(ask({"command", "docs", "nothing"}), "*0\r\n");
  EXPECT_THAT(ask({"command", "info", "set", "nothing"}), testing::EndsWith("$-1\r\n"));
  EXPECT_THAT(ask({"command", "list"}), HasSubstr("$4\r\nmget\r\n"));
  EXPECT_THAT(ask({"command", "getkeys"}), StartsWith("-ERR "));
}

TEST_F(FrontCommandsTest, ShowsItsConfiguration) {
  options_.config = {{"appendonly", "no"}, {"cluster-id", "c1"}};
  options_.clients_max = 12;
  EXPECT_EQ(ask({"config", "get", "SAVE"}), "*2\r\n$4\r\nsave\r\n$0\r\n\r\n");
  EXPECT_EQ(ask({"config", "get", "appendonly"}), "*2\r\n$10\r\nappendonly\r\n$2\r\nno\r\n");
  EXPECT_EQ(ask({"config", "get", "maxc*"}), "*2\r\n$10\r\nmaxclients\r\n$2\r\n12\r\n");
  EXPECT_EQ(ask({"config", "get", "nothing"}), "*0\r\n");
  EXPECT_THAT(ask({"config", "get", "*"}), HasSubstr("cluster-id"));
  EXPECT_THAT(ask({"config", "get", "save", "maxmemory"}), StartsWith("*4\r\n"));
  EXPECT_THAT(ask({"config", "rewrite"}), StartsWith("-ERR "));
}

TEST_F(FrontCommandsTest, SetsTheDurabilityOfAConnection) {
  EXPECT_EQ(ask({"durability"}), "$6\r\nmemory\r\n");
  EXPECT_EQ(ask({"durability", "QUORUM_DISK"}), "+OK\r\n");
  EXPECT_EQ(connection_.durability, Durability::quorum_disk);
  EXPECT_EQ(ask({"config", "set", "durability", "local_disk"}), "+OK\r\n");
  EXPECT_EQ(connection_.durability, Durability::local_disk);
  EXPECT_THAT(ask({"config", "get", "durability"}), HasSubstr("local_disk"));
  EXPECT_THAT(ask({"durability", "solid"}), HasSubstr("memory, local_disk, quorum_memory"));
  EXPECT_EQ(ask({"durability", "all_disk"}), "-ERR there are no replicas to wait for\r\n");
  EXPECT_EQ(connection_.durability, Durability::local_disk);
  EXPECT_THAT(ask({"config", "set", "maxmemory", "1"}), StartsWith("-ERR "));
  EXPECT_THAT(ask({"durability", "a", "b"}), StartsWith("-ERR wrong number"));
}

TEST_F(FrontCommandsTest, AsksForThePassword) {
  options_.requirepass = "secret";
  connection_.authenticated = false;
  EXPECT_THAT(ask({"auth", "secret1"}), StartsWith("-WRONGPASS "));
  EXPECT_THAT(ask({"auth", "secreT"}), StartsWith("-WRONGPASS "));
  EXPECT_THAT(ask({"auth", ""}), StartsWith("-WRONGPASS "));
  EXPECT_THAT(ask({"auth", "root", "secret"}), StartsWith("-WRONGPASS "));
  EXPECT_THAT(ask({"hello"}), StartsWith("-NOAUTH "));
  EXPECT_FALSE(connection_.authenticated);
  EXPECT_EQ(ask({"auth", "default", "secret"}), "+OK\r\n");
  EXPECT_TRUE(connection_.authenticated);
}

TEST_F(FrontCommandsTest, AuthWithoutAPasswordIsAnError) {
  EXPECT_THAT(ask({"auth", "x"}), StartsWith("-ERR "));
}

TEST_F(FrontCommandsTest, SaysHelloInVersion2Only) {
  options_.requirepass = "secret";
  connection_.authenticated = false;
  EXPECT_THAT(ask({"hello", "3"}), StartsWith("-NOPROTO "));
  EXPECT_THAT(ask({"hello", "2", "auth", "default", "wrong"}), StartsWith("-WRONGPASS "));
  EXPECT_THAT(ask({"hello", "2", "auth", "default", "secret", "setname", "me"}),
              StartsWith("*8\r\n"));
  EXPECT_TRUE(connection_.authenticated);
  EXPECT_EQ(connection_.name, "me");
  EXPECT_THAT(ask({"hello", "2", "what"}), StartsWith("-ERR "));
}

}  // namespace
}  // namespace sluice::kv::test
