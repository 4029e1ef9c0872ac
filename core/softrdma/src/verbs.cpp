// SPDX-License-Identifier: BSD-3-Clause
// The libibverbs calls that work.
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "endpoint.hpp"
#include "log.hpp"
#include "objects.hpp"
#include "softrdma/softrdma.h"

// The header turns these into macros for inline functions; here the functions themselves are meant.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

using namespace softrdma;

namespace softrdma {
namespace {

/// For functions that return an errno: the child of a fork gets one for its parent's objects.
#define SOFTRDMA_USABLE_OR_ERRNO(object) \
  if (!(object)->usable(__func__)) return errno

constexpr std::uint64_t kNodeGuid = 0x5cf7d3a001ULL;

std::uint64_t network_order(std::uint64_t value) noexcept {
  return __builtin_bswap64(value);
}

// ----------------------------------------------------------------------------------------------
// data path

int poll_cq(ibv_cq* base, int num_entries, ibv_wc* wc) {
  CompletionQueue* cq = from(base);
  if (!cq->usable("ibv_poll_cq")) return -1;
  const FaultPlan& plan = Faults::instance().plan();
  std::unique_lock lock(cq->mu);
  int n = 0;
  while (n < num_entries && cq->count != 0) {
    wc[n++] = cq->ring[cq->head];
    cq->head = (cq->head + 1) & static_cast<std::uint32_t>(cq->ring.size() - 1);
    --cq->count;
  }
  // This device needs a processor to run on: who polls in vain gives it one now and then, or with
  // fewer processors than pollers each message would wait for the end of a time slice.
  constexpr std::uint32_t kVainPolls = 64;
  const bool yields = n == 0 && ++cq->vain_polls % kVainPolls == 0;
  if (n != 0) cq->vain_polls = 0;
  lock.unlock();
  if (yields) ::sched_yield();
  if (plan.fail_poll_after != 0) {
    Faults& faults = Faults::instance();
    const auto polled =
        faults.polled.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
    if (polled >= plan.fail_poll_after) {
      faults.count();
      errno = EIO;
      return -1;
    }
  }
  return n;
}

int req_notify_cq(ibv_cq* base, int solicited_only) {
  CompletionQueue* cq = from(base);
  if (!cq->usable("ibv_req_notify_cq")) return errno;
  Faults& faults = Faults::instance();
  const FaultPlan& plan = faults.plan();
  if (plan.fail_notify_after != 0 &&
      faults.notified.fetch_add(1, std::memory_order_relaxed) >= plan.fail_notify_after) {
    faults.count();
    errno = EIO;
    return EIO;
  }
  const std::lock_guard lock(cq->mu);
  using Arm = CompletionQueue::Arm;
  // Asking for less does not take back what was asked for before.
  if (cq->arm != Arm::kNext) cq->arm = solicited_only != 0 ? Arm::kSolicited : Arm::kNext;
  return 0;
}

bool fill_request(QueuePair& qp, const ibv_send_wr& wr, int& error) noexcept {
  if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > qp.cap.max_send_sge) {
    error = EINVAL;
    return false;
  }
  std::uint64_t total = 0;
  for (int i = 0; i < wr.num_sge; ++i) total += wr.sg_list[i].length;
  if (total > wire::kMessageMax) {
    error = EINVAL;
    return false;
  }
  SendRequest request;
  switch (wr.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: break;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_READ:
      request.remote_address = wr.wr.rdma.remote_addr;
      request.rkey = wr.wr.rdma.rkey;
      break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      if (total != 8) {
        error = EINVAL;
        return false;
      }
      request.remote_address = wr.wr.atomic.remote_addr;
      request.rkey = wr.wr.atomic.rkey;
      request.compare_add = wr.wr.atomic.compare_add;
      request.swap = wr.wr.atomic.swap;
      break;
    default:
      unsupported("ibv_post_send", "opcodes other than send, write, read and 64-bit atomics");
      error = EOPNOTSUPP;
      return false;
  }
  const bool carries_data = wr.opcode == IBV_WR_SEND || wr.opcode == IBV_WR_SEND_WITH_IMM ||
                            wr.opcode == IBV_WR_RDMA_WRITE ||
                            wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  request.inlined = (wr.send_flags & IBV_SEND_INLINE) != 0;
  if (request.inlined && (!carries_data || total > qp.cap.max_inline_data)) {
    error = EINVAL;
    return false;
  }
  request.wr_id = wr.wr_id;
  request.total = static_cast<std::uint32_t>(total);
  request.opcode = wr.opcode;
  if (wr.opcode == IBV_WR_SEND_WITH_IMM || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
    request.immediate = wr.imm_data;
  request.num_sge = static_cast<std::uint32_t>(wr.num_sge);
  request.signaled = (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  request.solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0;
  request.fence = (wr.send_flags & IBV_SEND_FENCE) != 0;
  if (request.inlined) {
    std::uint8_t* to = qp.inline_data(qp.sq_tail);
    for (int i = 0; i < wr.num_sge; ++i) {
      if (wr.sg_list[i].length == 0) continue;
      std::memcpy(to, reinterpret_cast<const void*>(wr.sg_list[i].addr), wr.sg_list[i].length);
      to += wr.sg_list[i].length;
    }
  } else if (wr.num_sge != 0) {
    const std::uint32_t at = qp.sq_tail & (qp.sq_slots - 1);
    std::copy_n(
        wr.sg_list, wr.num_sge,
        qp.sq_sges.begin() + static_cast<std::ptrdiff_t>(std::size_t{at} * qp.cap.max_send_sge));
  }
  qp.slot(qp.sq_tail) = request;
  return true;
}

int post_send(ibv_qp* base, ibv_send_wr* wr, ibv_send_wr** bad) {
  QueuePair* qp = from(base);
  *bad = wr;
  if (!qp->usable("ibv_post_send")) return errno;
  if (Faults::instance().fails(FaultPoint::kPostSend)) return ENOMEM;
  const std::lock_guard lock(qp->endpoint->mu);
  int error = 0;
  bool posted = false;
  for (; wr != nullptr && error == 0; wr = wr->next) {
    *bad = wr;
    if (qp->state == IBV_QPS_ERR) {
      if (Faults::instance().plan().withhold_flush) {
        Faults::instance().count();
        continue;
      }
      ibv_wc wc{};
      wc.wr_id = wr->wr_id;
      wc.status = IBV_WC_WR_FLUSH_ERR;
      wc.vendor_err = IBV_WC_WR_FLUSH_ERR;
      wc.qp_num = base->qp_num;
      push_completion(*qp->send_cq, wc, true);
      continue;
    }
    if (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_SQD) {
      error = EINVAL;
    } else if (qp->sq_tail - qp->sq_head == qp->sq_slots - 1) {
      error = ENOMEM;
    } else if (fill_request(*qp, *wr, error)) {
      ++qp->sq_tail;
      posted = true;
    }
    if (error != 0) break;
  }
  if (posted) qp->endpoint->send_posted();
  if (error == 0) return 0;
  errno = error;
  return error;
}

int post_recv(ibv_qp* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  QueuePair* qp = from(base);
  *bad = wr;
  if (!qp->usable("ibv_post_recv")) return errno;
  if (Faults::instance().fails(FaultPoint::kPostRecv)) return ENOMEM;
  const std::lock_guard lock(qp->endpoint->mu);
  int error = 0;
  bool posted = false;
  for (; wr != nullptr; wr = wr->next) {
    *bad = wr;
    if (qp->srq != nullptr || qp->state == IBV_QPS_RESET || wr->num_sge < 0 ||
        static_cast<std::uint32_t>(wr->num_sge) > qp->rq.sge_max()) {
      error = EINVAL;
      break;
    }
    if (qp->state == IBV_QPS_ERR) {
      ibv_wc wc{};
      wc.wr_id = wr->wr_id;
      wc.status = IBV_WC_WR_FLUSH_ERR;
      wc.vendor_err = IBV_WC_WR_FLUSH_ERR;
      wc.qp_num = base->qp_num;
      push_completion(*qp->recv_cq, wc, true);
      continue;
    }
    if (qp->rq.full()) {
      error = ENOMEM;
      break;
    }
    qp->rq.push(*wr);
    posted = true;
  }
  if (posted) qp->endpoint->receive_posted();
  if (error == 0) return 0;
  errno = error;
  return error;
}

int post_srq_recv(ibv_srq* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  SharedReceiveQueue* srq = from(base);
  *bad = wr;
  if (!srq->usable("ibv_post_srq_recv")) return errno;
  if (Faults::instance().fails(FaultPoint::kPostRecv)) return ENOMEM;
  int error = 0;
  std::vector<std::weak_ptr<Endpoint>> waiting;
  {
    const std::lock_guard lock(srq->mu);
    for (; wr != nullptr; wr = wr->next) {
      *bad = wr;
      if (wr->num_sge < 0 || static_cast<std::uint32_t>(wr->num_sge) > srq->ring.sge_max()) {
        error = EINVAL;
        break;
      }
      if (srq->ring.full()) {
        error = ENOMEM;
        break;
      }
      srq->ring.push(*wr);
    }
    if (srq->ring.count() != 0) waiting.swap(srq->waiting);
  }
  // Each of them is woken: one that is dead would keep the receive from the others.
  for (const auto& weak : waiting) {
    if (const auto endpoint = weak.lock()) {
      const std::lock_guard lock(endpoint->mu);
      endpoint->receive_posted();
    }
  }
  if (error == 0) return 0;
  errno = error;
  return error;
}

// ----------------------------------------------------------------------------------------------
// device

void fill_device_attr(ibv_device_attr& attr) noexcept {
  std::memset(&attr, 0, sizeof attr);
  std::strcpy(attr.fw_ver, "softrdma");
  attr.node_guid = network_order(kNodeGuid);
  attr.sys_image_guid = attr.node_guid;
  attr.max_mr_size = ~0ULL;
  attr.page_size_cap = 0xFFFFF000;
  attr.vendor_id = 0xFFFFFF;
  attr.max_qp = 65536;
  attr.max_qp_wr = kQueueDepthMax;
  attr.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SRQ_RESIZE;
  attr.max_sge = kSgeMax;
  attr.max_sge_rd = kSgeMax;
  attr.max_cq = 65536;
  attr.max_cqe = static_cast<int>(kCqeMax);
  attr.max_mr = 1 << 20;
  attr.max_pd = 65536;
  attr.max_qp_rd_atom = kReadsMax;
  attr.max_res_rd_atom = kReadsMax * 65536;
  attr.max_qp_init_rd_atom = kReadsMax;
  attr.atomic_cap = IBV_ATOMIC_HCA;
  attr.max_srq = 65536;
  attr.max_srq_wr = kQueueDepthMax;
  attr.max_srq_sge = kSgeMax;
  attr.max_pkeys = 1;
  attr.phys_port_cnt = 1;
}

int query_device_ex(ibv_context*, const ibv_query_device_ex_input*, ibv_device_attr_ex* attr,
                    std::size_t size) {
  ibv_device_attr_ex full;
  std::memset(&full, 0, sizeof full);
  fill_device_attr(full.orig_attr);
  full.phys_port_cnt_ex = 1;
  std::memset(attr, 0, size);
  std::memcpy(attr, &full, std::min(size, sizeof full));
  return 0;
}

int query_port(ibv_context*, std::uint8_t port, ibv_port_attr* attr, std::size_t size) {
  if (port != 1) return EINVAL;
  ibv_port_attr full;
  std::memset(&full, 0, sizeof full);
  full.state = IBV_PORT_ACTIVE;
  full.max_mtu = IBV_MTU_4096;
  full.active_mtu = IBV_MTU_4096;
  full.gid_tbl_len = 256;
  full.port_cap_flags = IBV_PORT_CM_SUP;
  full.max_msg_sz = wire::kMessageMax;
  full.pkey_tbl_len = 1;
  full.max_vl_num = 1;
  full.active_width = 2;
  full.active_speed = 32;
  full.phys_state = 5;
  full.link_layer = IBV_LINK_LAYER_ETHERNET;
  std::memset(attr, 0, size);
  std::memcpy(attr, &full, std::min(size, sizeof full));
  return 0;
}

/// GIDs are this host's addresses, IPv4 ones mapped.
std::size_t list_gids(ibv_gid_entry* out, std::size_t max) noexcept {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return 0;
  std::size_t n = 0;
  for (const ifaddrs* a = list; a != nullptr && n < max; a = a->ifa_next) {
    if (a->ifa_addr == nullptr) continue;
    ibv_gid_entry entry{};
    if (a->ifa_addr->sa_family == AF_INET) {
      entry.gid.raw[10] = entry.gid.raw[11] = 0xFF;
      std::memcpy(entry.gid.raw + 12, &reinterpret_cast<const sockaddr_in*>(a->ifa_addr)->sin_addr,
                  4);
    } else if (a->ifa_addr->sa_family == AF_INET6) {
      std::memcpy(entry.gid.raw, &reinterpret_cast<const sockaddr_in6*>(a->ifa_addr)->sin6_addr,
                  16);
    } else {
      continue;
    }
    entry.gid_index = static_cast<std::uint32_t>(n);
    entry.port_num = 1;
    entry.gid_type = IBV_GID_TYPE_ROCE_V2;
    entry.ndev_ifindex = ::if_nametoindex(a->ifa_name);
    out[n++] = entry;
  }
  ::freeifaddrs(list);
  return n;
}
constexpr std::size_t kGidsMax = 256;

ibv_qp* create_qp_ex(ibv_context*, ibv_qp_init_attr_ex* attr) {
  constexpr std::uint32_t kKnown = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_PD) == 0) {
    errno = EINVAL;
    return nullptr;
  }
  if ((attr->comp_mask & ~kKnown) != 0 ||
      ((attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && attr->create_flags != 0)) {
    unsupported("ibv_create_qp_ex", "extended attributes");
    return nullptr;
  }
  return ibv_create_qp(attr->pd, reinterpret_cast<ibv_qp_init_attr*>(attr));
}

ibv_cq_ex* create_cq_ex(ibv_context*, ibv_cq_init_attr_ex*) {
  unsupported("ibv_create_cq_ex");
  return nullptr;
}

ibv_srq* create_srq_ex(ibv_context*, ibv_srq_init_attr_ex*) {
  unsupported("ibv_create_srq_ex", "shared receive queues other than basic ones");
  return nullptr;
}

int get_srq_num(ibv_srq*, std::uint32_t*) {
  return EOPNOTSUPP;
}

int close_xrcd(ibv_xrcd*) {
  unsupported("ibv_close_xrcd");
  return EOPNOTSUPP;
}

int compat_query_device(ibv_context*, ibv_device_attr* attr) {
  fill_device_attr(*attr);
  return 0;
}

// ----------------------------------------------------------------------------------------------
// memory

/// Whether this process has [address, address + length) mapped, and writable if need be: the kernel
/// pins the pages of a region and refuses others, and the engine must never fault on a peer's
/// behalf.
bool mapped(std::uint64_t address, std::uint64_t length, bool writable) noexcept {
  const int fd = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;  // no /proc: nothing to check with
  std::FILE* maps = ::fdopen(fd, "r");
  if (maps == nullptr) {
    ::close(fd);
    return true;
  }
  std::uint64_t at = address;
  const std::uint64_t end = address + length;
  char line[512];
  bool line_start = true;
  while (at < end && std::fgets(line, sizeof line, maps) != nullptr) {
    const bool whole = std::strchr(line, '\n') != nullptr;
    const bool start = line_start;
    line_start = whole;
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    char rights[5] = {};
    if (!start || std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &low, &high, rights) != 3)
      continue;
    if (high <= at) continue;
    if (low > at) break;
    if (rights[0] != 'r' || (writable && rights[1] != 'w')) break;
    at = high;
  }
  std::fclose(maps);
  return at >= end;
}

ibv_mr* register_memory(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
                        unsigned access) {
  ProtectionDomain* domain = from(pd);
  if (!domain->usable("ibv_reg_mr")) return nullptr;
  if (Faults::instance().fails(FaultPoint::kRegMr)) return nullptr;
  constexpr unsigned kWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if (length == 0 || reinterpret_cast<std::uint64_t>(address) + length < length ||
      iova + length < length ||
      ((access & kWrites) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0)) {
    errno = EINVAL;
    return nullptr;
  }
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) {
    unsupported("ibv_reg_mr", "on-demand paging");
    return nullptr;
  }
  if ((access & IBV_ACCESS_ZERO_BASED) != 0) {
    unsupported("ibv_reg_mr", "zero-based regions");
    return nullptr;
  }
  if (!mapped(reinterpret_cast<std::uint64_t>(address), length,
              (access & IBV_ACCESS_LOCAL_WRITE) != 0)) {
    errno = EFAULT;
    return nullptr;
  }
  auto* mr = new MemoryRegion;
  mr->base.context = pd->context;
  mr->base.pd = pd;
  mr->base.addr = address;
  mr->base.length = length;
  mr->base.handle = next_handle();
  mr->iova = iova;
  mr->access = access;
  domain->users.fetch_add(1, std::memory_order_relaxed);
  globals().keys.add(mr);
  globals().counters.mrs.fetch_add(1, std::memory_order_relaxed);
  return &mr->base;
}

