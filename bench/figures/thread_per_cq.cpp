// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../harness/rounds.hpp"
#include "../harness/threads.hpp"
#include "figures.hpp"
#include "sluice/dispatch/dispatcher.hpp"
#include "workload.hpp"

namespace sluice::bench {
namespace {

constexpr std::uint32_t kBurstsInFlight = 8;
constexpr std::uint32_t kQueueCounts[] = {1, 8, 64};

/// Bursts of completions that arrive at completion queues in turn: once one is handled, the next
/// one arrives at the queue whose turn it is, which signals its descriptor if it is armed.
class Traffic {
 public:
  class Queue;

  explicit Traffic(std::uint32_t queues, bool blocking);

  /// `bursts` in all; the first few arrive at once. Nobody is at work yet.
  void start(std::uint64_t bursts);
  /// One has been handled, by any thread.
  void handled();
  [[nodiscard]] bool finished() const noexcept {
    return handled_.load(std::memory_order_seq_cst) >= end_;
  }
  [[nodiscard]] Status status() const;
  [[nodiscard]] const std::vector<std::shared_ptr<Queue>>& queues() const noexcept {
    return queues_;
  }

 private:
  void arrive();

  std::vector<std::shared_ptr<Queue>> queues_;
  std::uint64_t end_ = 0;
  alignas(kCacheLine) std::atomic<std::uint64_t> next_{0};
  alignas(kCacheLine) std::atomic<std::uint64_t> handled_{0};
};

class Traffic::Queue final : public CompletionSource {
 public:
  Queue(Traffic& traffic, bool blocking)
      : traffic_(traffic),
        pattern_(of_connections(1)),
        fd_(::eventfd(0, EFD_CLOEXEC | (blocking ? 0 : EFD_NONBLOCK))) {}
  ~Queue() override {
    if (fd_ >= 0) ::close(fd_);
  }

  PollOutcome poll(std::span<ibv_wc> out) noexcept override {
    // (1) seq_cst: after the arming (3), see consume_event().
    if (out.size() < kBatch || waiting_.load(std::memory_order_seq_cst) == 0) return {};
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    std::copy_n(pattern_.data(), kBatch, out.data());
    return {kBatch, SourceFault::none, 0};
  }
  /// Takes the event, waiting for it if the descriptor is a blocking one, and re-arms. A Dekker
  /// pair: (3) arms, then poll() looks by (1); an arrival is counted by (2), then looks by (4).
  EventOutcome consume_event() noexcept override {
    std::uint64_t events = 0;
    if (::read(fd_, &events, sizeof events) != sizeof events) return {};
    armed_.store(true, std::memory_order_seq_cst);  // (3)
    return {EventOutcome::Kind::consumed, SourceFault::none, 0};
  }
  [[nodiscard]] int wait_fd() const noexcept override { return fd_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept override {
    return kBurstsInFlight * kBatch;
  }
  [[nodiscard]] std::string_view name() const noexcept override { return "bursts"; }
  void retire(std::span<const ibv_wc>) noexcept override { traffic_.handled(); }

  void arrive() noexcept {
    waiting_.fetch_add(1, std::memory_order_seq_cst);                                // (2)
    if (armed_.load(std::memory_order_seq_cst) && armed_.exchange(false)) signal();  // (4)
  }
  void signal() const noexcept {
    const std::uint64_t one = 1;
    const ssize_t written = ::write(fd_, &one, sizeof one);
    SLUICE_CHECK(written == sizeof one, "an eventfd refused to count");
  }

 private:
  Traffic& traffic_;
  const std::vector<ibv_wc> pattern_;
  const int fd_;
  alignas(kCacheLine) std::atomic<std::uint32_t> waiting_{0};
  std::atomic<bool> armed_{true};
};

Traffic::Traffic(std::uint32_t queues, bool blocking) {
  for (std::uint32_t i = 0; i < queues; ++i) {
    queues_.push_back(std::make_shared<Queue>(*this, blocking));
  }
}

Status Traffic::status() const {
  for (const auto& queue : queues_) {
    if (queue->wait_fd() < 0) {
      return {StatusCode::resource_exhausted, "no eventfd for a completion queue", errno};
    }
  }
  return {};
}

void Traffic::start(std::uint64_t bursts) {
  next_.store(0, std::memory_order_relaxed);
  handled_.store(0, std::memory_order_relaxed);
  end_ = bursts;
  for (std::uint32_t i = 0; i < kBurstsInFlight; ++i) arrive();
}

void Traffic::arrive() {
  const std::uint64_t turn = next_.fetch_add(1, std::memory_order_relaxed);
  if (turn < end_) queues_[turn % queues_.size()]->arrive();
}

void Traffic::handled() {
  arrive();
  handled_.fetch_add(1, std::memory_order_seq_cst);
}

/// A thread for each queue: waits for an event, polls to empty, handles.
class ThreadPerQueue {
 public:
  ThreadPerQueue(const Bench& bench, std::uint32_t queues)
      : bench_(bench), traffic_(queues, true), readers_(queues) {}

