// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kv/cluster/etcd_messages.hpp"
#include "kv/cluster/http.hpp"
#include "sluice/core/status.hpp"

namespace sluice::kv {

/// Where etcd is and how long to wait for it.
struct EtcdClientConfig {
  /// "http://HOST:PORT" or "https://HOST:PORT" (with the system's certificates), at least one.
  std::vector<std::string> endpoints;
  /// For one endpoint's answer; then the next one is asked.
  std::chrono::milliseconds attempt_limit{1000};
};

/// What a watch has brought.
struct WatchNews {
  std::vector<etcd::WatchEvent> events;  ///< in the order of their revisions, none twice
  /// > 0: the events from where the watch had come to up to this revision no longer exist; the
  /// watch has ended, and whoever wants to go on reads the keys and watches from there.
  std::int64_t compacted_to = 0;
  /// The stream was cut (why), and is resumed where it was; nothing is lost.
  Status cut;
};

/// etcd's v3 API through its JSON gateway (/v3/...).
///
/// Endpoints are asked in turn, beginning with the one that answered last. A request that changes
/// something is not sent to another one when the first may have carried it out: the caller is told
/// ("it may have been carried out") and looks before it acts.
/// A failure names each endpoint that was tried, and why it failed.
///
/// One watch at a time. It follows the requests: it moves to the endpoint that answers them, and
/// resumes after the last revision that it has seen.
///
/// Thread-safety: wake() from any thread; everything else from one thread at a time.
class EtcdClient {
 public:
  using Clock = HttpClient::Clock;

  /// invalid_argument names the endpoint that is none. Does not connect.
  static Result<std::unique_ptr<EtcdClient>> create(EtcdClientConfig config);

  /// Each ends by `deadline`, or when each endpoint has been tried. Errors: unreachable, timed_out,
  /// connection_lost (the network, or an etcd without a leader); rejected (no such lease,
  /// compacted); io_error (who answers is no etcd); and what etcd::decode_error() lists.
  [[nodiscard]] Result<etcd::RangeAnswer> range(const etcd::RangeRequest& request,
                                                Clock::time_point deadline);
  [[nodiscard]] Result<etcd::PutAnswer> put(const etcd::PutRequest& request,
                                            Clock::time_point deadline);
  [[nodiscard]] Result<etcd::DeleteAnswer> remove(const etcd::DeleteRequest& request,
                                                  Clock::time_point deadline);
  [[nodiscard]] Result<etcd::TxnAnswer> txn(const etcd::TxnRequest& request,
                                            Clock::time_point deadline);
  [[nodiscard]] Result<etcd::LeaseAnswer> grant(std::int64_t ttl_s, Clock::time_point deadline);
  /// A lease that has expired is an answer with `ttl_s` 0.
  [[nodiscard]] Result<etcd::LeaseAnswer> keep_alive(std::int64_t lease,
                                                     Clock::time_point deadline);
  /// Revoking a lease that is no more is a success.
  [[nodiscard]] Status revoke(std::int64_t lease, Clock::time_point deadline);
  /// Forgets the history before `revision`.
  [[nodiscard]] Status compact(std::int64_t revision, Clock::time_point deadline);

  /// Watches [key, range_end) (range_end empty: the one key) from `start_revision` (>= 1) on, in
  /// place of the watch before.
  void watch(std::string key, std::string range_end, std::int64_t start_revision);
  void stop_watch();
  /// Waits for news of the watch, for wake(), or until `deadline`; returns what there is.
  [[nodiscard]] WatchNews watch_news(Clock::time_point deadline);
  /// The revision after the last one that the watch has delivered.
  [[nodiscard]] std::int64_t next_revision() const noexcept { return watch_.next_revision; }

  /// Ends the present or the next watch_news() early.
  void wake() noexcept { http_->wake(); }

  /// The endpoint that is asked first.
  [[nodiscard]] const std::string& endpoint() const noexcept {
    return config_.endpoints[preferred_];
  }

 private:
  enum class Repeat : std::uint8_t { safe, unsafe };
  struct WatchState {
    bool wanted = false;
    bool open = false;
    std::string key, range_end;
    std::int64_t next_revision = 0;
    std::size_t endpoint = 0;
    Clock::time_point retry_at{};
  };
  EtcdClient(EtcdClientConfig config, std::unique_ptr<HttpClient> http)
      : config_(std::move(config)), http_(std::move(http)) {}
  [[nodiscard]] Result<std::string> call(std::string_view path, std::string_view what,
                                         const std::string& body, Repeat repeat,
                                         Clock::time_point deadline);
  template <typename Answer, typename Decode>
  [[nodiscard]] Result<Answer> ask(std::string_view path, const std::string& what,
                                   const std::string& body, Repeat repeat,
                                   Clock::time_point deadline, Decode decode);
  void keep_watch_open();
  void cut_watch(Status why, WatchNews& news);
  void take_lines(WatchNews& news);
  void take_line(const std::string& line, WatchNews& news);

  EtcdClientConfig config_;
  std::unique_ptr<HttpClient> http_;
  std::size_t preferred_ = 0;  ///< index of the endpoint that is asked first
  WatchState watch_;
};

}  // namespace sluice::kv
