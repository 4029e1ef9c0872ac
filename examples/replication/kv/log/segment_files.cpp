// SPDX-License-Identifier: BSD-3-Clause
#include "segment_files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>

namespace sluice::kv {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSegmentPrefix = "segment-";
constexpr std::string_view kFreePrefix = "free-";
constexpr std::string_view kUnfinished = "making.tmp";
constexpr std::string_view kLockName = "lock";
constexpr std::chrono::seconds kRetryInterval{1};
constexpr std::size_t kZerosAtOnce = 1024 * 1024;

std::optional<std::uint64_t> number_after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value, 16);
  if (error != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  return value;
}

std::string numbered(const std::string& folder, std::string_view prefix, std::uint64_t number) {
  char digits[17];
  (void)std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(number));
  return folder + "/" + std::string(prefix) + digits;
}

/// A salt that no client can guess: what it stores could otherwise pass for an entry.
Result<std::uint64_t> random_salt() {
  std::uint64_t salt = 0;
  while (::getrandom(&salt, sizeof salt, 0) != ssize_t{sizeof salt}) {  // bound: signals
    if (errno != EINTR) return system_failure("get a random salt for a segment", errno);
  }
  return salt;
}

Status rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return {};
  return system_failure("rename '" + from + "' to '" + to + "'", errno);
}

}  // namespace

AlignedBytes allocate_aligned(std::size_t bytes) {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(format::kBlock, bytes));
  SLUICE_CHECK(memory != nullptr, "no memory for a log's buffer");
  return AlignedBytes(memory);
}

Status system_failure(std::string what, int error) {
  switch (error) {
    case EACCES:
    case EPERM:
    case EROFS: return {StatusCode::permission_denied, std::move(what), error};
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE: return {StatusCode::resource_exhausted, std::move(what), error};
    default: return {StatusCode::io_error, std::move(what), error};
  }
}

Status write_all(int fd, const std::string& path, std::span<const std::byte> bytes,
                 std::uint64_t offset) {
  while (!bytes.empty()) {  // bound: each turn writes something
    const ssize_t done = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      return system_failure("write " + std::to_string(bytes.size()) + " bytes at offset " +
                                std::to_string(offset) + " of '" + path + "'",
                            done < 0 ? errno : ENOSPC);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return {};
}

Result<std::size_t> read_some(int fd, const std::string& path, std::span<std::byte> out,
                              std::uint64_t offset) {
  std::size_t total = 0;
  while (total < out.size()) {  // bound: each turn reads something
    const ssize_t done =
        ::pread(fd, out.data() + total, out.size() - total, static_cast<off_t>(offset + total));
    if (done < 0 && errno == EINTR) continue;
    // With O_DIRECT a file that ends within a block has nothing to read behind that.
    if (done < 0 && errno == EINVAL && total % format::kBlock != 0) break;
    if (done < 0) {
      return system_failure(
          "read at offset " + std::to_string(offset + total) + " of '" + path + "'", errno);
    }
    if (done == 0) break;
    total += static_cast<std::size_t>(done);
  }
  return total;
}

Status sync_data(int fd, const std::string& path) {
  if (::fdatasync(fd) == 0) return {};
  return system_failure("fdatasync '" + path + "'", errno);
}

Status sync_log_folder(const std::string& folder) {
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return system_failure("open the folder '" + folder + "'", errno);
  if (::fsync(fd.get()) != 0) return system_failure("fsync the folder '" + folder + "'", errno);
  return {};
}

std::string segment_path(const std::string& folder, std::uint64_t generation) {
  return numbered(folder, kSegmentPrefix, generation);
}

Result<Listing> list_folder(const std::string& folder) {
  Listing listing;
  std::error_code error;
  fs::directory_iterator files(folder, error);
  if (error) return system_failure("list the folder '" + folder + "'", error.value());
  for (; files != fs::directory_iterator(); files.increment(error)) {
    if (error) break;
    const std::string name = files->path().filename().string();
    const std::string path = folder + "/" + name;
    if (const auto generation = number_after(name, kSegmentPrefix)) {
      listing.segments.push_back({path, *generation});
    } else if (const auto number = number_after(name, kFreePrefix)) {
      listing.free.push_back({path, *number});
    } else if (name == kUnfinished) {
      listing.unfinished.push_back(path);
    }
  }
  if (error) return system_failure("list the folder '" + folder + "'", error.value());
  const auto by_number = [](const NamedFile& a, const NamedFile& b) { return a.number < b.number; };
  std::sort(listing.segments.begin(), listing.segments.end(), by_number);
  std::sort(listing.free.begin(), listing.free.end(), by_number);
  return listing;
}

Result<FolderLock> FolderLock::take(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0777) == 0) {
    const fs::path parent = fs::path(folder).parent_path();
    SLUICE_RETURN_IF_ERROR(sync_log_folder(parent.empty() ? "." : parent.string()));
  } else if (errno != EEXIST) {
    return system_failure("make the log's folder '" + folder + "'", errno);
  }
  const std::string path = folder + "/" + std::string(kLockName);
  Descriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (fd.get() < 0) return system_failure("open the log's lock '" + path + "'", errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return system_failure("lock '" + path + "'", errno);
    return Status(StatusCode::already_owned,
                  "open the log in '" + folder +
                      "': another process has it open; end that one, or give this one a folder of "
                      "its own");
  }
  return FolderLock(std::move(fd));
}

