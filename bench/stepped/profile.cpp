// SPDX-License-Identifier: BSD-3-Clause
#include "profile.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string_view>

namespace sluice::bench {
namespace {

/// The two runs: what both do once, and the buffers' first use, cancels.
constexpr std::uint64_t kFewCompletions = 32'000;
constexpr std::uint64_t kManyCompletions = 96'000;

/// Not the data path's: see sluice-bench-stepped. With all that they call, but for the loop, which
/// calls what is measured.
constexpr std::string_view kPoll = "SteadySource::poll";
constexpr std::string_view kHandle = "bench_handle";
constexpr std::string_view kLoop = "bench_rounds";

struct CloseFile {
  void operator()(std::FILE* file) const { ::pclose(file); }
};

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

/// A file that goes with its object.
class TemporaryFile {
 public:
  TemporaryFile() {
    const char* const directory = std::getenv("TMPDIR");
    path_ = std::string(directory != nullptr ? directory : "/tmp") + "/sluice-bench-XXXXXX";
    const int fd = ::mkstemp(path_.data());
    if (fd >= 0)
      ::close(fd);
    else
      path_.clear();
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

bool starts(const std::string& line, std::string_view with) {
  return line.compare(0, with.size(), with) == 0;
}

Result<InstructionProfile> run_stepped(const std::string& program, const SteppedWorkload& workload,
                                       std::uint64_t completions) {
  const TemporaryFile profile, log;
  if (profile.path().empty() || log.path().empty())
    return Status(StatusCode::internal, "no temporary file for callgrind's output", errno);
  const std::string command =
      "valgrind --tool=callgrind --toggle-collect=" + std::string(kLoop) +
      " --dump-instr=yes --compress-pos=no --compress-strings=no --callgrind-out-file=" +
      quoted(profile.path()) + " --log-file=" + quoted(log.path()) + " " + quoted(program) + " " +
      workload.order + " " + std::to_string(completions) + " " +
      std::to_string(workload.connections) + " " + std::to_string(workload.batch) + " " +
      std::to_string(workload.workers) + " >/dev/null 2>>" + quoted(log.path());
  if (const int code = std::system(command.c_str()); code != 0) {
    std::ifstream said(log.path());
    std::stringstream text;
    text << said.rdbuf();
    return Status(StatusCode::internal, "this failed: " + command + "\n" + text.str(), code);
  }
  return read_profile(profile.path());
}

/// The addresses of locked instructions (and of fences) in an object file.
Result<std::set<std::uint64_t>> locked_instructions(const std::string& object) {
  const std::string command = "objdump -d --no-show-raw-insn " + quoted(object);
  const std::unique_ptr<std::FILE, CloseFile> pipe(::popen(command.c_str(), "r"));
  if (pipe == nullptr) return Status(StatusCode::internal, "could not run " + command, errno);
  std::set<std::uint64_t> addresses;
  std::size_t lines = 0;
  std::array<char, 1024> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr) {
    // "  4c190:\tlock cmpxchg %rcx,(%rdx)"; an xchg with memory locks without saying so.
    char* end = nullptr;
    const std::uint64_t address = std::strtoull(buffer.data(), &end, 16);
    if (end == buffer.data() || *end != ':') continue;
    ++lines;
    const std::string_view text(end + 1);
    const std::size_t at = text.find_first_not_of(" \t");
    if (at == std::string_view::npos) continue;
    const std::string_view instruction = text.substr(at);
    const bool exchange =
        instruction.substr(0, 4) == "xchg" && instruction.find('(') != std::string_view::npos;
    if (exchange || instruction.substr(0, 5) == "lock " || instruction.substr(0, 6) == "mfence")
      addresses.insert(address);
  }
  if (lines == 0) return Status(StatusCode::internal, "nothing came out of " + command);
  return addresses;
}

std::vector<SteppedCost::Share> dearest_first(
    const std::map<std::string, SteppedCost::Share>& shares) {
  std::vector<SteppedCost::Share> out;
  for (const auto& [name, share] : shares) {
    out.push_back(share);
    out.back().where = name;
  }
  std::sort(out.begin(), out.end(),
            [](const auto& a, const auto& b) { return a.instructions > b.instructions; });
  return out;
}

/// `function` is the whole of the name or a part that no other has.
bool is(const std::string& name, std::string_view function) {
  return name.find(function) != std::string::npos;
}

double inclusive_of(const InstructionProfile& profile, std::string_view function) {
  for (const auto& [name, instructions] : profile.inclusive) {
    if (is(name, function)) return static_cast<double>(instructions);
  }
  return 0;
}

}  // namespace

Result<InstructionProfile> read_profile(const std::string& path) {
  std::ifstream in(path);
  if (!in) return Status(StatusCode::io_error, "cannot read " + path, errno);
  InstructionProfile profile;
  std::string object, function, file, line;
  bool of_a_call = false;  // the next cost is what a call cost in all
  while (std::getline(in, line)) {
    if (starts(line, "ob=")) {
      object = line.substr(3);
    } else if (starts(line, "fl=") || starts(line, "fi=") || starts(line, "fe=")) {
      file = line.substr(3);
    } else if (starts(line, "fn=")) {
      function = line.substr(3);
    } else if (starts(line, "calls=")) {
      of_a_call = true;
    } else if (starts(line, "0x")) {
      unsigned long long address = 0, executed = 0;
      unsigned source_line = 0;
      if (std::sscanf(line.c_str(), "%llx %u %llu", &address, &source_line, &executed) != 3)
        return Status(StatusCode::internal, path + ": not understood: " + line);
      profile.inclusive[function] += executed;
      if (!std::exchange(of_a_call, false)) {
        auto& instruction = profile.instructions[{object, address}];
        instruction.function = function;
        instruction.file = file;
        instruction.line = source_line;
        instruction.executed += executed;
      }
    }
  }
  if (profile.instructions.empty()) return Status(StatusCode::internal, path + ": no instruction");
  return profile;
}

Result<SteppedCost> count_stepped(const std::string& program, const SteppedWorkload& workload) {
#if !defined(__x86_64__)
  return Status(StatusCode::not_supported, "locked instructions are counted on x86-64 only");
#endif
  const auto few = run_stepped(program, workload, kFewCompletions);
  if (!few) return few.status();
  const auto many = run_stepped(program, workload, kManyCompletions);
  if (!many) return many.status();
  for (const std::string_view function : {kPoll, kHandle, kLoop}) {
    if (inclusive_of(*many, function) == 0)
      return Status(StatusCode::internal, "callgrind saw no call of " + std::string(function));
  }

  constexpr double kCompletions = kManyCompletions - kFewCompletions;
  SteppedCost cost;
  std::map<std::string, std::set<std::uint64_t>> locked;  // by object
  std::map<std::string, SteppedCost::Share> functions, lines;
  for (const auto& [place, instruction] : many->instructions) {
    const auto before = few->instructions.find(place);
    const double executed =
        (static_cast<double>(instruction.executed) -
         (before == few->instructions.end() ? 0.0 : static_cast<double>(before->second.executed))) /
        kCompletions;
    const std::string& function = instruction.function;
    if (executed <= 0 || is(function, kPoll) || is(function, kHandle) || is(function, kLoop))
      continue;
    if (locked.find(place.first) == locked.end()) {
      auto addresses = locked_instructions(place.first);
      if (!addresses) return addresses.status();
      locked[place.first] = std::move(*addresses);
    }
    const double locks = locked[place.first].count(place.second) > 0 ? executed : 0;
    cost.locked += locks;
    cost.instructions += executed;
    const std::string source = instruction.file.substr(instruction.file.rfind('/') + 1) + ":" +
                               std::to_string(instruction.line);
    for (auto* share : {&functions[instruction.function], &lines[source]}) {
      share->instructions += executed;
      share->locked += locks;
    }
  }
  // What the poll and the handler called (a memcpy of the C library) was counted under its own
  // name.
  for (const std::string_view function : {kPoll, kHandle}) {
    double called = inclusive_of(*many, function) - inclusive_of(*few, function);
    for (const auto* profile : {&*many, &*few}) {
      for (const auto& [place, instruction] : profile->instructions) {
        if (!is(instruction.function, function)) continue;
        called -= (profile == &*many ? 1.0 : -1.0) * static_cast<double>(instruction.executed);
      }
    }
    cost.instructions -= called / kCompletions;
  }
  cost.functions = dearest_first(functions);
  cost.lines = dearest_first(lines);
  return cost;
}

}  // namespace sluice::bench
