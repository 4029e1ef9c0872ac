// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <rdma/rdma_cma.h>

#include <cstdint>
#include <memory>
#include <string>

#include "support/fixture.hpp"

namespace sluice::contract {

/// A queue pair of raw verbs, connected by rdma_cm to an endpoint of librpma: what a CqGroup is
/// for. Its completions go to the given CQs. The CQs must outlive it.
class RawLink {
 public:
  struct Config {
    ibv_cq* send_cq = nullptr;
    ibv_cq* receive_cq = nullptr;
    std::uint32_t send_depth = 128;
    std::uint32_t receive_depth = 8;
  };
  RawLink(const Site& site, Config config);
  RawLink(const RawLink&) = delete;
  RawLink& operator=(const RawLink&) = delete;
  ~RawLink();

  /// Connects to a new endpoint; the other side is `server()`, a connection of librpma.
  void connect(const rpma::ConnectionConfig& server);
  [[nodiscard]] rpma::Connection& server() { return *server_; }
  [[nodiscard]] std::uint32_t qp_num() const { return id_->qp->qp_num; }

  /// Bytes that can be sent; registered.
  [[nodiscard]] std::span<std::byte> memory() { return memory_; }
  void send(std::size_t offset, std::size_t length, std::uint64_t wr_id, bool signalled = true,
            bool solicited = false);
  /// The local queue pair goes to error: what is posted comes back flushed.
  void disconnect();

 private:
  rdma_cm_event_type next_event();
  void destroy() noexcept;

  const Site& site_;
  Config config_;
  std::vector<std::byte> memory_;
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* id_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_mr* region_ = nullptr;
  std::shared_ptr<rpma::Connection> server_;
};

}  // namespace sluice::contract
