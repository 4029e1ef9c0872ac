// SPDX-License-Identifier: BSD-3-Clause
// Readers of other threads beside the writer, which commits, trims, and recycles what they read.
#include <atomic>
#include <cstdlib>
#include <thread>

#include "support.hpp"

namespace sluice::kv::testing {
namespace {

int scale() {
  const char* const text = std::getenv("SLUICE_STRESS_SCALE");
  return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

/// Reads on and on; counts what is wrong.
struct Reader {
  std::atomic<std::uint64_t> entries{0}, wrong{0}, damaged{0}, trimmed{0};

  void run(const Log& log, const std::atomic<bool>& stop, std::size_t step, bool far_behind) {
    std::uint64_t next = 1;
    while (!stop) {
      const auto result = log.read(next, step, [&](const Entry& entry) {
        const Bytes expected = payload_of(entry.index, entry.payload.size());
        if (entry.index != next || !std::ranges::equal(entry.payload, expected)) ++wrong;
        if (entry.epoch != 1 + entry.index / 1000) ++wrong;
        ++next;
        ++entries;
        return true;
      });
      if (!result.ok()) {
        if (result.status().code() == StatusCode::unreachable) {
          ++trimmed;
          next = log.first_index();
        } else {
          ++damaged;
        }
        continue;
      }
      if (result->next_index != next) ++wrong;
      if (next > log.last_index() + 1) ++wrong;
      // At the end: once more from the oldest, from the files, or else wait for the next.
      if (next == log.last_index() + 1) {
        if (far_behind) next = log.first_index();
        std::this_thread::yield();
      }
      if (const auto epoch = log.epoch_of(next - 1); epoch.ok() && next > 1) {
        if (*epoch != 1 + (next - 1) / 1000) ++wrong;
      }
    }
  }
};

TEST(LogReaders, SeeWholeEntriesWhileTheLogIsWrittenTrimmedAndUsedAgain) {
  const TemporaryFolder temp;
  const auto ring = make_ring();
  const auto log = open(temp / "log");
  std::atomic<bool> stop{false};
  Reader near_end, far_behind;
  std::thread first([&] { near_end.run(*log, stop, 3000, false); });
  std::thread second([&] { far_behind.run(*log, stop, 50'000, true); });
  const std::uint64_t many = 15'000ULL * static_cast<std::uint64_t>(scale());
  for (std::uint64_t index = 1; index <= many; ++index) {
    const Bytes payload = payload_of(index, 20 + index % 400);
    require(log->append(1 + index / 1000, payload).status());
    if (index % 20 == 0) {
      require(log->submit(*ring));
      if (log->in_flight() != 0) {
        for (const io_uring_cqe& cqe : reap(*ring)) require(log->on_completion(cqe));
      }
    }
    if (index % 200 == 0 && index > 2000) log->trim_before(index - 1000);
  }
  commit(*log, *ring);
  // They see the end, too.
  while (near_end.entries < 1000 || far_behind.entries < 1000) std::this_thread::yield();
  stop = true;
  first.join();
  second.join();
  for (const Reader* const reader : {&near_end, &far_behind}) {
    EXPECT_EQ(reader->wrong, 0u);
    EXPECT_EQ(reader->damaged, 0u);
  }
  EXPECT_GT(log->counters().segments_reused, 10u);
  EXPECT_EQ(log->durable_index(), many);
}

TEST(LogReaders, SeeNoDamageWhileTheLogIsTruncated) {
  const TemporaryFolder temp;
  const auto log = open(temp / "log");
  std::atomic<bool> stop{false};
  Reader one, other;
  std::thread first([&] { one.run(*log, stop, 3000, true); });
  std::thread second([&] { other.run(*log, stop, 100'000, true); });
  for (int round = 0; round < 60 * scale(); ++round) {
    for (int i = 0; i < 150; ++i) {
      const std::uint64_t index = log->last_index() + 1;
      require(log->append(1 + index / 1000, payload_of(index, 20 + index % 400)).status());
    }
    if (round % 2 == 0) require(log->sync());
    require(log->truncate_after(log->last_index() - 120));
  }
  stop = true;
  first.join();
  second.join();
  for (const Reader* const reader : {&one, &other}) EXPECT_EQ(reader->damaged, 0u);
  // A reader that stood behind the cut reads from there, once the log has grown again.
  EXPECT_EQ(contents_of(*log).size(), log->last_index());
}

}  // namespace
}  // namespace sluice::kv::testing
