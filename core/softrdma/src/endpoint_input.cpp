// SPDX-License-Identifier: BSD-3-Clause
// Endpoint: what comes from the peer. The responder executes the peer's requests, the requester
// learns how its own ended.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cm.hpp"
#include "endpoint.hpp"
#include "log.hpp"

namespace softrdma {

using wire::FrameType;
using wire::NakCode;

namespace {
bool before(std::uint32_t a, std::uint32_t b) noexcept {
  return static_cast<std::int32_t>(a - b) < 0;
}
}  // namespace

void Endpoint::on_events(std::uint32_t events) noexcept {
  // Destroyed after the lock: the engine's reference may be the last.
  const auto self = shared_from_this();
  const std::lock_guard lock(mu);
  if (fd_ < 0 || held_) return;
  if (link == LinkState::kConnecting) {
    if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0) return;
    finish_connect();
    if (fd_ < 0) return;
  }
  // Input first, also with an error pending: what the peer sent before it died counts.
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    if (!resumed_ && !lingering_) {
      hold_input();
      if (held_) return;
    }
    resumed_ = false;
    read_input();
  }
  if (fd_ >= 0 && (events & EPOLLOUT) != 0) flush(kEngineBudget);
}

void Endpoint::read_input() {
  constexpr std::size_t kScratch = 256 * 1024;
  constexpr int kRounds = 8;  // then other sockets get their turn
  // Only the engine's thread reads sockets.
  static thread_local std::unique_ptr<std::uint8_t[]> scratch(new std::uint8_t[kScratch]);
  for (int round = 0; round < kRounds && fd_ >= 0; ++round) {
    const ssize_t n = ::recv(fd_, scratch.get(), kScratch, MSG_DONTWAIT);
    if (n > 0) {
      globals().counters.bytes_received.fetch_add(static_cast<std::uint64_t>(n),
                                                  std::memory_order_relaxed);
      if (!lingering_) consume(scratch.get(), static_cast<std::size_t>(n));
      if (static_cast<std::size_t>(n) < kScratch) break;
    } else if (n == 0) {
      lose_link(0);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      lose_link(errno);
    }
  }
  if (fd_ >= 0) flush(kEngineBudget);
}

void Endpoint::feed(std::span<const std::uint8_t> bytes) {
  consume(bytes.data(), bytes.size());
  if (fd_ >= 0) flush(kEngineBudget);
}

void Endpoint::consume(const std::uint8_t* data, std::size_t size) {
  while (fd_ >= 0 && !lingering_) {
    if (!in_payload_) {
      const std::size_t wanted = std::min(size, wire::kHeaderSize - in_header_size_);
      std::memcpy(in_header_.data() + in_header_size_, data, wanted);
      in_header_size_ += wanted;
      data += wanted;
      size -= wanted;
      if (in_header_size_ < wire::kHeaderSize) return;
      in_header_size_ = 0;
      if (const char* wrong =
              wire::decode(std::span<const std::uint8_t, wire::kHeaderSize>(in_header_), in_)) {
        protocol_error(wrong);
        return;
      }
      globals().counters.frames_received.fetch_add(1, std::memory_order_relaxed);
      in_done_ = 0;
      in_payload_ = true;
      begin_frame();
    } else {
      const std::size_t wanted = std::min<std::size_t>(size, in_.payload_length - in_done_);
      if (wanted != 0) payload(data, wanted);
      in_done_ += static_cast<std::uint32_t>(wanted);
      data += wanted;
      size -= wanted;
    }
    if (fd_ < 0 || lingering_) return;
    if (in_payload_ && in_done_ == in_.payload_length) {
      in_payload_ = false;
      end_frame();
    } else if (size == 0) {
      return;
    }
  }
}

void Endpoint::protocol_error(const char* what) {
  globals().counters.protocol_errors.fetch_add(1, std::memory_order_relaxed);
  log_line(LogLevel::kInfo, "a peer broke the protocol (%s); closing its connection", what);
  lose_link(EPROTO);
  if (qp != nullptr && qp->state != IBV_QPS_ERR && qp->state != IBV_QPS_RESET) {
    ibv_async_event event{};
    event.element.qp = qp->qp();
    event.event_type = IBV_EVENT_QP_FATAL;
    softrdma::raise_async(qp->qp()->context, event);
    to_error();
  }
}

