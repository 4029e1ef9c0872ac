// SPDX-License-Identifier: BSD-3-Clause
#include "output.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "exit_code.hpp"

namespace sluice::plan_tool {
namespace {

constexpr std::size_t kFileMax = std::size_t{64} << 20;

/// A file, closed at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }
  /// Now, with its error: a network file system tells only here that it is full.
  [[nodiscard]] bool close() noexcept { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

Status file_error(const std::string& path, const char* what, int error) {
  return {StatusCode::io_error, path + ": " + what + ": " + std::strerror(error), error};
}

Status write_all(int fd, std::string_view text, const std::string& name) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return file_error(name, "cannot be written", errno);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace

Status write_stdout(std::string_view text) {
  return write_all(STDOUT_FILENO, text, "standard output");
}

Status write_file(const std::string& path, std::string_view content) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) return file_error(path, "cannot be written", errno);
  SLUICE_RETURN_IF_ERROR(write_all(file.get(), content, path));
  return file.close() ? Status{} : file_error(path, "cannot be written", errno);
}

Result<std::string> read_file(const std::string& path) {
  // Nonblocking: a FIFO that nobody writes to must not hang us before it is refused.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return file_error(path, "cannot be read", errno);
  struct stat what {};
  if (::fstat(file.get(), &what) != 0) return file_error(path, "cannot be read", errno);
  if (S_ISDIR(what.st_mode)) return file_error(path, "cannot be read", EISDIR);
  if (!S_ISREG(what.st_mode))
    return Status(StatusCode::invalid_argument, path + ": cannot be read: it is no regular file");
  std::string content;
  std::array<char, 1U << 14U> chunk{};
  while (content.size() <= kFileMax) {
    const ssize_t got = ::read(file.get(), chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error(path, "cannot be read", errno);
    if (got == 0) return content;
    content.append(chunk.data(), static_cast<std::size_t>(got));
  }
  return Status(StatusCode::invalid_argument, path + ": cannot be read: it has more than " +
                                                  std::to_string(kFileMax >> 20U) + " MiB");
}

void say(std::string_view text) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
}

int finish(const Status& outcome, int code) {
  if (outcome.ok()) return kExitOk;
  // The reader of a pipe that has seen enough (head) wants to hear nothing about it.
  if (outcome.os_error() != EPIPE) say("sluice-plan: " + outcome.message());
  return code;
}

}  // namespace sluice::plan_tool
