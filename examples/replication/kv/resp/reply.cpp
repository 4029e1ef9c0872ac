// SPDX-License-Identifier: BSD-3-Clause
#include "resp/reply.hpp"

#include <algorithm>
#include <charconv>

namespace sluice::kv {
namespace {

constexpr std::string_view kLineEnd = "\r\n";

}  // namespace

void ReplyBuilder::line(char type, std::string_view text) {
  out_->push_back(type);
  const std::size_t from = out_->size();
  out_->append(text);
  // A client's own words may be in it; a line end among them would be read as a reply of its own.
  std::replace_if(
      out_->begin() + static_cast<std::ptrdiff_t>(from), out_->end(),
      [](char c) { return c == '\r' || c == '\n'; }, ' ');
  out_->append(kLineEnd);
}

void ReplyBuilder::number(char type, std::int64_t value) {
  char text[24];
  text[0] = type;
  char* end = std::to_chars(text + 1, text + sizeof text, value).ptr;
  *end++ = '\r';
  *end++ = '\n';
  out_->append(text, static_cast<std::size_t>(end - text));
}

ReplyBuilder& ReplyBuilder::simple(std::string_view text) {
  line('+', text);
  return *this;
}

ReplyBuilder& ReplyBuilder::error(std::string_view text) {
  line('-', text);
  return *this;
}

ReplyBuilder& ReplyBuilder::integer(std::int64_t value) {
  number(':', value);
  return *this;
}

ReplyBuilder& ReplyBuilder::bulk(std::string_view bytes) {
  number('$', static_cast<std::int64_t>(bytes.size()));
  out_->append(bytes).append(kLineEnd);
  return *this;
}

ReplyBuilder& ReplyBuilder::null() {
  out_->append("$-1\r\n");
  return *this;
}

ReplyBuilder& ReplyBuilder::array(std::size_t elements) {
  number('*', static_cast<std::int64_t>(elements));
  return *this;
}

}  // namespace sluice::kv
