// SPDX-License-Identifier: BSD-3-Clause
#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace replicate {
namespace {
constexpr std::uint64_t kBarWidth = 32;
}

Progress::Progress(std::uint64_t total)
    : enabled_(total > 0 && isatty(STDERR_FILENO) == 1), total_(total) {}

void Progress::update(std::uint64_t done) {
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + kInterval;
  const std::uint64_t filled = std::min(done, total_) * kBarWidth / total_;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  fmt::print(stderr, "\r[{}{}] {:3}%  {} of {} records  {:.0f}/s\x1b[K", std::string(filled, '='),
             std::string(kBarWidth - filled, ' '), done * 100 / total_, done, total_,
             static_cast<double>(done) / std::max(seconds, 1e-3));
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::clear() {
  if (!drawn_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace replicate
