// SPDX-License-Identifier: BSD-3-Clause
// Decodes arbitrary bytes as a write command. Nothing may crash; what is taken looks into the bytes
// that were given and nowhere else, and encodes to the very same bytes again.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kv/store/command.hpp"

namespace {

using namespace sluice::kv;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

std::vector<std::byte> encode_again(const Command& command) {
  std::vector<KeyValue> pairs;
  command.each([&](const KeyValue& pair) { pairs.push_back(pair); });
  require(pairs.size() == command.count(), "each() and count() differ");
  std::vector<std::string_view> keys;
  for (const KeyValue& pair : pairs) keys.push_back(pair.key);
  std::vector<std::byte> out;
  switch (command.kind()) {
    case CommandKind::no_op: encode_no_op(out); break;
    case CommandKind::set: encode_set(out, pairs[0].key, pairs[0].value); break;
    case CommandKind::del: encode_del(out, keys); break;
    case CommandKind::mset: encode_mset(out, pairs); break;
    case CommandKind::incr_by: encode_incr_by(out, pairs[0].key, command.summand()); break;
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // In memory of exactly this size, so that a read beyond it is seen.
  const std::vector<std::byte> payload(reinterpret_cast<const std::byte*>(data),
                                       reinterpret_cast<const std::byte*>(data) + size);
  const auto command = decode(payload);
  if (!command) {
    require(!command.status().message().empty(), "refused without a reason");
    return 0;
  }
  command->each([&](const KeyValue& pair) {
    const auto* const begin = reinterpret_cast<const char*>(payload.data());
    for (const std::string_view part : {pair.key, pair.value})
      require(part.empty() || (part.data() >= begin && part.data() + part.size() <= begin + size),
              "a key or value lies elsewhere");
    (void)increment(&pair.value, command->summand());
    (void)increment(&pair.key, command->summand());
  });
  require(std::ranges::equal(encode_again(*command), payload), "it encodes to other bytes");
  return 0;
}
