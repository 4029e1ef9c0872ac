// SPDX-License-Identifier: BSD-3-Clause
// Endpoint: the socket's life, what goes to the peer, and the queue pair's end.
#include "endpoint.hpp"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cm.hpp"
#include "log.hpp"

namespace softrdma {

using wire::FrameType;
using wire::NakCode;

namespace {
bool is_answered(ibv_wr_opcode opcode) noexcept {
  return opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
         opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
}  // namespace

Endpoint::Endpoint() : random_(0) {}

Endpoint::~Endpoint() {
  if (fd_ >= 0) ::close(fd_);
}

// ----------------------------------------------------------------------------------------------
// socket

int Endpoint::adopt(int fd, LinkState state) {
  if (!out_) out_.reset(new std::uint8_t[kOutSize]);
  int on = 1;
  // Fails harmlessly on the socket pairs of queue pairs that are wired by hand.
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // A host that vanished: TCP's own limit is a quarter of an hour.
  const unsigned int user_timeout_ms = globals().timing.silence_ms;
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof user_timeout_ms);
  fd_ = fd;
  link = state;
  ++link_epoch_;
  reset_protocol();
  Faults& faults = Faults::instance();
  // The two ends of a connection within one process come here in no certain order: each side counts
  // for itself, or the seed would not replay.
  const bool passive = state == LinkState::kAwaitingRequest;
  std::atomic<std::uint64_t>& links = passive ? faults.accepted : faults.connections;
  random_ = faults.stream(passive ? 4 : 1, links.fetch_add(1, std::memory_order_relaxed));
  const Range drop = faults.plan().drop_after;
  cut_at_message_ = drop.set();
  messages_left_ =
      drop.set() ? std::max<std::uint64_t>(1, random_.between(drop.low, drop.high)) : 0;
  want_output_ = state == LinkState::kConnecting;
  globals().counters.links.fetch_add(1, std::memory_order_relaxed);
  token_ = globals().engine.add(fd, EPOLLIN | (want_output_ ? EPOLLOUT : 0U), shared_from_this());
  if (token_ == 0) {
    const int error = errno;
    ::close(fd_);
    fd_ = -1;
    link = LinkState::kClosed;
    globals().counters.links.fetch_sub(1, std::memory_order_relaxed);
    return error;
  }
  return 0;
}

void Endpoint::reset_protocol() {
  in_header_size_ = 0;
  in_payload_ = false;
  expected_ = 0;
  in_message_ = false;
  reads_queued_ = 0;
  rnr_waiting_ = false;
  said_dead_ = false;
  said_ready_ = false;
  said_established_ = false;
  peer_dead_ = false;
  out_begin_ = out_end_ = 0;
  responses_head_ = responses_count_ = 0;
}

int Endpoint::connect(int fd, const sockaddr* to, socklen_t size) {
  const int result = ::connect(fd, to, size);
  const int error = result == 0 ? 0 : errno;
  if (error != 0 && error != EINPROGRESS) {
    ::close(fd);
    // Local trouble of the same kind as an answer from the network becomes an event, as it would
    // with a device.
    if (error == ECONNREFUSED || error == ENETUNREACH || error == EHOSTUNREACH ||
        error == ETIMEDOUT || error == EADDRNOTAVAIL) {
      link = LinkState::kConnecting;
      lose_link(error);
      return 0;
    }
    return error;
  }
  if (const int failed = adopt(fd, LinkState::kConnecting); failed != 0) return failed;
  timer(kConnectTimer, link_epoch_, globals().timing.connect_ms);
  return 0;
}

void Endpoint::finish_connect() {
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == 0) {
    sockaddr_storage peer{};
    socklen_t peer_size = sizeof peer;
    if (::getpeername(fd_, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) return;  // not yet
  }
  if (error != 0) {
    lose_link(error);
    return;
  }
  ++link_epoch_;
  link = LinkState::kRequestSent;
  if (cm != nullptr) read_addresses(fd_, cm->base);
  control(FrameType::kConnectRequest, local_qpn, &local_param, request_private.data(),
          request_private.size(), wire::kRequestPrivateSize);
  timer(kReplyTimer, link_epoch_, globals().timing.reply_ms);
  flush(kEngineBudget);
}

void Endpoint::read_socket_addresses(rdma_cm_id& id) const noexcept {
  read_addresses(fd_, id);
}

void Endpoint::close_socket() {
  if (fd_ < 0) return;
  globals().engine.remove(token_, fd_);
  ::close(fd_);
  fd_ = -1;
  token_ = 0;
  ++link_epoch_;
  held_ = false;
  globals().counters.links.fetch_sub(1, std::memory_order_relaxed);
}

void Endpoint::want_output(bool wanted) {
  if (wanted == want_output_ || fd_ < 0) return;
  want_output_ = wanted;
  if (!held_) globals().engine.modify(token_, fd_, EPOLLIN | (wanted ? EPOLLOUT : 0U));
}

/// Delays and reordering: this connection's input waits while the others' goes on. Order within it
/// stays.
void Endpoint::hold_input() {
  const FaultPlan& plan = Faults::instance().plan();
  if (!plan.any || link == LinkState::kConnecting) return;
  std::uint64_t us = 0;
  if (plan.delay_us.set()) us = random_.between(plan.delay_us.low, plan.delay_us.high);
  if (random_.percent(plan.reorder_percent)) us += random_.between(200, 2000);
  if (us == 0) return;
  Faults::instance().count();
  held_ = true;
  // One-shot with no interest would still report hang-ups again and again.
  globals().engine.modify(token_, fd_, EPOLLET);
  globals().engine.arm_timer(now_ns() + us * 1000, weak_from_this(), kResumeTimer, link_epoch_);
}

void Endpoint::timer(int kind, std::uint64_t argument, std::uint32_t ms) {
  globals().engine.arm_timer(now_ns() + ms * kMillisecond, weak_from_this(), kind, argument);
}

void Endpoint::on_timer(int kind, std::uint64_t argument) noexcept {
  const auto self = shared_from_this();
  const std::lock_guard lock(mu);
  switch (kind) {
    case kConnectTimer:
      if (argument == link_epoch_ && link == LinkState::kConnecting) lose_link(ETIMEDOUT);
      return;
    case kReplyTimer:
      if (argument == link_epoch_ && link == LinkState::kRequestSent) lose_link(ETIMEDOUT);
      return;
    case kRequestTimer:
      if (argument == link_epoch_ && link == LinkState::kAwaitingRequest) lose_link(ETIMEDOUT);
      return;
    case kDreqTimer:
      if (argument == link_epoch_ && link == LinkState::kDisconnectSent) {
        link = LinkState::kClosed;
        post_cm(RDMA_CM_EVENT_DISCONNECTED, -ETIMEDOUT);
        ended();
      }
      return;
    case kTimewaitTimer:
      if (cm != nullptr && link == LinkState::kClosed) post_cm(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
      return;
    case kRetryTimer:
      if (qp == nullptr || argument != qp->retry_epoch) return;
      qp->retry_armed = false;
      if (qp->state == IBV_QPS_RTS && qp->sq_head != qp->sq_tail) to_error(IBV_WC_RETRY_EXC_ERR);
      return;
    case kRnrTimer:
      if (qp == nullptr || argument != qp->rnr_epoch || !qp->rnr_wait) return;
      qp->rnr_wait = false;
      flush(kEngineBudget);
      return;
    case kReadyTimer:
      if (argument == link_epoch_) receive_posted();
      return;
    case kResumeTimer:
      if (argument != link_epoch_ || !held_) return;
      held_ = false;
      resumed_ = true;
      globals().engine.modify(token_, fd_, EPOLLIN | (want_output_ ? EPOLLOUT : 0U));
      return;
    case kLingerTimer:
      if (argument == link_epoch_) close_socket();
      return;
    default: return;
  }
}

// ----------------------------------------------------------------------------------------------
// connection

int Endpoint::accept(const void* private_data, std::size_t size) {
  if (link != LinkState::kRequestReceived) return EINVAL;
  link = LinkState::kReplySent;
  control(FrameType::kConnectReply, local_qpn, &local_param, private_data, size,
          wire::kReplyPrivateSize);
  flush(kPosterBudget);
  return 0;
}

void Endpoint::establish() {
  link = LinkState::kEstablished;
  control(FrameType::kReady, 0, nullptr, nullptr, 0, 0);
}

void Endpoint::reject(const void* private_data, std::size_t size, std::uint32_t reason) {
  if (link != LinkState::kRequestReceived) return;
  control(FrameType::kConnectReject, reason, nullptr, private_data, size, wire::kRejectPrivateSize);
  link = LinkState::kClosed;
  abandon();
}

int Endpoint::disconnect() {
  switch (link) {
    case LinkState::kEstablished:
    case LinkState::kReplySent:
      link = LinkState::kDisconnectSent;
      control(FrameType::kDisconnectRequest, 0, nullptr, nullptr, 0, 0);
      flush(kPosterBudget);
      if (link == LinkState::kDisconnectSent)
        timer(kDreqTimer, link_epoch_, globals().timing.dreq_ms);
      return 0;
    case LinkState::kDisconnectReceived:
      link = LinkState::kClosed;
      control(FrameType::kDisconnectReply, 0, nullptr, nullptr, 0, 0);
      flush(kPosterBudget);
      // The kernel tells the side that answers no second time: its id had DISCONNECTED already.
      ended();
      return 0;
    case LinkState::kDisconnectSent:
    case LinkState::kClosed: return 0;
    default: return EINVAL;
  }
}

void Endpoint::abandon() {
  const LinkState was = link;
  if (was == LinkState::kRequestReceived) {
    reject(nullptr, 0, kRejectByConsumer);
    return;
  }
  if (was == LinkState::kEstablished || was == LinkState::kReplySent) {
    control(FrameType::kDisconnectRequest, 0, nullptr, nullptr, 0, 0);
  } else if (was == LinkState::kDisconnectReceived) {
    control(FrameType::kDisconnectReply, 0, nullptr, nullptr, 0, 0);
  }
  link = LinkState::kClosed;
  if (fd_ < 0) return;
  if (was == LinkState::kConnecting || was == LinkState::kAwaitingRequest) {
    close_socket();
    return;
  }
  // Closing with input unread would reset the connection and could lose the answers that are still
  // on their way out.
  if (!lingering_) {
    lingering_ = true;
    ++link_epoch_;
    if (held_) {
      held_ = false;
      globals().engine.modify(token_, fd_, EPOLLIN | (want_output_ ? EPOLLOUT : 0U));
    }
    constexpr std::uint32_t kLingerMs = 1000;
    timer(kLingerTimer, link_epoch_, kLingerMs);
  }
  flush(kPosterBudget);
}

void Endpoint::lose_link(int error) {
  const LinkState was = link;
  link = LinkState::kClosed;
  if (listener) {
    listener->forget();
    listener = nullptr;
  }
  close_socket();
  if (lingering_) return;
  switch (was) {
    case LinkState::kConnecting:
      if (error == ECONNREFUSED) {
        if (qp != nullptr && qp->state != IBV_QPS_ERR) to_error();
        post_cm(RDMA_CM_EVENT_REJECTED, kRejectNoListener);
      } else {
        post_cm(RDMA_CM_EVENT_UNREACHABLE, error != 0 ? -error : -ETIMEDOUT);
      }
      return;
    case LinkState::kRequestSent:
      if (error == ETIMEDOUT) {
        post_cm(RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
      } else {
        if (qp != nullptr && qp->state != IBV_QPS_ERR) to_error();
        post_cm(RDMA_CM_EVENT_REJECTED, kRejectNoListener);
      }
      return;
    case LinkState::kRequestReceived: post_cm(RDMA_CM_EVENT_REJECTED, kRejectTimeout); return;
    case LinkState::kReplyReceived:
    case LinkState::kReplySent:
      post_cm(RDMA_CM_EVENT_REJECTED, kRejectByConsumer);
      if (qp != nullptr && qp->state != IBV_QPS_ERR) to_error();
      return;
    case LinkState::kEstablished:
      post_cm(RDMA_CM_EVENT_DISCONNECTED, 0);
      ended();
      break;
    case LinkState::kDisconnectSent:
      post_cm(RDMA_CM_EVENT_DISCONNECTED, 0);
      ended();
      break;
    case LinkState::kDisconnectReceived: ended(); break;
    default: break;
  }
  // The event alone leaves the queue pair as it is; sends that nobody will acknowledge fail like
  // any retry.
  if (qp != nullptr && qp->state == IBV_QPS_RTS && qp->sq_head != qp->sq_tail) arm_retry();
}

void Endpoint::ended() {
  if (cm != nullptr) timer(kTimewaitTimer, 0, globals().timing.timewait_ms);
}

void Endpoint::arm_retry() {
  if (qp->retry_armed) return;
  qp->retry_armed = true;
  timer(kRetryTimer, ++qp->retry_epoch, globals().timing.retry_ms);
}

void Endpoint::post_cm(rdma_cm_event_type type, int status, const void* data, std::size_t size) {
  if (cm == nullptr || cm->channel() == nullptr) return;
  auto* event = new CmEvent;
  event->account = cm;
  event->event.id = &cm->base;
  event->event.event = type;
  event->event.status = status;
  if (type == RDMA_CM_EVENT_ESTABLISHED || type == RDMA_CM_EVENT_CONNECT_RESPONSE) {
    event->event.param.conn.responder_resources = remote_param.responder_resources;
    event->event.param.conn.initiator_depth = remote_param.initiator_depth;
    event->event.param.conn.flow_control = remote_param.flow_control;
    event->event.param.conn.rnr_retry_count = remote_param.rnr_retry_count;
    event->event.param.conn.srq = remote_param.srq;
    event->event.param.conn.qp_num = remote_qpn;
  }
  if (size != 0) {
    std::memcpy(event->private_data, data, size);
    event->event.param.conn.private_data = event->private_data;
    event->event.param.conn.private_data_len = static_cast<std::uint8_t>(size);
  }
  cm->channel()->events.push(event);
}

// ----------------------------------------------------------------------------------------------
// output

void Endpoint::put(const wire::Header& header) {
  wire::encode(
      header, std::span<std::uint8_t, wire::kHeaderSize>(out_.get() + out_end_, wire::kHeaderSize));
  out_end_ += wire::kHeaderSize;
  globals().counters.frames_sent.fetch_add(1, std::memory_order_relaxed);
}

void Endpoint::control(FrameType type, std::uint32_t aux, const wire::ConnParam* param,
                       const void* data, std::size_t size, std::size_t padded) {
  if (fd_ < 0) return;
  const std::size_t payload = (param != nullptr ? wire::kConnParamSize : 0) + padded;
  // The reserve is for these frames: a connection sends each of them once at most.
  if (out_end_ + wire::kHeaderSize + payload > kOutSize) return;
  wire::Header header;
  header.type = type;
  header.aux = aux;
  header.payload_length = static_cast<std::uint32_t>(payload);
  put(header);
  if (param != nullptr) {
    wire::encode(*param, std::span<std::uint8_t, wire::kConnParamSize>(out_.get() + out_end_,
                                                                       wire::kConnParamSize));
    out_end_ += wire::kConnParamSize;
  }
  std::memset(out_.get() + out_end_, 0, padded);
  if (size != 0) std::memcpy(out_.get() + out_end_, data, std::min(size, padded));
  out_end_ += padded;
}

void Endpoint::respond(const Response& response) {
  if (fd_ < 0) return;
  if (response.kind == Response::Kind::kAck && responses_count_ != 0) {
    Response& last = responses_[(responses_head_ + responses_count_ - 1) % kResponsesMax];
    if (last.kind == Response::Kind::kAck) {
      last.sequence = response.sequence;
      return;
    }
  }
  if (responses_count_ == kResponsesMax) {
    protocol_error("more requests than answers can wait for");
    return;
  }
  responses_[(responses_head_ + responses_count_++) % kResponsesMax] = response;
}

bool Endpoint::emit_response() {
  if (responses_count_ == 0) return false;
  Response& response = responses_[responses_head_];
  wire::Header header;
  header.sequence = response.sequence;
  bool done = true;
  switch (response.kind) {
    case Response::Kind::kAck: header.type = FrameType::kAck; break;
    case Response::Kind::kNotReady: header.type = FrameType::kReceiverNotReady; break;
    case Response::Kind::kReady: header.type = FrameType::kReceiverReady; break;
    case Response::Kind::kNak:
      header.type = FrameType::kNak;
      header.aux = response.aux;
      break;
    case Response::Kind::kAtomic:
      header.type = FrameType::kAtomicResponse;
      header.payload_length = 8;
      --reads_queued_;
      break;
    case Response::Kind::kRead: {
      header.type = FrameType::kReadResponse;
      header.total = response.total;
      header.offset = response.sent;
      header.payload_length = std::min(response.total - response.sent, wire::kFragmentMax);
      std::uint8_t* to = out_.get() + out_end_ + wire::kHeaderSize;
      if (header.payload_length != 0 &&
          (qp == nullptr || qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_RESET ||
           !globals().keys.read(qp->qp()->pd, response.rkey, response.address + response.sent, to,
                                header.payload_length, Access::kRemoteRead))) {
        // The region went away, or the queue pair, after the request had been let in.
        const bool dead = qp == nullptr || qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_RESET;
        header = wire::Header{};
        header.type = FrameType::kNak;
        header.sequence = response.sequence;
        header.aux = static_cast<std::uint32_t>(dead ? NakCode::kDead : NakCode::kAccess);
        responses_count_ = 0;
        reads_queued_ = 0;
        put(header);
        if (!dead) {
          globals().counters.access_errors.fetch_add(1, std::memory_order_relaxed);
          said_dead_ = true;
          to_error();
        }
        return true;
      }
      response.sent += header.payload_length;
      done = response.sent == response.total;
      if (done) --reads_queued_;
      break;
    }
  }
  put(header);
  if (response.kind == Response::Kind::kAtomic)
    wire::store64(out_.get() + out_end_, response.address);
  out_end_ += header.payload_length;
  if (done) {
    responses_head_ = (responses_head_ + 1) % kResponsesMax;
    --responses_count_;
  }
  return true;
}

bool Endpoint::emit_request() {
  if (qp == nullptr || qp->state != IBV_QPS_RTS || qp->rnr_wait || qp->sq_next == qp->sq_tail ||
      !carries_data()) {
    return false;
  }
  SendRequest& request = qp->slot(qp->sq_next);
  const bool answered = is_answered(request.opcode);
  if (!request.started) {
    if (request.fence && qp->reads_outstanding != 0) return false;
    if (answered && qp->reads_outstanding >= kReadsMax) return false;
    request.started = true;
  }
  const std::uint32_t sent_before = request.sent;
  wire::Header header;
  header.sequence = qp->sq_next;
  std::uint8_t* to = out_.get() + out_end_ + wire::kHeaderSize;
  bool readable = true;
  switch (request.opcode) {
    case IBV_WR_RDMA_READ:
      header.type = FrameType::kReadRequest;
      header.address = request.remote_address;
      header.rkey = request.rkey;
      header.total = request.total;
      request.sent = request.total;
      readable =
          globals().keys.check_list(qp->qp()->pd, qp->sges(qp->sq_next), Access::kLocalWrite);
      break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      header.type = request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? FrameType::kCompareSwap
                                                                : FrameType::kFetchAdd;
      header.address = request.remote_address;
      header.rkey = request.rkey;
      header.payload_length = 16;
      wire::store64(to, request.compare_add);
      wire::store64(to + 8, request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? request.swap : 0);
      request.sent = request.total;
      readable =
          globals().keys.check_list(qp->qp()->pd, qp->sges(qp->sq_next), Access::kLocalWrite);
      break;
    default: {
      const bool write =
          request.opcode == IBV_WR_RDMA_WRITE || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
      const bool immediate =
          request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM || request.opcode == IBV_WR_SEND_WITH_IMM;
      header.type = write ? FrameType::kWrite : FrameType::kSend;
      if (write) {
        header.address = request.remote_address;
        header.rkey = request.rkey;
      }
      if (immediate) {
        header.flags |= wire::kFlagImmediate;
        header.immediate = request.immediate;
      }
      if (request.solicited) header.flags |= wire::kFlagSolicited;
      header.total = request.total;
      header.offset = request.sent;
      header.payload_length = std::min(request.total - request.sent, wire::kFragmentMax);
      if (header.payload_length != 0) {
        if (request.inlined) {
          std::memcpy(to, qp->inline_data(qp->sq_next) + request.sent, header.payload_length);
        } else {
          readable = globals().keys.gather(qp->qp()->pd, qp->sges(qp->sq_next), request.sent, to,
                                           header.payload_length);
        }
      }
      request.sent += header.payload_length;
      break;
    }
  }
  if (!readable) {
    // Completions of a send queue come in order: it fails once it is the oldest.
    request.sent = sent_before;
    if (qp->sq_next == qp->sq_head) to_error(IBV_WC_LOC_PROT_ERR);
    return false;
  }
  put(header);
  out_end_ += header.payload_length;
  if (request.sent == request.total) {
    request.finished_sending = true;
    if (answered) ++qp->reads_outstanding;
    ++qp->sq_next;
  }
  return true;
}

bool Endpoint::fill_output() {
  const auto room = [this] {
    return fd_ >= 0 &&
           out_end_ + wire::kHeaderSize + wire::kFragmentMax + kControlReserve <= kOutSize;
  };
  // One of each in turn: neither the peer's reads nor our own requests starve the other.
  while (room()) {
    bool more = emit_response();
    if (room()) more |= emit_request();
    if (!more) break;
  }
  return out_end_ != 0;
}

void Endpoint::flush(std::size_t budget) {
  if (fd_ < 0 || link == LinkState::kConnecting) return;
  std::size_t sent = 0;
  for (;;) {
    if (out_begin_ == out_end_) {
      out_begin_ = out_end_ = 0;
      if (!fill_output() || fd_ < 0) {
        want_output(false);
        if (fd_ >= 0 && lingering_) ::shutdown(fd_, SHUT_WR);
        return;
      }
    }
    if (sent >= budget) {
      want_output(true);
      return;
    }
    const ssize_t n =
        ::send(fd_, out_.get() + out_begin_, out_end_ - out_begin_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      out_begin_ += static_cast<std::size_t>(n);
      sent += static_cast<std::size_t>(n);
      globals().counters.bytes_sent.fetch_add(static_cast<std::uint64_t>(n),
                                              std::memory_order_relaxed);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      want_output(true);
      return;
    } else if (errno != EINTR) {
      // The reader sees the same error, after what the peer sent before it.
      out_begin_ = out_end_ = 0;
      want_output(false);
      return;
    }
  }
}

void Endpoint::send_posted() {
  if (peer_dead_ && qp->state == IBV_QPS_RTS) {
    arm_retry();
  } else if (carries_data()) {
    // With output queued the engine is at it already.
    if (out_begin_ == out_end_) flush(kPosterBudget);
  } else if (qp->state == IBV_QPS_RTS &&
             (link == LinkState::kClosed || link == LinkState::kDisconnectReceived || fd_ < 0)) {
    arm_retry();
  }
}

// ----------------------------------------------------------------------------------------------
// queue pair

void Endpoint::make_ready_to_send() {
  qp->state = IBV_QPS_RTS;
  qp->qp()->state = IBV_QPS_RTS;
  qp->rnr_retry = remote_param.rnr_retry_count;
  qp->access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  if (local_param.responder_resources != 0)
    qp->access |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  qp->attr.dest_qp_num = remote_qpn;
}

void Endpoint::reset_queues() {
  qp->state = IBV_QPS_RESET;
  qp->qp()->state = IBV_QPS_RESET;
  qp->sq_head = qp->sq_next = qp->sq_tail = 0;
  qp->reads_outstanding = 0;
  qp->rnr_wait = false;
  qp->receiving = false;
  ReceiveRing::Taken taken;
  while (qp->srq == nullptr && qp->rq.pop(taken)) {
  }
  in_message_ = false;
  if (sink_ != Sink::kStage) sink_ = Sink::kDiscard;
}

void Endpoint::qp_gone() {
  in_message_ = false;
  if (sink_ != Sink::kStage) sink_ = Sink::kDiscard;
  qp = nullptr;
}

void Endpoint::flush_completion(std::uint64_t wr_id, CompletionQueue& cq, ibv_wc_status status) {
  ibv_wc wc{};
  wc.wr_id = wr_id;
  wc.status = status;
  wc.qp_num = qp->qp()->qp_num;
  wc.vendor_err = static_cast<std::uint32_t>(status);
  push_completion(cq, wc, true);
}

void Endpoint::to_error(ibv_wc_status first) {
  if (qp == nullptr || qp->state == IBV_QPS_ERR) return;
  const FaultPlan& plan = Faults::instance().plan();
  qp->state = IBV_QPS_ERR;
  qp->qp()->state = IBV_QPS_ERR;
  if (qp->receiving) {
    qp->receiving = false;
    flush_completion(qp->receive.wr_id, *qp->recv_cq, IBV_WC_WR_FLUSH_ERR);
  }
  in_message_ = false;
  if (sink_ != Sink::kStage) sink_ = Sink::kDiscard;
  while (qp->sq_head != qp->sq_tail) {
    if (plan.withhold_flush && qp->sq_head + 1 == qp->sq_tail && first == IBV_WC_WR_FLUSH_ERR) {
      Faults::instance().count();
      ++qp->sq_head;
      break;
    }
    const SendRequest& request = qp->slot(qp->sq_head);
    ++qp->sq_head;
    flush_completion(request.wr_id, *qp->send_cq, first);
    first = IBV_WC_WR_FLUSH_ERR;
  }
  qp->sq_next = qp->sq_tail;
  qp->reads_outstanding = 0;
  qp->rnr_wait = false;
  if (qp->srq == nullptr) {
    ReceiveRing::Taken taken;
    while (qp->rq.pop(taken)) flush_completion(taken.wr_id, *qp->recv_cq, IBV_WC_WR_FLUSH_ERR);
  } else if (plan.withhold_last_wqe) {
    Faults::instance().count();
  } else {
    ibv_async_event event{};
    event.element.qp = qp->qp();
    event.event_type = IBV_EVENT_QP_LAST_WQE_REACHED;
    softrdma::raise_async(qp->qp()->context, event);
  }
}

}  // namespace softrdma
