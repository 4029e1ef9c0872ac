// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client.hpp"
#include "history.hpp"

namespace sluice::kv::test {

struct LoadOptions {
  ClientOptions client;
  unsigned clients = 4;
  /// Keys that all clients write and read, every value once.
  unsigned registers = 6;
  /// Keys that all clients INCR and read.
  unsigned counters = 2;
  std::uint64_t seed = 1;
  std::size_t value_bytes_max = 200;
};

/// Clients that write and read all the time, each on a thread of its own, and what they did. A
/// third of the writes go to a key of their own each, so that every single one can be looked for at
/// the end.
class Load {
 public:
  explicit Load(LoadOptions options);
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  ~Load() { end(); }

  /// Writes acknowledged so far.
  [[nodiscard]] std::uint64_t acknowledged() const;
  /// Waits until that many more have been; false: the time is over.
  [[nodiscard]] bool wait_for_more(std::uint64_t count, std::chrono::milliseconds limit);
  /// What was answered to the last request that was refused for good, if any was.
  [[nodiscard]] std::string refusal() const;
  /// Ends the clients, when what they do is answered. The history, in no order.
  [[nodiscard]] std::vector<Operation> stop();

 private:
  struct Client {
    std::vector<Operation> history;  ///< its thread's alone until that has ended
    std::thread thread;
  };
  void run(std::uint32_t number, std::vector<Operation>& history);
  void end();

  const LoadOptions options_;
  /// One in progress is not cut short; nothing else is published by it: relaxed.
  std::atomic<bool> ending_{false};
  std::atomic<std::uint64_t> acknowledged_{0};  ///< relaxed: a count
  mutable std::mutex mutex_;                    ///< of what follows
  std::string refusal_;
  std::vector<Client> clients_;
};

/// Nanoseconds of the clock that histories are in.
[[nodiscard]] std::int64_t now_ns();

/// Reads every key of the history, and adds the reads to it. Nothing: a read was not answered.
[[nodiscard]] std::optional<std::map<std::string, std::optional<std::string>>> read_all(
    ClusterClient& client, std::vector<Operation>& history);

/// How many of each outcome, for people: "12345 operations: 12000 done, 300 refused, 45 unknown".
[[nodiscard]] std::string summary(const std::vector<Operation>& history);

struct Judgement {
  std::string wrong;    ///< empty: nothing is
  std::string summary;  ///< of the history
};
/// Ends the load, reads every key, and looks for what was acknowledged and is not there, and for
/// what no order of the operations explains.
[[nodiscard]] Judgement judge(Load& load, const ClientOptions& reader);

}  // namespace sluice::kv::test
