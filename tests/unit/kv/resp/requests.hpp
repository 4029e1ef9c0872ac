// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "resp/request_parser.hpp"

namespace sluice::kv::test {

using Words = std::vector<std::string>;

/// A request as an array of bulk strings.
inline std::string encoded(const Words& words) {
  std::string out = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string& word : words)
    out += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
  return out;
}

/// All that a parser made of some bytes.
struct Outcome {
  std::vector<Words> requests;
  std::string error;  ///< empty: it wants more

  friend bool operator==(const Outcome&, const Outcome&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Outcome& o) {
    for (const Words& words : o.requests) {
      out << '(';
      for (const std::string& word : words) out << '<' << word << '>';
      out << ')';
    }
    return out << " error '" << o.error << "'";
  }
};

/// Feeds one piece, and takes what there is then.
inline void take(RequestParser& parser, std::string_view piece, Outcome& out) {
  parser.feed(piece);
  for (;;) {
    switch (parser.next()) {
      case RequestParser::Step::need_more: return;
      case RequestParser::Step::malformed: out.error = parser.error(); return;
      case RequestParser::Step::request:
        out.requests.emplace_back(parser.words().begin(), parser.words().end());
    }
  }
}

/// Parses bytes that arrive cut before each of these places (in any order, within the bytes).
inline Outcome parsed(std::string_view bytes, std::vector<std::size_t> cuts = {},
                      const RequestLimits& limits = {}) {
  std::ranges::sort(cuts);
  RequestParser parser(limits);
  Outcome out;
  std::size_t from = 0;
  cuts.push_back(bytes.size());
  for (const std::size_t to : cuts) {
    take(parser, bytes.substr(from, to - from), out);
    from = to;
  }
  return out;
}

}  // namespace sluice::kv::test
