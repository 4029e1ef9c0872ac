// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "sluice/core/status.hpp"

namespace sluice::kv {

/// Owns a descriptor. Threads: one.
class Descriptor {
 public:
  Descriptor() noexcept = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  void reset() noexcept;

 private:
  int fd_ = -1;
};

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
