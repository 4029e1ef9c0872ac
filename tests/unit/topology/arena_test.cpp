// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/arena.hpp"

#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/topology/cpus.hpp"

namespace sluice::topology {
namespace {

/// Who came, and where they were.
struct Seen {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  CpuSet pus;                    ///< that the bodies ran on
  std::vector<CpuSet> bindings;  ///< of the threads that ran them
};

/// As many bodies as threads, each of which waits for the others: so that no thread runs two.
/// False if that many threads did not come.
bool run_on_threads(tbb::task_arena& arena, int threads, Seen& seen) {
  std::atomic<int> here{0};
  std::atomic<bool> all_came{true};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const auto body = [&](int) {
    {
      const std::lock_guard lock(seen.mutex);
      seen.threads.insert(std::this_thread::get_id());
      seen.pus.add(static_cast<unsigned>(::sched_getcpu()));
      seen.bindings.push_back(current_thread_binding());
    }
    here.fetch_add(1, std::memory_order_relaxed);
    while (here.load(std::memory_order_relaxed) < threads && all_came) {
      if (std::chrono::steady_clock::now() > deadline) all_came = false;
      std::this_thread::yield();
    }
  };
  arena.execute([&] { tbb::parallel_for(0, threads, body, tbb::simple_partitioner{}); });
  return all_came;
}

class Arena : public ::testing::Test {
 protected:
  void SetUp() override {
    auto cpus = allowed_cpus();
    ASSERT_TRUE(cpus.ok()) << cpus.status().to_string();
    all_ = CpuSet(*cpus);
    first_ = CpuSet(std::vector{cpus->front()});
    last_ = CpuSet(std::vector{cpus->back()});
  }

  static std::unique_ptr<BoundArena> created(const CpuSet& pus, int concurrency = 0) {
    auto arena = BoundArena::create(pus, concurrency);
    EXPECT_TRUE(arena.ok()) << arena.status().to_string();
    return arena.ok() ? *std::move(arena) : nullptr;
  }

  /// A thread of its own, as what enters an arena may come out bound.
  template <typename Function>
  static void on_a_thread(Function function) {
    std::thread(function).join();
  }