// ----------------------------------------------------------------------------------------------
// objects' ends

/// Waits until the user has acknowledged each event that ibv_get_async_event or ibv_get_cq_event
/// handed out.
template <class Object, class Done>
void wait_for_acks(Object* base, Done&& done) noexcept {
  ::pthread_mutex_lock(&base->mutex);
  while (!done()) ::pthread_cond_wait(&base->cond, &base->mutex);
  ::pthread_mutex_unlock(&base->mutex);
}

void free_context(Context* context) {
  pthread_mutex_destroy(&context->verbs.context.mutex);
  delete context;
}

}  // namespace

ibv_qp* create_queue_pair(ibv_pd* pd, ibv_qp_init_attr* init, std::shared_ptr<Endpoint> endpoint) {
  ProtectionDomain* domain = from(pd);
  if (!domain->usable("ibv_create_qp")) return nullptr;
  if (Faults::instance().fails(FaultPoint::kCreateQp)) return nullptr;
  if (init->qp_type != IBV_QPT_RC) {
    unsupported("ibv_create_qp", "queue pairs other than RC");
    return nullptr;
  }
  ibv_qp_cap& cap = init->cap;
  if (init->send_cq == nullptr || init->recv_cq == nullptr || cap.max_send_wr > kQueueDepthMax ||
      (init->srq == nullptr && cap.max_recv_wr > kQueueDepthMax) || cap.max_send_sge > kSgeMax ||
      (init->srq == nullptr && cap.max_recv_sge > kSgeMax) || cap.max_inline_data > kInlineMax) {
    errno = EINVAL;
    return nullptr;
  }
  auto* qp = new QueuePair;
  qp->pd = domain;
  qp->send_cq = from(init->send_cq);
  qp->recv_cq = from(init->recv_cq);
  qp->srq = init->srq != nullptr ? from(init->srq) : nullptr;
  qp->signal_all = init->sq_sig_all != 0;
  qp->sq_slots = ring_slots(std::max(1U, cap.max_send_wr));
  cap.max_send_sge = std::max(1U, cap.max_send_sge);
  qp->cap = cap;
  qp->cap.max_send_wr = qp->sq_slots - 1;
  qp->sq.resize(qp->sq_slots);
  qp->sq_sges.resize(std::size_t{qp->sq_slots} * qp->cap.max_send_sge);
  if (cap.max_inline_data != 0) {
    qp->sq_inline.reset(new std::uint8_t[std::size_t{qp->sq_slots} * cap.max_inline_data]);
  }
  if (qp->srq == nullptr) {
    qp->rq.reset(ring_slots(std::max(1U, cap.max_recv_wr)), std::max(1U, cap.max_recv_sge));
    qp->cap.max_recv_wr = qp->rq.capacity();
    qp->cap.max_recv_sge = qp->rq.sge_max();
  } else {
    qp->cap.max_recv_wr = qp->cap.max_recv_sge = 0;
  }
  init->cap = qp->cap;
  ibv_qp& base = *qp->qp();
  base.context = pd->context;
  base.qp_context = init->qp_context;
  base.pd = pd;
  base.send_cq = init->send_cq;
  base.recv_cq = init->recv_cq;
  base.srq = init->srq;
  base.handle = next_handle();
  base.state = IBV_QPS_RESET;
  base.qp_type = IBV_QPT_RC;
  ::pthread_mutex_init(&base.mutex, nullptr);
  ::pthread_cond_init(&base.cond, nullptr);
  {
    Globals& all = globals();
    const std::lock_guard lock(all.mu);
    constexpr std::uint32_t kFirst = 0x11;
    if (Faults::instance().plan().reuse_qp_numbers) all.next_qp_number = kFirst;
    while (all.next_qp_number < kFirst || all.next_qp_number > 0xFFFFFE ||
           all.qps.contains(all.next_qp_number)) {
      all.next_qp_number = all.next_qp_number >= 0xFFFFFE ? kFirst : all.next_qp_number + 1;
    }
    base.qp_num = all.next_qp_number++;
    all.qps.emplace(base.qp_num, qp);
  }
  qp->on_cm_id = endpoint != nullptr;
  qp->endpoint = endpoint ? std::move(endpoint) : std::make_shared<Endpoint>();
  {
    const std::lock_guard lock(qp->endpoint->mu);
    qp->endpoint->qp = qp;
    qp->endpoint->local_qpn = base.qp_num;
    if (qp->on_cm_id) qp->state = base.state = IBV_QPS_INIT;  // as librdmacm leaves it
  }
  for (CompletionQueue* cq : {qp->send_cq, qp->recv_cq}) {
    const std::lock_guard lock(cq->mu);
    cq->users.insert(qp);
  }
  if (qp->srq != nullptr) {
    const std::lock_guard lock(qp->srq->mu);
    ++qp->srq->users;
  }
  domain->users.fetch_add(1, std::memory_order_relaxed);
  globals().counters.qps.fetch_add(1, std::memory_order_relaxed);
  return &base;
}

