// SPDX-License-Identifier: BSD-3-Clause
#include "config_schema.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <type_traits>

#include "config_text.hpp"

namespace sluice::topology::configuration {

namespace {

template <Section S, typename AnyConfig>
auto& part(AnyConfig& config, [[maybe_unused]] std::size_t group) {
  if constexpr (S == Section::pollers) return config.pollers[group];
  if constexpr (S == Section::pools) return config.pools[group];
  if constexpr (S == Section::srq) return config.srqs[group];
  if constexpr (S == Section::routes) return config.routes[group];
  if constexpr (S == Section::memory) return config.memory;
  if constexpr (S == Section::dispatcher) return config.general;
}

template <typename T>
Setting to_setting(const T& value) {
  if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, double>) {
    return value;
  } else if constexpr (std::is_same_v<T, std::chrono::nanoseconds>) {
    return static_cast<std::uint64_t>(value.count());
  } else {
    return static_cast<std::uint64_t>(value);  // a number, a bool or an enum: a choice's index
  }
}
template <typename T>
Setting to_setting(const std::optional<T>& value) {
  if (!value) return Auto{};
  if constexpr (std::is_same_v<T, std::uint32_t>)
    return std::uint64_t{*value};
  else
    return *value;
}

template <typename T>
void from_setting(const Setting& setting, T& value) {
  if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, double>) {
    value = std::get<T>(setting);
  } else if constexpr (std::is_same_v<T, std::chrono::nanoseconds>) {
    value = T(static_cast<typename T::rep>(std::get<std::uint64_t>(setting)));
  } else {
    // Auto of what has no optional is 0: connections_max.
    const auto* number = std::get_if<std::uint64_t>(&setting);
    value = static_cast<T>(number == nullptr ? 0 : *number);
  }
}
template <typename T>
void from_setting(const Setting& setting, std::optional<T>& value) {
  using Held = std::conditional_t<std::is_same_v<T, std::uint32_t>, std::uint64_t, T>;
  const auto* held = std::get_if<Held>(&setting);
  value = held == nullptr ? std::nullopt : std::optional<T>(static_cast<T>(*held));
}

/// What differs between keys beside where they are kept.
struct Traits {
  std::string_view name;
  Kind kind;
  std::uint64_t min = 0;
  std::uint64_t max = 0;
  bool auto_allowed = false;
  std::vector<std::string_view> choices = {};
};

template <Section S, auto Member>
KeySpec key(const Traits& traits, std::string_view doc) {
  return {S,
          traits.name,
          traits.kind,
          traits.min,
          traits.max,
          traits.auto_allowed,
          traits.choices,
          doc,
          [](const Config& config, std::size_t group) {
            return to_setting(part<S>(config, group).*Member);
          },
          [](Config& config, std::size_t group, const Setting& setting) {
            from_setting(setting, part<S>(config, group).*Member);
          }};
}

constexpr std::uint64_t kMillion = 1U << 20;
constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kHour = 3'600'000'000'000;

