// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/core/rpma/handles.hpp"
#include "sluice/core/status.hpp"

/// What both examples need around what they show: arguments, a second process, a port, a folder.
namespace embedding {

enum ExitCode : int { kDone = 0, kFailed = 1, kUsage = 2 };

/// One line on stderr.
inline int complain(const char* program, const std::string& what, int code) {
  std::fprintf(stderr, "%s: %s\n", program, what.c_str());
  return code;
}

/// Of the RDMA device that is used if nothing else is said.
inline std::string default_address() {
  const char* const rxe = std::getenv("RXE_ADDR");
  return rxe != nullptr && *rxe != '\0' ? rxe : "127.0.0.1";
}

/// A number from 1 to `most` that is all of the word.
inline std::optional<std::uint32_t> number_in(const std::string& word, std::uint32_t most) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc{} || end != word.data() + word.size()) return {};
  if (number == 0 || number > most) return {};
  return number;
}

inline sluice::Status no_device(const std::string& address, const sluice::Status& why) {
  return {sluice::StatusCode::unreachable, "no RDMA device for " + address + " (" + why.message() +
                                               "): run this under softrdma-run"};
}

/// Listens on a port that is free. librpma does not tell which one the kernel gave it for 0, so one
/// is found by trying.
inline sluice::Result<std::unique_ptr<sluice::rpma::Endpoint>> listen_on_free_port(
    const std::shared_ptr<sluice::rpma::Peer>& peer, const std::string& address,
    std::uint16_t& port) {
  constexpr std::uint32_t kTries = 64, kFirst = 20000, kPorts = 12000;
  const auto start = static_cast<std::uint32_t>(::getpid()) * 7919U;
  for (std::uint32_t attempt = 0;; ++attempt) {
    port = static_cast<std::uint16_t>(kFirst + (start + attempt) % kPorts);
    auto endpoint = sluice::rpma::Endpoint::listen(peer, address, std::to_string(port));
    if (endpoint || attempt == kTries ||
        endpoint.status().code() != sluice::StatusCode::address_in_use)
      return endpoint;
  }
}

/// This program once more, with other arguments; it is killed when this one ends. -1: no process.
inline pid_t start_again(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kFailed);  // it was gone before that took hold
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execv("/proc/self/exe", argv.data());
  ::_exit(kFailed);
}

/// A folder that is removed with all that is in it.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& name)
      : path_((std::filesystem::temp_directory_path() / (name + ".XXXXXX")).string()),
        made_(::mkdtemp(path_.data()) != nullptr) {}
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (made_) std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] bool made() const noexcept { return made_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
  bool made_;
};

}  // namespace embedding
