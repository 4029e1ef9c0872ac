// SPDX-License-Identifier: BSD-3-Clause
// The librdmacm calls that work.
#include "cm.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "log.hpp"

namespace softrdma {
namespace {

socklen_t address_size(const sockaddr* address) noexcept {
  switch (address->sa_family) {
    case AF_INET: return sizeof(sockaddr_in);
    case AF_INET6: return sizeof(sockaddr_in6);
    default: return 0;
  }
}

__be16 port_of(const sockaddr* address) noexcept {
  if (address->sa_family == AF_INET) return reinterpret_cast<const sockaddr_in*>(address)->sin_port;
  if (address->sa_family == AF_INET6)
    return reinterpret_cast<const sockaddr_in6*>(address)->sin6_port;
  return 0;
}

bool is_wildcard(const sockaddr* address) noexcept {
  if (address->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

int fail(int error) noexcept {
  errno = error;
  return -1;
}

/// A bound socket for `id`; -1 with errno.
int bound_socket(const CmId& id, const sockaddr* address) noexcept {
  const socklen_t size = address_size(address);
  if (size == 0) return fail(EAFNOSUPPORT);
  const int fd = ::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1;
  // A server that restarts must not wait for its predecessor's connections; a living listener still
  // takes the port. Not with a port of the kernel's choice: it could give the same one to two that
  // do not listen yet.
  if (port_of(address) != 0) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (id.only_v6_set && address->sa_family == AF_INET6) {
    const int only = id.only_v6 ? 1 : 0;
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
  }
  if (::bind(fd, address, size) == 0) return fd;
  const int error = errno;
  ::close(fd);
  return fail(error);
}

void own_address(int fd, rdma_cm_id& id) noexcept {
  socklen_t size = sizeof id.route.addr.src_storage;
  ::getsockname(fd, &id.route.addr.src_addr, &size);
}

int set_device(CmId& id) noexcept {
  Context* context = cm_context();
  if (context == nullptr) return -1;
  id.base.verbs = context->public_context();
  if (id.base.pd == nullptr) id.base.pd = cm_pd();
  id.base.port_num = 1;
  return 0;
}

CmId* new_id(EventChannel* channel, void* context, rdma_port_space ps) {
  auto* id = new CmId;
  id->base.channel = channel != nullptr ? &channel->base : nullptr;
  id->base.context = context;
  id->base.ps = ps;
  id->base.qp_type = IBV_QPT_RC;
  // Not make_shared: timers keep weak references for a while, and should not keep the memory.
  id->endpoint = std::shared_ptr<Endpoint>(new Endpoint);
  id->endpoint->cm = id;
  if (channel != nullptr) channel->join(id);
  globals().counters.cm_ids.fetch_add(1, std::memory_order_relaxed);
  return id;
}

void complete_event(CmId& id) noexcept {
  const std::lock_guard lock(id.ack_mu);
  ++id.events_completed;
  id.ack_cv.notify_all();
}

void wait_for_acks(CmId& id) {
  std::unique_lock lock(id.ack_mu);
  id.ack_cv.wait(lock, [&] { return id.events_completed == id.events_reported; });
}

/// An event of `id` that some step in this thread leads to.
void post_event(CmId& id, rdma_cm_event_type type, int status) {
  const std::lock_guard lock(id.endpoint->mu);
  auto* event = new CmEvent;
  event->account = &id;
  event->event.id = &id.base;
  event->event.event = type;
  event->event.status = status;
  id.channel()->events.push(event);
}

/// For a synchronous id: waits for the event that ends the step just started.
int complete(CmId& id) {
  if (!id.synchronous) return 0;
  if (id.base.event != nullptr) {
    rdma_ack_cm_event(id.base.event);
    id.base.event = nullptr;
  }
  if (rdma_get_cm_event(id.base.channel, &id.base.event) != 0) return -1;
  const rdma_cm_event& event = *id.base.event;
  if (event.event == RDMA_CM_EVENT_REJECTED) return fail(ECONNREFUSED);
  if (event.status != 0) return fail(event.status < 0 ? -event.status : EIO);
  return 0;
}

wire::ConnParam wire_param(const rdma_conn_param* param, bool srq) noexcept {
  wire::ConnParam out;
  // What librdmacm takes when the application says nothing.
  out.responder_resources = kReadsMax;
  out.initiator_depth = kReadsMax;
  out.retry_count = 7;
  out.rnr_retry_count = 7;
  if (param != nullptr) {
    out.responder_resources =
        static_cast<std::uint8_t>(std::min<std::uint32_t>(param->responder_resources, kReadsMax));
    out.initiator_depth =
        static_cast<std::uint8_t>(std::min<std::uint32_t>(param->initiator_depth, kReadsMax));
    out.flow_control = param->flow_control;
    out.retry_count = std::min<std::uint8_t>(param->retry_count, 7);
    out.rnr_retry_count = std::min<std::uint8_t>(param->rnr_retry_count, 7);
  }
  out.srq = srq ? 1 : 0;
  return out;
}

void destroy_cqs(CmId& id) noexcept {
  if (id.owns_cqs) {
    if (id.base.recv_cq != nullptr) ibv_destroy_cq(id.base.recv_cq);
    if (id.base.send_cq != nullptr && id.base.send_cq != id.base.recv_cq)
      ibv_destroy_cq(id.base.send_cq);
    if (id.base.recv_cq_channel != nullptr) ibv_destroy_comp_channel(id.base.recv_cq_channel);
    if (id.base.send_cq_channel != nullptr) ibv_destroy_comp_channel(id.base.send_cq_channel);
    id.base.recv_cq = id.base.send_cq = nullptr;
    id.base.recv_cq_channel = id.base.send_cq_channel = nullptr;
    id.owns_cqs = false;
  }
}

/// Completion queues for a queue pair whose creator named none; their channels are those of the id.
int create_cqs(CmId& id, ibv_qp_init_attr_ex& attr) noexcept {
  const auto make = [&](std::uint32_t depth, ibv_comp_channel*& channel, ibv_cq*& cq) {
    id.owns_cqs = true;
    channel = ibv_create_comp_channel(id.base.verbs);
    if (channel == nullptr) return false;
    cq = ibv_create_cq(id.base.verbs, static_cast<int>(std::max(1U, depth)), &id.base, channel, 0);
    return cq != nullptr;
  };
  if (attr.recv_cq == nullptr) {
    if (id.base.recv_cq == nullptr &&
        !make(attr.cap.max_recv_wr, id.base.recv_cq_channel, id.base.recv_cq))
      return -1;
    attr.recv_cq = id.base.recv_cq;
  }
  if (attr.send_cq == nullptr) {
    if (id.base.send_cq == nullptr &&
        !make(attr.cap.max_send_wr, id.base.send_cq_channel, id.base.send_cq))
      return -1;
    attr.send_cq = id.base.send_cq;
  }
  return 0;
}

}  // namespace

void read_addresses(int fd, rdma_cm_id& id) noexcept {
  own_address(fd, id);
  socklen_t size = sizeof id.route.addr.dst_storage;
  ::getpeername(fd, &id.route.addr.dst_addr, &size);
}

// ----------------------------------------------------------------------------------------------
// listener

Listener::~Listener() {
  if (fd_ >= 0) ::close(fd_);
}

bool Listener::start() noexcept {
  if (::listen(fd_, SOMAXCONN) != 0) {
    fd_ = -1;  // stays the id's
    return false;
  }
  token_ = globals().engine.add(fd_, EPOLLIN, shared_from_this());
  return token_ != 0;
}

void Listener::stop() noexcept {
  const std::lock_guard lock(mu);
  cm = nullptr;
  if (fd_ < 0) return;
  globals().engine.remove(token_, fd_);
  ::close(fd_);
  fd_ = -1;
}

void Listener::on_events(std::uint32_t) noexcept {
  const auto self = shared_from_this();
  constexpr int kAcceptsAtOnce = 64;
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    int fd = -1;
    {
      const std::lock_guard lock(mu);
      if (fd_ < 0) return;
      fd = ::accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          // The listening socket stays readable: looking away for a while beats spinning.
          log_line(LogLevel::kError,
                   "no descriptor for a new connection (errno %d); trying again in 100 ms", errno);
          globals().engine.modify(token_, fd_, 0);
          globals().engine.arm_timer(now_ns() + 100 * kMillisecond, weak_from_this(), 0, 0);
        }
        return;
      }
    }
    if (pending_.fetch_add(1, std::memory_order_relaxed) >= kPendingMax) {
      forget();
      ::close(fd);
      continue;
    }
    auto endpoint = std::shared_ptr<Endpoint>(new Endpoint);  // as in new_id()
    const std::lock_guard lock(endpoint->mu);
    endpoint->listener = shared_from_this();
    if (endpoint->adopt(fd, LinkState::kAwaitingRequest) != 0) {
      endpoint->listener = nullptr;
      forget();
      continue;
    }
    endpoint->arm_request_timer(kRequestTimeoutMs);
  }
}

