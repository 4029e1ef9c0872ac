// SPDX-License-Identifier: BSD-3-Clause
// Feeds arbitrary frames to the decoder and to both halves of a connected queue pair: the
// responder, which has memory registered and receives posted, and the requester, which has sends
// outstanding.
//
// The input is a list of records: one byte that picks a frame type, one of options, then header
// fields and payload as they come. The harness puts magic, version and checksum right, so that the
// fuzzer gets behind the decoder; one option leaves them as they are in the input. Memory outside
// of the registered region is a canary.
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "endpoint.hpp"
#include "objects.hpp"
#include "wire.hpp"

#undef ibv_reg_mr

namespace {

using namespace softrdma;

struct Input {
  const std::uint8_t* data;
  std::size_t size;
  std::uint64_t take(std::size_t bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes && size != 0; ++i, ++data, --size)
      value |= std::uint64_t{*data} << (8 * i);
    return value;
  }
};

constexpr std::size_t kGuard = 4096;
constexpr std::size_t kRegion = 4096;
alignas(4096) std::array<std::uint8_t, 2 * kGuard + kRegion> memory;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_guards() {
  for (std::size_t i = 0; i < kGuard; ++i) {
    require(memory[i] == 0x5A && memory[kGuard + kRegion + i] == 0x5A);
  }
}

