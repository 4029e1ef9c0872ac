// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::topology {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using namespace std::chrono_literals;

using Variables = std::vector<std::pair<std::string, std::string>>;

ConfigOutcome read(std::string text, Variables environment = {},
                   std::vector<Override> overrides = {}) {
  ConfigInput input;
  input.text = std::move(text);
  input.file = "sluice.toml";
  input.environment = std::move(environment);
  input.overrides = std::move(overrides);
  return Config::read(input);
}

ConfigOutcome read_flag(const std::string& path, const std::string& value, std::string text = {}) {
  return read(std::move(text), {}, {{path, value, "--set"}});
}

Config taken(const ConfigOutcome& outcome) {
  EXPECT_THAT(outcome.to_string(), IsEmpty());
  return outcome.config;
}

/// The only thing there is to say.
Diagnostic only(const ConfigOutcome& outcome) {
  EXPECT_THAT(outcome.diagnostics, SizeIs(1)) << outcome.to_string();
  return outcome.diagnostics.empty() ? Diagnostic{} : outcome.diagnostics.front();
}

std::string only_error(const ConfigOutcome& outcome) {
  EXPECT_FALSE(outcome.ok());
  return only(outcome).to_string();
}

std::string only_warning(const ConfigOutcome& outcome) {
  EXPECT_TRUE(outcome.ok());
  return only(outcome).to_string();
}

std::string value_of(const Config& config, std::string_view path) {
  for (const auto& [name, value] : config.values()) {
    if (name == path) return value;
  }
  ADD_FAILURE() << "no " << path;
  return {};
}

// ---- what a file means

TEST(ConfigFile, EmptyMeansTheDefaults) {
  const Config config = taken(read(""));
  EXPECT_EQ(config.values(), Config{}.values());
  EXPECT_THAT(config.origins, IsEmpty());
}

