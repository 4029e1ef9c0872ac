// SPDX-License-Identifier: BSD-3-Clause
// Readers beside applies, flushes, checkpoints and installations.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "support.hpp"

namespace sluice::kv::test {
namespace {

std::uint64_t number(const std::optional<std::string>& value) {
  return value ? std::stoull(*value) : 0;
}

/// Both keys always hold the index of the entry that wrote them.
Write both(std::uint64_t index) {
  const std::string value = std::to_string(index);
  return {CommandKind::mset, {"left", "right"}, {value, value}, 0};
}

TEST(Concurrency, ReadsSeeWhatWasAppliedBeforeThemAndNoTornBatch) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  std::atomic<bool> end{false};
  std::atomic<std::uint64_t> reads{0}, torn{0}, stale{0}, back{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      const std::vector<std::string_view> keys{"left", "right"};
      std::uint64_t last = 0;
      while (!end.load(std::memory_order_relaxed)) {
        const std::uint64_t applied = store->applied_index();
        const auto values = store->mget(keys).value();
        const std::uint64_t left = number(values[0]);
        torn += left != number(values[1]);
        stale += left < applied;
        back += left < last;
        last = left;
        ++reads;
      }
    });
  }
  constexpr std::uint64_t kEntries = 3000, kReads = 3000;
  while (store->applied_index() < kEntries || reads < kReads) {  // bound: readers go on
    apply_to(*store, both(store->applied_index() + 1));
    if (store->applied_index() % 500 == 0) {
      EXPECT_TRUE(store->flush(false).ok());
    }
    if (store->applied_index() == 1000) {
      const auto made = store->make_checkpoint(folder / "checkpoint");
      ASSERT_TRUE(made.ok());
      EXPECT_EQ(made->index, 1000u);
    }
  }
  end = true;
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(torn, 0u);
  EXPECT_EQ(stale, 0u);
  EXPECT_EQ(back, 0u);
}

TEST(Concurrency, ACheckpointMadeWhileEntriesAreAppliedIsTheStateItNames) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  std::atomic<bool> end{false};
  std::thread applier([&] {
    while (!end.load(std::memory_order_relaxed)) apply_to(*store, both(store->applied_index() + 1));
  });
  std::uint64_t last = 0;
  for (int i = 0; i < 5; ++i) {
    const std::string name = folder / ("checkpoint" + std::to_string(i));
    while (store->applied_index() == last) std::this_thread::yield();
    last = store->applied_index();
    const auto made = store->make_checkpoint(name);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_GE(made->index, last);
    const auto copy = open(folder / ("copy" + std::to_string(i)));
    ASSERT_TRUE(copy->install_checkpoint(name).ok());
    EXPECT_EQ(value_of(*copy, "left"), std::to_string(made->index));
    EXPECT_EQ(value_of(*copy, "right"), std::to_string(made->index));
  }
  end = true;
  applier.join();
}

TEST(Concurrency, ReadsGoOnWhileACheckpointIsInstalled) {
  TemporaryFolder folder;
  {
    const auto source = open(folder / "source");
    for (std::uint64_t i = 1; i <= 50; ++i) apply_to(*source, both(i));
    ASSERT_TRUE(source->make_checkpoint(folder / "checkpoint").ok());
  }
  const auto store = open(folder / "data");
  for (std::uint64_t i = 1; i <= 10; ++i) apply_to(*store, both(i));
  std::atomic<bool> end{false};
  std::atomic<std::uint64_t> old_reads{0}, new_reads{0}, strange{0};
  std::thread reader([&] {
    const std::vector<std::string_view> keys{"left", "right"};
    while (!end.load(std::memory_order_relaxed)) {
      const auto values = store->mget(keys).value();
      const std::uint64_t left = number(values[0]);
      if (left == 10 && number(values[1]) == 10)
        ++old_reads;
      else if (left == 50 && number(values[1]) == 50)
        ++new_reads;
      else
        ++strange;
    }
  });
  while (old_reads == 0) std::this_thread::yield();
  ASSERT_TRUE(store->install_checkpoint(folder / "checkpoint").ok());
  while (new_reads == 0) std::this_thread::yield();
  end = true;
  reader.join();
  EXPECT_EQ(strange, 0u);
}

}  // namespace
}  // namespace sluice::kv::test
