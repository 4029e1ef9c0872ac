// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "sluice_test/refused_system_calls.hpp"

namespace sluice::topology {
namespace {

using test::refuse_system_calls;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr HugePages kAllKinds[] = {HugePages::none, HugePages::transparent, HugePages::mib2,
                                   HugePages::gib1};
constexpr std::size_t kMiB = std::size_t{1} << 20;
const std::size_t kPage = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

NodeMemory allocated(const MemoryRequest& request) {
  auto memory = NodeMemory::allocate(request);
  EXPECT_TRUE(memory.ok()) << memory.status().to_string();
  return memory.ok() ? *std::move(memory) : NodeMemory{};
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte each) { return each == std::byte{}; });
}

/// How many pages of a range have memory behind them.
std::size_t resident_pages(std::span<const std::byte> range) {
  std::vector<unsigned char> resident((range.size() + kPage - 1) / kPage);
  EXPECT_EQ(::mincore(const_cast<std::byte*>(range.data()), range.size(), resident.data()), 0);
  return static_cast<std::size_t>(std::count_if(
      resident.begin(), resident.end(), [](unsigned char page) { return (page & 1) != 0; }));
}

std::size_t mapped_bytes_of_this_process() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * kPage;
}

/// Containers may forbid move_pages(2), which is no failure of ours; our VM does not.
bool is_refusal(const Status& status) {
  return std::getenv("SLUICE_VM_NODES") == nullptr &&
         (status.code() == StatusCode::permission_denied ||
          status.code() == StatusCode::not_supported);
}

class MemoryOfEachKind : public ::testing::TestWithParam<HugePages> {};

TEST_P(MemoryOfEachKind, IsZeroedAlignedWritableAndOfTheSizeAskedFor) {
  for (const std::size_t bytes : {std::size_t{1}, kPage - 1, kPage, kPage + 1, 3 * kMiB + 5}) {
    const NodeMemory memory = allocated({.bytes = bytes, .huge_pages = GetParam()});
    ASSERT_EQ(memory.bytes().size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.bytes().data()) % kPage, 0U);
    EXPECT_TRUE(all_zero(memory.bytes()));
    std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{0xff});
  }
}

TEST_P(MemoryOfEachKind, IsThereBeforeAnybodyTouchesIt) {
  const NodeMemory memory = allocated({.bytes = 3 * kMiB, .huge_pages = GetParam()});
  EXPECT_EQ(resident_pages(memory.bytes()), 3 * kMiB / kPage);
}

TEST_P(MemoryOfEachKind, IsOfThatKindOrSaysWhyNot) {
  const NodeMemory memory = allocated({.bytes = 4 * kMiB, .huge_pages = GetParam()});
  if (memory.huge_pages() == GetParam()) {
    EXPECT_THAT(memory.fallbacks(), Each(HasSubstr("Only")));
  } else {
    ASSERT_FALSE(memory.fallbacks().empty());
    EXPECT_THAT(memory.fallbacks().front(), HasSubstr("No "));
    EXPECT_THAT(memory.fallbacks(), Each(::testing::EndsWith(".")));
  }
}

TEST_P(MemoryOfEachKind, GivesBackAllThatItMapped) {
  constexpr int kTimes = 20;
  const MemoryRequest request{.bytes = 3 * kMiB, .huge_pages = GetParam()};
  (void)allocated(request);
  const std::size_t before = mapped_bytes_of_this_process();
  for (int i = 0; i < kTimes; ++i) (void)allocated(request);
  EXPECT_LT(mapped_bytes_of_this_process(), before + kTimes * kMiB);
}

std::string kind_name(const ::testing::TestParamInfo<HugePages>& info) {
  switch (info.param) {
    case HugePages::none: return "Ordinary";
    case HugePages::transparent: return "Transparent";
    case HugePages::mib2: return "TwoMiB";
    case HugePages::gib1: break;
  }
  return "OneGiB";
}
INSTANTIATE_TEST_SUITE_P(Memory, MemoryOfEachKind, ::testing::ValuesIn(kAllKinds), kind_name);

TEST(Memory, OfNoBytesIsEmpty) {
  const NodeMemory memory = allocated({.bytes = 0, .huge_pages = HugePages::mib2});
  EXPECT_TRUE(memory.bytes().empty());
  EXPECT_THAT(memory.fallbacks(), IsEmpty());
}

TEST(Memory, MovesWithItsOwner) {
  NodeMemory first = allocated({.bytes = kPage});
  NodeMemory second = allocated({.bytes = 2 * kPage});
  std::byte* const where = first.bytes().data();
  first.bytes()[7] = std::byte{42};
  second = std::move(first);
  EXPECT_TRUE(first.bytes().empty());  // NOLINT(bugprone-use-after-move): what is tested
  ASSERT_EQ(second.bytes().data(), where);
  EXPECT_EQ(second.bytes()[7], std::byte{42});
  const NodeMemory third(std::move(second));
  EXPECT_EQ(third.bytes().data(), where);
  EXPECT_EQ(resident_pages(third.bytes()), 1U);
}

