// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "sluice/core/mailbox.hpp"
#include "sluice/dispatch/dispatcher.hpp"
#include "support/fixture.hpp"

namespace sluice::system_test {

using contract::await;
using contract::kPatience;
using contract::patient;
using contract::require;
using contract::Site;
using Clock = std::chrono::steady_clock;

/// Deadline of a detach that is expected to be clean.
constexpr std::chrono::seconds kDrainPatience{20};
constexpr std::uint32_t kMessageSize = 16;

/// What a Stream sends.
struct Message {
  std::uint32_t tag;
  std::uint32_t sequence;
  std::uint64_t check;  ///< check_of() the others
};
static_assert(sizeof(Message) == kMessageSize);
[[nodiscard]] std::uint64_t check_of(std::uint32_t tag, std::uint32_t sequence);

/// One direction of one connection: what is sent carries the stream's tag and a sequence number,
/// what arrives is checked against it. The checks only count; tests judge the counts.
class Stream {
 public:
  explicit Stream(std::uint32_t tag) : tag_(tag) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  /// Memory to send from, for `in_flight` messages at once.
  void use(std::shared_ptr<rpma::MemoryRegion> memory, std::size_t offset, std::uint32_t in_flight);
  /// Posts the next message; any thread. resource_exhausted: no credit now.
  [[nodiscard]] Status send(rpma::Connection& connection);
  /// Posts `count` of them, waiting for credits; throws what is not resource_exhausted.
  void send(rpma::Connection& connection, std::uint32_t count);

  /// A receive of this stream, its buffer taken from `pool` and given back.
  void receive(ReceivePool& pool, const ibv_wc& wc);
  /// Any other completion.
  void note(const ibv_wc& wc);

  /// Marks a handler call; two at a time are counted.
  class Call {
   public:
    explicit Call(Stream& stream) : stream_(stream) {
      if (stream_.inside_.exchange(true)) ++stream_.overlaps;
      if (stream_.gone) ++stream_.after_detach;
    }
    ~Call() { stream_.inside_ = false; }

   private:
    Stream& stream_;
  };

  [[nodiscard]] std::uint32_t tag() const { return tag_; }
  [[nodiscard]] std::uint32_t sent() const { return sent_; }
  std::atomic<std::uint32_t> received{0};
  std::atomic<std::uint32_t> out_of_order{0};  ///< among the received
  std::atomic<std::uint32_t> strange{0};       ///< of another stream, or of a wrong length
  std::atomic<std::uint32_t> failed{0};        ///< completions that were no success
  std::atomic<std::uint32_t> completed_sends{0};
  std::atomic<std::uint32_t> overlaps{0};
  std::atomic<std::uint32_t> after_detach{0};  ///< handler calls while `gone`
  std::atomic<bool> gone{false};
  /// Order matters only where it is promised.
  std::atomic<bool> ordered{true};

 private:
  std::uint32_t tag_;
  std::mutex sending_;
  std::atomic<bool> inside_{false};
  std::uint32_t expected_ = 0;  ///< by the handler calls, which never overlap
  std::atomic<std::uint32_t> sent_{0};
  std::shared_ptr<rpma::MemoryRegion> memory_;
  std::size_t offset_ = 0;
  std::uint32_t in_flight_ = 0;
};

/// A dispatcher and what it told through its callbacks.
class Node {
 public:
  struct Options {
    WaitMode wait = WaitMode::event;
    std::uint32_t pollers = 1;
    std::uint32_t workers = 2;
    std::uint32_t connections_max = 0;
    Drive drive = Drive::own_threads;
    std::chrono::milliseconds last_wqe_grace{200};
  };
  Node() : Node(Options{}) {}
  explicit Node(Options options);
  ~Node();

  [[nodiscard]] Dispatcher& operator*() { return *dispatcher_; }
  [[nodiscard]] Dispatcher* operator->() { return dispatcher_.get(); }
  /// Ends the dispatcher now.
  void reset() { dispatcher_.reset(); }

  [[nodiscard]] std::uint64_t sum(std::uint64_t PollerCounters::*counter) const;
  [[nodiscard]] std::uint32_t async_events(ibv_event_type type) const;

  std::atomic<std::uint32_t> orphans{0};
  std::atomic<std::uint32_t> failed_sources{0};

 private:
  mutable std::mutex mutex_;
  std::map<ibv_event_type, std::uint32_t> async_events_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

/// Accepts on a port of its own; keeps the handles by the tag that the client sent.
class Acceptor {
 public:
  /// How to attach the connection of this tag; nullopt rejects it.
  using Choose = std::function<std::optional<ConnectionOptions>(std::uint32_t tag)>;
  Acceptor(const Site& site, Dispatcher& dispatcher, rpma::ConnectionConfig config, Choose choose,
           std::function<void(std::uint32_t, ConnectionHandle&)> on_connected = {});
  ~Acceptor() { close(); }
  void close() { listener_.reset(); }

  [[nodiscard]] const std::string& port() const { return port_; }
  void await_connected(std::uint32_t count) const;
  [[nodiscard]] std::shared_ptr<ConnectionHandle> handle(std::uint32_t tag) const;
  [[nodiscard]] std::shared_ptr<ConnectionHandle> any() const;
  [[nodiscard]] std::vector<Status> failures() const;
  [[nodiscard]] std::size_t connected() const;
  /// Drops the handles.
  void forget();

 private:
  std::string port_;
  mutable std::mutex mutex_;
  std::map<std::uint32_t, std::shared_ptr<ConnectionHandle>> handles_;
  std::vector<Status> failures_;
  std::unique_ptr<Dispatcher::Listener> listener_;
};

/// Connects with the tag as private data.
[[nodiscard]] Result<std::shared_ptr<ConnectionHandle>> connect(
    const Site& site, Dispatcher& dispatcher, const std::string& port, std::uint32_t tag,
    ConnectionOptions options, const rpma::ConnectionConfig& config = patient());

/// Detaches and expects it to be clean.
DetachReport detach_clean(ConnectionHandle& handle);

/// Closed and opened once; handlers wait in it.
class Gate {
 public:
  ~Gate() { open(); }
  void open();
  void pass() noexcept;
  /// How many have come to it so far.
  [[nodiscard]] std::uint32_t arrived() const { return arrived_; }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
  std::atomic<std::uint32_t> arrived_{0};
};

/// Drives a host-driven dispatcher from one thread that sleeps on its descriptors, as an engine
/// does.
class HostLoop {
 public:
  explicit HostLoop(Dispatcher& dispatcher);
  ~HostLoop() { stop(); }
  /// Ends the thread; it has let go of everything.
  void stop();
  /// Sleeps that no descriptor ended, though there was work: lost wakes.
  std::atomic<std::uint32_t> lost_wakes{0};
  std::atomic<std::uint64_t> sleeps{0};

 private:
  void run(Dispatcher& dispatcher);
  EventFd end_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// What a process or thread has used and holds.
[[nodiscard]] std::size_t open_descriptors();
[[nodiscard]] std::chrono::nanoseconds process_cpu_time();
/// The kernel's ids of this process's threads whose name begins with this.
[[nodiscard]] std::vector<int> threads_named(const std::string& prefix);

}  // namespace sluice::system_test
