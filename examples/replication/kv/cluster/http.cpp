// SPDX-License-Identifier: BSD-3-Clause
#include "kv/cluster/http.hpp"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

namespace sluice::kv {
namespace {

using std::chrono::milliseconds;

/// libcurl's global state: once per process, before the first handle, and never taken down, since
/// others in this process may use it.
Status start_libcurl() {
  static std::once_flag once;
  static CURLcode code = CURLE_OK;
  std::call_once(once, [] { code = curl_global_init(CURL_GLOBAL_DEFAULT); });
  if (code == CURLE_OK) return {};
  return {StatusCode::resource_exhausted,
          fmt::format("libcurl does not start: {}", curl_easy_strerror(code))};
}

/// What every request says of itself. `hasleader`: an etcd that has lost its leader refuses, and
/// ends a watch, rather than to let it wait in silence.
curl_slist* headers() {
  static curl_slist* const list = [] {
    curl_slist* made = curl_slist_append(nullptr, "Content-Type: application/json");
    made = curl_slist_append(made, "Grpc-Metadata-hasleader: true");
    return curl_slist_append(made, "Expect:");
  }();
  return list;
}

StatusCode code_of(CURLcode code) {
  switch (code) {
    case CURLE_OK: return StatusCode::ok;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT: return StatusCode::unreachable;
    case CURLE_OPERATION_TIMEDOUT: return StatusCode::timed_out;
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE: return StatusCode::connection_lost;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL: return StatusCode::invalid_argument;
    case CURLE_OUT_OF_MEMORY: return StatusCode::resource_exhausted;
    default: return StatusCode::io_error;
  }
}

milliseconds until(HttpClient::Clock::time_point deadline) {
  return std::max(milliseconds{0},
                  std::chrono::ceil<milliseconds>(deadline - HttpClient::Clock::now()));
}

}  // namespace

/// One easy handle at work.
struct HttpClient::Transfer {
  explicit Transfer(CURL* handle, CURLM* in, bool own) noexcept
      : easy(handle), multi(in), owned(own) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer() {
    curl_multi_remove_handle(multi, easy);
    if (owned) curl_easy_cleanup(easy);
  }
  void end(CURLcode code) {
    done = true;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &answer.http_status);
    if (code == CURLE_OK) return;
    long os_error = 0;
    curl_off_t sent_after_us = 0;
    curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &os_error);
    curl_easy_getinfo(easy, CURLINFO_PRETRANSFER_TIME_T, &sent_after_us);
    answer.maybe_done = sent_after_us > 0;
    const std::string what = too_long           ? "the answer is too long"
                             : error[0] != '\0' ? error.data()
                                                : curl_easy_strerror(code);
    answer.status = Status(code_of(code), what, static_cast<int>(os_error));
  }

  CURL* easy;
  CURLM* multi;
  bool owned;
  bool done = false;
  bool too_long = false;
  std::string body;
  std::array<char, CURL_ERROR_SIZE> error{};
  HttpAnswer answer;
};

Result<std::unique_ptr<HttpClient>> HttpClient::create() {
  SLUICE_RETURN_IF_ERROR(start_libcurl());
  CURLM* const multi = curl_multi_init();
  CURL* const easy = curl_easy_init();
  if (multi == nullptr || easy == nullptr) {
    if (multi != nullptr) curl_multi_cleanup(multi);
    if (easy != nullptr) curl_easy_cleanup(easy);
    return Status(StatusCode::resource_exhausted, "libcurl gives no handle");
  }
  return std::unique_ptr<HttpClient>(new HttpClient(multi, easy));
}

HttpClient::HttpClient(void* multi, void* easy) noexcept : multi_(multi), easy_(easy) {}

HttpClient::~HttpClient() {
  request_.reset();
  stream_.reset();
  curl_easy_cleanup(easy_);
  curl_multi_cleanup(multi_);
}

