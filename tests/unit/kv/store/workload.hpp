// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kv/store/store.hpp"

/// A log that is a function of its seed: the process that is killed and the one that judges what
/// it left make the same entries, and neither has to keep them.
namespace sluice::kv::test {

/// A write command before it is encoded.
struct Write {
  CommandKind kind = CommandKind::no_op;
  std::vector<std::string> keys;
  std::vector<std::string> values;  ///< of set and mset
  std::int64_t summand = 0;

  [[nodiscard]] std::vector<std::byte> encode() const {
    std::vector<std::byte> out;
    std::vector<std::string_view> views(keys.begin(), keys.end());
    std::vector<KeyValue> pairs;
    for (std::size_t i = 0; i < values.size(); ++i) pairs.push_back({keys[i], values[i]});
    switch (kind) {
      case CommandKind::no_op: encode_no_op(out); break;
      case CommandKind::set: encode_set(out, keys[0], values[0]); break;
      case CommandKind::del: encode_del(out, views); break;
      case CommandKind::mset: encode_mset(out, pairs); break;
      case CommandKind::incr_by: encode_incr_by(out, keys[0], summand); break;
    }
    return out;
  }
};

/// Few keys, so that they meet; numbers at the ends of their range; values of up to
/// `value_bytes_max` bytes.
inline Write random_write(std::mt19937_64& random, std::size_t value_bytes_max) {
  const auto below = [&](std::uint64_t end) { return random() % end; };
  const auto key = [&] {
    return below(12) == 0 ? std::string() : "key" + std::to_string(below(40));
  };
  const auto value = [&]() -> std::string {
    switch (below(4)) {
      case 0: return std::to_string(static_cast<std::int64_t>(below(2000)) - 1000);
      case 1: return below(2) == 0 ? "9223372036854775807" : "-9223372036854775808";
      default: return std::string(below(value_bytes_max + 1), static_cast<char>(below(256)));
    }
  };
  Write write;
  write.kind = static_cast<CommandKind>(below(5));
  const bool many = write.kind == CommandKind::del || write.kind == CommandKind::mset;
  const bool values = write.kind == CommandKind::set || write.kind == CommandKind::mset;
  if (write.kind == CommandKind::no_op) return write;
  for (std::uint64_t i = 0, count = many ? 1 + below(4) : 1; i < count; ++i) {
    write.keys.push_back(key());
    if (values) write.values.push_back(value());
  }
  if (write.kind == CommandKind::incr_by) write.summand = static_cast<std::int64_t>(below(7)) - 3;
  return write;
}

inline Write write_at(std::uint64_t seed, std::uint64_t index, std::size_t value_bytes_max) {
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15U + index);
  return random_write(random, value_bytes_max);
}

/// Epochs rise now and then, as leaders change.
inline std::uint64_t epoch_at(std::uint64_t index) {
  return 1 + index / 100;
}

/// What a store should hold, in a std::map, by other means than the store's.
class Model {
 public:
  Outcome apply(const Write& write) {
    switch (write.kind) {
      case CommandKind::no_op: return {};
      case CommandKind::set:
      case CommandKind::mset:
        for (std::size_t i = 0; i < write.keys.size(); ++i)
          content[write.keys[i]] = write.values[i];
        return {};
      case CommandKind::del: {
        std::int64_t removed = 0;
        for (const auto& key : write.keys) removed += static_cast<std::int64_t>(content.erase(key));
        return {Outcome::Kind::integer, removed};
      }
      case CommandKind::incr_by: return add(write.keys[0], write.summand);
    }
    return {};
  }
  std::map<std::string, std::string> content;

 private:
  Outcome add(const std::string& key, std::int64_t summand) {
    __int128 sum = summand;
    if (const auto at = content.find(key); at != content.end()) {
      char* end = nullptr;
      errno = 0;
      const long long number = std::strtoll(at->second.c_str(), &end, 10);
      // A number is what prints to itself.
      if (errno != 0 || std::to_string(number) != at->second)
        return {Outcome::Kind::not_an_integer, 0};
      sum += number;
    }
    const auto result = static_cast<std::int64_t>(sum);
    if (result != sum) return {Outcome::Kind::overflow, 0};
    content[key] = std::to_string(result);
    return {Outcome::Kind::integer, result};
  }
};

}  // namespace sluice::kv::test
