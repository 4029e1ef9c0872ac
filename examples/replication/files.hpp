// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "sha256.hpp"
#include "sluice/core/status.hpp"

namespace replicate {

/// An open descriptor; closed on destruction. Movable.
class Descriptor {
 public:
  Descriptor() noexcept = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { reset(); }
  [[nodiscard]] int get() const noexcept { return fd_; }
  void reset() noexcept;

 private:
  int fd_ = -1;
};

/// The file that is shipped: a regular file whose size is fixed when it is opened.
class InputFile {
 public:
  static sluice::Result<InputFile> open(const std::string& path);
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  /// Fills `out` from `offset`. io_error when the file has become shorter.
  [[nodiscard]] sluice::Status read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  InputFile(Descriptor fd, std::string path, std::uint64_t size) noexcept
      : fd_(std::move(fd)), path_(std::move(path)), size_(size) {}
  Descriptor fd_;
  std::string path_;
  std::uint64_t size_;
};

/// A file that gets its name only when it is complete: written as "<path>.partial", renamed by
/// commit(), removed otherwise. What stood under the name before stays until then.
/// One thread at a time.
class OutputFile {
 public:
  static sluice::Result<OutputFile> create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept = default;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Writes all the pieces at the end; `pieces` is used up. Does not allocate unless it fails.
  [[nodiscard]] sluice::Status append(std::span<iovec> pieces);
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  /// What was written is on the medium (fdatasync).
  [[nodiscard]] sluice::Status sync();
  /// Reads everything back.
  [[nodiscard]] sluice::Result<Digest> digest() const;
  /// Gives it its name; with `durable` so that it survives a power cut.
  [[nodiscard]] sluice::Status commit(bool durable);

  static std::string partial_name(const std::string& path) { return path + ".partial"; }

 private:
  OutputFile(Descriptor fd, std::string path) noexcept
      : fd_(std::move(fd)), path_(std::move(path)) {}
  Descriptor fd_;  ///< -1: committed or moved from
  std::string path_;
  std::uint64_t size_ = 0;
};

/// Where the copies go: a folder that the user named (made if it is not there), or a temporary one
/// that is removed with all that is in it.
class OutputFolder {
 public:
  /// An empty path makes a temporary folder; `keep` leaves it in place.
  static sluice::Result<OutputFolder> open(const std::string& path, bool keep);
  OutputFolder(OutputFolder&& other) noexcept
      : path_(std::exchange(other.path_, {})), remove_(other.remove_) {}
  OutputFolder& operator=(OutputFolder&&) = delete;
  ~OutputFolder();
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] bool temporary() const noexcept { return remove_; }
  [[nodiscard]] std::string copy_name(std::uint32_t replica) const;

 private:
  OutputFolder(std::string path, bool remove) noexcept : path_(std::move(path)), remove_(remove) {}
  std::string path_;
  bool remove_;
};

/// A file of at least 8 MiB that is surely there: this program itself, if it is that large, else
/// the smallest such program or library of the system. Empty: there is none.
[[nodiscard]] std::string find_default_input();

}  // namespace replicate
