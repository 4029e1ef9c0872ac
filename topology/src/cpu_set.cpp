// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/cpu_set.hpp"

#include <hwloc.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <new>

namespace sluice::topology {
namespace {

constexpr unsigned kIndexMax = 1U << 20;  ///< beyond any kernel's NR_CPUS: a typing error
constexpr std::size_t kShownMax = 80;     ///< of a text in a message

std::string shown(std::string_view text) {
  if (text.size() <= kShownMax) return "'" + std::string(text) + "'";
  return "'" + std::string(text.substr(0, kShownMax)) + "...'";
}

Result<unsigned> parse_index(std::string_view text, std::string_view whole) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value > kIndexMax) {
    return Status(StatusCode::invalid_argument, shown(text) + " in the CPU list " + shown(whole) +
                                                    " is no CPU index (a list looks like 0-3,8)");
  }
  return value;
}

hwloc_bitmap_s* checked(hwloc_bitmap_s* bitmap) {
  if (bitmap == nullptr) throw std::bad_alloc();
  return bitmap;
}

}  // namespace

void CpuSet::Free::operator()(hwloc_bitmap_s* bitmap) const noexcept {
  hwloc_bitmap_free(bitmap);
}

CpuSet::CpuSet() : bits_(checked(hwloc_bitmap_alloc())) {}
CpuSet::CpuSet(std::span<const unsigned> indices) : CpuSet() {
  for (const unsigned index : indices) add(index);
}
CpuSet::CpuSet(const CpuSet& other) : bits_(checked(hwloc_bitmap_dup(other.bits_.get()))) {}
CpuSet& CpuSet::operator=(const CpuSet& other) {
  if (this != &other) bits_.reset(checked(hwloc_bitmap_dup(other.bits_.get())));
  return *this;
}

Result<CpuSet> CpuSet::parse(std::string_view list) {
  CpuSet set;
  std::size_t begin = 0;
  while (begin <= list.size()) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view part = list.substr(begin, end - begin);
    const std::size_t dash = part.find('-');
    const auto first = parse_index(part.substr(0, dash), list);
    if (!first) return first.status();
    const auto last =
        dash == std::string_view::npos ? first : parse_index(part.substr(dash + 1), list);
    if (!last) return last.status();
    if (*last < *first) {
      return Status(StatusCode::invalid_argument, "the range " + shown(part) + " in the CPU list " +
                                                      shown(list) + " ends before it begins");
    }
    hwloc_bitmap_set_range(set.bits_.get(), *first, static_cast<int>(*last));
    begin = end + 1;
  }
  return set;
}

CpuSet CpuSet::from_hwloc(const hwloc_bitmap_s* bitmap) {
  CpuSet set;
  if (bitmap != nullptr) hwloc_bitmap_copy(set.bits_.get(), bitmap);
  return set;
}

void CpuSet::add(unsigned index) {
  hwloc_bitmap_set(bits_.get(), index);
}
void CpuSet::remove(unsigned index) {
  hwloc_bitmap_clr(bits_.get(), index);
}
bool CpuSet::contains(unsigned index) const noexcept {
  return hwloc_bitmap_isset(bits_.get(), index) != 0;
}
bool CpuSet::empty() const noexcept {
  return hwloc_bitmap_iszero(bits_.get()) != 0;
}
std::size_t CpuSet::count() const noexcept {
  return static_cast<std::size_t>(std::max(0, hwloc_bitmap_weight(bits_.get())));
}
std::optional<unsigned> CpuSet::first() const noexcept {
  const int first = hwloc_bitmap_first(bits_.get());
  if (first < 0) return std::nullopt;
  return static_cast<unsigned>(first);
}
bool CpuSet::intersects(const CpuSet& other) const noexcept {
  return hwloc_bitmap_intersects(bits_.get(), other.bits_.get()) != 0;
}
bool CpuSet::is_within(const CpuSet& other) const noexcept {
  return hwloc_bitmap_isincluded(bits_.get(), other.bits_.get()) != 0;
}

CpuSet& CpuSet::operator|=(const CpuSet& other) {
  hwloc_bitmap_or(bits_.get(), bits_.get(), other.bits_.get());
  return *this;
}
CpuSet& CpuSet::operator&=(const CpuSet& other) {
  hwloc_bitmap_and(bits_.get(), bits_.get(), other.bits_.get());
  return *this;
}
CpuSet& CpuSet::operator-=(const CpuSet& other) {
  hwloc_bitmap_andnot(bits_.get(), bits_.get(), other.bits_.get());
  return *this;
}
bool operator==(const CpuSet& left, const CpuSet& right) noexcept {
  return hwloc_bitmap_isequal(left.bits_.get(), right.bits_.get()) != 0;
}

std::vector<unsigned> CpuSet::to_vector() const {
  std::vector<unsigned> indices;
  for (int index = hwloc_bitmap_first(bits_.get()); index >= 0;
       index = hwloc_bitmap_next(bits_.get(), index)) {
    indices.push_back(static_cast<unsigned>(index));
  }
  return indices;
}

std::string CpuSet::to_string() const {
  if (empty()) return "none";
  char* list = nullptr;
  if (hwloc_bitmap_list_asprintf(&list, bits_.get()) < 0) return "?";
  std::string text(list);
  std::free(list);
  return text;
}

}  // namespace sluice::topology
