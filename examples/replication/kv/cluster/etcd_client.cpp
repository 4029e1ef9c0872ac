// SPDX-License-Identifier: BSD-3-Clause
#include "kv/cluster/etcd_client.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice::kv {
namespace {

using std::chrono::milliseconds;

/// How long a watch that was cut waits before it is opened again, so that an etcd that refuses is
/// not asked without a pause.
constexpr milliseconds kWatchPause{50};
/// How much of a foreign key a message shows.
constexpr std::size_t kKeyShown = 100;

Status check_endpoint(const std::string& endpoint) {
  const auto wrong = [&](std::string_view why) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("etcd endpoint '{}': {}; it should look like http://127.0.0.1:2379",
                              endpoint, why));
  };
  const auto scheme = endpoint.find("://");
  if (scheme == std::string::npos) return wrong("no http:// or https:// in front");
  if (const auto name = endpoint.substr(0, scheme); name != "http" && name != "https")
    return wrong(fmt::format("the scheme '{}' is neither http nor https", name));
  const std::string authority = endpoint.substr(scheme + 3);
  if (authority.empty()) return wrong("no host");
  if (authority.find_first_of("/?#@ ") != std::string::npos)
    return wrong("only a host and a port may follow the scheme");
  const auto colon = authority.rfind(':');
  if (colon == std::string::npos || authority.find(']', colon) != std::string::npos)
    return wrong("no port");
  const std::string port = authority.substr(colon + 1);
  if (port.empty() || port.size() > 5 ||
      port.find_first_not_of("0123456789") != std::string::npos || std::stoul(port) == 0 ||
      std::stoul(port) > 65535)
    return wrong("the port is no number from 1 to 65535");
  if (colon == 0) return wrong("no host");
  return {};
}

std::string shown(std::string_view key) {
  return fmt::format("'{}'{}", key.substr(0, kKeyShown), key.size() > kKeyShown ? "..." : "");
}

}  // namespace

Result<std::unique_ptr<EtcdClient>> EtcdClient::create(EtcdClientConfig config) {
  if (config.endpoints.empty())
    return Status(StatusCode::invalid_argument, "no etcd endpoint was given");
  if (config.attempt_limit < milliseconds{1})
    return Status(
        StatusCode::invalid_argument,
        fmt::format("etcd: an answer cannot be waited for {} ms", config.attempt_limit.count()));
  for (std::string& endpoint : config.endpoints) {
    if (endpoint.ends_with('/')) endpoint.pop_back();
    SLUICE_RETURN_IF_ERROR(check_endpoint(endpoint));
  }
  auto http = HttpClient::create();
  if (!http) return http.status();
  return std::unique_ptr<EtcdClient>(new EtcdClient(std::move(config), std::move(*http)));
}

/// The body of the first endpoint's answer that is one.
Result<std::string> EtcdClient::call(std::string_view path, std::string_view what,
                                     const std::string& body, Repeat repeat,
                                     Clock::time_point deadline) {
  std::string tried;
  StatusCode code = StatusCode::timed_out;
  int os_error = 0;
  const std::size_t count = config_.endpoints.size();
  const std::size_t first = preferred_;
  for (std::size_t i = 0; i < count; ++i) {
    const auto left = std::chrono::floor<milliseconds>(deadline - Clock::now());
    if (left <= milliseconds{0}) {
      tried += fmt::format("{}no time was left", tried.empty() ? "" : "; ");
      break;
    }
    const std::size_t at = (first + i) % count;
    const std::string& endpoint = config_.endpoints[at];
    HttpAnswer answer =
        http_->post(endpoint + std::string(path), body, std::min(left, config_.attempt_limit),
                    repeat == Repeat::unsafe);
    bool maybe_done = answer.maybe_done;
    Status failure = answer.status;
    if (failure.ok() && answer.http_status != 200) {
      failure = etcd::decode_error(answer.http_status, answer.body);
      maybe_done = !etcd::surely_not_done(failure.message());
    }
    if (failure.ok()) {
      preferred_ = at;
      return std::move(answer.body);
    }
    code = failure.code();
    os_error = failure.os_error();
    tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", endpoint, failure.message());
    // Another endpoint would say the same of these: they are about the request.
    if (code == StatusCode::rejected || code == StatusCode::invalid_argument ||
        code == StatusCode::permission_denied)
      break;
    preferred_ = (at + 1) % count;  // who failed is not asked first next time
    if (repeat == Repeat::unsafe && maybe_done) {
      tried += "; it may have been carried out";
      break;
    }
  }
  return Status(code, fmt::format("etcd: {}: {}", what, tried), os_error);
}

