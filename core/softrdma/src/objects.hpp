// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine.hpp"
#include "event_queue.hpp"
#include "faults.hpp"

/// The verbs objects. Each starts with the public struct, so that the user's pointer is the
/// object's address.
///
/// Lock order (a thread that holds one may take those to its right, never one to its left):
///   Endpoint::mu -> Listener::mu -> SharedReceiveQueue::mu -> CompletionQueue::mu -> an
///   EventQueue's own
/// Globals::mu and KeyTable are leaves: nothing is called with them held.
namespace softrdma {

class Endpoint;

/// Every object remembers the process that made it: after fork() the child holds copies whose
/// descriptors are the parent's, and must not touch them.
struct Owned {
  std::uint32_t generation;
  Owned() noexcept;
  /// False (errno EIO, one log line) in a child that inherited the object.
  [[nodiscard]] bool usable(const char* function) const noexcept;
};

struct Context : Owned {
  // verbs_context ends with the ibv_context that users hold.
  verbs_context verbs;
  EventQueue<ibv_async_event> async;

  [[nodiscard]] ibv_context* public_context() noexcept { return &verbs.context; }
  static Context* from(ibv_context* context) noexcept;
};

struct ProtectionDomain : Owned {
  ibv_pd* pd() noexcept { return &base; }
  ibv_pd base{};
  std::atomic<std::uint32_t> users{0};
};

struct MemoryRegion : Owned {
  ibv_mr base{};
  std::uint64_t iova = 0;
  std::uint32_t access = 0;
};

/// A list of scatter/gather entries, checked against the keys each time that it is used.
struct SgeSpan {
  const ibv_sge* sge = nullptr;
  std::uint32_t count = 0;
};

enum class Access { kLocalRead, kLocalWrite, kRemoteRead, kRemoteWrite, kRemoteAtomic };

/// Keys to regions. Each access checks key, domain, bounds and rights, and copies, under one shared
/// lock: once remove() has returned nothing touches the region any more.
class KeyTable {
 public:
  void add(MemoryRegion* mr);  // draws the keys
  void remove(MemoryRegion* mr);
  /// Changes a region under the exclusive lock.
  template <class Body>
  void exclusively(Body&& body) {
    const std::unique_lock lock(mutex_);
    body();
  }
  [[nodiscard]] bool check(const ibv_pd* pd, std::uint32_t key, std::uint64_t address,
                           std::uint64_t length, Access access) const;
  [[nodiscard]] bool read(const ibv_pd* pd, std::uint32_t key, std::uint64_t address,
                          std::uint8_t* to, std::uint64_t length, Access access) const;
  [[nodiscard]] bool write(const ibv_pd* pd, std::uint32_t key, std::uint64_t address,
                           const std::uint8_t* from, std::uint64_t length, Access access) const;
  enum class AtomicResult { kDone, kAccess, kMisaligned };
  [[nodiscard]] AtomicResult atomic(const ibv_pd* pd, std::uint32_t key, std::uint64_t address,
                                    bool compare_swap, std::uint64_t first, std::uint64_t swap,
                                    std::uint64_t& before) const;
  /// The same through a scatter/gather list: `offset` bytes into it.
  [[nodiscard]] bool gather(const ibv_pd* pd, SgeSpan list, std::uint64_t offset, std::uint8_t* to,
                            std::uint64_t length) const;
  [[nodiscard]] bool scatter(const ibv_pd* pd, SgeSpan list, std::uint64_t offset,
                             const std::uint8_t* from, std::uint64_t length) const;
  [[nodiscard]] bool check_list(const ibv_pd* pd, SgeSpan list, Access access) const;

 private:
  [[nodiscard]] std::uint8_t* locate(const ibv_pd* pd, std::uint32_t key, std::uint64_t address,
                                     std::uint64_t length, Access access) const noexcept;
  mutable std::shared_mutex mutex_;
  std::unordered_map<std::uint32_t, MemoryRegion*> regions_;
};

struct CompletionQueue;

struct CompletionChannel : Owned {
  ibv_comp_channel base{};
  EventQueue<CompletionQueue*> events;
  std::mutex mu;  // base.refcnt
};

struct QueuePair;

struct CompletionQueue : Owned {
  ibv_cq base{};
  CompletionChannel* channel = nullptr;
  std::mutex mu;
  std::vector<ibv_wc> ring;
  std::uint32_t capacity = 0;
  std::uint32_t head = 0;  // next to poll
  std::uint32_t count = 0;
  enum class Arm : std::uint8_t { kNone, kSolicited, kNext } arm = Arm::kNone;
  bool failed = false;      // overflown: takes no more completions
  bool event_held = false;  // a coalescing fault holds an event back
  std::uint64_t pushed = 0;
  std::uint32_t vain_polls = 0;
  std::unordered_set<QueuePair*> users;  // each once per queue that completes here
  Random random{0};
  class Held : public Pollable {
   public:
    virtual void detach() noexcept = 0;
  };
  std::shared_ptr<Held> timers;  // set when a fault wants to delay an event
  // Under the channel's event queue lock, and the context's for the second.
  std::uint32_t comp_events_reported = 0;
  std::uint32_t async_events_reported = 0;
};

/// Posted receives: a ring with the scatter/gather entries beside it, allocated at creation.
class ReceiveRing {
 public:
  void reset(std::uint32_t slots, std::uint32_t sge_max);
  [[nodiscard]] bool full() const noexcept { return count_ == slots_ - 1; }
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return slots_ == 0 ? 0 : slots_ - 1; }
  [[nodiscard]] std::uint32_t sge_max() const noexcept { return sge_max_; }
  void push(const ibv_recv_wr& wr) noexcept;
  struct Taken {
    std::uint64_t wr_id = 0;
    std::uint32_t num_sge = 0;
    std::uint64_t length = 0;
    ibv_sge sge[32];
  };
  [[nodiscard]] bool pop(Taken& out) noexcept;

