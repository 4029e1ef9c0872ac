// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace replicate::test {

/// How a program ended, and what it said.
struct Ended {
  int status = -1;  ///< exit status; 128 + signal; -1: it had to be killed since it ran too long
  std::string out, err;
  std::chrono::milliseconds took{0};
};

/// sluice-replicate in a process group of its own, its output in pipes. What is still alive in the
/// group is killed on destruction. `environment`: an empty value removes the variable.
/// `descriptors_max`: the hard limit it runs under.
class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments,
                   const std::vector<std::pair<std::string, std::string>>& environment = {},
                   std::optional<unsigned> descriptors_max = {});
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  /// Reads until `text` has come on stdout or stderr. False: it ended or ran out of time without.
  [[nodiscard]] bool says(const std::string& text);
  void signal(int number) const;
  /// Waits for its end. The limit is for a machine that is very busy, not for how long it should
  /// take.
  Ended end(std::chrono::seconds limit = std::chrono::seconds{60});
  /// No process is left in its group, soon (they may be ending just now).
  [[nodiscard]] bool group_is_empty(std::chrono::seconds limit = std::chrono::seconds{10}) const;
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// The processes that it started and that live.
  [[nodiscard]] std::vector<pid_t> children() const;
  [[nodiscard]] const std::string& err() const { return ended_.err; }

 private:
  bool read_some(std::chrono::steady_clock::time_point deadline);
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  bool reaped_ = false;
  Ended ended_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// `sluice-replicate replica`, on whatever port is free.
class HandStarted : public Program {
 public:
  explicit HandStarted(const std::string& output, const std::vector<std::string>& more = {});
  /// Waits until it listens: "ADDR:PORT"; empty when it does not.
  [[nodiscard]] const std::string& at();
  [[nodiscard]] std::string port() { return at().substr(at().rfind(':') + 1); }

 private:
  std::string at_;
};

/// Runs it to its end.
Ended run(const std::vector<std::string>& arguments,
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
  /// The names in it, sorted.
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  std::filesystem::path path_;
};

void write_file(const std::string& path, std::size_t bytes);
[[nodiscard]] std::string content_of(const std::string& path);
/// $RXE_ADDR, else 127.0.0.1.
[[nodiscard]] std::string address();

}  // namespace replicate::test