void Endpoint::begin_frame() {
  sink_ = Sink::kDiscard;
  if (wire::is_request(in_.type)) {
    begin_request();
  } else if (wire::is_response(in_.type)) {
    if (in_.type == FrameType::kReadResponse) {
      begin_read_response();
    } else if (in_.type == FrameType::kAtomicResponse) {
      sink_ = Sink::kStage;
    }
  } else {
    sink_ = Sink::kStage;
  }
}

void Endpoint::payload(const std::uint8_t* data, std::size_t size) {
  if (in_.payload_length <= kStageMax && size != in_.payload_length && sink_ != Sink::kDiscard) {
    // A small payload that came in pieces is placed in one go: an atomic write must not be seen
    // half done.
    std::memcpy(stage_.data() + in_done_, data, size);
    if (in_done_ + size != in_.payload_length || sink_ == Sink::kStage) return;
    place(stage_.data(), in_.payload_length, 0);
    return;
  }
  place(data, size, in_done_);
}

void Endpoint::place(const std::uint8_t* data, std::size_t size, std::uint32_t at_offset) {
  switch (sink_) {
    case Sink::kDiscard: return;
    case Sink::kStage:
      // Every staged type has a fixed payload below kStageMax, by the decoder.
      std::memcpy(stage_.data() + at_offset, data, size);
      return;
    case Sink::kReceive: {
      const SgeSpan list{qp->receive.sge, qp->receive.num_sge};
      if (!globals().keys.scatter(qp->qp()->pd, list, std::uint64_t{in_.offset} + at_offset, data,
                                  size)) {
        fail_receive(IBV_WC_LOC_PROT_ERR);
        sink_ = Sink::kDiscard;
      }
      return;
    }
    case Sink::kMemory: {
      const std::uint64_t at = message_.address + in_.offset + at_offset;
      if (!globals().keys.write(qp->qp()->pd, message_.rkey, at, data, size,
                                Access::kRemoteWrite)) {
        refuse(NakCode::kAccess, IBV_EVENT_QP_ACCESS_ERR);
        sink_ = Sink::kDiscard;
      }
      return;
    }
    case Sink::kRead: {
      const SgeSpan list = qp->sges(in_.sequence);
      if (!globals().keys.scatter(qp->qp()->pd, list, std::uint64_t{in_.offset} + at_offset, data,
                                  size)) {
        complete_before(in_.sequence);
        to_error(IBV_WC_LOC_PROT_ERR);
        sink_ = Sink::kDiscard;
      }
      return;
    }
  }
}

void Endpoint::end_frame() {
  if (wire::is_request(in_.type)) {
    if (sink_ != Sink::kDiscard) end_request();
    return;
  }
  if (!wire::is_response(in_.type)) {
    control_frame();
    return;
  }
  if (!(link == LinkState::kReplySent || link == LinkState::kEstablished ||
        link == LinkState::kDisconnectSent || link == LinkState::kDisconnectReceived)) {
    protocol_error("a response outside of a connection");
    return;
  }
  if (qp == nullptr || qp->state != IBV_QPS_RTS)
    return;  // in error all has been flushed; answers are stale
  switch (in_.type) {
    case FrameType::kReadResponse:
    case FrameType::kAtomicResponse: end_read_response(); return;
    case FrameType::kAck: on_ack(in_.sequence); return;
    case FrameType::kNak: on_nak(); return;
    case FrameType::kReceiverNotReady: on_not_ready(); return;
    default: on_ready(); return;
  }
}

// ----------------------------------------------------------------------------------------------
// responder

