// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sluice/core/status.hpp"

namespace sluice::bench {

/// What sluice-bench-stepped is run with.
struct SteppedWorkload {
  std::string order = "none";  ///< to_string(Order)
  std::uint32_t connections = 8;
  std::uint32_t batch = 32;   ///< completions per poll
  std::uint32_t workers = 1;  ///< of the pool; one is stepped
};

/// How often each instruction was executed, from callgrind's output.
struct InstructionProfile {
  struct Instruction {
    std::string function;
    std::string file;  ///< of the source line; differs from the function's for what was inlined
    unsigned line = 0;
    std::uint64_t executed = 0;
  };
  using Place = std::pair<std::string, std::uint64_t>;  ///< object file, address in it
  std::map<Place, Instruction> instructions;
  /// Of each function, with all that it called.
  std::map<std::string, std::uint64_t> inclusive;
};

/// What one completion costs on the data path, beyond the source's poll and the handler.
struct SteppedCost {
  double instructions = 0;
  double locked = 0;  ///< locked instructions and fences
  struct Share {
    std::string where;
    double instructions = 0;
    double locked = 0;
  };
  std::vector<Share> functions;  ///< exclusive, the dearest first
  std::vector<Share> lines;      ///< by source line, the dearest first
};

/// Runs `program` (sluice-bench-stepped) under callgrind twice, with two numbers of completions,
/// and takes the difference. Needs valgrind and objdump; fails, saying which, without them. x86-64
/// only (what is a locked instruction is read from the disassembly).
[[nodiscard]] Result<SteppedCost> count_stepped(const std::string& program,
                                                const SteppedWorkload& workload);

/// Reads a file of `valgrind --tool=callgrind --dump-instr=yes --compress-pos=no
/// --compress-strings=no`.
[[nodiscard]] Result<InstructionProfile> read_profile(const std::string& path);

}  // namespace sluice::bench