void Listener::on_timer(int, std::uint64_t) noexcept {
  const std::lock_guard lock(mu);
  if (fd_ >= 0) globals().engine.modify(token_, fd_, EPOLLIN);
}

bool Listener::request(Endpoint& endpoint, std::span<const std::uint8_t> private_data) noexcept {
  const std::lock_guard lock(mu);
  if (cm == nullptr) return false;
  if (cm->requests_waiting.load(std::memory_order_relaxed) >= CmId::kRequestsMax) return false;
  cm->requests_waiting.fetch_add(1, std::memory_order_relaxed);
  auto* id = new CmId;
  id->base.channel = cm->base.channel;
  id->base.context = cm->base.context;
  id->base.ps = cm->base.ps;
  id->base.qp_type = IBV_QPT_RC;
  id->endpoint = endpoint.shared_from_this();
  id->state = IdState::kConnected;
  globals().counters.cm_ids.fetch_add(1, std::memory_order_relaxed);
  if (set_device(*id) != 0) {
    globals().counters.cm_ids.fetch_sub(1, std::memory_order_relaxed);
    delete id;
    return false;
  }
  endpoint.read_socket_addresses(id->base);
  id->base.route.path_rec = &id->path;
  id->base.route.num_paths = 1;
  endpoint.cm = id;
  id->channel()->join(id);
  auto* event = new CmEvent;
  event->account = cm;
  event->event.id = &id->base;
  event->event.listen_id = &cm->base;
  event->event.event = RDMA_CM_EVENT_CONNECT_REQUEST;
  std::copy(private_data.begin(), private_data.end(), event->private_data);
  rdma_conn_param& param = event->event.param.conn;
  param.private_data = event->private_data;
  param.private_data_len = static_cast<std::uint8_t>(private_data.size());
  param.responder_resources = endpoint.remote_param.responder_resources;
  param.initiator_depth = endpoint.remote_param.initiator_depth;
  param.flow_control = endpoint.remote_param.flow_control;
  param.retry_count = endpoint.remote_param.retry_count;
  param.rnr_retry_count = endpoint.remote_param.rnr_retry_count;
  param.srq = endpoint.remote_param.srq;
  param.qp_num = endpoint.remote_qpn;
  cm->channel()->events.push(event);
  return true;
}

