// SPDX-License-Identifier: BSD-3-Clause
#include "program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace embedding::test {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;
constexpr std::chrono::seconds kPatience{30};

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

}  // namespace

Program::Program(std::vector<std::string> words,
                 const std::vector<std::pair<std::string, std::string>>& environment) {
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // Orphans become this process's children, so that group_is_empty() can tell the dead from the
  // living.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) ::abort();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    for (const auto& [name, value] : environment)
      value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::setpgid(pid_, pid_);
  ::close(out[1]);
  ::close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Program::~Program() {
  ::killpg(pid_, SIGKILL);
  if (!reaped_) ::waitpid(pid_, nullptr, 0);
  if (out_ >= 0) ::close(out_);
  if (err_ >= 0) ::close(err_);
}

/// False: both pipes are at their end, or the time is over.
bool Program::read_some(Clock::time_point deadline) {
  std::array<pollfd, 2> fds{{{out_, POLLIN, 0}, {err_, POLLIN, 0}}};
  if (out_ < 0 && err_ < 0) return false;
  const int ready = ::poll(fds.data(), fds.size(), milliseconds_until(deadline));
  if (ready < 0 && errno == EINTR) return true;
  if (ready <= 0) return false;
  std::array<char, 4096> chunk;
  for (auto [fd, text] : {std::pair{&out_, &ended_.out}, std::pair{&err_, &ended_.err}}) {
    if (fds[fd == &out_ ? 0 : 1].revents == 0) continue;
    const ssize_t got = ::read(*fd, chunk.data(), chunk.size());
    if (got > 0) {
      text->append(chunk.data(), static_cast<std::size_t>(got));
    } else {
      ::close(*fd);
      *fd = -1;
    }
  }
  return true;
}

bool Program::says(const std::string& text) {
  const auto deadline = Clock::now() + kPatience;
  const auto said = [&] { return (ended_.out + ended_.err).find(text) != std::string::npos; };
  while (!said() && read_some(deadline)) {
  }
  return said();
}

std::string Program::port() {
  const std::string before = "listening on ";
  if (!says(before) || !says("\n")) return {};
  const auto colon = ended_.out.find(':', ended_.out.find(before));
  const auto end = ended_.out.find_first_not_of("0123456789", colon + 1);
  return ended_.out.substr(colon + 1, end - colon - 1);
}

void Program::signal(int number) const {
  ::kill(pid_, number);
}

Ended Program::end(std::chrono::seconds limit) {
  const auto deadline = Clock::now() + limit;
  while (read_some(deadline)) {
  }
  if (out_ >= 0 || err_ >= 0) {  // it, or a process that it left, still holds its output
    ::killpg(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    reaped_ = true;
    return ended_;
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  reaped_ = true;
  ended_.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return ended_;
}

bool Program::group_is_empty() const {
  const auto deadline = Clock::now() + kPatience;
  while (::killpg(pid_, 0) == 0) {  // bound: the deadline; a group has no descriptor to wait on
    if (Clock::now() > deadline) return false;
    if (::waitpid(-pid_, nullptr, WNOHANG) <= 0) std::this_thread::yield();
  }
  return errno == ESRCH;
}

std::vector<pid_t> Program::children() const {
  std::vector<pid_t> pids;
  std::ifstream in("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children");
  for (pid_t pid; in >> pid;) pids.push_back(pid);
  return pids;
}

Ended run(const std::vector<std::string>& words,
          const std::vector<std::pair<std::string, std::string>>& environment) {
  Program program(words, environment);
  Ended ended = program.end();
  if (!program.group_is_empty()) ended.err += "\n[processes were left]";
  return ended;
}

Folder::Folder() {
  std::string name = (fs::temp_directory_path() / "embedding-test.XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) ::abort();
  path_ = name;
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace embedding::test
