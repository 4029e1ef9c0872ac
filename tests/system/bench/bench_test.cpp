// SPDX-License-Identifier: BSD-3-Clause
// The bench as a program: every figure is measured and comes out in its JSON; nonsense is refused.
// That the figures reach their goals is no test's business.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "sluice_test/process.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Runs the bench to its end.
Ended run_bench(std::vector<std::string> words) {
  words.insert(words.begin(), SLUICE_BENCH);
  constexpr std::chrono::seconds kLimit{500};  // it ends a hang
  return run(words, {}, kLimit);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> listed(const std::vector<std::string>& arguments = {}) {
  std::vector<std::string> words{"--list"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const Ended list = run_bench(words);
  EXPECT_EQ(list.status, 0) << list.err;
  return lines_of(list.out);
}

/// What a quick run of these figures wrote, checked for its shape.
nlohmann::json measured(const std::vector<std::string>& only) {
  const TemporaryFolder folder;
  std::vector<std::string> words{"--quick", "--json", folder / "figures.json"};
  for (const std::string& name : only) words.insert(words.end(), {"--only", name});
  const Ended run = run_bench(words);
  EXPECT_EQ(run.status, 0) << run.err;
  const nlohmann::json json =
      nlohmann::json::parse(content_of(folder / "figures.json"), nullptr, false);
  EXPECT_TRUE(json.is_object()) << run.out;
  if (!json.is_object()) return {};
  EXPECT_TRUE(json.value("machine", nlohmann::json()).is_object());
  for (const char* const fact : {"cpu", "cores", "governor", "kernel", "compiler", "virtual"}) {
    EXPECT_TRUE(json["machine"].contains(fact)) << fact;
  }
  EXPECT_EQ(json.value("quick", false), true);
  for (const auto& [name, value] : json["figures"].items()) {
    EXPECT_TRUE(value.is_number() && std::isfinite(value.get<double>())) << name << ": " << value;
    EXPECT_GE(value.is_number() ? value.get<double>() : -1, 0) << name;
    EXPECT_THAT(run.out, HasSubstr(name)) << "not in the table";
    const nlohmann::json spread = json["spread"].value(name, nlohmann::json());
    EXPECT_TRUE(spread.is_array() && spread.size() == 2 && spread[0] <= value && value <= spread[1])
        << name << ": " << value << " beyond its spread " << spread;
  }
  return json;
}

TEST(Bench, MeasuresEveryFigureThatItLists) {
  const std::vector<std::string> names = listed();
  ASSERT_GT(names.size(), 20U);
  const nlohmann::json json = measured({});
  ASSERT_TRUE(json.is_object());
  for (const std::string& name : names) EXPECT_TRUE(json["figures"].contains(name)) << name;
  EXPECT_EQ(json["figures"].size(), names.size());
}

TEST(Bench, MeasuresOnlyWhatItIsAskedFor) {
  const std::vector<std::string> asked{"handoff.single", "handoff.none.speedup.tbb_batched.2p2w"};
  const std::vector<std::string> names = listed({"--only", asked[0], "--only", asked[1]});
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("handoff.single.vs_floor", asked[1]));
  const nlohmann::json json = measured(asked);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["figures"].size(), names.size());
  for (const std::string& name : names) EXPECT_TRUE(json["figures"].contains(name)) << name;
}

