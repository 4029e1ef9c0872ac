// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "sluice/core/status.hpp"

namespace replicate {

/// How the program ends; --help lists them. An end by SIGINT or SIGTERM is 128 + the signal.
enum ExitCode : int {
  kExitOk = 0,
  kExitInternal = 1,  ///< a state that should not be
  kExitUsage = 2,     ///< an option that cannot work
  kExitFile = 3,      ///< the input, an output or the JSON file
  kExitRdma = 4,      ///< device, address, port, refused connection, limits
  kExitQuorum = 5,    ///< too few replicas are left; a replica: its primary is gone
  kExitDiffers = 6,   ///< a copy is not identical, or the device failed
  kExitTimeout = 7,   ///< nothing moved for --timeout seconds
};

/// The exit code for a failed operation.
inline int exit_code_of(const sluice::Status& status) noexcept {
  using enum sluice::StatusCode;
  switch (status.code()) {
    case ok: return kExitOk;
    case invalid_argument: return kExitUsage;
    case io_error:
    case permission_denied: return kExitFile;
    case connection_lost: return kExitQuorum;
    case timed_out: return kExitTimeout;
    case device_failed: return kExitDiffers;
    case internal: return kExitInternal;
    default: return kExitRdma;
  }
}

/// Why there is no device for this address, and what to do about it.
inline sluice::Status no_device_hint(const sluice::Status& why, const std::string& address) {
  return sluice::Status(sluice::StatusCode::unreachable,
                        "no RDMA device for " + address + " (" + why.message() +
                            "): run this under softrdma-run, or give the address of a device that "
                            "has one (rdma link)",
                        why.os_error(), why.rpma_error());
}

}  // namespace replicate
