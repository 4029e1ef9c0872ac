// SPDX-License-Identifier: BSD-3-Clause
#include "kv/store/command.hpp"

#include <charconv>
#include <limits>
#include <optional>
#include <string>

namespace sluice::kv {
namespace {

constexpr unsigned kNumberBits = 64;
constexpr std::size_t kHeaderBytes = 2;

void put_number(std::vector<std::byte>& out, std::uint64_t number) {
  for (; number >= 0x80; number >>= 7) out.push_back(static_cast<std::byte>(number | 0x80));
  out.push_back(static_cast<std::byte>(number));
}

void put_bytes(std::vector<std::byte>& out, std::string_view bytes) {
  const auto* const from = reinterpret_cast<const std::byte*>(bytes.data());
  out.insert(out.end(), from, from + bytes.size());
}

void put_string(std::vector<std::byte>& out, std::string_view bytes) {
  put_number(out, bytes.size());
  put_bytes(out, bytes);
}

void put_header(std::vector<std::byte>& out, CommandKind kind) {
  out.push_back(std::byte{kCommandVersion});
  out.push_back(static_cast<std::byte>(kind));
}

void must_fit(std::string_view key, std::string_view value = {}) {
  SLUICE_CHECK(key.size() <= kKeyBytesMax && value.size() <= kValueBytesMax,
               "a key or value is longer than a command can carry");
}

/// The next number in its shortest form; nullopt: there is none.
std::optional<std::uint64_t> take_number(std::string_view& rest) noexcept {
  std::uint64_t number = 0;
  for (unsigned shift = 0; shift < kNumberBits; shift += 7) {
    if (rest.empty()) return {};
    const auto byte = static_cast<std::uint8_t>(rest.front());
    rest.remove_prefix(1);
    const std::uint64_t bits = byte & 0x7f;
    if (shift > 0 && byte == 0) return {};  // a shorter form says the same
    if (shift + 7 > kNumberBits && bits >> (kNumberBits - shift)) return {};  // more than 64 bits
    number |= bits << shift;
    if (byte < 0x80) return number;
  }
  return {};
}

std::optional<std::string_view> take_string(std::string_view& rest, std::size_t most) noexcept {
  const auto size = take_number(rest);
  if (!size || *size > most || *size > rest.size()) return {};
  const std::string_view bytes = rest.substr(0, *size);
  rest.remove_prefix(*size);
  return bytes;
}

/// A number of 64 bits exactly as it would be printed: then it has one text only.
std::optional<std::int64_t> read_integer(std::string_view text) noexcept {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return {};
  const std::string_view digits = text.front() == '-' ? text.substr(1) : text;
  if (digits.front() == '0' && text.size() > 1) return {};
  return number;
}

}  // namespace

void encode_no_op(std::vector<std::byte>& out) {
  put_header(out, CommandKind::no_op);
}

void encode_set(std::vector<std::byte>& out, std::string_view key, std::string_view value) {
  must_fit(key, value);
  put_header(out, CommandKind::set);
  put_string(out, key);
  put_bytes(out, value);
}

void encode_del(std::vector<std::byte>& out, std::span<const std::string_view> keys) {
  SLUICE_CHECK(check_count(keys.size()).ok(), "a DEL of no key, or of too many");
  put_header(out, CommandKind::del);
  put_number(out, keys.size());
  for (const std::string_view key : keys) {
    must_fit(key);
    put_string(out, key);
  }
}

void encode_mset(std::vector<std::byte>& out, std::span<const KeyValue> pairs) {
  SLUICE_CHECK(check_count(pairs.size()).ok(), "an MSET of no key, or of too many");
  put_header(out, CommandKind::mset);
  put_number(out, pairs.size());
  for (const KeyValue& pair : pairs) {
    must_fit(pair.key, pair.value);
    put_string(out, pair.key);
    put_string(out, pair.value);
  }
}

void encode_incr_by(std::vector<std::byte>& out, std::string_view key, std::int64_t summand) {
  must_fit(key);
  put_header(out, CommandKind::incr_by);
  put_string(out, key);
  const auto bits = static_cast<std::uint64_t>(summand);
  put_number(out, summand < 0 ? ~(bits << 1) : bits << 1);
}

Status check_size(std::string_view key, std::string_view value) {
  if (key.size() > kKeyBytesMax)
    return {StatusCode::invalid_argument, "a key has " + std::to_string(key.size()) +
                                              " bytes; at most " + std::to_string(kKeyBytesMax)};
  if (value.size() > kValueBytesMax)
    return {StatusCode::invalid_argument, "a value has " + std::to_string(value.size()) +
                                              " bytes; at most " + std::to_string(kValueBytesMax)};
  return {};
}

Status check_count(std::size_t keys) {
  if (keys >= 1 && keys <= kCommandKeysMax) return {};
  return {StatusCode::invalid_argument, "a command with " + std::to_string(keys) + " keys; 1 to " +
                                            std::to_string(kCommandKeysMax)};
}

KeyValue Command::take_pair(std::string_view& rest) const noexcept {
  // Neither can fail: decode() has been through.
  const std::string_view key = *take_string(rest, kKeyBytesMax);
  switch (kind_) {
    case CommandKind::set: return {key, rest};
    case CommandKind::mset: return {key, *take_string(rest, kValueBytesMax)};
    default: return {key, {}};
  }
}

Result<Command> decode(std::span<const std::byte> payload) {
  const std::string_view all(reinterpret_cast<const char*>(payload.data()), payload.size());
  std::string_view rest = all;
  const auto malformed = [&](const char* what) {
    return Status(StatusCode::invalid_argument,
                  "a malformed command of " + std::to_string(all.size()) + " bytes: no " + what +
                      " before byte " + std::to_string(all.size() - rest.size()));
  };
  if (rest.empty()) return malformed("version");
  if (const auto version = static_cast<std::uint8_t>(rest.front()); version != kCommandVersion)
    return Status(StatusCode::not_supported, "a command of version " + std::to_string(version) +
                                                 "; this program reads version " +
                                                 std::to_string(kCommandVersion));
  if (rest.size() < kHeaderBytes ||
      static_cast<std::uint8_t>(rest[1]) > static_cast<std::uint8_t>(CommandKind::incr_by))
    return malformed("known kind");
  Command command;
  command.kind_ = static_cast<CommandKind>(rest[1]);
  rest.remove_prefix(kHeaderBytes);
  const bool counted = command.kind_ == CommandKind::del || command.kind_ == CommandKind::mset;
  if (counted) {
    const auto count = take_number(rest);
    if (!count || *count == 0 || *count > kCommandKeysMax) return malformed("valid count");
    command.count_ = static_cast<std::size_t>(*count);
  } else if (command.kind_ != CommandKind::no_op) {
    command.count_ = 1;
  }
  command.body_ = rest;
  for (std::size_t i = 0; i < command.count_; ++i) {  // bound: each key has a byte at least
    if (!take_string(rest, kKeyBytesMax)) return malformed("whole key");
    if (command.kind_ == CommandKind::mset && !take_string(rest, kValueBytesMax))
      return malformed("whole value");
  }
  if (command.kind_ == CommandKind::set) {
    if (rest.size() > kValueBytesMax) return malformed("value short enough");
    rest = {};
  }
  if (command.kind_ == CommandKind::incr_by) {
    const auto zigzag = take_number(rest);
    if (!zigzag) return malformed("valid summand");
    command.summand_ = static_cast<std::int64_t>((*zigzag >> 1) ^ (0 - (*zigzag & 1)));
  }
  if (!rest.empty()) return malformed("end");
  return command;
}

std::string_view Outcome::error() const noexcept {
  switch (kind) {
    case Kind::not_an_integer: return "ERR value is not an integer or out of range";
    case Kind::overflow: return "ERR increment or decrement would overflow";
    default: return {};
  }
}

Outcome increment(const std::string_view* value, std::int64_t summand) noexcept {
  std::int64_t sum = 0;
  if (value != nullptr) {
    const auto now = read_integer(*value);
    if (!now) return {Outcome::Kind::not_an_integer, 0};
    sum = *now;
  }
  if (__builtin_add_overflow(sum, summand, &sum)) return {Outcome::Kind::overflow, 0};
  return {Outcome::Kind::integer, sum};
}

}  // namespace sluice::kv
