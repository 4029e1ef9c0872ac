// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/memory.hpp"

#include <hwloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <system_error>
#include <utility>

#include "mapping.hpp"
#include "sluice/topology/cpu_set.hpp"
#include "this_topology.hpp"

namespace sluice::topology {
namespace {

constexpr unsigned kShift2MiB = 21;
constexpr unsigned kShift1GiB = 30;
/// What one transparent huge page covers. Where that is not 2 MiB (arm64 with 64 KiB pages) the
/// kernel finds fewer places for them, and the read-back tells.
constexpr std::size_t kTransparentBytes = std::size_t{1} << kShift2MiB;

using Sentences = std::vector<std::string>;

std::string reason_of(const Status& status) {
  if (status.os_error() == 0) return status.message();
  return status.message() + ": " + std::generic_category().message(status.os_error());
}

/// What to bind to, and the most that can be had there.
struct Place {
  hwloc_topology_t topology = nullptr;
  hwloc_const_nodeset_t nodes = nullptr;  ///< nullptr: anywhere
  std::uint64_t bytes = 0;                ///< 0: unknown
};

Result<Place> place_of(const std::optional<unsigned>& node) {
  auto topology = this_topology();
  if (!topology) return topology.status();
  Place place;
  place.topology = *topology;
  place.bytes = hwloc_get_root_obj(*topology)->total_memory;
  if (!node) return place;
  const hwloc_obj* object = hwloc_get_numanode_obj_by_os_index(*topology, *node);
  CpuSet with_memory;
  for (hwloc_obj* each = nullptr;
       (each = hwloc_get_next_obj_by_type(*topology, HWLOC_OBJ_NUMANODE, each)) != nullptr;) {
    if (each->attr->numanode.local_memory > 0) with_memory.add(each->os_index);
  }
  if (object == nullptr || !with_memory.contains(*node)) {
    return Status(StatusCode::invalid_argument,
                  "there is no memory for this process on NUMA node " + std::to_string(*node) +
                      "; the nodes with memory are: " + with_memory.to_string());
  }
  place.nodes = object->nodeset;
  place.bytes = object->attr->numanode.local_memory;
  return place;
}

/// Asking a node for more than it has would not fail, but call the kernel's OOM killer.
Status check_size(const MemoryRequest& request, const Place& place) {
  constexpr std::uint64_t kBytesMax = std::numeric_limits<std::size_t>::max() / 4;
  const std::uint64_t limit = place.bytes > 0 ? std::min(place.bytes, kBytesMax) : kBytesMax;
  if (request.bytes <= limit) return {};
  const std::string where =
      request.node ? "NUMA node " + std::to_string(*request.node) : std::string("this machine");
  return {StatusCode::resource_exhausted, std::to_string(request.bytes) +
                                              " bytes were asked for, and " + where + " has " +
                                              std::to_string(limit)};
}

/// Strict: never a page elsewhere, though the node may have to reclaim memory for it.
void bind_to_node(const Mapping& mapping, const MemoryRequest& request, const Place& place,
                  Sentences& fallbacks) {
  if (place.nodes == nullptr) return;
  if (hwloc_set_area_membind(place.topology, mapping.data(), mapping.bytes(), place.nodes,
                             HWLOC_MEMBIND_BIND,
                             HWLOC_MEMBIND_STRICT | HWLOC_MEMBIND_BYNODESET) == 0) {
    return;
  }
  fallbacks.push_back("The memory is not bound to NUMA node " + std::to_string(*request.node) +
                      ", as the system does not let us: " + std::generic_category().message(errno) +
                      ".");
}

/// The bytes on transparent huge pages, of the kernel's area that `address` is in.
std::size_t transparent_bytes_around(const std::byte* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::istringstream words(line);
    if (words >> std::hex >> begin >> dash >> end && dash == '-') {
      inside = begin <= at && at < end;
    } else if (inside && line.starts_with("AnonHugePages:")) {
      constexpr std::size_t kKiB = 1024;
      return kKiB * std::stoull(line.substr(line.find(':') + 1));
    }
  }
  return 0;
}

/// Bound and touched memory of one kind of pages.
struct Attempt {
  Mapping mapping;
  Sentences fallbacks;
};

Result<Attempt> on_hugetlb_pages(const MemoryRequest& request, const Place& place) {
  auto mapping = Mapping::hugetlb(request.bytes,
                                  request.huge_pages == HugePages::gib1 ? kShift1GiB : kShift2MiB);
  if (!mapping) return mapping.status();
  Attempt attempt{*std::move(mapping), {}};
  bind_to_node(attempt.mapping, request, place, attempt.fallbacks);
  SLUICE_RETURN_IF_ERROR(attempt.mapping.populate());
  return attempt;
}

Result<Attempt> on_ordinary_pages(const MemoryRequest& request, const Place& place) {
  auto mapping = Mapping::ordinary(request.bytes, page_size());
  if (!mapping) return mapping.status();
  Attempt attempt{*std::move(mapping), {}};
  bind_to_node(attempt.mapping, request, place, attempt.fallbacks);
  SLUICE_RETURN_IF_ERROR(attempt.mapping.populate());
  return attempt;
}

/// Fails with not_supported when there would be no huge page in it.
Result<Attempt> on_transparent_pages(const MemoryRequest& request, const Place& place) {
  auto mapping = Mapping::ordinary(request.bytes, kTransparentBytes);
  if (!mapping) return mapping.status();
  Attempt attempt{*std::move(mapping), {}};
  const Mapping& pages = attempt.mapping;
  bind_to_node(pages, request, place, attempt.fallbacks);
  if (::madvise(pages.data(), pages.bytes(), MADV_HUGEPAGE) != 0) {
    return Status(StatusCode::not_supported, "the kernel knows no transparent huge pages", errno);
  }
  // The kernel may have joined our area to a neighbour's: what counts is what populate() adds.
  const std::size_t before = transparent_bytes_around(pages.data());
  SLUICE_RETURN_IF_ERROR(pages.populate());
  const std::size_t after = transparent_bytes_around(pages.data());
  const std::size_t got = after - std::min(before, after);
  if (got == 0) {
    return Status(StatusCode::not_supported, "the kernel gives ordinary pages instead");
  }
  if (got < pages.bytes()) {
    attempt.fallbacks.push_back("Only " + std::to_string(got) + " of " +
                                std::to_string(pages.bytes()) +
                                " bytes are on transparent huge pages.");
  }
  return attempt;
}

/// Tells which pages are not where they were asked for.
void read_back(const Mapping& mapping, unsigned node, Sentences& fallbacks) {
  const auto nodes = nodes_of_pages({mapping.data(), mapping.bytes()});
  if (!nodes) {
    fallbacks.push_back("Whether the memory is on NUMA node " + std::to_string(node) +
                        " could not be read back: " + reason_of(nodes.status()) + ".");
    return;
  }
  CpuSet elsewhere;
  std::size_t astray = 0;
  std::size_t unknown = 0;
  for (const int each : *nodes) {
    if (each < 0) {
      ++unknown;
    } else if (static_cast<unsigned>(each) != node) {
      ++astray;
      elsewhere.add(static_cast<unsigned>(each));
    }
  }
  const std::string all = " of " + std::to_string(nodes->size()) + " pages";
  if (astray > 0) {
    fallbacks.push_back(std::to_string(astray) + all + " are not on NUMA node " +
                        std::to_string(node) + ", but on " + elsewhere.to_string() + ".");
  }
  if (unknown > 0) {
    fallbacks.push_back("The kernel does not tell on which NUMA node " + std::to_string(unknown) +
                        all + " are.");
  }
}

const char* pages_in_words(HugePages pages) noexcept {
  switch (pages) {
    case HugePages::gib1: return "1 GiB pages";
    case HugePages::mib2: return "2 MiB pages";
    case HugePages::transparent: return "transparent huge pages";
    case HugePages::none: break;
  }
  return "ordinary pages";
}

Result<Attempt> attempt_with(HugePages pages, const MemoryRequest& request, const Place& place) {
  switch (pages) {
    case HugePages::gib1:
    case HugePages::mib2: return on_hugetlb_pages(request, place);
    case HugePages::transparent: return on_transparent_pages(request, place);
    case HugePages::none: break;
  }
  return on_ordinary_pages(request, place);
}

HugePages next_best(HugePages pages) noexcept {
  const bool reserved = pages == HugePages::gib1 || pages == HugePages::mib2;
  return reserved ? HugePages::transparent : HugePages::none;
}

}  // namespace

