// SPDX-License-Identifier: BSD-3-Clause
// Opening a log, and what is done with one that is not open.
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "log_parts.hpp"

namespace sluice::kv {
namespace {

using format::kBlock;

constexpr std::uint64_t kSegmentBytesMax = 1ULL << 30;
constexpr std::uint32_t kGroupsMax = 8;

Status check(const LogOptions& options, const std::string& cluster_id) {
  const auto refuse = [](const char* what, std::uint64_t value, const char* range) {
    return Status(StatusCode::invalid_argument, std::string("open a log with ") + what + " = " +
                                                    std::to_string(value) + ": it must be " +
                                                    range);
  };
  if (options.segment_bytes % kBlock != 0 || options.segment_bytes < 4 * kBlock ||
      options.segment_bytes > kSegmentBytesMax) {
    return refuse("segment_bytes", options.segment_bytes, "a multiple of 4096, 16 KiB..1 GiB");
  }
  if (options.chunk_bytes % kBlock != 0 || options.chunk_bytes < 2 * kBlock ||
      options.chunk_bytes > kSegmentBytesMax) {
    return refuse("chunk_bytes", options.chunk_bytes, "a multiple of 4096, 8 KiB..1 GiB");
  }
  if (options.groups_in_flight_max < 1 || options.groups_in_flight_max > kGroupsMax) {
    return refuse("groups_in_flight_max", options.groups_in_flight_max, "1..8");
  }
  if (options.pending_bytes_max == 0) return refuse("pending_bytes_max", 0, "1 or more");
  if (cluster_id.empty() || cluster_id.size() > format::kClusterIdMax) {
    return refuse("a cluster id whose length", cluster_id.size(), "1..64");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Log>> Log::open(const std::string& folder, const LogOptions& options,
                                       const std::string& cluster_id) {
  SLUICE_RETURN_IF_ERROR(check(options, cluster_id));
  auto lock = FolderLock::take(folder);
  SLUICE_RETURN_IF_ERROR(lock.status());
  auto findings = examine(folder, cluster_id, true);
  SLUICE_RETURN_IF_ERROR(findings.status());
  std::unique_ptr<Log> log(new Log(folder, options, std::move(lock).value()));
  SLUICE_RETURN_IF_ERROR(log->start(std::move(findings).value(), cluster_id));
  return log;
}

Status Log::start(Findings findings, const std::string& cluster_id) {
  auto listing = list_folder(folder_);
  SLUICE_RETURN_IF_ERROR(listing.status());
  for (const std::string& path : listing->unfinished) (void)::unlink(path.c_str());
  files_ = std::make_unique<SegmentFiles>(
      FileOptions{folder_, cluster_id, options_.segment_bytes, options_.direct, options_.prewrite,
                  options_.free_files_max},
      findings.highest_generation + 1, std::move(findings.free_files));

  for (FoundSegment& found : findings.segments) {
    auto file = open_segment(found.path, found.header, options_.direct);
    SLUICE_RETURN_IF_ERROR(file.status());
    segment_ = make_segment(std::move(file).value(), found.activation);
    segment_->places = std::move(found.scan.places);
    segments_.push_back(segment_);
    for (const EpochRun& run : found.scan.epochs) {
      if (epochs_.empty() || epochs_.back().epoch != run.epoch) epochs_.push_back(run);
    }
    tail_ = found.scan.last_index;
    last_epoch_ = found.scan.last_epoch;
    write_at_ = found.scan.end;
    recovery_.entries += tail_ + 1 - found.activation.first_index;
  }
  recovery_.segments = segments_.size();
  if (segment_ != nullptr) {
    if (!segment_->places.empty()) last_place_ = segment_->places.back().offset;
    epoch_before_first_ = segments_.front()->activation.previous_epoch;
    first_index_.store(segments_.front()->first_index(), std::memory_order_relaxed);
  }
  last_index_.store(tail_, std::memory_order_relaxed);  // nobody else has the log yet
  durable_index_.store(tail_, std::memory_order_relaxed);

  if (findings.spare && findings.spare->second.segment_bytes == options_.segment_bytes) {
    auto file = open_segment(findings.spare->first, findings.spare->second, options_.direct);
    SLUICE_RETURN_IF_ERROR(file.status());
    files_->offer(std::move(file).value());
  } else if (findings.spare) {
    findings.void_files.push_back(findings.spare->first);
  }
  if (findings.cut) {
    // What is behind the cut must never follow on what comes now.
    SLUICE_RETURN_IF_ERROR(restart_at({tail_ + 1, last_epoch_, tail_, format::Activation::kCuts}));
    recovery_.cut = std::move(findings.cut);
  } else if (segment_ == nullptr) {
    // Now rather than with the first entry, and so that a full disk is told here.
    auto file = files_->take();
    SLUICE_RETURN_IF_ERROR(file.status());
    files_->offer(std::move(file).value());
  }
  for (std::string& path : findings.void_files) files_->recycle(std::move(path));
  files_->request();
  return {};
}

Status Log::erase(const std::string& folder) {
  auto lock = FolderLock::take(folder);
  SLUICE_RETURN_IF_ERROR(lock.status());
  auto listing = list_folder(folder);
  SLUICE_RETURN_IF_ERROR(listing.status());
  std::vector<std::string> paths = std::move(listing->unfinished);
  // The oldest segment first: what is left after an interruption is a log, if a shorter one.
  for (const NamedFile& file : listing->segments) paths.push_back(file.path);
  for (const NamedFile& file : listing->free) paths.push_back(file.path);
  for (const std::string& path : paths) {
    if (::unlink(path.c_str()) != 0) return system_failure("remove '" + path + "'", errno);
  }
  return sync_log_folder(folder);
}

Result<std::string> Log::describe(const std::string& folder) {
  auto findings = examine(folder, "", false);
  if (!findings.ok()) {
    if (findings.status().code() != StatusCode::device_failed) return findings.status();
    return findings.status().to_string() + "\n";
  }
  std::string text;
  for (const FoundSegment& segment : findings->segments) {
    const std::uint64_t first = segment.activation.first_index;
    const bool any = segment.scan.last_index >= first;
    text +=
        segment.path + ": cluster '" + segment.header.cluster_id + "', " +
        (any ? "entries " + std::to_string(first) + " to " + std::to_string(segment.scan.last_index)
             : "no entries, the next is " + std::to_string(first)) +
        ", epochs " + std::to_string(segment.activation.previous_epoch) + " to " +
        std::to_string(segment.scan.last_epoch) + ", " + std::to_string(segment.scan.end) + " of " +
        std::to_string(segment.file_bytes) + " bytes";
    if ((segment.activation.flags & format::Activation::kRestarts) != 0) text += ", restarted here";
    if ((segment.activation.flags & format::Activation::kCuts) != 0) text += ", cut before it";
    text += "\n";
  }
  if (findings->spare) text += findings->spare->first + ": ready\n";
  for (const std::string& path : findings->void_files) text += path + ": void\n";
  for (const NamedFile& file : findings->free_files) text += file.path + ": free\n";
  if (findings->cut) text += findings->cut->message + "\n";
  return text;
}

}  // namespace sluice::kv
