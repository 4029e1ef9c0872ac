// SPDX-License-Identifier: BSD-3-Clause
#include "resp/request_parser.hpp"

extern "C" {
#include <hiredis/read.h>
#include <hiredis/sds.h>
}

#include <algorithm>
#include <charconv>
#include <cstring>

#include "resp/text.hpp"
#include "sluice/core/status.hpp"

namespace sluice::kv {
namespace {

/// More digits than any length has.
constexpr std::size_t kLengthDigitsMax = 20;
constexpr std::size_t kReaderGrowthMax = SDS_MAX_PREALLOC;
/// Buffers above this are given back when no request is being read.
constexpr std::size_t kIdleBytesMax = std::size_t{16} << 10;

constexpr std::string_view kBadArrayLength = "the length of an array is no number that is allowed";
constexpr std::string_view kTooManyWords = "a request of too many words";
constexpr std::string_view kNoBulkString =
    "a word must be a bulk string: '$', its length, a line end";
constexpr std::string_view kWordTooLong = "a word that is too long";
constexpr std::string_view kRequestTooLong = "a request that is too long";
constexpr std::string_view kNoLineEnd = "no line end after a bulk string";
constexpr std::string_view kLineTooLong = "a line that is too long";
constexpr std::string_view kBadLine = "a quote that does not end, or a zero byte, in a line";

}  // namespace

/// The objects that hiredis builds are this parser itself: it wants pointers, and only compares
/// them with null. Null makes it stop for good.
struct RequestParser::Callbacks {
  static RequestParser& parser(const redisReadTask* task) noexcept {
    return *static_cast<RequestParser*>(task->privdata);
  }
  static void* refuse(RequestParser& parser, std::string_view why) noexcept {
    parser.why_ = why;
    return nullptr;
  }

  static void* string(const redisReadTask* task, char* bytes, std::size_t length) noexcept {
    RequestParser& p = parser(task);
    if (task->type != REDIS_REPLY_STRING) return refuse(p, kNoBulkString);
    if (!p.word_fits(length)) return nullptr;
    // hiredis has seen to it that two more bytes are there, but not which.
    if (std::memcmp(bytes + length, "\r\n", 2) != 0) return refuse(p, kNoLineEnd);
    p.add_word({bytes, length});
    return &p;
  }
  static void* array(const redisReadTask* task, int elements) noexcept {
    RequestParser& p = parser(task);
    if (task->parent != nullptr) return refuse(p, kNoBulkString);
    if (static_cast<std::size_t>(elements) > p.limits_.words_max) return refuse(p, kTooManyWords);
    p.array_open_ = true;
    return &p;
  }
  static void* integer(const redisReadTask* task, long long) noexcept {
    return refuse(parser(task), kNoBulkString);
  }
  /// "$-1" as a word, or "*-1" as a request.
  static void* nil(const redisReadTask* task) noexcept {
    return refuse(parser(task), task->parent == nullptr ? kBadArrayLength : kNoBulkString);
  }
  static void free_nothing(void*) noexcept {}

