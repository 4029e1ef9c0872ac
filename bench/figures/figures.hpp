// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../harness/figure.hpp"

/// The groups of figures, each in the file of its name.
namespace sluice::bench {

[[nodiscard]] FigureGroup handoff_none();
[[nodiscard]] FigureGroup handoff_single();
[[nodiscard]] FigureGroup path();
[[nodiscard]] FigureGroup latency_oneway();
[[nodiscard]] FigureGroup latency_cold();
[[nodiscard]] FigureGroup many_sources();
[[nodiscard]] FigureGroup idle();
[[nodiscard]] FigureGroup instructions();

}  // namespace sluice::bench