 private:
  struct Slot {
    std::uint64_t wr_id;
    std::uint32_t num_sge;
  };
  std::vector<Slot> ring_;
  std::vector<ibv_sge> sges_;
  std::uint32_t slots_ = 0, sge_max_ = 0, head_ = 0, count_ = 0;
};

struct SharedReceiveQueue : Owned {
  ibv_srq base{};
  std::mutex mu;
  ReceiveRing ring;
  std::uint32_t limit = 0;
  std::uint32_t users = 0;
  std::vector<std::weak_ptr<Endpoint>> waiting;  // queue pairs that met it empty
  std::uint32_t async_events_reported = 0;       // under the context's async queue lock
};

struct SendRequest {
  std::uint64_t wr_id = 0;
  std::uint64_t remote_address = 0;
  std::uint64_t compare_add = 0;
  std::uint64_t swap = 0;
  std::uint32_t rkey = 0;
  std::uint32_t total = 0;
  std::uint32_t sent = 0;      // bytes handed to the stream
  std::uint32_t received = 0;  // of a read's answer
  std::uint32_t immediate = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  std::uint32_t num_sge = 0;
  bool signaled = false, solicited = false, fence = false, inlined = false;
  bool started = false, finished_sending = false;
};

/// The queues of a queue pair; all but `base` and the constants below it is under the endpoint's
/// lock.
struct QueuePair : Owned {
  ibv_qp_ex base{};
  std::shared_ptr<Endpoint> endpoint;
  ProtectionDomain* pd = nullptr;
  CompletionQueue* send_cq = nullptr;
  CompletionQueue* recv_cq = nullptr;
  SharedReceiveQueue* srq = nullptr;
  ibv_qp_cap cap{};
  bool signal_all = false;
  bool on_cm_id = false;

  ibv_qp_state state = IBV_QPS_RESET;
  std::uint32_t access = 0;
  ibv_qp_attr attr{};  // what modify_qp was given, for query_qp
  std::uint8_t rnr_retry = 7;

  // Send queue: request i (counted from the connection's start) is in slot i % slots and has
  // sequence number i.
  std::vector<SendRequest> sq;
  std::vector<ibv_sge> sq_sges;
  std::unique_ptr<std::uint8_t[]> sq_inline;
  std::uint32_t sq_slots = 0;
  std::uint32_t sq_head = 0;  // oldest not completed
  std::uint32_t sq_next = 0;  // next to put on the wire
  std::uint32_t sq_tail = 0;
  std::uint32_t reads_outstanding = 0;
  bool rnr_wait = false;
  std::uint32_t rnr_sequence = 0;
  std::uint32_t rnr_tries = 0;
  std::uint64_t rnr_epoch = 0;
  std::uint64_t retry_epoch = 0;  // of the timer that ends sends nobody will acknowledge
  bool retry_armed = false;

  ReceiveRing rq;
  // The receive that the message under way goes to.
  bool receiving = false;
  ReceiveRing::Taken receive;
  std::uint32_t async_events_reported = 0;  // under the context's async queue lock

  [[nodiscard]] SendRequest& slot(std::uint32_t index) noexcept {
    return sq[index & (sq_slots - 1)];
  }
  [[nodiscard]] SgeSpan sges(std::uint32_t index) noexcept {
    const std::uint32_t at = index & (sq_slots - 1);
    return {sq_sges.data() + std::size_t{at} * cap.max_send_sge, sq[at].num_sge};
  }
  [[nodiscard]] std::uint8_t* inline_data(std::uint32_t index) noexcept {
    return sq_inline.get() + std::size_t{index & (sq_slots - 1)} * cap.max_inline_data;
  }
  [[nodiscard]] ibv_qp* qp() noexcept { return &base.qp_base; }
};

