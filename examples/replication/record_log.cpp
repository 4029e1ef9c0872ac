// SPDX-License-Identifier: BSD-3-Clause
#include "record_log.hpp"

#include <array>
#include <utility>

namespace replicate {

RecordLog::RecordLog(OutputFile file, std::uint32_t depth, bool sync_each_run)
    : file_(std::move(file)), sync_each_run_(sync_each_run), places_(depth + 1) {}

std::string_view RecordLog::to_string(Put put) noexcept {
  switch (put) {
    case Put::ok: return "ok";
    case Put::repeated: return "it was there already";
    case Put::too_far_ahead: return "it is further ahead than the credits allow";
    case Put::bad_end: return "the end frame makes no sense";
  }
  return "?";
}

RecordLog::Put RecordLog::put(const Frame& frame, sluice::ReceivedBuffer buffer) noexcept {
  const std::uint64_t number = frame.header.number;
  const std::uint64_t appended = this->appended();
  if (number < appended) return Put::repeated;
  if (number - appended >= places_.size()) return Put::too_far_ahead;
  Place& place = place_of(number);
  // (5) acquire: pairs with release (6) in free_place(): the place's last tenant is gone. A second
  // frame of the same number, on another worker, fails here.
  if (place.claimed.exchange(true, std::memory_order_acquire)) return Put::repeated;
  place.is_end = frame.header.kind == FrameKind::end;
  if (place.is_end && !decode_end(frame.payload)) return Put::bad_end;
  place.payload = frame.payload;
  place.buffer = std::move(buffer);
  place.ready.store(number + 1, std::memory_order_release);  // (7) release: pairs with acquire (8)
  return Put::ok;
}

RecordLog::Appended RecordLog::append_ready() noexcept {
  const std::uint64_t first = appended_.load(std::memory_order_relaxed);
  std::array<iovec, kRunMax> pieces;
  std::size_t count = 0;
  Appended result;
  while (count < kRunMax && !ended_.load(std::memory_order_relaxed)) {
    Place& place = place_of(first + count);
    // (8) acquire: pairs with release (7): the payload.
    if (place.ready.load(std::memory_order_acquire) != first + count + 1) break;
    if (place.is_end) {
      if (count > 0) break;  // what comes before goes to the file first
      end_ = *decode_end(place.payload);
      ended_.store(true, std::memory_order_release);  // (4) release: pairs with (3)
      free_place(place);
      return result;
    }
    pieces[count++] = {const_cast<std::byte*>(place.payload.data()), place.payload.size()};
  }
  if (count == 0) return result;

  result.status = file_.append(std::span(pieces).first(count));
  if (result.status.ok() && sync_each_run_) result.status = file_.sync();
  if (!result.status.ok()) return result;  // the buffers stay where they are: no more credits

  for (std::size_t i = 0; i < count; ++i) free_place(place_of(first + i));
  appended_.store(first + count, std::memory_order_release);  // (2) release: pairs with (1)
  result.records = count;
  result.last = first + count - 1;
  return result;
}

void RecordLog::free_place(Place& place) noexcept {
  place.payload = {};
  place.buffer.release();
  place.claimed.store(false, std::memory_order_release);  // (6) release: pairs with acquire (5)
}

}  // namespace replicate
