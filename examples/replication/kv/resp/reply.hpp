// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::kv {

/// Appends RESP2 replies to a buffer of bytes (https://redis.io/docs/reference/protocol-spec).
/// What is appended is well formed, whatever text goes in.
///
/// Threads: one. Cost: a few bytes copied; memory only when the buffer has to grow.
class ReplyBuilder {
 public:
  explicit ReplyBuilder(std::string& out) noexcept : out_(&out) {}

  /// "+text". Line ends inside become spaces.
  ReplyBuilder& simple(std::string_view text);
  /// "-text"; begin with a code in capitals: "ERR ...", "MOVED ...". Line ends become spaces.
  ReplyBuilder& error(std::string_view text);
  /// ":value".
  ReplyBuilder& integer(std::int64_t value);
  /// Any bytes, with their length in front.
  ReplyBuilder& bulk(std::string_view bytes);
  /// The absent value.
  ReplyBuilder& null();
  /// The head of an array: that many replies have to follow.
  ReplyBuilder& array(std::size_t elements);

  ReplyBuilder& ok() { return simple("OK"); }

 private:
  void line(char type, std::string_view text);
  void number(char type, std::int64_t value);

  std::string* out_;
};

}  // namespace sluice::kv
