// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sluice/core/status.hpp"
#include "sluice/topology/cpu_set.hpp"

/// CPUs are named by their OS index (what taskset(1) and /proc/cpuinfo use), never by hwloc's
/// logical index.
namespace sluice::topology {

/// The CPUs that this process may run on: online, allowed by its cgroup, and in its inherited
/// affinity. Ascending. Looked up once per process.
[[nodiscard]] Result<std::vector<unsigned>> allowed_cpus();

/// The CPUs that this process can be given: online and allowed by its cgroup, whatever affinity it
/// has inherited. Looked up once per process.
[[nodiscard]] Result<CpuSet> cgroup_cpus();

/// Binds the calling thread to one CPU and reads back what the kernel made of it.
[[nodiscard]] Status bind_current_thread(unsigned cpu);

/// Binds the calling thread to a set of CPUs and reads back what the kernel made of it. Fails with
/// invalid_argument for the empty set, permission_denied when the kernel or hwloc refuses (a CPU
/// that there is not), internal when the kernel made something else of it (a CPU that is offline or
/// not this process's): the thread may then be on a part of the set.
[[nodiscard]] Status bind_current_thread(const CpuSet& pus);

/// Where the calling thread may run, as the kernel tells; empty if it does not tell.
[[nodiscard]] CpuSet current_thread_binding();

/// Names the calling thread for ps(1) and debuggers; cut to the kernel's 15 bytes.
void name_current_thread(std::string_view name);

}  // namespace sluice::topology
