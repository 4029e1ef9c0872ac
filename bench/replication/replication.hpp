// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../harness/figure.hpp"

namespace sluice::bench {

/// sluice-kv's replicated writes against those of Redis; cannot be measured where one of them is
/// missing.
[[nodiscard]] FigureGroup replication();

}  // namespace sluice::bench
