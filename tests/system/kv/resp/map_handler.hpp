// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "resp/command_handler.hpp"

namespace sluice::kv::test {

/// All data commands on a map in memory. Requests are answered on the I/O thread, or, as a node
/// that replicates does it, in groups by another thread.
/// Threads: any number of I/O threads.
class MapHandler : public CommandHandler {
 public:
  enum class Where { io_thread, worker };

  explicit MapHandler(Where where);
  ~MapHandler() override;

  void handle(const Request& request, Ticket ticket) noexcept override;
  void round_done() noexcept override;

 private:
  using Words = std::vector<std::string>;
  struct Task {
    CommandId id;
    Words words;
    Ticket ticket;
  };

  void work();
  template <typename AnyWords>
  void answer(CommandId id, const AnyWords& words, ReplyBuilder reply);
  void increment(std::string_view key, ReplyBuilder reply);

  const Where where_;
  std::mutex map_mutex_;
  std::unordered_map<std::string, std::string> map_;
  std::mutex tasks_mutex_;
  std::condition_variable tasks_came_;
  std::vector<Task> tasks_;
  bool ended_ = false;
  std::thread worker_;
};

}  // namespace sluice::kv::test
