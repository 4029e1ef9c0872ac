// SPDX-License-Identifier: BSD-3-Clause
#include "systems.hpp"

#include <fmt/format.h>
#include <hiredis/hiredis.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "../figures/programs.hpp"

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// What must come comes within this; only a hang lasts so long.
constexpr std::chrono::seconds kPatience{30};
/// A system is idle when all its processes together used less CPU than this share over this time.
constexpr double kIdleMs = 20;
constexpr double kIdleShare = 0.05;

/// What follows `key` and `between` in one of the pieces that `separator` stands between.
std::optional<std::string> value_of(std::string_view text, std::string_view key, char between,
                                    std::string_view separator) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    const std::string_view piece = text.substr(at, end - at);
    if (piece.size() > key.size() && piece.starts_with(key) && piece[key.size()] == between)
      return std::string(piece.substr(key.size() + 1));
    at = end + separator.size();
  }
  return std::nullopt;
}

/// The value of an INFO's "key:value" line; nothing if there is none.
std::optional<std::string> field(std::string_view info, std::string_view key) {
  return value_of(info, key, ':', "\r\n");
}

/// The value of "key=value" in a line of such, separated by commas.
std::optional<std::string> part(std::string_view line, std::string_view key) {
  return value_of(line, key, '=', ",");
}

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// A system whose first process, the primary, is asked how it is.
class Asked : public System {
 protected:
  [[nodiscard]] Status ask_at(std::uint16_t port) {
    port_ = port;
    // It may not listen yet.
    SLUICE_RETURN_IF_ERROR(await("it listens", [&]() -> Result<bool> {
      auto connection = connect_to(port);
      if (!connection) return false;
      connection_ = std::move(*connection);
      return true;
    }));
    return {};
  }
  [[nodiscard]] Result<std::string> info() { return ask(*connection_, "INFO replication"); }
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

 private:
  std::uint16_t port_ = 0;
  RedisConnection connection_;
};

class Redis final : public Asked {
 public:
  explicit Redis(Level level) : level_(level) {}

  [[nodiscard]] Status start_in(const DataFolder& folder) {
    auto primary = reserve_port();
    if (!primary) return primary.status();
    auto replica = reserve_port();
    if (!replica) return replica.status();
    SLUICE_RETURN_IF_ERROR(start_one(folder, "primary", *primary, {}));
    SLUICE_RETURN_IF_ERROR(start_one(folder, "replica", *replica,
                                     {"--replicaof", "127.0.0.1", fmt::to_string(*primary)}));
    SLUICE_RETURN_IF_ERROR(ask_at(*primary));
    return await("the replica is online", [&]() -> Result<bool> {
      auto text = info();
      if (!text) return text.status();
      return part(field(*text, "slave0").value_or(""), "state") == "online";
    });
  }

  [[nodiscard]] Result<LoadClients> clients(Level level, unsigned count) override {
    SLUICE_CHECK(level == level_, "this Redis was started for another level");
    return LoadClients::connect(port(), count, "", "*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$1\r\n0\r\n",
                                "+OK\r\n:1\r\n");
  }

 private:
  /// WAIT has said so.
  [[nodiscard]] Result<bool> all_done() override { return true; }

  [[nodiscard]] Status start_one(const DataFolder& folder, const std::string& role,
                                 std::uint16_t number, const std::vector<std::string>& more) {
    const std::string name = fmt::format("redis.{}.{}", to_string(level_), role);
    auto data = folder.make_folder(name);
    if (!data) return data.status();
    // No snapshots, no rewriting of the file, and the replica is served at once: what Redis is
    // measured with is the writes alone.
    std::vector<std::string> words{"redis-server",
                                   "--port",
                                   fmt::to_string(number),
                                   "--bind",
                                   "127.0.0.1",
                                   "--dir",
                                   *data,
                                   "--save",
                                   "",
                                   "--appendonly",
                                   level_ == Level::quorum_disk ? "yes" : "no",
                                   "--appendfsync",
                                   "always",
                                   "--auto-aof-rewrite-percentage",
                                   "0",
                                   "--repl-diskless-sync-delay",
                                   "0"};
    words.insert(words.end(), more.begin(), more.end());
    return start(std::move(words), folder.path() + "/" + name + ".log");
  }

  const Level level_;
};

