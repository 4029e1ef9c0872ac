// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "../harness/figure.hpp"
#include "../harness/recorded.hpp"

/// The groups of figures, each in the file of its name.
namespace sluice::bench {

/// Without order, against the queues that people would use.
[[nodiscard]] FigureGroup handoff_none(std::uint32_t pollers_and_workers);
[[nodiscard]] FigureGroup handoff_single();
/// Batches of 32 completions that belong to so many connections (c64: to 32 of the 64).
[[nodiscard]] FigureGroup handoff_per_connection(std::uint32_t connections, double goal);

/// With order, against DPDK's ways to keep it.
[[nodiscard]] FigureGroup handoff_dpdk();

/// Without order, against a thread for each completion queue.
[[nodiscard]] FigureGroup handoff_thread_per_cq();
/// One connection that has nearly everything.
[[nodiscard]] FigureGroup skew();
[[nodiscard]] FigureGroup path();
[[nodiscard]] FigureGroup latency_oneway();
[[nodiscard]] FigureGroup latency_cold();
[[nodiscard]] FigureGroup many_sources();
[[nodiscard]] FigureGroup idle();
[[nodiscard]] FigureGroup softrdma_idle();
[[nodiscard]] FigureGroup instructions();
[[nodiscard]] FigureGroup allocations();
[[nodiscard]] FigureGroup waiting();
/// Recorded gaps through the same simulated machine; named after the trace.
[[nodiscard]] FigureGroup waiting_recorded(RecordedTrace trace);
[[nodiscard]] FigureGroup waiting_live();
[[nodiscard]] FigureGroup softrdma_echo();

}  // namespace sluice::bench
