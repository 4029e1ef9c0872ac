// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../harness/instant_source.hpp"
#include "sluice/core/cacheline.hpp"
#include "sluice/core/status.hpp"

/// The work that every contender of the handoff figures does: completions of an InstantSource, each
/// read by the handler.
namespace sluice::bench {

inline constexpr std::uint32_t kBatch = 32;         ///< completions of a full batch
inline constexpr std::uint32_t kBufferCount = 512;  ///< batch buffers of a poller

/// Batches of completions that belong to queue pairs 1..connections in turn. With more connections
/// than a batch has completions each batch has another choice of them, the same in every run.
[[nodiscard]] inline std::vector<ibv_wc> of_connections(std::uint32_t connections,
                                                        std::uint32_t batch = kBatch) {
  constexpr std::uint32_t kChoices = 16;
  if (connections <= batch) {
    return receives(batch,
                    [&](std::size_t i) { return static_cast<std::uint32_t>(i % connections) + 1; });
  }
  std::mt19937 random(1);  // NOLINT: the same choices each time, on purpose
  std::vector<std::uint32_t> numbers(connections);
  std::iota(numbers.begin(), numbers.end(), 1U);
  return receives(std::size_t{kChoices} * batch, [&](std::size_t i) {
    // The first `batch` places of a shuffle that is made as it goes.
    const std::size_t place = i % batch;
    std::swap(numbers[place], numbers[place + random() % (connections - place)]);
    return numbers[place];
  });
}

/// The handler: reads each completion. One a worker.
struct alignas(kCacheLine) Reader {
  std::uint64_t wr_ids = 0;
  std::uint64_t bytes = 0;
  std::atomic<std::uint64_t> count{0};  ///< written by its worker alone

  void read(std::span<const ibv_wc> completions) noexcept {
    std::uint64_t ids = 0;
    std::uint64_t length = 0;
    for (const ibv_wc& wc : completions) {
      ids += wc.wr_id;
      length += wc.byte_len;
    }
    wr_ids += ids;
    bytes += length;
    count.store(count.load(std::memory_order_relaxed) + completions.size(),
                std::memory_order_relaxed);
  }
};

/// Sees each connection's completions come in the order in which their source gave them. For
/// handlers that are not run twice at a time for one connection; those of two connections may run
/// on two workers, so each connection has a line of its own.
class OrderCheck {
 public:
  static constexpr std::uint32_t kConnections = 64;  ///< queue pairs 1..64

  void note(const ibv_wc& wc) noexcept {
    Connection& connection = connections_[wc.qp_num];
    connection.disorders += wc.wr_id < connection.next ? 1 : 0;
    connection.next = wc.wr_id + 1;
  }
  /// When no handler runs.
  [[nodiscard]] Status status() const {
    std::uint64_t disorders = 0;
    for (const Connection& connection : connections_) disorders += connection.disorders;
    if (disorders == 0) return {};
    return {StatusCode::internal,
            std::to_string(disorders) + " completions overtook others of their connection"};
  }

 private:
  struct alignas(kCacheLine) Connection {
    std::uint64_t next = 0;  ///< wr_id
    std::uint64_t disorders = 0;
  };

  std::array<Connection, kConnections + 1> connections_{};
};

/// The readers of a contender's workers, and what they must have read in the end.
class Readers {
 public:
  explicit Readers(std::size_t workers) : readers_(workers) {}

  Reader& operator[](std::size_t worker) noexcept { return readers_[worker]; }
  [[nodiscard]] std::uint64_t count() const noexcept {
    std::uint64_t sum = 0;
    for (const Reader& reader : readers_) sum += reader.count.load(std::memory_order_relaxed);
    return sum;
  }
  /// Each of `sources` InstantSources has given its completions 0 .. each - 1: all were read, and
  /// none twice.
  [[nodiscard]] Status check(std::uint64_t sources, std::uint64_t each) const {
    std::uint64_t ids = 0;
    for (const Reader& reader : readers_) ids += reader.wr_ids;
    const std::uint64_t expected = sources * (each * (each - 1) / 2);  // modulo 2^64, as the sum is
    if (count() == sources * each && ids == expected) return {};
    return {StatusCode::internal, "read " + std::to_string(count()) + " completions of " +
                                      std::to_string(sources * each) +
                                      ", or not each of them once"};
  }

 private:
  std::vector<Reader> readers_;
};

/// A buffer as the dispatcher's own: a line of its own for the link, then the completions.
struct alignas(kCacheLine) Buffer {
  Buffer* next = nullptr;
  std::uint32_t count = 0;
  std::uint32_t poller = 0;
  alignas(kCacheLine) ibv_wc completions[kBatch];
};

/// A poller's buffers. The last one that came back is taken first: it is in the cache.
class FreeBuffers {
 public:
  explicit FreeBuffers(std::size_t count, std::uint32_t poller = 0) : buffers_(count) {
    for (Buffer& buffer : buffers_) {
      buffer.poller = poller;
      put(&buffer);
    }
  }
  void put(Buffer* buffer) noexcept {
    buffer->next = free_;
    free_ = buffer;
  }
  /// nullptr: none is here.
  [[nodiscard]] Buffer* take() noexcept {
    Buffer* const buffer = free_;
    if (buffer != nullptr) free_ = buffer->next;
    return buffer;
  }
  [[nodiscard]] std::span<Buffer> all() noexcept { return buffers_; }
  /// Whose completion that is.
  [[nodiscard]] Buffer* owner_of(const ibv_wc* completion) noexcept {
    const auto distance = reinterpret_cast<const std::byte*>(completion) -
                          reinterpret_cast<const std::byte*>(buffers_.data());
    return &buffers_[static_cast<std::size_t>(distance) / sizeof(Buffer)];
  }

 private:
  std::vector<Buffer> buffers_;
  Buffer* free_ = nullptr;
};

}  // namespace sluice::bench
