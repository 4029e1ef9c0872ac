// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/core/status.hpp"

namespace sluice::kv {

/// How one exchange went.
struct HttpAnswer {
  Status status;            ///< of the transport; `http_status` says what the server made of it
  bool maybe_done = false;  ///< of a failure: the server may have got the request
  long http_status = 0;
  std::string body;
};

/// HTTP/1.1 POSTs and one long answer that is read line by line (the stream), on one libcurl multi
/// handle: while a request is under way the stream is served, too, and one thread waits for both.
/// Proxies from the environment are not used: what is asked here is named in the configuration.
///
/// Thread-safety: wake() from any thread, the rest from one thread at a time.
/// Bounds: kAnswerBytesMax of an answer, kLineBytesMax of a line, kLinesMax lines not yet taken
/// (then the stream is paused).
class HttpClient {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kAnswerBytesMax = 4U << 20U;
  static constexpr std::size_t kLineBytesMax = 4U << 20U;
  static constexpr std::size_t kLinesMax = 1024;

  /// resource_exhausted when libcurl gives no handle.
  static Result<std::unique_ptr<HttpClient>> create();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  /// Sends `body` and waits for the whole answer, for `limit` at most. With `once` the request is
  /// never sent a second time: libcurl repeats one whose kept connection turns out to be closed, so
  /// a fresh connection is made for it.
  [[nodiscard]] HttpAnswer post(const std::string& url, const std::string& body,
                                std::chrono::milliseconds limit, bool once);

  /// Opens the stream in place of the one before. What becomes of it shows in next_line() and
  /// stream_end(). The answer must begin within `connect_limit`.
  [[nodiscard]] Status open_stream(const std::string& url, const std::string& body,
                                   std::chrono::milliseconds connect_limit);
  void close_stream() noexcept;
  /// The next whole line, without its end.
  [[nodiscard]] std::optional<std::string> next_line();
  /// Why the stream is no more, once all its lines have been taken; `body` holds what the server
  /// said instead of a stream (an HTTP status that is not 200). Nothing while it is open.
  [[nodiscard]] std::optional<HttpAnswer> stream_end() const;

  /// Waits until the stream has a line or an end, wake() was called, or `deadline` has come.
  void wait(Clock::time_point deadline);
  /// Ends the present or the next wait() (and nothing else) early.
  void wake() noexcept;

 private:
  struct Transfer;
  HttpClient(void* multi, void* easy) noexcept;
  static std::size_t take_answer(char* data, std::size_t, std::size_t size,
                                 void* transfer) noexcept;
  static std::size_t take_stream(char* data, std::size_t, std::size_t size, void* self) noexcept;
  Status set_up(void* easy, Transfer& transfer, const std::string& url, const std::string& body);
  Status drive(std::chrono::milliseconds limit);
  void collect_ends();
  void resume_stream();
  [[nodiscard]] bool stream_has_news() const noexcept;

  void* multi_;  ///< CURLM*; libcurl's header stays out of this one
  void* easy_;   ///< CURL* of post(), kept for its connections
  std::unique_ptr<Transfer> request_;
  std::unique_ptr<Transfer> stream_;
  std::deque<std::string> lines_;
  std::string partial_;  ///< of the stream: after the last end of line
  bool paused_ = false;
  std::atomic<bool> woken_{false};  ///< a request under way may use up libcurl's own wake-up
  Clock::time_point stream_begins_by_{};
};

}  // namespace sluice::kv