/// One frame, mostly well-formed.
std::vector<std::uint8_t> next_frame(Input& in, std::uint32_t rkey, std::uint64_t base) {
  static constexpr wire::FrameType kTypes[] = {wire::FrameType::kSend,
                                               wire::FrameType::kWrite,
                                               wire::FrameType::kReadRequest,
                                               wire::FrameType::kCompareSwap,
                                               wire::FrameType::kFetchAdd,
                                               wire::FrameType::kReadResponse,
                                               wire::FrameType::kAtomicResponse,
                                               wire::FrameType::kAck,
                                               wire::FrameType::kNak,
                                               wire::FrameType::kReceiverNotReady,
                                               wire::FrameType::kReceiverReady,
                                               wire::FrameType::kDisconnectRequest,
                                               wire::FrameType::kDisconnectReply,
                                               wire::FrameType::kReady,
                                               wire::FrameType::kConnectRequest,
                                               wire::FrameType::kConnectReply};
  wire::Header h;
  h.type = kTypes[in.take(1) % std::size(kTypes)];
  const auto options = in.take(1);
  h.sequence = static_cast<std::uint32_t>(in.take(1));
  const bool data = h.type == wire::FrameType::kSend || h.type == wire::FrameType::kWrite ||
                    h.type == wire::FrameType::kReadResponse;
  if (data) {
    h.total = static_cast<std::uint32_t>(in.take(2));
    h.offset = (options & 1) != 0 ? static_cast<std::uint32_t>(in.take(2)) : 0;
    h.payload_length =
        (options & 2) != 0 ? static_cast<std::uint32_t>(in.take(2)) : h.total - h.offset;
    if (h.type != wire::FrameType::kReadResponse)
      h.flags = static_cast<std::uint16_t>(in.take(1) & 3);
    if ((h.flags & wire::kFlagImmediate) != 0) h.immediate = 7;
  }
  if (h.type == wire::FrameType::kReadRequest) h.total = static_cast<std::uint32_t>(in.take(2));
  if (h.type == wire::FrameType::kWrite || h.type == wire::FrameType::kReadRequest ||
      h.type == wire::FrameType::kCompareSwap || h.type == wire::FrameType::kFetchAdd) {
    // Around the region's ends: where a mistake would show.
    h.address = base + static_cast<std::uint64_t>(static_cast<std::int64_t>(in.take(2)) - 16384);
    h.rkey = (options & 4) != 0 ? static_cast<std::uint32_t>(in.take(4)) : rkey;
  }
  if (h.type == wire::FrameType::kCompareSwap || h.type == wire::FrameType::kFetchAdd)
    h.payload_length = 16;
  if (h.type == wire::FrameType::kAtomicResponse) h.payload_length = 8;
  if (h.type == wire::FrameType::kNak) h.aux = static_cast<std::uint32_t>(in.take(1));
  if (h.type == wire::FrameType::kConnectRequest)
    h.payload_length = wire::kConnParamSize + wire::kRequestPrivateSize;
  if (h.type == wire::FrameType::kConnectReply)
    h.payload_length = wire::kConnParamSize + wire::kReplyPrivateSize;
  const std::size_t payload = std::min<std::size_t>(h.payload_length, 2 * wire::kFragmentMax);
  std::vector<std::uint8_t> bytes(wire::kHeaderSize + payload, 0xEE);
  wire::encode(h, std::span<std::uint8_t, wire::kHeaderSize>(bytes.data(), wire::kHeaderSize));
  if ((options & 8) != 0) {
    for (std::size_t i = 0; i < wire::kHeaderSize && in.size != 0; ++i) {
      bytes[i] = static_cast<std::uint8_t>(bytes[i] ^ in.take(1));
    }
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static ibv_context* const verbs = ibv_open_device(device());
  static ibv_pd* const pd = ibv_alloc_pd(verbs);
  memory.fill(0x5A);
  Input in{data, size};
  if (size >= wire::kHeaderSize) {
    wire::Header h;
    (void)wire::decode(std::span<const std::uint8_t, wire::kHeaderSize>(data, wire::kHeaderSize),
                       h);
  }
  const auto setup = in.take(1);
  const unsigned rights = IBV_ACCESS_LOCAL_WRITE | static_cast<unsigned>(setup & 0xE);
  ibv_mr* mr = ibv_reg_mr(pd, memory.data() + kGuard, kRegion, static_cast<int>(rights));
  require(mr != nullptr);
  ibv_cq* cq = ibv_create_cq(verbs, 64, nullptr, nullptr, 0);
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.cap = {16, 16, 2, 2, 16};
  init.qp_type = IBV_QPT_RC;
  ibv_qp* qp = ibv_create_qp(pd, &init);
  QueuePair& pair = *from(qp);
  const auto endpoint = pair.endpoint;
  int fds[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
  {
    const std::lock_guard lock(endpoint->mu);
    require(endpoint->adopt(fds[0], LinkState::kEstablished) == 0);
    endpoint->local_param.responder_resources = 16;
    endpoint->make_ready_to_send();
  }
  const auto base = reinterpret_cast<std::uint64_t>(memory.data() + kGuard);
  for (std::uint64_t i = 0; i < (setup >> 4); ++i) {
    ibv_sge sge{base + i * 64, 64, mr->lkey};
    ibv_recv_wr recv{};
    recv.sg_list = &sge;
    recv.num_sge = 1;
    ibv_recv_wr* bad_recv = nullptr;
    (void)verbs->ops.post_recv(qp, &recv, &bad_recv);
    ibv_send_wr send{};
    send.sg_list = &sge;
    send.num_sge = 1;
    send.opcode = i % 3 == 0 ? IBV_WR_RDMA_READ : i % 3 == 1 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
    send.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad_send = nullptr;
    (void)verbs->ops.post_send(qp, &send, &bad_send);
  }
  while (in.size != 0) {
    const auto bytes = next_frame(in, mr->rkey, base);
    // In two pieces, cut anywhere: the reader must not care.
    const std::size_t cut = bytes.size() == 0 ? 0 : in.take(1) % bytes.size();
    const std::lock_guard lock(endpoint->mu);
    endpoint->feed({bytes.data(), cut});
    endpoint->feed({bytes.data() + cut, bytes.size() - cut});
  }
  require(ibv_destroy_qp(qp) == 0);
  ::close(fds[1]);
  ibv_wc wc{};
  while (verbs->ops.poll_cq(cq, 1, &wc) == 1) {
  }
  // Nobody reads them here.
  while (true) {
    pollfd readable{verbs->async_fd, POLLIN, 0};
    if (::poll(&readable, 1, 0) != 1) break;
    ibv_async_event event{};
    if (ibv_get_async_event(verbs, &event) != 0) break;
    ibv_ack_async_event(&event);
  }
  require(ibv_destroy_cq(cq) == 0);
  require(ibv_dereg_mr(mr) == 0);
  check_guards();
  return 0;
}
