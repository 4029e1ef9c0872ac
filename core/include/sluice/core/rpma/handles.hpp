// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <librpma.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/core/completion_source.hpp"
#include "sluice/core/ledger.hpp"
#include "sluice/core/receive_pool.hpp"
#include "sluice/core/send_credits.hpp"
#include "sluice/core/status.hpp"

/// RAII over librpma. The raw pointers stay reachable (`get()`). Handles keep what they need alive:
/// a connection keeps its peer and its SRQ, a memory region its peer. All are shared_ptr-held
/// because completions, pools and quarantined queue pairs may outlive the scope that made them.
namespace sluice::rpma {

/// A peer on one local RDMA device.
class Peer : public std::enable_shared_from_this<Peer> {
 public:
  /// The device that owns the local address (numeric or name).
  static Result<std::shared_ptr<Peer>> listen_on(const std::string& local_address);
  /// The device from which the remote address is reached. Blocks for address resolution.
  static Result<std::shared_ptr<Peer>> reach(const std::string& remote_address);
  ~Peer();

  [[nodiscard]] rpma_peer* get() const noexcept { return peer_; }
  [[nodiscard]] ibv_context* context() const noexcept { return context_; }
  [[nodiscard]] std::string device_name() const;

 private:
  Peer(rpma_peer* peer, ibv_context* context) noexcept : peer_(peer), context_(context) {}
  static Result<std::shared_ptr<Peer>> open(const std::string& address,
                                            rpma_util_ibv_context_type type);
  rpma_peer* peer_;
  ibv_context* context_;
};

/// Memory of the remote side, out of a descriptor that it sent.
class RemoteRegion {
 public:
  static Result<std::shared_ptr<RemoteRegion>> from_descriptor(
      std::span<const std::byte> descriptor);
  ~RemoteRegion();
  [[nodiscard]] rpma_mr_remote* get() const noexcept { return region_; }
  [[nodiscard]] std::size_t size() const;

 private:
  explicit RemoteRegion(rpma_mr_remote* region) noexcept : region_(region) {}
  rpma_mr_remote* region_;
};

/// Registered memory. Does not own the bytes unless it was made by `allocate`.
class MemoryRegion {
 public:
  /// `usage` is an OR of RPMA_MR_USAGE_*. The memory must outlive the region.
  static Result<std::shared_ptr<MemoryRegion>> register_memory(std::shared_ptr<Peer> peer,
                                                               std::span<std::byte> memory,
                                                               int usage);
  /// Allocates page-aligned, zeroed memory of `size` bytes (>= 1) and registers it.
  static Result<std::shared_ptr<MemoryRegion>> allocate(std::shared_ptr<Peer> peer,
                                                        std::size_t size, int usage);
  ~MemoryRegion();
  [[nodiscard]] rpma_mr_local* get() const noexcept { return region_; }
  [[nodiscard]] std::span<std::byte> memory() const noexcept { return memory_; }
  /// What the remote side needs for RemoteRegion::from_descriptor.
  [[nodiscard]] Result<std::vector<std::byte>> descriptor() const;

 private:
  MemoryRegion(std::shared_ptr<Peer> peer, std::span<std::byte> memory, bool owned,
               rpma_mr_local* region) noexcept;
  std::shared_ptr<Peer> peer_;
  std::span<std::byte> memory_;
  bool owned_;
  rpma_mr_local* region_;
};

/// Memory that somebody else made, e.g. on a NUMA node; kept until nothing is registered over it.
struct ProvidedMemory {
  std::span<std::byte> bytes;  ///< empty: none is provided
  std::shared_ptr<const void> owner;
};

struct SharedReceiveQueueConfig {
  std::uint32_t depth = 1024;  ///< receives it holds, 1..2^20; providers round up
  /// Entries of its own receive CQ. unset: as deep as the queue. 0: none, receives then complete on
  /// each connection's own receive CQ (or CQ).
  std::optional<std::uint32_t> receive_cq_size;
};

class CqSource;

/// A shared receive queue, with its own receive CQ unless configured with size 0.
/// Thread-safety: all calls from any thread; a mutex orders receive_cq() and stock() (set-up).
class SharedReceiveQueue : public std::enable_shared_from_this<SharedReceiveQueue> {
 public:
  static Result<std::shared_ptr<SharedReceiveQueue>> create(std::shared_ptr<Peer> peer,
                                                            SharedReceiveQueueConfig config = {});
  ~SharedReceiveQueue();
  [[nodiscard]] rpma_srq* get() const noexcept { return srq_; }
  [[nodiscard]] const std::shared_ptr<Peer>& peer() const noexcept { return peer_; }
  [[nodiscard]] const SharedReceiveQueueConfig& config() const noexcept { return config_; }
  /// The source of all connections' receives, told apart by qp_num; nullptr when there is none.
  /// Keeps this queue alive.
  [[nodiscard]] std::shared_ptr<CqSource> receive_cq();
  /// The ledger of the receive CQ; nullptr when there is none.
  [[nodiscard]] const std::shared_ptr<CqLedger>& receive_ledger() const noexcept { return ledger_; }
  /// Buffers for this queue, all posted. Reserves depth credits on the receive CQ. Refused when it
  /// does not fit (C4) or when there is a pool already. `memory`: where the buffers lie, at least
  /// depth * buffer_size bytes; without it they are allocated.
  [[nodiscard]] Result<ReceivePool*> stock(std::uint32_t depth, std::uint32_t buffer_size,
                                           ReceivePoolConfig options = {},
                                           ProvidedMemory memory = {});
  /// nullptr before stock(). Any thread.
  [[nodiscard]] ReceivePool* receive_pool() const noexcept {
    return stocked_.load(std::memory_order_acquire);  // (1) acquire: pairs with (2) in stock()
  }

