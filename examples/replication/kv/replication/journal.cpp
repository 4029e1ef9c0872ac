// SPDX-License-Identifier: BSD-3-Clause
#include "kv/replication/journal.hpp"

#include <utility>

#include "sluice/dispatch/uring.hpp"

namespace sluice::kv {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// A write and a sync for each group, one group in flight, and again what a handler submits while
/// the credits of what it handles are not back yet.
constexpr std::uint32_t kOperations = 32;
constexpr std::uint64_t kMarkBytes = 64 * 1024;
/// What an entry takes in a file beside its payload, roughly.
constexpr std::uint64_t kEntryOverhead = 32;
constexpr auto kIdleLimit = 60s;
constexpr auto kLookEvery = 50ms;

}  // namespace

Journal::Journal(std::unique_ptr<Log> log, std::shared_ptr<uring::Ring> ring)
    : log_(std::move(log)), ring_(std::move(ring)) {
  marks_.push_back({log_->first_index() - 1, 0});
}

Result<std::unique_ptr<Journal>> Journal::open(const std::string& folder, const LogOptions& options,
                                               const std::string& cluster_id) {
  auto log = Log::open(folder, options, cluster_id);
  if (!log) return log.status();
  auto ring = uring::Ring::create({.submissions = kOperations, .completions = 4 * kOperations},
                                  "log in " + folder);
  if (!ring) return ring.status();
  auto journal = std::unique_ptr<Journal>(new Journal(std::move(*log), std::move(*ring)));
  // What the log held before is taken to be of even size: it matters for INFO and for trimming.
  std::uint64_t sample = 0, count = 0;
  const Log& opened = *journal->log_;
  if (opened.last_index() >= opened.first_index()) {
    (void)opened.read(opened.first_index(), 1 << 20, [&](const Entry& entry) {
      sample += entry.payload.size() + kEntryOverhead;
      ++count;
      return count < 1024;
    });
    const std::uint64_t entries = opened.last_index() - opened.first_index() + 1;
    journal->bytes_ = count == 0 ? 0 : sample / count * entries;
    journal->marks_.push_back({opened.last_index(), journal->bytes_});
  }
  journal->log_->release_thread();
  return journal;
}

Status Journal::attach(Dispatcher& dispatcher, std::function<void()> moved) {
  moved_ = std::move(moved);
  auto source = dispatcher.attach(
      ring_, {.order = Order::per_connection, .single_connection = true},
      uring_handler([this](std::span<const io_uring_cqe> cqes, const BatchInfo&) noexcept {
        {
          Lock lock(*this);
          for (const io_uring_cqe& cqe : cqes) (void)log_->on_completion(cqe);  // failed() says so
          // A group that has to be written once more is nobody's wish, and has to go out.
          if (log_->in_flight() > 0)
            submit(lock);
          else
            submit_if_wanted(lock);
          if (log_->in_flight() == 0) idle_.notify_all();
        }
        moved_();
      }));
  if (!source) return source.status();
  source_ = std::move(*source);
  return {};
}

Status Journal::settle(std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  Lock lock(*this);
  while (log_->has_unsubmitted() || log_->in_flight() > 0) {
    if (!log_->failed().ok()) return log_->failed();
    want_disk(lock, log_->last_index());
    submit_if_wanted(lock);
    lock.release();
    if (idle_.wait_until(lock.lock_, deadline) == std::cv_status::timeout)
      return {StatusCode::timed_out, "the log's last writes did not come back in time"};
  }
  return {};
}

// --- under the lock ------------------------------------------------------------------------------

void Journal::appended(std::uint64_t index, std::size_t bytes) {
  if (unsubmitted_bytes_ == 0) oldest_unsubmitted_ = Clock::now();
  unsubmitted_bytes_ += bytes + kEntryOverhead;
  bytes_ += bytes + kEntryOverhead;
  if (bytes_ - marks_.back().bytes >= kMarkBytes) marks_.push_back({index, bytes_});
}

