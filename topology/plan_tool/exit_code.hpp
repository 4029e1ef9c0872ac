// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace sluice::plan_tool {

/// What the shell sees; documented in --help.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,    ///< a file, stdout or lstopo
  kExitUsage = 2,     ///< an option that cannot work, e.g. a topology that is none
  kExitConfig = 3,    ///< the configuration has errors
  kExitDegraded = 4,  ///< --strict, and the plan is degraded
};

}  // namespace sluice::plan_tool
