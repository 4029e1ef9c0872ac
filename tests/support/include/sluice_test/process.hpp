// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "sluice_test/files.hpp"

namespace sluice::test {

/// How long a test waits for what must come; only a hang lasts so long.
inline constexpr std::chrono::seconds kPatience{30};

/// How a process ended, and what it said.
struct Ended {
  int status = -1;  ///< exit status; 128 + signal; -1: it had to be killed since it ran too long
  std::string out, err;
  std::chrono::milliseconds took{0};
};

/// What a child process has that its parent has not.
struct ProcessOptions {
  /// An empty value removes the variable.
  std::vector<std::pair<std::string, std::string>> environment = {};
  /// The hard limit of descriptors that it runs under.
  std::optional<unsigned> descriptors_max = {};
};

/// A child process in a process group of its own. What it says is read as it comes, by a thread:
/// stdout and stderr, each as one text, and both line by line. Its group is killed on destruction,
/// and it by the kernel when the thread that started it ends: start it from a thread that outlives
/// it. One thread uses it.
class Process {
 public:
  explicit Process(std::vector<std::string> words, const ProcessOptions& options = {});
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();

  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// SIGSTOP, and waits until none of its threads runs.
  void freeze() const;
  void go_on() const;
  /// kill -9, and waits for its end.
  void kill();
  /// Waits for its end, and for all that it has said: the exit status, or 128 + the signal.
  int end();
  /// Waits for its end and that of all that holds its output. The limit only ends a hang: the group
  /// is killed then.
  Ended finish(std::chrono::seconds limit = 2 * kPatience);
  /// To its standard input.
  void say(std::string_view line) const;

  /// Waits until `text` has come on stdout or stderr. False: all is said without, or the time over.
  [[nodiscard]] bool says(std::string_view text, std::chrono::milliseconds limit = kPatience);
  [[nodiscard]] std::string out() const;
  [[nodiscard]] std::string err() const;

  [[nodiscard]] std::size_t lines_so_far() const;
  [[nodiscard]] std::vector<std::string> lines() const;
  /// The first line from number `from` on that has `text` in it; nothing: it has ended, or the time
  /// has.
  [[nodiscard]] std::optional<std::string> wait_for(std::string_view text, std::size_t from = 0,
                                                    std::chrono::milliseconds limit = kPatience);

  /// No process is left in its group, soon (they may be ending just now).
  [[nodiscard]] bool group_is_empty(std::chrono::seconds limit = kPatience) const;
  /// The processes that it started and that live.
  [[nodiscard]] std::vector<pid_t> children() const;

 private:
  struct Stream {
    int fd = -1;  ///< of the reader's thread; -1: at its end
    std::string text = {};
    std::size_t line = 0;  ///< where in `text` the next line begins
  };

  void read_all();
  bool read_some(Stream& stream);
  void reap();

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  pid_t pid_ = -1;
  int in_ = -1;
  int stop_ = -1;  ///< an eventfd that ends the reader
  bool reaped_ = false;
  int status_ = -1;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Stream, 2> streams_;  ///< stdout, stderr
  std::vector<std::string> lines_;
  bool ended_ = false;  ///< all is said
  std::thread reader_;
};

/// Runs it to its end; says so in `err` if a process was left.
Ended run(const std::vector<std::string>& words, const ProcessOptions& options = {},
          std::chrono::seconds limit = 2 * kPatience);

}  // namespace sluice::test