namespace {

/// Frees an id that nothing refers to any more.
void free_id(CmId* id) {
  if (EventChannel* const channel = id->channel()) channel->leave(id);
  if (id->socket >= 0) ::close(id->socket);
  globals().counters.cm_ids.fetch_sub(1, std::memory_order_relaxed);
  delete id;
}

void destroy_event(CmEvent* event) {
  if (event->event.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
    // Nobody will see this request: its connection is refused.
    CmId* child = from(event->event.id);
    {
      const std::lock_guard lock(child->endpoint->mu);
      child->endpoint->cm = nullptr;
      child->endpoint->abandon();
    }
    // Further events of the child, such as the client's death, may be queued beside this one.
    std::vector<CmEvent*> more;
    if (EventChannel* const channel = child->channel()) {
      channel->events.remove_if([child](CmEvent* e) { return e->account == child; },
                                [&more](CmEvent* e) { more.push_back(e); });
    }
    for (CmEvent* e : more) delete e;
    free_id(child);
  }
  delete event;
}

EventChannel* new_channel() noexcept {
  auto* channel = new EventChannel;
  if (!channel->events.open()) {
    const int error = errno;
    delete channel;
    errno = error;
    return nullptr;
  }
  channel->base.fd = channel->events.fd();
  return channel;
}

/// Where packets to `to` leave from, as the routing table says. 0 or an errno.
int find_source(const sockaddr* to, sockaddr_storage& source) noexcept {
  const int fd = ::socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  sockaddr_storage target{};
  std::memcpy(&target, to, address_size(to));
  // A datagram socket only looks up the route; any port will do.
  if (to->sa_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&target)->sin_port = htons(9);
  } else {
    reinterpret_cast<sockaddr_in6*>(&target)->sin6_port = htons(9);
  }
  int error = 0;
  socklen_t size = sizeof source;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&target), address_size(to)) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&source), &size) != 0) {
    error = errno;
  }
  ::close(fd);
  return error;
}

}  // namespace
}  // namespace softrdma

using namespace softrdma;

