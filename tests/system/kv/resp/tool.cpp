// SPDX-License-Identifier: BSD-3-Clause
#include "tool.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>

#include "sluice/core/status.hpp"

namespace sluice::kv::test {
namespace {

using Clock = std::chrono::steady_clock;

/// Only ends a hang.
constexpr std::chrono::seconds kLimit{120};

class Tool {
 public:
  Tool(pid_t pid, int in, int out) : pid_(pid), in_(in), out_(out) {}
  Tool(const Tool&) = delete;
  Tool& operator=(const Tool&) = delete;
  ~Tool() {
    end_input();
    if (out_ >= 0) close(out_);
  }

  void end_input() {
    if (in_ >= 0 && in_ != out_) close(in_);
    in_ = -1;
  }

  /// Writes `input` as the program takes it, and reads what it says, until `done` or its end.
  template <typename Done>
  void talk(std::string_view input, Done&& done) {
    while (!done() && Clock::now() < deadline_) {  // bound: the deadline
      pollfd fds[2]{{out_, POLLIN, 0}, {input.empty() ? -1 : in_, POLLOUT, 0}};
      if (poll(fds, 2, 1000) < 0 && errno != EINTR) return;
      if ((fds[1].revents & (POLLOUT | POLLERR)) != 0) {
        const ssize_t put = write(in_, input.data(), input.size());
        if (put <= 0 && errno != EAGAIN) return;
        if (put > 0) input.remove_prefix(static_cast<std::size_t>(put));
        if (input.empty() && in_ != out_) end_input();
      }
      if (fds[0].revents != 0) {
        char chunk[4096];
        const ssize_t got = read(out_, chunk, sizeof chunk);
        if (got <= 0) return;  // the end; EIO on a terminal
        result_.out.append(chunk, static_cast<std::size_t>(got));
      }
    }
  }

  [[nodiscard]] const std::string& said() const { return result_.out; }

  [[nodiscard]] ToolResult finish() {
    talk({}, [] { return false; });
    const bool late = Clock::now() >= deadline_;
    if (late) kill(pid_, SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
    if (!late) result_.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return result_;
  }

 private:
  const Clock::time_point deadline_ = Clock::now() + kLimit;
  pid_t pid_;
  int in_, out_;
  ToolResult result_;
};

std::vector<char*> argv_of(std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return argv;
}

[[noreturn]] void become(char* const* argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setenv("HOME", "/nonexistent", 1);  // neither a history nor settings of whoever runs the test
  setenv("TERM", "dumb", 1);
  execv(argv[0], argv);
  _exit(127);
}

}  // namespace

ToolResult run_tool(const std::vector<std::string>& arguments, const std::string& input) {
  std::vector<std::string> words = arguments;
  const auto argv = argv_of(words);
  int in[2], out[2];
  SLUICE_CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0, "no pipes for a tool");
  const pid_t pid = fork();
  SLUICE_CHECK(pid >= 0, "no process for a tool");
  if (pid == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(out[1], STDERR_FILENO);
    become(argv.data());
  }
  close(in[0]);
  close(out[1]);
  fcntl(in[1], F_SETFL, O_NONBLOCK);
  Tool tool(pid, in[1], out[0]);
  if (input.empty()) tool.end_input();
  tool.talk(input, [] { return false; });
  return tool.finish();
}

ToolResult run_on_terminal(const std::vector<std::string>& arguments, const std::string& prompt,
                           const std::vector<std::string>& lines) {
  std::vector<std::string> words = arguments;
  const auto argv = argv_of(words);
  int terminal = -1;
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, nullptr);
  SLUICE_CHECK(pid >= 0, "no terminal for a tool");
  if (pid == 0) become(argv.data());
  fcntl(terminal, F_SETFD, FD_CLOEXEC);
  Tool tool(pid, terminal, terminal);
  std::size_t seen = 0;
  for (const std::string& line : lines) {
    std::size_t at = std::string::npos;
    tool.talk({}, [&] { return (at = tool.said().find(prompt, seen)) != std::string::npos; });
    if (at == std::string::npos) break;
    seen = tool.said().size();
    const std::string typed = line + "\n";
    std::size_t before = tool.said().size();
    // What is typed comes back as an echo, from the terminal or the program.
    tool.talk(typed, [&] { return tool.said().size() > before; });
  }
  return tool.finish();
}

}  // namespace sluice::kv::test
