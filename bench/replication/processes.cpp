// SPDX-License-Identifier: BSD-3-Clause
#include "processes.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>

namespace sluice::bench {
namespace {

constexpr std::size_t kLastLines = 5;

sigset_t ending_signals() noexcept {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

std::string last_lines(const std::string& path) {
  std::ifstream file(path);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    lines.push_back(line);
    if (lines.size() > kLastLines) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : " | ") + line;
  return text.empty() ? "nothing" : text;
}

/// In the child, between fork and exec: only async-signal-safe calls.
[[noreturn]] void become_server(pid_t parent, const char* log, char* const* argv) noexcept {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);     // kept across the exec
  if (::getppid() != parent) ::_exit(1);  // it was gone before that took hold
  ::setpgid(0, 0);
  const sigset_t held = ending_signals();
  ::sigprocmask(SIG_UNBLOCK, &held, nullptr);
  const int null = ::open("/dev/null", O_RDONLY);
  const int out = ::open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (null < 0 || out < 0 || ::dup2(null, STDIN_FILENO) < 0 || ::dup2(out, STDOUT_FILENO) < 0 ||
      ::dup2(out, STDERR_FILENO) < 0)
    ::_exit(126);
  ::execvp(argv[0], argv);
  ::_exit(127);
}

}  // namespace

// --- DataFolder --------------------------------------------------------------------------------

Result<DataFolder> DataFolder::make() {
  const char* const asked = std::getenv("TMPDIR");
  std::string path = asked != nullptr && *asked != '\0' ? asked : "/var/tmp";
  path += "/sluice-bench.XXXXXX";
  if (::mkdtemp(path.data()) == nullptr)
    return Status(StatusCode::io_error, "could not make the folder " + path, errno);
  return DataFolder(std::move(path));
}

DataFolder::~DataFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

bool DataFolder::on_disk() const noexcept {
  struct statfs facts {};
  if (::statfs(path_.c_str(), &facts) != 0) return true;
  return facts.f_type != TMPFS_MAGIC && facts.f_type != RAMFS_MAGIC;
}

Result<std::string> DataFolder::make_folder(const std::string& name) const {
  std::string path = path_ + "/" + name;
  std::error_code why;
  if (!std::filesystem::create_directory(path, why))
    return Status(StatusCode::io_error, "could not make the folder " + path, why.value());
  return path;
}

// --- ReservedPort ------------------------------------------------------------------------------

Result<ReservedPort> ReservedPort::take() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Status(StatusCode::resource_exhausted, "no socket", errno);
  ReservedPort port(fd, 0);
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd, generic, sizeof address) != 0 || ::getsockname(fd, generic, &length) != 0)
    return Status(StatusCode::resource_exhausted, "no port of 127.0.0.1 is to be had", errno);
  port.number_ = ntohs(address.sin_port);
  return port;
}

ReservedPort::~ReservedPort() {
  if (fd_ >= 0) ::close(fd_);
}

// --- HeldSignals -------------------------------------------------------------------------------

HeldSignals::HeldSignals() noexcept {
  const sigset_t set = ending_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, &before_);
}

HeldSignals::~HeldSignals() {
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

Status HeldSignals::check() const {
  sigset_t pending;
  if (::sigpending(&pending) == 0 &&
      (::sigismember(&pending, SIGINT) == 1 || ::sigismember(&pending, SIGTERM) == 1))
    return {StatusCode::cancelled, "interrupted"};
  return {};
}

// --- ServerProcess -----------------------------------------------------------------------------

Result<ServerProcess> ServerProcess::start(std::vector<std::string> words, std::string log) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return Status(StatusCode::resource_exhausted, "could not start " + words[0], errno);
  if (pid == 0) become_server(parent, log.c_str(), argv.data());
  return ServerProcess(pid, std::move(log));
}

Status ServerProcess::check() {
  int status = 0;
  if (pid_ < 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return {};
  pid_ = -1;
  const std::string how = WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                              : "status " + std::to_string(WEXITSTATUS(status));
  return {StatusCode::internal, "ended with " + how + "; it said: " + last_lines(log_)};
}

double ServerProcess::cpu_ms() const noexcept {
  clockid_t clock = 0;
  timespec time{};
  if (pid_ < 0 || ::clock_getcpuclockid(pid_, &clock) != 0 || ::clock_gettime(clock, &time) != 0)
    return 0;
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

ServerProcess::~ServerProcess() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGTERM);
  for (int waited = 0; ::waitpid(pid_, nullptr, WNOHANG) == 0; ++waited) {
    if (waited == kEndLimitMs) ::kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::string find_in_path(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string file = folder + "/" + program;
    if (!folder.empty() && ::access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

}  // namespace sluice::bench
