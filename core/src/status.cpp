// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/status.hpp"

#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace sluice {

std::string_view to_string(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::ok: return "ok";
    case StatusCode::invalid_argument: return "invalid_argument";
    case StatusCode::not_supported: return "not_supported";
    case StatusCode::no_completion: return "no_completion";
    case StatusCode::already_owned: return "already_owned";
    case StatusCode::does_not_fit: return "does_not_fit";
    case StatusCode::resource_exhausted: return "resource_exhausted";
    case StatusCode::address_in_use: return "address_in_use";
    case StatusCode::unreachable: return "unreachable";
    case StatusCode::rejected: return "rejected";
    case StatusCode::connection_lost: return "connection_lost";
    case StatusCode::timed_out: return "timed_out";
    case StatusCode::cancelled: return "cancelled";
    case StatusCode::permission_denied: return "permission_denied";
    case StatusCode::device_failed: return "device_failed";
    case StatusCode::io_error: return "io_error";
    case StatusCode::internal: return "internal";
  }
  return "unknown";
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  std::string text(sluice::to_string(code_));
  text += ": ";
  text += message_;
  if (os_error_ != 0) {
    text += " (errno " + std::to_string(os_error_) + ": " +
            std::generic_category().message(os_error_) + ")";
  }
  return text;
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return {code_, std::string(context) + ": " + message_, os_error_, rpma_error_};
}

void fail_programmer_error(const char* file, int line, std::string_view what) noexcept {
  std::fprintf(stderr, "sluice: programmer error at %s:%d: %.*s\n", file, line,
               static_cast<int>(what.size()), what.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace sluice