TEST(Bench, ListsEachFigureOnce) {
  std::vector<std::string> names = listed();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// A value of the figures that a quick run with this trace wrote.
nlohmann::json figures_of_trace(const std::string& path) {
  const TemporaryFolder folder;
  const Ended run = run_bench({"--quick", "--trace", path, "--only", "waiting.recorded", "--json",
                               folder / "figures.json"});
  EXPECT_EQ(run.status, 0) << run.err;
  const nlohmann::json json =
      nlohmann::json::parse(content_of(folder / "figures.json"), nullptr, false);
  return json.is_object() ? json["figures"] : nlohmann::json();
}

// Gaps that are far shorter than a wake are spun through, far longer ones slept through: the cost
// is nearly that of somebody who knows them.
TEST(Bench, PlaysRecordedGaps) {
  const TemporaryFolder folder;
  std::string short_gaps = "# ns\n\n";
  std::string long_gaps;
  for (int i = 0; i < 3000; ++i) {
    short_gaps += "  250.5\r\n";
    long_gaps += "5e6\n";
  }
  write_file(folder / "short gaps.txt", short_gaps);
  write_file(folder / "long.txt", long_gaps);
  nlohmann::json figures = figures_of_trace(folder / "short gaps.txt");
  ASSERT_EQ(figures.size(), 4U) << figures;
  const std::string name = "waiting.recorded.short_gaps";
  EXPECT_LT(figures.value(name + ".vs_clairvoyant", 0.0), 1.2);
  EXPECT_NEAR(figures.value(name + ".busy.vs_clairvoyant", 0.0), 1, 1e-9);
  EXPECT_GT(figures.value(name + ".event.vs_clairvoyant", 0.0), 50);
  EXPECT_LT(figures.value(name + ".slept_percent", 100.0), 1);
  figures = figures_of_trace(folder / "long.txt");
  ASSERT_EQ(figures.size(), 4U) << figures;
  EXPECT_LT(figures.value("waiting.recorded.long.vs_clairvoyant", 0.0), 1.2);
  EXPECT_GT(figures.value("waiting.recorded.long.busy.vs_clairvoyant", 0.0), 50);
  EXPECT_NEAR(figures.value("waiting.recorded.long.event.vs_clairvoyant", 0.0), 1, 1e-9);
  EXPECT_GT(figures.value("waiting.recorded.long.slept_percent", 0.0), 99);
}

TEST(Bench, SaysWhatIsWrongWithATrace) {
  const TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::string>> bad{
      {"1\n2\nthree\n", ":3: 'three'"}, {"1 2\n", ":1: '1 2'"},   {"-1\n", ":1: '-1'"},
      {"nan\n", ":1: 'nan'"},           {"# none\n\n", "no gap"}, {"0\n0\n", "no gap"}};
  for (const auto& [content, said] : bad) {
    write_file(folder / "trace", content);
    const Ended run = run_bench({"--quick", "--trace", folder / "trace"});
    EXPECT_EQ(run.status, 2) << content;
    EXPECT_EQ(lines_of(run.err).size(), 1U) << run.err;
    EXPECT_THAT(run.err, ::testing::AllOf(HasSubstr(folder / "trace"), HasSubstr(said)));
    EXPECT_EQ(run.out, "");
  }
  write_file(folder / "trace", "1\n");
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"--trace", folder / "none"},
           {"--trace", folder / ""},
           {"--trace", folder / "trace", "--trace", folder / "trace"}}) {
    const Ended run = run_bench(words);
    EXPECT_EQ(run.status, 2);
    EXPECT_EQ(lines_of(run.err).size(), 1U) << run.err;
  }
}

TEST(Bench, RefusesNonsenseInOneLine) {
  const std::vector<std::vector<std::string>> nonsense{{"--only", "no.such.figure"},
                                                       {"--only", ""},
                                                       {"--only"},
                                                       {"--rounds", "6"},
                                                       {"--rounds", "0"},
                                                       {"--rounds", "-9"},
                                                       {"--rounds", "many"},
                                                       {"--rounds", "1e9"},
                                                       {"--json", ""},
                                                       {"--json"},
                                                       {"--trace"},
                                                       {"--quickly"},
                                                       {"handoff"}};
  for (const auto& words : nonsense) {
    const Ended run = run_bench(words);
    const std::string said = ::testing::PrintToString(words) + ": " + run.err;
    EXPECT_EQ(run.status, 2) << said;
    EXPECT_EQ(lines_of(run.err).size(), 1U) << said;
    EXPECT_THAT(run.err, ::testing::AllOf(StartsWith("sluice-bench: "), HasSubstr(words[0])))
        << said;
    EXPECT_EQ(run.out, "") << said;
  }
}

TEST(Bench, SaysWhereItCouldNotWrite) {
  const Ended run = run_bench({"--quick", "--only", "handoff.single", "--json", "/no/such/file"});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.err, HasSubstr("/no/such/file"));
  EXPECT_EQ(run.out, "") << "it measured first";
}

}  // namespace
}  // namespace sluice::test
