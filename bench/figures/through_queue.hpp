// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../harness/instant_source.hpp"
#include "../harness/rounds.hpp"
#include "../harness/threads.hpp"
#include "workload.hpp"

namespace sluice::bench {

/// How many take part, each on a CPU of its own where there are enough.
struct Crew {
  std::uint32_t pollers = 1;
  std::uint32_t workers = 1;
};

/// What both ways of using a queue share: sources, readers, and the roles' loops.
class QueueContender {
 public:
  QueueContender(const Bench& bench, Crew crew)
      : bench_(bench), crew_(crew), readers_(crew.workers) {
    for (std::uint32_t i = 0; i < crew.pollers; ++i) {
      sources_.push_back(
          std::make_unique<InstantSource>(InstantSource::Options{.pattern = of_connections(1)}));
    }
  }
  QueueContender(const QueueContender&) = delete;
  QueueContender& operator=(const QueueContender&) = delete;
  virtual ~QueueContender() = default;

  [[nodiscard]] Result<Timing> run(std::uint64_t units) {
    reopen();
    for (auto& source : sources_) source->allow(units / crew_.pollers);
    total_ += units;
    std::vector<Role> roles;
    for (std::uint32_t i = 0; i < crew_.pollers; ++i)
      roles.push_back({bench_.cpu(i), [this, i] { poll(i); }});
    for (std::uint32_t i = 0; i < crew_.workers; ++i)
      roles.push_back({bench_.cpu(crew_.pollers + i), [this, i] { work(i); }});
    Result<Timing> timing = run_pinned(roles);
    if (!timing.ok()) return timing;
    SLUICE_RETURN_IF_ERROR(readers_.check(crew_.pollers, total_ / crew_.pollers));
    return timing;
  }
  [[nodiscard]] Contender contender(std::string name) {
    return {std::move(name), [this](std::uint64_t units) { return run(units); },
            std::uint64_t{kBatch} * crew_.pollers};
  }

 protected:
  [[nodiscard]] Backoff backoff() const { return {bench_, crew_.pollers + crew_.workers}; }
  [[nodiscard]] bool all_read() const noexcept { return readers_.count() >= total_; }

  const Bench& bench_;
  const Crew crew_;
  std::vector<std::unique_ptr<InstantSource>> sources_;
  Readers readers_;

 private:
  virtual void reopen() = 0;
  virtual void poll(std::uint32_t index) = 0;
  virtual void work(std::uint32_t index) = 0;

  std::uint64_t total_ = 0;
};

/// Puts all the items into the queue, however often that takes.
template <typename Queue, typename T>
void push_all(Queue& queue, typename Queue::Producer& producer, std::span<const T> items,
              Backoff& backoff) {
  while (!items.empty()) {
    const std::size_t pushed = queue.push_some(producer, items);
    backoff.after(pushed);
    items = items.subspan(pushed);
  }
}

/// Carries the completions themselves.
template <typename Queue>
class CompletionsThrough final : public QueueContender {
 public:
  CompletionsThrough(const Bench& bench, Crew crew)
      : QueueContender(bench, crew),
        queue_(std::make_unique<Queue>(std::size_t{kBufferCount} * kBatch * crew.pollers)) {}

 private:
  void reopen() override { queue_->reopen(); }
  void poll(std::uint32_t index) override {
    InstantSource& source = *sources_[index];
    typename Queue::Producer producer(*queue_);
    Backoff wait = backoff();
    std::array<ibv_wc, kBatch> polled;
    while (!source.exhausted()) {
      const std::uint32_t count = source.poll(polled).count;
      push_all<Queue, ibv_wc>(*queue_, producer, {polled.data(), count}, wait);
    }
  }
  void work(std::uint32_t index) override {
    typename Queue::Consumer consumer(*queue_);
    Backoff wait = backoff();
    std::array<ibv_wc, kBatch> taken;
    while (!all_read()) {
      const std::size_t count = queue_->pop_some(consumer, taken);
      if (count > 0) readers_[index].read({taken.data(), count});
      wait.after(count);
    }
    queue_->finish();
  }

  const std::unique_ptr<Queue> queue_;
};

/// Carries pointers to batches, and back to their poller through a second queue of the kind.
template <typename Queue>
class BatchesThrough final : public QueueContender {
 public:
  BatchesThrough(const Bench& bench, Crew crew)
      : QueueContender(bench, crew),
        there_(std::make_unique<Queue>(std::size_t{kBufferCount} * crew.pollers)) {
    for (std::uint32_t i = 0; i < crew.pollers; ++i) {
      free_.push_back(std::make_unique<FreeBuffers>(kBufferCount, i));
      back_.push_back(std::make_unique<Queue>(kBufferCount));
    }
  }

 private:
  void reopen() override { there_->reopen(); }
  void poll(std::uint32_t index) override {
    InstantSource& source = *sources_[index];
    FreeBuffers& free = *free_[index];
    typename Queue::Producer producer(*there_);
    typename Queue::Consumer consumer(*back_[index]);
    Backoff wait = backoff();
    std::array<Buffer*, kBatch> returned;
    while (!source.exhausted()) {
      Buffer* buffer = free.take();
      if (buffer == nullptr) {
        const std::size_t count = back_[index]->pop_some(consumer, returned);
        for (std::size_t i = 0; i < count; ++i) free.put(returned[i]);
        wait.after(count);
        continue;
      }
      buffer->count = source.poll({buffer->completions, kBatch}).count;
      push_all<Queue, Buffer*>(*there_, producer, {&buffer, 1}, wait);
    }
  }
  void work(std::uint32_t index) override {
    typename Queue::Consumer consumer(*there_);
    std::vector<std::unique_ptr<typename Queue::Producer>> producers;
    for (auto& queue : back_)
      producers.push_back(std::make_unique<typename Queue::Producer>(*queue));
    Backoff wait = backoff();
    std::array<Buffer*, kBatch> taken;
    while (!all_read()) {
      const std::size_t count = there_->pop_some(consumer, taken);
      for (Buffer* const buffer : std::span(taken.data(), count)) {
        readers_[index].read({buffer->completions, buffer->count});
        push_all<Queue, Buffer*>(*back_[buffer->poller], *producers[buffer->poller], {&buffer, 1},
                                 wait);
      }
      wait.after(count);
    }
    there_->finish();
  }

  const std::unique_ptr<Queue> there_;
  std::vector<std::unique_ptr<FreeBuffers>> free_;
  std::vector<std::unique_ptr<Queue>> back_;
};

}  // namespace sluice::bench
