// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "history.hpp"

struct redisContext;

namespace sluice::kv::test {

struct Address {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  bool operator==(const Address&) const = default;
  [[nodiscard]] std::string to_string() const { return host + ":" + std::to_string(port); }
  /// Of "HOST:PORT"; nothing if it is no such thing.
  [[nodiscard]] static std::optional<Address> parse(std::string_view text);
};

/// An answer as a client of Redis gets it.
struct Reply {
  enum class Type : std::uint8_t { null, text, integer, array, error };
  Type type = Type::null;
  std::string text;  ///< of a bulk or simple string, an error
  std::int64_t integer = 0;
  std::vector<Reply> elements;
  [[nodiscard]] bool is_error() const { return type == Type::error; }
  [[nodiscard]] bool is_error(std::string_view code) const;
  /// As the value of a key: nothing for null.
  [[nodiscard]] std::optional<std::string> value() const;
  /// For messages of tests.
  [[nodiscard]] std::string to_string() const;
};

using Words = std::vector<std::string>;

/// One connection, through hiredis; calls block. One thread at a time.
class Connection {
 public:
  /// `timeout`: for the connection to be made, and for each answer. Whether it was made:
  /// connected().
  explicit Connection(const Address& to,
                      std::chrono::milliseconds timeout = std::chrono::seconds{30});
  ~Connection();
  Connection(Connection&&) noexcept;
  Connection& operator=(Connection&&) noexcept;
  [[nodiscard]] bool connected() const { return context_ != nullptr; }
  /// Sends and waits for the answer. Nothing: the connection was cut, or the time is over, and the
  /// request may have been sent; the connection is of no more use.
  [[nodiscard]] std::optional<Reply> call(const Words& words);
  /// Puts a request in front of what the next receive() or call() sends.
  void send_later(const Words& words);
  /// Sends what send_later() was given, without waiting for the answers.
  void flush();
  [[nodiscard]] std::optional<Reply> receive();

 private:
  struct Free {
    void operator()(redisContext* context) const noexcept;
  };
  std::unique_ptr<redisContext, Free> context_;
};

/// INFO as "key:value" lines; a key that is not there is an empty text.
class Info {
 public:
  Info() = default;
  explicit Info(const std::string& text);
  [[nodiscard]] std::string operator[](std::string_view key) const;
  [[nodiscard]] std::uint64_t number(std::string_view key) const;
  /// The members of a list "a,b,c".
  [[nodiscard]] std::vector<std::string> list(std::string_view key) const;
  /// Of the primary's line "replicaN:node=NODE,state=...": the value of `field`. Empty if there is
  /// no line of that node.
  [[nodiscard]] std::string replica(std::string_view node, std::string_view field) const;
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

struct ClientOptions {
  std::vector<Address> nodes;  ///< at least one
  std::string password, durability;
  /// For each answer of a node. What has no answer by then is of unknown outcome.
  std::chrono::milliseconds answer_timeout{2000};
  /// For an operation as a whole, with all it is tried again.
  std::chrono::milliseconds patience = std::chrono::seconds{60};
};

/// What became of an operation that may have been tried several times.
struct Answer {
  Outcome outcome = Outcome::failed;
  Reply reply;  ///< the last one
  [[nodiscard]] bool ok() const { return outcome == Outcome::ok; }
};

/// A client of the cluster: it finds the primary, follows MOVED, and tries again when it is told
/// that nothing was done (CLUSTERDOWN, NOREPLICAS, MOVED, no connection). A write whose fate it
/// does not know it does not try again; a read it does. One thread at a time.
class ClusterClient {
 public:
  explicit ClusterClient(ClientOptions options) : options_(std::move(options)) {}
  [[nodiscard]] Answer write(const Words& words) { return run(words, false); }
  [[nodiscard]] Answer read(const Words& words) { return run(words, true); }
  /// Which node it speaks to now.
  [[nodiscard]] const Address& node() const { return options_.nodes[at_]; }

 private:
  [[nodiscard]] Answer run(const Words& words, bool again_if_unknown);
  /// Nothing: there is a connection, ready for use. Else why not.
  [[nodiscard]] std::optional<Reply> connect();
  void go_to(const Address& node);
  void go_to_another();

  ClientOptions options_;
  std::size_t at_ = 0;
  std::optional<Connection> connection_;
};

}  // namespace sluice::kv::test
