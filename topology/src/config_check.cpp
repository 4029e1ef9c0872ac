// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config_report.hpp"
#include "config_schema.hpp"
#include "config_text.hpp"

namespace sluice::topology::configuration {

namespace {

template <typename Group>
const Group* find_group(const std::vector<Group>& groups, std::string_view name) {
  for (const Group& group : groups) {
    if (group.name == name) return &group;
  }
  return nullptr;
}

/// Tells a problem where the value stands that it is about.
void say(const Config& config, Report& report, const std::string& path,
         const std::string& message) {
  report.error(config.origin_of(path), path, path + ": " + message);
}

void check_poller_count(const Config& config, Report& report) {
  std::uint64_t total = 0;
  for (const PollerGroup& group : config.pollers) {
    const std::uint64_t before = total;
    total += group.count.value_or(1);
    if (before > kPollersMax || total <= kPollersMax) continue;
    const std::string path = "pollers." + group.name + ".count";
    say(config, report, path,
        "with this group there are more than " + std::to_string(kPollersMax) +
            " pollers, the most that all groups together can have (\"auto\" is one at least)");
  }
}

/// What belongs to one mode says nothing in another: somebody has forgotten the mode.
void check_waits(const Config& config, Report& report) {
  const PollerGroup defaults;
  const auto unused = [&](const PollerGroup& group, const std::string& key) {
    const std::string path = "pollers." + group.name + ".wait." + key;
    report.warning(config.origin_of(path), path,
                   path + ": has no effect with mode \"" + to_string(group.wait) +
                       "\"; it is for \"adaptive\"");
  };
  for (const PollerGroup& group : config.pollers) {
    if (group.wait == WaitMode::adaptive) continue;
    if (group.latency_target != defaults.latency_target) unused(group, "latency_target");
    if (group.cpu_cap < defaults.cpu_cap) unused(group, "cpu_cap");
  }
}

/// A key that names a group names one that there is.
void check_reference(const Config& config, Report& report, const KeySpec& key, std::size_t group) {
  const std::string name = std::get<std::string>(key.get(config, group));
  if (name.empty()) return;
  const Section target = find_section(key.choices.front())->section;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < group_count(config, target); ++i) {
    if (group_name(config, target, i) == name) return;
    names.push_back(group_name(config, target, i));
  }
  std::string message =
      "there is no [" + std::string(key.choices.front()) + '.' + escaped(name, kValueMax) + ']';
  if (const auto near = nearest(name, names); !near.empty())
    message += "; did you mean \"" + near + "\"?";
  else if (!names.empty())
    message += "; the first that there is: \"" + escaped(names.front(), kValueMax) + '"';
  say(config, report, path_of(config, key, group), message);
}

void check_references(const Config& config, Report& report) {
  for (const KeySpec& key : keys()) {
    if (key.kind != Kind::group) continue;
    for (std::size_t i = 0; i < group_count(config, key.section); ++i)
      check_reference(config, report, key, i);
  }
}

void check_routes(const Config& config, Report& report) {
  for (const RouteSettings& route : config.routes) {
    if (route.order != Order::inlined || route.pool.empty()) continue;
    say(config, report, "routes." + route.name + ".pool",
        "order = \"inline\" handles completions on the poller's thread, in no pool; leave one of "
        "the two out");
  }
}

void check_srqs(const Config& config, Report& report) {
  for (const SrqSettings& srq : config.srqs) {
    const std::string table = "srq." + srq.name;
    if (srq.receive_cq_size && *srq.receive_cq_size < srq.depth)
      say(config, report, table + ".receive_cq_size",
          std::to_string(*srq.receive_cq_size) +
              " entries do not hold the completions of depth = " + std::to_string(srq.depth) +
              " receives; make it as large, or \"auto\"");
    const RouteSettings* route = find_group(config.routes, srq.route);
    if (route != nullptr && route->order == Order::per_key)
      say(config, report, table + ".route",
          "the route \"" + route->name +
              "\" has order = \"per_key\", and a queue that is made from the configuration has no "
              "key function; name a route of another order");
    if (route == nullptr || route->pollers.empty() || config.pollers.empty()) continue;
    const std::string& own = srq.pollers.empty() ? config.pollers.front().name : srq.pollers;
    const bool both_exist =
        find_group(config.pollers, own) && find_group(config.pollers, route->pollers);
    if (both_exist && own != route->pollers)
      say(config, report, table + ".route",
          "the route \"" + route->name + "\" is for the pollers \"" + route->pollers +
              "\", and this queue is served by \"" + own + "\"; name the same in both");
  }
}

std::string without_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// Legal, and surely not what somebody wants to read a year from now.
void check_lookalikes(const Config& config, Report& report) {
  for (const SectionSpec& section : sections()) {
    if (!section.grouped) continue;
    std::map<std::string, std::string> seen;
    for (std::size_t i = 0; i < group_count(config, section.section); ++i) {
      const std::string& name = group_name(config, section.section, i);
      const auto [other, fresh] = seen.emplace(without_dashes(name), name);
      if (fresh) continue;
      const std::string path = path_of_table(config, section.section, i);
      report.warning({}, path,
                     path + ": differs from \"" + other->second +
                         "\" by '-' and '_' only, which variables cannot tell apart");
    }
  }
}

}  // namespace

void check_together(const Config& config, Report& report) {
  check_poller_count(config, report);
  check_waits(config, report);
  check_references(config, report);
  check_routes(config, report);
  check_srqs(config, report);
  check_lookalikes(config, report);
}

}  // namespace sluice::topology::configuration