Context* new_context() noexcept {
  auto* context = new Context;
  std::memset(&context->verbs, 0, sizeof context->verbs);
  if (!context->async.open()) {
    const int error = errno;
    delete context;
    errno = error;
    return nullptr;
  }
  verbs_context& v = context->verbs;
  v.sz = sizeof v;
  v.query_port = query_port;
  v.query_device_ex = query_device_ex;
  v.create_qp_ex = create_qp_ex;
  v.create_cq_ex = create_cq_ex;
  v.create_srq_ex = create_srq_ex;
  v.get_srq_num = get_srq_num;
  v.close_xrcd = close_xrcd;
  ibv_context& c = v.context;
  c.device = device();
  c.ops._compat_query_device = compat_query_device;
  c.ops.poll_cq = poll_cq;
  c.ops.req_notify_cq = req_notify_cq;
  c.ops.post_send = post_send;
  c.ops.post_recv = post_recv;
  c.ops.post_srq_recv = post_srq_recv;
  c.cmd_fd = -1;
  c.async_fd = context->async.fd();
  c.num_comp_vectors = kVectors;
  ::pthread_mutex_init(&c.mutex, nullptr);
  c.abi_compat = __VERBS_ABI_IS_EXTENDED;
  return context;
}

}  // namespace softrdma

