// SPDX-License-Identifier: BSD-3-Clause
#include "child.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace demo {
namespace {

using sluice::Result;
using sluice::Status;
using sluice::StatusCode;

constexpr std::size_t kLastLines = 8;

int milliseconds_left(Clock::time_point deadline) noexcept {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(left < 0 ? 0 : left);
}

/// glibc 2.36 declares pidfd_open without C linkage.
int open_pidfd(pid_t pid) noexcept {
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));  // close-on-exec
}

/// In the child, between fork and exec: only async-signal-safe calls.
[[noreturn]] void become(pid_t parent, const char* log, char* const* argv) noexcept {
  prctl(PR_SET_PDEATHSIG, SIGKILL);   // kept across the exec
  if (getppid() != parent) _exit(1);  // it was gone before that took hold
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int in = open("/dev/null", O_RDONLY);
  const int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (in < 0 || out < 0 || dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
      dup2(out, STDERR_FILENO) < 0)
    _exit(126);
  execvp(argv[0], argv);
  _exit(127);
}

}  // namespace

Status pause(Interrupts& interrupts, std::chrono::milliseconds time) {
  pollfd fd{interrupts.fd(), POLLIN, 0};
  poll(&fd, 1, static_cast<int>(time.count()));
  return interrupts.check();
}

// --- Folder ------------------------------------------------------------------------------------

Result<Folder> Folder::make(bool keep) {
  std::string path = (std::filesystem::temp_directory_path() / "sluice-kv-demo.XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr)
    return Status(StatusCode::io_error, "cannot make the folder " + path, errno);
  return Folder(std::move(path), keep);
}

Folder::~Folder() {
  std::error_code ignored;
  if (!path_.empty() && !keep_) std::filesystem::remove_all(path_, ignored);
}

// --- Port --------------------------------------------------------------------------------------

Result<Port> Port::reserve() {
  Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (fd.get() < 0 || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(fd.get(), generic, sizeof address) != 0 || getsockname(fd.get(), generic, &length) != 0)
    return Status(StatusCode::resource_exhausted, "no TCP port is to be had", errno);
  return Port(std::move(fd), ntohs(address.sin_port));
}

// --- Child -------------------------------------------------------------------------------------

Result<Child> Child::start(std::vector<std::string> words, std::string log) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string name = std::filesystem::path(log).stem().string();
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Status(StatusCode::resource_exhausted, "cannot start " + words[0], errno);
  if (pid == 0) become(parent, log.c_str(), argv.data());
  Child child(pid, Descriptor(open_pidfd(pid)), name, std::move(log));
  if (child.ended_.get() < 0)
    return Status(StatusCode::resource_exhausted, "no descriptor for the process " + name, errno);
  return child;
}

Child::~Child() {
  static_cast<void>(end({this}));  // who wants to know how it ended has asked before
}

int Child::reap() noexcept {
  int status = 0;
  waitpid(std::exchange(pid_, -1), &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void Child::kill() noexcept {
  if (!running()) return;
  ::kill(pid_, SIGKILL);
  static_cast<void>(reap());
}

Status Child::end(std::vector<Child*> children) noexcept {
  for (const Child* child : children)
    if (child->running()) ::kill(child->pid_, SIGTERM);
  const auto deadline = Clock::now() + kEndLimit;
  Status outcome;
  for (Child* child : children) {
    if (!child->running()) continue;
    pollfd fd{child->ended_.get(), POLLIN, 0};
    while (poll(&fd, 1, milliseconds_left(deadline)) < 0 && errno == EINTR) {
    }
    if (fd.revents == 0) ::kill(child->pid_, SIGKILL);
    const int status = child->reap();
    if (status != 0 && outcome.ok())
      outcome = {StatusCode::internal, fmt::format("{} ended with status {} after SIGTERM: {}",
                                                   child->name_, status, child->last_words())};
  }
  return outcome;
}

Result<int> Child::wait(Interrupts& interrupts, std::chrono::milliseconds limit) {
  for (const auto deadline = Clock::now() + limit; Clock::now() < deadline;) {
    pollfd fds[] = {{ended_.get(), POLLIN, 0}, {interrupts.fd(), POLLIN, 0}};
    poll(fds, 2, milliseconds_left(deadline));
    SLUICE_RETURN_IF_ERROR(interrupts.check());
    if (fds[0].revents != 0) return reap();
  }
  return Status(StatusCode::timed_out,
                fmt::format("{} did not end within {} s", name_,
                            std::chrono::duration_cast<std::chrono::seconds>(limit).count()));
}

Status Child::check() {
  if (!running()) return {};
  pollfd fd{ended_.get(), POLLIN, 0};
  if (poll(&fd, 1, 0) != 1) return {};
  const int status = reap();
  return {StatusCode::internal,
          fmt::format("{} ended with status {}; it said: {}", name_, status, last_words())};
}

std::string Child::last_words() const {
  std::ifstream file(log_);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
    if (lines.size() > kLastLines) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) text += "\n    " + line;
  return text.empty() ? "nothing" : text;
}

std::string beside_this_program(const std::string& name) {
  return std::filesystem::canonical("/proc/self/exe").replace_filename(name).string();
}

Status find_in_path(const std::string& program, const std::string& package) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');)
    if (!folder.empty() && access((folder + "/" + program).c_str(), X_OK) == 0) return {};
  return {StatusCode::not_supported,
          fmt::format("{} is not in PATH: install the package {}", program, package)};
}

}  // namespace demo