extern "C" {

// ----------------------------------------------------------------------------------------------
// channels and events

rdma_event_channel* rdma_create_event_channel() {
  if (Faults::instance().fails(FaultPoint::kCreateEventChannel)) return nullptr;
  EventChannel* channel = new_channel();
  if (channel == nullptr) return nullptr;
  globals().counters.event_channels.fetch_add(1, std::memory_order_relaxed);
  return &channel->base;
}
void rdma_destroy_event_channel(rdma_event_channel* base) {
  EventChannel* channel = from(base);
  if (!channel->usable(__func__)) return;
  globals().counters.event_channels.fetch_sub(1, std::memory_order_relaxed);
  std::unordered_set<CmId*> forgotten;
  {
    const std::lock_guard lock(channel->ids_mu);
    forgotten.swap(channel->ids);
  }
  for (CmId* id : forgotten) {
    if (id->listener) id->listener->stop();
    const std::lock_guard lock(id->endpoint->mu);
    id->endpoint->abandon();
    id->base.channel = nullptr;  // from here on it posts no event
  }
  std::vector<CmEvent*> unseen;
  channel->events.remove_if([](CmEvent*) { return true; },
                            [&unseen](CmEvent* e) { unseen.push_back(e); });
  for (CmEvent* event : unseen) destroy_event(event);
  delete channel;
}

int rdma_get_cm_event(rdma_event_channel* base, rdma_cm_event** event) {
  if (event == nullptr || base == nullptr) return fail(EINVAL);
  EventChannel* channel = from(base);
  if (!channel->usable(__func__)) return -1;
  CmEvent* got = nullptr;
  const auto report = [](CmEvent* e) {
    const std::lock_guard lock(e->account->ack_mu);
    ++e->account->events_reported;
    if (e->event.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
      e->account->requests_waiting.fetch_sub(1, std::memory_order_relaxed);
    }
  };
  if (!channel->events.pop(got, report)) return -1;
  *event = &got->event;
  return 0;
}
int rdma_ack_cm_event(rdma_cm_event* base) {
  if (base == nullptr) return fail(EINVAL);
  CmEvent* event = from(base);
  if (!event->account->usable(__func__)) return -1;
  CmId* account = event->account;
  delete event;
  complete_event(*account);
  return 0;
}

// ----------------------------------------------------------------------------------------------
// ids

int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** out, void* context,
                   rdma_port_space ps) {
  if (channel != nullptr && !from(channel)->usable(__func__)) return -1;
  if (Faults::instance().fails(FaultPoint::kCreateId)) return -1;
  if (ps != RDMA_PS_TCP) {
    unsupported(__func__, "port spaces other than RDMA_PS_TCP");
    return -1;
  }
  EventChannel* use = channel != nullptr ? from(channel) : new_channel();
  if (use == nullptr) return -1;
  CmId* id = new_id(use, context, ps);
  id->synchronous = channel == nullptr;
  *out = &id->base;
  return 0;
}

int rdma_destroy_id(rdma_cm_id* base) {
  CmId* id = from(base);
  if (!id->usable(__func__)) return -1;
  if (base->event != nullptr) {
    rdma_ack_cm_event(base->event);
    base->event = nullptr;
  }
  if (id->listener) id->listener->stop();
  {
    const std::lock_guard lock(id->endpoint->mu);
    id->endpoint->cm = nullptr;
    id->endpoint->abandon();
  }
  EventChannel* channel = id->channel();
  if (channel != nullptr) {
    std::vector<CmEvent*> unseen;
    channel->events.remove_if([id](CmEvent* e) { return e->account == id; },
                              [&unseen](CmEvent* e) { unseen.push_back(e); });
    for (CmEvent* event : unseen) destroy_event(event);
  }
  softrdma::wait_for_acks(*id);
  const bool synchronous = id->synchronous;
  free_id(id);
  if (synchronous) delete channel;
  return 0;
}

int rdma_migrate_id(rdma_cm_id* base, rdma_event_channel* to) {
  CmId* id = from(base);
  if (!id->usable(__func__)) return -1;
  if (Faults::instance().fails(FaultPoint::kMigrateId)) return -1;
  EventChannel* target = to != nullptr ? from(to) : new_channel();
  if (target == nullptr) return -1;
  if (id->synchronous && base->event != nullptr) {
    rdma_ack_cm_event(base->event);
    base->event = nullptr;
  }
  EventChannel* old = id->channel();
  const bool drop_old = id->synchronous;
  {
    // Both who post for this id: the engine for its connection, the listener for requests.
    const std::lock_guard lock(id->endpoint->mu);
    const auto listener = id->listener;
    const auto listener_lock =
        listener ? std::unique_lock<std::mutex>(listener->mu) : std::unique_lock<std::mutex>();
    std::vector<CmEvent*> queued;
    old->events.remove_if([id](CmEvent* e) { return e->account == id; },
                          [&queued](CmEvent* e) { queued.push_back(e); });
    const auto move = [&](CmId* one) {
      old->leave(one);
      one->base.channel = &target->base;
      target->join(one);
    };
    move(id);
    id->synchronous = to == nullptr;
    for (CmEvent* event : queued) {
      if (event->event.event == RDMA_CM_EVENT_CONNECT_REQUEST) move(from(event->event.id));
      target->events.push(event);
    }
  }
  // Events that were handed out on the old channel must be acknowledged before it may go.
  softrdma::wait_for_acks(*id);
  if (drop_old) delete old;
  return 0;
}

int rdma_bind_addr(rdma_cm_id* base, sockaddr* address) {
  CmId* id = from(base);
  if (!id->usable(__func__)) return -1;
  if (Faults::instance().fails(FaultPoint::kBindAddr)) return -1;
  if (id->state != IdState::kIdle) return fail(EINVAL);
  const int fd = bound_socket(*id, address);
  if (fd < 0) return -1;
  id->socket = fd;
  own_address(fd, *base);
  id->state = IdState::kBound;
  // With the wildcard the device is known once a connection comes.
  return is_wildcard(address) ? 0 : set_device(*id);
}

