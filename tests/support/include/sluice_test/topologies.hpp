// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sluice::test {

/// One of the topologies that the project ships.
inline std::string own_topology(const std::string& file) {
  return std::string(SLUICE_SOURCE_DIR) + "/tests/unit/topology/data/" + file;
}

/// A real machine's, where the collection lies beside the project; else empty.
inline std::string shared_topology(const std::string& file) {
  const std::string path = std::string(SLUICE_SOURCE_DIR) + "/../shared/topologies/" + file;
  return std::filesystem::exists(path) ? path : std::string();
}

/// For Machine::load(): all kinds, from one PU to eight nodes, and the real ones that are there.
inline std::vector<std::string> all_topologies() {
  std::vector<std::string> all = {
      "pu:1",
      "core:1 pu:2",
      "core:2 pu:1",
      "numa:2 core:4 pu:2",
      "package:2 numa:2 l3:2 core:3 pu:2",
      "numa:8 l3:1 core:4 pu:1",
      "[numa] package:2 [numa] core:4 pu:4",
      own_topology("two_nodes_nic_on_node1.xml"),
  };
  const std::filesystem::path shared =
      std::filesystem::path(SLUICE_SOURCE_DIR) / ".." / "shared" / "topologies";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(shared, error)) {
    if (entry.path().extension() == ".xml") all.push_back(entry.path());
  }
  return all;
}

}  // namespace sluice::test