TEST(Memory, OnANodeIsThereOrSaysThatItIsNot) {
  const NodeMemory memory = allocated({.bytes = kMiB, .node = 0});
  const auto nodes = nodes_of_pages(memory.bytes());
  if (!nodes) {
    EXPECT_TRUE(is_refusal(nodes.status())) << nodes.status().to_string();
    EXPECT_FALSE(memory.fallbacks().empty());
    return;
  }
  EXPECT_EQ(nodes->size(), kMiB / kPage);
  if (memory.fallbacks().empty()) {
    EXPECT_THAT(*nodes, Each(0));
  }
}

TEST(Memory, OnANodeThatIsNotThereIsRefusedWithWhatThereIs) {
  const auto memory = NodeMemory::allocate({.bytes = kPage, .node = 4711});
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(memory.status().message(), HasSubstr("4711"));
  EXPECT_THAT(memory.status().message(), HasSubstr("are: 0"));
}

TEST(Memory, OfMoreThanTheMachineHasIsRefusedNotKilled) {
  for (const HugePages kind : kAllKinds) {
    for (const std::size_t bytes :
         {std::size_t{1} << 50, std::numeric_limits<std::size_t>::max()}) {
      const auto memory = NodeMemory::allocate({.bytes = bytes, .huge_pages = kind});
      ASSERT_FALSE(memory.ok());
      EXPECT_EQ(memory.status().code(), StatusCode::resource_exhausted);
      EXPECT_THAT(memory.status().message(), HasSubstr(std::to_string(bytes)));
    }
  }
}

/// Runs in a process of its own; what fails is on stderr.
void expect_to_work_with_fallbacks(const MemoryRequest& request,
                                   const std::vector<std::string>& parts) {
  const NodeMemory memory = allocated(request);
  EXPECT_TRUE(all_zero(memory.bytes()));
  EXPECT_EQ(resident_pages(memory.bytes()), request.bytes / kPage);
  EXPECT_EQ(memory.fallbacks().size(), parts.size());
  for (std::size_t i = 0; i < std::min(parts.size(), memory.fallbacks().size()); ++i) {
    EXPECT_THAT(memory.fallbacks()[i], HasSubstr(parts[i]));
  }
  std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
}

TEST(MemoryInAContainer, IsToldThatItMayNotBeBoundNorReadBack) {
  for (const int error : {EPERM, ENOSYS}) {
    EXPECT_EXIT(
        {
          refuse_system_calls({{SYS_mbind}, {SYS_move_pages}}, error);
          expect_to_work_with_fallbacks({.bytes = kMiB, .node = 0},
                                        {"is not bound to NUMA node 0", "could not be read back"});
        },
        ::testing::ExitedWithCode(0), "");
  }
}

TEST(MemoryOnAnOldKernel, IsPopulatedWithoutMadvise) {
  EXPECT_EXIT(
      {
        refuse_system_calls({{SYS_madvise, MADV_POPULATE_WRITE}}, EINVAL);
        expect_to_work_with_fallbacks({.bytes = 3 * kMiB}, {});
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(MemoryWithoutTransparentPages, IsOrdinaryAndSaysSo) {
  EXPECT_EXIT(
      {
        refuse_system_calls({{SYS_madvise, MADV_HUGEPAGE}}, EINVAL);
        expect_to_work_with_fallbacks({.bytes = kMiB, .huge_pages = HugePages::transparent},
                                      {"No transparent huge pages but ordinary pages"});
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(NodesOfPages, OfAnEmptyRangeAreNone) {
  const auto nodes = nodes_of_pages({});
  ASSERT_TRUE(nodes.ok());
  EXPECT_THAT(*nodes, IsEmpty());
}

TEST(NodesOfPages, CountEachPageThatTheRangeTouches) {
  const NodeMemory memory = allocated({.bytes = 1500 * kPage});
  const auto count = [&](std::size_t offset, std::size_t bytes) -> std::size_t {
    const auto nodes = nodes_of_pages(std::span(memory.bytes()).subspan(offset, bytes));
    if (nodes) return nodes->size();
    EXPECT_TRUE(is_refusal(nodes.status())) << nodes.status().to_string();
    return (offset % kPage + bytes + kPage - 1) / kPage;
  };
  EXPECT_EQ(count(0, 1), 1U);
  EXPECT_EQ(count(kPage - 1, 1), 1U);
  EXPECT_EQ(count(kPage - 1, 2), 2U);
  EXPECT_EQ(count(kPage, kPage), 1U);
  EXPECT_EQ(count(5, 1500 * kPage - 5), 1500U);
}

TEST(NodesOfPages, AreMinusOneWhereNoPageIs) {
  void* const address =
      ::mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(address, MAP_FAILED);
  ::madvise(address, 3 * kPage, MADV_NOHUGEPAGE);
  auto* const bytes = static_cast<std::byte*>(address);
  bytes[kPage] = std::byte{1};
  const auto nodes = nodes_of_pages({bytes, 3 * kPage});
  if (nodes) {
    EXPECT_THAT(*nodes, ::testing::ElementsAre(-1, ::testing::Ge(0), -1));
  } else {
    EXPECT_TRUE(is_refusal(nodes.status())) << nodes.status().to_string();
  }
  ::munmap(address, 3 * kPage);
}

}  // namespace
}  // namespace sluice::topology