int rdma_resolve_addr(rdma_cm_id* base, sockaddr* source, sockaddr* target, int /*timeout_ms*/) {
  CmId* id = from(base);
  if (!id->usable(__func__)) return -1;
  if (Faults::instance().fails(FaultPoint::kResolveAddr)) return -1;
  if (target == nullptr || address_size(target) == 0) return fail(EINVAL);
  if (id->state != IdState::kIdle && id->state != IdState::kBound) return fail(EINVAL);
  if (source != nullptr && id->state == IdState::kIdle && address_size(source) != 0) {
    const int fd = bound_socket(*id, source);
    if (fd < 0) return -1;
    id->socket = fd;
    own_address(fd, *base);
    id->state = IdState::kBound;
  }
  std::memcpy(&base->route.addr.dst_storage, target, address_size(target));
  sockaddr_storage route{};
  const int error = find_source(target, route);
  if (error != 0) {
    post_event(*id, RDMA_CM_EVENT_ADDR_ERROR, -error);
    return complete(*id);
  }
  if (id->state == IdState::kIdle || is_wildcard(&base->route.addr.src_addr)) {
    const __be16 port = id->state == IdState::kBound ? port_of(&base->route.addr.src_addr) : 0;
    base->route.addr.src_storage = route;
    if (route.ss_family == AF_INET) {
      base->route.addr.src_sin.sin_port = port;
    } else {
      base->route.addr.src_sin6.sin6_port = port;
    }
  }
  if (set_device(*id) != 0) return -1;
  id->state = IdState::kAddressResolved;
  post_event(*id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
  return complete(*id);
}

int rdma_resolve_route(rdma_cm_id* base, int /*timeout_ms*/) {
  CmId* id = from(base);
  if (!id->usable(__func__)) return -1;
  if (Faults::instance().fails(FaultPoint::kResolveRoute)) return -1;
  if (id->state != IdState::kAddressResolved) return fail(EINVAL);
  id->path.mtu = IBV_MTU_4096;
  id->path.pkey = 0xFFFF;
  base->route.path_rec = &id->path;
  base->route.num_paths = 1;
  id->state = IdState::kRouteResolved;
  post_event(*id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
  return complete(*id);
}

int rdma_listen(rdma_cm_id* base, int /*backlog*/) {
  CmId* id = from(base);
  if (!id->usable(__func__)) return -1;
  if (Faults::instance().fails(FaultPoint::kListen)) return -1;
  if (id->state == IdState::kIdle) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    if (rdma_bind_addr(base, reinterpret_cast<sockaddr*>(&any)) != 0) return -1;
  }
  if (id->state != IdState::kBound) return fail(EINVAL);
  auto listener = std::make_shared<Listener>(id, id->socket);
  if (!listener->start()) return -1;
  id->socket = -1;  // the listener's now
  id->listener = std::move(listener);
  id->state = IdState::kListening;
  return 0;
}

// ----------------------------------------------------------------------------------------------
// queue pairs of ids

int rdma_create_qp_ex(rdma_cm_id* base, ibv_qp_init_attr_ex* attr) {
  CmId* id = from(base);
  if (!id->usable(__func__)) return -1;
  if (base->qp != nullptr || base->verbs == nullptr) return fail(EINVAL);
  constexpr std::uint32_t kKnown = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  if ((attr->comp_mask & ~kKnown) != 0 ||
      ((attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && attr->create_flags != 0)) {
    unsupported(__func__, "extended attributes");
    return -1;
  }
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) == 0) {
    attr->pd = base->pd;
  } else if (attr->pd->context != base->verbs) {
    return fail(EINVAL);
  }
  if (base->srq != nullptr && attr->srq == nullptr) attr->srq = base->srq;
  if (create_cqs(*id, *attr) != 0) {
    const int error = errno;
    destroy_cqs(*id);
    return fail(error);
  }
  ibv_qp* qp = create_queue_pair(attr->pd, reinterpret_cast<ibv_qp_init_attr*>(attr), id->endpoint);
  if (qp == nullptr) {
    const int error = errno;
    destroy_cqs(*id);
    return fail(error);
  }
  base->pd = attr->pd;
  base->qp = qp;
  return 0;
}

int rdma_create_qp(rdma_cm_id* base, ibv_pd* pd, ibv_qp_init_attr* attr) {
  ibv_qp_init_attr_ex extended{};
  std::memcpy(&extended, attr, sizeof *attr);
  if (pd != nullptr) {
    extended.comp_mask = IBV_QP_INIT_ATTR_PD;
    extended.pd = pd;
  }
  const int result = rdma_create_qp_ex(base, &extended);
  if (result == 0) std::memcpy(attr, &extended, sizeof *attr);
  return result;
}

void rdma_destroy_qp(rdma_cm_id* base) {
  if (base->qp == nullptr || !from(base)->usable(__func__)) return;
  ibv_destroy_qp(base->qp);
  base->qp = nullptr;
  destroy_cqs(*from(base));
}