  static redisReplyObjectFunctions functions;
};

redisReplyObjectFunctions RequestParser::Callbacks::functions{
    RequestParser::Callbacks::string, RequestParser::Callbacks::array,
    RequestParser::Callbacks::integer, RequestParser::Callbacks::nil,
    RequestParser::Callbacks::free_nothing};

void RequestParser::ReaderDeleter::operator()(redisReader* reader) const noexcept {
  redisReaderFree(reader);
}

RequestParser::RequestParser(const RequestLimits& limits) noexcept : limits_(limits) {}
RequestParser::~RequestParser() = default;

std::size_t RequestParser::unread_bytes() const noexcept {
  return text_.size() - text_at_ + (reader_ ? reader_->len - reader_->pos : 0);
}

std::size_t RequestParser::memory_bytes() const noexcept {
  // The reader's buffer has doubled with each growth, and above the second term grown by that.
  const std::size_t reader_capacity = reader_bytes_ + std::min(reader_bytes_, kReaderGrowthMax);
  return text_.capacity() + arena_.capacity() + ends_.capacity() * sizeof ends_[0] +
         words_.capacity() * sizeof words_[0] + reader_capacity;
}

void RequestParser::feed(std::string_view bytes) {
  if (failed_ || bytes.empty()) return;
  // Between requests the first byte says where it goes; inside one it follows the rest.
  if (unread_bytes() == 0 && (!reader_ || reader_->ridx < 0)) in_text_ = bytes.front() != '*';
  if (in_text_) {
    text_.append(bytes);
    return;
  }
  if (!reader_) {
    reader_.reset(redisReaderCreateWithFunctions(&Callbacks::functions));
    SLUICE_CHECK(reader_ != nullptr, "no memory for a request's reader");
    reader_->privdata = this;
  }
  const int fed = redisReaderFeed(reader_.get(), bytes.data(), bytes.size());
  SLUICE_CHECK(fed == REDIS_OK, "no memory for a request's bytes");
  reader_bytes_ = std::max(reader_bytes_, reader_->len);
}

RequestParser::Step RequestParser::next() {
  if (failed_) return Step::malformed;
  for (;;) {  // bound: each round but the last takes a line, an empty array, or moves bytes over
    const bool between = !in_text_ && reader_ && reader_->ridx < 0;
    const std::size_t unread = unread_bytes();
    if (unread == 0 && (in_text_ || between)) {
      release_idle_memory();
      return Step::need_more;
    }
    if (in_text_ && text_[text_at_] == '*') {
      const std::string rest = text_.substr(text_at_);
      text_.clear();
      text_at_ = text_scanned_ = 0;
      feed(rest);
      continue;
    }
    if (between && reader_->buf[reader_->pos] != '*') {
      const std::string rest(reader_->buf + reader_->pos, unread);
      reader_.reset();
      reader_bytes_ = 0;
      feed(rest);
      continue;
    }
    const Step step = in_text_ ? next_line() : next_array();
    if (step != Step::request || !words_.empty()) return step;
    // An empty line or array: no request, no reply.
  }
}

RequestParser::Step RequestParser::next_array() {
  if (reader_->ridx < 0) begin_request();
  void* done = nullptr;
  if (redisReaderGetReply(reader_.get(), &done) != REDIS_OK) {
    if (!why_.empty()) return malformed(why_);
    return malformed(array_open_ ? kNoBulkString : kBadArrayLength);
  }
  if (done == nullptr) return look_at_pending();
  finish_request();
  return Step::request;
}

/// The reader waits for more. What it waits for is looked at before it comes: the type byte of a
/// header has been taken, so the header's rest is what is unread.
RequestParser::Step RequestParser::look_at_pending() {
  const std::string_view unread(reader_->buf + reader_->pos, reader_->len - reader_->pos);
  const std::string_view bad = array_open_ ? kNoBulkString : kBadArrayLength;
  const std::size_t digits = std::min(unread.find_first_not_of("0123456789"), unread.size());
  if (digits > kLengthDigitsMax) return malformed(bad);
  if (digits == unread.size()) return Step::need_more;
  if (unread[digits] != '\r' || digits == 0) return malformed(bad);
  if (digits + 1 == unread.size()) return Step::need_more;
  if (unread[digits + 1] != '\n') return malformed(bad);
  std::uint64_t declared = 0;  // a string's: an array's header would have been taken
  if (std::from_chars(unread.data(), unread.data() + digits, declared).ec != std::errc{})
    return malformed(bad);
  return word_fits(declared) ? Step::need_more : malformed(why_);
}

RequestParser::Step RequestParser::next_line() {
  const std::size_t end = text_.find('\n', std::max(text_scanned_, text_at_));
  const std::size_t length = std::min(end, text_.size()) - text_at_;
  if (length > limits_.inline_bytes_max) return malformed(kLineTooLong);
  if (end == std::string::npos) {
    text_.erase(0, text_at_);  // what came before it has been read
    text_at_ = 0;
    text_scanned_ = text_.size();
    return Step::need_more;
  }
  begin_request();
  const bool taken = take_words_of(length);
  text_at_ = text_scanned_ = end + 1;
  if (!taken) return malformed(why_);
  finish_request();
  return Step::request;
}

/// False: why_ says why.
bool RequestParser::take_words_of(std::size_t line_bytes) {
  char* const line = text_.data() + text_at_;
  if (line_bytes > 0 && line[line_bytes - 1] == '\r') --line_bytes;
  line[line_bytes] = '\0';  // in place of the line end
  int count = 0;
  sds* const found = std::strlen(line) == line_bytes ? sdssplitargs(line, &count) : nullptr;
  if (found == nullptr) {
    why_ = kBadLine;
    return false;
  }
  const bool fits = static_cast<std::size_t>(count) <= limits_.words_max;
  if (!fits) why_ = kTooManyWords;
  for (int i = 0; fits && i < count; ++i) add_word({found[i], sdslen(found[i])});
  sdsfreesplitres(found, count);
  return fits;
}

bool RequestParser::word_fits(std::size_t bytes) noexcept {
  if (bytes > limits_.word_bytes_max)
    why_ = kWordTooLong;
  else if (bytes > limits_.request_bytes_max - std::min(arena_.size(), limits_.request_bytes_max))
    why_ = kRequestTooLong;
  else
    return true;
  return false;
}

void RequestParser::begin_request() noexcept {
  arena_.clear();
  ends_.clear();
  words_.clear();
  array_open_ = false;
}

void RequestParser::add_word(std::string_view bytes) {
  arena_.append(bytes);
  ends_.push_back(arena_.size());
}

void RequestParser::finish_request() {
  std::size_t begin = 0;
  for (const std::size_t end : ends_) {
    words_.emplace_back(arena_.data() + begin, end - begin);
    begin = end;
  }
}

RequestParser::Step RequestParser::malformed(std::string_view why) {
  error_ = "Protocol error: ";
  error_.append(why);
  give_up();
  return Step::malformed;
}

void RequestParser::give_up() noexcept {
  failed_ = true;
  reader_.reset();
  reader_bytes_ = 0;
  release_memory(text_);
  text_at_ = text_scanned_ = 0;
  begin_request();
  release_memory(arena_);
  std::vector<std::size_t>().swap(ends_);
  std::vector<std::string_view>().swap(words_);
}

void RequestParser::release_idle_memory() noexcept {
  text_.clear();
  text_at_ = text_scanned_ = 0;
  words_.clear();
  if (reader_bytes_ > kIdleBytesMax) {
    reader_.reset();
    reader_bytes_ = 0;
    in_text_ = true;
  }
  if (text_.capacity() > kIdleBytesMax) release_memory(text_);
  if (arena_.capacity() > kIdleBytesMax) release_memory(arena_);
  if (ends_.capacity() > kIdleBytesMax / sizeof ends_[0]) ends_ = std::vector<std::size_t>();
  if (words_.capacity() > kIdleBytesMax / sizeof words_[0])
    words_ = std::vector<std::string_view>();
}

}  // namespace sluice::kv
