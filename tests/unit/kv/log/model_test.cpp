// SPDX-License-Identifier: BSD-3-Clause
// The log against a model, in random orders: what it says is durable survives any crash, what it
// gives is what was put in, and nothing cut off or trimmed comes back.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "kv/log/format.hpp"
#include "support.hpp"

namespace sluice::kv::testing {
namespace {

/// Everything that a log should be.
struct Model {
  Contents entries;
  std::uint64_t first = 1, last = 0, durable = 0;
  std::uint64_t last_epoch = 0;
  std::uint64_t epoch_before = 0;
};

class Run {
 public:
  Run(bool direct, const fs::path& where) : temp_(where) {
    options_.segment_bytes = (4 + *rc::gen::inRange<std::uint64_t>(0, 6)) * 4096;
    options_.chunk_bytes = (2 + *rc::gen::inRange<std::size_t>(0, 3)) * 4096;
    options_.tail_bytes = *rc::gen::inRange<std::size_t>(0, 5) * 4096;
    options_.groups_in_flight_max = *rc::gen::element(1U, 1U, 3U);
    options_.dsync = *rc::gen::arbitrary<bool>();
    options_.direct = direct;
    options_.free_files_max = *rc::gen::inRange<std::size_t>(0, 3);
    ring_ = make_ring();
    log_ = open(temp_ / "log", options_);
  }
  ~Run() {
    while (log_ && log_->in_flight() != 0) complete(64);
  }

  void step() {
    switch (*rc::gen::weightedElement<int>(
        {{12, 0}, {6, 1}, {6, 2}, {2, 3}, {1, 4}, {2, 5}, {3, 6}, {1, 7}, {3, 8}})) {
      case 0: append(); break;
      case 1: require(log_->submit(*ring_)); break;
      case 2: complete(1 + *rc::gen::inRange(0, 4)); break;
      case 3: drain(); break;
      case 4: truncate(); break;
      case 5: trim(); break;
      case 6: crash(); break;
      case 7: restart(); break;
      case 8: read_somewhere(); break;
    }
    RC_ASSERT(log_->last_index() == model_.last);
    RC_ASSERT(log_->durable_index() >= model_.durable);
    RC_ASSERT(log_->durable_index() <= model_.last);
    model_.durable = log_->durable_index();
  }

  void check_all() {
    RC_ASSERT(log_->first_index() == model_.first);
    RC_ASSERT(log_->last_index() == model_.last);
    RC_ASSERT(log_->last_epoch() == model_.last_epoch);
    RC_ASSERT(contents_of(*log_) == model_.entries);
    for (const auto& [index, stored] : model_.entries) {
      RC_ASSERT(require(log_->epoch_of(index)) == stored.epoch);
      RC_ASSERT(require(log_->epoch_of(index - 1)) == stored.previous_epoch);
    }
  }

