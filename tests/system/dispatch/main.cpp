// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "child.hpp"
#include "support.hpp"

namespace sluice::system_test {

PeerProcess::PeerProcess(const std::string& address, const std::string& port) : pid_(::fork()) {
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ > 0) return;
  // Only what is safe after a fork of a process with threads.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::execl("/proc/self/exe", "peer", kPeerArgument, address.c_str(), port.c_str(), nullptr);
  ::_exit(127);
}

void PeerProcess::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int be_a_peer(const std::string& address, const std::string& port) try {
  const auto peer = require(rpma::Peer::reach(address));
  const auto connection = require(
      require(rpma::ConnectionRequest::connect_to(peer, address, port, patient())).connect());
  contract::await_event(*connection, rpma::ConnectionEvent::established);
  require(connection->send_with_imm(nullptr, 0, 0, 1, 1));
  for (;;) ::pause();
} catch (const std::exception& error) {
  std::fprintf(stderr, "the peer process: %s\n", error.what());
  return 1;
}

}  // namespace sluice::system_test

/// librpma destroys the id of an incoming request only by connecting it: one that was rejected, or
/// that it could not equip, stays until the process ends.
extern "C" const char* __lsan_default_suppressions() {  // NOLINT: the sanitizer's name
  return "leak:softrdma::Listener::on_events\nleak:softrdma::Listener::request\n";
}

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], sluice::system_test::kPeerArgument) == 0) {
    return sluice::system_test::be_a_peer(argv[2], argv[3]);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
