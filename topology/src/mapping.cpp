// SPDX-License-Identifier: BSD-3-Clause
#include "mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

namespace sluice::topology {
namespace {

void* map(std::size_t bytes, int more_flags) noexcept {
  return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | more_flags,
                -1, 0);
}

Status no_memory(const std::string& what, int error) {
  return {StatusCode::resource_exhausted, what, error};
}

/// For kernels without MADV_POPULATE_WRITE (before 5.14; gVisor): a system call that writes the
/// zeros meets a missing page with EFAULT, where a store in user space would meet it with SIGBUS.
Status populate_by_reading_zeros(std::byte* data, std::size_t bytes) {
  const int zeros = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  if (zeros < 0) return {StatusCode::io_error, "/dev/zero cannot be opened", errno};
  Status status;
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got = ::read(zeros, data + done, bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      status = no_memory("the kernel has no page for byte " + std::to_string(done) + " of " +
                             std::to_string(bytes),
                         got < 0 ? errno : 0);
      break;
    }
    done += static_cast<std::size_t>(got);
  }
  ::close(zeros);
  return status;
}

}  // namespace

std::size_t page_size() noexcept {
  static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

Result<Mapping> Mapping::ordinary(std::size_t bytes, std::size_t alignment) {
  bytes = round_up(bytes, alignment);
  const std::size_t spare = alignment - page_size();  // mmap aligns to a page, and no further
  void* address = map(bytes + spare, 0);
  if (address == MAP_FAILED) {
    return no_memory("the kernel maps no " + std::to_string(bytes) + " bytes", errno);
  }
  auto* const mapped = static_cast<std::byte*>(address);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::size_t before = round_up(at, alignment) - at;
  if (before > 0) ::munmap(mapped, before);
  if (spare > before) ::munmap(mapped + before + bytes, spare - before);
  return Mapping(mapped + before, bytes);
}

Result<Mapping> Mapping::hugetlb(std::size_t bytes, unsigned page_shift) {
  bytes = round_up(bytes, std::size_t{1} << page_shift);
  void* address = map(bytes, MAP_HUGETLB | static_cast<int>(page_shift << MAP_HUGE_SHIFT));
  if (address == MAP_FAILED) {
    return no_memory("the kernel reserves no huge pages for " + std::to_string(bytes) + " bytes",
                     errno);
  }
  return Mapping(static_cast<std::byte*>(address), bytes);
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Status Mapping::populate() const {
  int result = 0;
  do {
    result = ::madvise(data_, bytes_, MADV_POPULATE_WRITE);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return {};
  if (errno == EINVAL || errno == ENOSYS) return populate_by_reading_zeros(data_, bytes_);
  return no_memory("the kernel has no pages for " + std::to_string(bytes_) + " bytes", errno);
}

}  // namespace sluice::topology