template <typename Answer, typename Decode>
Result<Answer> EtcdClient::ask(std::string_view path, const std::string& what,
                               const std::string& body, Repeat repeat, Clock::time_point deadline,
                               Decode decode) {
  auto text = call(path, what, body, repeat, deadline);
  if (!text) return text.status();
  Result<Answer> answer = decode(*text);
  if (answer) return answer;
  const Status why = answer.status().with_context(fmt::format("etcd: {}: {}", what, endpoint()));
  preferred_ = (preferred_ + 1) % config_.endpoints.size();
  return why;
}

Result<etcd::RangeAnswer> EtcdClient::range(const etcd::RangeRequest& request,
                                            Clock::time_point deadline) {
  return ask<etcd::RangeAnswer>("/v3/kv/range", fmt::format("reading {}", shown(request.key)),
                                etcd::encode(request), Repeat::safe, deadline, etcd::decode_range);
}
Result<etcd::PutAnswer> EtcdClient::put(const etcd::PutRequest& request,
                                        Clock::time_point deadline) {
  return ask<etcd::PutAnswer>("/v3/kv/put", fmt::format("writing {}", shown(request.key)),
                              etcd::encode(request), Repeat::unsafe, deadline, etcd::decode_put);
}
Result<etcd::DeleteAnswer> EtcdClient::remove(const etcd::DeleteRequest& request,
                                              Clock::time_point deadline) {
  return ask<etcd::DeleteAnswer>(
      "/v3/kv/deleterange", fmt::format("deleting {}", shown(request.key)), etcd::encode(request),
      Repeat::unsafe, deadline, etcd::decode_delete);
}
Result<etcd::TxnAnswer> EtcdClient::txn(const etcd::TxnRequest& request,
                                        Clock::time_point deadline) {
  const std::string about =
      request.compare.empty()
          ? std::string("a transaction")
          : fmt::format("a transaction that compares {}", shown(request.compare.front().key));
  return ask<etcd::TxnAnswer>("/v3/kv/txn", about, etcd::encode(request), Repeat::unsafe, deadline,
                              etcd::decode_txn);
}
Result<etcd::LeaseAnswer> EtcdClient::grant(std::int64_t ttl_s, Clock::time_point deadline) {
  // A lease too many expires by itself; but which one is meant must be known.
  return ask<etcd::LeaseAnswer>("/v3/lease/grant", fmt::format("a lease of {} s", ttl_s),
                                etcd::encode_grant(ttl_s), Repeat::unsafe, deadline,
                                etcd::decode_grant);
}
Result<etcd::LeaseAnswer> EtcdClient::keep_alive(std::int64_t lease, Clock::time_point deadline) {
  return ask<etcd::LeaseAnswer>(
      "/v3/lease/keepalive", fmt::format("keeping lease {:x} alive", lease),
      etcd::encode_lease(lease), Repeat::safe, deadline, etcd::decode_keep_alive);
}
Status EtcdClient::revoke(std::int64_t lease, Clock::time_point deadline) {
  const auto answer = ask<etcd::LeaseAnswer>(
      "/v3/lease/revoke", fmt::format("revoking lease {:x}", lease), etcd::encode_lease(lease),
      Repeat::safe, deadline, etcd::decode_revoke);
  return answer || answer.status().code() == StatusCode::rejected ? Status{} : answer.status();
}
Status EtcdClient::compact(std::int64_t revision, Clock::time_point deadline) {
  return call("/v3/kv/compaction", fmt::format("compacting up to revision {}", revision),
              etcd::encode_compaction(revision), Repeat::safe, deadline)
      .status();
}