Result<NodeMemory> NodeMemory::allocate(const MemoryRequest& request) {
  if (request.bytes == 0) return NodeMemory{};
  auto place = place_of(request.node);
  if (!place) return place.status();
  SLUICE_RETURN_IF_ERROR(check_size(request, *place));

  NodeMemory memory;
  memory.pages_ = request.huge_pages;
  auto attempt = attempt_with(memory.pages_, request, *place);
  while (!attempt && memory.pages_ != HugePages::none) {
    const HugePages next = next_best(memory.pages_);
    memory.fallbacks_.push_back("No " + std::string(pages_in_words(memory.pages_)) + " but " +
                                pages_in_words(next) + ", as " + reason_of(attempt.status()) + ".");
    memory.pages_ = next;
    attempt = attempt_with(next, request, *place);
  }
  if (!attempt) return attempt.status();
  std::move(attempt->fallbacks.begin(), attempt->fallbacks.end(),
            std::back_inserter(memory.fallbacks_));
  if (request.node) read_back(attempt->mapping, *request.node, memory.fallbacks_);
  memory.mapped_ = attempt->mapping.bytes();
  memory.bytes_ = {attempt->mapping.release(), request.bytes};
  return memory;
}

NodeMemory::NodeMemory(NodeMemory&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})),
      mapped_(std::exchange(other.mapped_, 0)),
      pages_(std::exchange(other.pages_, HugePages::none)),
      fallbacks_(std::exchange(other.fallbacks_, {})) {}

NodeMemory& NodeMemory::operator=(NodeMemory&& other) noexcept {
  NodeMemory taken(std::move(other));
  std::swap(bytes_, taken.bytes_);
  std::swap(mapped_, taken.mapped_);
  std::swap(pages_, taken.pages_);
  std::swap(fallbacks_, taken.fallbacks_);
  return *this;
}

NodeMemory::~NodeMemory() {
  if (mapped_ > 0) ::munmap(bytes_.data(), mapped_);
}

}  // namespace sluice::topology
