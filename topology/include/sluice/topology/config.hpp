// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/core/status.hpp"
#include "sluice/topology/modes.hpp"

namespace sluice {

namespace topology {

/// Where a value came from; later ones win.
enum class OriginKind : std::uint8_t { defaults, file, environment, flag };
struct Origin {
  OriginKind kind = OriginKind::defaults;
  std::string file;   ///< of kind file; or the variable's name; or the flag with its path
  unsigned line = 0;  ///< 1-based, 0 where there is none
  unsigned column = 0;
  /// "default", "sluice.toml:3:9", "SLUICE_POOLS__APPLY__WORKERS", "--set pools.apply.workers".
  [[nodiscard]] std::string to_string() const;
};

/// A named group of pollers: [pollers.NAME].
struct PollerGroup {
  std::string name = "default";
  /// The RDMA device whose node they go to; "auto": the machine's NICs in turn (none: anywhere).
  std::string device = "auto";
  std::string cpus = "auto";           ///< see Machine::locate; "auto": the placement's choice
  std::optional<std::uint32_t> count;  ///< 1..64 in all groups together; unset: "auto"
  WaitMode wait = WaitMode::event;
  /// Empty rounds before a source turns cold (event; adaptive, beside others that are hot). 0..2^20
  std::uint32_t hot_rounds = 64;
  /// adaptive: what waiting may add to a completion, on average; 0..1 s, 0: no target.
  std::chrono::nanoseconds latency_target{0};
  /// adaptive: the part of a CPU beyond which it does not spin, in any 100 ms; 0..1, 1: no cap.
  double cpu_cap = 1.0;
  std::uint32_t batch_size = 32;     ///< completions taken at once; 1..32
  std::uint32_t batch_count = 512;   ///< batch buffers of each poller; 2..65536
  std::uint32_t sources_max = 8192;  ///< sources one poller can hold; 1..2^20
  /// Completion vectors that its raw-verbs CQs are spread over; unset: "auto", all of the device.
  std::optional<std::vector<std::uint32_t>> completion_vectors;
};

/// Which nodes have workers of a pool.
enum class PoolNodes : std::uint8_t {
  pollers,  ///< those that have pollers which feed it: each such node gets workers of its own
  all,      ///< every node with usable CPUs
  any,      ///< one set of workers, wherever there is room: `workers` counts all of them
};
[[nodiscard]] const char* to_string(PoolNodes nodes) noexcept;

/// A pool of workers: [pools.NAME].
struct PoolSettings {
  std::string name = "default";
  std::optional<std::uint32_t>
      workers;  ///< of each node, or in all (nodes = "any"); 1..58; unset: "auto"
  PoolNodes nodes = PoolNodes::pollers;
  std::string cpus = "auto";
  SpinMode spin = SpinMode::fixed;
  std::uint32_t spin_rounds = 64;  ///< searches for work before a worker parks (fixed); 0..2^20
  /// Connections whose order it keeps at once, per node; unset: "auto", [dispatcher]
  /// connections_max. 1..2^20
  std::optional<std::uint32_t> lanes;
  std::uint32_t key_lanes = 256;  ///< of order per_key, shared by all keys, per node; 1..2^20
};

/// A shared receive queue: [srq.NAME].
struct SrqSettings {
  std::string name;
  std::uint32_t depth = 1024;        ///< receives kept posted; 1..2^20
  std::uint32_t buffer_size = 4096;  ///< bytes of each receive; 1..2^30
  std::optional<std::uint32_t>
      receive_cq_size;  ///< entries; unset: "auto", what depth needs. 1..2^22
  bool per_poller =
      true;  ///< share = "per_poller" | "all": one for each poller of the group, or a single one
  std::string pollers;  ///< the group; empty: the first one
  std::string route;    ///< where its completions go; empty: the first pool, per_connection
};

/// A name for (pool, order, pollers): [routes.NAME].
struct RouteSettings {
  std::string name;
  std::string pool;     ///< empty: the first one
  std::string pollers;  ///< the group; empty: any
  Order order = Order::per_connection;
};

enum class HugePages : std::uint8_t { none, transparent, mib2, gib1 };
[[nodiscard]] const char* to_string(HugePages pages) noexcept;

/// [memory]: of batch buffers, rings, and receive buffers made through a SrqSettings.
struct MemorySettings {
  HugePages huge_pages = HugePages::none;  ///< falls back to ordinary pages, and says so
  /// "poller": each poller's node; or a node's OS index as text.
  /// 0..1023.
  std::string node = "poller";
};

/// [dispatcher]
struct GeneralSettings {
  std::uint32_t connections_max = 0;  ///< 1..2^20; 0: "auto", what `ulimit -n` carries
  /// 0..1 h; 0: never.
  std::chrono::nanoseconds stall_threshold = std::chrono::milliseconds(200);
  std::chrono::nanoseconds last_wqe_grace = std::chrono::milliseconds(100);  ///< 0..1 h
  std::string housekeeping_cpus = "auto";  ///< of the control thread
};

enum class Severity : std::uint8_t { warning, error };
/// Something to say about a configuration, for people.
struct Diagnostic {
  Severity severity = Severity::error;
  Origin origin;
  std::string path;  ///< "pools.apply.workers"; empty: of the whole
  /// What is wrong and what to do, with the nearest valid name. Stands for itself: it names the
  /// key. Safe for a terminal, whatever was read.
  std::string message;
  /// "sluice.toml:3:1: error: there is no key 'wrokers' in [pools.apply]; did you mean 'workers'?"
  [[nodiscard]] std::string to_string() const;
};

/// A value laid over the file: from `--set pools.apply.workers=6`.
struct Override {
  std::string path;
  std::string value;  ///< as in TOML; a bare word is a string
  std::string flag;   ///< how people know it: "--set"
};

struct ConfigInput {
  std::string text;             ///< the file's content; empty: none
  std::string file = "config";  ///< its name in messages
  /// NAME=VALUE: those that begin with SLUICE_ count. SLUICE_POOLS__APPLY__WORKERS=6: the path in
  /// capitals, '.' as two underscores.
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<Override> overrides;
};

struct Config;
struct ConfigOutcome;

/// Everything that one TOML file says about threads and memory. `Config{}` is a good plan: one
/// pollers group and one pool, all "auto". Groups are in the order of the file, and the first one
/// of a section is its default; a section has 256 at most, with names of [a-z0-9_-], up to 32.
/// Machine-independent: CPU sets are text until they meet a Machine in place(). Thread-safety: a
/// value.
struct Config {
  std::vector<PollerGroup> pollers = {PollerGroup{}};
  std::vector<PoolSettings> pools = {PoolSettings{}};
  std::vector<SrqSettings> srqs;
  std::vector<RouteSettings> routes;
  MemorySettings memory;
  GeneralSettings general;
  /// Of each value that is not a default, by path ("pools.apply.workers").
  std::map<std::string, Origin, std::less<>> origins;