Status HttpClient::set_up(void* easy, Transfer& transfer, const std::string& url,
                          const std::string& body) {
  transfer.body = body;
  curl_easy_reset(easy);
  const auto failed = [&](CURLcode code) {
    return Status(code_of(code),
                  fmt::format("libcurl does not take '{}': {}", url, curl_easy_strerror(code)));
  };
  if (const auto code = curl_easy_setopt(easy, CURLOPT_URL, url.c_str()); code != CURLE_OK)
    return failed(code);
  // A build without https refuses here rather than later.
  if (const auto code = curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
      code != CURLE_OK)
    return failed(code);
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_PROXY, "");
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers());
  curl_easy_setopt(easy, CURLOPT_POST, 1L);
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, transfer.body.data());
  curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                   static_cast<curl_off_t>(transfer.body.size()));
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer.error.data());
  curl_easy_setopt(easy, CURLOPT_PRIVATE, &transfer);
  return {};
}

HttpAnswer HttpClient::post(const std::string& url, const std::string& body, milliseconds limit,
                            bool once) {
  HttpAnswer failed;
  request_ = std::make_unique<Transfer>(easy_, multi_, false);
  failed.status = set_up(easy_, *request_, url, body);
  if (!failed.status.ok()) {
    request_.reset();
    return failed;
  }
  curl_easy_setopt(easy_, CURLOPT_WRITEFUNCTION, &HttpClient::take_answer);
  curl_easy_setopt(easy_, CURLOPT_WRITEDATA, request_.get());
  // 0 would mean: no limit.
  const auto limit_ms = static_cast<long>(std::max<milliseconds::rep>(limit.count(), 1));
  curl_easy_setopt(easy_, CURLOPT_TIMEOUT_MS, limit_ms);
  if (once) curl_easy_setopt(easy_, CURLOPT_FRESH_CONNECT, 1L);
  if (const auto code = curl_multi_add_handle(multi_, easy_); code != CURLM_OK) {
    failed.status = Status(StatusCode::internal,
                           fmt::format("libcurl takes no request: {}", curl_multi_strerror(code)));
    request_.reset();
    return failed;
  }
  while (!request_->done) {  // bound: CURLOPT_TIMEOUT_MS
    failed.status = drive(milliseconds{limit_ms});
    if (!failed.status.ok()) {
      failed.maybe_done = true;
      request_.reset();
      return failed;
    }
  }
  HttpAnswer answer = std::move(request_->answer);
  request_.reset();
  return answer;
}

std::size_t HttpClient::take_answer(char* data, std::size_t, std::size_t size,
                                    void* transfer) noexcept {
  auto& to = *static_cast<Transfer*>(transfer);
  if (to.answer.body.size() + size > kAnswerBytesMax) {
    to.too_long = true;
    return 0;
  }
  to.answer.body.append(data, size);
  return size;
}

// --- The stream --------------------------------------------------------------------------------

Status HttpClient::open_stream(const std::string& url, const std::string& body,
                               milliseconds connect_limit) {
  close_stream();
  CURL* const easy = curl_easy_init();
  if (easy == nullptr) return {StatusCode::resource_exhausted, "libcurl gives no handle"};
  auto stream = std::make_unique<Transfer>(easy, multi_, true);
  SLUICE_RETURN_IF_ERROR(set_up(easy, *stream, url, body));
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &HttpClient::take_stream);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, this);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(connect_limit.count()));
  // Nothing may come for hours; a host that is gone shows by unanswered probes.
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, 2L);
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, 2L);
  // A connection of its own: it is of no use for anything after it.
  curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L);
  curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L);
  if (const auto code = curl_multi_add_handle(multi_, easy); code != CURLM_OK)
    return {StatusCode::internal,
            fmt::format("libcurl takes no request: {}", curl_multi_strerror(code))};
  stream_ = std::move(stream);
  stream_begins_by_ = Clock::now() + connect_limit;
  return {};
}

void HttpClient::close_stream() noexcept {
  stream_.reset();
  lines_.clear();
  partial_.clear();
  paused_ = false;
}

