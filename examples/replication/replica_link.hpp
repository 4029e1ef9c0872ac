// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "protocol.hpp"
#include "sluice/core/cacheline.hpp"
#include "sluice/core/rpma/handles.hpp"
#include "sluice/core/status.hpp"
#include "sluice/dispatch/dispatcher.hpp"

namespace replicate {

/// Where a replica listens, and the process behind it if this program started it.
struct ReplicaTarget {
  std::string host;
  std::uint16_t port = 0;
  pid_t pid = -1;       ///< -1: started by hand
  int control_fd = -1;  ///< hangs up when the process ends
};

class ReplicaLink;

/// One connection to a replica, with its ring of send buffers. Its address is the context of its
/// completions.
///
/// A record may be sent when a place of the ring is free *and* the replica has a receive for it. A
/// place is free when its send has completed; a receive is granted anew by the acknowledgement.
/// Both only count upwards and both are in order, so one comparison says it all: see has_room().
struct OutboundConnection {
  ReplicaLink* replica = nullptr;
  std::uint32_t index = 0;
  std::shared_ptr<sluice::rpma::MemoryRegion> ring;  ///< `window` places of record_frame_bytes
  std::shared_ptr<sluice::ConnectionHandle> handle;
  std::uint64_t posted = 0;  ///< by the feeder
  alignas(sluice::kCacheLine) std::atomic<std::uint64_t> sent{
      0};  ///< completed; by this lane's worker
};

/// A replica as the primary sees it: its connections, its credits, and how it fared.
///
/// Threads: connect(), has_room(), send() and the rest the feeder (the main thread); lost() and
/// took_report() any.
class ReplicaLink {
 public:
  /// Why a replica is out of the game.
  enum class Down : std::uint8_t {
    no,
    process_ended,  ///< the process that we started is gone
    closed,         ///< a connection was closed or lost
    send_failed,    ///< a send completed with an error
    stalled,        ///< no progress for --timeout seconds
    protocol,       ///< it sent something that makes no sense
    reported,       ///< it reported a failure: see report()
  };

  ReplicaLink(std::uint32_t number, ReplicaTarget target, std::uint32_t connections,
              std::uint32_t window, std::size_t frame_bytes);

  /// The memory to send from; `wanted` gets its window cut down to what the replica grants later.
  [[nodiscard]] sluice::Status allocate(const std::shared_ptr<sluice::rpma::Peer>& peer);
  /// Takes the Welcome of a connection: the window becomes what the replica has receives for.
  [[nodiscard]] sluice::Status welcome(const Welcome& welcome, std::uint64_t record_size);

  /// There is room for this frame, given how many records the replica has appended.
  [[nodiscard]] bool has_room(std::uint64_t number, std::uint64_t appended) const noexcept;
  /// Copies the frame into its connection's ring and posts it. Call it when there is room.
  [[nodiscard]] sluice::Status send(std::uint64_t number,
                                    std::span<const std::byte> frame) noexcept;

  /// Marks it as down; the first reason stays. True: this was the first.
  bool lost(Down why) noexcept;
  [[nodiscard]] Down down() const noexcept { return down_.load(std::memory_order_acquire); }
  [[nodiscard]] bool up() const noexcept { return down() == Down::no; }
  /// For people: "its process ended", or the replica's own words.
  [[nodiscard]] std::string why_down() const;

  void took_report(const Report& report) noexcept;
  /// nullptr until it has come.
  [[nodiscard]] const Report* report() const noexcept {
    return reported_.load(std::memory_order_acquire) ? &report_ : nullptr;  // (1) pairs with (2)
  }
  [[nodiscard]] bool identical() const noexcept {
    return report() != nullptr && report()->outcome == Report::Outcome::identical;
  }

  /// The feeder looks at this regularly: true when there was no progress for longer than `limit`.
  [[nodiscard]] bool stalled(std::uint64_t appended, std::chrono::steady_clock::time_point now,
                             std::chrono::nanoseconds limit) noexcept;

  /// Starts tearing its connections down; does not wait.
  void detach(std::chrono::nanoseconds deadline);

  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  [[nodiscard]] const ReplicaTarget& target() const noexcept { return target_; }
  [[nodiscard]] std::string name() const;
  [[nodiscard]] std::uint32_t window() const noexcept { return window_; }
  [[nodiscard]] std::span<OutboundConnection> connections() noexcept {
    return {connections_.get(), connection_count_};
  }

 private:
  OutboundConnection& connection_for(std::uint64_t number) const noexcept {
    return connections_[number % connection_count_];
  }

  const std::uint32_t number_;
  const ReplicaTarget target_;
  const std::uint32_t connection_count_;
  const std::size_t frame_bytes_;
  std::uint32_t window_;  ///< frames in flight per connection
  std::unique_ptr<OutboundConnection[]> connections_;
  std::atomic<Down> down_{Down::no};
  std::atomic<bool> reported_{false};
  Report report_;
  std::uint64_t last_appended_ = 0;
  std::chrono::steady_clock::time_point last_progress_ = std::chrono::steady_clock::now();
  bool detached_ = false;
};

}  // namespace replicate
