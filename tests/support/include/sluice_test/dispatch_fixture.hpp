// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/dispatch/dispatcher.hpp"
#include "sluice_test/synthetic_source.hpp"

namespace sluice::testing {

/// How long a test waits for what must happen: far beyond what a loaded machine needs.
inline constexpr std::chrono::seconds kGenerous{30};

/// Waits for a condition that another thread brings about. False: it did not, in `bound`.
template <typename Condition>
[[nodiscard]] bool eventually(Condition condition, std::chrono::nanoseconds bound = kGenerous) {
  const auto end = std::chrono::steady_clock::now() + bound;
  for (std::uint32_t i = 0; !condition(); ++i) {
    if (std::chrono::steady_clock::now() > end) return false;
    if (i < 64) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));  // between two looks
    }
  }
  return true;
}

/// A door that handlers stand at until it is opened.
class Gate {
 public:
  void open() {
    open_.store(true, std::memory_order_release);
    open_.notify_all();
  }
  void pass() noexcept {
    waiting_.fetch_add(1, std::memory_order_relaxed);
    open_.wait(false, std::memory_order_acquire);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint32_t waiting() const { return waiting_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> open_{false};
  std::atomic<std::uint32_t> waiting_{0};
};

/// Notes what one connection's handler was given: wr_ids that must come as 0, 1, 2, ... per source,
/// one call at a time.
struct ConnectionLog {
  std::atomic<std::uint64_t> count{0};
  std::atomic<std::uint32_t> inside{0};
  std::atomic<std::uint32_t> overlaps{0};
  std::atomic<std::uint32_t> out_of_order{0};
  std::array<std::uint64_t, 8> next{};  ///< per stream; only ever touched inside a call

  /// Streams: the wr_id's top byte says which.
  static std::uint64_t wr_id(std::uint64_t stream, std::uint64_t sequence) {
    return stream << 56 | sequence;
  }
  void enter() {
    if (inside.fetch_add(1, std::memory_order_acq_rel) != 0) overlaps.fetch_add(1);
  }
  void note(const ibv_wc& wc) {
    const auto stream = wc.wr_id >> 56;
    const auto sequence = wc.wr_id & ((std::uint64_t{1} << 56) - 1);
    if (next.at(stream) != sequence) out_of_order.fetch_add(1);
    next.at(stream) = sequence + 1;
    count.fetch_add(1, std::memory_order_release);
  }
  void leave() { inside.fetch_sub(1, std::memory_order_acq_rel); }

  void expect_in_order() const {
    EXPECT_EQ(overlaps.load(), 0u) << "one connection's handler ran on two workers at once";
    EXPECT_EQ(out_of_order.load(), 0u);
  }
};

/// A handler that notes what it is given in the ConnectionLog that is its context.
inline void note_in_log(std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
  auto& log = *static_cast<ConnectionLog*>(info.context);
  log.enter();
  for (const ibv_wc& wc : batch) log.note(wc);
  log.leave();
}

inline std::unique_ptr<Dispatcher> start(DispatcherConfig config = {},
                                         DispatcherCallbacks callbacks = {}) {
  auto dispatcher = Dispatcher::start(std::move(config), std::move(callbacks));
  EXPECT_TRUE(dispatcher.ok()) << dispatcher.status().to_string();
  return dispatcher.ok() ? std::move(*dispatcher) : nullptr;
}

/// Pollers and workers in small numbers; what most tests want.
inline DispatcherConfig small_config(std::uint32_t workers = 2, WaitMode wait = WaitMode::event,
                                     Drive drive = Drive::own_threads) {
  DispatcherConfig config;
  config.drive = drive;
  config.pollers[0].wait = wait;
  config.pollers[0].batch_count = 64;
  config.pollers[0].sources_max = 256;
  config.pools[0].workers = workers;
  config.connections_max = 256;
  return config;
}

/// Runs every part of a host-driven dispatcher once, all on this thread. Returns the work done.
inline std::size_t run_all_once(Dispatcher& dispatcher) {
  std::size_t work = 0;
  for (std::uint32_t i = 0; i < dispatcher.poller_count(); ++i)
    work += dispatcher.poller(i).run_once();
  for (std::uint32_t i = 0; i < dispatcher.worker_count(); ++i)
    work += dispatcher.worker(i).run_once();
  return work + dispatcher.control().run_once();
}

template <typename Condition>
[[nodiscard]] bool run_until(Dispatcher& dispatcher, Condition condition,
                             std::chrono::nanoseconds bound = kGenerous) {
  const auto end = std::chrono::steady_clock::now() + bound;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    run_all_once(dispatcher);
  }
  return true;
}

inline bool readable(int fd, int timeout_ms = 0) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, timeout_ms) == 1;
}

/// Puts one completion into a source, waiting for room.
inline void complete_when_room(SyntheticSource& source, std::uint32_t qp_num, std::uint64_t wr_id) {
  ASSERT_TRUE(eventually([&] { return source.complete(qp_num, wr_id); }))
      << "the source stays full";
}

/// Runs detach_async on a host-driven dispatcher to its end.
template <typename Handle>
DetachReport detach_by_running(Dispatcher& dispatcher, Handle& handle,
                               std::chrono::nanoseconds deadline = kGenerous) {
  auto report = std::make_shared<DetachReport>();
  auto done = std::make_shared<bool>(false);
  handle.detach_async(deadline, [report, done](const DetachReport& r) {
    *report = r;
    *done = true;
  });
  EXPECT_TRUE(run_until(dispatcher, [&] { return *done; }));
  return *report;
}

}  // namespace sluice::testing