Result<SegmentFile> open_segment(const std::string& path, const format::SegmentHeader& header,
                                 bool direct) {
  SegmentFile file{path, header, {}};
  // Some file systems have no O_DIRECT (tmpfs before Linux 6.6).
  if (direct) file.fd = Descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT));
  if (file.fd.get() < 0) file.fd = Descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.fd.get() < 0) return system_failure("open '" + path + "'", errno);
  return file;
}

SegmentFiles::SegmentFiles(FileOptions options, std::uint64_t first_generation,
                           std::vector<NamedFile> free)
    : options_(std::move(options)), next_generation_(first_generation) {
  for (NamedFile& file : free) {
    next_free_number_ = std::max(next_free_number_, file.number + 1);
    free_.push_back(std::move(file.path));
  }
  thread_ = std::thread([this] { run(); });
}

SegmentFiles::~SegmentFiles() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SegmentFiles::request() {
  {
    const std::lock_guard lock(mutex_);
    if (ready_) return;
    wanted_ = true;
  }
  changed_.notify_all();
}

Result<SegmentFile> SegmentFiles::take() {
  std::unique_lock lock(mutex_);
  if (!ready_) {
    if (!failure_.ok() && Clock::now() - failed_at_ < kRetryInterval) return failure_;
    failure_ = {};
    wanted_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return ready_ || !failure_.ok(); });
    if (!ready_) return failure_;
  }
  SegmentFile file = std::move(*ready_);
  ready_.reset();
  return file;
}

bool SegmentFiles::ready() const {
  const std::lock_guard lock(mutex_);
  return ready_.has_value();
}

void SegmentFiles::offer(SegmentFile file) {
  const std::lock_guard lock(mutex_);
  SLUICE_CHECK(!ready_, "a log's segment was offered twice");
  ready_ = std::move(file);
  wanted_ = false;
}

void SegmentFiles::recycle(std::string path) {
  {
    const std::lock_guard lock(mutex_);
    to_recycle_.push_back(std::move(path));
  }
  changed_.notify_all();
}

void SegmentFiles::settle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return !busy_ && to_recycle_.empty() && (!wanted_ || ready_ || !failure_.ok());
  });
}

std::uint64_t SegmentFiles::made_anew() const {
  const std::lock_guard lock(mutex_);
  return made_;
}
std::uint64_t SegmentFiles::reused() const {
  const std::lock_guard lock(mutex_);
  return reused_;
}

void SegmentFiles::run() {
  std::unique_lock lock(mutex_);
  for (;;) {  // until the destructor
    // A failed one is tried again when somebody asks, not by itself.
    const auto due = [&] { return wanted_ && !ready_ && failure_.ok(); };
    changed_.wait(lock, [&] { return stopping_ || !to_recycle_.empty() || due(); });
    if (!to_recycle_.empty()) {
      const std::string path = std::move(to_recycle_.front());
      to_recycle_.pop_front();
      busy_ = true;
      lock.unlock();
      do_recycle(path);
      lock.lock();
      busy_ = false;
      failed_at_ = {};  // there may be a file now: the next take() tries
    } else if (stopping_) {
      return;
    } else {
      busy_ = true;
      lock.unlock();
      auto made = make(next_generation_);
      lock.lock();
      busy_ = false;
      wanted_ = false;
      if (made.ok()) {
        ++next_generation_;
        ready_ = std::move(made).value();
      } else {
        failure_ = made.status();
        failed_at_ = Clock::now();
      }
    }
    changed_.notify_all();
  }
}

