// SPDX-License-Identifier: BSD-3-Clause
#include "recovery.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <utility>

namespace sluice::kv {
namespace {

constexpr const char* kWhatToDo =
    "; this copy must not be used: remove the folder, and let a replica fetch the log anew, or "
    "restore the folder from a backup";

Status lost(const std::string& path, std::uint64_t offset, std::uint64_t index,
            const std::string& why) {
  return {StatusCode::device_failed, "the log is damaged in the middle: '" + path + "', offset " +
                                         std::to_string(offset) + ", entry " +
                                         std::to_string(index) + ": " + why + kWhatToDo};
}

/// A file with a readable header.
struct Candidate {
  NamedFile file;
  Descriptor fd;
  std::uint64_t size = 0;
  format::SegmentHeader header;
  format::Activation activation;
  format::ActivationState state = format::ActivationState::none;
  SegmentScan left;       ///< what groups have left in it, once looked into
  bool pristine = false;  ///< never begun
};

class Examination {
 public:
  Examination(const std::string& folder, const std::string& cluster_id, bool settle)
      : folder_(folder), cluster_id_(cluster_id), settle_(settle) {}

  Result<Findings> run() {
    SLUICE_RETURN_IF_ERROR(read_headers());
    SLUICE_RETURN_IF_ERROR(set_aside_unused());
    drop_superseded();
    SLUICE_RETURN_IF_ERROR(scan_all());
    return std::move(findings_);
  }

 private:
  Status read_headers() {
    auto listing = list_folder(folder_);
    SLUICE_RETURN_IF_ERROR(listing.status());
    findings_.free_files = std::move(listing->free);
    for (NamedFile& named : listing->segments) {
      findings_.highest_generation = std::max(findings_.highest_generation, named.number);
      Candidate candidate;
      candidate.file = std::move(named);
      SLUICE_RETURN_IF_ERROR(read_header(candidate));
      candidates_.push_back(std::move(candidate));
    }
    return {};
  }

  Status read_header(Candidate& candidate) {
    const std::string& path = candidate.file.path;
    candidate.fd = Descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (candidate.fd.get() < 0) return system_failure("open '" + path + "'", errno);
    struct stat info {};
    if (::fstat(candidate.fd.get(), &info) != 0)
      return system_failure("stat '" + path + "'", errno);
    candidate.size = static_cast<std::uint64_t>(info.st_size);
    if (settle_) {
      SLUICE_RETURN_IF_ERROR(sync_data(candidate.fd.get(), path));
      (void)::posix_fadvise(candidate.fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    }
    std::vector<std::byte> block(format::kEntriesAt);
    auto count = read_some(candidate.fd.get(), path, block, 0);
    SLUICE_RETURN_IF_ERROR(count.status());
    if (*count < format::kBlock) {
      return {StatusCode::device_failed, "the log is damaged: '" + path + "' has " +
                                             std::to_string(candidate.size) +
                                             " bytes, less than its header" + kWhatToDo};
    }
    switch (format::decode(block, candidate.header)) {
      case format::HeaderFault::none: break;
      case format::HeaderFault::newer_version:
        return {StatusCode::not_supported,
                "'" + path + "' has the log format " + std::to_string(candidate.header.version) +
                    ", this program knows up to " + std::to_string(format::kVersion) +
                    ": use the program that wrote it, or a later one"};
      case format::HeaderFault::not_a_segment:
      case format::HeaderFault::damaged:
        return {StatusCode::device_failed, "the log is damaged: '" + path +
                                               "', offset 0: its header is not valid" + kWhatToDo};
    }
    if (!cluster_id_.empty() && candidate.header.cluster_id != cluster_id_) {
      return {StatusCode::rejected, "'" + path + "' belongs to the cluster '" +
                                        candidate.header.cluster_id + "', this node to '" +
                                        cluster_id_ + "': give it its own folder"};
    }
    if (candidate.header.generation != candidate.file.number) {
      return {StatusCode::device_failed, "the log is damaged: '" + path + "' is segment " +
                                             std::to_string(candidate.header.generation) +
                                             " by its header: it was renamed" + kWhatToDo};
    }
    candidate.state = format::decode(std::span(block).subspan(format::kActivationAt),
                                     candidate.header.salt, candidate.activation);
    return {};
  }

  Result<std::vector<std::byte>> read_file(const Candidate& candidate) {
    std::vector<std::byte> bytes(candidate.size);
    auto count = read_some(candidate.fd.get(), candidate.file.path, bytes, 0);
    SLUICE_RETURN_IF_ERROR(count.status());
    bytes.resize(*count);
    return bytes;
  }

  /// Files made ready and not begun, the next ones to be used. Of others whose begin is not
  /// readable, finds out what is behind it.
  Status set_aside_unused() {
    for (Candidate& candidate : candidates_) {
      if (candidate.state == format::ActivationState::valid) continue;
      SLUICE_RETURN_IF_ERROR(look_into(candidate));
    }
    while (!candidates_.empty() && candidates_.back().pristine) {
      Candidate& candidate = candidates_.back();
      if (findings_.spare) findings_.void_files.push_back(findings_.spare->first);
      findings_.spare.reset();
      findings_.spare.emplace(candidate.file.path, candidate.header);
      candidates_.pop_back();
    }
    return {};
  }

  /// What groups have left in a file, whatever its begin says.
  Status look_into(Candidate& candidate) {
    auto bytes = read_file(candidate);
    SLUICE_RETURN_IF_ERROR(bytes.status());
    look_beyond(*bytes, format::kEntriesAt, format::seed_of(candidate.header.salt), candidate.left);
    candidate.pristine = candidate.state == format::ActivationState::none &&
                         candidate.left.valid_beyond == 0 &&
                         candidate.size == candidate.header.segment_bytes;
    return {};
  }

  /// Segments that a later one has made void; what was never begun before it, too. (Had that held
  /// durable entries, they would be missing before the later one.)
  void drop_superseded() {
    std::vector<Candidate> kept;
    for (Candidate& candidate : candidates_) {
      const std::uint32_t flags =
          candidate.state == format::ActivationState::valid ? candidate.activation.flags : 0;
      while (!kept.empty() &&
             ((flags & format::Activation::kRestarts) != 0 ||
              ((flags & format::Activation::kCuts) != 0 &&
               (kept.back().state != format::ActivationState::valid ||
                kept.back().activation.first_index >= candidate.activation.first_index)))) {
        findings_.void_files.push_back(kept.back().file.path);
        kept.pop_back();
      }
      kept.push_back(std::move(candidate));
    }
    candidates_ = std::move(kept);
  }

  Status scan_all() {
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      Candidate& candidate = candidates_[i];
      if (candidate.state != format::ActivationState::valid) {
        return judge(i, candidate.file.path, format::kActivationAt,
                     "where the segment begins in the log is not readable", {});
      }
      SLUICE_RETURN_IF_ERROR(check_follows(candidate));
      const bool last =
          i + 1 == candidates_.size() || candidates_[i + 1].state != format::ActivationState::valid;
      const std::uint64_t stop = last ? 0 : candidates_[i + 1].activation.first_index - 1;
      auto bytes = read_file(candidate);
      SLUICE_RETURN_IF_ERROR(bytes.status());
      SegmentScan scan = scan_segment(*bytes, candidate.header, candidate.activation, stop);
      findings_.segments.push_back(
          {candidate.file.path, candidate.header, candidate.activation, scan, candidate.size});
      if (scan.damaged) return judge(i + 1, candidate.file.path, scan.bad_at, scan.why, scan);
    }
    return {};
  }