void append_pollers(std::vector<KeySpec>& all) {
  constexpr auto S = Section::pollers;
  all.push_back(key<S, &PollerGroup::device>(
      {"device", Kind::device, 0, 0, true},
      "The RDMA device whose node the pollers go to. auto: the machine's devices in turn; without "
      "one, anywhere."));
  all.push_back(key<S, &PollerGroup::cpus>(
      {"cpus", Kind::cpus, 0, 0, true},
      "Where they run: CPUs by the numbers of taskset(1), or hwloc's objects. auto: whole cores "
      "near the device."));
  all.push_back(
      key<S, &PollerGroup::count>({"count", Kind::count, 1, kPollersMax, true},
                                  "Poller threads. All groups together have 64 at most."));
  all.push_back(key<S, &PollerGroup::wait>(
      {"wait.mode", Kind::choice, 0, 0, false, {"busy", "event", "adaptive"}},
      "What a poller does when nothing completes. event: sleeps on the completion channels as soon "
      "as every CQ was seen empty. busy: polls without a pause; lowest latency, a whole core each. "
      "adaptive: learns from the gaps how long to go on polling before it pays to sleep. "
      "wait = \"busy\" is short for it."));
  all.push_back(
      key<S, &PollerGroup::hot_rounds>({"wait.hot_rounds", Kind::count, 0, kMillion},
                                       "Empty rounds before a source turns cold; of mode event, "
                                       "and of adaptive while other sources bring something."));
  all.push_back(key<S, &PollerGroup::latency_target>(
      {"wait.latency_target", Kind::duration, 0, kSecond},
      "What waiting may add to a completion, on average; of mode adaptive, which polls longer for "
      "it, as far as cpu_cap lets it. \"0\": as long as it is worth its CPU time."));
  all.push_back(key<S, &PollerGroup::cpu_cap>(
      {"wait.cpu_cap", Kind::fraction},
      "Of one CPU: a poller that was awake for more, in the last 100 ms, sleeps when it finds "
      "nothing; of mode adaptive. 1.0: no cap."));
  all.push_back(key<S, &PollerGroup::batch_size>(
      {"batch_size", Kind::count, 1, 32},
      "Completions that are taken from a CQ at once. Fewer: sooner on their way; more: cheaper."));
  all.push_back(key<S, &PollerGroup::batch_count>({"batch_count", Kind::count, 2, 65536},
                                                  "Batch buffers of each poller."));
  all.push_back(key<S, &PollerGroup::sources_max>({"sources_max", Kind::count, 1, kMillion},
                                                  "Sources that one poller can hold."));
  all.push_back(key<S, &PollerGroup::completion_vectors>(
      {"completion_vectors", Kind::vectors, 0, 65535, true},
      "Completion vectors that raw-verbs CQs are spread over. auto: all of the device. librpma "
      "chooses its own."));
}

void append_pools(std::vector<KeySpec>& all) {
  constexpr auto S = Section::pools;
  all.push_back(key<S, &PoolSettings::workers>(
      {"workers", Kind::count, 1, 58, true},
      "Worker threads of each node that has some; with nodes = \"any\", in all."));
  all.push_back(key<S, &PoolSettings::nodes>(
      {"nodes", Kind::choice, 0, 0, false, {"pollers", "all", "any"}},
      "Which NUMA nodes have workers. pollers: those with pollers that feed the pool. all: every "
      "node with usable CPUs. any: one set of workers, wherever there is room."));
  all.push_back(
      key<S, &PoolSettings::cpus>({"cpus", Kind::cpus, 0, 0, true},
                                  "Where they run; as for pollers. auto: beside the pollers."));
  all.push_back(key<S, &PoolSettings::spin>(
      {"spin", Kind::choice, 0, 0, false, {"fixed", "adaptive"}},
      "How long a worker searches for work before it parks. fixed: spin_rounds. adaptive: as long "
      "as it pays, learnt from the gaps."));
  all.push_back(
      key<S, &PoolSettings::spin_rounds>({"spin_rounds", Kind::count, 0, kMillion},
                                         "Searches for work before a worker parks; of fixed."));
  all.push_back(key<S, &PoolSettings::lanes>(
      {"lanes", Kind::count, 1, kMillion, true},
      "Connections whose order is kept at once, per node. auto: connections_max of [dispatcher]."));
  all.push_back(
      key<S, &PoolSettings::key_lanes>({"key_lanes", Kind::count, 1, kMillion},
                                       "Lanes of order per_key, per node: as many keys are handled "
                                       "at once at most. Keys share them; "
                                       "a slow handler holds up the others of its lane."));
}

void append_srqs(std::vector<KeySpec>& all) {
  constexpr auto S = Section::srq;
  all.push_back(key<S, &SrqSettings::depth>({"depth", Kind::count, 1, kMillion},
                                            "Receives that are kept posted."));
  all.push_back(key<S, &SrqSettings::buffer_size>({"buffer_size", Kind::size, 1, 1U << 30U},
                                                  "Bytes of each receive."));
  all.push_back(key<S, &SrqSettings::receive_cq_size>(
      {"receive_cq_size", Kind::count, 1, 1U << 22U, true},
      "Entries of the receive CQ: depth at least. auto: what depth needs."));
  all.push_back(key<S, &SrqSettings::per_poller>(
      {"share", Kind::choice, 0, 0, false, {"all", "per_poller"}},
      "per_poller: one queue for each poller of the group. all: a single one."));
  all.push_back(
      key<S, &SrqSettings::pollers>({"pollers", Kind::group, 0, 0, false, {"pollers"}},
                                    "The group of pollers that serves it. \"\": the first."));
  all.push_back(key<S, &SrqSettings::route>(
      {"route", Kind::group, 0, 0, false, {"routes"}},
      "Where its completions go. \"\": to the first pool, in order per connection."));
}

