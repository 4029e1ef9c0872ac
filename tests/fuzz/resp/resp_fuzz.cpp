// SPDX-License-Identifier: BSD-3-Clause
// Reads arbitrary bytes as a client's requests, cut at arbitrary places. Nothing may crash; how
// they are cut may change nothing; memory stays within the limits; and a request that was taken
// must come back the same when it is written as an array.
//
// The input: the first byte says how many of the next ones are lengths of pieces, used in turn; the
// rest is what the client sends.
// Run it with -dict=tests/fuzz/resp/resp.dict on a copy of tests/fuzz/resp/corpus.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "resp/request_parser.hpp"

namespace {

using sluice::kv::RequestLimits;
using sluice::kv::RequestParser;
using Words = std::vector<std::string>;

/// Small, so that inputs of some hundred bytes meet each of them.
constexpr RequestLimits kLimits{
    .words_max = 8, .word_bytes_max = 64, .request_bytes_max = 128, .inline_bytes_max = 96};
/// Buffers that are kept, and what allocators and vectors round up to.
constexpr std::size_t kMemoryMax = 64 << 10;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

struct Outcome {
  std::vector<Words> requests;
  std::string error;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

void take(RequestParser& parser, std::string_view piece, Outcome& out) {
  parser.feed(piece);
  for (;;) {
    const RequestParser::Step step = parser.next();
    require(parser.memory_bytes() < kMemoryMax + 4 * piece.size(), "it holds too much memory");
    if (step == RequestParser::Step::need_more) return;
    if (step == RequestParser::Step::malformed) {
      out.error = parser.error();
      require(!out.error.empty(), "an error without a text");
      return;
    }
    require(!parser.words().empty(), "a request without a word");
    require(parser.words().size() <= kLimits.words_max, "a request of too many words");
    out.requests.emplace_back(parser.words().begin(), parser.words().end());
  }
}

Outcome parse(std::string_view bytes, std::string_view lengths) {
  RequestParser parser(kLimits);
  Outcome out;
  if (lengths.empty()) {
    take(parser, bytes, out);
    return out;
  }
  for (std::size_t i = 0; !bytes.empty(); ++i) {
    const auto length = static_cast<std::uint8_t>(lengths[i % lengths.size()]);
    const std::string_view piece = bytes.substr(0, std::size_t{length} + 1);
    bytes.remove_prefix(piece.size());
    take(parser, piece, out);
  }
  return out;
}

std::string encoded(const Words& words) {
  std::string out = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string& word : words)
    out += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.empty()) return 0;
  const std::string_view lengths = bytes.substr(1, static_cast<std::uint8_t>(bytes[0]) % 8);
  bytes.remove_prefix(1 + lengths.size());
  const Outcome whole = parse(bytes, {});
  require(parse(bytes, lengths) == whole, "how the bytes are cut makes a difference");
  require(parse(bytes, std::string_view("\0", 1)) == whole, "byte by byte it is not the same");
  for (const Words& words : whole.requests) {
    std::size_t longest = 0, all = 0;
    for (const std::string& word : words) {
      longest = std::max(longest, word.size());
      all += word.size();
    }
    // A line may have longer words than an array.
    if (longest > kLimits.word_bytes_max || all > kLimits.request_bytes_max) continue;
    const Outcome again = parse(encoded(words), lengths);
    require(again.error.empty() && again.requests == std::vector<Words>{words},
            "a request does not come back");
  }
  return 0;
}
