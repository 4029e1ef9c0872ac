// SPDX-License-Identifier: BSD-3-Clause
#include "sender.hpp"

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "../support.hpp"
#include "protocol.hpp"
#include "sluice/dispatch/dispatcher.hpp"

namespace embedded {

using namespace std::chrono_literals;
using sluice::BatchInfo;
using sluice::Status;
using sluice::StatusCode;

namespace {

/// A window's acknowledgements at most, and the first one.
constexpr std::uint32_t kReplies = 2 * kWindow;
constexpr auto kStopTimeout = 5s;

/// Shared by the handlers and the sending thread.
struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  bool lost = false;
};

struct Stream {
  std::shared_ptr<sluice::ConnectionHandle> handle;
  std::shared_ptr<sluice::rpma::MemoryRegion> memory;
  sluice::ReceivePool* replies = nullptr;
  // Under Progress::mutex.
  bool ready = false;
  std::uint64_t durable = 0, sends_done = 0, out_of_order = 0;
  // The sending thread's.
  std::uint32_t sent = 0;
};

void take_completions(std::span<const ibv_wc> batch, Stream& stream, Progress& progress) noexcept {
  const std::lock_guard lock(progress.mutex);
  for (const ibv_wc& wc : batch) {
    if (wc.status != IBV_WC_SUCCESS) progress.lost = true;
    if (stream.replies == nullptr || !stream.replies->owns(wc.wr_id)) {
      ++stream.sends_done;
      continue;
    }
    const auto buffer = stream.replies->take(wc);
    Acknowledgement reply{};
    if (wc.status != IBV_WC_SUCCESS || buffer.bytes().size() != sizeof reply) continue;
    std::memcpy(&reply, buffer.bytes().data(), sizeof reply);
    if (reply.durable < stream.durable || (stream.ready && reply.durable == stream.durable))
      ++stream.out_of_order;
    stream.durable = reply.durable;
    stream.ready = true;
  }
  progress.changed.notify_all();
}

}  // namespace

Status send_records(const std::string& address, std::uint16_t port, std::uint32_t records) {
  auto peer = sluice::rpma::Peer::reach(address);
  if (!peer) return embedding::no_device(address, peer.status());
  Progress progress;
  std::array<Stream, kConnections> streams;
  auto dispatcher = sluice::Dispatcher::start(sluice::DispatcherConfig{});
  if (!dispatcher) return dispatcher.status();

  const auto connect = [&](std::uint32_t number) -> Status {
    Stream& stream = streams[number];
    auto memory =
        sluice::rpma::MemoryRegion::allocate(*peer, kWindow * kRecordBytes, RPMA_MR_USAGE_SEND);
    if (!memory) return memory.status();
    stream.memory = std::move(*memory);
    const Hello hello{kMagic, number};
    sluice::rpma::ConnectionConfig config;
    config.send_queue_size = 2 * kWindow;
    config.receive_queue_size = kReplies;
    sluice::ConnectionOptions options;
    options.handler = [&stream, &progress](std::span<const ibv_wc> batch,
                                           const BatchInfo&) noexcept {
      take_completions(batch, stream, progress);
    };
    options.on_event = [&progress](sluice::ConnectionId, sluice::rpma::ConnectionEvent) {
      const std::lock_guard lock(progress.mutex);
      progress.lost = true;
      progress.changed.notify_all();
    };
    auto handle = (*dispatcher)
                      ->connect(*peer, address, std::to_string(port), config,
                                std::as_bytes(std::span(&hello, 1)), std::move(options));
    if (!handle) return handle.status();
    stream.handle = std::move(*handle);
    const std::lock_guard lock(progress.mutex);
    auto replies = stream.handle->connection().stock(kReplies, sizeof(Acknowledgement));
    if (!replies) return replies.status();
    stream.replies = *replies;
    return {};
  };

  const auto send_all = [&]() -> Status {
    for (std::uint32_t i = 0; i < kConnections; ++i) SLUICE_RETURN_IF_ERROR(connect(i));
    const auto has_room = [&](const Stream& stream) {
      return stream.ready && stream.sent - stream.durable < kWindow &&
             stream.sent - stream.sends_done < kWindow;
    };
    for (std::uint32_t n = 0; n < records; ++n) {
      for (std::uint32_t i = 0; i < kConnections; ++i) {
        Stream& stream = streams[i];
        {
          std::unique_lock lock(progress.mutex);
          progress.changed.wait(lock, [&] { return progress.lost || has_room(stream); });
          if (progress.lost) return {StatusCode::connection_lost, "the engine went away"};
        }
        const std::size_t offset = n % kWindow * kRecordBytes;
        fill_record(stream.memory->memory().subspan(offset, kRecordBytes), {i, n, records, 0});
        SLUICE_RETURN_IF_ERROR(
            stream.handle->connection().send(stream.memory.get(), offset, kRecordBytes, n));
        ++stream.sent;
      }
    }
    for (Stream& stream : streams) {
      std::unique_lock lock(progress.mutex);
      progress.changed.wait(lock, [&] { return progress.lost || stream.durable == records; });
      if (stream.durable < records) return {StatusCode::connection_lost, "the engine went away"};
    }
    return {};
  };

  Status outcome = send_all();
  const Status stopped = (*dispatcher)->stop(kStopTimeout);
  std::uint64_t durable = 0, out_of_order = 0;
  for (const Stream& stream : streams) {
    durable += stream.durable;
    out_of_order += stream.out_of_order;
  }
  if (!outcome.ok())
    return Status(outcome.code(), outcome.message() + ": " + std::to_string(durable) + " of " +
                                      std::to_string(std::uint64_t{records} * kConnections) +
                                      " records were acknowledged");
  if (out_of_order > 0)
    return {StatusCode::internal,
            std::to_string(out_of_order) + " acknowledgements came out of order"};
  return stopped;
}

}  // namespace embedded