template <class Object, class Public>
Object* object_from(Public* base, std::size_t offset) noexcept {
  return reinterpret_cast<Object*>(reinterpret_cast<std::uint8_t*>(base) - offset);
}
// The objects are not standard-layout, yet GCC and clang lay members of a class without virtual
// bases at constant offsets; the pragma says that we know.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
inline ProtectionDomain* from(ibv_pd* p) noexcept {
  return object_from<ProtectionDomain>(p, offsetof(ProtectionDomain, base));
}
inline MemoryRegion* from(ibv_mr* p) noexcept {
  return object_from<MemoryRegion>(p, offsetof(MemoryRegion, base));
}
inline CompletionChannel* from(ibv_comp_channel* p) noexcept {
  return object_from<CompletionChannel>(p, offsetof(CompletionChannel, base));
}
inline CompletionQueue* from(ibv_cq* p) noexcept {
  return object_from<CompletionQueue>(p, offsetof(CompletionQueue, base));
}
inline SharedReceiveQueue* from(ibv_srq* p) noexcept {
  return object_from<SharedReceiveQueue>(p, offsetof(SharedReceiveQueue, base));
}
inline QueuePair* from(ibv_qp* p) noexcept {
  return object_from<QueuePair>(p, offsetof(QueuePair, base));
}
inline Context* Context::from(ibv_context* context) noexcept {
  return object_from<Context>(context, offsetof(Context, verbs) + offsetof(verbs_context, context));
}
#pragma GCC diagnostic pop

/// Delays that the environment can set, in milliseconds.
struct Timing {
  std::uint32_t connect_ms;   // SOFTRDMA_CONNECT_MS: a host that does not answer
  std::uint32_t reply_ms;     // SOFTRDMA_REPLY_MS: a listener that neither accepts nor rejects
  std::uint32_t dreq_ms;      // SOFTRDMA_DREQ_MS: a peer that does not answer a disconnect
  std::uint32_t timewait_ms;  // SOFTRDMA_TIMEWAIT_MS: from the end of a connection to TIMEWAIT_EXIT
  std::uint32_t retry_ms;     // SOFTRDMA_RETRY_MS: until a send that nobody acknowledges fails
  std::uint32_t
      silence_ms;  // SOFTRDMA_SILENCE_MS: until a connected host that answers no packet is given up
  std::uint32_t rnr_ms;  // SOFTRDMA_RNR_MS: between two tries of a send with a finite rnr_retry
};

struct Counters {
  std::atomic<std::uint64_t> frames_sent{0}, frames_received{0}, bytes_sent{0}, bytes_received{0},
      protocol_errors{0}, access_errors{0}, rnr_waits{0};
  std::atomic<std::uint32_t> pds{0}, mrs{0}, cqs{0}, comp_channels{0}, srqs{0}, qps{0}, cm_ids{0},
      event_channels{0}, links{0};
};

/// Everything that a process has one of. A forked child gets a new one (see Owned).
struct Globals {
  Globals();
  std::uint32_t generation;
  Timing timing;
  Engine engine;
  KeyTable keys;
  Counters counters;

  std::mutex mu;
  std::unordered_map<std::uint32_t, QueuePair*> qps;
  std::uint32_t next_qp_number;
  std::uint32_t next_handle = 1;
  Context* cm_context = nullptr;  // the one that all rdma_cm ids share
  ibv_pd* cm_pd = nullptr;
};
Globals& globals() noexcept;
[[nodiscard]] ibv_device* device() noexcept;
[[nodiscard]] std::uint32_t next_handle() noexcept;
/// The context all rdma_cm ids share and its default domain; nullptr with errno on failure.
[[nodiscard]] Context* cm_context() noexcept;
[[nodiscard]] ibv_pd* cm_pd() noexcept;
[[nodiscard]] Context* new_context() noexcept;

/// `endpoint` is that of the rdma_cm id which the queue pair is for; without one it gets its own.
[[nodiscard]] ibv_qp* create_queue_pair(ibv_pd* pd, ibv_qp_init_attr* init,
                                        std::shared_ptr<Endpoint> endpoint);

/// Adds a completion. With the CQ full: it fails, an asynchronous event says so and its queue pairs
/// go to error.
void push_completion(CompletionQueue& cq, const ibv_wc& wc, bool solicited) noexcept;
void fail_cq(CompletionQueue& cq) noexcept;

/// Queues an asynchronous event of the object's context.
void raise_async(ibv_context* context, const ibv_async_event& event) noexcept;

/// Rounds up to 2^k - 1 and returns 2^k, as soft-RoCE does: one slot always stays free.
[[nodiscard]] constexpr std::uint32_t ring_slots(std::uint32_t wanted) noexcept {
  std::uint32_t slots = 2;
  while (slots - 1 < wanted) slots *= 2;
  return slots;
}

inline constexpr std::uint32_t kQueueDepthMax = 32767;
inline constexpr std::uint32_t kCqeMax = (1U << 22) - 1;
inline constexpr std::uint32_t kSgeMax = 32;
inline constexpr std::uint32_t kInlineMax = 1024;
inline constexpr std::uint32_t kReadsMax = 16;
inline constexpr int kVectors = 4;

}  // namespace softrdma
