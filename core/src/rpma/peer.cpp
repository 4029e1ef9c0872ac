// SPDX-License-Identifier: BSD-3-Clause
#include <librpma.h>

#include <mutex>

#include "rpma/call.hpp"
#include "sluice/core/rpma/error.hpp"
#include "sluice/core/rpma/handles.hpp"

namespace sluice::rpma {

Result<std::shared_ptr<Peer>> Peer::open(const std::string& address,
                                         rpma_util_ibv_context_type type) {
  install_errno_safe_log();
  const bool local = type == RPMA_UTIL_IBV_CONTEXT_LOCAL;
  const std::lock_guard lock(library_mutex());
  ibv_context* context = nullptr;
  CallOutcome outcome =
      call([&] { return ::rpma_utils_get_ibv_context(address.c_str(), type, &context); });
  if (!outcome.ok()) {
    // librpma's own errno is not to be relied on here: name resolution leaves whatever it likes.
    const Status cause =
        make_status(outcome.code, outcome.os_error,
                    local ? "find the RDMA device that has the address " + address
                          : "find the RDMA device from which " + address + " is reached");
    return outcome.code == RPMA_E_PROVIDER && cause.code() != StatusCode::permission_denied
               ? Status(StatusCode::unreachable, cause.message(), cause.os_error(),
                        cause.rpma_error())
               : cause;
  }
  rpma_peer* peer = nullptr;
  outcome = call([&] { return ::rpma_peer_new(context, &peer); });
  if (!outcome.ok()) {
    return make_status(
        outcome.code, outcome.os_error,
        std::string("make a peer on the device ") + ::ibv_get_device_name(context->device));
  }
  return std::shared_ptr<Peer>(new Peer(peer, context));
}

Result<std::shared_ptr<Peer>> Peer::listen_on(const std::string& local_address) {
  return open(local_address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
}

Result<std::shared_ptr<Peer>> Peer::reach(const std::string& remote_address) {
  return open(remote_address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
}

Peer::~Peer() {
  const std::lock_guard lock(library_mutex());
  (void)::rpma_peer_delete(&peer_);
}

std::string Peer::device_name() const {
  return ::ibv_get_device_name(context_->device);
}

}  // namespace sluice::rpma
