// SPDX-License-Identifier: BSD-3-Clause
// A plan in words: JSON for programs, a table for people.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sluice/topology/plan.hpp"

namespace sluice::topology {
namespace {

using Json = nlohmann::ordered_json;

Json index_or_null(unsigned index) {
  return index == kNone ? Json(nullptr) : Json(index);
}

Json node_or_null(const Machine& machine, unsigned node) {
  return node == kNone ? Json(nullptr) : Json(machine.nodes()[node].os_index);
}

Json json_of(const Machine& machine, const PlannedThread& thread) {
  const Pu& pu = machine.pus()[thread.pu];
  return {{"name", thread.name},
          {"role", to_string(thread.role)},
          {"pu", thread.pu_os_index},
          {"core", index_or_null(pu.core)},
          {"l3", index_or_null(pu.l3)},
          {"node", node_or_null(machine, pu.node)},
          {"nic", thread.nic == kNone ? Json(nullptr) : Json(machine.nics()[thread.nic].name)},
          {"reason", thread.reason}};
}

Json json_of(const Cost& cost) {
  return {{"disallowed", cost.disallowed}, {"shared_cores", cost.shared_cores},
          {"off_node", cost.off_node},     {"busy_siblings", cost.busy_siblings},
          {"split_l3", cost.split_l3},     {"imbalance", cost.imbalance}};
}

constexpr std::size_t kColumns = 8;
using Row = std::array<std::string, kColumns>;

std::string text_of(unsigned index) {
  return index == kNone ? "-" : std::to_string(index);
}

Row row_of(const Machine& machine, const PlannedThread& thread) {
  const Pu& pu = machine.pus()[thread.pu];
  return {thread.name,
          to_string(thread.role),
          std::to_string(thread.pu_os_index),
          text_of(pu.core),
          text_of(pu.l3),
          pu.node == kNone ? "-" : std::to_string(machine.nodes()[pu.node].os_index),
          thread.nic == kNone ? "-" : machine.nics()[thread.nic].name,
          thread.reason};
}

/// Columns as wide as their widest cell; the last one, the reason, takes what it needs.
std::string aligned(const std::vector<Row>& rows) {
  std::array<std::size_t, kColumns> widths{};
  for (const Row& row : rows)
    for (std::size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const Row& row : rows) {
    for (std::size_t i = 0; i + 1 < kColumns; ++i) {
      const std::string blanks(widths[i] - row[i].size(), ' ');
      const bool is_number = i >= 2 && i <= 5;
      text += (is_number ? blanks + row[i] : row[i] + blanks) + "  ";
    }
    text += row.back() + '\n';
  }
  return text;
}

std::string listed(const char* title, const std::vector<std::string>& sentences) {
  if (sentences.empty()) return {};
  std::string text = std::string("\n") + title + ":\n";
  for (const std::string& sentence : sentences) text += "  - " + sentence + '\n';
  return text;
}

}  // namespace

std::string Plan::to_json() const {
  Json json{{"threads", Json::array()}, {"degraded", degraded}, {"cost", json_of(cost)}};
  for (const PlannedThread& thread : threads) json["threads"].push_back(json_of(machine, thread));
  // A device's name is whatever somebody typed: what is no UTF-8 is replaced, not thrown about.
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string Plan::to_table() const {
  std::vector<Row> rows{{"THREAD", "ROLE", "PU", "CORE", "L3", "NODE", "NIC", "REASON"}};
  for (const PlannedThread& thread : threads) rows.push_back(row_of(machine, thread));
  return aligned(rows) + listed("degraded", degraded) + listed("notes", notes) +
         "\ncost: " + cost.to_string() + '\n';
}

}  // namespace sluice::topology