extern "C" {

// ----------------------------------------------------------------------------------------------
// devices

ibv_device** ibv_get_device_list(int* num_devices) {
  auto** list = static_cast<ibv_device**>(std::calloc(2, sizeof(ibv_device*)));
  if (list == nullptr) return nullptr;
  list[0] = device();
  if (num_devices != nullptr) *num_devices = 1;
  return list;
}
void ibv_free_device_list(ibv_device** list) {
  std::free(list);
}
const char* ibv_get_device_name(ibv_device* d) {
  return d->name;
}
int ibv_get_device_index(ibv_device*) {
  return 0;
}
__be64 ibv_get_device_guid(ibv_device*) {
  return network_order(kNodeGuid);
}

ibv_context* ibv_open_device(ibv_device*) {
  if (Faults::instance().fails(FaultPoint::kOpenDevice)) return nullptr;
  Context* context = new_context();
  return context != nullptr ? context->public_context() : nullptr;
}
int ibv_close_device(ibv_context* base) {
  Context* context = Context::from(base);
  if (!context->usable(__func__)) return -1;
  if (context == globals().cm_context)
    return 0;  // shared by all rdma_cm ids, never closed, as in librdmacm
  free_context(context);
  return 0;
}

int ibv_query_device(ibv_context*, ibv_device_attr* attr) {
  fill_device_attr(*attr);
  return 0;
}
int ibv_query_port(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* attr) {
  // The caller's struct ends where the first version of it did.
  return query_port(context, port, reinterpret_cast<ibv_port_attr*>(attr),
                    offsetof(ibv_port_attr, port_cap_flags2));
}
int ibv_query_gid(ibv_context*, std::uint8_t port, int index, ibv_gid* gid) {
  ibv_gid_entry entries[kGidsMax];
  const std::size_t n = list_gids(entries, kGidsMax);
  if (port != 1 || index < 0 || index >= static_cast<int>(kGidsMax)) {
    errno = EINVAL;
    return -1;
  }
  if (static_cast<std::size_t>(index) < n) {
    *gid = entries[index].gid;
  } else {
    std::memset(gid, 0, sizeof *gid);
  }
  return 0;
}
int _ibv_query_gid_ex(ibv_context*, std::uint32_t port, std::uint32_t index, ibv_gid_entry* entry,
                      std::uint32_t flags, std::size_t size) {
  ibv_gid_entry entries[kGidsMax];
  if (port != 1 || flags != 0) return EINVAL;
  const std::size_t n = list_gids(entries, kGidsMax);
  if (index >= n) return ENODATA;
  std::memcpy(entry, &entries[index], std::min(size, sizeof *entry));
  return 0;
}
ssize_t _ibv_query_gid_table(ibv_context*, ibv_gid_entry* out, std::size_t max, std::uint32_t flags,
                             std::size_t size) {
  if (flags != 0 || size != sizeof(ibv_gid_entry)) return -EINVAL;
  return static_cast<ssize_t>(list_gids(out, max));
}
int ibv_query_gid_type(ibv_context*, std::uint8_t, unsigned int, unsigned int* type) {
  *type = 2;  // RoCE v2 in the private numbering
  return 0;
}
int ibv_query_pkey(ibv_context*, std::uint8_t port, int index, __be16* pkey) {
  if (port != 1 || index != 0) {
    errno = EINVAL;
    return -1;
  }
  *pkey = 0xFFFF;
  return 0;
}
int ibv_get_pkey_index(ibv_context*, std::uint8_t port, __be16 pkey) {
  if (port == 1 && pkey == 0xFFFF) return 0;
  errno = EINVAL;
  return -1;
}

// ----------------------------------------------------------------------------------------------
// domains, memory

ibv_pd* ibv_alloc_pd(ibv_context* base) {
  if (!Context::from(base)->usable(__func__)) return nullptr;
  if (Faults::instance().fails(FaultPoint::kAllocPd)) return nullptr;
  auto* pd = new ProtectionDomain;
  pd->base.context = base;
  pd->base.handle = next_handle();
  globals().counters.pds.fetch_add(1, std::memory_order_relaxed);
  return pd->pd();
}
int ibv_dealloc_pd(ibv_pd* base) {
  ProtectionDomain* pd = from(base);
  SOFTRDMA_USABLE_OR_ERRNO(pd);
  if (pd->users.load(std::memory_order_acquire) != 0) return errno = EBUSY;
  globals().counters.pds.fetch_sub(1, std::memory_order_relaxed);
  delete pd;
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, std::size_t length, int access) {
  return register_memory(pd, addr, length, reinterpret_cast<std::uint64_t>(addr),
                         static_cast<unsigned>(access));
}
ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                        int access) {
  return register_memory(pd, addr, length, iova, static_cast<unsigned>(access));
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                         unsigned access) {
  // Optional flags may be ignored by definition; there is nothing to relax here.
  return register_memory(pd, addr, length, iova, access & ~IBV_ACCESS_OPTIONAL_RANGE);
}
int ibv_rereg_mr(ibv_mr* base, int flags, ibv_pd* pd, void* addr, std::size_t length, int access) {
  MemoryRegion* mr = from(base);
  if (!mr->usable(__func__)) return IBV_REREG_MR_ERR_INPUT;
  const auto rights = static_cast<std::uint32_t>(access);
  constexpr unsigned kWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  const std::uint32_t now = (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0 ? rights : mr->access;
  const bool moves = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
  if ((flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) != 0 || flags == 0 || (moves && length == 0) ||
      ((now & kWrites) != 0 && (now & IBV_ACCESS_LOCAL_WRITE) == 0) ||
      !mapped(reinterpret_cast<std::uint64_t>(moves ? addr : base->addr),
              moves ? length : base->length, (now & IBV_ACCESS_LOCAL_WRITE) != 0)) {
    errno = EINVAL;
    return IBV_REREG_MR_ERR_INPUT;
  }
  globals().keys.exclusively([&] {
    if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) {
      from(base->pd)->users.fetch_sub(1, std::memory_order_release);
      from(pd)->users.fetch_add(1, std::memory_order_relaxed);
      base->pd = pd;
    }
    if (moves) {
      base->addr = addr;
      base->length = length;
      mr->iova = reinterpret_cast<std::uint64_t>(addr);
    }
    mr->access = now;
    constexpr std::uint32_t kRemote = kWrites | IBV_ACCESS_REMOTE_READ;
    base->rkey = (now & kRemote) != 0 ? base->lkey : 0;
  });
  return 0;
}
int ibv_dereg_mr(ibv_mr* base) {
  MemoryRegion* mr = from(base);
  SOFTRDMA_USABLE_OR_ERRNO(mr);
  globals().keys.remove(mr);
  from(base->pd)->users.fetch_sub(1, std::memory_order_release);
  globals().counters.mrs.fetch_sub(1, std::memory_order_relaxed);
  delete mr;
  return 0;
}