  Status check_follows(const Candidate& candidate) {
    if (findings_.segments.empty()) return {};
    const FoundSegment& before = findings_.segments.back();
    const format::Activation& activation = candidate.activation;
    if (activation.first_index == before.scan.last_index + 1 &&
        activation.previous_epoch == before.scan.last_epoch) {
      return {};
    }
    return lost(candidate.file.path, format::kActivationAt, before.scan.last_index + 1,
                "a segment between '" + before.path + "' and this one is missing");
  }

  /// The valid entries end at an offset of `path`; `left` was found behind it in the same file, and
  /// candidates from `later` on come after it. All that says whether what is lost was lost before
  /// anybody was told that it is there.
  Status judge(std::size_t later, const std::string& path, std::uint64_t offset,
               const std::string& why, const SegmentScan& left) {
    const std::uint64_t after =
        findings_.segments.empty() ? 0 : findings_.segments.back().scan.last_index;
    std::uint64_t durable = left.durable_beyond;
    std::uint64_t beyond = left.last_beyond;
    for (; later < candidates_.size(); ++later) {
      Candidate& next = candidates_[later];
      if (next.state == format::ActivationState::valid) {
        durable = std::max(durable, next.activation.durable);
        SLUICE_RETURN_IF_ERROR(look_into(next));
      }
      durable = std::max(durable, next.left.durable_beyond);
      beyond = std::max(beyond, next.left.last_beyond);
      findings_.void_files.push_back(next.file.path);
    }
    if (durable > after) {
      return lost(path, offset, after + 1,
                  why + ", but entries up to " + std::to_string(durable) + " were durable");
    }
    set_cut(path, offset, after, beyond, why);
    return {};
  }

  void set_cut(const std::string& path, std::uint64_t offset, std::uint64_t after,
               std::uint64_t beyond, const std::string& why) {
    std::string message = "cut off the end of the log in '" + path + "' after entry " +
                          std::to_string(after) + ", at offset " + std::to_string(offset) + ": " +
                          why;
    message += beyond > after ? "; dropped entries " + std::to_string(after + 1) + " to " +
                                    std::to_string(beyond) + ", of which some are readable"
                              : "; what follows is no entry";
    message += "; nothing shows that it was ever acknowledged";
    findings_.cut = Cut{after, beyond, std::move(message)};
  }

  const std::string& folder_;
  const std::string& cluster_id_;
  const bool settle_;
  std::vector<Candidate> candidates_;
  Findings findings_;
};

}  // namespace

Result<Findings> examine(const std::string& folder, const std::string& cluster_id, bool settle) {
  return Examination(folder, cluster_id, settle).run();
}

}  // namespace sluice::kv
