// SPDX-License-Identifier: BSD-3-Clause
#include "programs.hpp"

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>

namespace sluice::bench {
namespace {

struct CloseProcess {
  void operator()(std::FILE* file) const { ::pclose(file); }
};

}  // namespace

std::string program_path(const char* name) {
  return std::filesystem::canonical("/proc/self/exe").replace_filename(name).string();
}

Result<Numbers> run_program(const std::string& launcher, const std::string& program,
                            const std::string& arguments) {
  std::string command = launcher.empty() ? "" : "'" + program_path(launcher.c_str()) + "' ";
  command += "'" + program_path(program.c_str()) + "' " + arguments;
  std::unique_ptr<std::FILE, CloseProcess> pipe(::popen(command.c_str(), "r"));
  if (pipe == nullptr) return Status(StatusCode::internal, "could not run " + command, errno);
  Numbers numbers;
  std::array<char, 64> name{};
  double value = 0;
  while (std::fscanf(pipe.get(), "%63s %lf", name.data(), &value) == 2)
    numbers[name.data()] = value;
  if (::pclose(pipe.release()) != 0 || numbers.empty())
    return Status(StatusCode::internal, "this failed: " + command);
  return numbers;
}

}  // namespace sluice::bench
