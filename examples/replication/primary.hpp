// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "commit_tracker.hpp"
#include "doorbell.hpp"
#include "files.hpp"
#include "options.hpp"
#include "process.hpp"
#include "progress.hpp"
#include "protocol.hpp"
#include "replica_link.hpp"
#include "sha256.hpp"
#include "sluice/core/rpma/handles.hpp"
#include "sluice/core/status.hpp"
#include "sluice/dispatch/dispatcher.hpp"
#include "summary.hpp"

namespace replicate {

/// Ships the file to all replicas and finds out what became of it.
///
///   main thread:  reads a record -> checksums -> copies it into each replica's ring -> posts;
///                 sleeps when a replica has no room, and deals with replicas that are lost
///   any worker:   a replica's acknowledgement -> its mark -> the commit mark
///   any worker:   a connection's completed sends -> places in its ring
class Primary {
 public:
  Primary(const Options& options, const InputFile& input, std::vector<ReplicaTarget> targets,
          Interrupts& interrupts);
  ~Primary();
  /// Ships, waits for the reports, fills the summary in either case. Ok: everything is committed,
  /// and a quorum of replicas reported a copy that is identical.
  [[nodiscard]] sluice::Status run(Summary& summary);

 private:
  // The phases of run(), in this order.
  sluice::Status open_device();
  sluice::Status start_dispatcher();
  sluice::Status connect_all();
  sluice::Status ship();
  sluice::Status await_reports();
  void fill_in(Summary& summary) const;

  sluice::Status connect(ReplicaLink& replica, OutboundConnection& connection);

  // On the dispatcher's workers.
  void on_replies(std::span<const ibv_wc> batch, OutboundConnection& from) noexcept;
  void on_sent(std::span<const ibv_wc> batch, OutboundConnection& to) noexcept;
  void lost(ReplicaLink& replica, ReplicaLink::Down why) noexcept;

  // On the main thread.
  sluice::Status read_record(std::uint64_t number);
  sluice::Status send_to_all(std::uint64_t number, std::span<const std::byte> frame);
  template <typename Done>
  sluice::Status wait_until(Done done);
  sluice::Status look_around();
  void look_for_ended_processes();
  void look_for_stalled(std::chrono::steady_clock::time_point now);
  void kill_one_if_due();
  sluice::Status drop_the_lost();
  std::uint32_t count_up() const noexcept;

  const Options& options_;
  const InputFile& input_;
  Interrupts& interrupts_;
  const std::uint64_t records_;
  const std::uint64_t session_;
  Doorbell doorbell_;
  Progress progress_;

  // What handlers use is declared before the dispatcher, so that it is destroyed after it; memory
  // that the device uses comes first of all.
  std::shared_ptr<sluice::rpma::Peer> peer_;
  std::shared_ptr<sluice::rpma::SharedReceiveQueue> srq_;  ///< for the replicas' answers
  sluice::ReceivePool* answers_ = nullptr;
  std::vector<std::unique_ptr<ReplicaLink>> replicas_;
  CommitTracker tracker_;

  // The feeder's.
  std::vector<std::byte> frame_;  ///< the record that is being sent
  std::size_t frame_size_ = 0;
  Sha256 sha_;
  std::optional<Digest> digest_;
  bool killed_one_ = false;
  std::vector<bool> dropped_;
  std::chrono::steady_clock::time_point started_, committed_all_;
  std::chrono::steady_clock::time_point next_stall_check_;
  std::vector<pollfd> watched_;  ///< doorbell, signals, processes

  std::unique_ptr<sluice::Dispatcher> dispatcher_;
  std::shared_ptr<sluice::SourceHandle> answer_source_;
};

}  // namespace replicate
