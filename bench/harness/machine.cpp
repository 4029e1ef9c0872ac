// SPDX-License-Identifier: BSD-3-Clause
#include "machine.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <fstream>
#include <string_view>

#include "sluice/topology/machine.hpp"

namespace sluice::bench {
namespace {

constexpr const char* kUnknown = "unknown";

/// A file's first line; "" if there is none.
std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The value of the first "key : value" line of /proc/cpuinfo.
std::string cpuinfo(std::string_view key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    if (value != std::string::npos) return line.substr(value);
  }
  return {};
}

std::string or_unknown(std::string text) {
  return text.empty() ? kUnknown : std::move(text);
}

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

std::string kernel() {
  utsname name{};
  if (::uname(&name) != 0) return kUnknown;
  return fmt::format("{} {} {}", name.sysname, name.release, name.machine);
}

/// x86 tells by a CPU flag that it is a guest; elsewhere the firmware's name may.
std::string virtualised() {
  if (!cpuinfo("flags").empty()) {
    return cpuinfo("flags").find(" hypervisor") != std::string::npos ? "yes" : "no";
  }
  return kUnknown;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> machine_facts() {
  std::vector<std::pair<std::string, std::string>> facts;
  facts.emplace_back("cpu", or_unknown(cpuinfo("model name")));
  const auto machine = topology::Machine::this_machine();
  if (machine.ok()) {
    facts.emplace_back("cores", std::to_string(machine->cores().size()));
    facts.emplace_back("cpus", std::to_string(machine->pus().size()));
    facts.emplace_back("nodes", std::to_string(machine->nodes().size()));
    facts.emplace_back("usable_cpus", machine->usable().to_string());
  }
  facts.emplace_back(
      "governor", or_unknown(first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")));
  facts.emplace_back("virtual", virtualised());
  facts.emplace_back("kernel", kernel());
  facts.emplace_back("compiler", compiler());
  facts.emplace_back("build", SLUICE_BENCH_BUILD);
  return facts;
}

}  // namespace sluice::bench
