// SPDX-License-Identifier: BSD-3-Clause
// The map in front of RocksDB: read, failing and replaced in the middle of a merge.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <thread>

#include "support.hpp"

namespace sluice::kv::test {
namespace {

using ::testing::ElementsAre;

Outcome integer(std::int64_t value) {
  return {Outcome::Kind::integer, value};
}

/// Holds whoever comes to it until it is opened.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    somebody_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void wait_for_somebody() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return somebody_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool somebody_ = false, open_ = false;
};
/// Declared behind the store: else its destructor would wait for ever.
struct OpenAtTheEnd {
  Gate& gate;
  ~OpenAtTheEnd() { gate.open(); }
};

/// Fails the named step while `fail` is set.
StoreOptions failing(std::string name, std::atomic<bool>& fail, StatusCode code) {
  StoreOptions with = options();
  with.on_step = [name = std::move(name), &fail, code](std::string_view step) {
    return fail && step == name ? Status(code, "on purpose") : Status();
  };
  return with;
}

std::uint64_t number(const std::optional<std::string>& value) {
  return value ? std::stoull(*value) : 0;
}

TEST(Overlay, ReadsOfSeveralKeysAreOfOneMomentWhileTheyMoveToRocksDb) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  apply_to(*store, std::vector<Write>{set("left", "0"), set("right", "0")});
  std::atomic<bool> end{false};
  std::atomic<std::uint64_t> reads{0}, torn{0}, back{0}, lost{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      const std::vector<std::string_view> keys{"left", "right"};
      std::uint64_t last = 0;
      while (!end.load(std::memory_order_relaxed)) {
        const auto values = store->mget(keys).value();
        const std::uint64_t left = number(values[0]), right = number(values[1]);
        torn += left != right && left != right + 1;
        back += left + right < last;
        lost += store->exists(keys).value() != 2;
        last = left + right;
        ++reads;
      }
    });
  }
  // left, then right; in between so much else that one of them is in RocksDB and one is not.
  constexpr std::uint64_t kSteps = 300, kReads = 1000;
  for (std::uint64_t step = 0; step < kSteps || reads < kReads; ++step) {  // bound: readers go on
    apply_to(*store, set(step % 2 == 0 ? "left" : "right", std::to_string(1 + step / 2)));
    for (int i = 0; i < 12; ++i)
      apply_to(*store, set("other" + std::to_string(i), std::string(4000, 'x')));
  }
  end = true;
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(torn, 0u);
  EXPECT_EQ(back, 0u);
  EXPECT_EQ(lost, 0u);
}

TEST(Overlay, WhatIsBeingMergedLiesBetweenWhatCameAfterItAndRocksDb) {
  TemporaryFolder folder;
  Gate gate;
  std::atomic<bool> hold{false};
  StoreOptions with = options();
  with.on_step = [&](std::string_view step) {
    if (hold && step == "merge") gate.pass();
    return Status();
  };
  auto store = open(folder / "data", with);
  const OpenAtTheEnd at_the_end{gate};
  apply_to(*store, std::vector<Write>{set("deep", "r"), set("middle", "r"), set("top", "r"),
                                      set("gone", "r"), set("back", "r"), set("lost", "r")});
  ASSERT_TRUE(store->flush(true).ok());
  apply_to(*store, std::vector<Write>{set("middle", "f"), set("top", "f"), del({"gone", "back"}),
                                      set("lost", "f"), set("n", "5")});
  hold = true;
  ASSERT_TRUE(store->flush(false).ok());
  gate.wait_for_somebody();
  const std::vector<Write> writes{set("top", "a"), set("back", "a"), del({"gone", "lost"}),
                                  incr("n")};
  EXPECT_THAT(apply_to(*store, writes), ElementsAre(Outcome(), Outcome(), integer(1), integer(6)));
  const std::vector<std::string_view> keys{"deep", "middle", "top", "gone", "back", "lost", "n"};
  const auto check = [&](const char* when) {
    SCOPED_TRACE(when);
    using Value = std::optional<std::string>;
    EXPECT_THAT(store->mget(keys).value(), ElementsAre(Value("r"), Value("f"), Value("a"), Value(),
                                                       Value("a"), Value(), Value("6")));
    EXPECT_EQ(store->exists(keys).value(), 5u);
    for (const char* key : {"gone", "lost"}) EXPECT_EQ(value_of(*store, key), "(none)");
    EXPECT_EQ(value_of(*store, "top"), "a");
    EXPECT_EQ(value_of(*store, "middle"), "f");
  };
  check("while it is merged");
  EXPECT_EQ(store->durable_applied_index().value(), 6u);
  gate.open();
  ASSERT_TRUE(store->flush(true).ok());
  EXPECT_EQ(store->durable_applied_index().value(), store->applied_index());
  check("after it");
  store.reset();
  store = open(folder / "data");
  EXPECT_EQ(store->applied_index(), 15u);
  check("after a close");
}

