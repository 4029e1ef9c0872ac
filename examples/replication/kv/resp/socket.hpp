// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

#include "descriptor.hpp"
#include "sluice/core/status.hpp"

namespace sluice::kv {

struct Listener {
  Descriptor fd;      ///< non-blocking, close-on-exec
  std::string where;  ///< "127.0.0.1:6379", "[::1]:6379"
  std::uint16_t port = 0;
  bool loopback = false;  ///< only this machine reaches it
};

/// Listens on the first address that `address` stands for. Errors: one line that names the address
/// and the port.
[[nodiscard]] Result<Listener> listen_on(const std::string& address, std::uint16_t port);

/// What a client's socket needs: no delay of small replies, a probe of peers that vanished.
void prepare_client(int fd) noexcept;

}  // namespace sluice::kv
