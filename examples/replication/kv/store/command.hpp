// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sluice/core/status.hpp"

/// Write commands as they stand in the payload of a log entry.
///
///     byte 0   the encoding's version (kCommandVersion)
///     byte 1   the kind (CommandKind)
///     then     no_op:    nothing
///              set:      key, and the value up to the end
///              del:      count, then so many keys
///              mset:     count, then so many times key and value
///              incr_by:  key, and the summand as a zigzag number
///
/// Keys, and the values of mset, are a length and so many bytes. Counts, lengths and summands are
/// LEB128 numbers in their shortest form, so each command has one encoding only. A command that
/// cannot be read whole, or that has bytes left, is malformed.
namespace sluice::kv {

inline constexpr std::uint8_t kCommandVersion = 1;
inline constexpr std::size_t kKeyBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kValueBytesMax = std::size_t{512} << 20;  ///< as in Redis
inline constexpr std::size_t kCommandKeysMax = std::size_t{1} << 20;   ///< of DEL and MSET

enum class CommandKind : std::uint8_t {
  no_op = 0,    ///< changes nothing but the position: a new primary's first entry
  set = 1,      ///< SET key value
  del = 2,      ///< DEL key...: a key named twice counts once
  mset = 3,     ///< MSET key value...: of a key named twice the last value stays
  incr_by = 4,  ///< INCRBY key summand, and INCR, DECR, DECRBY
};

struct KeyValue {
  std::string_view key;
  std::string_view value;
};

/// Appends the encoded command to `out`. The sizes stand under the limits above, and DEL and MSET
/// name a key at least: anything else stops the program (whoever took the command from a client
/// has checked it with check_size()).
void encode_no_op(std::vector<std::byte>& out);
void encode_set(std::vector<std::byte>& out, std::string_view key, std::string_view value);
void encode_del(std::vector<std::byte>& out, std::span<const std::string_view> keys);
void encode_mset(std::vector<std::byte>& out, std::span<const KeyValue> pairs);
void encode_incr_by(std::vector<std::byte>& out, std::string_view key, std::int64_t summand);

/// Whether these can be encoded; the message is for the client.
[[nodiscard]] Status check_size(std::string_view key, std::string_view value = {});
[[nodiscard]] Status check_count(std::size_t keys);

/// A decoded command: looks into the payload it was decoded from, which must stay.
/// Thread-safety: a value. Cost: no allocation.
class Command {
 public:
  [[nodiscard]] CommandKind kind() const noexcept { return kind_; }
  /// Keys it names: 0 for no_op.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] std::int64_t summand() const noexcept { return summand_; }  ///< of incr_by
  /// Its keys in their order, with their values where it has some: `void(const KeyValue&)`.
  template <typename F>
  void each(F&& function) const {
    std::string_view rest = body_;
    for (std::size_t i = 0; i < count_; ++i) function(take_pair(rest));
  }

 private:
  friend Result<Command> decode(std::span<const std::byte> payload);
  [[nodiscard]] KeyValue take_pair(std::string_view& rest) const noexcept;
  CommandKind kind_ = CommandKind::no_op;
  std::size_t count_ = 0;
  std::int64_t summand_ = 0;
  std::string_view body_;  ///< checked: the keys and values
};

/// Reads a payload from a log or from the network: anything may stand in it. invalid_argument: it
/// is malformed; not_supported: it is of another version. The message says which, and where.
[[nodiscard]] Result<Command> decode(std::span<const std::byte> payload);

/// What a command answers, the same wherever the same log was applied.
struct Outcome {
  enum class Kind : std::uint8_t {
    ok,              ///< SET, MSET, no-op
    integer,         ///< DEL: keys removed; INCR: the new value
    not_an_integer,  ///< INCR: the value there is none, or not one of 64 bits
    overflow,        ///< INCR: the sum would not be one of 64 bits
  };
  Kind kind = Kind::ok;
  std::int64_t integer = 0;
  [[nodiscard]] bool failed() const noexcept { return kind > Kind::integer; }
  /// What Redis says: "ERR value is not an integer or out of range". Empty unless failed.
  [[nodiscard]] std::string_view error() const noexcept;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

/// Adds as INCRBY does. `value`: what the key holds; nullptr: it is not there, which counts as 0.
/// Numbers are read as Redis reads them: digits, a minus, nothing else; no leading zero, no "-0".
[[nodiscard]] Outcome increment(const std::string_view* value, std::int64_t summand) noexcept;

}  // namespace sluice::kv
