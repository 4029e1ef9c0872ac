// SPDX-License-Identifier: BSD-3-Clause
//
// NodeMemory on a machine with several NUMA nodes, whose settings these tests change: only in a VM.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "sluice/topology/cpus.hpp"
#include "sluice/topology/memory.hpp"
#include "sluice_test/refused_system_calls.hpp"

namespace sluice::topology {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::string node_folder(unsigned node) {
  return "/sys/devices/system/node/node" + std::to_string(node);
}

std::string text_of(const std::string& file) {
  std::string text;
  std::getline(std::ifstream(file), text);
  return text;
}

/// A kernel setting for as long as this lives.
class Setting {
 public:
  Setting(std::string file, const std::string& value, std::string former)
      : file_(std::move(file)), former_(std::move(former)) {
    write(value);
  }
  ~Setting() { write(former_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  void write(const std::string& value) const {
    std::ofstream stream(file_);
    stream << value << std::flush;
    EXPECT_TRUE(stream.good()) << "cannot write " << value << " to " << file_;
  }
  std::string file_;
  std::string former_;
};

constexpr unsigned kReserved = 4;  ///< huge pages, where there are any
std::string pool_of(unsigned node) {
  return node_folder(node) + "/hugepages/hugepages-2048kB/";
}

class MemoryOfANode : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const nodes = std::getenv("SLUICE_VM_NODES");
    ASSERT_NE(nodes, nullptr) << "it changes the machine: tests/vm/run-gtest tells it that it may";
    nodes_ = static_cast<unsigned>(std::stoul(nodes));
    ASSERT_GE(nodes_, 2U);
    ASSERT_TRUE(std::filesystem::exists(node_folder(nodes_ - 1)));
    ASSERT_FALSE(std::filesystem::exists(node_folder(nodes_)));
  }

  void expect_on(unsigned node, const NodeMemory& memory) {
    const auto nodes = nodes_of_pages(memory.bytes());
    ASSERT_TRUE(nodes.ok()) << nodes.status().to_string();
    EXPECT_THAT(*nodes, Each(static_cast<int>(node)));
  }

  unsigned nodes_ = 0;
};

NodeMemory allocated(const MemoryRequest& request) {
  auto memory = NodeMemory::allocate(request);
  EXPECT_TRUE(memory.ok()) << memory.status().to_string();
  return memory.ok() ? *std::move(memory) : NodeMemory{};
}

TEST_F(MemoryOfANode, IsOnItWhereverTheThreadRuns) {
  const auto cpus = allowed_cpus();
  ASSERT_TRUE(cpus.ok());
  for (const unsigned cpu : *cpus) {
    ASSERT_TRUE(bind_current_thread(cpu).ok());
    for (unsigned node = 0; node < nodes_; ++node) {
      const NodeMemory memory = allocated({.bytes = kMiB + 1, .node = node});
      EXPECT_EQ(memory.bytes().size(), kMiB + 1);
      EXPECT_THAT(memory.fallbacks(), IsEmpty());
      expect_on(node, memory);
    }
  }
}

TEST_F(MemoryOfANode, ThatDoesNotExistIsRefusedWithThoseThatDo) {
  const auto memory = NodeMemory::allocate({.bytes = 1, .node = nodes_});
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(memory.status().message(), HasSubstr("node " + std::to_string(nodes_) + ";"));
  EXPECT_THAT(memory.status().message(), HasSubstr("are: 0-" + std::to_string(nodes_ - 1)));
}

TEST_F(MemoryOfANode, ThatIsSmallerIsRefusedNotKilled) {
  const std::string line = text_of(node_folder(1) + "/meminfo");  // Node 1 MemTotal:   505512 kB
  const std::size_t total = std::stoull(line.substr(line.find(':') + 1)) * 1024;
  const auto memory = NodeMemory::allocate({.bytes = total + 1, .node = 1});
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), StatusCode::resource_exhausted);
  EXPECT_THAT(memory.status().message(), HasSubstr("NUMA node 1"));
}

