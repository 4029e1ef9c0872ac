// SPDX-License-Identifier: BSD-3-Clause
// A dispatcher started from a configuration, on whatever machine this is: one CPU, two, or a VM of
// several nodes with a NIC on one of them (SLUICE_ONE_CPU, SLUICE_VM_NODES, SLUICE_VM_NIC_NODE).
#include <dirent.h>
#include <gtest/gtest.h>
#include <oneapi/tbb/parallel_for.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "sluice/topology/arena.hpp"
#include "sluice/topology/memory.hpp"
#include "sluice/topology/plan.hpp"
#include "support.hpp"

namespace sluice::system_test {
namespace {

using topology::CpuSet;
using topology::kNone;
using topology::Plan;
using topology::PlannedThread;
using topology::ThreadRole;

Config config_of(const std::string& text) {
  topology::ConfigInput input;
  input.text = text;
  input.file = "test.toml";
  const auto outcome = Config::read(input);
  EXPECT_TRUE(outcome.ok()) << outcome.to_string();
  return outcome.config;
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The CPUs that the kernel has bound the thread of this name to.
std::string binding_of(const std::string& name) {
  std::string found;
  DIR* const tasks = ::opendir("/proc/self/task");
  while (const dirent* entry = ::readdir(tasks)) {
    const std::string of = std::string("/proc/self/task/") + entry->d_name;
    std::string comm;
    std::getline(std::ifstream(of + "/comm") >> std::ws, comm);
    if (comm != name) continue;
    std::ifstream status(of + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("Cpus_allowed_list:")) found += line.substr(line.find('\t') + 1);
    }
  }
  ::closedir(tasks);
  return found;
}

void expect_as_planned(const Dispatcher& dispatcher) {
  const Plan* const plan = dispatcher.plan();
  ASSERT_NE(plan, nullptr);
  for (const PlannedThread& thread : plan->threads) {
    EXPECT_EQ(binding_of(thread.name), std::to_string(thread.pu_os_index)) << thread.name;
  }
}

/// Says hello over each of `count` connections into the receive queues of a dispatcher, and waits
/// until each hello was handled.
void expect_messages_arrive(Dispatcher& dispatcher, const Site& site,
                            const std::vector<Dispatcher::ReceiveQueue>& queues,
                            std::uint32_t count, std::atomic<std::uint32_t>& received) {
  rpma::ConnectionConfig config = patient();
  std::vector<std::unique_ptr<Acceptor>> acceptors;
  for (const auto& queue : queues) {
    config.srq = queue.queue;
    acceptors.push_back(std::make_unique<Acceptor>(
        site, dispatcher, config, [&queue](std::uint32_t) -> std::optional<ConnectionOptions> {
          ConnectionOptions options;
          options.receive_source = queue.source;
          options.handler = [](std::span<const ibv_wc>, const BatchInfo&) noexcept {};
          return options;
        }));
  }
  std::vector<std::shared_ptr<ConnectionHandle>> clients;
  const auto memory = require(rpma::MemoryRegion::allocate(site.peer, 64, RPMA_MR_USAGE_SEND));
  for (std::uint32_t i = 0; i < count; ++i) {
    ConnectionOptions options;
    options.handler = [](std::span<const ibv_wc>, const BatchInfo&) noexcept {};
    clients.push_back(require(
        connect(site, dispatcher, acceptors[i % acceptors.size()]->port(), i, std::move(options))));
    require(clients.back()->connection().send(memory.get(), 0, 64, 1));
  }
  await("every message", [&] { return received == count; });
  for (const auto& client : clients) detach_clean(*client);
}

Handler counting(std::atomic<std::uint32_t>& received) {
  return [&received](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
    for (const ibv_wc& wc : batch) {
      const ReceivedBuffer buffer = info.receive_pool->take(wc);
      if (wc.status == IBV_WC_SUCCESS && buffer.bytes().size() == 64) ++received;
    }
  };
}

constexpr const char* kQueues = R"(
[srq.main]
depth = 64
buffer_size = "1KiB"
)";

TEST(Placed, ThreadsAreWhereThePlanSaysAndMessagesArrive) {
  std::atomic<std::uint32_t> received{0};
  const Site site;
  const auto dispatcher = require(Dispatcher::start(config_of(kQueues)));
  expect_as_planned(*dispatcher);
  const auto queues =
      require(dispatcher->attach_receive_queues("main", site.peer, counting(received)));
  EXPECT_EQ(queues.size(), dispatcher->plan()->poller_count());
  expect_messages_arrive(*dispatcher, site, queues, 8, received);
  require(dispatcher->stop(kDrainPatience));
}

TEST(Placed, OneCpuIsADegradedPlanThatSaysSo) {
  const auto machine = require(topology::Machine::this_machine());
  const auto plan = require(topology::place(machine, Config{}));
  const std::string only = environment("SLUICE_ONE_CPU");
  if (only.empty()) {
    EXPECT_GE(machine.usable().count(), 2U) << "this test wants two CPUs, or SLUICE_ONE_CPU";
    return;
  }
  EXPECT_EQ(machine.usable().to_string(), only);
  if (environment("SLUICE_ONE_CPU_BY") == "cgroup") {
    EXPECT_EQ(machine.allowed().to_string(), only);
  }
  ASSERT_FALSE(plan.degraded.empty());
  EXPECT_GT(plan.cost.shared_cores, 0U);
  for (const PlannedThread& thread : plan.threads) {
    EXPECT_EQ(std::to_string(thread.pu_os_index), only);
  }
}

TEST(Placed, BatchAndReceiveBuffersLieOnTheirPollersNode) {
  std::atomic<std::uint32_t> received{0};
  const Site site;
  const auto machine = require(topology::Machine::this_machine());
  // A poller on each node that has CPUs, whatever the NIC's is.
  std::string text = kQueues;
  std::uint32_t groups = 0;
  for (const topology::Node& node : machine.nodes()) {
    if (node.pus.empty()) continue;
    const std::string name = "n" + std::to_string(groups++);
    text += "[pollers." + name + "]\ncpus = \"" +
            std::to_string(machine.pus()[node.pus.front()].os_index) + "\"\n[srq." + name +
            "]\ndepth = 64\npollers = \"" + name + "\"\n";
  }
  const std::string nodes = environment("SLUICE_VM_NODES");
  if (!nodes.empty()) {
    ASSERT_EQ(std::to_string(groups), nodes);
  }
  if (!environment("SLUICE_ONE_CPU").empty()) return;  // its CPU is not the node's first
  const auto dispatcher = require(Dispatcher::start(config_of(text)));
  expect_as_planned(*dispatcher);
  EXPECT_TRUE(dispatcher->notices().empty()) << dispatcher->notices().front();
  for (std::uint32_t poller = 0; poller < groups; ++poller) {
    const PlannedThread& thread = dispatcher->plan()->threads[poller];
    const auto node = static_cast<int>(machine.nodes()[thread.memory_node].os_index);
    EXPECT_EQ(machine.pus()[thread.pu].node, thread.memory_node);
    const auto lies_there = [&](std::span<const std::byte> bytes, const char* what) {
      const auto pages = require(topology::nodes_of_pages(bytes));
      EXPECT_FALSE(pages.empty());
      EXPECT_EQ(std::count(pages.begin(), pages.end(), node),
                static_cast<std::ptrdiff_t>(pages.size()))
          << what << " of " << thread.name;
    };
    lies_there(dispatcher->batch_memory(poller), "batch buffers");
    const auto queues = require(dispatcher->attach_receive_queues("n" + std::to_string(poller),
                                                                  site.peer, counting(received)));
    ASSERT_EQ(queues.size(), 1U);
    EXPECT_EQ(queues.front().poller, poller);
    lies_there(queues.front().buffers->memory(), "receive buffers");
  }
  require(dispatcher->stop(kDrainPatience));
}

TEST(Placed, PollersAreDrawnToTheNodeOfTheNic) {
  const std::string nic_node = environment("SLUICE_VM_NIC_NODE");
  const Site site;
  const auto dispatcher = require(Dispatcher::start(Config{}));
  const Plan& plan = *dispatcher->plan();
  const topology::Nic* const nic = plan.machine.find_nic(site.peer->device_name());
  ASSERT_NE(nic, nullptr) << site.peer->device_name();
  if (nic_node.empty()) {
    const auto with_cpus = std::count_if(plan.machine.nodes().begin(), plan.machine.nodes().end(),
                                         [](const auto& node) { return !node.pus.empty(); });
    EXPECT_EQ(nic->node == kNone, with_cpus > 1) << nic->locality_source;
    return;
  }
  ASSERT_NE(nic->node, kNone) << nic->locality_source;
  EXPECT_EQ(std::to_string(plan.machine.nodes()[nic->node].os_index), nic_node);
  for (const PlannedThread& thread : plan.threads) {
    if (thread.role == ThreadRole::poller) {
      EXPECT_EQ(plan.machine.pus()[thread.pu].node, nic->node) << thread.reason;
    }
  }
  expect_as_planned(*dispatcher);
}

TEST(Placed, APoolsArenaStaysOnTheWorkersCpus) {
  const auto dispatcher = require(Dispatcher::start(Config{}));
  topology::BoundArena* const arena = require(dispatcher->arena("default"));
  std::set<std::string> workers;
  for (const PlannedThread& thread : dispatcher->plan()->threads) {
    if (thread.role == ThreadRole::worker) workers.insert(std::to_string(thread.pu_os_index));
  }
  for (const unsigned cpu : arena->pus().to_vector()) {
    EXPECT_TRUE(workers.contains(std::to_string(cpu))) << cpu;
  }
  std::atomic<unsigned> elsewhere{0};
  arena->arena().execute([&] {
    tbb::parallel_for(0, 1000, [&](int) {
      if (!arena->pus().contains(static_cast<unsigned>(::sched_getcpu()))) ++elsewhere;
    });
  });
  EXPECT_EQ(elsewhere, 0U);
  EXPECT_EQ(arena->bind_failures(), 0U);
  EXPECT_FALSE(dispatcher->arena("apply").ok());
}

TEST(Placed, HugePagesAreThereOrTheirLackIsSaid) {
  const auto dispatcher =
      require(Dispatcher::start(config_of("[memory]\nhuge_pages = \"2MiB\"\n")));
  std::ifstream meminfo("/proc/meminfo");
  std::uint64_t free = 0;
  for (std::string line; std::getline(meminfo, line);) {
    if (line.starts_with("HugePages_Total:")) free = std::stoull(line.substr(16));
  }
  if (free == 0) {
    ASSERT_FALSE(dispatcher->notices().empty());
    EXPECT_NE(dispatcher->notices().front().find("poller 0"), std::string::npos)
        << dispatcher->notices().front();
  }
}

TEST(Placed, APlanForAnotherMachineIsRefused) {
  const auto other = require(topology::Machine::from_synthetic("numa:2 core:64 pu:2"));
  const auto refused = Dispatcher::start(require(topology::place(other, Config{})));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("another machine"), std::string::npos);
}

