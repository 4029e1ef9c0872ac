// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../harness/figure.hpp"
#include "../harness/instant_source.hpp"
#include "../harness/rounds.hpp"
#include "../harness/threads.hpp"
#include "sluice/dispatch/dispatcher.hpp"
#include "workload.hpp"

namespace sluice::bench {

/// What a dispatcher is made for.
struct OursOptions {
  std::uint32_t pollers = 1;  ///< each with an InstantSource of its own
  std::uint32_t workers = 1;
  std::uint32_t batch = kBatch;  ///< completions of a poll, 1..32
  std::uint32_t buffers = kBufferCount;
  Order order = Order::none;
  std::uint32_t connections = 0;    ///< per_connection: queue pairs 1..connections of each source
  std::uint32_t in_flight_max = 0;  ///< completions of each source; 0: as the buffers allow
  bool check_order = false;         ///< the handler does; connections <= 64
  std::vector<ibv_wc> pattern;      ///< of each source; empty: one connection's receives
  /// The (one) poller is run by the last worker's thread, in turn with it.
  bool poller_beside_worker = false;
  std::function<void()> work;  ///< the handler does this, too, for each completion
};

/// The dispatcher as it ships, driven by threads of the bench: a CPU for each poller, then one for
/// each worker.
class Ours {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Ours>> make(const Bench& bench, OursOptions options);
  ~Ours();

  /// Moves `units` completions (a multiple of granularity()) from the sources to the handler.
  [[nodiscard]] Result<Timing> run(std::uint64_t units);
  /// The same on one thread: a round of the poller, a round of the worker.
  [[nodiscard]] Result<Timing> run_stepped(std::uint64_t units);
  [[nodiscard]] std::uint64_t granularity() const noexcept;

  /// run() as a contender; this must outlive it.
  [[nodiscard]] Contender contender(std::string name);
  [[nodiscard]] Contender stepped_contender(std::string name);

 private:
  explicit Ours(const Bench& bench, OursOptions options);
  [[nodiscard]] Status start();
  void settle();
  [[nodiscard]] std::vector<Role> roles();
  [[nodiscard]] Handler handler();
  [[nodiscard]] Status check() const;

  const Bench& bench_;
  OursOptions options_;
  std::vector<std::shared_ptr<InstantSource>> sources_;
  Readers readers_;
  OrderCheck order_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::vector<std::shared_ptr<SourceHandle>> attached_;
  std::vector<std::shared_ptr<ConnectionHandle>> connections_;
  std::uint64_t total_ = 0;  ///< completions so far
};

}  // namespace sluice::bench
