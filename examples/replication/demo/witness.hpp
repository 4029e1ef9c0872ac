// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "child.hpp"
#include "client.hpp"
#include "sluice/core/status.hpp"

namespace demo {

/// A client that writes unique keys, one after the other, each until it is acknowledged at
/// quorum_disk, and knows afterwards what must be there. A thread of its own, from the constructor
/// to stop(). What is not acknowledged it writes again, the same value under the same key: so it
/// does not matter whether the first attempt was done.
class Witness {
 public:
  static constexpr const char* kLevel = "quorum_disk";

  /// `ports`: of all nodes; it finds out who leads.
  Witness(std::uint32_t number, std::vector<std::uint16_t> ports);
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  /// stop()
  ~Witness();

  /// Ends the thread, at the latest when a node takes kAnswerLimit to answer.
  void stop();
  /// Keys 0 to acknowledged() - 1 are acknowledged. Any thread.
  [[nodiscard]] std::uint64_t acknowledged() const noexcept {
    return acknowledged_.load(std::memory_order_relaxed);
  }

  /// After stop(): how long it had to wait between two acknowledgements, at most, and until when.
  struct Pause {
    Clock::duration length{};
    Clock::time_point end{};
  };
  [[nodiscard]] Pause longest_pause() const noexcept { return longest_pause_; }
  /// After stop(): attempts that had to be made again.
  [[nodiscard]] std::uint64_t repeated() const noexcept { return repeated_; }
  /// After stop(): an answer that no node may give; empty if there was none.
  [[nodiscard]] const std::string& surprise() const noexcept { return surprise_; }

  /// After stop(): reads everything back.
  struct Verdict {
    std::uint64_t looked_for = 0, missing = 0, wrong = 0;
  };
  [[nodiscard]] sluice::Result<Verdict> verify(Client& primary, Interrupts& interrupts) const;

 private:
  static constexpr std::chrono::milliseconds kAnswerLimit{5000};
  static constexpr std::chrono::milliseconds kAgainAfter{10};
  enum class Outcome : std::uint8_t { acknowledged, again, elsewhere };

  void run();
  [[nodiscard]] bool connect();
  [[nodiscard]] Outcome write(std::uint64_t index);
  [[nodiscard]] std::string key(std::uint64_t index) const;
  [[nodiscard]] std::string value(std::uint64_t index) const;

  const std::uint32_t number_;
  const std::vector<std::uint16_t> ports_;
  std::atomic<std::uint64_t> acknowledged_{0};
  std::atomic<bool> stop_{false};

  // The thread's own until it has ended.
  std::optional<Client> client_;
  std::size_t next_ = 0;                 ///< of ports_, to be tried
  std::optional<std::uint16_t> leader_;  ///< that a node has named
  Pause longest_pause_;
  std::uint64_t repeated_ = 0;
  std::string surprise_;

  std::thread thread_;
};

}  // namespace demo
