// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>

namespace replicate {

/// One line on stderr that shows how far the commit mark is, if stderr is a terminal; else nothing.
class Progress {
 public:
  explicit Progress(std::uint64_t total);
  /// Removes the line.
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  [[nodiscard]] bool shown() const noexcept { return enabled_; }
  /// Draws at most ten times a second.
  void update(std::uint64_t done);
  void clear();

  static constexpr std::chrono::milliseconds kInterval{100};

 private:
  const bool enabled_;
  const std::uint64_t total_;
  bool drawn_ = false;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point next_ = start_ + kInterval;
};

}  // namespace replicate