TEST(Placed, ARouteGivesPoolPollersAndOrder) {
  const auto dispatcher = require(Dispatcher::start(config_of(R"(
[pollers.a]
[pollers.b]
[pools.x]
workers = 1
[pools.y]
workers = 1
[routes.to_y]
pool = "y"
pollers = "b"
order = "none"
[srq.main]
depth = 16
route = "to_y"
pollers = "b"
)")));
  const Site site;
  std::atomic<std::uint32_t> received{0};
  EXPECT_FALSE(dispatcher->attach_receive_queues("mian", site.peer, counting(received)).ok());
  const auto queues =
      require(dispatcher->attach_receive_queues("main", site.peer, counting(received)));
  ASSERT_EQ(queues.size(), 1U);
  EXPECT_EQ(queues.front().poller, 1U) << "the second group's only poller";
  const auto srq = require(rpma::SharedReceiveQueue::create(site.peer, {.depth = 8}));
  const auto nowhere =
      dispatcher->attach(srq->receive_cq(), {.route = "to_z"},
                         [](std::span<const ibv_wc>, const BatchInfo&) noexcept {});
  ASSERT_FALSE(nowhere.ok());
  EXPECT_NE(nowhere.status().message().find("to_y"), std::string::npos);
  require(dispatcher->stop(kDrainPatience));
}

TEST(Placed, AnInlineHandlerFindsItsReceivePool) {
  std::atomic<std::uint32_t> received{0};
  const Site site;
  const auto dispatcher = require(Dispatcher::start(
      config_of("[routes.now]\norder = \"inline\"\n[srq.main]\ndepth = 8\nroute = \"now\"\n")));
  const auto queues =
      require(dispatcher->attach_receive_queues("main", site.peer, counting(received)));
  rpma::ConnectionConfig config = patient();
  config.srq = queues.front().queue;
  const Acceptor acceptor(
      site, *dispatcher, config, [](std::uint32_t) -> std::optional<ConnectionOptions> {
        ConnectionOptions options;
        options.handler = [](std::span<const ibv_wc>, const BatchInfo&) noexcept {};
        return options;
      });
  ConnectionOptions options;
  options.handler = [](std::span<const ibv_wc>, const BatchInfo&) noexcept {};
  const auto client = require(connect(site, *dispatcher, acceptor.port(), 1, std::move(options)));
  const auto memory = require(rpma::MemoryRegion::allocate(site.peer, 64, RPMA_MR_USAGE_SEND));
  require(client->connection().send(memory.get(), 0, 64, 1));
  await("the message", [&] { return received == 1; });
  detach_clean(*client);
}

TEST(Placed, AConnectionOfAnotherReceiveQueueIsRefused) {
  std::atomic<std::uint32_t> received{0};
  const Site site;
  const auto dispatcher =
      require(Dispatcher::start(config_of("[srq.a]\ndepth = 8\n[srq.b]\ndepth = 8\n")));
  const auto a = require(dispatcher->attach_receive_queues("a", site.peer, counting(received)));
  const auto b = require(dispatcher->attach_receive_queues("b", site.peer, counting(received)));
  rpma::ConnectionConfig config = patient();
  config.srq = a.front().queue;
  const Acceptor acceptor(
      site, *dispatcher, config, [&](std::uint32_t) -> std::optional<ConnectionOptions> {
        ConnectionOptions options;
        options.receive_source = b.front().source;  // the other one's
        options.handler = [](std::span<const ibv_wc>, const BatchInfo&) noexcept {};
        return options;
      });
  ConnectionOptions options;
  options.handler = [](std::span<const ibv_wc>, const BatchInfo&) noexcept {};
  const auto client = connect(site, *dispatcher, acceptor.port(), 1, std::move(options));
  await("the refusal", [&] { return !acceptor.failures().empty(); });
  EXPECT_NE(acceptor.failures().front().message().find("receive_source"), std::string::npos)
      << acceptor.failures().front().message();
}

TEST(Placed, APoolWithoutAFreeLaneRefusesTheConnection) {
  const auto dispatcher = require(Dispatcher::start(config_of("[pools.p]\nlanes = 1\n")));
  const Site site;
  const auto srq = require(rpma::SharedReceiveQueue::create(site.peer, {.depth = 8}));
  const auto source = require(dispatcher->attach(
      srq->receive_cq(), {}, [](std::span<const ibv_wc>, const BatchInfo&) noexcept {}));
  const auto attach = [&](std::uint32_t qp_num) {
    ConnectionOptions one;
    one.receive_source = source;
    return dispatcher->attach_queue_pair(qp_num, std::move(one));
  };
  const auto first = require(attach(100));
  const auto second = attach(101);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::does_not_fit);
  EXPECT_NE(second.status().message().find("lanes"), std::string::npos);
  detach_clean(*first);
  const auto third = require(attach(102));
  detach_clean(*third);
  require(dispatcher->stop(kDrainPatience));
}

}  // namespace
}  // namespace sluice::system_test
