// SPDX-License-Identifier: BSD-3-Clause
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

#include "mapping.hpp"
#include "sluice/topology/memory.hpp"

namespace sluice::topology {
namespace {

constexpr std::size_t kPagesPerCall = 512;

Status query_failed(int error) {
  const StatusCode code = error == EPERM || error == EACCES ? StatusCode::permission_denied
                          : error == ENOSYS                 ? StatusCode::not_supported
                                                            : StatusCode::io_error;
  return {code, "move_pages(2) does not tell where pages are", error};
}

}  // namespace

Result<std::vector<int>> nodes_of_pages(std::span<const std::byte> range) {
  std::vector<int> nodes;
  if (range.empty()) return nodes;
  const std::size_t page = page_size();
  const auto start = reinterpret_cast<std::uintptr_t>(range.data());
  const std::uintptr_t first = start & ~(page - 1);
  nodes.resize((start + range.size() - first + page - 1) / page);

  std::array<std::uintptr_t, kPagesPerCall> addresses;
  for (std::size_t done = 0; done < nodes.size();) {
    const std::size_t count = std::min(kPagesPerCall, nodes.size() - done);
    for (std::size_t i = 0; i < count; ++i) addresses[i] = first + (done + i) * page;
    // Without a list of target nodes, move_pages(2) moves nothing and tells each page's node, or
    // its negative errno. (The system call, as libnuma would be needed for nothing else.)
    if (::syscall(SYS_move_pages, 0, count, addresses.data(), nullptr, nodes.data() + done, 0) !=
        0) {
      return query_failed(errno);
    }
    done += count;
  }
  for (int& node : nodes) node = std::max(node, -1);
  return nodes;
}

}  // namespace sluice::topology
