// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/core/status.hpp"
#include "sluice/topology/config.hpp"

namespace sluice::topology {

struct MemoryRequest {
  std::size_t bytes = 0;
  std::optional<unsigned> node;  ///< OS index; unset: wherever the kernel puts it
  HugePages huge_pages = HugePages::none;
};

/// Memory on one NUMA node: mapped, bound (hwloc membind, strict), touched, and read back.
/// Page-aligned, zeroed. Thread-safety: a value that owns its memory. Not for data paths.
class NodeMemory {
 public:
  /// Never fails for want of huge pages or a binding: fallbacks() tells what it did instead. Fails
  /// with resource_exhausted for more than the node (or the machine) has in all, invalid_argument
  /// for a node that there is not. More than is free there just now is the kernel's affair: it
  /// reclaims, and may end a process.
  [[nodiscard]] static Result<NodeMemory> allocate(const MemoryRequest& request);
  NodeMemory() noexcept = default;
  NodeMemory(NodeMemory&& other) noexcept;
  NodeMemory& operator=(NodeMemory&& other) noexcept;
  ~NodeMemory();

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] HugePages huge_pages() const noexcept { return pages_; }  ///< what it really got
  /// What the request asked for and did not get, a sentence each; empty: nothing.
  [[nodiscard]] const std::vector<std::string>& fallbacks() const noexcept { return fallbacks_; }

 private:
  std::span<std::byte> bytes_;
  std::size_t mapped_ = 0;
  HugePages pages_ = HugePages::none;
  std::vector<std::string> fallbacks_;
};

/// The node (OS index) of each page of a range, as move_pages(2) tells; -1 for a page not there.
[[nodiscard]] Result<std::vector<int>> nodes_of_pages(std::span<const std::byte> range);

}  // namespace sluice::topology
