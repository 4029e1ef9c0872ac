// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sluice/core/status.hpp"

/// CPUs are named by their OS index (what taskset(1) and /proc/cpuinfo use), never by hwloc's
/// logical index.
namespace sluice::topology {

/// The CPUs that this process may run on: online, allowed by its cgroup, and in its inherited
/// affinity. Ascending. Looked up once per process.
[[nodiscard]] Result<std::vector<unsigned>> allowed_cpus();

/// Binds the calling thread to one CPU and reads back what the kernel made of it.
[[nodiscard]] Status bind_current_thread(unsigned cpu);

/// Names the calling thread for ps(1) and debuggers; cut to the kernel's 15 bytes.
void name_current_thread(std::string_view name);

}  // namespace sluice::topology
