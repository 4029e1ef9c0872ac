// SPDX-License-Identifier: BSD-3-Clause
#include "kv/store/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "crc32c.hpp"

namespace sluice::kv {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 20;

Status failure(const std::string& what, const std::string& path, int error) {
  StatusCode code = StatusCode::io_error;
  if (error == EACCES || error == EPERM || error == EROFS) code = StatusCode::permission_denied;
  if (error == ENOSPC || error == EDQUOT) code = StatusCode::resource_exhausted;
  return {code, "cannot " + what + " " + path, error};
}

class OpenFile {
 public:
  OpenFile(const std::string& path, int flags)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { (void)close(); }
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool close() { return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

Status sync_path(const std::string& path, int flags) {
  OpenFile file(path, flags);
  if (file.fd() < 0) return failure("open", path, errno);
  if (::fsync(file.fd()) != 0) return failure("sync", path, errno);
  return {};
}

std::string folder_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

}  // namespace

Status make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return failure("make the folder", path, error.value());
  return {};
}

Status sync_folder(const std::string& path) {
  return sync_path(path, O_RDONLY | O_DIRECTORY);
}

Status sync_file(const std::string& path) {
  return sync_path(path, O_RDONLY);
}

Status write_file_atomically(const std::string& path, const std::string& content) {
  const std::string temporary = path + ".tmp";
  {
    OpenFile file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    if (file.fd() < 0) return failure("write", temporary, errno);
    for (std::size_t done = 0; done < content.size();) {
      const ssize_t wrote = ::write(file.fd(), content.data() + done, content.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return failure("write", temporary, errno);
      done += static_cast<std::size_t>(wrote);
    }
    if (::fsync(file.fd()) != 0) return failure("sync", temporary, errno);
    if (!file.close()) return failure("close", temporary, errno);
  }
  SLUICE_RETURN_IF_ERROR(rename_path(temporary, path));
  return sync_folder(folder_of(path));
}

Result<std::string> read_file(const std::string& path, std::uint64_t most) {
  OpenFile file(path, O_RDONLY);
  if (file.fd() < 0) return failure("read", path, errno);
  std::string content;
  char piece[4096];
  for (;;) {  // bound: `most`
    const ssize_t got = ::read(file.fd(), piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failure("read", path, errno);
    if (got == 0) return content;
    content.append(piece, static_cast<std::size_t>(got));
    if (content.size() > most) return failure("take so much out of", path, EFBIG);
  }
}

Status rename_path(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0)
    return failure("rename to " + to + " the path", from, errno);
  return {};
}

Status remove_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return failure("remove", path, error.value());
  return {};
}

Result<FileSum> sum_file(const std::string& path) {
  OpenFile file(path, O_RDONLY | O_NOFOLLOW);
  if (file.fd() < 0) return failure("read", path, errno);
  struct stat facts {};
  if (::fstat(file.fd(), &facts) != 0) return failure("read", path, errno);
  if (!S_ISREG(facts.st_mode)) return failure("take for a file", path, EINVAL);
  FileSum sum;
  std::vector<std::byte> piece(kReadBytes);
  for (;;) {  // bound: the file
    const ssize_t got = ::read(file.fd(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failure("read", path, errno);
    if (got == 0) return sum;
    sum.bytes += static_cast<std::uint64_t>(got);
    sum.crc32c =
        replicate::crc32c(std::span(piece).first(static_cast<std::size_t>(got)), sum.crc32c);
  }
}

Result<StoreLock> StoreLock::take(const std::string& folder) {
  const std::string path = folder + "/LOCK";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return failure("write in the data folder: cannot open", path, errno);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    ::close(fd);
    if (error == EWOULDBLOCK)
      return Status(StatusCode::already_owned,
                    "the data folder " + folder + " is in use by another process");
    return failure("lock", path, error);
  }
  return StoreLock(fd);
}

StoreLock::~StoreLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace sluice::kv
