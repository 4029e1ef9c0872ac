// SPDX-License-Identifier: BSD-3-Clause
#include "kv/replication/frame_fill.hpp"

namespace sluice::kv {

Result<FilledFrame> fill_frame(const Log& log, std::uint64_t from, std::span<std::byte> frame) {
  FilledFrame filled{.bytes = wire::FrameHeader::kBytes};
  const auto read = log.read(from, frame.size(), [&](const Entry& entry) {
    const std::size_t bytes = wire::entry_bytes(entry.payload.size());
    if (bytes > frame.size() - filled.bytes) {
      if (filled.count == 0) filled.needed = bytes + wire::FrameHeader::kBytes;
      return false;
    }
    wire::put_entry(entry, frame.subspan(filled.bytes));
    filled.bytes += bytes;
    filled.last_epoch = entry.epoch;
    ++filled.count;
    return true;
  });
  if (!read) return read.status();
  return filled;
}

}  // namespace sluice::kv
