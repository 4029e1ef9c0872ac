// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "files.hpp"
#include "protocol.hpp"
#include "sluice/core/cacheline.hpp"
#include "sluice/core/receive_pool.hpp"

namespace replicate {

/// Puts the records of all connections back into their order and appends them to the copy.
///
/// A record stays in the receive buffer that it arrived in until it is on file: put() parks the
/// buffer in the place of its number, append_ready() writes the longest run that is complete and
/// gives its buffers back to the shared receive queue. So the log needs as many places as there are
/// receives; the primary's credits see to it that no record comes from further ahead, and put()
/// refuses one that does.
///
/// Threads: put() by any worker; append_ready() by one at a time (OneAtATime). No allocation and no
/// mutex per record.
class RecordLog {
 public:
  /// `depth`: how many records may be in flight, >= 1; the end frame may come on top of them.
  RecordLog(OutputFile file, std::uint32_t depth, bool sync_each_run);

  enum class Put : std::uint8_t { ok, repeated, too_far_ahead, bad_end };
  static std::string_view to_string(Put put) noexcept;
  /// Takes a checked data or end frame and the buffer that it lies in.
  [[nodiscard]] Put put(const Frame& frame, sluice::ReceivedBuffer buffer) noexcept;

  struct Appended {
    std::uint64_t records = 0;          ///< by this call
    std::optional<std::uint64_t> last;  ///< the last one's number
    sluice::Status status;              ///< why the file takes no more
  };
  /// Writes one run (kRunMax at most), syncs it if asked to, and only then counts it as appended.
  [[nodiscard]] Appended append_ready() noexcept;

  /// So many records are on file.
  [[nodiscard]] std::uint64_t appended() const noexcept {
    return appended_.load(std::memory_order_acquire);  // (1) acquire: pairs with (2)
  }
  /// All records are on file, and this is what the end frame said about them.
  [[nodiscard]] const EndOfStream* end() const noexcept {
    return ended_.load(std::memory_order_acquire) ? &end_ : nullptr;  // (3) acquire: pairs with (4)
  }
  /// For the main thread, once end() is there or nothing is appended any more.
  [[nodiscard]] OutputFile& file() noexcept { return file_; }

  static constexpr std::size_t kRunMax = 64;

 private:
  /// One parked record. `ready` is the record's number + 1 when the rest is filled in.
  struct alignas(sluice::kCacheLine) Place {
    std::atomic<std::uint64_t> ready{0};
    std::atomic<bool> claimed{false};
    bool is_end = false;
    sluice::ReceivedBuffer buffer;
    std::span<const std::byte> payload;
  };

  Place& place_of(std::uint64_t number) noexcept { return places_[number % places_.size()]; }
  void free_place(Place& place) noexcept;

  OutputFile file_;
  const bool sync_each_run_;
  std::vector<Place> places_;
  EndOfStream end_;
  alignas(sluice::kCacheLine) std::atomic<std::uint64_t> appended_{0};
  std::atomic<bool> ended_{false};
};

}  // namespace replicate
