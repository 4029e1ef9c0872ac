// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace sluice::test {

/// How many producers, and how many consumers beside them.
inline constexpr unsigned kProducers = 4;
inline constexpr unsigned kConsumers = 4;

/// What goes through each queue, with and without a sanitizer.
inline constexpr std::uint64_t kTenMillion = 10'000'000;

/// That many elements; SLUICE_STRESS_SCALE (environment), above 0, multiplies it: for emulators.
inline std::uint64_t stress_items(std::uint64_t count) {
  const char* const text = std::getenv("SLUICE_STRESS_SCALE");
  const double scale = text != nullptr ? std::strtod(text, nullptr) : 1.0;
  if (!(scale > 0.0)) {
    std::fprintf(stderr, "SLUICE_STRESS_SCALE is not a number above 0: '%s'\n", text);
    std::abort();
  }
  const double scaled = static_cast<double>(count) * scale;
  return scaled < 64.0 ? 64 : static_cast<std::uint64_t>(scaled);
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

/// Who has seen which element: each exactly once. Every consumer has a sheet of its own, so that
/// keeping it orders nothing between them.
class Attendance {
 public:
  class Sheet {
   public:
    void note(std::uint64_t value) {
      const unsigned producer = Tagged::producer(value);
      const std::uint64_t sequence = Tagged::sequence(value);
      if (producer >= producers_ || sequence >= per_producer_) {
        ++invented_;
        return;
      }
      const std::uint64_t at = producer * per_producer_ + sequence;
      const std::uint64_t bit = std::uint64_t{1} << (at % 64);
      duplicated_ += (seen_[at / 64] & bit) != 0;
      seen_[at / 64] |= bit;
    }

   private:
    friend class Attendance;
    std::uint64_t producers_ = 0;
    std::uint64_t per_producer_ = 0;
    std::vector<std::uint64_t> seen_;
    std::uint64_t duplicated_ = 0;
    std::uint64_t invented_ = 0;
  };

  Attendance(unsigned producers, std::uint64_t per_producer, unsigned consumers = kConsumers)
      : total_(producers * per_producer), sheets_(consumers) {
    for (Sheet& sheet : sheets_) {
      sheet.producers_ = producers;
      sheet.per_producer_ = per_producer;
      sheet.seen_.resize(total_ / 64 + 1);
    }
  }

  /// By one thread only.
  [[nodiscard]] Sheet& sheet(unsigned consumer) { return sheets_.at(consumer); }

  /// When all have come to their ends.
  void expect_all_once() const {
    std::uint64_t seen = 0;
    std::uint64_t duplicated = 0;
    std::uint64_t invented = 0;
    for (const Sheet& sheet : sheets_) {
      duplicated += sheet.duplicated_;
      invented += sheet.invented_;
    }
    for (std::uint64_t word = 0; word < total_ / 64 + 1; ++word) {
      std::uint64_t any = 0;
      for (const Sheet& sheet : sheets_) {
        duplicated += static_cast<std::uint64_t>(std::popcount(any & sheet.seen_[word]));
        any |= sheet.seen_[word];
      }
      seen += static_cast<std::uint64_t>(std::popcount(any));
    }
    EXPECT_EQ(total_ - seen, 0u) << "lost";
    EXPECT_EQ(duplicated, 0u);
    EXPECT_EQ(invented, 0u);
  }

 private:
  const std::uint64_t total_;
  std::vector<Sheet> sheets_;
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
