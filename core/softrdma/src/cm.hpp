// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <condition_variable>
#include <unordered_set>

#include "endpoint.hpp"
#include "objects.hpp"

namespace softrdma {

struct CmEvent {
  rdma_cm_event event{};
  CmId* account =
      nullptr;  // whose destruction waits for the acknowledgement: the listener's for a request
  std::uint8_t private_data[256] = {};
};

struct EventChannel : Owned {
  rdma_event_channel base{};
  EventQueue<CmEvent*> events;

  /// The ids that post here. A program may forget some and destroy the channel under them, and
  /// librpma does, where it cannot equip an incoming request; the kernel then ends them, and so
  /// does this.
  void join(CmId* id) {
    const std::lock_guard lock(ids_mu);
    ids.insert(id);
  }
  void leave(CmId* id) {
    const std::lock_guard lock(ids_mu);
    ids.erase(id);
  }
  std::mutex ids_mu;  // innermost
  std::unordered_set<CmId*> ids;
};

/// What the application has done with an id before it connects; from then on Endpoint::link tells.
enum class IdState : std::uint8_t {
  kIdle,
  kBound,
  kAddressResolved,
  kRouteResolved,
  kListening,
  kConnected
};

struct CmId : Owned {
  rdma_cm_id base{};
  bool synchronous = false;
  IdState state = IdState::kIdle;
  std::shared_ptr<Endpoint> endpoint;
  std::shared_ptr<Listener> listener;
  int socket = -1;  // bound, not yet listening or connecting
  bool only_v6 = false;
  bool only_v6_set = false;
  ibv_sa_path_rec path{};
  std::unique_ptr<ibv_qp_init_attr> accept_attr;  // rdma_create_ep on the passive side
  bool owns_cqs = false;
  bool owns_srq = false;

  std::mutex ack_mu;
  std::condition_variable ack_cv;
  std::uint32_t events_reported = 0;
  std::uint32_t events_completed = 0;

  /// A listener's requests that nobody has taken yet; above kRequestsMax they are refused, as the
  /// kernel does.
  std::atomic<std::uint32_t> requests_waiting{0};
  static constexpr std::uint32_t kRequestsMax = 1024;

  [[nodiscard]] EventChannel* channel() noexcept;
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
inline CmId* from(rdma_cm_id* p) noexcept {
  return object_from<CmId>(p, offsetof(CmId, base));
}
inline EventChannel* from(rdma_event_channel* p) noexcept {
  return object_from<EventChannel>(p, offsetof(EventChannel, base));
}
inline CmEvent* from(rdma_cm_event* p) noexcept {
  return object_from<CmEvent>(p, offsetof(CmEvent, event));
}
#pragma GCC diagnostic pop
inline EventChannel* CmId::channel() noexcept {
  return base.channel != nullptr ? from(base.channel) : nullptr;
}

/// A listening socket. Accepted sockets become endpoints that wait for their request; one that
/// stays silent for kRequestTimeoutMs, or above kPendingMax, is closed.
class Listener final : public Pollable, public std::enable_shared_from_this<Listener> {
 public:
  Listener(CmId* id, int fd) noexcept : cm(id), fd_(fd) {}
  ~Listener() override;
  [[nodiscard]] bool start() noexcept;
  void stop() noexcept;
  /// A complete request came on `endpoint`, whose lock is held. Makes the new id and its event.
  [[nodiscard]] bool request(Endpoint& endpoint,
                             std::span<const std::uint8_t> private_data) noexcept;
  void forget() noexcept { pending_.fetch_sub(1, std::memory_order_relaxed); }

  void on_events(std::uint32_t events) noexcept override;
  void on_timer(int kind, std::uint64_t argument) noexcept override;

  static constexpr std::uint32_t kPendingMax = 4096;
  static constexpr std::uint32_t kRequestTimeoutMs = 5000;

  std::mutex mu;
  CmId* cm;  // under mu; nullptr once the id is being destroyed

 private:
  int fd_;
  std::uint64_t token_ = 0;
  std::atomic<std::uint32_t> pending_{0};
};

/// Reasons of REJECTED events, as InfiniBand numbers them.
inline constexpr int kRejectTimeout = 4;
inline constexpr int kRejectNoListener = 8;
inline constexpr int kRejectByConsumer = 28;

/// Fills in the addresses of a connected socket.
void read_addresses(int fd, rdma_cm_id& id) noexcept;

}  // namespace softrdma