 private:
  SharedReceiveQueue(std::shared_ptr<Peer> peer, SharedReceiveQueueConfig config, rpma_srq* srq);
  std::shared_ptr<Peer> peer_;
  SharedReceiveQueueConfig config_;
  rpma_srq* srq_;
  std::shared_ptr<CqLedger> ledger_;
  CqReservation reservation_;
  std::mutex mutex_;
  std::weak_ptr<CqSource> source_;  ///< the one source of the receive CQ, while somebody holds it
  std::shared_ptr<const void> memory_owner_;
  std::shared_ptr<MemoryRegion> memory_;
  std::unique_ptr<ReceivePool> pool_;
  std::atomic<ReceivePool*> stocked_{nullptr};
};

struct ConnectionConfig {
  std::uint32_t send_queue_size = 64;     ///< work requests outstanding; one more is kept for the
                                          ///< drain marker. 1..2^16
  std::uint32_t receive_queue_size = 64;  ///< ignored with an SRQ
  /// Entries of the CQ and of the receive CQ. unset: as many as the queues can complete at worst
  /// (C4). 0 for the receive CQ: receives complete on the CQ.
  std::optional<std::uint32_t> cq_size;
  std::optional<std::uint32_t> receive_cq_size;
  bool shared_channel = false;  ///< the CQ and receive CQ share one channel (rpma_conn_wait)
  std::chrono::milliseconds timeout{400};  ///< address and route resolution together; 1..60000 ms
  std::shared_ptr<SharedReceiveQueue> srq;

  /// The sizes that will be asked of the provider; fails with does_not_fit when explicit sizes
  /// cannot hold the worst case, before anything is created (E2). The worst case of the CQ is
  /// send_queue_size + 1; of where the receives complete: receive_queue_size, or the depth of an
  /// SRQ that has no receive CQ (all its receives may be consumed by this connection).
  struct Sizes {
    std::uint32_t cq, receive_cq, send_queue, receive_queue;
  };
  [[nodiscard]] Result<Sizes> sizes() const;
};

enum class ConnectionEvent : std::uint8_t {
  established,
  closed,
  lost,
  rejected,
  unreachable,
  undefined
};
[[nodiscard]] std::string_view to_string(ConnectionEvent event) noexcept;

class SharedChannelSource;
class Connection;

/// A connection asked for and not yet made. Destroying it refuses (incoming) or gives up
/// (outgoing). An incoming one keeps its endpoint's descriptors open until it is connected or
/// refused.
class ConnectionRequest {
 public:
  /// Resolves address and route: blocks up to config.timeout, half of it for each, and holds
  /// library_mutex() all the while, since librpma is not thread-safe here: that is the bound on how
  /// long others wait for it. Call it on a set-up thread.
  static Result<ConnectionRequest> connect_to(std::shared_ptr<Peer> peer,
                                              const std::string& address, const std::string& port,
                                              const ConnectionConfig& config);
  ConnectionRequest(ConnectionRequest&& other) noexcept;
  ConnectionRequest& operator=(ConnectionRequest&& other) noexcept;
  ~ConnectionRequest();

