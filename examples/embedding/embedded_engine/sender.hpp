// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

#include "sluice/core/status.hpp"

namespace embedded {

/// Sends `records` on each of kConnections connections to the engine, and waits until all are
/// acknowledged. An ordinary user of Sluice, with the dispatcher's own threads. connection_lost:
/// the engine went away; the message says how far it came.
[[nodiscard]] sluice::Status send_records(const std::string& address, std::uint16_t port,
                                          std::uint32_t records);

}  // namespace embedded