Result<std::uint64_t> Journal::append(const Lock&, std::uint64_t epoch,
                                      std::span<const std::byte> payload) {
  auto index = log_->append(epoch, payload);
  if (index.ok()) appended(*index, payload.size());
  return index;
}

Status Journal::append(const Lock&, const Entry& entry) {
  SLUICE_RETURN_IF_ERROR(log_->append(entry));
  appended(entry.index, entry.payload.size());
  return {};
}

void Journal::submit(const Lock&) {
  // A ring without room (resource_exhausted) has completions on their way, which submit again; any
  // other failure is the log's own, which failed() tells.
  (void)log_->submit(*ring_);
  if (!log_->has_unsubmitted()) unsubmitted_bytes_ = 0;
}

void Journal::submit_if_wanted(const Lock& lock) {
  if (disk_wanted_ > log_->durable_index() || unsubmitted_bytes_ >= kLazyBytes) submit(lock);
}

void Journal::submit_if_old(const Lock& lock) {
  if (unsubmitted_bytes_ > 0 && Clock::now() - oldest_unsubmitted_ >= kLazyWrite) submit(lock);
}

Status Journal::wait_until_idle(Lock& lock, const std::function<bool()>& no_more) {
  const auto deadline = Clock::now() + kIdleLimit;
  while (log_->in_flight() > 0) {
    if (no_more && no_more()) return {StatusCode::cancelled, "it is not wanted any more"};
    if (Clock::now() >= deadline)
      return {StatusCode::timed_out, "the log's writes did not come back in time"};
    lock.release();
    (void)idle_.wait_for(lock.lock_, kLookEvery);
  }
  return {};
}

Status Journal::truncate_after(const Lock&, std::uint64_t index) {
  SLUICE_RETURN_IF_ERROR(log_->truncate_after(index));
  while (marks_.size() > 1 && marks_.back().index > index) marks_.pop_back();
  bytes_ =
      std::max(marks_.back().bytes, bytes_ - std::min(bytes_, std::uint64_t{unsubmitted_bytes_}));
  unsubmitted_bytes_ = 0;
  disk_wanted_ = std::min(disk_wanted_, index);
  return {};
}

Status Journal::restart_after(const Lock&, std::uint64_t index, std::uint64_t epoch) {
  SLUICE_RETURN_IF_ERROR(log_->restart_after(index, epoch));
  marks_.clear();
  marks_.push_back({index, 0});
  bytes_ = unsubmitted_bytes_ = 0;
  disk_wanted_ = 0;
  return {};
}

std::uint64_t Journal::bytes_after(const Lock&, std::uint64_t index) const noexcept {
  if (index >= log_->last_index()) return 0;
  const auto after = std::ranges::upper_bound(marks_, index, {}, &Mark::index);
  if (after == marks_.begin()) return bytes_ - marks_.front().bytes;
  const Mark before = *std::prev(after);
  const Mark next = after == marks_.end() ? Mark{log_->last_index(), bytes_} : *after;
  const std::uint64_t entries = next.index - before.index;
  const std::uint64_t passed =
      entries == 0 ? 0 : (next.bytes - before.bytes) / entries * (index - before.index);
  return bytes_ - before.bytes - passed;
}

void Journal::trim(const Lock& lock, std::uint64_t index, std::uint64_t keep_bytes) {
  // The latest mark that has so many bytes behind it.
  std::uint64_t keep_from = marks_.front().index;
  for (const Mark& mark : marks_) {
    if (bytes_ - mark.bytes < keep_bytes) break;
    keep_from = mark.index;
  }
  // An entry of which nothing is known yet may stand between two marks of the past.
  if (marks_.size() > 1 && bytes_after(lock, index) > keep_bytes)
    keep_from = std::max(keep_from, std::min(index, marks_[1].index));
  const std::uint64_t from = std::min(index, keep_from + 1);
  if (from <= log_->first_index()) return;
  log_->trim_before(from);
  while (marks_.size() > 1 && marks_[1].index < log_->first_index()) marks_.pop_front();
}

}  // namespace sluice::kv