int rdma_create_srq(rdma_cm_id* base, ibv_pd* pd, ibv_srq_init_attr* attr) {
  CmId* id = from(base);
  if (!id->usable(__func__)) return -1;
  if (base->srq != nullptr || base->verbs == nullptr) return fail(EINVAL);
  if (pd == nullptr) pd = base->pd;
  base->srq = ibv_create_srq(pd, attr);
  if (base->srq == nullptr) return -1;
  base->pd = pd;
  return 0;
}
int rdma_create_srq_ex(rdma_cm_id* base, ibv_srq_init_attr_ex* attr) {
  if ((attr->comp_mask &
       ~static_cast<std::uint32_t>(IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE)) != 0 ||
      ((attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0 && attr->srq_type != IBV_SRQT_BASIC)) {
    unsupported(__func__, "shared receive queues other than basic ones");
    return -1;
  }
  ibv_srq_init_attr basic{attr->srq_context, attr->attr};
  const int result = rdma_create_srq(
      base, (attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) != 0 ? attr->pd : nullptr, &basic);
  attr->attr = basic.attr;
  return result;
}
void rdma_destroy_srq(rdma_cm_id* base) {
  if (base->srq == nullptr || !from(base)->usable(__func__)) return;
  ibv_destroy_srq(base->srq);
  base->srq = nullptr;
}

int rdma_create_ep(rdma_cm_id** out, rdma_addrinfo* res, ibv_pd* pd, ibv_qp_init_attr* attr) {
  rdma_cm_id* base = nullptr;
  if (rdma_create_id(nullptr, &base, nullptr, static_cast<rdma_port_space>(res->ai_port_space)) !=
      0)
    return -1;
  CmId* id = from(base);
  int result = 0;
  if ((res->ai_flags & RAI_PASSIVE) != 0) {
    result = rdma_bind_addr(base, res->ai_src_addr);
    if (result == 0) {
      if (attr != nullptr) id->accept_attr = std::make_unique<ibv_qp_init_attr>(*attr);
      if (pd != nullptr) base->pd = pd;
    }
  } else {
    constexpr int kTimeoutMs = 2000;
    result = rdma_resolve_addr(base, res->ai_src_addr, res->ai_dst_addr, kTimeoutMs);
    if (result == 0) result = rdma_resolve_route(base, kTimeoutMs);
    if (result == 0 && attr != nullptr) {
      attr->qp_type = static_cast<ibv_qp_type>(res->ai_qp_type);
      result = rdma_create_qp(base, pd, attr);
    }
  }
  if (result != 0) {
    const int error = errno;
    rdma_destroy_ep(base);
    return fail(error);
  }
  *out = base;
  return 0;
}
void rdma_destroy_ep(rdma_cm_id* base) {
  if (base->qp != nullptr) rdma_destroy_qp(base);
  if (base->srq != nullptr) rdma_destroy_srq(base);
  rdma_destroy_id(base);
}

int rdma_get_request(rdma_cm_id* listen, rdma_cm_id** out) {
  CmId* id = from(listen);
  if (!id->usable(__func__)) return -1;
  if (!id->synchronous) return fail(EINVAL);
  if (listen->event != nullptr) {
    rdma_ack_cm_event(listen->event);
    listen->event = nullptr;
  }
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(listen->channel, &event) != 0) return -1;
  if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
    rdma_ack_cm_event(event);
    return fail(EINVAL);
  }
  rdma_cm_id* child = event->id;
  int result = rdma_migrate_id(child, nullptr);
  if (result == 0 && id->accept_attr) {
    ibv_qp_init_attr attr = *id->accept_attr;
    result = rdma_create_qp(child, listen->pd, &attr);
  }
  if (result != 0) {
    const int error = errno;
    rdma_ack_cm_event(event);
    rdma_destroy_id(child);
    return fail(error);
  }
  // The request's private data stays readable through child->event.
  child->event = event;
  *out = child;
  return 0;
}

// ----------------------------------------------------------------------------------------------
// connections

int rdma_connect(rdma_cm_id* base, rdma_conn_param* param) {
  CmId* id = from(base);
  if (!id->usable(__func__)) return -1;
  if (Faults::instance().fails(FaultPoint::kConnect)) return -1;
  if (id->state != IdState::kRouteResolved) return fail(EINVAL);
  if (param != nullptr && param->private_data_len > wire::kRequestPrivateSize) return fail(EINVAL);
  int fd = id->socket;
  id->socket = -1;
  if (fd < 0) {
    fd = ::socket(base->route.addr.dst_addr.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC,
                  0);
    if (fd < 0) return -1;
  }
  {
    const std::lock_guard lock(id->endpoint->mu);
    Endpoint& endpoint = *id->endpoint;
    endpoint.local_param = wire_param(param, base->qp != nullptr && base->qp->srq != nullptr);
    if (param != nullptr && base->qp == nullptr) endpoint.local_qpn = param->qp_num & 0xFFFFFF;
    endpoint.request_private.fill(0);
    if (param != nullptr && param->private_data_len != 0) {
      std::memcpy(endpoint.request_private.data(), param->private_data, param->private_data_len);
    }
    id->state = IdState::kConnected;
    const int error =
        endpoint.connect(fd, &base->route.addr.dst_addr, address_size(&base->route.addr.dst_addr));
    if (error != 0) return fail(error);
  }
  return complete(*id);
}

