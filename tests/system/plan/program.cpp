// SPDX-License-Identifier: BSD-3-Clause
#include "program.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace sluice::test {
namespace {

void take_output(const std::string& path, int fd) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || dup2(file, fd) < 0) _exit(126);
  if (file != fd) close(file);
}

/// A pipe whose reader has gone.
void take_broken_pipe(int fd) {
  int ends[2];
  if (pipe(ends) != 0 || dup2(ends[1], fd) < 0) _exit(126);
  close(ends[0]);
  close(ends[1]);
}

/// Those of the one who runs the test would decide what it sees.
void remove_own_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (std::strncmp(*entry, "SLUICE_", 7) == 0)
      names.emplace_back(*entry, std::strchr(*entry, '=') - *entry);
  for (const std::string& name : names) unsetenv(name.c_str());
}

}  // namespace

Ended run_plan(const std::vector<std::string>& arguments, const Environment& environment,
               const std::string& out) {
  const TemporaryFolder folder;
  std::vector<std::string> words{SLUICE_PLAN};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    take_output(folder / "err", STDERR_FILENO);
    if (out == "closed")
      close(STDOUT_FILENO);
    else if (out == "broken pipe")
      take_broken_pipe(STDOUT_FILENO);
    else
      take_output(out.empty() ? folder / "out" : out, STDOUT_FILENO);
    remove_own_variables();
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    execv(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid) std::abort();
  return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
          content_of(folder / "out"),
          content_of(folder / "err"),
          {}};
}

std::size_t lines_of(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace sluice::test
