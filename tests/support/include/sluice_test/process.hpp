// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace sluice::test {

/// How long a test waits for what must come; only a hang lasts so long.
inline constexpr std::chrono::seconds kPatience{30};

/// A folder that is removed with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-test.XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

/// A child process; what it says (stdout and stderr) is read as it comes, line by line, by a
/// thread. It is killed on destruction, and by the kernel when the thread that started it ends:
/// start it from a thread that outlives it.
class Process {
 public:
  explicit Process(std::vector<std::string> words) {
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) std::abort();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      dup2(out[1], STDERR_FILENO);
      execvp(argv[0], argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
    reader_ = std::thread([this] { read_all(); });
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    kill();
    reader_.join();
    close(in_);
    close(out_);
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const {
    if (!reaped_) ::kill(pid_, number);
  }
  void freeze() const { signal(SIGSTOP); }
  void go_on() const { signal(SIGCONT); }
  /// kill -9, and waits for its end.
  void kill() {
    signal(SIGKILL);
    (void)end();
  }
  /// Waits for its end, and for all that it has said: the exit status, or 128 + the signal.
  int end() {
    if (reaped_) return status_;
    int status = 0;
    waitpid(pid_, &status, 0);
    reaped_ = true;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_; });  // its last words
    return status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  void say(std::string_view line) const {
    std::string text(line);
    text += '\n';
    if (write(in_, text.data(), text.size()) < 0) std::abort();
  }

  [[nodiscard]] std::size_t lines_so_far() const {
    const std::lock_guard lock(mutex_);
    return lines_.size();
  }
  [[nodiscard]] std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  /// The first line from number `from` on that has `text` in it; nothing: it has ended, or the time
  /// has.
  [[nodiscard]] std::optional<std::string> wait_for(std::string_view text, std::size_t from = 0,
                                                    std::chrono::milliseconds limit = kPatience) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    std::unique_lock lock(mutex_);
    for (std::size_t at = from;;) {
      for (; at < lines_.size(); ++at)
        if (lines_[at].find(text) != std::string::npos) return lines_[at];
      if (ended_ || changed_.wait_until(lock, deadline) == std::cv_status::timeout)
        return std::nullopt;
    }
  }

 private:
  void read_all() {
    std::string partial;
    char chunk[4096];
    for (ssize_t got = 0; (got = read(out_, chunk, sizeof chunk)) > 0;) {
      partial.append(chunk, static_cast<std::size_t>(got));
      const std::lock_guard lock(mutex_);
      for (auto end = partial.find('\n'); end != std::string::npos; end = partial.find('\n')) {
        lines_.push_back(partial.substr(0, end));
        partial.erase(0, end + 1);
      }
      changed_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
  bool reaped_ = false;
  int status_ = -1;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  bool ended_ = false;
  std::thread reader_;
};

}  // namespace sluice::test