// ----------------------------------------------------------------------------------------------
// completion queues

ibv_comp_channel* ibv_create_comp_channel(ibv_context* base) {
  if (!Context::from(base)->usable(__func__)) return nullptr;
  if (Faults::instance().fails(FaultPoint::kCreateCompChannel)) return nullptr;
  auto* channel = new CompletionChannel;
  if (!channel->events.open()) {
    const int error = errno;
    delete channel;
    errno = error;
    return nullptr;
  }
  channel->base.context = base;
  channel->base.fd = channel->events.fd();
  globals().counters.comp_channels.fetch_add(1, std::memory_order_relaxed);
  return &channel->base;
}
int ibv_destroy_comp_channel(ibv_comp_channel* base) {
  CompletionChannel* channel = from(base);
  SOFTRDMA_USABLE_OR_ERRNO(channel);
  {
    const std::lock_guard lock(channel->mu);
    if (base->refcnt != 0) return errno = EBUSY;
  }
  globals().counters.comp_channels.fetch_sub(1, std::memory_order_relaxed);
  delete channel;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                      int comp_vector) {
  if (!Context::from(context)->usable(__func__)) return nullptr;
  if (Faults::instance().fails(FaultPoint::kCreateCq)) return nullptr;
  if (cqe <= 0 || static_cast<std::uint32_t>(cqe) > kCqeMax || comp_vector < 0 ||
      comp_vector >= context->num_comp_vectors) {
    errno = EINVAL;
    return nullptr;
  }
  static std::atomic<std::uint64_t> ordinal{0};
  auto* cq = new CompletionQueue;
  const std::uint32_t slots = ring_slots(static_cast<std::uint32_t>(cqe));
  cq->ring.resize(slots);
  cq->capacity = slots - 1;
  cq->random = Faults::instance().stream(3, ordinal.fetch_add(1, std::memory_order_relaxed));
  cq->base.context = context;
  cq->base.channel = channel;
  cq->base.cq_context = cq_context;
  cq->base.handle = next_handle();
  cq->base.cqe = static_cast<int>(cq->capacity);
  ::pthread_mutex_init(&cq->base.mutex, nullptr);
  ::pthread_cond_init(&cq->base.cond, nullptr);
  if (channel != nullptr) {
    cq->channel = from(channel);
    const std::lock_guard lock(cq->channel->mu);
    ++channel->refcnt;
  }
  globals().counters.cqs.fetch_add(1, std::memory_order_relaxed);
  return &cq->base;
}

