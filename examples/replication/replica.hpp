// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "doorbell.hpp"
#include "one_at_a_time.hpp"
#include "options.hpp"
#include "process.hpp"
#include "protocol.hpp"
#include "record_log.hpp"
#include "sluice/core/rpma/handles.hpp"
#include "sluice/core/status.hpp"
#include "sluice/dispatch/dispatcher.hpp"

namespace replicate {

/// One connection from the primary. Its address is the context of its completions.
struct InboundConnection {
  std::uint32_t index = 0;
  std::shared_ptr<sluice::rpma::MemoryRegion> replies;  ///< kReplySlots places of kReplyFrameBytes
  std::shared_ptr<sluice::ConnectionHandle> handle;
  std::atomic<sluice::rpma::Connection*> link{nullptr};  ///< to send on; set once it is established
  std::atomic<bool> closed{false};
  std::uint64_t replies_sent = 0;  ///< by whoever answers, one at a time
  alignas(sluice::kCacheLine) std::atomic<std::uint64_t> replies_done{0};

  static constexpr std::uint32_t kReplySlots = 8;
};

/// Takes one copy from one primary, then ends.
///
///   any worker:     a connection's receives -> check each record -> park it in the log
///   one worker:     append what is complete -> give the receives back -> acknowledge
///   main thread:    sleeps; at the end reads the copy back, renames it, and reports
///
/// All connections take their receives from one shared receive queue with one receive CQ, so
/// there is one source, one handler, and memory for the credits handed out, not for each
/// connection's worst case.
class Replica {
 public:
  Replica(const Options& options, Interrupts& interrupts, Starter& starter);
  ~Replica();
  /// Listens, takes the copy, reports. Ok: the copy is complete and has its name.
  [[nodiscard]] sluice::Status run();

 private:
  // Set-up, in this order.
  sluice::Status open_device(const HostPort& where);
  sluice::Status start_dispatcher();
  sluice::Status start_listening(const HostPort& where);

  // On the dispatcher's set-up thread.
  std::optional<sluice::ConnectionOptions> on_request(std::span<const std::byte> private_data);
  sluice::Status admit(const Hello& hello);
  void on_connected(const std::shared_ptr<sluice::ConnectionHandle>& handle);

  // On the dispatcher's workers; the last three by one of them at a time (appender_).
  void on_received(std::span<const ibv_wc> batch, InboundConnection& from) noexcept;
  void on_sent(std::span<const ibv_wc> batch, InboundConnection& to) noexcept;
  void append_and_answer() noexcept;
  void answer() noexcept;
  [[nodiscard]] bool send_frame(InboundConnection& to, FrameHeader header,
                                std::span<const std::byte> payload) noexcept;

  // On the dispatcher's control thread.
  void on_closed(InboundConnection& connection) noexcept;

  // On the main thread.
  template <typename Done>
  sluice::Status wait_until(Done done, std::optional<std::chrono::milliseconds> limit);
  sluice::Status serve(const HostPort& where);
  sluice::Status take_copy();
  sluice::Status finish_copy();
  void report_and_wait(const sluice::Status& outcome);

  void fail(sluice::StatusCode code, std::string message) noexcept;
  [[nodiscard]] sluice::Status failure();

  const Options& options_;
  Interrupts& interrupts_;
  Starter& starter_;
  Doorbell doorbell_;

  // What handlers use is declared before the dispatcher, so that it is destroyed after it: the
  // dispatcher's destructor returns only when no handler runs any more. Registered memory and the
  // queue come first of all: the device may write into them until the last queue pair is gone.
  std::shared_ptr<sluice::rpma::Peer> peer_;
  std::shared_ptr<sluice::rpma::SharedReceiveQueue> srq_;
  sluice::ReceivePool* receives_ = nullptr;
  std::unique_ptr<RecordLog> log_;

  // Written on the set-up thread before the first completion of the connection in question.
  std::uint64_t session_ = 0;  ///< 0: no primary yet; it does not change any more once it is set
  std::vector<InboundConnection*> stripes_;                      ///< record r comes over [r % size]
  std::vector<std::unique_ptr<InboundConnection>> connections_;  ///< all that were ever admitted

  // Of whoever appends and answers.
  OneAtATime appender_;
  InboundConnection* answer_on_ = nullptr;  ///< where the last appended record came from
  std::uint64_t acknowledged_ = 0;
  Report report_;  ///< the main thread's until report_ready_
  std::atomic<bool> report_ready_{false};
  bool report_sent_ = false;

  std::atomic<std::uint32_t> established_{0};
  std::atomic<std::uint32_t> closed_{0};
  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;  ///< failures only
  sluice::Status failure_;    ///< the first

  std::unique_ptr<sluice::Dispatcher> dispatcher_;
  std::shared_ptr<sluice::SourceHandle> receive_source_;
  std::unique_ptr<sluice::Dispatcher::Listener> listener_;
};

}  // namespace replicate
