// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>
#include <liburing.h>

#include <bit>
#include <cstdint>

namespace sluice::uring {

/// An io_uring completion as it travels through pollers, lanes and workers, which carry ibv_wc:
/// user_data is the wr_id, `res` the byte_len (bit by bit: it may be a negative errno), `flags` the
/// imm_data. The status is always success: for a failed completion pollers clear the fields that
/// verbs call invalid, and what failed here is for the handler to see in `res`. Everything else is
/// 0, qp_num included.
[[nodiscard]] inline ibv_wc to_wc(const io_uring_cqe& cqe) noexcept {
  ibv_wc wc{};
  wc.wr_id = cqe.user_data;
  wc.status = IBV_WC_SUCCESS;
  wc.byte_len = std::bit_cast<std::uint32_t>(cqe.res);
  wc.imm_data = cqe.flags;
  return wc;
}

/// The inverse: to_cqe(to_wc(cqe)) has the same user_data, res and flags.
[[nodiscard]] inline io_uring_cqe to_cqe(const ibv_wc& wc) noexcept {
  io_uring_cqe cqe;
  cqe.user_data = wc.wr_id;
  cqe.res = std::bit_cast<std::int32_t>(wc.byte_len);
  cqe.flags = wc.imm_data;
  return cqe;
}

static_assert(sizeof(io_uring_cqe::user_data) == sizeof(ibv_wc::wr_id) &&
                  sizeof(io_uring_cqe::res) == sizeof(ibv_wc::byte_len) &&
                  sizeof(io_uring_cqe::flags) == sizeof(ibv_wc::imm_data),
              "each field of a cqe has a field of its size in a wc");
static_assert(sizeof(io_uring_cqe) == sizeof(io_uring_cqe::user_data) + sizeof(io_uring_cqe::res) +
                                          sizeof(io_uring_cqe::flags),
              "a cqe has no other field (rings with larger ones are not made)");

}  // namespace sluice::uring
