// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "sluice/core/status.hpp"

/// The few things that the store does to files itself. All errors name the path and keep the errno.
namespace sluice::kv {

/// Made with its parents if it is not there.
[[nodiscard]] Status make_folder(const std::string& path);
/// What was created, renamed or removed in it survives a power cut.
[[nodiscard]] Status sync_folder(const std::string& path);
/// Its content survives a power cut.
[[nodiscard]] Status sync_file(const std::string& path);
/// Replaces the file as a whole: after a crash it is the old one or the new one.
[[nodiscard]] Status write_file_atomically(const std::string& path, const std::string& content);
/// io_error when it is longer than `most` bytes.
[[nodiscard]] Result<std::string> read_file(const std::string& path, std::uint64_t most);
[[nodiscard]] Status rename_path(const std::string& from, const std::string& to);
/// With all that is in it; not an error when it is not there.
[[nodiscard]] Status remove_folder(const std::string& path);
struct FileSum {
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
};
/// Reads it through.
[[nodiscard]] Result<FileSum> sum_file(const std::string& path);

/// A folder that no other process opens as well, as long as this lives (flock(2) on "LOCK" in it).
class StoreLock {
 public:
  static Result<StoreLock> take(const std::string& folder);
  StoreLock(StoreLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  StoreLock& operator=(StoreLock&&) = delete;
  ~StoreLock();

 private:
  explicit StoreLock(int fd) noexcept : fd_(fd) {}
  int fd_;
};

}  // namespace sluice::kv