std::size_t HttpClient::take_stream(char* data, std::size_t, std::size_t size,
                                    void* self) noexcept {
  auto& client = *static_cast<HttpClient*>(self);
  Transfer& stream = *client.stream_;
  long http_status = 0;
  curl_easy_getinfo(stream.easy, CURLINFO_RESPONSE_CODE, &http_status);
  if (http_status != 200) return take_answer(data, 1, size, &stream);  // an error, not a stream
  if (client.lines_.size() >= kLinesMax) {
    client.paused_ = true;
    return CURL_WRITEFUNC_PAUSE;  // it comes again when it goes on
  }
  stream.answer.http_status = http_status;
  std::string_view rest(data, size);
  for (auto end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
    client.partial_ += rest.substr(0, end);
    client.lines_.push_back(std::exchange(client.partial_, {}));
    rest.remove_prefix(end + 1);
  }
  if (client.partial_.size() + rest.size() > kLineBytesMax) {
    stream.too_long = true;
    return 0;
  }
  client.partial_ += rest;
  return size;
}

std::optional<std::string> HttpClient::next_line() {
  if (lines_.empty()) return std::nullopt;
  std::string line = std::move(lines_.front());
  lines_.pop_front();
  return line;
}

std::optional<HttpAnswer> HttpClient::stream_end() const {
  if (stream_ == nullptr || !stream_->done || !lines_.empty()) return std::nullopt;
  return stream_->answer;
}

bool HttpClient::stream_has_news() const noexcept {
  return !lines_.empty() || (stream_ != nullptr && stream_->done);
}

void HttpClient::resume_stream() {
  if (!paused_ || lines_.size() >= kLinesMax) return;
  paused_ = false;
  curl_easy_pause(stream_->easy, CURLPAUSE_CONT);
}

// --- Driving -----------------------------------------------------------------------------------

Status HttpClient::drive(milliseconds limit) {
  resume_stream();
  int running = 0;
  if (const auto code = curl_multi_perform(multi_, &running); code != CURLM_OK)
    return {StatusCode::internal, fmt::format("libcurl: {}", curl_multi_strerror(code))};
  collect_ends();
  if (request_ != nullptr && request_->done) return {};
  if (request_ == nullptr && stream_has_news()) return {};
  if (const auto code =
          curl_multi_poll(multi_, nullptr, 0, static_cast<int>(limit.count()), nullptr);
      code != CURLM_OK)
    return {StatusCode::internal, fmt::format("libcurl: {}", curl_multi_strerror(code))};
  if (const auto code = curl_multi_perform(multi_, &running); code != CURLM_OK)
    return {StatusCode::internal, fmt::format("libcurl: {}", curl_multi_strerror(code))};
  collect_ends();
  return {};
}

void HttpClient::collect_ends() {
  int left = 0;
  while (const CURLMsg* const message = curl_multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    Transfer* transfer = nullptr;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
    transfer->end(message->data.result);
  }
  // A server that takes the connection and then says nothing has a bound, too.
  if (stream_ != nullptr && !stream_->done && stream_->answer.http_status == 0 &&
      Clock::now() >= stream_begins_by_) {
    stream_->done = true;
    stream_->answer.status = Status(StatusCode::timed_out, "the stream did not begin in time");
  }
}

void HttpClient::wait(Clock::time_point deadline) {
  // libcurl also returns for timers of its own: hence the loop. (1) acquire: pairs with release (2)
  // in wake(); what the waker did before is seen after this.
  while (!woken_.exchange(false, std::memory_order_acquire) && !stream_has_news() &&
         Clock::now() < deadline) {
    const bool starting = stream_ != nullptr && stream_->answer.http_status == 0;
    // libcurl's own failure ends the wait; the next request reports it.
    if (!drive(until(starting ? std::min(deadline, stream_begins_by_) : deadline)).ok()) return;
  }
}

void HttpClient::wake() noexcept {
  // (2) release: pairs with acquire (1) in wait().
  woken_.store(true, std::memory_order_release);
  curl_multi_wakeup(multi_);
}

}  // namespace sluice::kv
