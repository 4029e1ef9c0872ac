// SPDX-License-Identifier: BSD-3-Clause
// Three nodes under load, and one misfortune after the other: a node killed, stopped, or with
// connections that are cut all the time; etcd killed and started. Then the clients' histories are
// judged: every write acknowledged at quorum_disk is there, and all that was read fits into one
// order.
//
//   SLUICE_CHAOS_SEED    what the misfortunes are drawn from: the same seed, the same sequence
//   SLUICE_CHAOS_ROUNDS  how many; without it 50, or as many as fit into kSecondsWithoutRounds
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client.hpp"
#include "cluster.hpp"
#include "history.hpp"
#include "load.hpp"

namespace sluice::kv::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kSeed = 20261130;
constexpr unsigned kRounds = 50;
constexpr std::chrono::seconds kSecondsWithoutRounds{100};
/// Writes that must be acknowledged between two misfortunes.
constexpr std::uint64_t kWritesBetween = 30;

enum class Fault : std::uint8_t { kill, stop, cut, etcd };

struct Misfortune {
  Fault fault = Fault::kill;
  /// Of the nodes in alphabetical order; 3: whichever leads then.
  unsigned target = 0;
  std::chrono::milliseconds lasts{0};
  std::uint64_t seed = 0;  ///< of the connections' cuts
};

std::string to_string(const Misfortune& m) {
  constexpr std::array kNames{"kill -9", "stop", "cut connections of", "kill"};
  const std::string target = m.fault == Fault::etcd ? "etcd"
                             : m.target == 3        ? "the primary"
                                                    : std::string(1, "abc"[m.target]);
  return std::string(kNames[static_cast<std::size_t>(m.fault)]) + " " + target + " for " +
         std::to_string(m.lasts.count()) + " ms";
}

/// Everything about a round is drawn before it begins, in the same number of draws for each: what
/// happens in a run has no influence on what is drawn next. (std's distributions would differ
/// between libraries; remainders of a 64-bit number are even enough.)
class Misfortunes {
 public:
  explicit Misfortunes(std::uint64_t seed) : random_(seed) {}
  Misfortune next() {
    if (left_.empty()) {
      // Each kind in each block, most of all the ones that hit a node.
      left_ = {Fault::kill, Fault::stop, Fault::kill, Fault::cut, Fault::stop, Fault::etcd};
      for (std::size_t i = left_.size() - 1; i > 0; --i)
        std::swap(left_[i], left_[random_() % (i + 1)]);
    }
    Misfortune m;
    m.fault = left_.back();
    left_.pop_back();
    m.target = static_cast<unsigned>(random_() % 4);
    // From no time at all to longer than a lease.
    m.lasts = std::chrono::milliseconds(random_() % 1800);
    m.seed = random_();
    return m;
  }

 private:
  std::mt19937_64 random_;
  std::vector<Fault> left_;
};

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 10) : otherwise;
}

class Chaos : public testing::Test {
 protected:
  void strike(const Misfortune& m, const std::string& primary) {
    if (m.fault == Fault::etcd) {
      cluster_.etcd()[0].kill();
      std::this_thread::sleep_for(m.lasts);
      cluster_.etcd().restart(0);
      return;
    }
    Node& node = cluster_[m.target == 3 ? primary : cluster_.ids()[m.target]];
    switch (m.fault) {
      case Fault::kill:
        node.kill();
        std::this_thread::sleep_for(m.lasts);
        node.start();
        break;
      case Fault::stop:
        node.freeze();
        std::this_thread::sleep_for(m.lasts);
        node.go_on();
        break;
      case Fault::cut:
        // The faults of the software device are a process's from its start.
        EXPECT_EQ(node.end(), 0) << node.last_words();
        node.start("drop_after=20-300", m.seed);
        ASSERT_TRUE(node.listens()) << node.last_words();
        std::this_thread::sleep_for(m.lasts);
        node.kill();
        node.start();
        break;
      case Fault::etcd: break;
    }
  }

