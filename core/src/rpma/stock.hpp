// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <librpma.h>

#include <memory>
#include <utility>

#include "sluice/core/rpma/handles.hpp"

namespace sluice::rpma {

/// A pool and the registered memory under it, nothing posted yet.
struct Stock {
  std::shared_ptr<MemoryRegion> memory;
  std::unique_ptr<ReceivePool> pool;
};

/// `provided`: the memory to use; empty: it is allocated. `poster_over` makes the poster for the
/// registered memory. `depth` and `buffer_size` win over those in `options`.
template <typename PosterOver>
[[nodiscard]] Result<Stock> make_stock(const std::shared_ptr<Peer>& peer, std::uint32_t depth,
                                       std::uint32_t buffer_size, ReceivePoolConfig options,
                                       std::span<std::byte> provided, PosterOver&& poster_over) {
  options.depth = depth;
  options.buffer_size = buffer_size;
  if (depth < 1 || buffer_size < 1) {
    return Status(StatusCode::invalid_argument, "depth and buffer size must be at least 1");
  }
  const std::size_t bytes = std::size_t{depth} * buffer_size;
  if (!provided.empty() && provided.size() < bytes) {
    return Status(StatusCode::invalid_argument,
                  "the memory provided has " + std::to_string(provided.size()) + " bytes; " +
                      std::to_string(depth) + " receives need " + std::to_string(bytes));
  }
  Result<std::shared_ptr<MemoryRegion>> memory =
      provided.empty()
          ? MemoryRegion::allocate(peer, bytes, RPMA_MR_USAGE_RECV)
          : MemoryRegion::register_memory(peer, provided.first(bytes), RPMA_MR_USAGE_RECV);
  if (!memory) return memory.status();
  Result<std::unique_ptr<ReceivePool>> pool =
      ReceivePool::create(std::move(options), (*memory)->memory(), poster_over((*memory)->get()));
  if (!pool) return pool.status();
  return Stock{std::move(*memory), std::move(*pool)};
}

}  // namespace sluice::rpma