TEST(ConfigFile, GivesEveryKeyItsValue) {
  const Config config = taken(read(R"(
[pollers.nic]
device = "mlx5_0"
cpus = "numa:1"
count = 2
wait = { mode = "busy", hot_rounds = 7 }
batch_size = 8
batch_count = 16
sources_max = 10
completion_vectors = [3, 1]
[pools.apply]
workers = 6
nodes = "any"
cpus = "0-3,8"
spin_rounds = 0
lanes = 256
key_lanes = 64
[srq.in]
depth = 512
buffer_size = "8KiB"
receive_cq_size = 1024
share = "all"
pollers = "nic"
route = "r"
[routes.r]
pool = "apply"
pollers = "nic"
order = "none"
[memory]
huge_pages = "2MiB"
node = 1
[dispatcher]
connections_max = 1000
stall_threshold = "0"
last_wqe_grace = "20us"
housekeeping_cpus = "0"
)"));
  ASSERT_THAT(config.pollers, SizeIs(1));
  const PollerGroup& pollers = config.pollers[0];
  EXPECT_EQ(pollers.name, "nic");
  EXPECT_EQ(pollers.device, "mlx5_0");
  EXPECT_EQ(pollers.cpus, "numa:1");
  EXPECT_EQ(pollers.count, 2U);
  EXPECT_EQ(pollers.wait, WaitMode::busy);
  EXPECT_EQ(pollers.hot_rounds, 7U);
  EXPECT_EQ(pollers.batch_size, 8U);
  EXPECT_EQ(pollers.batch_count, 16U);
  EXPECT_EQ(pollers.sources_max, 10U);
  EXPECT_EQ(pollers.completion_vectors, (std::vector<std::uint32_t>{3, 1}));
  ASSERT_THAT(config.pools, SizeIs(1));
  const PoolSettings& pool = config.pools[0];
  EXPECT_EQ(pool.name, "apply");
  EXPECT_EQ(pool.workers, 6U);
  EXPECT_EQ(pool.nodes, PoolNodes::any);
  EXPECT_EQ(pool.cpus, "0-3,8");
  EXPECT_EQ(pool.spin_rounds, 0U);
  EXPECT_EQ(pool.lanes, 256U);
  EXPECT_EQ(pool.key_lanes, 64U);
  ASSERT_THAT(config.srqs, SizeIs(1));
  const SrqSettings& srq = config.srqs[0];
  EXPECT_EQ(srq.name, "in");
  EXPECT_EQ(srq.depth, 512U);
  EXPECT_EQ(srq.buffer_size, 8192U);
  EXPECT_EQ(srq.receive_cq_size, 1024U);
  EXPECT_FALSE(srq.per_poller);
  EXPECT_EQ(srq.pollers, "nic");
  EXPECT_EQ(srq.route, "r");
  ASSERT_THAT(config.routes, SizeIs(1));
  EXPECT_EQ(config.routes[0].pool, "apply");
  EXPECT_EQ(config.routes[0].pollers, "nic");
  EXPECT_EQ(config.routes[0].order, Order::none);
  EXPECT_EQ(config.memory.huge_pages, HugePages::mib2);
  EXPECT_EQ(config.memory.node, "1");
  EXPECT_EQ(config.general.connections_max, 1000U);
  EXPECT_EQ(config.general.stall_threshold, 0ns);
  EXPECT_EQ(config.general.last_wqe_grace, 20us);
  EXPECT_EQ(config.general.housekeeping_cpus, "0");
}

TEST(ConfigFile, AutoIsTakenBackFromWhatHasNoWordForIt) {
  const Config config = taken(read(R"(
[pollers.p]
count = "auto"
completion_vectors = "auto"
[pools.q]
workers = "auto"
lanes = "auto"
[srq.s]
receive_cq_size = "auto"
[dispatcher]
connections_max = "auto"
)"));
  EXPECT_EQ(config.pollers[0].count, std::nullopt);
  EXPECT_EQ(config.pollers[0].completion_vectors, std::nullopt);
  EXPECT_EQ(config.pools[0].workers, std::nullopt);
  EXPECT_EQ(config.pools[0].lanes, std::nullopt);
  EXPECT_EQ(config.srqs[0].receive_cq_size, std::nullopt);
  EXPECT_EQ(config.general.connections_max, 0U);
}

TEST(ConfigFile, GroupsAreInTheOrderOfTheFileNotOfTheAlphabet) {
  const Config config = taken(read("[pools.zebra]\n[pools.apply]\n[pollers.n]\n[pollers.a]\n"));
  ASSERT_THAT(config.pools, SizeIs(2));
  EXPECT_EQ(config.pools[0].name, "zebra");
  EXPECT_EQ(config.pools[1].name, "apply");
  ASSERT_THAT(config.pollers, SizeIs(2));
  EXPECT_EQ(config.pollers[0].name, "n");
  const Config dotted = taken(read("pools.b.workers = 1\npools.a = { workers = 2 }\n"));
  EXPECT_EQ(dotted.pools[0].name, "b");
  EXPECT_EQ(dotted.pools[1].name, "a");
}

TEST(ConfigFile, NamingAGroupReplacesTheDefaultOneOfItsSectionOnly) {
  const Config config = taken(read("[pools.apply]\n"));
  ASSERT_THAT(config.pools, SizeIs(1));
  EXPECT_EQ(config.pools[0].name, "apply");
  ASSERT_THAT(config.pollers, SizeIs(1));
  EXPECT_EQ(config.pollers[0].name, "default");
}

TEST(ConfigFile, WaitIsAWordOrATable) {
  EXPECT_EQ(taken(read("[pollers.p]\nwait = \"busy\"\n")).pollers[0].wait, WaitMode::busy);
  const Config table = taken(read("[pollers.p]\nwait = { hot_rounds = 3 }\n"));
  EXPECT_EQ(table.pollers[0].wait, WaitMode::event);
  EXPECT_EQ(table.pollers[0].hot_rounds, 3U);
  EXPECT_EQ(taken(read("[pollers.p]\nwait = \"adaptive\"\n")).pollers[0].wait, WaitMode::adaptive);
}

TEST(ConfigFile, AdaptiveWaitingHasATargetAndACap) {
  const Config defaults = taken(read("[pollers.p]\nwait = \"adaptive\"\n"));
  EXPECT_EQ(defaults.pollers[0].latency_target, 0ns);
  EXPECT_EQ(defaults.pollers[0].cpu_cap, 1.0);
  EXPECT_EQ(value_of(defaults, "pollers.p.wait.latency_target"), "\"0\"");
  EXPECT_EQ(value_of(defaults, "pollers.p.wait.cpu_cap"), "1.0");
  const Config config = taken(read(
      "[pollers.p]\nwait = { mode = \"adaptive\", latency_target = \"20us\", cpu_cap = 0.5 }\n"));
  EXPECT_EQ(config.pollers[0].wait, WaitMode::adaptive);
  EXPECT_EQ(config.pollers[0].latency_target, 20us);
  EXPECT_EQ(config.pollers[0].cpu_cap, 0.5);
  EXPECT_EQ(value_of(config, "pollers.p.wait.cpu_cap"), "0.5");
  EXPECT_THAT(config.to_toml(true),
              AllOf(HasSubstr("wait.mode = \"adaptive\"  # sluice.toml:2"),
                    HasSubstr("wait.latency_target = \"20us\"  # sluice.toml:2"),
                    HasSubstr("wait.cpu_cap = 0.5  # sluice.toml:2")));
  for (const char* none : {"0", "0.0", "-0.0"}) {
    const Config zero = taken(
        read("[pollers.p]\nwait = { mode = \"adaptive\", cpu_cap = " + std::string(none) + " }\n"));
    EXPECT_EQ(value_of(zero, "pollers.p.wait.cpu_cap"), "0.0");
  }
  const Config small = taken(read("[pollers.p]\nwait = { mode = \"adaptive\", cpu_cap = 1e-7 }\n"));
  EXPECT_EQ(taken(read(small.to_toml(false))).pollers[0].cpu_cap, 1e-7);
}

TEST(ConfigFile, AWorkersSpinIsFixedOrAdaptive) {
  EXPECT_EQ(taken(read("[pools.p]\n")).pools[0].spin, SpinMode::fixed);
  EXPECT_EQ(taken(read("[pools.p]\nspin = \"adaptive\"\n")).pools[0].spin, SpinMode::adaptive);
}

TEST(ConfigFile, OrderPerKeyHasLanesOfItsOwn) {
  EXPECT_EQ(taken(read("[pools.p]\n")).pools[0].key_lanes, 256U);
  const Config config = taken(read("[pools.p]\nkey_lanes = 7\n[routes.r]\norder = \"per_key\"\n"));
  EXPECT_EQ(config.pools[0].key_lanes, 7U);
  EXPECT_EQ(config.pools[0].lanes, std::nullopt);
  EXPECT_EQ(config.routes[0].order, Order::per_key);
  EXPECT_THAT(config.to_toml(true), AllOf(HasSubstr("key_lanes = 7  # sluice.toml:2:13\n"),
                                          HasSubstr("order = \"per_key\"  # sluice.toml:4:9\n")));
  EXPECT_THAT(Config::documented_defaults(), HasSubstr("key_lanes = 256"));
  const Config other =
      taken(read("[pools.p]\nkey_lanes = 7\n", {{"SLUICE_POOLS__P__KEY_LANES", "8"}},
                 {{"routes.r.order", "per_key", "--set"}}));
  EXPECT_EQ(other.pools[0].key_lanes, 8U);
  EXPECT_EQ(other.routes[0].order, Order::per_key);
}

// ---- what is wrong in a file

TEST(ConfigErrors, UnknownKeyNamesItsPlaceAndTheNearest) {
  const auto outcome = read("[pools.apply]\nworkers = 1\n  wrokers = 6\n");
  const Diagnostic said = only(outcome);
  EXPECT_FALSE(outcome.ok());
  EXPECT_EQ(said.message, "there is no key 'wrokers' in [pools.apply]; did you mean 'workers'?");
  EXPECT_EQ(said.path, "pools.apply.wrokers");
  EXPECT_EQ(said.origin.to_string(), "sluice.toml:3:3");
  EXPECT_EQ(said.to_string(), "sluice.toml:3:3: error: " + said.message);
}

TEST(ConfigErrors, UnknownTablesAndStrayKeysNameTheNearest) {
  EXPECT_EQ(only_error(read("\n[poolz.a]\n")),
            "sluice.toml:2:2: error: there is no table [poolz]; did you mean 'pools'?");
  EXPECT_THAT(only_error(read("workers = 6\n")), HasSubstr("there is no key 'workers' here"));
  EXPECT_THAT(only_error(read("[pools]\nworkers = 6\n")),
              AllOf(HasSubstr("2:1"), HasSubstr("write [pools.NAME] above it")));
  EXPECT_THAT(only_error(read("[pools]\nx = 6\n")), HasSubstr("write [pools.x]"));
  EXPECT_THAT(only_error(read("pools = 6\n")), HasSubstr("write [pools.NAME]"));
  EXPECT_THAT(only_error(read("[[pools]]\n")), HasSubstr("write [pools.NAME]"));
  EXPECT_THAT(only_error(read("memory = 6\n")), HasSubstr("write [memory]"));
}

TEST(ConfigErrors, KeyOfAnotherTableIsSentThere) {
  EXPECT_THAT(only_error(read("[pollers.p]\nlanes = 6\n")), HasSubstr("it is one of [pools.NAME]"));
  EXPECT_THAT(only_error(read("[pools.p]\nhuge_pages = 6\n")), HasSubstr("it is one of [memory]"));
}

TEST(ConfigErrors, KeyOfWaitOutsideOfItIsSentThere) {
  EXPECT_THAT(only_error(read("[pollers.p]\nhot_rounds = 6\n")),
              HasSubstr("write wait.hot_rounds"));
}

TEST(ConfigErrors, UnknownKeyOfWaitNamesTheNearest) {
  EXPECT_EQ(only_error(read("[pollers.p]\nwait = { mod = \"busy\" }\n")),
            "sluice.toml:2:10: error: there is no key 'mod' in [pollers.p.wait]; did you mean "
            "'mode'?");
}

TEST(ConfigErrors, AllProblemsAreSaidInTheOrderOfTheFile) {
  const auto outcome = read(R"([pools.a]
workers = 99
[memory]
nod = 1
[pollers.p]
count = "two"
wait = "sleep"
[routes.r]
pool = "b"
)");
  std::vector<unsigned> lines;
  for (const auto& said : outcome.diagnostics) lines.push_back(said.origin.line);
  EXPECT_THAT(lines, ElementsAre(2U, 4U, 6U, 7U, 9U)) << outcome.to_string();
}

TEST(ConfigErrors, AnErrorLeavesTheOtherValues) {
  const auto outcome = read("[pools.a]\nworkers = 99\nlanes = 5\n");
  EXPECT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.config.pools[0].workers, std::nullopt);
  EXPECT_EQ(outcome.config.pools[0].lanes, 5U);
}

TEST(ConfigErrors, SyntaxIsOneErrorWithItsPlace) {
  EXPECT_THAT(only_error(read("[pools.a]\nworkers = = 1\nlanes = ]\n")),
              AllOf(HasSubstr("sluice.toml:2:11: error: this is not TOML")));
  EXPECT_THAT(only_error(read("[pools.a]\nworkers = 1\nworkers = 2\n")), HasSubstr("not TOML"));
}

struct Limits {
  const char* table;
  const char* key;
  std::uint64_t min;
  std::uint64_t max;
};

TEST(ConfigErrors, NumbersAreTakenWithinTheirRangeOnly) {
  constexpr std::uint64_t kMillion = 1 << 20;
  for (const Limits& limits : std::vector<Limits>{{"pollers.p", "count", 1, 64},
                                                  {"pollers.p", "wait.hot_rounds", 0, kMillion},
                                                  {"pollers.p", "batch_size", 1, 32},
                                                  {"pollers.p", "batch_count", 2, 65536},
                                                  {"pollers.p", "sources_max", 1, kMillion},
                                                  {"pools.p", "workers", 1, 58},
                                                  {"pools.p", "spin_rounds", 0, kMillion},
                                                  {"pools.p", "lanes", 1, kMillion},
                                                  {"pools.p", "key_lanes", 1, kMillion},
                                                  {"srq.s", "depth", 1, kMillion},
                                                  {"srq.s", "buffer_size", 1, 1 << 30},
                                                  {"memory", "node", 0, 1023},
                                                  {"dispatcher", "connections_max", 1, kMillion}}) {
    const std::string front = '[' + std::string(limits.table) + "]\n" + limits.key + " = ";
    (void)taken(read(front + std::to_string(limits.min)));
    (void)taken(read(front + std::to_string(limits.max)));
    const std::string range =
        "from " + std::to_string(limits.min) + " to " + std::to_string(limits.max);
    EXPECT_THAT(only_error(read(front + std::to_string(limits.max + 1))), HasSubstr(range));
    EXPECT_THAT(only_error(read(front + std::to_string(std::int64_t(limits.min) - 1))),
                HasSubstr(range));
    for (const char* bad : {"9223372036854775807", "-9223372036854775808", "nan", "-inf", "1.0",
                            "true", "\"x\"", "[1]", "{}", "2020-01-01", "\"\""})
      EXPECT_THAT(only_error(read(front + bad)), HasSubstr(range)) << front << bad;
  }
  EXPECT_THAT(only_error(read("[srq.s]\ndepth = 1\nreceive_cq_size = 4194305\n")),
              HasSubstr("from 1 to 4194304"));
  EXPECT_THAT(only_error(read("[pools.a]\nworkers = 99999999999999999999\n")),
              HasSubstr("not TOML"));
}

TEST(ConfigErrors, BadValueStandsAtTheValueAndSaysWhatIsTaken) {
  EXPECT_EQ(only_error(read("[pools.a]\nworkers = 99\n")),
            "sluice.toml:2:11: error: pools.a.workers: 99 is not possible; it takes a whole number "
            "from 1 to 58, or \"auto\"");
  EXPECT_THAT(only_error(read("[pools.a]\nworkers = \"6\"\n")), HasSubstr("without quotes"));
  EXPECT_THAT(only_error(read("[pools.a]\nworkers = \"atuo\"\n")),
              HasSubstr("did you mean \"auto\"?"));
  EXPECT_THAT(only_error(read("[routes.a]\norder = \"per_conection\"\n")),
              AllOf(HasSubstr("\"inline\", \"none\", \"per_connection\" or \"per_key\""),
                    HasSubstr("did you mean \"per_connection\"?")));
}

TEST(ConfigErrors, KeyLanesAreANumberAndAQueueOfTheFileHasNoKey) {
  EXPECT_THAT(only_error(read("[pools.a]\nkey_lanes = \"auto\"\n")),
              HasSubstr("a whole number from 1 to 1048576"));
  EXPECT_EQ(
      only_error(read("[routes.r]\norder = \"per_key\"\n[srq.s]\nroute = \"r\"\n")),
      "sluice.toml:4:9: error: srq.s.route: the route \"r\" has order = \"per_key\", and a "
      "queue that is made from the configuration has no key function; name a route of another "
      "order");
}

TEST(ConfigErrors, ChoicesAreTheirWordsOnly) {
  for (const char* text :
       {"[pollers.p]\nwait = \"Busy\"", "[pools.p]\nnodes = \"some\"", "[srq.s]\nshare = 1",
        "[routes.r]\norder = \"inlined\"", "[memory]\nhuge_pages = \"2MB\"",
        "[memory]\nnode = \"here\"", "[memory]\nnode = -1", "[pollers.p]\nwait = 3"})
    EXPECT_THAT(only_error(read(text)), HasSubstr("is not possible; it takes")) << text;
}

TEST(ConfigErrors, DurationsNeedAUnitOfTheirs) {
  const std::string front = "[dispatcher]\nstall_threshold = ";
  EXPECT_EQ(taken(read(front + "\"5ns\"")).general.stall_threshold, 5ns);
  EXPECT_EQ(taken(read(front + "\"20us\"")).general.stall_threshold, 20us);
  EXPECT_EQ(taken(read(front + "\"3s\"")).general.stall_threshold, 3s);
  EXPECT_EQ(taken(read(front + "\"3600 s\"")).general.stall_threshold, 1h);
  EXPECT_EQ(taken(read(front + "0")).general.stall_threshold, 0ns);
  for (const char* bad :
       {"200", "\"200\"", "\"ms\"", "\"-1ms\"", "\"1.5ms\"", "\"1min\"", "\"\"", "\"3601s\"",
        "\"99999999999999999999s\"", "\"18446744073709551615s\"", "\"1ms \"", "\"auto\"", "nan"})
    EXPECT_THAT(only_error(read(front + bad)), HasSubstr("units: ns, us, ms, s")) << bad;
}

TEST(ConfigErrors, SizesTakeBinaryUnits) {
  const std::string front = "[srq.s]\nbuffer_size = ";
  EXPECT_EQ(taken(read(front + "100")).srqs[0].buffer_size, 100U);
  EXPECT_EQ(taken(read(front + "\"100B\"")).srqs[0].buffer_size, 100U);
  EXPECT_EQ(taken(read(front + "\"2MiB\"")).srqs[0].buffer_size, 2U << 20);
  EXPECT_EQ(taken(read(front + "\"1GiB\"")).srqs[0].buffer_size, 1U << 30);
  for (const char* bad : {"\"4KB\"", "\"4k\"", "\"2GiB\"", "\"0KiB\"", "\"17179869185GiB\""})
    EXPECT_THAT(only_error(read(front + bad)), HasSubstr("bytes from 1 to 1073741824")) << bad;
}

TEST(ConfigErrors, CpusThatLookLikeAListAreOne) {
  const std::string front = "[pools.p]\ncpus = ";
  for (const char* good : {"\"auto\"", "\"0\"", "\"0-3,8\"", "3", "\"numa:1\"", "\"l3:2.core:0-3\"",
                           "\"os=mlx5_0\"", "\"0-1 8\"", "\"pci=0000:3b:00.0\"", "\"all\""})
    (void)taken(read(front + good));
  EXPECT_EQ(taken(read(front + "3")).pools[0].cpus, "3");
  for (const char* bad :
       {"\"\"", "\" \"", "\"3-1\"", "\"0,,2\"", "\"0-\"", "\"-3\"", "\"1x\"", "\"1,\"", "\"outo\"",
        "\"0-1-2\"", "\"2000000\"", "\"99999999999999999999\"", "-1", "[0, 1]", "true",
        "\"numa:1\\n\"", "\"n\\u0000\"", "\"numa:\u00e9\"", "\"numa:0 3-1\""})
    EXPECT_THAT(only_error(read(front + bad)), HasSubstr("is not possible")) << bad;
  EXPECT_THAT(only_error(read(front + "\"0,7-3\"")), HasSubstr("'7-3' runs backwards"));
}

TEST(ConfigErrors, CompletionVectorsAreDifferentSmallNumbers) {
  const std::string front = "[pollers.p]\ncompletion_vectors = ";
  for (const char* bad : {"[]", "[1, 1]", "[-1]", "[65536]", "[1.0]", "[[1]]", "1", "\"0\""})
    EXPECT_THAT(only_error(read(front + bad)), HasSubstr("different whole numbers")) << bad;
}

TEST(ConfigErrors, NamesOfGroupsHaveARule) {
  (void)taken(read("[pools.a-b_9]\n[pools." + std::string(32, 'x') + "]\n"));
  for (const std::string& bad : {std::string("A"), std::string("\"a b\""), std::string("\"\""),
                                 std::string("\"a.b\""), std::string(33, 'x')})
    EXPECT_THAT(only_error(read("[pools." + bad + "]\n")), HasSubstr("is no name for a group"));
}

TEST(ConfigErrors, TheCpuCapIsAFractionOfOneCpu) {
  const std::string front = "[pollers.p]\nwait = { mode = \"adaptive\", cpu_cap = ";
  for (const char* bad : {"1.01", "-0.1", "2", "-1", "nan", "inf", "-inf", "true", "[0.5]",
                          "\"half\"", "\"auto\"", "9223372036854775807", "50"})
    EXPECT_THAT(only_error(read(front + bad + " }\n")),
                AllOf(HasSubstr("sluice.toml:2:39"), HasSubstr("pollers.p.wait.cpu_cap"),
                      HasSubstr("a number from 0 to 1, such as 0.5")))
        << bad;
  EXPECT_THAT(only_error(read(front + "\"0.5\" }\n")), HasSubstr("write it without quotes"));
}

TEST(ConfigErrors, TheLatencyTargetIsADurationOfAtMostASecond) {
  const std::string front = "[pollers.p]\nwait = { mode = \"adaptive\", latency_target = ";
  for (const char* bad :
       {"20", "\"20\"", "\"1001ms\"", "\"-1us\"", "\"20 us.\"", "0.5", "\"auto\""})
    EXPECT_THAT(
        only_error(read(front + bad + " }\n")),
        AllOf(HasSubstr("pollers.p.wait.latency_target"), HasSubstr("from \"0\" to \"1s\"")))
        << bad;
}

TEST(ConfigErrors, KeysOfAdaptiveWaitingHaveTheirNamesAndPlaces) {
  EXPECT_THAT(only_error(read("[pollers.p]\ncpu_cap = 0.5\n")), HasSubstr("write wait.cpu_cap"));
  EXPECT_THAT(only_error(read("[pollers.p]\nwait = { mode = \"adaptive\", cpu_cup = 0.5 }\n")),
              HasSubstr("did you mean 'cpu_cap'"));
  EXPECT_THAT(only_error(read("[pollers.p]\nwait = \"adaptve\"\n")),
              HasSubstr("did you mean \"adaptive\"?"));
  EXPECT_THAT(only_error(read("[pools.p]\nspin = \"busy\"\n")),
              HasSubstr("\"fixed\" or \"adaptive\""));
}

TEST(ConfigErrors, WhatBelongsToAdaptiveWaitingIsSaidToBeUnusedInOtherModes) {
  EXPECT_EQ(only_warning(read("[pollers.p.wait]\ncpu_cap = 0.5\n")),
            "sluice.toml:2:11: warning: pollers.p.wait.cpu_cap: has no effect with mode \"event\"; "
            "it is for \"adaptive\"");
  EXPECT_THAT(
      only_warning(read("[pollers.p]\nwait = { mode = \"busy\", latency_target = \"1us\" }\n")),
      HasSubstr("has no effect with mode \"busy\""));
  (void)taken(read("[pollers.p]\nwait = { cpu_cap = 1, latency_target = \"0\" }\n"));
}

TEST(ConfigErrors, MoreThan64PollersInAllAreTooMany) {
  (void)taken(read("[pollers.a]\ncount = 60\n[pollers.b]\ncount = 4\n"));
  EXPECT_THAT(only_error(read("[pollers.a]\ncount = 60\n[pollers.b]\ncount = 5\n")),
              AllOf(HasSubstr("sluice.toml:4:9"), HasSubstr("more than 64 pollers")));
  EXPECT_THAT(only_error(read("[pollers.a]\ncount = 64\n[pollers.b]\n")),
              HasSubstr("more than 64 pollers"));
}

TEST(ConfigErrors, NamesThatNothingHasAreSaidWithTheNearest) {
  EXPECT_EQ(only_error(read("[pools.apply]\n[routes.r]\npool = \"aply\"\n")),
            "sluice.toml:3:8: error: routes.r.pool: there is no [pools.aply]; did you mean "
            "\"apply\"?");
  EXPECT_THAT(only_error(read("[routes.r]\npollers = \"nic\"\n")),
              HasSubstr("there is no [pollers.nic]"));
  EXPECT_THAT(only_error(read("[srq.s]\npollers = \"nic\"\n")),
              HasSubstr("there is no [pollers.nic]"));
  EXPECT_THAT(only_error(read("[srq.s]\nroute = \"r\"\n")), HasSubstr("there is no [routes.r]"));
  EXPECT_THAT(only_error(read("[routes.r]\npool = \"not a name\"\n")),
              HasSubstr("the name of a group of [pools]"));
  (void)taken(read("[routes.r]\npool = \"default\"\n"));
}

TEST(ConfigErrors, ValuesThatContradictEachOther) {
  EXPECT_THAT(only_error(read("[routes.r]\norder = \"inline\"\npool = \"default\"\n")),
              AllOf(HasSubstr("sluice.toml:3:8"), HasSubstr("in no pool")));
  (void)taken(read("[routes.r]\norder = \"inline\"\n"));
  EXPECT_THAT(only_error(read("[srq.s]\ndepth = 100\nreceive_cq_size = 99\n")),
              AllOf(HasSubstr("sluice.toml:3:19"), HasSubstr("depth = 100")));
  (void)taken(read("[srq.s]\ndepth = 100\nreceive_cq_size = 100\n"));
  const std::string groups = "[pollers.a]\n[pollers.b]\n[routes.r]\npollers = \"b\"\n[srq.s]\n";
  EXPECT_THAT(only_error(read(groups + "route = \"r\"\n")), HasSubstr("served by \"a\""));
  EXPECT_THAT(only_error(read(groups + "route = \"r\"\npollers = \"a\"\n")),
              HasSubstr("served by \"a\""));
  (void)taken(read(groups + "route = \"r\"\npollers = \"b\"\n"));
}

TEST(ConfigWarnings, NamesThatVariablesCannotTellApart) {
  EXPECT_THAT(only_warning(read("[pools.a-b]\n[pools.a_b]\n")), HasSubstr("warning: pools.a_b"));
  (void)taken(read("[pools.a-b]\n[pollers.a_b]\n"));
}

// ---- hostile text

TEST(ConfigHostile, BytesThatAreNoTextAreAnError) {
  using namespace std::string_literals;
  for (const std::string& text :
       {"\0"s, "[pools.a]\nworkers = \0006"s, "[pools.\xff]\n"s, "a = \"\xc3\x28\"\n"s, "\x01"s,
        "[pools.a]\ncpus = \"\x1b[31m\"\n"s}) {
    const auto outcome = read(text);
    EXPECT_FALSE(outcome.ok());
    EXPECT_THAT(outcome.to_string(), AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\xff"))));
  }
}

TEST(ConfigHostile, MessagesEscapeAndCut) {
  const std::string escape = only_error(read("[pools.a]\nnodes = \"\\u001b[31m\\u0000\\n\"\n"));
  EXPECT_THAT(escape, HasSubstr(R"("\x1b[31m\x00\x0a")"));
  const std::string large =
      only_error(read("[pools.a]\nnodes = \"" + std::string(5000, 'y') + "\""));
  EXPECT_THAT(large,
              AllOf(HasSubstr(std::string(80, 'y') + "..."), Not(HasSubstr(std::string(81, 'y')))));
  const std::string key = only_error(read("[pools.a]\n" + std::string(5000, 'k') + " = 1"));
  EXPECT_THAT(key, AllOf(HasSubstr("kkk..."), Not(HasSubstr(std::string(81, 'k')))));
  const std::string list =
      only_error(read("[pools.a]\nnodes = [1, \"" + std::string(500, 'z') + "\"]"));
  EXPECT_LT(list.size(), 400U);
}

TEST(ConfigHostile, DeepNestingIsAnErrorAndNoOverflow) {
  std::string dotted = "a";
  for (int i = 0; i < 400000; ++i) dotted += ".a";
  for (const std::string& text :
       {dotted + " = 1\n", "[" + dotted + "]\n", "x = { " + dotted + " = 1 }\n",
        "# it's\nx = '''\n''''\n" + dotted + " = 1\n", "x = " + std::string(500000, '['),
        "x = \"\\\"\"\n" + dotted + " = 1\n", "\"a.b\"." + dotted + " = 1\n"})
    EXPECT_FALSE(read(text).ok());
}

// toml++ 3.3 runs into undefined behaviour when it asks whether such a character is a blank.
TEST(ConfigHostile, CharactersBeyondAsciiOutsideOfStringsAreRefused) {
  EXPECT_EQ(only_error(read("# \u00e9\n[pools.a]\nw\u00e9 = 1\n")),
            "sluice.toml:3:2: error: this is not TOML: characters beyond ASCII belong in strings "
            "and comments");
  for (const char* text :
       {"[pools.\u00e9]", "[pools.a]\nworkers = \u00a06", "\"\u00e9\"\u00e9 = 1", "x = 'it'\u00e9",
        "x = \"\"\u00e9", "x = '''a''''\u00e9", "x = \"a\\\"\"\u00e9"})
    EXPECT_THAT(only_error(read(text)), HasSubstr("beyond ASCII belong in strings")) << text;
  EXPECT_THAT(only_error(read("x = \"\"\"a\\\n  \u00e9\"\"\"")), HasSubstr("\"\"\" may have no"));
  // A byte order mark, comments and strings may be there.
  (void)taken(read("\uFEFF[pools.a] # \u00e9\nworkers = 1\n"));
  for (const char* text : {"\"\u00e9\"", "'\u00e9'", "'''\n\u00e9'''"})
    EXPECT_THAT(only_error(read("[pools.a]\nnodes = " + std::string(text))),
                HasSubstr("\"\u00e9\" is not possible"));
}

TEST(ConfigHostile, DotsInStringsAndCommentsAreNoKeys) {
  const std::string dots(300, '.');
  (void)taken(read("# " + dots + "\n[pools.a] # " + dots + "\nworkers = 1\n"));
  EXPECT_THAT(only_error(read("[pools.a]\nnodes = '" + dots + "'\n")), HasSubstr("\"....."));
}

TEST(ConfigHostile, TooMuchTextAndTooManyProblemsAreBounded) {
  EXPECT_THAT(only_error(read(std::string((1 << 20) + 1, '\n'))),
              HasSubstr("1048576 are the most"));
  std::string text = "[memory]\n";
  for (int i = 0; i < 500; ++i) text += "k" + std::to_string(i) + " = 1\n";
  const auto outcome = read(text);
  EXPECT_LE(outcome.diagnostics.size(), 101U);
  EXPECT_THAT(outcome.to_string(), HasSubstr("400 are not shown"));
  std::string groups;
  for (int i = 0; i < 257; ++i) groups += "[pools.g" + std::to_string(i) + "]\n";
  EXPECT_THAT(only_error(read(groups)), HasSubstr("more than 256 groups of [pools]"));
}

TEST(ConfigHostile, AnErrorBehindManyWarningsStillCounts) {
  Variables many;
  for (int i = 0; i < 200; ++i) many.emplace_back("SLUICE_X" + std::to_string(i), "1");
  many.emplace_back("SLUICE_XX", "1");
  EXPECT_TRUE(read("", many).ok());
  EXPECT_FALSE(read("", many, {{"pools.a.workers", "99", "--set"}}).ok());
}

// ---- variables and flags

TEST(ConfigPrecedence, FlagOverEnvironmentOverFileOverDefault) {
  const std::string file = "[pools.apply]\nworkers = 1\nlanes = 1\nspin_rounds = 1\n";
  const Config config = taken(
      read(file, {{"SLUICE_POOLS__APPLY__LANES", "2"}, {"SLUICE_POOLS__APPLY__SPIN_ROUNDS", "2"}},
           {{"pools.apply.spin_rounds", "3", "--set"}}));
  EXPECT_EQ(config.pools[0].workers, 1U);
  EXPECT_EQ(config.pools[0].lanes, 2U);
  EXPECT_EQ(config.pools[0].spin_rounds, 3U);
  EXPECT_EQ(config.origin_of("pools.apply.workers").to_string(), "sluice.toml:2:11");
  EXPECT_EQ(config.origin_of("pools.apply.lanes").to_string(), "SLUICE_POOLS__APPLY__LANES");
  EXPECT_EQ(config.origin_of("pools.apply.spin_rounds").to_string(),
            "--set pools.apply.spin_rounds");
  EXPECT_EQ(config.origin_of("pools.apply.cpus").to_string(), "default");
  EXPECT_THAT(config.origins, SizeIs(3));
}

TEST(ConfigPrecedence, TheLastOfTwoFlagsWins) {
  const Config config =
      taken(read("", {}, {{"memory.node", "1", "--set"}, {"memory.node", "2", "--set"}}));
  EXPECT_EQ(config.memory.node, "2");
}

TEST(ConfigEnvironment, ReachesEveryKey) {
  const std::string file = "[pollers.a-b]\n[pools.a-b]\n[srq.a-b]\n[routes.a-b]\n";
  const auto values = taken(read(file)).values();
  ASSERT_THAT(values, SizeIs(33));
  for (const auto& [path, value] : values) {
    std::string name = "SLUICE_";
    for (const char c : path)
      name += c == '.' ? "__" : std::string(1, static_cast<char>(c == '-' ? '_' : std::toupper(c)));
    const Config config = taken(read(file, {{name, value}}));
    EXPECT_EQ(config.values(), values);
    EXPECT_EQ(config.origin_of(path).kind, OriginKind::environment) << name;
    EXPECT_EQ(taken(read_flag(path, value, file)).origin_of(path).kind, OriginKind::flag) << path;
  }
}

TEST(ConfigEnvironment, ValuesAreTomlOrBareWords) {
  const auto pools = [](const char* key, const char* value) {
    return taken(read("", {{"SLUICE_POOLS__P__" + std::string(key), value}})).pools[0];
  };
  EXPECT_EQ(pools("WORKERS", " 6 ").workers, 6U);
  EXPECT_EQ(pools("WORKERS", "auto").workers, std::nullopt);
  EXPECT_EQ(pools("CPUS", "0-3,8").cpus, "0-3,8");
  EXPECT_EQ(pools("CPUS", "3").cpus, "3");
  EXPECT_EQ(pools("CPUS", "\"numa:1\"").cpus, "numa:1");
  EXPECT_EQ(pools("NODES", "any").nodes, PoolNodes::any);
  const Config other = taken(read("", {{"SLUICE_POLLERS__N__COMPLETION_VECTORS", "[0,1]"},
                                       {"SLUICE_POLLERS__N__WAIT", "busy"},
                                       {"SLUICE_DISPATCHER__STALL_THRESHOLD", "20us"},
                                       {"SLUICE_MEMORY__NODE", "3"}}));
  EXPECT_EQ(other.pollers[0].completion_vectors, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(other.pollers[0].wait, WaitMode::busy);
  EXPECT_EQ(other.general.stall_threshold, 20us);
  EXPECT_EQ(other.memory.node, "3");
  const Config table =
      taken(read("", {{"SLUICE_POLLERS__N__WAIT", "{ mode = \"busy\", hot_rounds = 9 }"}}));
  EXPECT_EQ(table.pollers[0].hot_rounds, 9U);
  EXPECT_EQ(table.origin_of("pollers.n.wait.hot_rounds").kind, OriginKind::environment);
}

TEST(ConfigEnvironment, FindsGroupsByNameWithDashesAlike) {
  const Config config =
      taken(read("[pools.big-one]\n[pools.x__y]\n",
                 {{"SLUICE_POOLS__BIG_ONE__WORKERS", "4"}, {"SLUICE_POOLS__X__Y__WORKERS", "5"}}));
  ASSERT_THAT(config.pools, SizeIs(2));
  EXPECT_EQ(config.pools[0].workers, 4U);
  EXPECT_EQ(config.pools[1].workers, 5U);
}

TEST(ConfigEnvironment, MakesAGroupThatThereIsNot) {
  const Config config = taken(read("", {{"SLUICE_POOLS__APPLY__WORKERS", "4"}}));
  ASSERT_THAT(config.pools, SizeIs(1));
  EXPECT_EQ(config.pools[0].name, "apply");
  EXPECT_THAT(only_warning(read("[pools.apply]\n", {{"SLUICE_POOLS__APPLLY__WORKERS", "4"}})),
              HasSubstr("did you mean 'apply'?"));
  EXPECT_THAT(only_error(read("", {{"SLUICE_POOLS__A.B__WORKERS", "4"}})),
              HasSubstr("is no name for a group"));
}

TEST(ConfigEnvironment, UnusedVariableIsAWarningWithTheNearest) {
  EXPECT_EQ(only_warning(read("[pools.apply]\n", {{"SLUICE_POOLS__APPLY__WROKERS", "4"}})),
            "SLUICE_POOLS__APPLY__WROKERS: warning: the variable is unused: it names no key; did "
            "you mean SLUICE_POOLS__APPLY__WORKERS?");
  EXPECT_THAT(only_warning(read("", {{"SLUICE_MEMORY_NODE", "4"}})),
              HasSubstr("SLUICE_MEMORY__NODE?"));
  EXPECT_THAT(only_warning(read("", {{"SLUICE_", "4"}})), HasSubstr("unused"));
  EXPECT_THAT(only_warning(read("", {{"SLUICE_POOLS__WORKERS", "4"}})), HasSubstr("unused"));
  EXPECT_THAT(taken(read("", {{"SLUICE_CONFIG", "x"}, {"HOME", "/"}, {"sluice_x", "1"}})).origins,
              IsEmpty());
}

TEST(ConfigEnvironment, BadValueNamesTheVariable) {
  for (const char* bad : {"99", "", "six", "\"6", "[", "6\n7", "1\nmemory.node = 2", "{}", "nan"})
    EXPECT_THAT(only_error(read("", {{"SLUICE_POOLS__APPLY__WORKERS", bad}})),
                HasSubstr("SLUICE_POOLS__APPLY__WORKERS: error: pools.apply.workers: "))
        << bad;
  EXPECT_THAT(only_error(read("", {{"SLUICE_POLLERS__P__COMPLETION_VECTORS", "[0,\n1]"}})),
              HasSubstr("\"[0,\\x0a1]\" has control characters"));
  EXPECT_FALSE(read("", {{"SLUICE_POOLS__APPLY__CPUS", "\xff"}}).ok());
  EXPECT_FALSE(read("", {{"SLUICE_POOLS__APPLY__CPUS", std::string(5000, '1')}}).ok());
}

TEST(ConfigFlags, BadOnesNameTheFlag) {
  EXPECT_THAT(only_error(read_flag("pools.apply.workers", "99")),
              HasSubstr("--set pools.apply.workers: error: pools.apply.workers: 99"));
  EXPECT_EQ(only_error(read_flag("pools.apply.wrokers", "6")),
            "--set pools.apply.wrokers: error: there is no key 'pools.apply.wrokers'; did you mean "
            "'pools.apply.workers'?");
  EXPECT_THAT(only_error(read_flag("memroy.node", "6")), HasSubstr("'memory.node'?"));
  for (const char* path : {"", ".", "pools", "pools.", "pools.apply", "pools..workers", "memory."})
    EXPECT_THAT(only_error(read_flag(path, "6")), HasSubstr("there is no key")) << path;
  EXPECT_THAT(only_error(read_flag("pools.Apply.workers", "6")), HasSubstr("no name for a group"));
}

TEST(ConfigFlags, ReachTheDefaultGroupsThatNoFileNames) {
  const Config config = taken(read_flag("pools.default.workers", "6"));
  ASSERT_THAT(config.pools, SizeIs(1));
  EXPECT_EQ(config.pools[0].workers, 6U);
  EXPECT_THAT(only_warning(read_flag("pools.defualt.workers", "6")),
              HasSubstr("did you mean 'default'?"));
}

TEST(ConfigFlags, CanMakeAReferenceRightOrWrong) {
  EXPECT_EQ(taken(read_flag("routes.r.pool", "5", "[pools.5]\n[routes.r]\n")).routes[0].pool, "5");
  EXPECT_THAT(only_error(read_flag("routes.r.pool", "b", "[pools.apply]\n[routes.r]\n")),
              HasSubstr("--set routes.r.pool: error"));
}

// ---- a file on disk

class ConfigLoad : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(::testing::TempDir()) /
                 ("sluice_config_" + std::to_string(::getpid()));
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string write(const std::string& text) {
    const auto path = directory_ / "sluice.toml";
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  std::filesystem::path directory_;
};

TEST_F(ConfigLoad, ReadsTheFileAndTheEnvironment) {
  ASSERT_EQ(::setenv("SLUICE_POOLS__APPLY__LANES", "7", 1), 0);
  const auto config = Config::load(write("[pools.apply]\nworkers = 3\n"));
  ASSERT_EQ(::unsetenv("SLUICE_POOLS__APPLY__LANES"), 0);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->pools[0].workers, 3U);
  EXPECT_EQ(config->pools[0].lanes, 7U);
}

TEST_F(ConfigLoad, SaysWhyAFileCannotBeRead) {
  const auto missing = Config::load((directory_ / "none.toml").string()).status();
  EXPECT_EQ(missing.code(), StatusCode::invalid_argument);
  EXPECT_THAT(missing.message(), AllOf(HasSubstr("there is no"), HasSubstr("none.toml")));
  EXPECT_THAT(Config::load(directory_.string()).status().message(), HasSubstr("is a directory"));
  EXPECT_THAT(Config::load(write(std::string((1 << 20) + 1, '#'))).status().message(),
              HasSubstr("larger than 1048576 bytes"));
  EXPECT_FALSE(Config::load(write("") + std::string("\0x", 2)).ok());
  EXPECT_FALSE(Config::load("").ok());
}

TEST_F(ConfigLoad, JoinsAllErrorsALineEach) {
  const auto status = Config::load(write("[pools.a]\nworkers = 0\nlanes = 0\n")).status();
  EXPECT_THAT(status.message(), AllOf(HasSubstr("sluice.toml:2:11: error: pools.a.workers"),
                                      HasSubstr("\n"), HasSubstr("sluice.toml:3:9: error")));
}

// ---- writing

TEST(ConfigWriting, DocumentedDefaultsMeanTheDefaultsAndNameEveryKey) {
  const std::string text = Config::documented_defaults();
  EXPECT_EQ(taken(read(text)).values(), Config{}.values());
  // What is shown without effect is right as well.
  std::string active;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = text.find('\n', from);
    std::string line = text.substr(from, end - from);
    EXPECT_LE(line.size(), 100U) << line;
    if (line.starts_with('#') && !line.starts_with("# ")) line.erase(0, 1);
    active += line + '\n';
    from = end + 1;
  }
  const Config all = taken(read(active));
  EXPECT_THAT(all.srqs, SizeIs(1));
  EXPECT_THAT(all.routes, SizeIs(1));
  EXPECT_EQ(all.origins.size(), all.values().size());
}

TEST(ConfigWriting, OriginsStandBehindTheValues) {
  const Config config = taken(read("[pools.apply]\nworkers = 3\n"));
  EXPECT_THAT(config.to_toml(true), AllOf(HasSubstr("workers = 3  # sluice.toml:2:11\n"),
                                          HasSubstr("nodes = \"pollers\"  # default\n")));
  EXPECT_THAT(config.to_toml(false), Not(HasSubstr("#")));
}

TEST(ConfigWriting, AFileNameCannotBreakOutOfAComment) {
  ConfigInput input;
  input.text = "[pools.apply]\nworkers = 3\n";
  input.file = "evil\nlanes = 5\n\xff";
  const Config config = taken(Config::read(input));
  EXPECT_EQ(taken(read(config.to_toml(true))).values(), config.values());
}

TEST(ConfigWriting, ValuesAreInTheOrderOfTheDocumentation) {
  std::vector<std::string> paths;
  for (const auto& [path, value] : Config{}.values()) paths.push_back(path);
  ASSERT_THAT(paths, SizeIs(24));
  EXPECT_EQ(paths.front(), "pollers.default.device");
  EXPECT_EQ(paths[11], "pools.default.workers");
  EXPECT_EQ(paths.back(), "dispatcher.housekeeping_cpus");
  EXPECT_EQ(value_of(Config{}, "dispatcher.stall_threshold"), "\"200ms\"");
  EXPECT_EQ(value_of(Config{}, "dispatcher.connections_max"), "\"auto\"");
}

template <typename T>
std::optional<T> maybe(const rc::Gen<T>& gen) {
  return *rc::gen::arbitrary<bool>() ? std::optional<T>(*gen) : std::nullopt;
}

rc::Gen<std::uint32_t> number(std::uint32_t min, std::uint32_t max) {
  return rc::gen::inRange(min, max + 1);
}

std::vector<std::string> some_names(std::size_t min, std::size_t max) {
  const auto letter = rc::gen::elementOf(std::string("abcxyz019_-"));
  const auto name = rc::gen::nonEmpty(rc::gen::container<std::string>(letter));
  std::vector<std::string> names;
  const std::size_t count = *rc::gen::inRange(min, max + 1);
  while (names.size() < count) {
    // The number keeps them apart, also where '-' and '_' count the same.
    names.push_back((*name).substr(0, 20) + "n" + std::to_string(names.size()));
  }
  return names;
}

std::string some_cpus() {
  return *rc::gen::element<std::string>("auto", "0-3,8", "7", "numa:1", "l3:2.core:0-3",
                                        "a\"b\\c:1", "os=mlx5_0 0-1");
}

template <typename Group>
std::string some_of(const std::vector<Group>& groups) {
  const std::size_t pick = *rc::gen::inRange<std::size_t>(0, groups.size() + 1);
  return pick == groups.size() ? std::string() : groups[pick].name;
}

void fill_groups(Config& config) {
  config.pollers.clear();
  config.pools.clear();
  for (const auto& name : some_names(1, 4)) {
    PollerGroup& group = config.pollers.emplace_back();
    group.name = name;
    group.device = *rc::gen::element<std::string>("auto", "mlx5_0", "rxe0");
    group.cpus = some_cpus();
    group.count = maybe(number(1, 16));
    group.wait = *rc::gen::element(WaitMode::busy, WaitMode::event, WaitMode::adaptive);
    if (group.wait == WaitMode::adaptive) {
      group.latency_target = std::chrono::nanoseconds(*number(0, 1'000'000'000));
      group.cpu_cap = *number(0, 1'000'000) / 1e6;
    }
    group.hot_rounds = *number(0, 1 << 20);
    group.batch_size = *number(1, 32);
    group.batch_count = *number(2, 65536);
    group.sources_max = *number(1, 1 << 20);
    group.completion_vectors =
        maybe(rc::gen::nonEmpty(rc::gen::unique<std::vector<std::uint32_t>>(number(0, 65535))));
  }
  for (const auto& name : some_names(1, 4)) {
    PoolSettings& pool = config.pools.emplace_back();
    pool.name = name;
    pool.workers = maybe(number(1, 58));
    pool.nodes = *rc::gen::element(PoolNodes::pollers, PoolNodes::all, PoolNodes::any);
    pool.cpus = some_cpus();
    pool.spin = *rc::gen::element(SpinMode::fixed, SpinMode::adaptive);
    pool.spin_rounds = *number(0, 1 << 20);
    pool.lanes = maybe(number(1, 1 << 20));
    pool.key_lanes = *number(1, 1 << 20);
  }
}

Config some_config() {
  Config config;
  fill_groups(config);
  for (const auto& name : some_names(0, 3)) {
    RouteSettings& route = config.routes.emplace_back();
    route.name = name;
    route.order =
        *rc::gen::element(Order::inlined, Order::none, Order::per_connection, Order::per_key);
    if (route.order != Order::inlined) route.pool = some_of(config.pools);
    route.pollers = some_of(config.pollers);
  }
  for (const auto& name : some_names(0, 3)) {
    SrqSettings& srq = config.srqs.emplace_back();
    srq.name = name;
    srq.depth = *number(1, 1 << 20);
    srq.buffer_size = *number(1, 1 << 30);
    if (*rc::gen::arbitrary<bool>()) srq.receive_cq_size = *number(srq.depth, 1 << 22);
    srq.per_poller = *rc::gen::arbitrary<bool>();
    srq.route = some_of(config.routes);
    for (const auto& route : config.routes) {
      if (route.name == srq.route && route.order == Order::per_key) srq.route.clear();
    }
    srq.pollers = some_of(config.pollers);
    for (const auto& route : config.routes) {
      if (route.name == srq.route && !route.pollers.empty()) srq.pollers = route.pollers;
    }
  }
  config.memory.huge_pages =
      *rc::gen::element(HugePages::none, HugePages::transparent, HugePages::mib2, HugePages::gib1);
  config.memory.node = *rc::gen::element<std::string>("poller", "0", "3");
  config.general.connections_max = *number(0, 1 << 20);
  config.general.stall_threshold = std::chrono::nanoseconds(*number(0, 1 << 30));
  config.general.last_wqe_grace = std::chrono::milliseconds(*number(0, 3600000));
  config.general.housekeeping_cpus = some_cpus();
  return config;
}

RC_GTEST_PROP(ConfigWriting, WhatIsWrittenReadsBackTheSame, ()) {
  const Config config = some_config();
  const ConfigOutcome outcome = read(config.to_toml(*rc::gen::arbitrary<bool>()));
  RC_LOG() << outcome.to_string();
  RC_ASSERT(outcome.diagnostics.empty());
  RC_ASSERT(outcome.config.values() == config.values());
  RC_ASSERT(diff(config, outcome.config).empty());
}

RC_GTEST_PROP(ConfigHostile, AnyBytesAreReadOrRefused, (const std::string& text)) {
  (void)read(text, {{"SLUICE_" + text, text}, {"SLUICE_POOLS__A__CPUS", text}},
             {{text, text, text}, {"memory.node", text, "--set"}})
      .to_string();
}

// ---- differences

std::vector<std::string> changes(const std::string& before, const std::string& after) {
  std::vector<std::string> lines;
  for (const auto& change : diff(taken(read(before)), taken(read(after))))
    lines.push_back(change.to_string());
  return lines;
}

TEST(ConfigDiff, EqualConfigurationsDifferInNothing) {
  EXPECT_THAT(changes("[pools.a]\nworkers = 1\n", "[pools.a]\nworkers = 1 # one\n"), IsEmpty());
}

TEST(ConfigDiff, NamesChangedValuesByPath) {
  EXPECT_THAT(changes("[pools.a]\nworkers = 4\n", "[pools.a]\nworkers = 6\n[memory]\nnode = 1\n"),
              ElementsAre("pools.a.workers: 4 -> 6 (needs a restart)",
                          "memory.node: \"poller\" -> 1 (needs a restart)"));
}

TEST(ConfigDiff, NamesKeyLanesAndTheOrder) {
  EXPECT_THAT(changes("[pools.a]\n[routes.r]\n",
                      "[pools.a]\nkey_lanes = 8\n[routes.r]\norder = \"per_key\"\n"),
              ElementsAre("pools.a.key_lanes: 256 -> 8 (needs a restart)",
                          "routes.r.order: \"per_connection\" -> \"per_key\" (needs a restart)"));
}

TEST(ConfigDiff, NamesGroupsThatComeAndGo) {
  EXPECT_THAT(changes("[pools.a]\n[pools.b]\nworkers = 2\n", "[pools.a]\n[pools.c]\nlanes = 3\n"),
              ElementsAre("pools.c: added, { lanes = 3 } (needs a restart)",
                          "pools.b: removed, was { workers = 2 } (needs a restart)"));
  EXPECT_THAT(changes("", "[srq.s]\n"), ElementsAre("srq.s: added, {} (needs a restart)"));
}

TEST(ConfigDiff, OrderMattersForTheFirstGroupOnly) {
  EXPECT_THAT(changes("[pools.a]\n[pools.b]\n[pools.c]\n", "[pools.a]\n[pools.c]\n[pools.b]\n"),
              IsEmpty());
  EXPECT_THAT(
      changes("[pools.a]\n[pools.b]\n", "[pools.b]\n[pools.a]\n"),
      ElementsAre("the first of [pools], meant where none is named: \"a\" -> \"b\" (needs a "
                  "restart)"));
  EXPECT_THAT(changes("[routes.a]\n[routes.b]\n", "[routes.b]\n[routes.a]\n"), IsEmpty());
}

TEST(ConfigNames, EnumsHaveTheFilesWords) {
  EXPECT_STREQ(to_string(PoolNodes::pollers), "pollers");
  EXPECT_STREQ(to_string(PoolNodes::all), "all");
  EXPECT_STREQ(to_string(PoolNodes::any), "any");
  EXPECT_STREQ(to_string(HugePages::none), "none");
  EXPECT_STREQ(to_string(HugePages::transparent), "transparent");
  EXPECT_STREQ(to_string(HugePages::mib2), "2MiB");
  EXPECT_STREQ(to_string(HugePages::gib1), "1GiB");
}

}  // namespace
}  // namespace sluice::topology