  /// A short lease: most of a round is waiting for one to end. In the VM etcd itself takes longer.
  Cluster cluster_{{.lease_s = std::getenv("SLUICE_VM_NODES") != nullptr ? 5 : 1}};
};

TEST_F(Chaos, NothingAcknowledgedIsLostAndReadsAreLinearizable) {
  const std::uint64_t seed = number_from("SLUICE_CHAOS_SEED", kSeed);
  const bool chosen = std::getenv("SLUICE_CHAOS_ROUNDS") != nullptr;
  const std::uint64_t rounds = number_from("SLUICE_CHAOS_ROUNDS", kRounds);
  std::printf("SLUICE_CHAOS_SEED=%llu, %llu rounds\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(rounds));
  RecordProperty("seed", std::to_string(seed));
  cluster_.start_all();
  std::string primary = cluster_.wait_until_in_sync();
  ASSERT_NE(primary, "") << cluster_.state();

  LoadOptions options;
  options.client = cluster_.client_options("quorum_disk");
  options.client.answer_timeout = 1500ms;
  options.client.patience = std::chrono::duration_cast<std::chrono::milliseconds>(kStatePatience);
  options.seed = seed;
  Load load(options);
  Misfortunes misfortunes(seed);
  const auto begin = Clock::now();
  std::uint64_t round = 0;
  for (; round < rounds && (chosen || Clock::now() - begin < kSecondsWithoutRounds); ++round) {
    ASSERT_TRUE(load.wait_for_more(kWritesBetween, kStatePatience))
        << "round " << round << ": " << load.refusal() << "\n"
        << cluster_.state();
    const Misfortune m = misfortunes.next();
    const auto struck = Clock::now();
    const std::string before = primary;
    strike(m, primary);
    primary = cluster_.wait_until_in_sync();
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - struck);
    std::printf("%3llu: %s; %s led, %s leads after %lld ms\n",
                static_cast<unsigned long long>(round), to_string(m).c_str(), before.c_str(),
                primary.c_str(), static_cast<long long>(took.count()));
    std::fflush(stdout);
    ASSERT_NE(primary, "") << "round " << round << ": not in sync again\n" << cluster_.state();
  }
  ASSERT_TRUE(load.wait_for_more(kWritesBetween, kStatePatience)) << cluster_.state();

  auto history = load.stop();
  EXPECT_EQ(load.refusal(), "");
  const auto written = history;
  ClusterClient client = cluster_.client();
  // Once from the node that leads, and once more from one that has taken over.
  for (const bool again : {false, true}) {
    if (again) {
      cluster_[primary].kill();
      ASSERT_NE(cluster_.wait_for_primary(primary), "") << cluster_.state();
    }
    const auto at_the_end = read_all(client, history);
    ASSERT_TRUE(at_the_end) << cluster_.state();
    const auto lost = check_nothing_lost(written, *at_the_end);
    EXPECT_FALSE(lost) << "seed " << seed << ": " << lost->to_string() << "\n"
                       << listing(history, lost->key);
  }
  const Verdict verdict = check(history);
  EXPECT_TRUE(verdict.linearizable())
      << "seed " << seed << ": " << verdict.to_string() << "\n"
      << (verdict.violation ? listing(history, verdict.violation->key) : "");
  const std::string all = summary(history);
  std::printf("%llu rounds; %s\n", static_cast<unsigned long long>(round), all.c_str());
  RecordProperty("rounds", std::to_string(round));
  RecordProperty("summary", all);
}

TEST(ChaosSequence, IsTheSameForTheSameSeed) {
  const auto drawn = [](std::uint64_t seed) {
    Misfortunes misfortunes(seed);
    std::string all;
    for (int i = 0; i < 100; ++i) all += to_string(misfortunes.next()) + "\n";
    return all;
  };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
  for (const char* what : {"kill -9 a", "stop b", "cut connections of the primary", "kill etcd"})
    EXPECT_NE(drawn(1).find(what), std::string::npos) << what;
}

}  // namespace
}  // namespace sluice::kv::test
