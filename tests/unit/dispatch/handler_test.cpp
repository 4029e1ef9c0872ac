// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/dispatch/handler.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

// Counts what this thread allocates, to see where a callable is stored. Not inlined: the compiler
// would take a malloc() here and a free() there for a mismatch.
namespace {
thread_local std::size_t allocations = 0;
}  // namespace
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace sluice {
namespace {

using Batch = std::span<const ibv_wc>;

// What a handler can be made of. A callable that may throw is refused by a static_assert within the
// constructor (its message is for people), so that alone cannot be asked here; see
// MayThrowIsNotCallableAsNoexcept.
struct TakesNothing {
  void operator()() noexcept {}
};
struct Good {
  void operator()(Batch, const BatchInfo&) noexcept {}
};
struct MayThrow {
  void operator()(Batch, const BatchInfo&) {}
};
static_assert(std::is_constructible_v<Handler, Good>);
static_assert(!std::is_constructible_v<Handler, TakesNothing>);
static_assert(!std::is_constructible_v<Handler, int>);
static_assert(!std::is_copy_constructible_v<Handler> && !std::is_copy_assignable_v<Handler>);
static_assert(std::is_nothrow_move_constructible_v<Handler> &&
              std::is_nothrow_move_assignable_v<Handler>);
static_assert(std::is_nothrow_invocable_v<Handler&, Batch, const BatchInfo&>);
static_assert(!std::is_nothrow_invocable_v<MayThrow&, Batch, const BatchInfo&>);

TEST(Handler, OfUpTo64BytesIsStoredWithoutAllocation) {
  std::array<std::byte, Handler::kInlineSize - sizeof(void*)> filler{};
  int called = 0;
  const std::size_t before = allocations;
  Handler handler([filler, out = &called](Batch, const BatchInfo&) noexcept {
    *out += static_cast<int>(filler.size());
  });
  Handler moved(std::move(handler));
  moved({}, {});
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(called, static_cast<int>(filler.size()));
}

TEST(Handler, LargerThan64BytesIsStoredByOneAllocationAndMovedByNone) {
  std::array<std::byte, Handler::kInlineSize + 1> filler{};
  std::size_t before = allocations;
  Handler handler([filler](Batch, const BatchInfo&) noexcept { static_cast<void>(filler); });
  EXPECT_EQ(allocations, before + 1);
  before = allocations;
  Handler moved(std::move(handler));
  moved({}, {});
  EXPECT_EQ(allocations, before);
}

/// Counts how many of it live.
struct Counted {
  explicit Counted(int& living) : count(&living) { ++*count; }
  Counted(const Counted& other) noexcept : count(other.count) { ++*count; }
  Counted(Counted&& other) noexcept : count(other.count) { ++*count; }
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --*count; }
  void operator()(Batch, const BatchInfo&) noexcept {}
  int* count;
};
struct CountedLarge : Counted {
  using Counted::Counted;
  std::array<std::byte, 200> filler{};
};
/// Small, but its move may throw: must not be stored where a Handler's move would move it.
struct ThrowingMove {
  ThrowingMove() = default;
  ThrowingMove(const ThrowingMove&) = default;
  ThrowingMove(ThrowingMove&&) noexcept(false) {}
  void operator()(Batch, const BatchInfo&) noexcept {}
};
struct alignas(64) OverAligned {
  void operator()(Batch, const BatchInfo&) noexcept {
    ok = reinterpret_cast<std::uintptr_t>(this) % 64 == 0;
  }
  bool ok = false;
};

template <typename Callable>
class HandlerLife : public ::testing::Test {};
using Callables = ::testing::Types<Counted, CountedLarge>;
TYPED_TEST_SUITE(HandlerLife, Callables);

TYPED_TEST(HandlerLife, EachCallableIsDestroyedOnce) {
  int living = 0;
  {
    Handler first{TypeParam(living)};
    EXPECT_EQ(living, 1);
    Handler second(std::move(first));
    EXPECT_EQ(living, 1);
    EXPECT_FALSE(static_cast<bool>(first));  // NOLINT(bugprone-use-after-move): what is asked
    EXPECT_TRUE(static_cast<bool>(second));
    Handler third{TypeParam(living)};
    EXPECT_EQ(living, 2);
    third = std::move(second);
    EXPECT_EQ(living, 1);
    Handler& same = third;
    third = std::move(same);
    EXPECT_EQ(living, 1);
    third({}, {});
    third = Handler{};
    EXPECT_EQ(living, 0);
  }
  EXPECT_EQ(living, 0);
}

TEST(Handler, WhoseMoveMayThrowIsStoredOnTheHeap) {
  const std::size_t before = allocations;
  Handler handler{ThrowingMove{}};
  EXPECT_EQ(allocations, before + 1);
}

TEST(Handler, OverAlignedIsStoredAligned) {
  static bool ok = false;
  struct Probe {  // no larger than what is stored inline, but aligned to more than that is
    OverAligned inner;
    void operator()(Batch batch, const BatchInfo& info) noexcept {
      inner(batch, info);
      ok = inner.ok;
    }
  };
  static_assert(sizeof(Probe) <= Handler::kInlineSize &&
                alignof(Probe) > alignof(std::max_align_t));
  Handler handler{Probe{}};
  Handler moved(std::move(handler));
  moved({}, {});
  EXPECT_TRUE(ok);
}

TEST(Handler, IsGivenWhatTheDispatcherGives) {
  std::array<ibv_wc, 3> batch{};
  batch[2].wr_id = 7;
  BatchInfo info;
  info.poller = 5;
  bool called = false;
  Handler handler([&](Batch got, const BatchInfo& with) noexcept {
    called = got.size() == 3 && got[2].wr_id == 7 && with.poller == 5 && &with == &info;
  });
  handler(batch, info);
  EXPECT_TRUE(called);
}

std::size_t given_to_function = 0;
void function_handler(Batch batch, const BatchInfo&) noexcept {
  given_to_function += batch.size();
}

TEST(Handler, OfAPlainFunctionIsAPointerToIt) {
  const ibv_wc wc{};
  Handler handler(function_handler);
  Handler moved(std::move(handler));
  moved({&wc, 1}, {});
  EXPECT_EQ(given_to_function, 1u);
}

TEST(Handler, DefaultIsNone) {
  EXPECT_FALSE(static_cast<bool>(Handler{}));
}

}  // namespace
}  // namespace sluice