void Endpoint::begin_request() {
  if (!(link == LinkState::kEstablished || link == LinkState::kDisconnectSent ||
        link == LinkState::kDisconnectReceived)) {
    protocol_error("a request outside of a connection");
    return;
  }
  if (qp == nullptr ||
      (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_RTR && qp->state != IBV_QPS_SQD)) {
    // Real hardware stays silent and the requester runs into its retry limit; it gets there sooner
    // if told.
    if (!said_dead_ && link == LinkState::kEstablished) {
      said_dead_ = true;
      respond({Response::Kind::kNak, in_.sequence, 0, 0, 0, 0,
               static_cast<std::uint32_t>(NakCode::kDead)});
    }
    return;
  }
  if (rnr_waiting_) {
    if (in_.sequence != rnr_sequence_ || in_.offset != 0) return;  // sent before the peer knew
    rnr_waiting_ = false;
  }
  if (in_.sequence != expected_) {
    protocol_error("a request out of order");
    return;
  }
  if (in_message_) {
    if (in_.type != message_.type || in_.offset != message_done_ || in_.total != message_.total ||
        in_.flags != message_.flags || in_.address != message_.address ||
        in_.rkey != message_.rkey || in_.immediate != message_.immediate) {
      protocol_error("a fragment that does not continue its message");
      return;
    }
  } else {
    if (in_.offset != 0) {
      protocol_error("a message without its start");
      return;
    }
    begin_message();
    return;
  }
  sink_ = in_.type == FrameType::kSend ? Sink::kReceive : Sink::kMemory;
}

void Endpoint::begin_message() {
  message_ = in_;
  message_done_ = 0;
  if (qp->state == IBV_QPS_RTR && !said_established_) {
    said_established_ = true;
    ibv_async_event event{};
    event.element.qp = qp->qp();
    event.event_type = IBV_EVENT_COMM_EST;
    softrdma::raise_async(qp->qp()->context, event);
  }
  const KeyTable& keys = globals().keys;
  const ibv_pd* pd = qp->qp()->pd;
  switch (in_.type) {
    case FrameType::kSend:
      if (!take_receive()) return;
      in_message_ = true;
      if (in_.total > qp->receive.length) {
        fail_receive(IBV_WC_LOC_QP_OP_ERR);
        return;
      }
      if (!keys.check_list(pd, {qp->receive.sge, qp->receive.num_sge}, Access::kLocalWrite)) {
        fail_receive(IBV_WC_LOC_PROT_ERR);
        return;
      }
      sink_ = Sink::kReceive;
      return;
    case FrameType::kWrite:
      if (in_.total != 0 &&
          ((qp->access & IBV_ACCESS_REMOTE_WRITE) == 0 ||
           !keys.check(pd, in_.rkey, in_.address, in_.total, Access::kRemoteWrite))) {
        refuse(NakCode::kAccess, IBV_EVENT_QP_ACCESS_ERR);
        return;
      }
      if ((in_.flags & wire::kFlagImmediate) != 0 && !take_receive()) return;
      in_message_ = true;
      sink_ = Sink::kMemory;
      return;
    case FrameType::kReadRequest:
      if (in_.total != 0 &&
          ((qp->access & IBV_ACCESS_REMOTE_READ) == 0 ||
           !keys.check(pd, in_.rkey, in_.address, in_.total, Access::kRemoteRead))) {
        refuse(NakCode::kAccess, IBV_EVENT_QP_ACCESS_ERR);
        return;
      }
      if (reads_queued_ >= kReadsMax) {
        protocol_error("more reads at once than allowed");
        return;
      }
      ++reads_queued_;
      ++expected_;
      respond({Response::Kind::kRead, in_.sequence, in_.address, in_.rkey, in_.total, 0, 0});
      message_counted();
      return;
    default:  // atomics
      if ((qp->access & IBV_ACCESS_REMOTE_ATOMIC) == 0) {
        refuse(NakCode::kAccess, IBV_EVENT_QP_ACCESS_ERR);
        return;
      }
      if (reads_queued_ >= kReadsMax) {
        protocol_error("more atomics at once than allowed");
        return;
      }
      in_message_ = true;
      sink_ = Sink::kStage;
      return;
  }
}

