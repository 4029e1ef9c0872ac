// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/core/status.hpp"

struct hwloc_bitmap_s;

namespace sluice::topology {

/// A set of OS indices: of PUs (what taskset(1) and /proc/cpuinfo call CPUs), or of NUMA nodes.
/// A value over hwloc's bitmaps. Thread-safety: as a std::vector. Cost: each copy allocates.
class CpuSet {
 public:
  CpuSet();
  explicit CpuSet(std::span<const unsigned> indices);
  CpuSet(const CpuSet& other);
  CpuSet(CpuSet&& other) noexcept = default;
  CpuSet& operator=(const CpuSet& other);
  CpuSet& operator=(CpuSet&& other) noexcept = default;
  ~CpuSet() = default;

  /// Reads "0-3,8" (what taskset -c and /sys print). Fails with invalid_argument, saying what was
  /// wrong where.
  [[nodiscard]] static Result<CpuSet> parse(std::string_view list);
  /// A copy of hwloc's; an infinite one is not for us.
  [[nodiscard]] static CpuSet from_hwloc(const hwloc_bitmap_s* bitmap);

  void add(unsigned index);
  void remove(unsigned index);
  [[nodiscard]] bool contains(unsigned index) const noexcept;
  [[nodiscard]] bool empty() const noexcept;
  [[nodiscard]] std::size_t count() const noexcept;
  [[nodiscard]] std::optional<unsigned> first() const noexcept;
  [[nodiscard]] bool intersects(const CpuSet& other) const noexcept;
  [[nodiscard]] bool is_within(const CpuSet& other) const noexcept;

  CpuSet& operator|=(const CpuSet& other);
  CpuSet& operator&=(const CpuSet& other);
  CpuSet& operator-=(const CpuSet& other);
  friend CpuSet operator|(CpuSet left, const CpuSet& right) { return left |= right; }
  friend CpuSet operator&(CpuSet left, const CpuSet& right) { return left &= right; }
  friend CpuSet operator-(CpuSet left, const CpuSet& right) { return left -= right; }
  friend bool operator==(const CpuSet& left, const CpuSet& right) noexcept;

  /// Ascending.
  [[nodiscard]] std::vector<unsigned> to_vector() const;
  /// "0-3,8"; "none" for the empty set.
  [[nodiscard]] std::string to_string() const;
  /// For hwloc's functions; never nullptr.
  [[nodiscard]] const hwloc_bitmap_s* native() const noexcept { return bits_.get(); }

 private:
  struct Free {
    void operator()(hwloc_bitmap_s* bitmap) const noexcept;
  };
  std::unique_ptr<hwloc_bitmap_s, Free> bits_;
};

}  // namespace sluice::topology
