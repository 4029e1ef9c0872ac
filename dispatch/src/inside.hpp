// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace sluice::detail {

/// Marks that this thread is inside a dispatcher's run_once(): a blocking detach or stop from there
/// would wait for itself.
class InsideRound {
 public:
  InsideRound() noexcept { ++depth(); }
  ~InsideRound() { --depth(); }
  InsideRound(const InsideRound&) = delete;
  InsideRound& operator=(const InsideRound&) = delete;
  [[nodiscard]] static bool active() noexcept { return depth() > 0; }

 private:
  static int& depth() noexcept {
    thread_local int value = 0;
    return value;
  }
};

}  // namespace sluice::detail
