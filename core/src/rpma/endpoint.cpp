// SPDX-License-Identifier: BSD-3-Clause
#include <librpma.h>

#include <cerrno>
#include <mutex>

#include "rpma/call.hpp"
#include "rpma/connection_cfg.hpp"
#include "sluice/core/rpma/error.hpp"
#include "sluice/core/rpma/handles.hpp"

namespace sluice::rpma {
namespace {

void shut_down(rpma_ep* endpoint) noexcept {
  const std::lock_guard lock(library_mutex());
  (void)::rpma_ep_shutdown(&endpoint);
}

}  // namespace

Result<std::unique_ptr<Endpoint>> Endpoint::listen(std::shared_ptr<Peer> peer,
                                                   const std::string& address,
                                                   const std::string& port) {
  std::string what = "listen on " + address + ":" + port;
  rpma_ep* raw = nullptr;
  {
    const std::lock_guard lock(library_mutex());
    const CallOutcome outcome =
        call([&] { return ::rpma_ep_listen(peer->get(), address.c_str(), port.c_str(), &raw); });
    if (!outcome.ok()) return make_status(outcome.code, outcome.os_error, what);
  }
  std::shared_ptr<rpma_ep> endpoint(raw, shut_down);
  int fd = -1;
  (void)::rpma_ep_get_fd(raw, &fd);  // fails only for nullptr
  SLUICE_RETURN_IF_ERROR(set_nonblocking(fd, what));
  return std::unique_ptr<Endpoint>(
      new Endpoint(std::move(peer), std::move(endpoint), fd, std::move(what)));
}

Endpoint::Endpoint(std::shared_ptr<Peer> peer, std::shared_ptr<rpma_ep> endpoint, int fd,
                   std::string what) noexcept
    : peer_(std::move(peer)), endpoint_(std::move(endpoint)), fd_(fd), what_(std::move(what)) {}

Endpoint::~Endpoint() = default;

Result<ConnectionRequest> Endpoint::next_request(const ConnectionConfig& config) {
  // Before an event is taken: a request that could not be configured would be lost.
  const Result<ConnectionConfig::Sizes> sizes = config.sizes();
  if (!sizes) return sizes.status().with_context(what_);
  Result<ConnectionCfg> cfg = ConnectionCfg::make(config, *sizes);
  if (!cfg) return cfg.status().with_context(what_);

  const std::lock_guard lock(library_mutex());
  for (int passed_over = 0; passed_over < kEventsPassedOverMax; ++passed_over) {
    rpma_conn_req* request = nullptr;
    const CallOutcome outcome =
        call([&] { return ::rpma_ep_next_conn_req(endpoint_.get(), cfg->get(), &request); });
    if (outcome.code == RPMA_E_INVAL) continue;  // an event of another kind was consumed
    const bool none = outcome.code == RPMA_E_NO_EVENT ||
                      (outcome.code == RPMA_E_PROVIDER &&
                       (outcome.os_error == EAGAIN || outcome.os_error == EINTR));
    if (none) break;
    if (!outcome.ok()) {
      return make_status(outcome.code, outcome.os_error, what_ + ", take the next request");
    }
    ConnectionRequest made(peer_, config, *sizes, request, "connection accepted on " + what_);
    made.listener_ = endpoint_;
    rpma_conn_private_data data{nullptr, 0};
    if (::rpma_conn_req_get_private_data(request, &data) == 0 && data.ptr != nullptr) {
      const auto* const bytes = static_cast<const std::byte*>(data.ptr);
      made.private_data_.assign(bytes, bytes + data.len);
    }
    return made;
  }
  return Status(StatusCode::no_completion, what_ + ": no request is there now");
}

}  // namespace sluice::rpma