int ibv_resize_cq(ibv_cq* base, int cqe) {
  CompletionQueue* cq = from(base);
  SOFTRDMA_USABLE_OR_ERRNO(cq);
  if (cqe <= 0 || static_cast<std::uint32_t>(cqe) > kCqeMax) return EINVAL;
  const std::lock_guard lock(cq->mu);
  const std::uint32_t slots = ring_slots(static_cast<std::uint32_t>(cqe));
  if (cq->count > slots - 1) return EINVAL;
  std::vector<ibv_wc> fresh(slots);
  for (std::uint32_t i = 0; i < cq->count; ++i)
    fresh[i] = cq->ring[(cq->head + i) & (cq->ring.size() - 1)];
  cq->ring.swap(fresh);
  cq->head = 0;
  cq->capacity = slots - 1;
  cq->base.cqe = static_cast<int>(slots - 1);
  return 0;
}

int ibv_destroy_cq(ibv_cq* base) {
  CompletionQueue* cq = from(base);
  SOFTRDMA_USABLE_OR_ERRNO(cq);
  std::shared_ptr<CompletionQueue::Held> held;
  {
    const std::lock_guard lock(cq->mu);
    if (!cq->users.empty()) return errno = EBUSY;
    cq->arm = CompletionQueue::Arm::kNone;
    cq->event_held = false;
    held = cq->timers;
  }
  if (held) held->detach();
  std::uint32_t comp_reported = 0;
  std::uint32_t async_reported = 0;
  if (cq->channel != nullptr) {
    cq->channel->events.remove_if([cq](CompletionQueue* other) { return other == cq; },
                                  [](CompletionQueue*) {});
    cq->channel->events.locked([&] { comp_reported = cq->comp_events_reported; });
  }
  auto& async = Context::from(base->context)->async;
  async.remove_if(
      [base](const ibv_async_event& e) {
        return e.event_type == IBV_EVENT_CQ_ERR && e.element.cq == base;
      },
      [](const ibv_async_event&) {});
  async.locked([&] { async_reported = cq->async_events_reported; });
  wait_for_acks(base, [&] {
    return base->comp_events_completed == comp_reported &&
           base->async_events_completed == async_reported;
  });
  if (cq->channel != nullptr) {
    const std::lock_guard lock(cq->channel->mu);
    --base->channel->refcnt;
  }
  ::pthread_mutex_destroy(&base->mutex);
  ::pthread_cond_destroy(&base->cond);
  globals().counters.cqs.fetch_sub(1, std::memory_order_relaxed);
  delete cq;
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* base, ibv_cq** cq, void** cq_context) {
  CompletionChannel* channel = from(base);
  if (!channel->usable(__func__)) return -1;
  CompletionQueue* got = nullptr;
  if (!channel->events.pop(got, [](CompletionQueue* c) { ++c->comp_events_reported; })) return -1;
  *cq = &got->base;
  *cq_context = got->base.cq_context;
  return 0;
}
void ibv_ack_cq_events(ibv_cq* base, unsigned int nevents) {
  if (nevents == 0 || !from(base)->usable(__func__)) return;
  ::pthread_mutex_lock(&base->mutex);
  base->comp_events_completed += nevents;
  ::pthread_cond_signal(&base->cond);
  ::pthread_mutex_unlock(&base->mutex);
}

// ----------------------------------------------------------------------------------------------
// asynchronous events

int ibv_get_async_event(ibv_context* base, ibv_async_event* event) {
  Context* context = Context::from(base);
  if (!context->usable(__func__)) return -1;
  const auto report = [](const ibv_async_event& e) {
    switch (e.event_type) {
      case IBV_EVENT_CQ_ERR: ++from(e.element.cq)->async_events_reported; return;
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_COMM_EST:
      case IBV_EVENT_SQ_DRAINED:
      case IBV_EVENT_PATH_MIG:
      case IBV_EVENT_PATH_MIG_ERR:
      case IBV_EVENT_QP_LAST_WQE_REACHED: ++from(e.element.qp)->async_events_reported; return;
      case IBV_EVENT_SRQ_ERR:
      case IBV_EVENT_SRQ_LIMIT_REACHED: ++from(e.element.srq)->async_events_reported; return;
      default: return;
    }
  };
  return context->async.pop(*event, report) ? 0 : -1;
}
void ibv_ack_async_event(ibv_async_event* event) {
  const auto acknowledge = [](auto* object, std::uint32_t& completed) {
    ::pthread_mutex_lock(&object->mutex);
    ++completed;
    ::pthread_cond_signal(&object->cond);
    ::pthread_mutex_unlock(&object->mutex);
  };
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
      acknowledge(event->element.cq, event->element.cq->async_events_completed);
      return;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      acknowledge(event->element.qp, event->element.qp->events_completed);
      return;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      acknowledge(event->element.srq, event->element.srq->events_completed);
      return;
    default: return;
  }
}

// ----------------------------------------------------------------------------------------------
// shared receive queues

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  ProtectionDomain* domain = from(pd);
  if (!domain->usable(__func__)) return nullptr;
  if (Faults::instance().fails(FaultPoint::kCreateSrq)) return nullptr;
  if (init->attr.max_wr == 0 || init->attr.max_wr > kQueueDepthMax ||
      init->attr.max_sge > kSgeMax) {
    errno = EINVAL;
    return nullptr;
  }
  auto* srq = new SharedReceiveQueue;
  srq->ring.reset(ring_slots(init->attr.max_wr), std::max(1U, init->attr.max_sge));
  srq->base.context = pd->context;
  srq->base.srq_context = init->srq_context;
  srq->base.pd = pd;
  srq->base.handle = next_handle();
  ::pthread_mutex_init(&srq->base.mutex, nullptr);
  ::pthread_cond_init(&srq->base.cond, nullptr);
  init->attr.max_wr = srq->ring.capacity();
  init->attr.max_sge = srq->ring.sge_max();
  domain->users.fetch_add(1, std::memory_order_relaxed);
  globals().counters.srqs.fetch_add(1, std::memory_order_relaxed);
  return &srq->base;
}
int ibv_modify_srq(ibv_srq* base, ibv_srq_attr* attr, int mask) {
  SharedReceiveQueue* srq = from(base);
  SOFTRDMA_USABLE_OR_ERRNO(srq);
  const std::lock_guard lock(srq->mu);
  if ((mask & IBV_SRQ_MAX_WR) != 0) {
    unsupported(__func__, "resizing");
    return EOPNOTSUPP;
  }
  if ((mask & IBV_SRQ_LIMIT) != 0) {
    if (attr->srq_limit > srq->ring.capacity()) return EINVAL;
    srq->limit = attr->srq_limit;
  }
  return 0;
}
int ibv_query_srq(ibv_srq* base, ibv_srq_attr* attr) {
  SharedReceiveQueue* srq = from(base);
  SOFTRDMA_USABLE_OR_ERRNO(srq);
  const std::lock_guard lock(srq->mu);
  attr->max_wr = srq->ring.capacity();
  attr->max_sge = srq->ring.sge_max();
  attr->srq_limit = srq->limit;
  return 0;
}
int ibv_destroy_srq(ibv_srq* base) {
  SharedReceiveQueue* srq = from(base);
  SOFTRDMA_USABLE_OR_ERRNO(srq);
  {
    const std::lock_guard lock(srq->mu);
    if (srq->users != 0) return errno = EBUSY;
  }
  std::uint32_t reported = 0;
  auto& async = Context::from(base->context)->async;
  async.remove_if(
      [base](const ibv_async_event& e) {
        return (e.event_type == IBV_EVENT_SRQ_LIMIT_REACHED || e.event_type == IBV_EVENT_SRQ_ERR) &&
               e.element.srq == base;
      },
      [](const ibv_async_event&) {});
  async.locked([&] { reported = srq->async_events_reported; });
  wait_for_acks(base, [&] { return base->events_completed == reported; });
  ::pthread_mutex_destroy(&base->mutex);
  ::pthread_cond_destroy(&base->cond);
  from(base->pd)->users.fetch_sub(1, std::memory_order_release);
  globals().counters.srqs.fetch_sub(1, std::memory_order_relaxed);
  delete srq;
  return 0;
}

