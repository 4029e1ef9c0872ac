// SPDX-License-Identifier: BSD-3-Clause
// softrdma-run: runs a command with libsoftrdma.so in front of libibverbs and librdmacm.
#include <elf.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "faults.hpp"

namespace {

constexpr const char* kUsage = R"(usage: softrdma-run [options] [--] COMMAND [ARGUMENT...]

Runs COMMAND, and whatever it starts, with a software RDMA device: programs that use librpma, librdmacm or
libibverbs find the device softrdma0 on every local address, over TCP. Nothing has to be installed or loaded.

  --faults SPEC   misbehave on purpose, e.g. "delay_us=50-500,drop_after=1000" (README: Misbehaviour on purpose)
  --seed N        what the faults, keys and queue pair numbers are drawn from; the same seed repeats a run
  --log LEVEL     none, error, warning (default), info, debug; to stderr
  --library FILE  another libsoftrdma.so than the one in ../lib beside this program
  --help          this text
  --version       the version

A program that was built with gcc's AddressSanitizer refuses to be preloaded: link the library instead.
Exit status: the command's; 125 when softrdma-run itself failed, 126 when COMMAND cannot be run, 127 when there is none.
)";

[[noreturn]] void die(int status, const std::string& message) {
  std::fprintf(stderr, "softrdma-run: %s\n", message.c_str());
  std::exit(status);
}

std::string default_library() {
  char path[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path - 1);
  if (n <= 0) die(125, std::string("cannot find my own path: ") + std::strerror(errno));
  std::string dir(path, static_cast<std::size_t>(n));
  dir.erase(dir.rfind('/'));
  std::string tried;
  for (const char* relative :
       {"/../lib/libsoftrdma.so", "/libsoftrdma.so", "/../lib/x86_64-linux-gnu/libsoftrdma.so",
        "/../lib64/libsoftrdma.so"}) {
    const std::string candidate = dir + relative;
    char real[PATH_MAX];
    if (::realpath(candidate.c_str(), real) != nullptr && ::access(real, R_OK) == 0) return real;
    tried += "\n  " + candidate;
  }
  die(125, "libsoftrdma.so is not beside me; looked at:" + tried +
               "\nbuild it (target softrdma) or give --library");
}

/// The loader only warns about a file that it cannot preload, and the program would look for real
/// devices then.
void check_library(const std::string& file) {
  std::FILE* f = std::fopen(file.c_str(), "rb");
  if (f == nullptr) die(125, file + ": " + std::strerror(errno));
  unsigned char head[EI_NIDENT] = {};
  const std::size_t n = std::fread(head, 1, sizeof head, f);
  std::fclose(f);
  if (n != sizeof head || std::memcmp(head, ELFMAG, SELFMAG) != 0)
    die(125, file + " is not a shared library");
  if (file.find_first_of(" :") != std::string::npos) {
    die(125, "LD_PRELOAD cannot hold a path with a space or colon: " + file);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string library;
  int i = 1;
  for (; i < argc; ++i) {
    std::string_view option = argv[i];
    if (option == "--") {
      ++i;
      break;
    }
    if (!option.starts_with("-")) break;
    if (option == "--help" || option == "-h") {
      std::fputs(kUsage, stdout);
      return 0;
    }
    if (option == "--version") {
      std::puts("softrdma-run (Sluice) 0.1.0");
      return 0;
    }
    std::string value;
    if (const auto equals = option.find('='); equals != std::string_view::npos) {
      value = option.substr(equals + 1);
      option = option.substr(0, equals);
    } else if (option == "--faults" || option == "--seed" || option == "--log" ||
               option == "--library") {
      if (++i == argc) die(125, std::string(option) + " wants a value");
      value = argv[i];
    }
    if (option == "--faults") {
      softrdma::FaultPlan plan;
      if (const std::string error = softrdma::parse_faults(value, 0, plan); !error.empty())
        die(125, error);
      ::setenv("SOFTRDMA_FAULTS", value.c_str(), 1);
    } else if (option == "--seed") {
      if (value.empty() || value.find_first_not_of("0123456789") != std::string::npos) {
        die(125, "--seed wants a number, not '" + value + "'");
      }
      ::setenv("SOFTRDMA_SEED", value.c_str(), 1);
    } else if (option == "--log") {
      bool known = false;
      for (const char* level : {"none", "error", "warning", "info", "debug"})
        known |= value == level;
      if (!known) die(125, "--log wants none, error, warning, info or debug, not '" + value + "'");
      ::setenv("SOFTRDMA_LOG", value.c_str(), 1);
    } else if (option == "--library") {
      library = value;
    } else {
      die(125, "unknown option " + std::string(option) + " (see --help)");
    }
  }
  if (i >= argc) die(125, "no command given (see --help)");
  if (library.empty()) library = default_library();
  check_library(library);
  std::string preload = library;
  // What was to be preloaded already stays, behind ours.
  if (const char* before = std::getenv("LD_PRELOAD"); before != nullptr && *before != '\0') {
    preload += ":" + std::string(before);
  }
  ::setenv("LD_PRELOAD", preload.c_str(), 1);
  ::execvp(argv[i], argv + i);
  const int error = errno;
  die(error == ENOENT ? 127 : 126, std::string(argv[i]) + ": " + std::strerror(error));
}
