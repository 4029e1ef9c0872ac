// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace embedding::test {

/// How a program ended, and what it said.
struct Ended {
  int status = -1;  ///< exit status; 128 + signal; -1: it had to be killed since it ran too long
  std::string out, err;
};

/// A program in a process group of its own, its output in pipes. What is still alive in the group
/// is killed on destruction. `environment`: an empty value removes the variable.
class Program {
 public:
  explicit Program(std::vector<std::string> words,
                   const std::vector<std::pair<std::string, std::string>>& environment = {});
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  /// Reads until `text` has come. False: it ended or ran out of time without.
  [[nodiscard]] bool says(const std::string& text);
  /// Waits until it listens; the port, or empty.
  [[nodiscard]] std::string port();
  void signal(int number) const;
  /// Waits for its end. The limit only ends a hang.
  Ended end(std::chrono::seconds limit = std::chrono::seconds{60});
  /// No process is left in its group, soon (they may be ending just now).
  [[nodiscard]] bool group_is_empty() const;
  [[nodiscard]] std::vector<pid_t> children() const;

 private:
  bool read_some(std::chrono::steady_clock::time_point deadline);
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  bool reaped_ = false;
  Ended ended_;
};

/// Runs it to its end; says so in `err` if a process was left.
Ended run(const std::vector<std::string>& words,
          const std::vector<std::pair<std::string, std::string>>& environment = {});

/// A folder that is removed with all that is in it.
class Folder {
 public:
  Folder();
  ~Folder();
  [[nodiscard]] std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace embedding::test