void append_routes(std::vector<KeySpec>& all) {
  constexpr auto S = Section::routes;
  all.push_back(key<S, &RouteSettings::pool>(
      {"pool", Kind::group, 0, 0, false, {"pools"}},
      "The pool whose workers handle the completions. \"\": the first; inline has none."));
  all.push_back(
      key<S, &RouteSettings::pollers>({"pollers", Kind::group, 0, 0, false, {"pollers"}},
                                      "The pollers that may own its sources. \"\": any."));
  all.push_back(key<S, &RouteSettings::order>(
      {"order", Kind::choice, 0, 0, false, {"inline", "none", "per_connection", "per_key"}},
      "per_connection: each connection's completions in their order, on any worker. per_key: the "
      "same for each key; its sources are attached with a key function. none: any order. inline: "
      "on "
      "the poller's thread, in no pool."));
}

void append_general(std::vector<KeySpec>& all) {
  constexpr auto M = Section::memory;
  constexpr auto D = Section::dispatcher;
  all.push_back(key<M, &MemorySettings::huge_pages>(
      {"huge_pages", Kind::choice, 0, 0, false, {"none", "transparent", "2MiB", "1GiB"}},
      "Pages that buffers are made of. Where there are none left, ordinary ones, with a warning."));
  all.push_back(key<M, &MemorySettings::node>(
      {"node", Kind::node, 0, 1023}, "The NUMA node of the memory. poller: each poller's own."));
  all.push_back(key<D, &GeneralSettings::connections_max>(
      {"connections_max", Kind::count, 1, kMillion, true},
      "Connections at once. auto: what `ulimit -n` carries."));
  all.push_back(key<D, &GeneralSettings::stall_threshold>(
      {"stall_threshold", Kind::duration, 0, kHour},
      "How long a handler may run before it is reported as stalled. \"0\": never."));
  all.push_back(key<D, &GeneralSettings::last_wqe_grace>(
      {"last_wqe_grace", Kind::duration, 0, kHour},
      "How long a drain waits for the event that a queue pair on a shared receive queue took its "
      "last receive."));
  all.push_back(key<D, &GeneralSettings::housekeeping_cpus>(
      {"housekeeping_cpus", Kind::cpus, 0, 0, true},
      "Where the control thread runs. auto: what pollers and workers leave free."));
}

std::string range_of(const KeySpec& key) {
  return " from " + std::to_string(key.min) + " to " + std::to_string(key.max);
}

std::string listed(const std::vector<std::string_view>& words) {
  std::string list;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i != 0) list += i + 1 == words.size() ? " or " : ", ";
    list += '"' + std::string(words[i]) + '"';
  }
  return list;
}

}  // namespace

const std::array<SectionSpec, 6>& sections() noexcept {
  static constexpr std::array<SectionSpec, 6> kSections = {{
      {Section::pollers, "pollers", true,
       "Groups of poller threads, which take completions from CQs. Without any there is one, "
       "\"default\"; the first in the file is meant where none is named."},
      {Section::pools, "pools", true,
       "Pools of worker threads, which run handlers. Without any there is one, \"default\"; the "
       "first in the file is meant where none is named."},
      {Section::srq, "srq", true, "Shared receive queues. None unless named."},
      {Section::routes, "routes", true,
       "Names for a pool, an order and pollers, to attach sources by. None unless named."},
      {Section::memory, "memory", false, "Memory of batches, rings and receive buffers."},
      {Section::dispatcher, "dispatcher", false, "What is of no group."},
  }};
  return kSections;
}

