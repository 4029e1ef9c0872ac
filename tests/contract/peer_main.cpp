// SPDX-License-Identifier: BSD-3-Clause
// sluice_contract_peer ADDRESS PORT: connects, sends one message, then waits to be killed.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "support/fixture.hpp"

int main(int argc, char** argv) {
  using namespace sluice;
  if (argc != 3) return 2;
  try {
    auto peer = contract::require(rpma::Peer::reach(argv[1]));
    auto request = contract::require(
        rpma::ConnectionRequest::connect_to(peer, argv[1], argv[2], contract::patient()));
    auto connection = contract::require(std::move(request).connect());
    contract::await_event(*connection, rpma::ConnectionEvent::established);
    auto memory = contract::require(rpma::MemoryRegion::allocate(peer, 64, contract::kAllUsages));
    contract::require(connection->send(memory.get(), 0, 8, 1));
    (void)contract::await_completion(*connection->main_cq(), "the send");
    for (;;) ::pause();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sluice_contract_peer: %s\n", error.what());
    return 1;
  }
}
