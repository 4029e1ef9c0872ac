// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <mutex>
#include <string_view>

#include "sluice/core/status.hpp"

namespace sluice::rpma {

/// The one mutex under everything of librpma that is not thread-safe (its manual's THREAD SAFETY
/// section): connection requests, endpoints, mr_reg/mr_dereg, srq_new/srq_delete,
/// get_ibv_context; conn_delete and req_connect, which use them inside. Every handle of this module
/// takes it; a host that calls librpma itself takes it too. Recursive, so that a host may hold it
/// around several handles' calls.
[[nodiscard]] std::recursive_mutex& library_mutex() noexcept;

/// A Status out of a librpma code (`RPMA_E_*`, 0 is ok) and the errno it left behind. `tried` says
/// what was tried with which value, e.g. "listen on 10.0.0.1:7204". The message names the librpma
/// code; RPMA_E_PROVIDER's errno decides the StatusCode (EADDRINUSE -> address_in_use, ...).
[[nodiscard]] Status make_status(int rpma_code, int os_error, std::string_view tried);

/// Sends librpma's log to a sink that keeps errno as it was (its own would clobber it, and callers
/// tell EAGAIN from failures by it). Called by Peer; idempotent.
void install_errno_safe_log() noexcept;

}  // namespace sluice::rpma
