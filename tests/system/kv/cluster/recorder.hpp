// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kv/cluster/membership.hpp"
#include "sluice_test/process.hpp"

namespace sluice::kv::test {

/// Notes a membership's events, for a test to wait for.
class Recorder {
 public:
  /// To give to start(); the recorder must outlive the membership.
  [[nodiscard]] MembershipEvents events() {
    return [this](const MembershipEvent& event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(event);
      changed_.notify_all();
    };
  }
  /// The first event of this kind from number `from` on for which `holds` is true.
  template <typename Event>
  [[nodiscard]] std::optional<Event> wait_for(
      std::function<bool(const Event&)> holds = [](const Event&) { return true; },
      std::size_t from = 0, std::chrono::milliseconds limit = sluice::test::kPatience) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    std::unique_lock lock(mutex_);
    for (std::size_t at = from;;) {
      for (; at < events_.size(); ++at)
        if (const auto* const event = std::get_if<Event>(&events_[at]); event && holds(*event))
          return *event;
      if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) return std::nullopt;
    }
  }
  [[nodiscard]] std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return events_.size();
  }
  [[nodiscard]] std::vector<MembershipEvent> all() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  template <typename Event>
  [[nodiscard]] std::size_t count_of() const {
    std::size_t count = 0;
    for (const auto& event : all())
      if (std::holds_alternative<Event>(event)) ++count;
    return count;
  }
  [[nodiscard]] std::string text() const {
    std::string text;
    for (const auto& event : all()) text += "  " + to_string(event) + "\n";
    return text;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<MembershipEvent> events_;
};

}  // namespace sluice::kv::test
