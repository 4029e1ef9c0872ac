// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <hwloc.h>

#include "sluice/core/status.hpp"
#include "sluice/topology/cpu_set.hpp"

namespace sluice::topology {

/// hwloc's view of this machine, loaded once per process: loading reads much of /sys. It is only
/// read after that, which hwloc allows from any thread. Never to be destroyed by who asks.
[[nodiscard]] Result<hwloc_topology_t> this_topology();

/// The affinity that the process was started with (taskset): of its first thread, when this was
/// asked first, so before anything here binds a thread. Empty where the kernel does not tell.
[[nodiscard]] const CpuSet& inherited_affinity();

}  // namespace sluice::topology
