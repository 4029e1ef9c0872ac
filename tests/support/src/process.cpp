// SPDX-License-Identifier: BSD-3-Clause
#include "sluice_test/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>

namespace sluice::test {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (auto& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// This process's environment with these changes.
std::vector<std::string> environment_with(
    const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto name = text.substr(0, text.find('='));
    if (std::ranges::none_of(changes, [&](const auto& change) { return change.first == name; }))
      entries.emplace_back(text);
  }
  for (const auto& [name, value] : changes)
    if (!value.empty()) entries.push_back(name + "=" + value);
  return entries;
}

struct Pipe {
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    read = ends[0];
    write = ends[1];
  }
  int read, write;
};

}  // namespace

Process::Process(std::vector<std::string> words, const ProcessOptions& options) {
  const auto argv = pointers_to(words);
  auto entries = environment_with(options.environment);
  const auto environment = pointers_to(entries);
  // Orphans become this process's children, so that group_is_empty() can tell the dead from the
  // living.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const Pipe in, out, err;
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) std::abort();
  if (pid_ == 0) {  // other threads of the parent may be anywhere: nothing that allocates
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    ::setpgid(0, 0);
    ::dup2(in.read, STDIN_FILENO);
    ::dup2(out.write, STDOUT_FILENO);
    ::dup2(err.write, STDERR_FILENO);
    if (options.descriptors_max) {
      const rlimit limit{*options.descriptors_max, *options.descriptors_max};
      ::setrlimit(RLIMIT_NOFILE, &limit);
    }
    ::execvpe(argv[0], argv.data(), environment.data());
    ::_exit(127);
  }
  ::setpgid(pid_, pid_);
  for (const int fd : {in.read, out.write, err.write}) ::close(fd);
  in_ = in.write;
  streams_[0].fd = out.read;
  streams_[1].fd = err.read;
  stop_ = ::eventfd(0, EFD_CLOEXEC);
  if (stop_ < 0) std::abort();
  reader_ = std::thread([this] { read_all(); });
}

Process::~Process() {
  ::killpg(pid_, SIGKILL);
  reap();
  // Whatever has left the group may hold the output still.
  ::eventfd_write(stop_, 1);
  reader_.join();
  for (const int fd : {in_, stop_, streams_[0].fd, streams_[1].fd})
    if (fd >= 0) ::close(fd);
}

void Process::signal(int number) const {
  if (!reaped_) ::kill(pid_, number);
}
void Process::freeze() const {
  signal(SIGSTOP);
  if (reaped_) return;
  // The last of its threads takes a while to stop: until then it still does something. Nothing is
  // reaped here.
  siginfo_t info;
  ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT);
}
void Process::go_on() const {
  signal(SIGCONT);
}
void Process::kill() {
  signal(SIGKILL);
  (void)end();
}

void Process::reap() {
  if (reaped_) return;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  reaped_ = true;
  status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int Process::end() {
  reap();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_; });  // its last words
  return status_;
}

Ended Process::finish(std::chrono::seconds limit) {
  std::unique_lock lock(mutex_);
  const bool ended = changed_.wait_for(lock, limit, [&] { return ended_; });
  Ended result{-1, streams_[0].text, streams_[1].text, {}};
  lock.unlock();
  if (!ended) ::killpg(pid_, SIGKILL);
  reap();
  if (ended) result.status = status_;
  result.took = std::chrono::ceil<std::chrono::milliseconds>(Clock::now() - start_);
  return result;
}

void Process::say(std::string_view line) const {
  std::string text(line);
  text += '\n';
  if (::write(in_, text.data(), text.size()) < 0) std::abort();
}

bool Process::says(std::string_view text, std::chrono::milliseconds limit) {
  const auto said = [&] {
    return std::ranges::any_of(streams_, [&](const Stream& stream) {
      return stream.text.find(text) != std::string::npos;
    });
  };
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [&] { return ended_ || said(); });
  return said();
}

std::string Process::out() const {
  const std::lock_guard lock(mutex_);
  return streams_[0].text;
}
std::string Process::err() const {
  const std::lock_guard lock(mutex_);
  return streams_[1].text;
}
std::size_t Process::lines_so_far() const {
  const std::lock_guard lock(mutex_);
  return lines_.size();
}
std::vector<std::string> Process::lines() const {
  const std::lock_guard lock(mutex_);
  return lines_;
}

std::optional<std::string> Process::wait_for(std::string_view text, std::size_t from,
                                             std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  std::unique_lock lock(mutex_);
  for (std::size_t at = from;;) {
    for (; at < lines_.size(); ++at)
      if (lines_[at].find(text) != std::string::npos) return lines_[at];
    if (ended_ || changed_.wait_until(lock, deadline) == std::cv_status::timeout)
      return std::nullopt;
  }
}

/// False at the stream's end.
bool Process::read_some(Stream& stream) {
  std::array<char, 4096> chunk;
  const ssize_t got = ::read(stream.fd, chunk.data(), chunk.size());
  if (got < 0 && errno == EINTR) return true;
  if (got <= 0) return false;
  const std::lock_guard lock(mutex_);
  stream.text.append(chunk.data(), static_cast<std::size_t>(got));
  for (auto end = stream.text.find('\n', stream.line); end != std::string::npos;
       end = stream.text.find('\n', stream.line)) {
    lines_.push_back(stream.text.substr(stream.line, end - stream.line));
    stream.line = end + 1;
  }
  changed_.notify_all();
  return true;
}

void Process::read_all() {
  auto& [out, err] = streams_;
  while (out.fd >= 0 || err.fd >= 0) {
    std::array<pollfd, 3> fds{{{stop_, POLLIN, 0}, {out.fd, POLLIN, 0}, {err.fd, POLLIN, 0}}};
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;  // a signal
    if (fds[0].revents != 0) break;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      if (fds[i + 1].revents == 0 || read_some(streams_[i])) continue;
      ::close(streams_[i].fd);
      streams_[i].fd = -1;
    }
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

bool Process::group_is_empty(std::chrono::seconds limit) const {
  const auto deadline = Clock::now() + limit;
  // Bound: the deadline. There is no descriptor for a group to wait on.
  while (::killpg(pid_, 0) == 0) {
    if (Clock::now() > deadline) return false;
    // The leader's own status is for reap() to take.
    if (!reaped_ || ::waitpid(-pid_, nullptr, WNOHANG) <= 0) std::this_thread::yield();
  }
  return errno == ESRCH;
}

std::vector<pid_t> Process::children() const {
  std::vector<pid_t> pids;
  std::ifstream in("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children");
  for (pid_t pid; in >> pid;) pids.push_back(pid);
  return pids;
}

Ended run(const std::vector<std::string>& words, const ProcessOptions& options,
          std::chrono::seconds limit) {
  Process process(words, options);
  Ended ended = process.finish(limit);
  if (!process.group_is_empty()) ended.err += "\n[processes were left]";
  return ended;
}

}  // namespace sluice::test