// --- The watch ---------------------------------------------------------------------------------

void EtcdClient::watch(std::string key, std::string range_end, std::int64_t start_revision) {
  SLUICE_CHECK(start_revision >= 1, "a watch begins at a revision of 1 or later");
  stop_watch();
  watch_ = {.wanted = true,
            .key = std::move(key),
            .range_end = std::move(range_end),
            .next_revision = start_revision};
}

void EtcdClient::stop_watch() {
  http_->close_stream();
  watch_.wanted = watch_.open = false;
}

void EtcdClient::keep_watch_open() {
  if (!watch_.wanted) return;
  if (watch_.open && watch_.endpoint != preferred_) {
    // The endpoint that it came from has failed a request. Lines not yet taken come again.
    http_->close_stream();
    watch_.open = false;
  }
  if (watch_.open || Clock::now() < watch_.retry_at) return;
  watch_.endpoint = preferred_;
  watch_.retry_at = Clock::now() + kWatchPause;
  // A failure to begin shows as the end of the stream.
  const Status opened =
      http_->open_stream(endpoint() + "/v3/watch",
                         etcd::encode_watch(watch_.key, watch_.range_end, watch_.next_revision),
                         config_.attempt_limit);
  watch_.open = opened.ok();
}

void EtcdClient::cut_watch(Status why, WatchNews& news) {
  http_->close_stream();
  watch_.open = false;
  if (watch_.endpoint == preferred_) preferred_ = (preferred_ + 1) % config_.endpoints.size();
  news.cut = why.with_context(
      fmt::format("etcd: watching {}: {}", shown(watch_.key), config_.endpoints[watch_.endpoint]));
}

void EtcdClient::take_line(const std::string& line, WatchNews& news) {
  auto answer = etcd::decode_watch_line(line);
  if (!answer) return cut_watch(answer.status(), news);
  if (answer->compact_revision > 0) {
    news.compacted_to = answer->compact_revision;
    return stop_watch();
  }
  if (answer->canceled)
    return cut_watch(Status(StatusCode::connection_lost,
                            fmt::format("cancelled by etcd: {}", answer->cancel_reason)),
                     news);
  for (auto& event : answer->events) {
    // After a resumption etcd begins where it was asked to; this is for one that does not.
    if (event.kv.mod_revision < watch_.next_revision) continue;
    news.events.push_back(std::move(event));
  }
  // A revision's events come in one answer (no fragments were asked for).
  if (!answer->events.empty())
    watch_.next_revision =
        std::max(watch_.next_revision, answer->events.back().kv.mod_revision + 1);
}

void EtcdClient::take_lines(WatchNews& news) {
  while (watch_.open) {  // bound: HttpClient::kLinesMax
    const auto line = http_->next_line();
    if (!line) break;
    take_line(*line, news);
  }
  if (!watch_.open) return;
  if (const auto end = http_->stream_end()) {
    Status why = end->status;
    if (why.ok())
      why = end->http_status == 200 || end->http_status == 0
                ? Status(StatusCode::connection_lost, "the stream has ended")
                : etcd::decode_error(end->http_status, end->body);
    cut_watch(std::move(why), news);
  }
}

WatchNews EtcdClient::watch_news(Clock::time_point deadline) {
  WatchNews news;
  keep_watch_open();
  take_lines(news);
  if (!news.events.empty() || news.compacted_to > 0 || !news.cut.ok()) return news;
  const bool pausing = watch_.wanted && !watch_.open;
  http_->wait(pausing ? std::min(deadline, watch_.retry_at) : deadline);
  take_lines(news);
  return news;
}

}  // namespace sluice::kv
