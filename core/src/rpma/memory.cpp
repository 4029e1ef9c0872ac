// SPDX-License-Identifier: BSD-3-Clause
#include <librpma.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>

#include "rpma/call.hpp"
#include "sluice/core/rpma/error.hpp"
#include "sluice/core/rpma/handles.hpp"

namespace sluice::rpma {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

Result<std::shared_ptr<RemoteRegion>> RemoteRegion::from_descriptor(
    std::span<const std::byte> descriptor) {
  rpma_mr_remote* region = nullptr;
  const CallOutcome outcome = call([&] {
    return ::rpma_mr_remote_from_descriptor(descriptor.data(), descriptor.size(), &region);
  });
  if (!outcome.ok()) {
    return make_status(
        outcome.code, outcome.os_error,
        "read a remote region's descriptor of " + std::to_string(descriptor.size()) + " bytes");
  }
  return std::shared_ptr<RemoteRegion>(new RemoteRegion(region));
}

RemoteRegion::~RemoteRegion() {
  (void)::rpma_mr_remote_delete(&region_);
}

std::size_t RemoteRegion::size() const {
  std::size_t size = 0;
  (void)::rpma_mr_remote_get_size(region_, &size);  // fails only for nullptr
  return size;
}

MemoryRegion::MemoryRegion(std::shared_ptr<Peer> peer, std::span<std::byte> memory, bool owned,
                           rpma_mr_local* region) noexcept
    : peer_(std::move(peer)), memory_(memory), owned_(owned), region_(region) {}

namespace {

Result<rpma_mr_local*> register_region(const Peer& peer, std::span<std::byte> memory, int usage) {
  const std::lock_guard lock(library_mutex());
  rpma_mr_local* region = nullptr;
  const CallOutcome outcome =
      call([&] { return ::rpma_mr_reg(peer.get(), memory.data(), memory.size(), usage, &region); });
  if (!outcome.ok()) {
    return make_status(outcome.code, outcome.os_error,
                       "register " + std::to_string(memory.size()) + " bytes of memory on " +
                           peer.device_name() + " for usage " + std::to_string(usage));
  }
  return region;
}

}  // namespace

Result<std::shared_ptr<MemoryRegion>> MemoryRegion::register_memory(std::shared_ptr<Peer> peer,
                                                                    std::span<std::byte> memory,
                                                                    int usage) {
  Result<rpma_mr_local*> region = register_region(*peer, memory, usage);
  if (!region) return region.status();
  return std::shared_ptr<MemoryRegion>(new MemoryRegion(std::move(peer), memory, false, *region));
}

Result<std::shared_ptr<MemoryRegion>> MemoryRegion::allocate(std::shared_ptr<Peer> peer,
                                                             std::size_t size, int usage) {
  if (size < 1 || size > std::numeric_limits<std::size_t>::max() - kPage) {
    return Status(StatusCode::invalid_argument,
                  "allocate a memory region of " + std::to_string(size) + " bytes");
  }
  const std::size_t rounded = (size + kPage - 1) / kPage * kPage;
  void* const bytes = std::aligned_alloc(kPage, rounded);
  if (bytes == nullptr) {
    return Status(StatusCode::resource_exhausted,
                  "allocate a memory region of " + std::to_string(size) + " bytes", ENOMEM);
  }
  std::memset(bytes, 0, rounded);
  const std::span memory(static_cast<std::byte*>(bytes), size);
  Result<rpma_mr_local*> region = register_region(*peer, memory, usage);
  if (!region) {
    std::free(bytes);
    return region.status();
  }
  return std::shared_ptr<MemoryRegion>(new MemoryRegion(std::move(peer), memory, true, *region));
}

MemoryRegion::~MemoryRegion() {
  {
    const std::lock_guard lock(library_mutex());
    (void)::rpma_mr_dereg(&region_);
  }
  if (owned_) std::free(memory_.data());
}

Result<std::vector<std::byte>> MemoryRegion::descriptor() const {
  std::size_t size = 0;
  CallOutcome outcome = call([&] { return ::rpma_mr_get_descriptor_size(region_, &size); });
  std::vector<std::byte> descriptor(size);
  if (outcome.ok()) {
    outcome = call([&] { return ::rpma_mr_get_descriptor(region_, descriptor.data()); });
  }
  if (!outcome.ok()) {
    return make_status(outcome.code, outcome.os_error,
                       "describe a memory region of " + std::to_string(memory_.size()) + " bytes");
  }
  return descriptor;
}

}  // namespace sluice::rpma
