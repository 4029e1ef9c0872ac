// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../harness/instant_source.hpp"
#include "../harness/rounds.hpp"
#include "../harness/spsc_ring.hpp"
#include "workload.hpp"

namespace sluice::bench {

/// The floor: the source polled into buffers, handed over through a single-producer ring, and back
/// through another.
class Floor {
 public:
  Floor(const Bench& bench, std::vector<ibv_wc> pattern, std::uint32_t batch, std::uint32_t buffers)
      : bench_(bench),
        batch_(batch),
        source_({.pattern = std::move(pattern), .batch = batch}),
        readers_(1),
        free_(buffers),
        there_(buffers),
        back_(buffers) {}

  [[nodiscard]] Result<Timing> run(std::uint64_t units) {
    source_.allow(units);
    total_ += units;
    const Role roles[] = {{bench_.cpu(0), [this] { poll(); }}, {bench_.cpu(1), [this] { work(); }}};
    Result<Timing> timing = run_pinned(roles);
    if (!timing.ok()) return timing;
    SLUICE_RETURN_IF_ERROR(readers_.check(1, total_));
    return timing;
  }
  [[nodiscard]] Contender contender(std::string name = "floor") {
    return {std::move(name), [this](std::uint64_t units) { return run(units); }, batch_};
  }

 private:
  void poll() {
    Backoff backoff(bench_, 2);
    while (!source_.exhausted()) {
      Buffer* buffer = free_.take();
      if (buffer == nullptr) {
        for (Buffer* back = nullptr; back_.pop(back);) free_.put(back);
        buffer = free_.take();
      }
      if (buffer == nullptr) {
        backoff.idle();
        continue;
      }
      backoff.busy();
      buffer->count = source_.poll({buffer->completions, batch_}).count;
      SLUICE_CHECK(there_.push(buffer), "a ring as long as the buffers was full");
    }
  }
  void work() {
    Backoff backoff(bench_, 2);
    Reader& reader = readers_[0];
    while (reader.count.load(std::memory_order_relaxed) < total_) {
      Buffer* buffer = nullptr;
      if (!there_.pop(buffer)) {
        backoff.idle();
        continue;
      }
      backoff.busy();
      reader.read({buffer->completions, buffer->count});
      SLUICE_CHECK(back_.push(buffer), "a ring as long as the buffers was full");
    }
  }

  const Bench& bench_;
  const std::uint32_t batch_;
  InstantSource source_;
  Readers readers_;
  FreeBuffers free_;
  SpscRing<Buffer*> there_;
  SpscRing<Buffer*> back_;
  std::uint64_t total_ = 0;
};

}  // namespace sluice::bench