  /// What an incoming request carried (a copy; the provider may have padded it, rxe: to 56 bytes).
  [[nodiscard]] std::span<const std::byte> private_data() const noexcept { return private_data_; }
  /// Posts a receive before the connection exists (not with an SRQ).
  [[nodiscard]] Status receive(MemoryRegion& region, std::size_t offset, std::size_t length,
                               std::uint64_t wr_id);
  /// Connects (outgoing) or accepts (incoming). The connection is usable after its
  /// ConnectionEvent::established. `private_data` of at most 56 bytes.
  [[nodiscard]] Result<std::shared_ptr<Connection>> connect(
      std::span<const std::byte> private_data = {}) &&;
  [[nodiscard]] rpma_conn_req* get() const noexcept { return request_; }

 private:
  friend class Endpoint;
  ConnectionRequest(std::shared_ptr<Peer> peer, ConnectionConfig config,
                    ConnectionConfig::Sizes sizes, rpma_conn_req* request, std::string what);
  void drop() noexcept;
  std::shared_ptr<Peer> peer_;
  ConnectionConfig config_;
  ConnectionConfig::Sizes sizes_{};
  rpma_conn_req* request_ = nullptr;
  std::string what_;  ///< "connection to 10.0.0.1:7204", for messages
  std::vector<std::byte> private_data_;
  std::shared_ptr<rpma_ep> listener_;  ///< incoming: its event channel still carries this request
  std::uint32_t receives_ = 0;         ///< posted by receive()
};

/// Listens on one address and port.
class Endpoint {
 public:
  /// Fails with address_in_use, unreachable (no device has the address), invalid_argument. A port
  /// of "0" is the kernel's choice, which librpma cannot tell.
  static Result<std::unique_ptr<Endpoint>> listen(std::shared_ptr<Peer> peer,
                                                  const std::string& address,
                                                  const std::string& port);
  ~Endpoint();
  /// Readable when a request may be there. Non-blocking.
  [[nodiscard]] int fd() const noexcept { return fd_; }
  /// The next request, or no_completion when there is none now. Never blocks. Events of another
  /// kind (RPMA_E_INVAL) are passed over, up to kEventsPassedOverMax in one call; then it returns
  /// no_completion while fd() stays readable.
  [[nodiscard]] Result<ConnectionRequest> next_request(const ConnectionConfig& config);
  [[nodiscard]] rpma_ep* get() const noexcept { return endpoint_.get(); }
  static constexpr int kEventsPassedOverMax = 16;

 private:
  Endpoint(std::shared_ptr<Peer> peer, std::shared_ptr<rpma_ep> endpoint, int fd,
           std::string what) noexcept;
  std::shared_ptr<Peer> peer_;
  std::shared_ptr<rpma_ep> endpoint_;
  int fd_;
  std::string what_;
};

/// A connection (one RC queue pair). Posting functions: any thread, each takes one send credit and
/// fails with resource_exhausted when none is left. The rest: one thread at a time (the control
/// thread), except the constant accessors.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// rpma_conn_delete, under the library mutex. Sources made from this connection keep it alive.
  ~Connection();

  /// The next connection event without blocking; no_completion when there is none.
  [[nodiscard]] Result<ConnectionEvent> next_event();
  [[nodiscard]] int event_fd() const noexcept { return event_fd_; }
  [[nodiscard]] std::uint32_t qp_num() const noexcept { return qp_num_; }
  [[nodiscard]] const ConnectionConfig& config() const noexcept { return config_; }
  [[nodiscard]] const std::shared_ptr<Peer>& peer() const noexcept { return peer_; }
  [[nodiscard]] rpma_conn* get() const noexcept { return connection_; }
  /// What the other side sent with its accept or request (a copy taken at establishment).
  [[nodiscard]] std::span<const std::byte> private_data() const noexcept { return private_data_; }

  /// Moves the local queue pair to error and tells the peer. Idempotent; not an error when the peer
  /// was first.
  [[nodiscard]] Status disconnect();
  [[nodiscard]] bool disconnected() const noexcept { return disconnected_; }