 private:
  void append() {
    const int count = 1 + *rc::gen::inRange(0, 6);
    for (int i = 0; i < count; ++i) {
      const std::size_t most = options_.segment_bytes - 8192 - 48;
      const std::size_t size =
          std::min(most, *rc::gen::oneOf(rc::gen::inRange<std::size_t>(0, 300),
                                         rc::gen::inRange<std::size_t>(3900, 4200),
                                         rc::gen::inRange<std::size_t>(0, 20'000)));
      const std::uint64_t epoch =
          std::max<std::uint64_t>(1, model_.last_epoch) + (*rc::gen::inRange(0, 10) == 0 ? 1 : 0);
      Stored stored{epoch, model_.last_epoch, payload_of(++salt_, size)};
      const Entry entry{epoch, model_.last + 1, stored.previous_epoch, stored.payload};
      require(log_->append(entry));
      model_.entries[++model_.last] = std::move(stored);
      model_.last_epoch = epoch;
    }
  }

  void complete(int turns) {
    while (turns-- > 0 && log_->in_flight() != 0) {
      for (const io_uring_cqe& cqe : reap(*ring_)) require(log_->on_completion(cqe));
    }
  }
  void drain() {
    commit(*log_, *ring_);
    RC_ASSERT(log_->durable_index() == model_.last);
  }

  void truncate() {
    complete(64);
    const std::uint64_t keep = *rc::gen::inRange<std::uint64_t>(model_.first - 1, model_.last + 1);
    require(log_->truncate_after(keep));
    model_.entries.erase(model_.entries.upper_bound(keep), model_.entries.end());
    model_.last_epoch = require(log_->epoch_of(keep));
    model_.durable = model_.last = keep;
    if (!model_.entries.empty()) RC_ASSERT(model_.last_epoch == model_.entries[keep].epoch);
    // All entries that are left may be in no segment but the new one.
    model_.first = log_->first_index();
    const std::uint64_t first = model_.entries.empty() ? keep + 1 : model_.entries.begin()->first;
    RC_ASSERT(model_.first == first);
  }

  void restart() {
    complete(64);
    const std::uint64_t after = model_.last + *rc::gen::inRange<std::uint64_t>(0, 50);
    const std::uint64_t epoch = after == 0 ? 0 : model_.last_epoch + 1;
    require(log_->restart_after(after, epoch));
    model_ = {};
    model_.first = after + 1;
    model_.last = model_.durable = after;
    model_.last_epoch = epoch;
  }

  void trim() {
    const std::uint64_t at = *rc::gen::inRange<std::uint64_t>(model_.first, model_.last + 3);
    log_->trim_before(at);
    RC_ASSERT(log_->first_index() >= model_.first);
    RC_ASSERT(log_->first_index() <= std::max(at, model_.first));
    model_.first = log_->first_index();
    model_.entries.erase(model_.entries.begin(), model_.entries.lower_bound(model_.first));
  }

  void read_somewhere() {
    if (model_.last < model_.first) return;
    const std::uint64_t from = *rc::gen::inRange<std::uint64_t>(model_.first, model_.last + 1);
    std::uint64_t next = from;
    const auto result = require(
        log_->read(from, *rc::gen::inRange<std::size_t>(0, 30'000), [&](const Entry& entry) {
          const Stored& stored = model_.entries.at(next);
          RC_ASSERT(entry.index == next);
          RC_ASSERT(entry.epoch == stored.epoch);
          RC_ASSERT(entry.previous_epoch == stored.previous_epoch);
          RC_ASSERT(std::ranges::equal(entry.payload, stored.payload));
          ++next;
          return true;
        }));
    RC_ASSERT(result.next_index == next);
    RC_ASSERT(next > from);
  }

  /// The process dies: what the files hold at this moment is what is left, and of the blocks that
  /// were not durable any may be missing or garbled.
  void crash() {
    const std::uint64_t durable = model_.durable;
    log_->settle();
    // Nothing is written while the folder is copied: what is in flight has ended, though nobody was
    // told, or is torn below.
    std::vector<io_uring_cqe> untold;
    const bool power_cut = *rc::gen::arbitrary<bool>();
    copy_folder(temp_ / "log", temp_ / "image");
    if (power_cut) garble_what_is_not_durable(durable);
    while (log_->in_flight() != 0) complete(64);
    log_.reset();
    ring_.reset();
    fs::remove_all(temp_ / "log");
    fs::rename(temp_ / "image", temp_ / "log");
    ring_ = make_ring();
    log_ = open(temp_ / "log", options_);
    RC_ASSERT(log_->last_index() >= durable);
    RC_ASSERT(log_->last_index() <= model_.last);
    RC_ASSERT(log_->durable_index() == log_->last_index());
    model_.last = log_->last_index();
    model_.durable = log_->durable_index();
    model_.entries.erase(model_.entries.upper_bound(model_.last), model_.entries.end());
    // Files that were let go of and not yet put away may be back: settle() excludes that.
    if (!model_.entries.empty()) model_.last_epoch = model_.entries[model_.last].epoch;
    model_.first = log_->first_index();
    if (model_.entries.empty()) model_.last_epoch = log_->last_epoch();
    check_all();
  }

  /// Blocks with entries behind `durable`, in the copy: each as it is, zero, or random.
  void garble_what_is_not_durable(std::uint64_t durable) {
    for (const std::string& path : segment_files(temp_ / "image")) {
      Bytes bytes = read_bytes(path);
      format::SegmentHeader header;
      if (format::decode(bytes, header) != format::HeaderFault::none) continue;
      std::uint64_t from = 0;
      for (std::uint64_t at = 8192; at + 48 <= bytes.size() && from == 0; at += 4096) {
        format::EntryHeader entry;
        if (format::decode(std::span(bytes).subspan(at, 48), format::seed_of(header.salt), entry) &&
            entry.index > durable) {
          from = at;  // groups begin on blocks: no durable entry is in these
        }
      }
      if (from == 0) continue;
      for (std::uint64_t at = from; at < bytes.size(); at += 4096) {
        const int how = *rc::gen::inRange(0, 4);
        if (how < 2) continue;
        for (std::uint64_t i = at; i < at + 4096; ++i) {
          bytes[i] = how == 2 ? std::byte{0} : static_cast<std::byte>(i * 2654435761U >> 13);
        }
      }
      write_bytes(path, bytes);
    }
  }

  TemporaryFolder temp_;
  LogOptions options_;
  std::shared_ptr<uring::Ring> ring_;
  std::unique_ptr<Log> log_;
  Model model_;
  std::uint64_t salt_ = 0;
};

RC_GTEST_PROP(LogModel, AnyOrderOfEventsGivesWhatTheModelHas, ()) {
  Run run(false, in_memory());
  const int steps = *rc::gen::inRange(1, 300);
  for (int i = 0; i < steps; ++i) run.step();
  run.check_all();
}

RC_GTEST_PROP(LogModel, OnADiskToo, ()) {
  Run run(true, fs::path());
  const int steps = *rc::gen::inRange(1, 25);
  for (int i = 0; i < steps; ++i) run.step();
  run.check_all();
}

}  // namespace
}  // namespace sluice::kv::testing