  [[nodiscard]] Result<Timing> run(std::uint64_t units) {
    SLUICE_RETURN_IF_ERROR(traffic_.status());
    freed_ = false;
    traffic_.start(units / kBatch);
    std::vector<Role> roles;
    for (std::uint32_t i = 0; i < traffic_.queues().size(); ++i) {
      roles.push_back({bench_.cpu(i), [this, i] { serve(i); }});
    }
    return run_pinned(roles);
  }
  [[nodiscard]] Contender contender() {
    return {"thread_per_cq", [this](std::uint64_t units) { return run(units); }, kBatch};
  }

 private:
  void serve(std::uint32_t index) {
    Traffic::Queue& queue = *traffic_.queues()[index];
    std::array<ibv_wc, kBatch> polled;
    while (!traffic_.finished()) {
      for (std::uint32_t count = 0; (count = queue.poll(polled).count) > 0;) {
        readers_[index].read({polled.data(), count});
        queue.retire({polled.data(), count});
      }
      if (traffic_.finished()) break;
      queue.consume_event();
    }
    // Whoever sees the end first frees the others, who may wait for events that will not come.
    if (freed_.exchange(true)) return;
    for (const auto& other : traffic_.queues()) other->signal();
  }

  const Bench& bench_;
  Traffic traffic_;
  Readers readers_;
  std::atomic<bool> freed_{false};
};

/// One poller and one worker for all the queues.
class OnePoller {
 public:
  OnePoller(const Bench& bench, std::uint32_t queues)
      : bench_(bench), traffic_(queues, false), readers_(1) {}

  [[nodiscard]] Status start() {
    SLUICE_RETURN_IF_ERROR(traffic_.status());
    DispatcherConfig config;
    config.drive = Drive::host;
    config.pollers[0].wait = WaitMode::busy;
    Result<std::unique_ptr<Dispatcher>> dispatcher = Dispatcher::start(std::move(config));
    if (!dispatcher.ok()) return dispatcher.status();
    dispatcher_ = std::move(*dispatcher);
    for (const auto& queue : traffic_.queues()) {
      AttachOptions options;
      options.order = Order::none;
      const auto handle = dispatcher_->attach(
          queue, options, [this](std::span<const ibv_wc> completions, const BatchInfo&) noexcept {
            readers_[0].read(completions);
          });
      if (!handle.ok()) return handle.status();
    }
    return {};
  }
  [[nodiscard]] Result<Timing> run(std::uint64_t units) {
    traffic_.start(units / kBatch);
    const auto serve = [this](Runnable& part) {
      Backoff backoff(bench_, 2);
      while (!traffic_.finished()) backoff.after(part.run_once());
      part.release_thread();
    };
    const Role roles[] = {{bench_.cpu(0), [&] { serve(dispatcher_->poller(0)); }},
                          {bench_.cpu(1), [&] { serve(dispatcher_->worker(0)); }}};
    return run_pinned(roles);
  }
  [[nodiscard]] Contender contender() {
    return {"ours", [this](std::uint64_t units) { return run(units); }, kBatch};
  }

 private:
  const Bench& bench_;
  Traffic traffic_;
  Readers readers_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

std::string figure_of(std::uint32_t queues) {
  return fmt::format("handoff.none.speedup.thread_per_cq.{}", queues);
}

Status run_thread_per_cq(Bench& bench) {
  for (const std::uint32_t queues : kQueueCounts) {
    const std::string figure = figure_of(queues);
    if (!bench.wanted(figure)) continue;
    ThreadPerQueue threads(bench, queues);
    OnePoller ours(bench, queues);
    SLUICE_RETURN_IF_ERROR(ours.start());
    const auto rounds = measure(bench, {threads.contender(), ours.contender()});
    if (!rounds.ok()) return rounds.status();
    SLUICE_RETURN_IF_ERROR(add_ratio(bench, figure, *rounds, "thread_per_cq", "ours"));
  }
  return {};
}

}  // namespace

FigureGroup handoff_thread_per_cq() {
  FigureGroup group{"handoff.none, a thread for each CQ", {}, run_thread_per_cq};
  for (const std::uint32_t queues : kQueueCounts) {
    group.figures.push_back({figure_of(queues), "x", std::nullopt});
  }
  return group;
}

}  // namespace sluice::bench
