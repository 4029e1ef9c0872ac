// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>

#include <string>

namespace sluice::system_test {

/// This test program once more, as the client of a server in this process: it connects, sends one
/// message and then does nothing until it is killed.
class PeerProcess {
 public:
  PeerProcess(const std::string& address, const std::string& port);
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  ~PeerProcess() { kill(); }
  /// SIGKILL, and waits until it is gone.
  void kill();

 private:
  pid_t pid_;
};

constexpr const char* kPeerArgument = "--be-a-peer";
/// What the process does; returns its exit status.
int be_a_peer(const std::string& address, const std::string& port);

}  // namespace sluice::system_test