  CpuSet all_;
  CpuSet first_;  ///< one PU
  CpuSet last_;   ///< another one, if there are two
  /// Workers enough for a machine with a single PU, too: one besides the thread that executes.
  tbb::global_control two_threads_{tbb::global_control::max_allowed_parallelism, 2};
};

TEST_F(Arena, RunsItsTasksOnThePusOfTheSetAndNowhereElse) {
  for (const CpuSet& pus : {first_, last_, all_}) {
    on_a_thread([&] {
      const auto arena = created(pus, 2);
      Seen seen;
      ASSERT_TRUE(run_on_threads(arena->arena(), 2, seen));
      EXPECT_EQ(seen.threads.size(), 2U);
      EXPECT_TRUE(seen.pus.is_within(pus)) << seen.pus.to_string() << " in " << pus.to_string();
      for (const CpuSet& binding : seen.bindings) EXPECT_EQ(binding, pus);
      EXPECT_EQ(arena->bind_failures(), 0U);
      EXPECT_EQ(arena->pus(), pus);
    });
  }
}

TEST_F(Arena, HasAThreadForEachPuUnlessToldOtherwise) {
  const int each = static_cast<int>(all_.count());
  EXPECT_EQ(created(all_)->arena().max_concurrency(), each);
  EXPECT_EQ(created(first_)->arena().max_concurrency(), 1);
  EXPECT_EQ(created(first_, 3)->arena().max_concurrency(), 3);
}

TEST_F(Arena, GivesTheCallerBackTheBindingItHad) {
  for (const CpuSet& former : {first_, last_, all_}) {
    on_a_thread([&] {
      ASSERT_TRUE(bind_current_thread(former).ok());
      const auto arena = created(last_);
      CpuSet within;
      arena->arena().execute([&] { within = current_thread_binding(); });
      EXPECT_EQ(within, last_);
      EXPECT_EQ(current_thread_binding(), former);
    });
  }
}

TEST_F(Arena, GivesItBackAfterAnExceptionToo) {
  on_a_thread([&] {
    const auto arena = created(first_);
    EXPECT_THROW(arena->arena().execute([] { throw std::runtime_error("a task's"); }),
                 std::runtime_error);
    EXPECT_EQ(current_thread_binding(), all_);
  });
}

TEST_F(Arena, LeavesAThreadAloneThatIsBoundWithinTheSet) {
  on_a_thread([&] {
    ASSERT_TRUE(bind_current_thread(first_).ok());
    const auto arena = created(all_);
    CpuSet within;
    arena->arena().execute([&] { within = current_thread_binding(); });
    EXPECT_EQ(within, first_);
    EXPECT_EQ(current_thread_binding(), first_);
  });
}

TEST_F(Arena, NestsInOthersAndInItself) {
  on_a_thread([&] {
    const auto outer = created(first_, 2);
    const auto inner = created(last_, 2);
    std::vector<CpuSet> bindings;
    const auto note = [&] { bindings.push_back(current_thread_binding()); };
    outer->arena().execute([&] {
      inner->arena().execute([&] {
        outer->arena().execute([&] { outer->arena().execute(note); });
        note();
      });
      note();
    });
    note();
    EXPECT_EQ(bindings, (std::vector{first_, last_, first_, all_}));
    EXPECT_EQ(outer->bind_failures() + inner->bind_failures(), 0U);
  });
}

TEST_F(Arena, StaysApartFromAnotherThatRunsAtTheSameTime) {
  // Three threads: both callers, and a worker that goes to and fro.
  const auto keep_busy = [](const CpuSet& pus, Seen& seen) {
    const auto arena = created(pus, 2);
    constexpr int kRounds = 200;
    for (int round = 0; round < kRounds; ++round) {
      arena->arena().execute([&] {
        tbb::parallel_for(0, 16, [&](int) {
          const std::lock_guard lock(seen.mutex);
          seen.pus.add(static_cast<unsigned>(::sched_getcpu()));
        });
      });
    }
    EXPECT_EQ(arena->bind_failures(), 0U);
  };
  Seen low;
  Seen high;
  std::thread other([&] { keep_busy(first_, low); });
  on_a_thread([&] { keep_busy(last_, high); });
  other.join();
  EXPECT_EQ(low.pus, first_);
  EXPECT_EQ(high.pus, last_);
}

/// TBB tells no observer that is taken away that a thread leaves.
TEST_F(Arena, LeavesNoBindingOnAWorkerWhenItIsDestroyed) {
  constexpr int kTimes = 30;
  on_a_thread([&] {
    tbb::task_arena free_arena(2);
    for (int i = 0; i < kTimes; ++i) {
      Seen bound;
      {
        const auto arena = created(first_, 2);
        ASSERT_TRUE(run_on_threads(arena->arena(), 2, bound));
      }
      Seen unbound;
      ASSERT_TRUE(run_on_threads(free_arena, 2, unbound));
      ASSERT_EQ(unbound.threads, bound.threads) << "another worker came: this shows nothing";
      for (const CpuSet& binding : unbound.bindings) {
        ASSERT_EQ(binding, all_) << binding.to_string();
      }
    }
  });
}

TEST_F(Arena, CountsTheThreadsThatCouldNotBeBound) {
  constexpr unsigned kNoSuchPu = 4000;
  on_a_thread([&] {
    const auto arena = created(CpuSet(std::vector{kNoSuchPu}), 2);
    EXPECT_EQ(arena->bind_failures(), 0U);
    Seen seen;
    ASSERT_TRUE(run_on_threads(arena->arena(), 2, seen));
    EXPECT_GE(arena->bind_failures(), 2U);
    for (const CpuSet& binding : seen.bindings) EXPECT_EQ(binding, all_) << binding.to_string();
    EXPECT_EQ(current_thread_binding(), all_);
  });
}

TEST_F(Arena, IsNotMadeOfNoPuNorWithLessThanNoThread) {
  const auto empty = BoundArena::create(CpuSet{});
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(empty.status().code(), StatusCode::invalid_argument);
  const auto negative = BoundArena::create(first_, -2);
  ASSERT_FALSE(negative.ok());
  EXPECT_EQ(negative.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(negative.status().message().find("-2"), std::string::npos);
}

using ArenaDeathTest = Arena;

TEST_F(ArenaDeathTest, IsNotDestroyedByAThreadThatIsInIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto arena = created(first_);
        tbb::task_arena& inside = arena->arena();
        inside.execute([&] { arena.reset(); });
      },
      "destroys the BoundArena that it is in");
}

}  // namespace
}  // namespace sluice::topology