int rdma_accept(rdma_cm_id* base, rdma_conn_param* param) {
  CmId* id = from(base);
  if (!id->usable(__func__)) return -1;
  if (Faults::instance().fails(FaultPoint::kAccept)) return -1;
  if (param != nullptr && param->private_data_len > wire::kReplyPrivateSize) return fail(EINVAL);
  {
    const std::lock_guard lock(id->endpoint->mu);
    Endpoint& endpoint = *id->endpoint;
    if (endpoint.link != LinkState::kRequestReceived) return fail(EINVAL);
    endpoint.local_param = wire_param(param, base->qp != nullptr && base->qp->srq != nullptr);
    if (param == nullptr) {
      endpoint.local_param.responder_resources = endpoint.remote_param.responder_resources;
      endpoint.local_param.initiator_depth = endpoint.remote_param.initiator_depth;
    }
    if (param != nullptr && base->qp == nullptr) endpoint.local_qpn = param->qp_num & 0xFFFFFF;
    // Live before the reply leaves: the peer may send as soon as it has it.
    if (endpoint.qp != nullptr) endpoint.make_ready_to_send();
    const int error = endpoint.accept(param != nullptr ? param->private_data : nullptr,
                                      param != nullptr ? param->private_data_len : 0);
    if (error != 0) return fail(error);
  }
  return complete(*id);
}

int rdma_reject(rdma_cm_id* base, const void* data, std::uint8_t size) {
  CmId* id = from(base);
  if (!id->usable(__func__)) return -1;
  if (size > wire::kRejectPrivateSize) return fail(EINVAL);
  const std::lock_guard lock(id->endpoint->mu);
  if (id->endpoint->link != LinkState::kRequestReceived) return fail(EINVAL);
  id->endpoint->reject(data, size, kRejectByConsumer);
  return 0;
}

int rdma_establish(rdma_cm_id* base) {
  CmId* id = from(base);
  if (!id->usable(__func__)) return -1;
  const std::lock_guard lock(id->endpoint->mu);
  if (base->qp != nullptr || id->endpoint->link != LinkState::kReplyReceived) return fail(EINVAL);
  id->endpoint->establish();
  id->endpoint->flush(Endpoint::kPosterBudget);
  return 0;
}

int rdma_disconnect(rdma_cm_id* base) {
  CmId* id = from(base);
  if (!id->usable(__func__)) return -1;
  bool waits = false;
  {
    const std::lock_guard lock(id->endpoint->mu);
    Endpoint& endpoint = *id->endpoint;
    if (id->state != IdState::kConnected || endpoint.link == LinkState::kRequestReceived ||
        endpoint.link == LinkState::kNone) {
      return fail(EINVAL);
    }
    if (endpoint.qp != nullptr) endpoint.to_error();
    waits = endpoint.link == LinkState::kEstablished || endpoint.link == LinkState::kReplySent;
    const int error = endpoint.disconnect();
    if (error != 0) return fail(error);
  }
  return waits ? complete(*id) : 0;
}

// ----------------------------------------------------------------------------------------------
// addresses, options

__be16 rdma_get_src_port(rdma_cm_id* id) {
  return port_of(&id->route.addr.src_addr);
}
__be16 rdma_get_dst_port(rdma_cm_id* id) {
  return port_of(&id->route.addr.dst_addr);
}

int rdma_set_option(rdma_cm_id* base, int level, int name, void* value, std::size_t size) {
  CmId* id = from(base);
  if (!id->usable(__func__)) return -1;
  if (level == RDMA_OPTION_ID) {
    switch (name) {
      case RDMA_OPTION_ID_TOS:
      case RDMA_OPTION_ID_ACK_TIMEOUT:
        // TCP carries the packets: nothing to set, nothing lost.
        return size == sizeof(std::uint8_t) ? 0 : fail(EINVAL);
      case RDMA_OPTION_ID_REUSEADDR: return size == sizeof(int) ? 0 : fail(EINVAL);
      case RDMA_OPTION_ID_AFONLY:
        if (size != sizeof(int)) return fail(EINVAL);
        id->only_v6_set = true;
        std::memcpy(&name, value, sizeof name);
        id->only_v6 = name != 0;
        return 0;
      default: break;
    }
  }
  unsupported(__func__, "options other than TOS, REUSEADDR, AFONLY and ACK_TIMEOUT");
  return -1;
}

