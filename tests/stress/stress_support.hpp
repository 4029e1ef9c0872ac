// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace sluice::test {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#else
inline constexpr bool kThreadSanitizer = false;
#endif

/// Elements per test: SLUICE_STRESS_ITEMS, or else the default, a quarter of it under TSan.
inline std::uint64_t stress_items(std::uint64_t by_default) {
  if (const char* text = std::getenv("SLUICE_STRESS_ITEMS")) {
    const auto value = std::strtoull(text, nullptr, 10);
    if (value > 0) return value;
  }
  return kThreadSanitizer ? by_default / 4 : by_default;
}

/// An element that tells who made it and as which one.
struct Tagged {
  static constexpr unsigned kSequenceBits = 48;
  static std::uint64_t make(unsigned producer, std::uint64_t sequence) {
    return std::uint64_t{producer} << kSequenceBits | sequence;
  }
  static unsigned producer(std::uint64_t value) {
    return static_cast<unsigned>(value >> kSequenceBits);
  }
  static std::uint64_t sequence(std::uint64_t value) {
    return value & ((std::uint64_t{1} << kSequenceBits) - 1);
  }
};

/// Who has seen which element: each exactly once.
class Attendance {
 public:
  Attendance(unsigned producers, std::uint64_t per_producer)
      : producers_(producers),
        per_producer_(per_producer),
        seen_(std::make_unique<std::atomic<std::uint8_t>[]>(producers * per_producer)) {}

  void note(std::uint64_t value) {
    const unsigned producer = Tagged::producer(value);
    const std::uint64_t sequence = Tagged::sequence(value);
    if (producer >= producers_ || sequence >= per_producer_) {
      invented_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    seen_[producer * per_producer_ + sequence].fetch_add(1, std::memory_order_relaxed);
  }

  void expect_all_once() const {
    std::uint64_t lost = 0;
    std::uint64_t duplicated = 0;
    for (std::uint64_t i = 0; i < producers_ * per_producer_; ++i) {
      const auto times = seen_[i].load(std::memory_order_relaxed);
      lost += times == 0;
      duplicated += times > 1;
    }
    EXPECT_EQ(lost, 0u);
    EXPECT_EQ(duplicated, 0u);
    EXPECT_EQ(invented_.load(), 0u);
  }

 private:
  const std::uint64_t producers_;
  const std::uint64_t per_producer_;
  std::unique_ptr<std::atomic<std::uint8_t>[]> seen_;
  std::atomic<std::uint64_t> invented_{0};
};

/// One consumer's view of the order: of each producer, what comes later must have a larger number.
class OrderCheck {
 public:
  explicit OrderCheck(unsigned producers) : next_(producers, 0) {}
  void note(std::uint64_t value) {
    std::uint64_t& next = next_.at(Tagged::producer(value));
    if (Tagged::sequence(value) < next) ++violations_;
    next = Tagged::sequence(value) + 1;
  }
  [[nodiscard]] std::uint64_t violations() const { return violations_; }

 private:
  std::vector<std::uint64_t> next_;
  std::uint64_t violations_ = 0;
};

/// Stops the program with a message when `progress` stands still: a lost wake would else be a test
/// that merely hangs.
class Watchdog {
 public:
  explicit Watchdog(const std::atomic<std::uint64_t>& progress, int patience_s = 60)
      : thread_([this, &progress, patience_s] {
          std::uint64_t last = progress.load(std::memory_order_relaxed);
          auto since = std::chrono::steady_clock::now();
          while (!done_.load(std::memory_order_acquire)) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            const std::uint64_t now = progress.load(std::memory_order_relaxed);
            if (now != last) {
              last = now;
              since = std::chrono::steady_clock::now();
            } else if (std::chrono::steady_clock::now() - since >
                       std::chrono::seconds(patience_s)) {
              std::fprintf(stderr, "stuck at %llu: an element or a wake was lost\n",
                           static_cast<unsigned long long>(now));
              std::abort();
            }
          }
        }) {}
  ~Watchdog() {
    done_.store(true, std::memory_order_release);
    thread_.join();
  }

 private:
  std::atomic<bool> done_{false};
  std::thread thread_;
};

/// Runs body(0) .. body(count - 1), each on a thread of its own.
class Threads {
 public:
  template <typename Body>
  void start(unsigned count, Body body) {
    for (unsigned i = 0; i < count; ++i) threads_.emplace_back([body, i] { body(i); });
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  ~Threads() { join(); }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace sluice::test
