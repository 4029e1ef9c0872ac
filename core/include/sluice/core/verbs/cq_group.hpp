// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/core/completion_source.hpp"

namespace sluice::verbs {

struct CqGroupConfig {
  std::uint32_t cq_count = 1;   ///< CQs on the one channel; 1..1024
  std::uint32_t cq_size = 256;  ///< entries of each
  std::vector<int>
      completion_vectors;        ///< spread over the CQs round-robin; empty: 0..num_comp_vectors-1
  bool solicited_only = false;   ///< events only for solicited or failed completions
  std::uint32_t ack_batch = 64;  ///< events acknowledged at once (ibv_ack_cq_events takes a mutex)
};

/// CQs of raw verbs, all on one completion channel: what librpma hides (any completion vector, one
/// descriptor for many CQs, bulk acks). One source, one owner. The context must outlive it; queue
/// pairs and SRQs made on its CQs must be destroyed before it (checked). With `solicited_only`
/// other completions raise no event: whoever sleeps is not woken by them.
class CqGroup final : public CompletionSource {
 public:
  static Result<std::shared_ptr<CqGroup>> create(ibv_context* context, CqGroupConfig config,
                                                 std::string name);
  ~CqGroup() override;
  PollOutcome poll(std::span<ibv_wc> out) noexcept override;
  EventOutcome consume_event() noexcept override;
  [[nodiscard]] int wait_fd() const noexcept override;
  [[nodiscard]] std::uint32_t capacity() const noexcept override;
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  /// The CQ to create queue pairs on.
  [[nodiscard]] ibv_cq* cq(std::uint32_t index) const noexcept;
  [[nodiscard]] std::uint32_t cq_count() const noexcept;
  [[nodiscard]] int completion_vector(std::uint32_t index) const noexcept;

 private:
  struct Cq;
  CqGroup(CqGroupConfig config, std::string name);
  [[nodiscard]] Status open(ibv_context* context, int vectors);
  [[nodiscard]] EventOutcome take_event() noexcept;
  static void acknowledge(Cq& of) noexcept;
  CqGroupConfig config_;
  std::string name_;
  ibv_comp_channel* channel_ = nullptr;
  std::vector<Cq> cqs_;
  std::uint32_t next_ = 0;    ///< where the next poll starts
  PollOutcome poll_fault_;    ///< final once set
  EventOutcome event_fault_;  ///< final once set
};

}  // namespace sluice::verbs
