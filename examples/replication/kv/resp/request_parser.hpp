// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct redisReader;
struct redisReadTask;
struct redisReplyObjectFunctions;

namespace sluice::kv {

/// What one request may take. Beyond it the request is malformed and its connection ends; a length
/// that is only declared takes no memory.
struct RequestLimits {
  std::size_t words_max = 65'536;                         ///< elements of the array
  std::size_t word_bytes_max = std::size_t{8} << 20;      ///< of one word
  std::size_t request_bytes_max = std::size_t{16} << 20;  ///< of all words together
  std::size_t inline_bytes_max = std::size_t{64} << 10;   ///< of a request as a line
};

/// Before a client has given the password.
inline constexpr RequestLimits kUnauthenticatedLimits{.words_max = 16,
                                                      .word_bytes_max = std::size_t{16} << 10,
                                                      .request_bytes_max = std::size_t{32} << 10,
                                                      .inline_bytes_max = std::size_t{16} << 10};

/// Takes a client's requests out of the bytes that arrive, cut anywhere. A request is an array of
/// bulk strings, or a line of words ("PING\r\n", with quotes as redis-cli has them).
///
/// hiredis's reader does the arrays. It is made for replies, takes any type at any depth, and keeps
/// what a header declares waiting for its bytes; so each object passes the checks here, and a
/// header is looked at before its string is complete.
///
/// Invariants:
///   - the outcome (requests, and the error if there is one) depends on the bytes alone, not on how
///     they were cut;
///   - it holds at most what was fed and not yet taken, plus one request within the limits.
/// Threads: one. Cost: each byte is copied twice (into the reader, into the request's words).
class RequestParser {
 public:
  enum class Step : std::uint8_t {
    need_more,  ///< no complete request is there
    request,    ///< words() has one
    malformed,  ///< error() says why; nothing more is taken
  };

  explicit RequestParser(const RequestLimits& limits) noexcept;
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  /// Adds bytes. Call next() until it needs more before feeding again, or they pile up.
  void feed(std::string_view bytes);

  /// The next request. words() of the one before are gone.
  [[nodiscard]] Step next();

  /// The request's words, at least one; valid until the next call of next().
  [[nodiscard]] std::span<const std::string_view> words() const noexcept { return words_; }

  /// One line, without a line end: "Protocol error: ...".
  [[nodiscard]] std::string_view error() const noexcept { return error_; }

  /// Nothing more will be asked of it: gives its memory back, words() and all. next() says
  /// malformed.
  void give_up() noexcept;

  /// The limits from the next request on.
  void set_limits(const RequestLimits& limits) noexcept { limits_ = limits; }

  /// Bytes that were fed and belong to no request yet.
  [[nodiscard]] std::size_t unread_bytes() const noexcept;
  /// Memory that it holds now, about, and rather more than less.
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  struct ReaderDeleter {
    void operator()(redisReader* reader) const noexcept;
  };
  /// hiredis's callbacks, which have to be plain functions.
  struct Callbacks;

  [[nodiscard]] Step next_array();
  [[nodiscard]] Step next_line();
  [[nodiscard]] Step malformed(std::string_view why);
  [[nodiscard]] Step look_at_pending();
  [[nodiscard]] bool word_fits(std::size_t bytes) noexcept;
  [[nodiscard]] bool take_words_of(std::size_t line_bytes);
  void begin_request() noexcept;
  void add_word(std::string_view bytes);
  void finish_request();
  void release_idle_memory() noexcept;

  RequestLimits limits_;
  std::unique_ptr<redisReader, ReaderDeleter> reader_;  ///< none until an array arrives
  std::size_t reader_bytes_ = 0;                        ///< the most it has held
  std::string text_;                                    ///< what is not in the reader: lines
  std::size_t text_at_ = 0;
  std::size_t text_scanned_ = 0;  ///< no line end between text_at_ and here
  bool in_text_ = true;           ///< where the next bytes go
  bool array_open_ = false;       ///< its header has been read
  bool failed_ = false;
  std::string arena_;              ///< the words' bytes, one after the other
  std::vector<std::size_t> ends_;  ///< where each word ends in it
  std::vector<std::string_view> words_;
  std::string_view why_;  ///< a callback's reason to refuse
  std::string error_;
};

}  // namespace sluice::kv
