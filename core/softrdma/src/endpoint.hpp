// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <mutex>
#include <span>

#include "engine.hpp"
#include "objects.hpp"
#include "wire.hpp"

namespace softrdma {

struct CmId;
class Listener;

/// Where a connection stands. "Passive" is the side that listened.
enum class LinkState : std::uint8_t {
  kNone,             // no socket yet
  kConnecting,       // TCP is connecting
  kRequestSent,      // active: waits for the reply
  kAwaitingRequest,  // passive: a socket was accepted, nothing read yet; belongs to no id
  kRequestReceived,  // passive: the application is to accept or reject
  kReplyReceived,    // active, id without a queue pair: the application is to call rdma_establish
  kReplySent,        // passive: accepted; the queue pair is live, the application does not know yet
  kEstablished,
  kDisconnectSent,      // we asked first and wait for the answer
  kDisconnectReceived,  // the peer asked; the application is to answer with rdma_disconnect
  kClosed,              // over; a socket may be left to carry the last bytes
};

/// One end of a connection: the socket, the connection manager's state and the queue pair's
/// protocol, all under `mu`.
///
/// It outlives both its rdma_cm_id and its queue pair while the last bytes go out. Requests, and
/// the answers to the peer's requests, share the socket; answers go first and are bounded in
/// number, and input is always read, so two sides that write at each other never block one another.
class Endpoint final : public Pollable, public std::enable_shared_from_this<Endpoint> {
 public:
  Endpoint();
  ~Endpoint() override;

  std::mutex mu;

  // ---- All below needs `mu`.
  CmId* cm = nullptr;
  QueuePair* qp = nullptr;
  LinkState link = LinkState::kNone;
  std::shared_ptr<Listener> listener;  // kAwaitingRequest only
  wire::ConnParam local_param;         // what we asked for
  wire::ConnParam remote_param;        // what the peer asked for, already seen from our side
  std::uint32_t remote_qpn = 0;
  std::uint32_t local_qpn = 0;
  std::array<std::uint8_t, wire::kRequestPrivateSize> request_private{};

  /// Starts to connect `fd`, which it takes over. 0 or an errno.
  int connect(int fd, const sockaddr* to, socklen_t size);
  /// Takes over a connected socket. 0 or an errno.
  int adopt(int fd, LinkState state);
  int accept(const void* private_data, std::size_t size);
  void establish();
  void reject(const void* private_data, std::size_t size, std::uint32_t reason);
  /// rdma_disconnect's part on the wire; the queue pair is the caller's business. 0 or an errno.
  int disconnect();
  /// Says goodbye and lets the engine carry out the last bytes; for an id that is being destroyed.
  void abandon();
  /// The connection is gone: tells the application as its state demands. `error` 0: the peer
  /// closed.
  void lose_link(int error);

  /// The queue pair goes to error and all its work is flushed; the oldest send takes `first`.
  void to_error(ibv_wc_status first = IBV_WC_WR_FLUSH_ERR);
  /// Binds the queue pair's protocol state to a fresh connection.
  void reset_protocol();
  void make_ready_to_send();
  /// Forgets all that was posted, without completions; the queue pair is in RESET then.
  void reset_queues();
  /// The queue pair is being destroyed.
  void qp_gone();
  /// Puts as much on the wire as the socket takes; the engine does the rest.
  void flush(std::size_t budget);
  /// A receive has been posted: peers that met an empty queue are told.
  void receive_posted();
  void send_posted();
  /// Feeds bytes as if they had come from the socket.
  void feed(std::span<const std::uint8_t> bytes);
  void arm_request_timer(std::uint32_t ms) { timer(kRequestTimer, link_epoch_, ms); }
  void read_socket_addresses(rdma_cm_id& id) const noexcept;
  [[nodiscard]] bool has_link() const noexcept { return fd_ >= 0; }
  [[nodiscard]] bool carries_data() const noexcept {
    return fd_ >= 0 && (link == LinkState::kReplySent || link == LinkState::kEstablished);
  }

  // ---- Engine's thread, without `mu`.
  void on_events(std::uint32_t events) noexcept override;
  void on_timer(int kind, std::uint64_t argument) noexcept override;
  enum Timer : int {
    kConnectTimer,
    kReplyTimer,
    kRequestTimer,
    kDreqTimer,
    kTimewaitTimer,
    kRetryTimer,
    kRnrTimer,
    kReadyTimer,
    kResumeTimer,
    kLingerTimer
  };

  static constexpr std::size_t kPosterBudget = 128 * 1024;
  static constexpr std::size_t kEngineBudget = 1024 * 1024;