const SectionSpec* find_section(std::string_view name) noexcept {
  for (const SectionSpec& spec : sections()) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

const SectionSpec& spec_of(Section section) noexcept {
  return sections()[static_cast<std::size_t>(section)];
}

const std::vector<KeySpec>& keys() {
  static const std::vector<KeySpec> kKeys = [] {
    std::vector<KeySpec> all;
    append_pollers(all);
    append_pools(all);
    append_srqs(all);
    append_routes(all);
    append_general(all);
    return all;
  }();
  return kKeys;
}

const KeySpec* find_key(Section section, std::string_view name) {
  for (const KeySpec& key : keys()) {
    if (key.section == section && key.name == name) return &key;
  }
  return nullptr;
}

std::size_t group_count(const Config& config, Section section) noexcept {
  switch (section) {
    case Section::pollers: return config.pollers.size();
    case Section::pools: return config.pools.size();
    case Section::srq: return config.srqs.size();
    case Section::routes: return config.routes.size();
    case Section::memory:
    case Section::dispatcher: break;
  }
  return 1;
}

const std::string& group_name(const Config& config, Section section, std::size_t group) {
  static const std::string kNone;
  switch (section) {
    case Section::pollers: return config.pollers[group].name;
    case Section::pools: return config.pools[group].name;
    case Section::srq: return config.srqs[group].name;
    case Section::routes: return config.routes[group].name;
    case Section::memory:
    case Section::dispatcher: break;
  }
  return kNone;
}

void add_group(Config& config, Section section, const std::string& name) {
  switch (section) {
    case Section::pollers: config.pollers.emplace_back().name = name; break;
    case Section::pools: config.pools.emplace_back().name = name; break;
    case Section::srq: config.srqs.emplace_back().name = name; break;
    case Section::routes: config.routes.emplace_back().name = name; break;
    case Section::memory:
    case Section::dispatcher: break;
  }
}

std::string path_of_table(const Config& config, Section section, std::size_t group) {
  std::string path(spec_of(section).name);
  if (spec_of(section).grouped) path += '.' + group_name(config, section, group);
  return path;
}

std::string path_of(const Config& config, const KeySpec& key, std::size_t group) {
  return path_of_table(config, key.section, group) + '.' + std::string(key.name);
}

std::string format(const KeySpec& key, const Setting& setting) {
  const auto* number = std::get_if<std::uint64_t>(&setting);
  if (std::holds_alternative<Auto>(setting)) return "\"auto\"";
  if (number != nullptr) {
    if (key.auto_allowed && *number == 0) return "\"auto\"";
    if (key.kind == Kind::size) return format_size(*number);
    if (key.kind == Kind::duration) return format_duration(*number);
    if (key.kind != Kind::choice) return std::to_string(*number);
    return *number < key.choices.size() ? toml_string(key.choices[*number]) : "\"unknown\"";
  }
  if (const auto* fraction = std::get_if<double>(&setting)) return format_fraction(*fraction);
  if (const auto* text = std::get_if<std::string>(&setting)) {
    return key.kind == Kind::node && parse_whole_number(*text) ? *text : toml_string(*text);
  }
  std::string list;
  for (const std::uint32_t vector : std::get<std::vector<std::uint32_t>>(setting))
    list += (list.empty() ? "" : ", ") + std::to_string(vector);
  return '[' + list + ']';
}

std::string expectation(const KeySpec& key) {
  const std::string or_auto = key.auto_allowed ? ", or \"auto\"" : "";
  switch (key.kind) {
    case Kind::count: return "a whole number" + range_of(key) + or_auto;
    case Kind::size: return "bytes" + range_of(key) + ", or with a unit such as \"4KiB\"";
    case Kind::duration:
      return "a whole number with a unit, from \"0\" to " + format_duration(key.max) +
             ", such as \"200ms\"; units: ns, us, ms, s";
    case Kind::fraction: return "a number from 0 to 1, such as 0.5";
    case Kind::choice: return listed(key.choices);
    case Kind::cpus:
      return "CPUs such as \"0-3,8\", places such as \"numa:1\" or \"l3:0.core:0-3\"" + or_auto;
    case Kind::device: return "the name of an RDMA device such as \"mlx5_0\"" + or_auto;
    case Kind::group:
      return "the name of a group of [" + std::string(key.choices.front()) + "], or \"\"";
    case Kind::vectors:
      return "different whole numbers" + range_of(key) + " in a list such as [0, 1]" + or_auto;
    case Kind::node: return "\"poller\", or the number of a NUMA node" + range_of(key);
  }
  return {};
}

}  // namespace sluice::topology::configuration