// ----------------------------------------------------------------------------------------------
// queue pairs

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  return create_queue_pair(pd, init, nullptr);
}

int ibv_destroy_qp(ibv_qp* base) {
  QueuePair* qp = from(base);
  SOFTRDMA_USABLE_OR_ERRNO(qp);
  {
    Globals& all = globals();
    const std::lock_guard lock(all.mu);
    all.qps.erase(base->qp_num);
  }
  {
    const std::lock_guard lock(qp->endpoint->mu);
    if (qp->receiving && qp->state != IBV_QPS_ERR) {
      // A shared receive queue's buffer that this queue pair holds half-filled would otherwise
      // never come back.
      ibv_wc wc{};
      wc.wr_id = qp->receive.wr_id;
      wc.status = IBV_WC_WR_FLUSH_ERR;
      wc.vendor_err = IBV_WC_WR_FLUSH_ERR;
      wc.qp_num = base->qp_num;
      push_completion(*qp->recv_cq, wc, true);
    }
    qp->endpoint->qp_gone();
    if (!qp->on_cm_id) qp->endpoint->abandon();
  }
  for (CompletionQueue* cq : {qp->send_cq, qp->recv_cq}) {
    const std::lock_guard lock(cq->mu);
    cq->users.erase(qp);
  }
  if (qp->srq != nullptr) {
    const std::lock_guard lock(qp->srq->mu);
    --qp->srq->users;
  }
  std::uint32_t reported = 0;
  auto& async = Context::from(base->context)->async;
  async.remove_if(
      [base](const ibv_async_event& e) {
        switch (e.event_type) {
          case IBV_EVENT_QP_FATAL:
          case IBV_EVENT_QP_REQ_ERR:
          case IBV_EVENT_QP_ACCESS_ERR:
          case IBV_EVENT_COMM_EST:
          case IBV_EVENT_SQ_DRAINED:
          case IBV_EVENT_QP_LAST_WQE_REACHED: return e.element.qp == base;
          default: return false;
        }
      },
      [](const ibv_async_event&) {});
  async.locked([&] { reported = qp->async_events_reported; });
  wait_for_acks(base, [&] { return base->events_completed == reported; });
  ::pthread_mutex_destroy(&base->mutex);
  ::pthread_cond_destroy(&base->cond);
  qp->pd->users.fetch_sub(1, std::memory_order_release);
  globals().counters.qps.fetch_sub(1, std::memory_order_relaxed);
  delete qp;
  return 0;
}

}  // extern "C"

namespace softrdma {
namespace {

/// Wires two queue pairs of this process that name each other, once both are ready to receive.
/// Between processes there is no way to find a queue pair by its number alone.
int wire_pair(QueuePair* qp, std::uint32_t dest) {
  std::shared_ptr<Endpoint> mine = qp->endpoint;
  std::shared_ptr<Endpoint> other;
  {
    Globals& all = globals();
    const std::lock_guard lock(all.mu);
    const auto found = all.qps.find(dest);
    if (found == all.qps.end() || found->second->on_cm_id) {
      unsupported("ibv_modify_qp",
                  "reaching a queue pair of another process by its number; use rdma_cm");
      return EOPNOTSUPP;
    }
    other = found->second->endpoint;
  }
  if (mine == other) {
    unsupported("ibv_modify_qp", "a queue pair connected to itself");
    return EOPNOTSUPP;
  }
  std::scoped_lock lock(mine->mu, other->mu);
  mine->remote_qpn = dest;
  QueuePair* peer = other->qp;
  if (peer == nullptr || other->remote_qpn != qp->qp()->qp_num || other->has_link() ||
      mine->has_link() || (peer->state != IBV_QPS_RTR && peer->state != IBV_QPS_RTS)) {
    return 0;  // the other one's turn is still to come
  }
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) return errno;
  if (const int error = mine->adopt(fds[0], LinkState::kEstablished); error != 0) {
    ::close(fds[1]);
    return error;
  }
  if (const int error = other->adopt(fds[1], LinkState::kEstablished); error != 0) return error;
  if (peer->state == IBV_QPS_RTS) other->flush(Endpoint::kPosterBudget);
  return 0;
}

}  // namespace
}  // namespace softrdma

