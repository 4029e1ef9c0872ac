// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/log/log.hpp"
#include "kv/replication/wire.hpp"
#include "sluice/core/status.hpp"

namespace sluice::kv {

/// What fill_frame() has put behind the place of the header.
struct FilledFrame {
  std::uint32_t count = 0;       ///< entries
  std::size_t bytes = 0;         ///< with the header
  std::uint64_t last_epoch = 0;  ///< of the last of them
  std::size_t needed = 0;  ///< with count 0: the frame that the first entry needs; 0: none is there
};

/// Fills a frame's body with the entries from `from` on, as many as fit. unreachable: trimmed; and
/// what Log::read() fails with. Any thread.
[[nodiscard]] Result<FilledFrame> fill_frame(const Log& log, std::uint64_t from,
                                             std::span<std::byte> frame);

}  // namespace sluice::kv
