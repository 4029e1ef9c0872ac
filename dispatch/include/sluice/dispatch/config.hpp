// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/core/status.hpp"
#include "sluice/dispatch/handler.hpp"
#include "sluice/topology/config.hpp"
#include "sluice/topology/modes.hpp"

namespace sluice {

namespace topology {
struct Plan;
}

/// Who runs the pollers, workers and the control (C8).
enum class Drive : std::uint8_t {
  own_threads,  ///< the dispatcher's own, pinned threads
  host,         ///< the host calls run_once() from its threads; no thread is created
};

/// A group of pollers that are alike.
struct PollerConfig {
  std::string name = "default";
  std::uint32_t count = 1;     ///< 1..64 in all groups together
  std::vector<unsigned> cpus;  ///< OS CPU index of each poller, round-robin; empty: not pinned
  /// OS index of the NUMA node of each poller, round-robin: its batch buffers lie there, and the
  /// workers of a pool that is split by node serve it from there. Empty: not known.
  std::vector<unsigned> nodes;
  std::vector<std::string> thread_names;  ///< of each; empty: "sluice-poll-0", ...
  WaitMode wait = WaitMode::event;
  /// adaptive: what waiting may add to a completion, on average (see WaitController). 0..1 s; 0: no
  /// target.
  std::chrono::nanoseconds latency_target{0};
  /// adaptive: of one CPU; beyond it a poller does not spin, in any 100 ms. 0..1; 1: no cap.
  double cpu_cap = 1.0;
  std::uint32_t batch_size = 32;    ///< completions taken from a CQ at once; 1..32
  std::uint32_t batch_count = 512;  ///< batch buffers of each poller; 2..65536
  /// For CQs of raw verbs: the vectors that are dealt out to the group's pollers (see
  /// Dispatcher::completion_vectors). Empty: all that the device has.
  std::vector<int> completion_vectors;
  /// Rounds a source may be empty before it turns cold: in `event` mode, and in `adaptive` while
  /// other sources bring something. 0..2^20
  std::uint32_t hot_rounds = 64;
  std::uint32_t sources_max = 8192;  ///< sources one poller can hold; 1..2^20
};

struct PoolConfig {
  /// Several may have one name: the instances of one pool, each on a node of its own.
  std::string name = "default";
  std::optional<unsigned> node;  ///< OS index of the node whose pollers feed it; unset: all
  std::uint32_t workers = 1;     ///< 1..58 (ParkingLot::kMaxWorkers)
  std::vector<unsigned> cpus;    ///< OS CPU index of each worker, round-robin; empty: not pinned
  SpinMode spin = SpinMode::fixed;
  std::uint32_t spin_rounds = 64;  ///< searches for work before a worker parks (fixed); 0..2^20
  std::uint32_t lanes = 0;         ///< connections at once; 0: as many as connections_max. 0..2^20
  /// Lanes of order per_key, shared by all sources of that order: as many keys can be handled at
  /// once. 1..2^20
  std::uint32_t key_lanes = 256;
  std::vector<std::string> thread_names;  ///< of each; empty: "<name>-0", ...
};

/// A name for where completions go and in which order: AttachOptions::route.
struct RouteConfig {
  std::string name;
  std::string pool;     ///< empty: the first one
  std::string pollers;  ///< the group; empty: any
  Order order = Order::per_connection;
};

/// A plain description of the threads; every value has a default that works.
struct DispatcherConfig {
  Drive drive = Drive::own_threads;
  std::vector<PollerConfig> pollers = {PollerConfig{}};
  std::vector<PoolConfig> pools = {PoolConfig{}};
  std::vector<RouteConfig> routes;
  /// Shared receive queues that Dispatcher::attach_receive_queues() makes.
  std::vector<topology::SrqSettings> receive_queues;
  /// Of batch buffers and of the receive buffers of `receive_queues`.
  topology::HugePages huge_pages = topology::HugePages::none;
  std::optional<unsigned> memory_node;  ///< OS index; unset: each poller's own node
  std::optional<unsigned> control_cpu;  ///< of the control thread; unset: not pinned
  /// Lanes; each attached connection takes one. 0: as many as the descriptor limit allows, at most
  /// 4096. A number that the limit (ulimit -n) cannot carry is refused at start. 0..2^20
  std::uint32_t connections_max = 0;
  /// A handler that runs longer is reported (R2). 0: never. At most 24 h.
  std::chrono::milliseconds stall_threshold{200};
  /// How long a drain waits for LAST_WQE_REACHED on a device that may never send it (E3).
  std::chrono::milliseconds last_wqe_grace{100};
  /// What the control takes for now, for deadlines, and adaptive pollers, for gaps. Unset:
  /// steady_clock::now. A simulation puts a clock of its own here; any thread may ask it.
  std::function<std::chrono::steady_clock::time_point()> clock;

  /// What a plan comes to: threads pinned where it says, memory on their nodes.
  [[nodiscard]] static DispatcherConfig from_plan(const topology::Plan& plan);
  /// Checks every value; the message names the field, its value and the range.
  [[nodiscard]] Status validate() const;
  [[nodiscard]] std::uint32_t poller_count() const noexcept;  ///< in all groups together
};

/// Something the control has to tell. Called on the control thread (or in run_control_once()), one
/// at a time; must not block, may call any asynchronous dispatcher function. All optional.
struct DispatcherCallbacks {
  std::function<void(SourceId, const Status&)> on_source_failed;
  /// A handler has been running longer than stall_threshold; `inlined` if it holds up a poller.
  std::function<void(SourceId, bool inlined, std::chrono::nanoseconds running)> on_stall;
  /// A device async event (E5), after it was copied, acknowledged and routed.
  std::function<void(ibv_context*, const ibv_async_event&)> on_async_event;
  /// Completions of no attached connection (E1). Called on the poller that found them, noexcept in
  /// spirit: it must not throw, block, or dereference anything of the dead connection. Buffers of
  /// the source's receive pool that it does not take() are posted again after it.
  std::function<void(SourceId, std::span<const ibv_wc>)> on_orphans;
};

}  // namespace sluice
