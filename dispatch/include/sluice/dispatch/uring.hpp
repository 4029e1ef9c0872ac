// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>
#include <liburing.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "sluice/core/uring/cqe.hpp"
#include "sluice/dispatch/handler.hpp"

namespace sluice {

/// A handler of io_uring completions as a handler of what carries them: see uring_handler().
template <typename F>
class UringHandler {
 public:
  explicit UringHandler(F callable) noexcept(std::is_nothrow_move_constructible_v<F>)
      : callable_(std::move(callable)) {}

  void operator()(std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
    while (!batch.empty()) {  // bound: the batch; seldom more than one turn
      const std::size_t count = std::min(batch.size(), kCqesMax);
      io_uring_cqe cqes[kCqesMax];
      for (std::size_t i = 0; i < count; ++i) cqes[i] = uring::to_cqe(batch[i]);
      callable_(std::span<const io_uring_cqe>(cqes, count), info);
      batch = batch.subspan(count);
    }
  }

 private:
  static constexpr std::size_t kCqesMax = 32;  ///< 512 bytes of stack
  F callable_;
};

/// Makes a Handler of `void(std::span<const io_uring_cqe>, const BatchInfo&) noexcept`, for a
/// uring::Ring as the source:
///
///     dispatcher->attach(ring, {.pool = "apply", .order = Order::none},
///         uring_handler([&](std::span<const io_uring_cqe> cqes, const BatchInfo&) noexcept {
///           for (const io_uring_cqe& cqe : cqes) log.written(cqe.user_data, cqe.res);
///         }));
///
/// It takes no more room than the callable (none is allocated up to Handler::kInlineSize); a batch
/// is copied to the stack. Called with up to 32 at a time, in their order.
template <typename F>
requires(
    std::is_invocable_v<std::remove_cvref_t<F>&, std::span<const io_uring_cqe>, const BatchInfo&>)
    [[nodiscard]] UringHandler<std::remove_cvref_t<F>> uring_handler(F&& callable) {
  static_assert(std::is_nothrow_invocable_v<std::remove_cvref_t<F>&, std::span<const io_uring_cqe>,
                                            const BatchInfo&>,
                "a completion handler must be noexcept: nobody could catch what it throws");
  return UringHandler<std::remove_cvref_t<F>>(std::forward<F>(callable));
}

/// Makes a key function of completions (AttachOptions::key) of `std::uint64_t(const io_uring_cqe&)
/// noexcept`: which lane an io_uring completion goes to. Where RDMA completions of the same pool
/// have the same keys, both go through the same lanes.
template <typename F>
requires(std::is_invocable_r_v<std::uint64_t, const std::remove_cvref_t<F>&, const io_uring_cqe&>)
    [[nodiscard]] auto uring_key(F&& key) {
  static_assert(std::is_nothrow_invocable_v<const std::remove_cvref_t<F>&, const io_uring_cqe&>,
                "a key function must be noexcept: nobody could catch what it throws");
  return [key = std::forward<F>(key)](const ibv_wc& wc) noexcept -> std::uint64_t {
    return key(uring::to_cqe(wc));
  };
}

}  // namespace sluice