 private:
  struct Response {
    enum class Kind : std::uint8_t {
      kAck,
      kRead,
      kAtomic,
      kNak,
      kNotReady,
      kReady
    } kind = Kind::kAck;
    std::uint32_t sequence = 0;
    std::uint64_t address = 0;  // kAtomic: the value before
    std::uint32_t rkey = 0;
    std::uint32_t total = 0;
    std::uint32_t sent = 0;
    std::uint32_t aux = 0;
  };
  static constexpr std::uint32_t kResponsesMax = 64;
  static constexpr std::size_t kStageMax = 256;
  static constexpr std::size_t kControlReserve = 2048;
  static constexpr std::size_t kOutSize =
      2 * (wire::kHeaderSize + wire::kFragmentMax) + kControlReserve;

  enum class Sink : std::uint8_t { kDiscard, kStage, kReceive, kMemory, kRead };

  // Input
  void read_input();
  void consume(const std::uint8_t* data, std::size_t size);
  void begin_frame();
  void payload(const std::uint8_t* data, std::size_t size);
  void place(const std::uint8_t* data, std::size_t size, std::uint32_t at_offset);
  void end_frame();
  void protocol_error(const char* what);
  void begin_request();
  void begin_message();
  void end_request();
  void complete_message();
  void begin_read_response();
  void end_read_response();
  void control_frame();
  void on_connect_request();
  void on_connect_reply();
  void on_ack(std::uint32_t sequence);
  void on_nak();
  void on_not_ready();
  void on_ready();
  [[nodiscard]] bool acknowledgeable(std::uint32_t sequence) const noexcept;
  void complete_before(std::uint32_t sequence);
  void complete_head(ibv_wc_status status);
  void refuse(wire::NakCode code, ibv_event_type event);
  void fail_receive(ibv_wc_status status);
  void complete_receive(ibv_wc_status status, ibv_wc_opcode opcode);
  [[nodiscard]] bool take_receive();
  void not_ready();
  void message_counted();
  // Output
  void respond(const Response& response);
  void control(wire::FrameType type, std::uint32_t aux, const wire::ConnParam* param,
               const void* data, std::size_t size, std::size_t padded);
  bool fill_output();
  bool emit_response();
  bool emit_request();
  void put(const wire::Header& header);
  void want_output(bool wanted);
  void arm_retry();
  void rewind_to(std::uint32_t sequence);
  void close_socket();
  void finish_connect();
  void hold_input();
  void timer(int kind, std::uint64_t argument, std::uint32_t ms);
  void flush_completion(std::uint64_t wr_id, CompletionQueue& cq, ibv_wc_status status);
  void post_cm(rdma_cm_event_type type, int status, const void* data = nullptr,
               std::size_t size = 0);
  void ended();

  int fd_ = -1;
  std::uint64_t token_ = 0;
  std::uint64_t link_epoch_ = 0;  // tells a stale timer from a live one
  bool want_output_ = false;
  bool held_ = false;  // input held back by a fault
  bool lingering_ = false;

  std::unique_ptr<std::uint8_t[]> out_;
  std::size_t out_begin_ = 0, out_end_ = 0;
  std::array<Response, kResponsesMax> responses_;
  std::uint32_t responses_head_ = 0, responses_count_ = 0;

  // The frame being read.
  std::array<std::uint8_t, wire::kHeaderSize> in_header_{};
  std::size_t in_header_size_ = 0;
  bool in_payload_ = false;
  wire::Header in_;
  std::uint32_t in_done_ = 0;
  Sink sink_ = Sink::kDiscard;
  std::array<std::uint8_t, kStageMax> stage_{};

  // Responder: the peer's message under way.
  std::uint32_t expected_ = 0;
  bool in_message_ = false;
  wire::Header message_;
  std::uint32_t message_done_ = 0;
  std::uint32_t reads_queued_ = 0;
  bool rnr_waiting_ = false;
  bool said_ready_ = false;        // of the message that waits
  bool srq_waiting_ = false;       // on the shared receive queue's list
  bool said_established_ = false;  // COMM_EST
  std::uint32_t rnr_sequence_ = 0;
  bool rnr_forced_ = false;  // a fault made this message wait already
  std::uint32_t rnr_forced_sequence_ = 0;
  bool said_dead_ = false;
  bool peer_dead_ = false;  // its queue pair will never acknowledge anything

  Random random_;
  std::uint64_t messages_left_ = 0;  // until a fault cuts the connection; 0: never
  bool cut_at_message_ = false;
  bool resumed_ = false;
};

}  // namespace softrdma
