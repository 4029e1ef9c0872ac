// SPDX-License-Identifier: BSD-3-Clause
// The files of a log's folder: naming, locking, making them ready, and using them again.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "format.hpp"
#include "kv/descriptor.hpp"
#include "sluice/core/status.hpp"

namespace sluice::kv {

/// Memory that O_DIRECT takes.
struct FreeAligned {
  void operator()(std::byte* memory) const noexcept { std::free(memory); }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeAligned>;
/// `bytes`: a multiple of format::kBlock. Not initialised. Stops the program without memory.
[[nodiscard]] AlignedBytes allocate_aligned(std::size_t bytes);

/// A failed system call as a Status: permission_denied, resource_exhausted (a full disk, a quota, a
/// limit on the file's size, no descriptor), io_error. `what` names the file.
[[nodiscard]] Status system_failure(std::string what, int error);

[[nodiscard]] Status write_all(int fd, const std::string& path, std::span<const std::byte> bytes,
                               std::uint64_t offset);
/// Reads up to `out.size()`; fewer at the file's end.
[[nodiscard]] Result<std::size_t> read_some(int fd, const std::string& path,
                                            std::span<std::byte> out, std::uint64_t offset);
[[nodiscard]] Status sync_data(int fd, const std::string& path);
[[nodiscard]] Status sync_log_folder(const std::string& folder);

/// What a file's name says it is.
struct NamedFile {
  std::string path;
  std::uint64_t number = 0;  ///< of a segment: its generation
};
struct Listing {
  std::vector<NamedFile> segments;  ///< by generation
  std::vector<NamedFile> free;      ///< to be used again
  std::vector<std::string> unfinished;
};
[[nodiscard]] Result<Listing> list_folder(const std::string& folder);
[[nodiscard]] std::string segment_path(const std::string& folder, std::uint64_t generation);

/// The folder, made if it is not there, locked for this process until destroyed. already_owned:
/// somebody has it open.
class FolderLock {
 public:
  static Result<FolderLock> take(const std::string& folder);

 private:
  explicit FolderLock(Descriptor fd) noexcept : fd_(std::move(fd)) {}
  Descriptor fd_;
};

/// An open segment file that is ready to be written.
struct SegmentFile {
  std::string path;
  format::SegmentHeader header;
  /// O_DIRECT where it was asked for and the file system has it. Reads go through it, too: beside
  /// direct writes the page cache may keep what was there before.
  Descriptor fd;
};
/// Opens one that is there. `direct` is a wish.
[[nodiscard]] Result<SegmentFile> open_segment(const std::string& path,
                                               const format::SegmentHeader& header, bool direct);

struct FileOptions {
  std::string folder;
  std::string cluster_id;
  std::uint64_t segment_bytes = 0;
  bool direct = true;
  bool prewrite = true;  ///< false: files grow as they are written; to measure with
  std::size_t free_files_max = 4;
};

/// Makes segment files on a thread of its own, one ahead of need: zeros, fsync, the header, fsync,
/// the name. Recycles those that are let go of: renamed, a new header with a new salt.
/// Thread-safety: any. A mutex is right here: one use per segment.
class SegmentFiles {
 public:
  /// `first_generation`: of the next file. Starts the thread.
  SegmentFiles(FileOptions options, std::uint64_t first_generation, std::vector<NamedFile> free);
  /// Ends what it does, then the thread.
  ~SegmentFiles();
  SegmentFiles(const SegmentFiles&) = delete;
  SegmentFiles& operator=(const SegmentFiles&) = delete;

  /// Has one made unless there is one.
  void request();
  /// The next one; waits while it is being made. After a failure the next try is a second later at
  /// the earliest, or when a file has come back; until then the failure is told again.
  [[nodiscard]] Result<SegmentFile> take();
  /// Whether take() would not wait.
  [[nodiscard]] bool ready() const;
  /// Puts one that exists in take()'s way.
  void offer(SegmentFile file);
  /// The file holds nothing any more. Beyond free_files_max it is deleted. In order.
  void recycle(std::string path);
  /// Waits until all that was asked for is done. For tests, and before a folder is copied.
  void settle();
  [[nodiscard]] std::uint64_t made_anew() const;  ///< with zeros
  [[nodiscard]] std::uint64_t reused() const;

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  void do_recycle(const std::string& path);
  [[nodiscard]] Result<SegmentFile> make(std::uint64_t generation);
  [[nodiscard]] Result<Descriptor> blank_file(const std::string& path, bool& fresh);

  const FileOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  bool wanted_ = false;
  bool busy_ = false;
  std::optional<SegmentFile> ready_;
  Status failure_;
  Clock::time_point failed_at_{};
  std::deque<std::string> to_recycle_;
  std::uint64_t made_ = 0, reused_ = 0;

  // The thread's own.
  std::uint64_t next_generation_;
  std::uint64_t next_free_number_ = 1;
  std::deque<std::string> free_;
  std::thread thread_;
};

}  // namespace sluice::kv