TEST_F(MemoryOfANode, IsOnHugePagesThatAreReservedThere) {
  for (unsigned node = 0; node < nodes_; ++node) {
    const Setting pool(pool_of(node) + "nr_hugepages", std::to_string(kReserved), "0");
    const NodeMemory memory =
        allocated({.bytes = 3 * kMiB, .node = node, .huge_pages = HugePages::mib2});
    EXPECT_EQ(memory.huge_pages(), HugePages::mib2);
    EXPECT_THAT(memory.fallbacks(), IsEmpty());
    EXPECT_EQ(text_of(pool_of(node) + "free_hugepages"), std::to_string(kReserved - 2));
    expect_on(node, memory);
  }
}

/// The kernel takes the reservation, which is the machine's, and would send SIGBUS at the touch.
TEST_F(MemoryOfANode, IsNotOnHugePagesThatAreReservedElsewhere) {
  const Setting pool(pool_of(0) + "nr_hugepages", std::to_string(kReserved), "0");
  const NodeMemory memory =
      allocated({.bytes = 3 * kMiB, .node = nodes_ - 1, .huge_pages = HugePages::mib2});
  EXPECT_NE(memory.huge_pages(), HugePages::mib2);
  ASSERT_FALSE(memory.fallbacks().empty());
  EXPECT_THAT(memory.fallbacks().front(), HasSubstr("No 2 MiB pages but"));
  expect_on(nodes_ - 1, memory);
  EXPECT_EQ(text_of(pool_of(0) + "free_hugepages"), std::to_string(kReserved));
}

TEST_F(MemoryOfANode, IsNotOnHugePagesElsewhereOnAnOldKernelEither) {
  const Setting pool(pool_of(0) + "nr_hugepages", std::to_string(kReserved), "0");
  EXPECT_EXIT(
      {
        test::refuse_system_calls({{SYS_madvise, MADV_POPULATE_WRITE}}, EINVAL);
        const NodeMemory memory =
            allocated({.bytes = 3 * kMiB, .node = nodes_ - 1, .huge_pages = HugePages::mib2});
        EXPECT_FALSE(memory.fallbacks().empty());
        expect_on(nodes_ - 1, memory);
        std::_Exit(HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(MemoryOfANode, SaysEachStepDownFromOneGiBPages) {
  const Setting never("/sys/kernel/mm/transparent_hugepage/enabled", "never", "always");
  const NodeMemory memory = allocated({.bytes = kMiB, .node = 1, .huge_pages = HugePages::gib1});
  EXPECT_EQ(memory.huge_pages(), HugePages::none);
  ASSERT_EQ(memory.fallbacks().size(), 2U);
  EXPECT_THAT(memory.fallbacks()[0], HasSubstr("No 1 GiB pages but transparent huge pages"));
  EXPECT_THAT(memory.fallbacks()[1], HasSubstr("No transparent huge pages but ordinary pages"));
  expect_on(1, memory);
}

TEST_F(MemoryOfANode, IsOnTransparentPagesWhereTheKernelHasThem) {
  const Setting asked("/sys/kernel/mm/transparent_hugepage/enabled", "madvise", "always");
  const Setting at_once("/sys/kernel/mm/transparent_hugepage/defrag", "madvise", "madvise");
  for (unsigned node = 0; node < nodes_; ++node) {
    const NodeMemory memory =
        allocated({.bytes = 3 * kMiB, .node = node, .huge_pages = HugePages::transparent});
    EXPECT_EQ(memory.huge_pages(), HugePages::transparent);
    EXPECT_THAT(memory.fallbacks(), IsEmpty());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.bytes().data()) % (2 * kMiB), 0U);
    expect_on(node, memory);
  }
}

}  // namespace
}  // namespace sluice::topology