  // --- posting; `region` nullptr with length 0 sends an empty message -------------------------
  // A credit comes back when the handler of its completion has returned: whoever is told by that
  // handler and posts at once may find none. Size the send queue for twice what is in flight then.
  [[nodiscard]] Status send(const MemoryRegion* region, std::size_t offset, std::size_t length,
                            std::uint64_t wr_id, bool signalled = true);
  [[nodiscard]] Status send_with_imm(const MemoryRegion* region, std::size_t offset,
                                     std::size_t length, std::uint32_t imm, std::uint64_t wr_id,
                                     bool signalled = true);
  [[nodiscard]] Status write(RemoteRegion& destination, std::size_t destination_offset,
                             const MemoryRegion* source, std::size_t source_offset,
                             std::size_t length, std::uint64_t wr_id, bool signalled = true);
  [[nodiscard]] Status write_with_imm(RemoteRegion& destination, std::size_t destination_offset,
                                      const MemoryRegion* source, std::size_t source_offset,
                                      std::size_t length, std::uint32_t imm, std::uint64_t wr_id);
  [[nodiscard]] Status read(MemoryRegion* destination, std::size_t destination_offset,
                            RemoteRegion& source, std::size_t source_offset, std::size_t length,
                            std::uint64_t wr_id);
  [[nodiscard]] Status atomic_write(RemoteRegion& destination, std::size_t destination_offset,
                                    std::span<const std::byte, 8> value, std::uint64_t wr_id,
                                    bool signalled = true);
  [[nodiscard]] Status flush(RemoteRegion& destination, std::size_t offset, std::size_t length,
                             rpma_flush_type type, std::uint64_t wr_id);
  /// Posts one receive (not with an SRQ). ReceivePool does this for you. Refused with
  /// resource_exhausted when receive_queue_size receives (the pool's depth included) are posted and
  /// not yet polled through this connection's sources: providers would take more, and the CQ
  /// overflow.
  [[nodiscard]] Status receive(MemoryRegion& region, std::size_t offset, std::size_t length,
                               std::uint64_t wr_id);

  /// The signalled, empty send of a drain; has a credit of its own. Comes back (flushed, after
  /// disconnect()) with wr_id == drain_marker_id(). Closes the send credits first: it is the last
  /// request in the send queue. A second one is refused.
  [[nodiscard]] Status post_drain_marker();
  [[nodiscard]] std::uint64_t drain_marker_id() const noexcept {
    return reinterpret_cast<std::uint64_t>(&drain_marker_);
  }

  [[nodiscard]] SendCredits& send_credits() noexcept { return send_credits_; }

  /// Buffers for this connection's own receive queue, all posted (not with an SRQ).
  [[nodiscard]] Result<ReceivePool*> stock(std::uint32_t depth, std::uint32_t buffer_size,
                                           ReceivePoolConfig options = {});
  /// nullptr before stock(). Any thread.
  [[nodiscard]] ReceivePool* receive_pool() const noexcept {
    return stocked_.load(std::memory_order_acquire);  // (3) acquire: pairs with (4) in stock()
  }

  /// Each CQ has one source: the same one is returned as long as somebody holds it (W11).
  /// Source of the main CQ; retires send credits. Not with a shared channel (then nullptr).
  [[nodiscard]] std::shared_ptr<CqSource> main_cq();
  /// Source of the connection's own receive CQ; nullptr when it has none, with an SRQ that has its
  /// own, or with a shared channel.
  [[nodiscard]] std::shared_ptr<CqSource> receive_cq();
  /// CQ and receive CQ on one channel as one source; nullptr without shared_channel.
  [[nodiscard]] std::shared_ptr<SharedChannelSource> shared_channel();

 private:
  friend class ConnectionRequest;
  Connection(std::shared_ptr<Peer> peer, ConnectionConfig config, ConnectionConfig::Sizes sizes,
             rpma_conn* connection, std::string what, std::uint32_t receives);
  [[nodiscard]] Status prepare();
  template <typename Post>
  [[nodiscard]] Status post(const char* operation, std::size_t length, bool signalled,
                            Post&& attempt);
  [[nodiscard]] bool receives_on_main_cq() const noexcept;
  void retire_sends(std::span<const ibv_wc> completions) noexcept;
  void count_receives(std::span<const ibv_wc> completions, bool receives_only) noexcept;
  std::shared_ptr<Peer> peer_;
  ConnectionConfig config_;
  ConnectionConfig::Sizes sizes_;
  rpma_conn* connection_;
  std::string what_;
  int event_fd_ = -1;
  std::uint32_t qp_num_ = 0;
  bool disconnected_ = false;
  char drain_marker_ = 0;
  std::vector<std::byte> private_data_;
  SendCredits send_credits_;
  bool peer_gone_ = false;  ///< closed, lost, rejected or unreachable was seen
  std::atomic<bool> drain_marker_posted_{false};
  std::atomic<std::uint32_t> receives_;  ///< posted by receive() and not yet polled
  std::atomic<std::uint32_t> receives_max_;
  std::weak_ptr<CqSource> main_source_;
  std::weak_ptr<CqSource> receive_source_;
  std::weak_ptr<SharedChannelSource> shared_source_;
  std::shared_ptr<MemoryRegion> pool_memory_;
  std::unique_ptr<ReceivePool> pool_;
  std::atomic<ReceivePool*> stocked_{nullptr};
};

}  // namespace sluice::rpma
