// SPDX-License-Identifier: BSD-3-Clause
#include "replica_link.hpp"

#include <fmt/format.h>

#include <utility>

namespace replicate {

using sluice::Status;
using sluice::StatusCode;

ReplicaLink::ReplicaLink(std::uint32_t number, ReplicaTarget target, std::uint32_t connections,
                         std::uint32_t window, std::size_t frame_bytes)
    : number_(number),
      target_(std::move(target)),
      connection_count_(connections),
      frame_bytes_(frame_bytes),
      window_(window),
      connections_(std::make_unique<OutboundConnection[]>(connections)) {
  for (std::uint32_t i = 0; i < connections; ++i) {
    connections_[i].replica = this;
    connections_[i].index = i;
  }
}

Status ReplicaLink::allocate(const std::shared_ptr<sluice::rpma::Peer>& peer) {
  for (OutboundConnection& connection : connections()) {
    auto ring =
        sluice::rpma::MemoryRegion::allocate(peer, window_ * frame_bytes_, RPMA_MR_USAGE_SEND);
    if (!ring) return ring.status();
    connection.ring = std::move(*ring);
  }
  return {};
}

Status ReplicaLink::welcome(const Welcome& welcome, std::uint64_t record_size) {
  const std::uint32_t granted = welcome.receive_depth / connection_count_;
  if (granted == 0 || welcome.record_size_max < record_size)
    return Status(
        StatusCode::does_not_fit,
        fmt::format("{} has {} receives of {} bytes; {} connections with records of {} need more: "
                    "see its --receive-depth and --record-size",
                    name(), welcome.receive_depth, welcome.record_size_max, connection_count_,
                    record_size));
  window_ = std::min(window_, granted);
  return {};
}

bool ReplicaLink::has_room(std::uint64_t number, std::uint64_t appended) const noexcept {
  const OutboundConnection& connection = connection_for(number);
  const std::uint64_t acknowledged = records_of(appended, connection.index, connection_count_);
  const std::uint64_t sent = connection.sent.load(std::memory_order_acquire);  // (3) pairs with (4)
  return connection.posted - std::min(acknowledged, sent) < window_;
}

Status ReplicaLink::send(std::uint64_t number, std::span<const std::byte> frame) noexcept {
  OutboundConnection& connection = connection_for(number);
  const std::size_t offset = connection.posted % window_ * frame_bytes_;
  std::ranges::copy(frame, connection.ring->memory().begin() + static_cast<std::ptrdiff_t>(offset));
  const Status posted = connection.handle->connection().send(connection.ring.get(), offset,
                                                             frame.size(), connection.posted);
  if (posted.ok()) ++connection.posted;
  return posted;
}

bool ReplicaLink::lost(Down why) noexcept {
  Down expected = Down::no;
  return down_.compare_exchange_strong(expected, why, std::memory_order_acq_rel);
}

std::string ReplicaLink::why_down() const {
  if (report() != nullptr && report()->outcome != Report::Outcome::identical)
    return fmt::format("it says: {}", report()->why());
  switch (down()) {
    case Down::no: return "it is up";
    case Down::process_ended: return "its process ended";
    case Down::closed: return "its connection is closed";
    case Down::send_failed: return "a send to it failed";
    case Down::stalled: return "it made no progress in time";
    case Down::protocol: return "it sent something that makes no sense";
    case Down::reported: return "it reported a failure";
  }
  return "?";
}

void ReplicaLink::took_report(const Report& report) noexcept {
  if (reported_.load(std::memory_order_relaxed)) return;
  report_ = report;
  reported_.store(true, std::memory_order_release);  // (2) release: pairs with (1)
}

bool ReplicaLink::stalled(std::uint64_t appended, std::chrono::steady_clock::time_point now,
                          std::chrono::nanoseconds limit) noexcept {
  // A replica that has all it was sent owes us nothing.
  std::uint64_t posted = 0;
  for (const OutboundConnection& connection : connections()) posted += connection.posted;
  if (appended != last_appended_ || appended == posted || report() != nullptr) {
    last_appended_ = appended;
    last_progress_ = now;
  }
  return now - last_progress_ > limit;
}

void ReplicaLink::detach(std::chrono::nanoseconds deadline) {
  if (std::exchange(detached_, true)) return;
  for (OutboundConnection& connection : connections())
    if (connection.handle != nullptr)
      connection.handle->detach_async(deadline, [](const sluice::DetachReport&) {});
}

std::string ReplicaLink::name() const {
  return fmt::format("replica {} ({}:{})", number_, target_.host, target_.port);
}

}  // namespace replicate
