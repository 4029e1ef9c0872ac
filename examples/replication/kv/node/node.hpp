// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "kv/cluster/membership.hpp"
#include "kv/node/options.hpp"
#include "kv/replication/applier.hpp"
#include "kv/replication/follower.hpp"
#include "kv/replication/journal.hpp"
#include "kv/replication/primary.hpp"
#include "kv/replication/transport.hpp"
#include "kv/store/store.hpp"
#include "resp/command_handler.hpp"
#include "resp/resp_server.hpp"

namespace sluice::kv {

/// A node of sluice-kv: all its parts, and which of them is in charge.
///
///     clients ── RespServer (one I/O thread) ── Node::handle ─┬─ reads: Store, if this node leads
///                                                             └─ writes: Primary
///     Primary ── Journal (log) ── Applier ── Store            one term of leadership
///        └─ Feeder for each other node ── RDMA ── Follower ── Journal, Applier, Store
///     Membership (etcd, or static) says who leads
///
/// The keeper is whoever calls run(): it does what may block (beginning and ending terms,
/// checkpoints, trimming) and what time brings.
class Node final : public CommandHandler {
 public:
  /// Opens the data folder and begins to listen. One line says what failed.
  static Result<std::unique_ptr<Node>> start(Options options);
  ~Node() override;

  /// Until `stop_asked` says so, or until the node cannot go on. Then everything is closed: clients
  /// get the answers that are due. Ok: it was asked to.
  [[nodiscard]] Status run(const std::function<bool()>& stop_asked);

  [[nodiscard]] std::string listening_on() const { return server_->listening_on(); }

  void handle(const Request& request, Ticket ticket) noexcept override;
  void round_done() noexcept override;
  [[nodiscard]] std::string info_text(std::string_view section);

 private:
  explicit Node(Options options);
  [[nodiscard]] Status open_data();
  [[nodiscard]] Status reconcile();
  [[nodiscard]] Status lost(const std::string& what);
  [[nodiscard]] Status start_transport();
  [[nodiscard]] Status start_server();
  [[nodiscard]] Status start_membership();
  [[nodiscard]] Status serve_at_once();
  void shut_down();

  // The I/O thread's.
  void handle_write(const Request& request, Ticket ticket);
  void handle_read(const Request& request, Ticket ticket);
  void handle_wait(const Request& request, Ticket ticket);
  void redirect(Ticket& ticket);
  void refuse_round();

  // The membership's.
  void on_event(const MembershipEvent& event);

  // The keeper's.
  [[nodiscard]] Status round_of_keeper(std::chrono::milliseconds tick);
  void defer(std::function<void()> job);
  void begin_term(std::uint64_t epoch, const InSyncSet& in_sync);
  void end_term();
  /// Nothing if another epoch is led by now.
  void step_back(std::uint64_t epoch, const std::string& why);
  void set_willing_again();
  void tidy();

  void note_error(const Status& why);
  void say(const std::string& text) const;
  [[nodiscard]] std::shared_ptr<Primary> primary() const;
  void durable_moved();

  const Options options_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Journal> journal_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Applier> applier_;
  std::unique_ptr<Follower> follower_;
  std::unique_ptr<RespServer> server_;
  std::unique_ptr<Membership> membership_;
  std::string announce_;
  std::atomic<bool> open_{false};  ///< clients get more than a promise

  // The I/O thread's.
  Round round_;
  std::uint64_t sequence_ = 0;  ///< of writes taken
  std::atomic<std::uint64_t> answered_sequence_{0};

  mutable std::mutex role_mutex_;
  std::shared_ptr<Primary> primary_;
  std::optional<Leader> leader_;
  std::string last_error_;

  std::mutex jobs_mutex_;
  std::condition_variable jobs_wake_;
  std::deque<std::function<void()>> jobs_;
  std::optional<Status> fatal_;
  std::optional<std::chrono::steady_clock::time_point> willing_again_at_;
  std::chrono::steady_clock::time_point tidy_at_{};
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace sluice::kv
