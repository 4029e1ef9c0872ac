// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <librpma.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "sluice/core/completion_source.hpp"

namespace sluice::rpma {

/// One rpma_cq with a channel of its own: a connection's CQ or receive CQ, or an SRQ's receive CQ.
/// rpma_cq_wait consumes and re-arms (librpma armed it at creation). The fd is made non-blocking.
class CqSource final : public CompletionSource {
 public:
  using Retire = std::function<void(std::span<const ibv_wc>)>;
  /// Told what each poll brought, on the polling thread, before anybody else sees it: receives are
  /// accounted for here. Must not block.
  using Polled = std::function<void(std::span<const ibv_wc>)>;
  /// `keep_alive` owns the cq. `capacity` in entries. `retire` and `polled` may be empty. At most
  /// one source per rpma_cq: its owner would not be the only one otherwise.
  static Result<std::shared_ptr<CqSource>> create(rpma_cq* cq, std::uint32_t capacity,
                                                  std::string name,
                                                  std::shared_ptr<void> keep_alive,
                                                  Retire retire = {}, Polled polled = {});
  PollOutcome poll(std::span<ibv_wc> out) noexcept override;
  EventOutcome consume_event() noexcept override;
  [[nodiscard]] int wait_fd() const noexcept override { return fd_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept override { return capacity_; }
  void retire(std::span<const ibv_wc> completions) noexcept override;
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }

 private:
  CqSource(rpma_cq* cq, int fd, std::uint32_t capacity, std::string name,
           std::shared_ptr<void> keep_alive, Retire retire, Polled polled);
  rpma_cq* cq_;
  int fd_;
  std::uint32_t capacity_;
  std::string name_;
  std::shared_ptr<void> keep_alive_;
  Retire retire_;
  Polled polled_;
  PollOutcome poll_fault_;    ///< final once set
  EventOutcome event_fault_;  ///< final once set
};

/// A connection's CQ and receive CQ on their shared channel: rpma_conn_wait takes an event and
/// re-arms only the CQ it returns (W6); the other stays armed.
class SharedChannelSource final : public CompletionSource {
 public:
  using Retire = std::function<void(std::span<const ibv_wc>)>;
  using Polled = std::function<void(std::span<const ibv_wc>)>;
  /// `keep_alive` owns the connection. `capacity`: entries of both CQs together. A connection
  /// without a receive CQ is fine: the channel then has one CQ.
  static Result<std::shared_ptr<SharedChannelSource>> create(
      rpma_conn* connection, std::uint32_t capacity, std::string name,
      std::shared_ptr<void> keep_alive, Retire retire = {}, Polled polled = {});
  PollOutcome poll(std::span<ibv_wc> out) noexcept override;
  EventOutcome consume_event() noexcept override;
  [[nodiscard]] int wait_fd() const noexcept override { return fd_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept override { return capacity_; }
  void retire(std::span<const ibv_wc> completions) noexcept override;
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }

 private:
  SharedChannelSource(rpma_conn* connection, rpma_cq* cq, rpma_cq* receive_cq, int fd,
                      std::uint32_t capacity, std::string name, std::shared_ptr<void> keep_alive,
                      Retire retire, Polled polled);
  rpma_conn* connection_;
  rpma_cq* cq_;
  rpma_cq* receive_cq_;
  bool receive_first_ = false;  ///< which CQ the next poll starts with, so that neither starves
  int fd_;
  std::uint32_t capacity_;
  std::string name_;
  std::shared_ptr<void> keep_alive_;
  Retire retire_;
  Polled polled_;
  PollOutcome poll_fault_;    ///< final once set
  EventOutcome event_fault_;  ///< final once set
};

}  // namespace sluice::rpma