ibv_context** rdma_get_devices(int* count) {
  Context* context = cm_context();
  auto** list = static_cast<ibv_context**>(std::calloc(2, sizeof(ibv_context*)));
  if (context == nullptr || list == nullptr) {
    std::free(list);
    return nullptr;
  }
  list[0] = context->public_context();
  if (count != nullptr) *count = 1;
  return list;
}
void rdma_free_devices(ibv_context** list) {
  std::free(list);
}

int rdma_init_qp_attr(rdma_cm_id* base, ibv_qp_attr* attr, int* mask) {
  CmId* id = from(base);
  if (!id->usable(__func__)) return -1;
  const ibv_qp_state state = attr->qp_state;
  *attr = ibv_qp_attr{};
  attr->qp_state = state;
  *mask = IBV_QP_STATE;
  const std::lock_guard lock(id->endpoint->mu);
  switch (state) {
    case IBV_QPS_INIT:
      attr->port_num = 1;
      attr->qp_access_flags =
          IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
      *mask |= IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
      return 0;
    case IBV_QPS_RTR:
      attr->path_mtu = IBV_MTU_4096;
      attr->dest_qp_num = id->endpoint->remote_qpn;
      attr->max_dest_rd_atomic = kReadsMax;
      *mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
      return 0;
    case IBV_QPS_RTS:
      attr->rnr_retry = id->endpoint->remote_param.rnr_retry_count;
      attr->retry_cnt = id->endpoint->remote_param.retry_count;
      attr->max_rd_atomic = kReadsMax;
      *mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC;
      return 0;
    default: return fail(EINVAL);
  }
}

int rdma_getaddrinfo(const char* node, const char* service, const rdma_addrinfo* hints,
                     rdma_addrinfo** out) {
  if (node == nullptr && service == nullptr && hints == nullptr) return fail(EINVAL);
  addrinfo want{};
  want.ai_socktype = SOCK_STREAM;
  const bool passive = hints != nullptr && (hints->ai_flags & RAI_PASSIVE) != 0;
  if (passive) want.ai_flags |= AI_PASSIVE;
  if (hints != nullptr && (hints->ai_flags & RAI_NUMERICHOST) != 0) want.ai_flags |= AI_NUMERICHOST;
  if (hints != nullptr && (hints->ai_flags & RAI_FAMILY) != 0) want.ai_family = hints->ai_family;
  if (hints != nullptr && hints->ai_port_space != 0 && hints->ai_port_space != RDMA_PS_TCP) {
    unsupported(__func__, "port spaces other than RDMA_PS_TCP");
    return EAI_SERVICE;
  }
  addrinfo* found = nullptr;
  if (node == nullptr && service == nullptr) return EAI_NONAME;
  if (const int error = ::getaddrinfo(node, service, &want, &found); error != 0) return error;
  const auto copy = [](const sockaddr* address, socklen_t size) {
    auto* to = static_cast<sockaddr*>(std::malloc(size));
    if (to != nullptr) std::memcpy(to, address, size);
    return to;
  };
  rdma_addrinfo* first = nullptr;
  rdma_addrinfo** tail = &first;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
    auto* r = static_cast<rdma_addrinfo*>(std::calloc(1, sizeof(rdma_addrinfo)));
    if (r == nullptr) break;
    r->ai_flags = hints != nullptr ? hints->ai_flags : 0;
    r->ai_family = a->ai_family;
    r->ai_qp_type = hints != nullptr && hints->ai_qp_type != 0 ? hints->ai_qp_type : IBV_QPT_RC;
    r->ai_port_space = RDMA_PS_TCP;
    if (passive) {
      r->ai_src_len = a->ai_addrlen;
      r->ai_src_addr = copy(a->ai_addr, a->ai_addrlen);
    } else {
      r->ai_dst_len = a->ai_addrlen;
      r->ai_dst_addr = copy(a->ai_addr, a->ai_addrlen);
      if (hints != nullptr && hints->ai_src_len != 0 && hints->ai_src_addr != nullptr) {
        r->ai_src_len = hints->ai_src_len;
        r->ai_src_addr = copy(hints->ai_src_addr, hints->ai_src_len);
      }
    }
    *tail = r;
    tail = &r->ai_next;
  }
  ::freeaddrinfo(found);
  if (first == nullptr) return EAI_NONAME;
  *out = first;
  return 0;
}
void rdma_freeaddrinfo(rdma_addrinfo* list) {
  while (list != nullptr) {
    rdma_addrinfo* next = list->ai_next;
    std::free(list->ai_src_addr);
    std::free(list->ai_dst_addr);
    std::free(list);
    list = next;
  }
}

int rdma_notify(rdma_cm_id*, ibv_event_type) {
  return 0;
}

}  // extern "C"
