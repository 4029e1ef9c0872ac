// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/modes.hpp"

namespace sluice {

const char* to_string(Order order) noexcept {
  switch (order) {
    case Order::inlined: return "inline";
    case Order::none: return "none";
    case Order::per_connection: return "per_connection";
    case Order::per_key: return "per_key";
  }
  return "unknown";
}

const char* to_string(WaitMode mode) noexcept {
  switch (mode) {
    case WaitMode::busy: return "busy";
    case WaitMode::event: return "event";
    case WaitMode::adaptive: return "adaptive";
  }
  return "unknown";
}

const char* to_string(SpinMode mode) noexcept {
  return mode == SpinMode::fixed ? "fixed" : "adaptive";
}

}  // namespace sluice
