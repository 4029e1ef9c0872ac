// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "resp/client.hpp"
#include "resp/front_commands.hpp"
#include "resp/resp_server.hpp"
#include "resp/server_options.hpp"
#include "resp/socket.hpp"
#include "sluice/core/cacheline.hpp"
#include "sluice/core/mailbox.hpp"

namespace sluice::kv {

class IoThread;

/// What the threads of one server share.
struct ServerContext {
  ServerContext(ServerOptions o, CommandHandler& h)
      : options(std::move(o)), handler(h), front(options, handler) {}

  const ServerOptions options;
  CommandHandler& handler;
  const FrontCommands front;
  std::vector<std::unique_ptr<IoThread>> threads;  ///< complete before the first of them runs
  std::atomic<std::size_t> clients{0};             ///< relaxed: a count
  std::atomic<std::uint64_t> next_id{1};           ///< relaxed: a count

  void say(std::string_view message) const;
  /// The same for what clients can cause any number of times: the 1st, 2nd, 4th, 8th ... are said.
  void say_rarely(std::uint64_t count, const std::string& message) const;
};

/// To an I/O thread: a chain of completed replies, or a socket that was accepted.
struct IoMail {
  PendingReply* returned = nullptr;
  int socket = -1;
};

/// One thread with its epoll set and its connections.
///
/// A round: sleep until something is ready -> mail (completed replies, new sockets) -> sockets ->
/// connections that may go on -> the handler's round_done() -> sends, one per connection with
/// anything to send.
///
/// Invariants:
///   1. A connection's replies are sent in the order of its requests: each request whose reply
///      cannot be written at once has a PendingReply in its client's line, and only the line's
///      front is moved to `out`.
///   2. The mailbox is never full: it has a place for each PendingReply and for each client.
///   3. A PendingReply is in one place: free, in the handler's hands, or done and in a line.
///   4. No client is freed while a round's events or lists may name it: bury() comes last.
/// Threads: complete(), request_stop(), wait_* any; the rest the thread itself.
class IoThread {
 public:
  explicit IoThread(ServerContext& context);
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  /// Opens its descriptors. `listener`: none, or it accepts for all threads.
  [[nodiscard]] Status open(Listener listener, unsigned number);
  /// Starts the thread. May fail for want of resources.
  [[nodiscard]] Status launch();

  /// Takes replies that are complete, linked by next_returned. Any thread.
  void complete(PendingReply* first) noexcept;

  /// From now on it ends, at the latest at the deadline as far as connections go. Any thread, once.
  void request_stop(std::chrono::steady_clock::time_point deadline) noexcept;
  /// After request_stop(): until all connections are closed; how many had to be cut.
  [[nodiscard]] std::size_t wait_until_closed();
  /// Until the last ticket is back; false: not within the limit.
  [[nodiscard]] bool wait_until_finished(std::chrono::milliseconds limit);
  void join();

  void add_to(ServerStats& sum) const noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  /// Written by the thread, read by anybody.
  struct alignas(kCacheLine) Counters {
    std::atomic<std::uint64_t> accepted{0}, refused{0}, requests{0}, protocol_errors{0},
        slow_readers{0}, in_flight{0}, bytes_in{0}, bytes_out{0}, sends{0};
  };

  void run();
  [[nodiscard]] bool finished() const noexcept;
  [[nodiscard]] bool must_stop() const noexcept;

  void wait();
  [[nodiscard]] int poll_events(int timeout_ms) noexcept;
  [[nodiscard]] int wait_limit_ms() const noexcept;
  void take_mail();
  void take_events();
  void resume_stalled();
  void end_handler_round();
  void send_replies();
  void look_at_clock();
  void bury();

  void accept_clients();
  [[nodiscard]] bool accept_without_descriptor();
  void welcome(int socket);
  void add_client(int socket);
  void readable(Client& client);
  void discard_input(Client& client);
  void take_requests(Client& client);
  void serve(Client& client);
  template <typename Write>
  void reply_now(Client& client, Write&& write);
  void refuse(Client& client, std::string_view why);
  void account_input(Client& client) noexcept;
  void limit_input(Client& client);

  [[nodiscard]] bool blocked(const Client& client) const noexcept;
  void stall(Client& client);
  void unstall(Client& client);
  void returned(PendingReply* pending) noexcept;
  void collect(Client& client) noexcept;
  void mark_dirty(Client& client);
  void send_to(Client& client);
  void after_send(Client& client);
  void close_slow_reader(Client& client);
  void start_closing(Client& client);
  void start_lingering(Client& client);
  void close_client(Client& client);
  void listen_for(Client& client, bool reading, bool writing) noexcept;

  [[nodiscard]] std::size_t free_replies() const noexcept;
  [[nodiscard]] PendingReply* put_in_line(Client& client);
  void release(PendingReply* pending) noexcept;

  void begin_stop();
  void cut_clients();
  void report_progress();

  ServerContext& context_;
  const ServerOptions& options_;
  unsigned number_ = 0;
  Listener listener_;
  Descriptor epoll_;
  Descriptor
      spare_;  ///< given up to accept, and refuse, a client when there is no other descriptor
  Mailbox<IoMail> mailbox_;
  std::array<epoll_event, 256> events_;
  int ready_ = 0;      ///< how many of events_ are of this round
  bool busy_ = false;  ///< the last round had so much to do that there may be more
  std::vector<char> input_;
  std::size_t input_bytes_ = 0;  ///< of all clients' requests that are not complete

  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Client*> dirty_;     ///< something to send, or to look at, at the end of the round
  std::deque<Client*> starved_;    ///< first come, first served
  std::vector<Client*> resuming_;  ///< go on in the next round
  std::vector<Client*> graveyard_;
  std::list<Client*> lingering_;  ///< the one whose time is over first in front

  std::deque<PendingReply> replies_;  ///< all that were ever needed at once
  PendingReply* free_ = nullptr;
  std::size_t free_count_ = 0;
  std::size_t with_handler_ = 0;  ///< tickets out
  bool handed_over_ = false;      ///< in this round
  std::size_t next_thread_ = 0;
  Counters counters_;

  bool stopping_ = false;
  std::size_t cut_ = 0;
  std::atomic<bool> stop_requested_{false};
  Clock::time_point stop_deadline_{};  ///< written before stop_requested_
  // Set-up and end only, never on the way of a request: a mutex is right.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false, finished_ = false;
  std::thread thread_;
};

}  // namespace sluice::kv