TEST(Overlay, AMergeThatFailsChangesNothingAndTheNextOneCatchesUp) {
  TemporaryFolder folder;
  std::atomic<bool> fail{false};
  const StoreOptions with = failing("merge", fail, StatusCode::resource_exhausted);
  auto store = open(folder / "data", with);
  apply_to(*store, std::vector<Write>{set("a", "1"), set("b", "1"), incr("n")});
  fail = true;
  EXPECT_EQ(store->flush(true).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(store->health().code(), StatusCode::resource_exhausted);
  const auto payload = set("a", "2").encode();
  const Store::Entry next[] = {{1, 4, payload}};
  EXPECT_EQ(store->apply(next).status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(store->applied(), (Store::Position{1, 3}));
  EXPECT_EQ(value_of(*store, "a"), "1") << "reads go on";
  EXPECT_FALSE(store->make_checkpoint(folder / "checkpoint").ok());
  EXPECT_FALSE(std::filesystem::exists(folder / "checkpoint"));
  EXPECT_EQ(store->durable_applied_index().value(), 0u);
  fail = false;
  ASSERT_TRUE(store->apply(next).ok()) << "the same call may be repeated";
  EXPECT_TRUE(store->health().ok());
  EXPECT_EQ(apply_to(*store, incr("n")).integer, 2);
  ASSERT_TRUE(store->flush(true).ok());
  EXPECT_EQ(store->durable_applied_index().value(), 5u);
  // A close that cannot merge leaves the state after the last entry that was merged.
  apply_to(*store, set("a", "3"));
  fail = true;
  EXPECT_FALSE(store->flush(true).ok());
  store.reset();
  fail = false;
  store = open(folder / "data", with);
  EXPECT_EQ(store->applied(), (Store::Position{1, 5}));
  EXPECT_EQ(value_of(*store, "a"), "2");
  EXPECT_EQ(value_of(*store, "n"), "2");
}

TEST(Overlay, WhatFailedInTheBackgroundIsTriedAgainAndThenForgotten) {
  for (const char* step : {"merge", "flush"}) {
    SCOPED_TRACE(step);
    TemporaryFolder folder;
    std::atomic<bool> fail{true};
    const auto store = open(folder / "data", failing(step, fail, StatusCode::io_error));
    apply_to(*store, set("a", "1"));
    EXPECT_TRUE(store->flush(false).ok()) << "it only begins";
    while (store->health().ok()) std::this_thread::yield();  // bound: the merger comes to it
    fail = false;
    ASSERT_TRUE(store->flush(true).ok());
    EXPECT_EQ(store->durable_applied_index().value(), 1u);
    EXPECT_TRUE(store->health().ok()) << store->health().to_string();
    EXPECT_TRUE(store->flush(false).ok());
  }
}

TEST(Overlay, AnInstallationThatWaitsForAFlushLetsReadsGoOn) {
  TemporaryFolder folder;
  {
    const auto source = open(folder / "source");
    apply_to(*source, set("key", "new"));
    ASSERT_TRUE(source->make_checkpoint(folder / "checkpoint").ok());
  }
  Gate gate;
  StoreOptions with = options();
  with.on_step = [&](std::string_view step) {
    if (step == "flush") gate.pass();
    return Status();
  };
  const auto store = open(folder / "data", with);
  const OpenAtTheEnd at_the_end{gate};
  apply_to(*store, set("key", "old"));
  auto flushed = std::async(std::launch::async, [&] { return store->flush(true); });
  gate.wait_for_somebody();  // it uses the old database
  auto installed = std::async(std::launch::async,
                              [&] { return store->install_checkpoint(folder / "checkpoint"); });
  while (sluice::test::content_of(folder / "data/STORE").find("db-2") == std::string::npos)
    std::this_thread::yield();  // bound: the installation
  // From here it waits for the flush, soon; reads do not.
  auto reads = std::async(std::launch::async, [&] {
    for (int i = 0; i < 100'000; ++i) (void)value_of(*store, "key");
  });
  EXPECT_EQ(reads.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  gate.open();
  EXPECT_TRUE(flushed.get().ok());
  EXPECT_TRUE(installed.get().ok());
  reads.get();
  EXPECT_EQ(value_of(*store, "key"), "new");
}

TEST(Overlay, AnInstallationThrowsAwayWhatCouldNotBeMerged) {
  TemporaryFolder folder;
  Checkpoint made;
  {
    const auto source = open(folder / "source");
    apply_to(*source, set("key", "new"));
    made = source->make_checkpoint(folder / "checkpoint").value();
  }
  std::atomic<bool> fail{false};
  auto store = open(folder / "data", failing("merge", fail, StatusCode::io_error));
  apply_to(*store, std::vector<Write>{set("key", "old"), set("other", "old"), set("third", "old")});
  fail = true;
  EXPECT_FALSE(store->flush(true).ok());
  ASSERT_TRUE(store->install_checkpoint(folder / "checkpoint").ok());
  EXPECT_TRUE(store->health().ok());
  EXPECT_EQ(value_of(*store, "key"), "new");
  EXPECT_EQ(value_of(*store, "other"), "(none)");
  fail = false;
  EXPECT_EQ(apply_to(*store, incr("n")).integer, 1);
  ASSERT_TRUE(store->flush(true).ok());
  EXPECT_EQ(store->durable_applied_index().value(), made.index + 1);
  store.reset();
  store = open(folder / "data");
  EXPECT_EQ(value_of(*store, "other"), "(none)");
  EXPECT_EQ(store->applied_index(), made.index + 1);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these keep what is freed
std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(Overlay, AKeyThatOnceHeldMuchTakesWhatItHoldsNow) {
  TemporaryFolder folder;
  StoreOptions with = options();
  with.write_buffer_bytes = std::size_t{256} << 20;  // nothing is merged meanwhile
  const auto store = open(folder / "data", with);
  apply_to(*store, set("first", std::string(1 << 20, 'x')));
  const std::size_t before = resident_bytes();
  for (int i = 0; i < 256; ++i) {
    const std::string key = "key" + std::to_string(i);
    apply_to(*store, set(key, std::string(1 << 20, 'x')));
    apply_to(*store, set(key, "x"));
  }
  EXPECT_LT(resident_bytes(), before + (std::size_t{64} << 20));
}
#endif

}  // namespace
}  // namespace sluice::kv::test
