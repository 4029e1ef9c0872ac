// SPDX-License-Identifier: BSD-3-Clause
#include "files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

namespace replicate {
namespace {

namespace fs = std::filesystem;
using sluice::Status;
using sluice::StatusCode;

constexpr std::uint64_t kDefaultInputMin = std::uint64_t{8} << 20;
constexpr std::size_t kReadBackChunk = std::size_t{1} << 20;

Status file_error(std::string_view tried, const std::string& path, int error) {
  const auto code =
      error == EACCES || error == EPERM ? StatusCode::permission_denied : StatusCode::io_error;
  return Status(code, fmt::format("cannot {} {}", tried, path), error);
}

Status fill(int fd, std::uint64_t offset, std::span<std::byte> out, const std::string& path) {
  while (!out.empty()) {  // bound: each round reads something or returns
    const ssize_t got = pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error("read", path, errno);
    if (got == 0)
      return Status(
          StatusCode::io_error,
          fmt::format("{} became shorter while it was read: it ends at {}", path, offset));
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Descriptor::reset() noexcept {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

sluice::Result<InputFile> InputFile::open(const std::string& path) {
  // O_NONBLOCK: a pipe without a writer must not hang; it is refused below.
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return file_error("open", path, errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return file_error("look at", path, errno);
  if (S_ISDIR(info.st_mode))
    return Status(StatusCode::io_error,
                  fmt::format("{} is a directory; --file takes a file", path));
  if (!S_ISREG(info.st_mode))
    return Status(StatusCode::io_error,
                  fmt::format("{} is not a regular file, so its size is not known ahead", path));
  return InputFile(std::move(fd), path, static_cast<std::uint64_t>(info.st_size));
}

Status InputFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  return fill(fd_.get(), offset, out, path_);
}

sluice::Result<OutputFile> OutputFile::create(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    return Status(StatusCode::io_error, fmt::format("{} is a directory; a file goes there", path));
  const std::string partial = partial_name(path);
  Descriptor fd(::open(partial.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (fd.get() < 0) return file_error("create", partial, errno);
  return OutputFile(std::move(fd), path);
}

OutputFile::~OutputFile() {
  if (fd_.get() >= 0) unlink(partial_name(path_).c_str());
}

Status OutputFile::append(std::span<iovec> pieces) {
  while (!pieces.empty()) {  // bound: each round writes something or returns
    const ssize_t put = pwritev(fd_.get(), pieces.data(), static_cast<int>(pieces.size()),
                                static_cast<off_t>(size_));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return file_error("write", partial_name(path_), errno);
    size_ += static_cast<std::uint64_t>(put);
    for (auto left = static_cast<std::size_t>(put); !pieces.empty();) {
      iovec& first = pieces.front();
      const std::size_t step = std::min(left, first.iov_len);
      first.iov_base = static_cast<char*>(first.iov_base) + step;
      first.iov_len -= step;
      left -= step;
      if (first.iov_len > 0) break;  // half written: once more from here
      pieces = pieces.subspan(1);
    }
  }
  return {};
}

Status OutputFile::sync() {
  if (fdatasync(fd_.get()) != 0) return file_error("sync", partial_name(path_), errno);
  return {};
}

sluice::Result<Digest> OutputFile::digest() const {
  std::vector<std::byte> chunk(
      std::min<std::uint64_t>(kReadBackChunk, std::max<std::uint64_t>(size_, 1)));
  Sha256 sha;
  for (std::uint64_t at = 0; at < size_;) {
    const auto part = std::span(chunk).first(std::min<std::uint64_t>(chunk.size(), size_ - at));
    SLUICE_RETURN_IF_ERROR(fill(fd_.get(), at, part, partial_name(path_)));
    sha.update(part);
    at += part.size();
  }
  return sha.finish();
}

Status OutputFile::commit(bool durable) {
  if (durable && fsync(fd_.get()) != 0) return file_error("sync", partial_name(path_), errno);
  if (std::rename(partial_name(path_).c_str(), path_.c_str()) != 0)
    return file_error(fmt::format("rename {} to", partial_name(path_)), path_, errno);
  fd_.reset();
  if (!durable) return {};
  const std::string parent = fs::path(path_).parent_path().string();
  const Descriptor folder(
      ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0 || fsync(folder.get()) != 0)
    return file_error("sync the folder of", path_, errno);
  return {};
}

sluice::Result<OutputFolder> OutputFolder::open(const std::string& path, bool keep) {
  if (!path.empty()) {
    if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST)
      return file_error("make the folder", path, errno);
    std::error_code ignored;
    if (!fs::is_directory(path, ignored))
      return Status(StatusCode::io_error, fmt::format("--output-dir {} is not a folder", path));
    if (access(path.c_str(), W_OK | X_OK) != 0) return file_error("write into", path, errno);
    return OutputFolder(path, false);
  }
  const char* const root = std::getenv("TMPDIR");
  std::string name =
      fmt::format("{}/sluice-replicate.XXXXXX", root != nullptr && *root != '\0' ? root : "/tmp");
  if (mkdtemp(name.data()) == nullptr)
    return file_error("make a temporary folder like", name, errno);
  return OutputFolder(name, !keep);
}

OutputFolder::~OutputFolder() {
  if (!remove_ || path_.empty()) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string OutputFolder::copy_name(std::uint32_t replica) const {
  return fmt::format("{}/replica-{}.copy", path_, replica);
}

std::string find_default_input() {
  std::error_code ignored;
  const fs::path self = fs::read_symlink("/proc/self/exe", ignored);
  if (!self.empty() && fs::file_size(self, ignored) >= kDefaultInputMin && !ignored)
    return self.string();

  std::string best;
  std::uint64_t best_size = ~std::uint64_t{0};
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
                             "/usr/lib64", "/usr/lib", "/usr/bin"}) {
    for (const auto& entry :
         fs::directory_iterator(folder, fs::directory_options::skip_permission_denied, ignored)) {
      if (!entry.is_regular_file(ignored) || entry.is_symlink(ignored)) continue;
      const std::uint64_t size = entry.file_size(ignored);
      if (ignored || size < kDefaultInputMin || size >= best_size) continue;
      if (access(entry.path().c_str(), R_OK) != 0) continue;
      best = entry.path().string();
      best_size = size;
    }
  }
  return best;
}

}  // namespace replicate