  /// A file of 1 MiB at most and this process's environment. Errors are joined, a line each;
  /// warnings are dropped (read() has them). Fails with invalid_argument (what is in it, or that
  /// there is none), permission_denied, or io_error. Not while another thread changes the
  /// environment.
  [[nodiscard]] static Result<Config> load(const std::string& path);
  /// Defaults < file < environment < flags. All that is wrong at once, not the first only: up to
  /// 100 diagnostics, in the order of the file, then of variables by name, then of flags. Any bytes
  /// may be in the input. Thread-safe. No I/O.
  [[nodiscard]] static ConfigOutcome read(const ConfigInput& input);

  /// The origin of a path: a default where nothing else is known.
  [[nodiscard]] Origin origin_of(std::string_view path) const;
  /// Every leaf: (path, value as TOML), in the order of the documentation.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> values() const;
  /// A TOML file that means this configuration, if its values are within their ranges: read again,
  /// values() are equal. `with_origins`: a comment behind each value.
  [[nodiscard]] std::string to_toml(bool with_origins) const;
  /// The defaults as a commented TOML file: range, unit and meaning of every key.
  [[nodiscard]] static std::string documented_defaults();
};

struct ConfigOutcome {
  Config config;  ///< as far as it could be read
  std::vector<Diagnostic> diagnostics;
  [[nodiscard]] bool ok() const noexcept;       ///< no errors; warnings may be there
  [[nodiscard]] std::string to_string() const;  ///< a line each
};

/// What another configuration would change. A group that comes or goes is one change, with an
/// inline table of what is no default in it. `path` "pools" or "pollers": another group is the
/// first one.
struct ConfigChange {
  std::string path;
  std::string before;  ///< as TOML; empty: was not there
  std::string after;   ///< as TOML; empty: will not be there
  /// A running dispatcher takes nothing over yet: everything needs a restart of it.
  [[nodiscard]] std::string to_string() const;
};
[[nodiscard]] std::vector<ConfigChange> diff(const Config& running, const Config& wanted);

/// This process's environment, for ConfigInput. Not while another thread changes it (setenv(3)).
[[nodiscard]] std::vector<std::pair<std::string, std::string>> process_environment();

}  // namespace topology

using topology::Config;

}  // namespace sluice