void Endpoint::end_request() {
  message_done_ += in_.payload_length;
  if (in_.type == FrameType::kCompareSwap || in_.type == FrameType::kFetchAdd) {
    std::uint64_t old = 0;
    const auto result = globals().keys.atomic(
        qp->qp()->pd, in_.rkey, in_.address, in_.type == FrameType::kCompareSwap,
        wire::load64(stage_.data()), wire::load64(stage_.data() + 8), old);
    if (result != KeyTable::AtomicResult::kDone) {
      const bool access = result == KeyTable::AtomicResult::kAccess;
      refuse(access ? NakCode::kAccess : NakCode::kInvalidRequest,
             access ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
      return;
    }
    in_message_ = false;
    ++expected_;
    ++reads_queued_;
    respond({Response::Kind::kAtomic, in_.sequence, old, 0, 0, 0, 0});
    message_counted();
    return;
  }
  if (message_done_ == message_.total) complete_message();
}

void Endpoint::complete_message() {
  in_message_ = false;
  rnr_forced_ = false;
  ++expected_;
  if (qp->receiving) {
    complete_receive(IBV_WC_SUCCESS,
                     message_.type == FrameType::kSend ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM);
  }
  respond({Response::Kind::kAck, message_.sequence, 0, 0, 0, 0, 0});
  message_counted();
}

bool Endpoint::take_receive() {
  const FaultPlan& plan = Faults::instance().plan();
  if (plan.rnr_delay_us.set() && !(rnr_forced_ && rnr_forced_sequence_ == in_.sequence)) {
    rnr_forced_ = true;
    rnr_forced_sequence_ = in_.sequence;
    Faults::instance().count();
    not_ready();
    globals().engine.arm_timer(
        now_ns() + random_.between(plan.rnr_delay_us.low, plan.rnr_delay_us.high) * 1000,
        weak_from_this(), kReadyTimer, link_epoch_);
    return false;
  }
  bool limit_reached = false;
  bool taken = false;
  if (qp->srq != nullptr) {
    const std::lock_guard lock(qp->srq->mu);
    taken = qp->srq->ring.pop(qp->receive);
    if (!taken) {
      // Once: a peer that tries again and again must not make the list longer.
      if (!srq_waiting_) qp->srq->waiting.push_back(weak_from_this());
      srq_waiting_ = true;
    } else if (qp->srq->limit != 0 && qp->srq->ring.count() < qp->srq->limit) {
      qp->srq->limit = 0;
      limit_reached = true;
    }
  } else {
    taken = qp->rq.pop(qp->receive);
  }
  if (limit_reached) {
    ibv_async_event event{};
    event.element.srq = &qp->srq->base;
    event.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
    softrdma::raise_async(qp->qp()->context, event);
  }
  if (!taken) {
    not_ready();
    return false;
  }
  qp->receiving = true;
  return true;
}

void Endpoint::not_ready() {
  globals().counters.rnr_waits.fetch_add(1, std::memory_order_relaxed);
  rnr_waiting_ = true;
  said_ready_ = false;
  rnr_sequence_ = in_.sequence;
  respond({Response::Kind::kNotReady, in_.sequence, 0, 0, 0, 0, 0});
}

void Endpoint::receive_posted() {
  srq_waiting_ = false;
  if (!rnr_waiting_ || said_ready_ || fd_ < 0) return;
  said_ready_ = true;
  respond({Response::Kind::kReady, rnr_sequence_, 0, 0, 0, 0, 0});
  flush(kPosterBudget);
}

void Endpoint::complete_receive(ibv_wc_status status, ibv_wc_opcode opcode) {
  qp->receiving = false;
  ibv_wc wc{};
  wc.wr_id = qp->receive.wr_id;
  wc.status = status;
  wc.opcode = opcode;
  wc.qp_num = qp->qp()->qp_num;
  if (status == IBV_WC_SUCCESS) {
    wc.byte_len = message_.total;
    wc.src_qp = remote_qpn;
    if ((message_.flags & wire::kFlagImmediate) != 0) {
      wc.wc_flags = IBV_WC_WITH_IMM;
      wc.imm_data = message_.immediate;
    }
  } else {
    wc.vendor_err = static_cast<std::uint32_t>(status);
  }
  push_completion(*qp->recv_cq, wc, (message_.flags & wire::kFlagSolicited) != 0);
}

void Endpoint::fail_receive(ibv_wc_status status) {
  complete_receive(status, IBV_WC_RECV);
  refuse(NakCode::kOperation, IBV_EVENT_QP_FATAL);
}

void Endpoint::refuse(NakCode code, ibv_event_type type) {
  if (code == NakCode::kAccess)
    globals().counters.access_errors.fetch_add(1, std::memory_order_relaxed);
  sink_ = Sink::kDiscard;
  said_dead_ = true;
  respond({Response::Kind::kNak, in_.sequence, 0, 0, 0, 0, static_cast<std::uint32_t>(code)});
  // A receive that went wrong is told by its completion; only the others need an event.
  if (type != IBV_EVENT_QP_FATAL) {
    ibv_async_event event{};
    event.element.qp = qp->qp();
    event.event_type = type;
    softrdma::raise_async(qp->qp()->context, event);
  }
  to_error();
}

void Endpoint::message_counted() {
  if (!cut_at_message_ || --messages_left_ != 0) return;
  cut_at_message_ = false;
  Faults::instance().count();
  flush(kEngineBudget);
  if (fd_ >= 0) lose_link(ECONNRESET);
}

// ----------------------------------------------------------------------------------------------
// requester

bool Endpoint::acknowledgeable(std::uint32_t sequence) const noexcept {
  return !before(sequence, qp->sq_head) && before(sequence, qp->sq_next);
}

void Endpoint::complete_head(ibv_wc_status status) {
  SendRequest& request = qp->slot(qp->sq_head);
  if (request.signaled || qp->signal_all || status != IBV_WC_SUCCESS) {
    ibv_wc wc{};
    wc.wr_id = request.wr_id;
    wc.status = status;
    wc.qp_num = qp->qp()->qp_num;
    if (status == IBV_WC_SUCCESS) {
      wc.byte_len = request.total;
      switch (request.opcode) {
        case IBV_WR_RDMA_WRITE:
        case IBV_WR_RDMA_WRITE_WITH_IMM: wc.opcode = IBV_WC_RDMA_WRITE; break;
        case IBV_WR_RDMA_READ: wc.opcode = IBV_WC_RDMA_READ; break;
        case IBV_WR_ATOMIC_CMP_AND_SWP: wc.opcode = IBV_WC_COMP_SWAP; break;
        case IBV_WR_ATOMIC_FETCH_AND_ADD: wc.opcode = IBV_WC_FETCH_ADD; break;
        default: wc.opcode = IBV_WC_SEND; break;
      }
    } else {
      wc.vendor_err = static_cast<std::uint32_t>(status);
    }
    ++qp->sq_head;
    push_completion(*qp->send_cq, wc, false);
  } else {
    ++qp->sq_head;
  }
}

void Endpoint::complete_before(std::uint32_t sequence) {
  while (before(qp->sq_head, sequence)) complete_head(IBV_WC_SUCCESS);
  qp->rnr_tries = 0;
}

void Endpoint::on_ack(std::uint32_t sequence) {
  if (!acknowledgeable(sequence)) {
    protocol_error("an acknowledgement of nothing");
    return;
  }
  for (std::uint32_t i = qp->sq_head; i != sequence + 1; ++i) {
    const SendRequest& request = qp->slot(i);
    const bool answered = request.opcode == IBV_WR_RDMA_READ ||
                          request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
                          request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    if (answered || !request.finished_sending) {
      protocol_error("an acknowledgement of a request without its answer");
      return;
    }
  }
  complete_before(sequence + 1);
}

void Endpoint::begin_read_response() {
  if (qp == nullptr || qp->state != IBV_QPS_RTS) return;
  if (!acknowledgeable(in_.sequence)) {
    protocol_error("an answer to nothing");
    return;
  }
  const SendRequest& request = qp->slot(in_.sequence);
  if (request.opcode != IBV_WR_RDMA_READ || !request.finished_sending ||
      in_.total != request.total || in_.offset != request.received) {
    protocol_error("an answer that does not fit its read");
    return;
  }
  for (std::uint32_t i = qp->sq_head; i != in_.sequence; ++i) {
    const ibv_wr_opcode opcode = qp->slot(i).opcode;
    if (opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
        opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      protocol_error("answers out of order");
      return;
    }
  }
  sink_ = Sink::kRead;
}

void Endpoint::end_read_response() {
  if (sink_ == Sink::kDiscard) return;
  if (in_.type == FrameType::kReadResponse) {
    SendRequest& request = qp->slot(in_.sequence);
    request.received += in_.payload_length;
    if (request.received != request.total) return;
  } else {
    if (!acknowledgeable(in_.sequence)) {
      protocol_error("an answer to nothing");
      return;
    }
    for (std::uint32_t i = qp->sq_head; i != in_.sequence + 1; ++i) {
      const ibv_wr_opcode opcode = qp->slot(i).opcode;
      const bool atomic =
          opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
      if (i == in_.sequence ? !atomic : atomic || opcode == IBV_WR_RDMA_READ) {
        protocol_error("answers out of order");
        return;
      }
    }
    const std::uint64_t old = wire::load64(stage_.data());
    std::uint8_t bytes[8];
    std::memcpy(bytes, &old, sizeof bytes);
    if (!globals().keys.scatter(qp->qp()->pd, qp->sges(in_.sequence), 0, bytes, sizeof bytes)) {
      complete_before(in_.sequence);
      to_error(IBV_WC_LOC_PROT_ERR);
      return;
    }
  }
  --qp->reads_outstanding;
  complete_before(in_.sequence + 1);
}

void Endpoint::on_nak() {
  if (static_cast<NakCode>(in_.aux) == NakCode::kDead) {
    peer_dead_ = true;
    arm_retry();
    return;
  }
  if (!acknowledgeable(in_.sequence)) {
    protocol_error("a refusal of nothing");
    return;
  }
  complete_before(in_.sequence);
  switch (static_cast<NakCode>(in_.aux)) {
    case NakCode::kAccess: to_error(IBV_WC_REM_ACCESS_ERR); return;
    case NakCode::kInvalidRequest: to_error(IBV_WC_REM_INV_REQ_ERR); return;
    default: to_error(IBV_WC_REM_OP_ERR); return;
  }
}

void Endpoint::rewind_to(std::uint32_t sequence) {
  for (std::uint32_t i = sequence; i != qp->sq_tail; ++i) {
    SendRequest& request = qp->slot(i);
    if (!request.started) break;
    const bool answered = request.opcode == IBV_WR_RDMA_READ ||
                          request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
                          request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    if (answered && request.finished_sending) --qp->reads_outstanding;
    request.started = request.finished_sending = false;
    request.sent = request.received = 0;
  }
  qp->sq_next = sequence;
}

void Endpoint::on_not_ready() {
  if (!acknowledgeable(in_.sequence) &&
      !(in_.sequence == qp->sq_next && qp->sq_next != qp->sq_tail &&
        qp->slot(qp->sq_next).started)) {
    protocol_error("a wait for nothing");
    return;
  }
  for (std::uint32_t i = qp->sq_head; i != in_.sequence; ++i) {
    const ibv_wr_opcode opcode = qp->slot(i).opcode;
    if (opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
        opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      protocol_error("answers out of order");
      return;
    }
  }
  if (qp->sq_head != in_.sequence) complete_before(in_.sequence);
  if (qp->rnr_retry < 7 && qp->rnr_tries >= qp->rnr_retry) {
    to_error(IBV_WC_RNR_RETRY_EXC_ERR);
    return;
  }
  rewind_to(in_.sequence);
  qp->rnr_wait = true;
  qp->rnr_sequence = in_.sequence;
  ++qp->rnr_epoch;
  if (qp->rnr_retry < 7) {
    ++qp->rnr_tries;
    timer(kRnrTimer, qp->rnr_epoch, globals().timing.rnr_ms);
  }
}

void Endpoint::on_ready() {
  // With a finite retry count the timer may have been quicker.
  if (qp->rnr_wait && qp->rnr_sequence == in_.sequence) qp->rnr_wait = false;
}

// ----------------------------------------------------------------------------------------------
// connection

void Endpoint::control_frame() {
  switch (in_.type) {
    case FrameType::kConnectRequest: on_connect_request(); return;
    case FrameType::kConnectReply: on_connect_reply(); return;
    case FrameType::kConnectReject:
      if (link != LinkState::kRequestSent) break;
      link = LinkState::kClosed;
      if (qp != nullptr && qp->state != IBV_QPS_ERR) to_error();
      post_cm(RDMA_CM_EVENT_REJECTED, static_cast<int>(in_.aux & 0xFFFF), stage_.data(),
              wire::kRejectPrivateSize);
      close_socket();
      return;
    case FrameType::kReady:
      if (link != LinkState::kReplySent) break;
      link = LinkState::kEstablished;
      post_cm(RDMA_CM_EVENT_ESTABLISHED, 0);
      return;
    case FrameType::kDisconnectRequest:
      if (link == LinkState::kEstablished || link == LinkState::kReplySent) {
        link = LinkState::kDisconnectReceived;
        post_cm(RDMA_CM_EVENT_DISCONNECTED, 0);
        if (qp != nullptr && qp->state == IBV_QPS_RTS && qp->sq_head != qp->sq_tail) arm_retry();
        return;
      }
      if (link == LinkState::kDisconnectSent) {
        // Both asked at once: each takes the other's request for its answer.
        control(FrameType::kDisconnectReply, 0, nullptr, nullptr, 0, 0);
        link = LinkState::kClosed;
        post_cm(RDMA_CM_EVENT_DISCONNECTED, 0);
        ended();
        return;
      }
      if (link == LinkState::kClosed) return;
      break;
    case FrameType::kDisconnectReply:
      if (link == LinkState::kDisconnectSent) {
        link = LinkState::kClosed;
        post_cm(RDMA_CM_EVENT_DISCONNECTED, 0);
        ended();
        return;
      }
      if (link == LinkState::kClosed) return;
      break;
    default: break;
  }
  protocol_error("a connection frame at the wrong time");
}

void Endpoint::on_connect_request() {
  if (link != LinkState::kAwaitingRequest || !listener) {
    protocol_error("a second connection request");
    return;
  }
  wire::ConnParam param;
  if (const char* wrong = wire::decode(
          std::span<const std::uint8_t, wire::kConnParamSize>(stage_.data(), wire::kConnParamSize),
          param)) {
    protocol_error(wrong);
    return;
  }
  // Seen from our side: what the peer initiates we respond to.
  remote_param = param;
  std::swap(remote_param.responder_resources, remote_param.initiator_depth);
  remote_qpn = in_.aux & 0xFFFFFF;
  std::memcpy(request_private.data(), stage_.data() + wire::kConnParamSize,
              wire::kRequestPrivateSize);
  link = LinkState::kRequestReceived;
  const auto from = std::move(listener);
  listener = nullptr;
  from->forget();
  if (!from->request(*this, request_private)) reject(nullptr, 0, kRejectNoListener);
}

void Endpoint::on_connect_reply() {
  if (link != LinkState::kRequestSent) {
    protocol_error("a reply without a request");
    return;
  }
  wire::ConnParam param;
  if (const char* wrong = wire::decode(
          std::span<const std::uint8_t, wire::kConnParamSize>(stage_.data(), wire::kConnParamSize),
          param)) {
    protocol_error(wrong);
    return;
  }
  remote_param = param;
  std::swap(remote_param.responder_resources, remote_param.initiator_depth);
  remote_qpn = in_.aux & 0xFFFFFF;
  ++link_epoch_;  // the reply timer is stale
  if (qp == nullptr) {
    link = LinkState::kReplyReceived;
    post_cm(RDMA_CM_EVENT_CONNECT_RESPONSE, 0, stage_.data() + wire::kConnParamSize,
            wire::kReplyPrivateSize);
    return;
  }
  make_ready_to_send();
  establish();
  // Told to the peer first: an application that dies at once had a connection all the same.
  flush(kPosterBudget);
  post_cm(RDMA_CM_EVENT_ESTABLISHED, 0, stage_.data() + wire::kConnParamSize,
          wire::kReplyPrivateSize);
}

}  // namespace softrdma