extern "C" {

int ibv_modify_qp(ibv_qp* base, ibv_qp_attr* attr, int mask) {
  QueuePair* qp = from(base);
  SOFTRDMA_USABLE_OR_ERRNO(qp);
  ibv_qp_state to = IBV_QPS_UNKNOWN;
  bool wires = false;
  {
    const std::lock_guard lock(qp->endpoint->mu);
    if ((mask & IBV_QP_CUR_STATE) != 0 && attr->cur_qp_state != qp->state) return EINVAL;
    if ((mask & IBV_QP_STATE) != 0) {
      to = attr->qp_state;
      const ibv_qp_state now = qp->state;
      const bool allowed =
          to == IBV_QPS_ERR || to == IBV_QPS_RESET || to == now ||
          (now == IBV_QPS_RESET && to == IBV_QPS_INIT) ||
          (now == IBV_QPS_INIT && to == IBV_QPS_RTR) || (now == IBV_QPS_RTR && to == IBV_QPS_RTS) ||
          (now == IBV_QPS_RTS && to == IBV_QPS_SQD) || (now == IBV_QPS_SQD && to == IBV_QPS_RTS);
      if (!allowed || (to == IBV_QPS_ERR && now == IBV_QPS_RESET)) return EINVAL;
      wires = to == IBV_QPS_RTR && now == IBV_QPS_INIT && !qp->on_cm_id;
      if (wires && (mask & IBV_QP_DEST_QPN) == 0) return EINVAL;
      if (to == IBV_QPS_SQD) {
        unsupported(__func__, "the send-queue-drained state");
        return EOPNOTSUPP;
      }
    }
    if ((mask & IBV_QP_ACCESS_FLAGS) != 0)
      qp->access = attr->qp_access_flags | IBV_ACCESS_LOCAL_WRITE;
    if ((mask & IBV_QP_RNR_RETRY) != 0) qp->rnr_retry = attr->rnr_retry & 7;
    if ((mask & IBV_QP_PORT) != 0) {
      if (attr->port_num != 1) return EINVAL;
      qp->attr.port_num = attr->port_num;
    }
    if ((mask & IBV_QP_PKEY_INDEX) != 0) qp->attr.pkey_index = attr->pkey_index;
    if ((mask & IBV_QP_PATH_MTU) != 0) qp->attr.path_mtu = attr->path_mtu;
    if ((mask & IBV_QP_AV) != 0) qp->attr.ah_attr = attr->ah_attr;
    if ((mask & IBV_QP_DEST_QPN) != 0) qp->attr.dest_qp_num = attr->dest_qp_num;
    if ((mask & IBV_QP_RQ_PSN) != 0) qp->attr.rq_psn = attr->rq_psn;
    if ((mask & IBV_QP_SQ_PSN) != 0) qp->attr.sq_psn = attr->sq_psn;
    if ((mask & IBV_QP_TIMEOUT) != 0) qp->attr.timeout = attr->timeout;
    if ((mask & IBV_QP_RETRY_CNT) != 0) qp->attr.retry_cnt = attr->retry_cnt;
    if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) qp->attr.min_rnr_timer = attr->min_rnr_timer;
    if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) qp->attr.max_rd_atomic = attr->max_rd_atomic;
    if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0)
      qp->attr.max_dest_rd_atomic = attr->max_dest_rd_atomic;
    if (to == IBV_QPS_ERR) {
      qp->endpoint->to_error();
    } else if (to == IBV_QPS_RESET) {
      // Whatever was posted is forgotten without completions.
      qp->endpoint->reset_queues();
    } else if (to != IBV_QPS_UNKNOWN && !wires) {
      qp->state = to;
      base->state = to;
    }
  }
  if (wires) {
    {
      const std::lock_guard lock(qp->endpoint->mu);
      qp->state = IBV_QPS_RTR;
      base->state = IBV_QPS_RTR;
    }
    if (const int error = wire_pair(qp, attr->dest_qp_num); error != 0) {
      const std::lock_guard lock(qp->endpoint->mu);
      qp->state = IBV_QPS_INIT;
      base->state = IBV_QPS_INIT;
      return error;
    }
  }
  return 0;
}

int ibv_query_qp(ibv_qp* base, ibv_qp_attr* attr, int /*mask*/, ibv_qp_init_attr* init) {
  QueuePair* qp = from(base);
  SOFTRDMA_USABLE_OR_ERRNO(qp);
  const std::lock_guard lock(qp->endpoint->mu);
  *attr = qp->attr;
  attr->qp_state = attr->cur_qp_state = qp->state;
  attr->qp_access_flags = qp->access;
  attr->cap = qp->cap;
  attr->rnr_retry = qp->rnr_retry;
  attr->port_num = 1;
  attr->path_mtu = IBV_MTU_4096;
  attr->sq_psn = qp->sq_next & 0xFFFFFF;
  if (init != nullptr) {
    *init = ibv_qp_init_attr{};
    init->qp_context = base->qp_context;
    init->send_cq = base->send_cq;
    init->recv_cq = base->recv_cq;
    init->srq = base->srq;
    init->cap = qp->cap;
    init->qp_type = IBV_QPT_RC;
    init->sq_sig_all = qp->signal_all ? 1 : 0;
  }
  base->state = qp->state;
  return 0;
}

int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, std::uint32_t) {
  return 0;
}

int ibv_fork_init() {
  return 0;
}
ibv_fork_status ibv_is_fork_initialized() {
  return IBV_FORK_UNNEEDED;
}

// ----------------------------------------------------------------------------------------------
// controls

int softrdma_set_faults(const char* spec, std::uint64_t seed) {
  FaultPlan plan;
  const std::string error = parse_faults(spec != nullptr ? spec : "", seed, plan);
  if (!error.empty()) {
    std::fprintf(stderr, "softrdma: %s\n", error.c_str());
    return EINVAL;
  }
  Faults::instance().set(plan);
  return 0;
}
int softrdma_check_faults(const char* spec, char* message, std::size_t message_size) {
  FaultPlan plan;
  const std::string error = parse_faults(spec != nullptr ? spec : "", 0, plan);
  if (message_size != 0) std::snprintf(message, message_size, "%s", error.c_str());
  return error.empty() ? 0 : EINVAL;
}
std::uint64_t softrdma_fault_calls(const char* point) {
  return Faults::instance().calls(point);
}

void softrdma_get_stats(softrdma_stats* stats) {
  const Counters& c = globals().counters;
  const auto get = [](const auto& value) { return value.load(std::memory_order_relaxed); };
  *stats = softrdma_stats{get(c.frames_sent),
                          get(c.frames_received),
                          get(c.bytes_sent),
                          get(c.bytes_received),
                          get(c.protocol_errors),
                          get(c.access_errors),
                          Faults::instance().injected(),
                          get(c.rnr_waits),
                          get(c.pds),
                          get(c.mrs),
                          get(c.cqs),
                          get(c.comp_channels),
                          get(c.srqs),
                          get(c.qps),
                          get(c.cm_ids),
                          get(c.event_channels),
                          get(c.links)};
}

int softrdma_force_cq_error(ibv_cq* cq) {
  SOFTRDMA_USABLE_OR_ERRNO(from(cq));
  fail_cq(*from(cq));
  return 0;
}

int softrdma_cut_connection(ibv_qp* base) {
  QueuePair* qp = from(base);
  SOFTRDMA_USABLE_OR_ERRNO(qp);
  const std::lock_guard lock(qp->endpoint->mu);
  if (!qp->endpoint->has_link()) return ENOTCONN;
  qp->endpoint->lose_link(ECONNRESET);
  return 0;
}

int softrdma_raise_async(ibv_context* context, ibv_event_type type, ibv_qp* qp) {
  ibv_async_event event{};
  event.event_type = type;
  switch (type) {
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
      if (qp != nullptr) return EINVAL;
      event.element.port_num = 1;
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      if (qp == nullptr) return EINVAL;
      event.element.qp = qp;
      break;
    default: return EINVAL;
  }
  softrdma::raise_async(context, event);
  return 0;
}

}  // extern "C"