class SluiceKv final : public Asked {
 public:
  [[nodiscard]] Status start_in(const DataFolder& folder) {
    struct Node {
      std::string name;
      std::uint16_t port = 0, replication = 0;
    };
    std::vector<Node> nodes{{"a"}, {"b"}};
    std::vector<std::string> configuration{"--primary", "a"};
    for (Node& node : nodes) {
      for (std::uint16_t* const number : {&node.port, &node.replication}) {
        auto reserved = reserve_port();
        if (!reserved) return reserved.status();
        *number = *reserved;
      }
      configuration.emplace_back("--static");
      configuration.push_back(
          fmt::format("{}=127.0.0.1:{},127.0.0.1:{}", node.name, node.port, node.replication));
    }
    for (const Node& node : nodes) {
      auto data = folder.make_folder("sluice-kv." + node.name);
      if (!data) return data.status();
      std::vector<std::string> words{program_path("softrdma-run"),
                                     program_path("sluice-kv"),
                                     "--data",
                                     *data,
                                     "--port",
                                     fmt::to_string(node.port),
                                     "--node",
                                     node.name,
                                     "--cluster",
                                     "bench",
                                     "--replication",
                                     fmt::format("127.0.0.1:{}", node.replication)};
      words.insert(words.end(), configuration.begin(), configuration.end());
      SLUICE_RETURN_IF_ERROR(start(std::move(words), *data + ".log"));
    }
    SLUICE_RETURN_IF_ERROR(ask_at(nodes[0].port));
    return await("it leads and the replica is in sync", [&]() -> Result<bool> {
      auto text = info();
      if (!text) return text.status();
      return field(*text, "role") == "primary" &&
             part(field(*text, "replica0").value_or(""), "in_sync") == "yes";
    });
  }

  [[nodiscard]] Result<LoadClients> clients(Level level, unsigned count) override {
    return LoadClients::connect(port(), count, fmt::format("DURABILITY {}", to_string(level)), "",
                                "+OK\r\n");
  }

 private:
  /// At quorum_memory the disks may be behind.
  [[nodiscard]] Result<bool> all_done() override {
    auto text = info();
    if (!text) return text.status();
    const auto last = field(*text, "last_index");
    const std::string replica = field(*text, "replica0").value_or("");
    return last && field(*text, "durable_index") == last && field(*text, "applied_index") == last &&
           part(replica, "durable") == last && part(replica, "applied") == last;
  }
};

template <typename Kind>
Result<std::unique_ptr<System>> started(std::unique_ptr<Kind> system, const DataFolder& folder,
                                        const std::string& name) {
  if (const Status status = system->start_in(folder); !status.ok())
    return status.with_context(name);
  return std::unique_ptr<System>(std::move(system));
}

}  // namespace

const char* to_string(Level level) noexcept {
  return level == Level::quorum_memory ? "quorum_memory" : "quorum_disk";
}

// --- System ------------------------------------------------------------------------------------

Status System::start(std::vector<std::string> words, std::string log) {
  auto process = ServerProcess::start(std::move(words), std::move(log));
  if (!process) return process.status();
  processes_.push_back(std::move(*process));
  return {};
}

Status System::check() {
  for (ServerProcess& process : processes_) SLUICE_RETURN_IF_ERROR(process.check());
  return {};
}

Result<std::uint16_t> System::reserve_port() {
  auto port = ReservedPort::take();
  if (!port) return port.status();
  ports_.push_back(std::move(*port));
  return ports_.back().number();
}

template <typename Question>
Status System::await(const char* what, Question question) {
  for (const auto begin = Clock::now(); Clock::now() - begin < kPatience;) {
    Result<bool> answer = question();
    SLUICE_RETURN_IF_ERROR(check());  // says more than a lost connection
    if (!answer) return answer.status();
    if (*answer) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {StatusCode::timed_out,
          fmt::format("waited {} s in vain until {}", kPatience.count(), what)};
}

double System::cpu_ms() const {
  double sum = 0;
  for (const ServerProcess& process : processes_) sum += process.cpu_ms();
  return sum;
}

Result<double> System::settle() {
  const auto begin = Clock::now();
  SLUICE_RETURN_IF_ERROR(await("all is done that was acknowledged", [&] { return all_done(); }));
  for (double before = cpu_ms(); milliseconds_since(begin) < kIdleLimitMs;) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(kIdleMs));
    const double now = cpu_ms();
    if (now - before < kIdleShare * kIdleMs) return milliseconds_since(begin) - kIdleMs;
    before = now;
  }
  SLUICE_RETURN_IF_ERROR(check());
  return kIdleLimitMs;
}

// --- The two -----------------------------------------------------------------------------------

Result<std::unique_ptr<System>> start_redis(Level level, const DataFolder& folder) {
  return started(std::make_unique<Redis>(level), folder,
                 fmt::format("redis-server for {}", to_string(level)));
}

Result<std::unique_ptr<System>> start_sluice_kv(const DataFolder& folder) {
  return started(std::make_unique<SluiceKv>(), folder, "sluice-kv");
}

std::string missing_systems() {
  if (::access(program_path("sluice-kv").c_str(), X_OK) != 0)
    return "sluice-kv is not built (it needs Debian's packages of core/cmake/packages.txt, [kv])";
  if (::access(program_path("softrdma-run").c_str(), X_OK) != 0) return "softrdma-run is not built";
  if (find_in_path("redis-server").empty())
    return "redis-server is not in PATH (Debian's package redis-server)";
  return {};
}

}  // namespace sluice::bench
