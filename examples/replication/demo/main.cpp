// SPDX-License-Identifier: BSD-3-Clause
// sluice-kv-demo: a cluster under load loses its primary, and no acknowledged write. This file is
// the story; each part of it has a file of its own.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "child.hpp"
#include "client.hpp"
#include "cluster.hpp"
#include "load.hpp"
#include "options.hpp"
#include "witness.hpp"

namespace demo {
namespace {

using sluice::Result;
using sluice::Status;
using sluice::StatusCode;

/// The primary is killed so long after redis-benchmark has begun for the second time: in the middle
/// of a run that would never end.
constexpr std::chrono::milliseconds kKilledAfter{2000};
constexpr std::uint64_t kEndless = 1'000'000'000;
constexpr std::chrono::milliseconds kAnswerLimit{10'000};

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

/// Everything that happens, in its order. What the members destroy when it breaks off: the writers,
/// then the processes, then the folder (which is the caller's).
class Story {
 public:
  Story(const Options& options, const Folder& folder, Interrupts& interrupts)
      : options_(options), folder_(folder), interrupts_(interrupts) {}

  [[nodiscard]] Status run() {
    SLUICE_RETURN_IF_ERROR(begin());
    SLUICE_RETURN_IF_ERROR(load("before the kill", before_));
    SLUICE_RETURN_IF_ERROR(kill_the_primary());
    SLUICE_RETURN_IF_ERROR(watch_the_failover());
    SLUICE_RETURN_IF_ERROR(bring_it_back());
    SLUICE_RETURN_IF_ERROR(load("after it", after_));
    SLUICE_RETURN_IF_ERROR(verify());
    SLUICE_RETURN_IF_ERROR(end());
    return summary();
  }

 private:
  template <typename... Args>
  void tell(fmt::format_string<Args...> format, Args&&... args) {
    fmt::print("[{:6.2f} s] {}\n", seconds(Clock::now() - begin_),
               fmt::format(format, std::forward<Args>(args)...));
    std::fflush(stdout);
  }

  /// Everybody is there, somebody leads, the writers write.
  [[nodiscard]] Status begin() {
    auto cluster = Cluster::start(options_, folder_);
    if (!cluster) return cluster.status();
    cluster_.emplace(std::move(*cluster));
    SLUICE_RETURN_IF_ERROR(
        cluster_->wait_until("one node leads and all are in sync", interrupts_, [this] {
          auto primary = cluster_->primary();
          if (!primary || primary->state.in_sync.size() != cluster_->size()) return false;
          leader_ = std::move(*primary);
          return true;
        }));
    tell("{} leads, epoch {}; in sync: {}", cluster_->name(leader_.node), leader_.state.epoch,
         list(leader_.state.in_sync));
    for (std::uint32_t i = 0; i < options_.writers; ++i)
      witnesses_.emplace_back(i, cluster_->ports());
    SLUICE_RETURN_IF_ERROR(cluster_->wait_until("a write is acknowledged", interrupts_,
                                                [&] { return written() > 0; }));
    tell("{} writers write keys of their own, each acknowledged at {} before the next",
         options_.writers, Witness::kLevel);
    return {};
  }

  [[nodiscard]] std::uint64_t written() const {
    std::uint64_t sum = 0;
    for (const Witness& witness : witnesses_) sum += witness.acknowledged();
    return sum;
  }

  [[nodiscard]] Result<Load> start_load(std::uint64_t requests) {
    return Load::start(options_, cluster_->port(leader_.node), requests,
                       folder_ / fmt::format("redis-benchmark.{}.log", ++loads_));
  }

  [[nodiscard]] Status load(const char* when, LoadResult& result) {
    auto load = start_load(options_.requests);
    if (!load) return load.status();
    auto measured = load->result(interrupts_);
    SLUICE_RETURN_IF_ERROR(cluster_->check());  // says more than a lost connection
    if (!measured) return measured.status();
    result = *measured;
    tell(
        "redis-benchmark {}: {} SETs of {} bytes by {} clients, {:.1f} k/s, p50 {:.2f} ms, p99 "
        "{:.2f} ms",
        when, options_.requests, options_.bytes, options_.clients, result.per_second / 1e3,
        result.p50_ms, result.p99_ms);
    return {};
  }

  [[nodiscard]] Status kill_the_primary() {
    auto load = start_load(kEndless);
    if (!load) return load.status();
    SLUICE_RETURN_IF_ERROR(pause(interrupts_, kKilledAfter));
    SLUICE_RETURN_IF_ERROR(cluster_->check());
    tell("redis-benchmark runs again; {} writes of our own are acknowledged; kill -9 {} ({})",
         written(), cluster_->name(leader_.node), cluster_->pid(leader_.node));
    cluster_->kill(leader_.node);
    killed_at_ = Clock::now();
    killed_ = leader_;
    return load->wait_until_it_gave_up(interrupts_);
  }

  [[nodiscard]] Status watch_the_failover() {
    const std::uint64_t before = killed_.state.epoch;
    SLUICE_RETURN_IF_ERROR(cluster_->wait_until("another node leads", interrupts_, [this, before] {
      auto primary = cluster_->primary();
      if (!primary || primary->state.epoch <= before) return false;
      leader_ = std::move(*primary);
      return true;
    }));
    led_after_ = Clock::now() - killed_at_;
    tell(
        "{} leads, epoch {} (before: {}), {:.2f} s after the kill; the lease was {} s; in sync: {}",
        cluster_->name(leader_.node), leader_.state.epoch, before, seconds(led_after_),
        options_.lease_s, list(leader_.state.in_sync));
    const std::uint64_t so_far = written();
    SLUICE_RETURN_IF_ERROR(cluster_->wait_until("writes are acknowledged again", interrupts_,
                                                [&] { return written() > so_far; }));
    tell("writes are acknowledged again");
    return show_redirect();
  }

  /// What a client hears that asks another node.
  [[nodiscard]] Status show_redirect() {
    for (std::size_t i = 0; i < cluster_->size(); ++i) {
      if (i == leader_.node || !cluster_->running(i)) continue;
      auto client = Client::connect("127.0.0.1", cluster_->port(i), kAnswerLimit);
      if (!client) return client.status();
      auto reply = client->ask({"SET", "asked", "elsewhere"});
      if (!reply) return reply.status();
      tell("a SET at {} is answered: {}", cluster_->name(i), reply->text);
      return {};
    }
    return {};
  }

  [[nodiscard]] Status bring_it_back() {
    const std::string& name = cluster_->name(killed_.node);
    const auto started = Clock::now();
    SLUICE_RETURN_IF_ERROR(cluster_->start_again(killed_.node));
    tell("{} is started again, on what it has on its disk", name);
    SLUICE_RETURN_IF_ERROR(cluster_->wait_until(name + " is a replica in sync", interrupts_, [&] {
      const auto own = cluster_->state(killed_.node);
      const auto primary = cluster_->primary();
      return own && own->role == "replica" && primary && primary->state.has_in_sync(name);
    }));
    back_after_ = Clock::now() - started;
    tell("{} is a replica and in sync again, {:.2f} s later, while writes went on", name,
         seconds(back_after_));
    return {};
  }

  /// The writers stop, and what they were promised is looked for.
  [[nodiscard]] Status verify() {
    for (Witness& witness : witnesses_) {
      witness.stop();
      if (!witness.surprise().empty()) return {StatusCode::internal, witness.surprise()};
    }
    const auto primary = cluster_->primary();
    if (!primary) return {StatusCode::internal, "nobody leads at the end"};
    auto client = Client::connect("127.0.0.1", cluster_->port(primary->node), kAnswerLimit);
    if (!client) return client.status();
    for (const Witness& witness : witnesses_) {
      auto verdict = witness.verify(*client, interrupts_);
      if (!verdict) return verdict.status();
      verdict_.looked_for += verdict->looked_for;
      verdict_.missing += verdict->missing;
      verdict_.wrong += verdict->wrong;
    }
    tell("{} acknowledged writes read back from {}: {} missing, {} wrong", verdict_.looked_for,
         cluster_->name(primary->node), verdict_.missing, verdict_.wrong);
    return {};
  }

  [[nodiscard]] Status end() {
    for (std::size_t i = 0; i < cluster_->size(); ++i) {
      auto state = cluster_->state(i);
      if (!state) return state.status();
      tell("{}: {}, epoch {}, log to {}, on disk to {}, applied to {}", cluster_->name(i),
           state->role, state->epoch, state->last_index, state->durable_index,
           state->applied_index);
    }
    SLUICE_RETURN_IF_ERROR(cluster_->end());
    tell("all have ended");
    return {};
  }

  [[nodiscard]] Status summary() const {
    Clock::duration pause{};
    std::uint64_t repeated = 0;
    for (const Witness& witness : witnesses_) {
      pause = std::max(pause, witness.longest_pause().length);
      repeated += witness.repeated();
    }
    const auto rate = [](const LoadResult& result) {
      return fmt::format("{:.1f} k SETs/s, p50 {:.2f} ms, p99 {:.2f} ms", result.per_second / 1e3,
                         result.p50_ms, result.p99_ms);
    };
    const std::uint64_t lost = verdict_.missing + verdict_.wrong;
    fmt::print(
        "\nfail-over   {} after {}: led after {:.2f} s, {:.1f} lease times\n"
        "writers     waited {:.2f} s at most for an acknowledgement; {} attempts made again\n"
        "return      {} was in sync again after {:.2f} s\n"
        "load        before: {}\n"
        "            after:  {}\n"
        "lost        {} of {} acknowledged writes\n",
        cluster_->name(leader_.node), cluster_->name(killed_.node), seconds(led_after_),
        seconds(led_after_) / options_.lease_s, seconds(pause), repeated,
        cluster_->name(killed_.node), seconds(back_after_), rate(before_), rate(after_), lost,
        verdict_.looked_for);
    if (lost > 0)
      return {StatusCode::internal, fmt::format("{} acknowledged writes are LOST", lost)};
    return {};
  }

  const Options& options_;
  const Folder& folder_;
  Interrupts& interrupts_;
  const Clock::time_point begin_ = Clock::now();
  std::optional<Cluster> cluster_;
  std::deque<Witness> witnesses_;
  unsigned loads_ = 0;

  Cluster::Primary leader_, killed_;
  Clock::time_point killed_at_{};
  Clock::duration led_after_{}, back_after_{};
  LoadResult before_, after_;
  Witness::Verdict verdict_;
};

Status run(const Options& options, Interrupts& interrupts) {
  SLUICE_RETURN_IF_ERROR(find_in_path("etcd", "etcd-server"));
  SLUICE_RETURN_IF_ERROR(find_in_path("redis-benchmark", "redis-tools"));
  auto folder = Folder::make(options.keep);
  if (!folder) return folder.status();
  fmt::print("sluice-kv-demo: etcd and {} nodes of sluice-kv on {} in {} ({})\n", options.nodes,
             options.device ? "the device of " + options.address : "softrdma", folder->path(),
             options.keep ? "kept" : "removed at the end");
  std::fflush(stdout);
  return Story(options, *folder, interrupts).run();
}

}  // namespace
}  // namespace demo

int main(int argc, char** argv) {
  using namespace demo;
  const Parsed parsed = parse_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  Interrupts interrupts;  // before the first thread
  const sluice::Status outcome = run(*parsed.options, interrupts);
  if (outcome.ok()) return 0;
  std::fflush(stdout);
  fmt::print(stderr, "sluice-kv-demo: {}\n", outcome.message());
  if (const int signal = interrupts.pending(); signal != 0) return 128 + signal;
  return kExitLost;
}