void SegmentFiles::do_recycle(const std::string& path) {
  // Whatever fails here loses nothing: the file stays, and open() lets go of it again.
  struct stat info {};
  const bool fits = options_.prewrite && free_.size() < options_.free_files_max &&
                    ::stat(path.c_str(), &info) == 0 &&
                    static_cast<std::uint64_t>(info.st_size) == options_.segment_bytes;
  if (fits) {
    std::string name = numbered(options_.folder, kFreePrefix, next_free_number_++);
    if (rename_file(path, name).ok()) free_.push_back(std::move(name));
  } else {
    (void)::unlink(path.c_str());
  }
  // One by one, so that no later segment is gone while an earlier one is still there.
  (void)sync_log_folder(options_.folder);
}

/// A file of the right size whose contents do not matter. Not durable under its name yet.
Result<Descriptor> SegmentFiles::blank_file(const std::string& path, bool& fresh) {
  while (!free_.empty()) {  // bound: free_files_max
    const std::string candidate = std::move(free_.front());
    free_.pop_front();
    struct stat info {};
    if (options_.prewrite && ::stat(candidate.c_str(), &info) == 0 &&
        static_cast<std::uint64_t>(info.st_size) == options_.segment_bytes) {
      SLUICE_RETURN_IF_ERROR(rename_file(candidate, path));
      Descriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
      if (fd.get() < 0) return system_failure("open '" + path + "'", errno);
      fresh = false;
      return fd;
    }
    (void)::unlink(candidate.c_str());
  }
  Descriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (fd.get() < 0) return system_failure("make the log's file '" + path + "'", errno);
  fresh = true;
  const std::uint64_t size = options_.prewrite ? options_.segment_bytes : format::kEntriesAt;
  const std::vector<std::byte> zeros(std::min<std::uint64_t>(kZerosAtOnce, size));
  for (std::uint64_t at = 0; at < size; at += zeros.size()) {
    const auto count = std::min<std::uint64_t>(zeros.size(), size - at);
    SLUICE_RETURN_IF_ERROR(write_all(fd.get(), path, std::span(zeros).first(count), at)
                               .with_context("make a segment of the log"));
  }
  if (::fsync(fd.get()) != 0) return system_failure("fsync '" + path + "'", errno);
  return fd;
}

Result<SegmentFile> SegmentFiles::make(std::uint64_t generation) {
  const std::string unfinished = options_.folder + "/" + std::string(kUnfinished);
  bool fresh = true;
  auto fd = blank_file(unfinished, fresh);
  if (!fd.ok()) {
    (void)::unlink(unfinished.c_str());  // gives back what it took of a full disk
    return fd.status();
  }
  const auto salt = random_salt();
  SLUICE_RETURN_IF_ERROR(salt.status());
  const format::SegmentHeader header{
      format::kVersion, generation, options_.segment_bytes, *salt, fresh, options_.cluster_id};
  std::vector<std::byte> begin(format::kEntriesAt);  // the Activation of its last life goes, too
  format::encode(header, begin);
  SLUICE_RETURN_IF_ERROR(write_all(fd->get(), unfinished, begin, 0));
  SLUICE_RETURN_IF_ERROR(sync_data(fd->get(), unfinished));
  const std::string path = segment_path(options_.folder, generation);
  SLUICE_RETURN_IF_ERROR(rename_file(unfinished, path));
  SLUICE_RETURN_IF_ERROR(sync_log_folder(options_.folder));
  auto file = open_segment(path, header, options_.direct);
  if (file.ok()) {
    const std::lock_guard lock(mutex_);
    ++(fresh ? made_ : reused_);
  }
  return file;
}

}  // namespace sluice::kv
