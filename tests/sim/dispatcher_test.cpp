// SPDX-License-Identifier: BSD-3-Clause
// The whole dispatcher on one thread: a seeded scheduler steps pollers, workers and the control in
// random order under a virtual clock, while completions, faults, attaches and detaches come at
// random moments. A model beside it knows what must come of each completion.
//
//   SLUICE_SIM_SEEDS=n   runs n seeds (default 300); SLUICE_SIM_SEED=s runs that one alone.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "sluice_test/dispatch_fixture.hpp"

namespace sluice::testing {
namespace {

using TimePoint = std::chrono::steady_clock::time_point;
using std::chrono::microseconds;

constexpr std::uint32_t kQueuePairs = 6;
constexpr std::size_t kSourcesMax = 10;

/// What became of one completion.
struct Fate {
  std::uint32_t source = 0;
  std::uint32_t qp_num = 0;
  std::uint32_t delivered = 0;
  std::uint32_t orphaned = 0;
};

struct ModelConnection {
  std::shared_ptr<ConnectionHandle> handle;
  std::uint32_t qp_num = 0;
  std::uint64_t last = 0;  ///< wr_id delivered last
  int told_of_end = 0;
  bool detaching = false;
  int detached = 0;     ///< times its callback was called
  bool closed = false;  ///< detached cleanly: its handler may not be called any more
};

struct ModelSource {
  std::uint32_t index = 0;
  std::shared_ptr<SyntheticSource> source;
  std::shared_ptr<SourceHandle> handle;
  Order order = Order::none;
  bool single = false;
  bool in_batches = false;  ///< takes buffers that its poller's sources share
  std::uint64_t made = 0, delivered = 0, orphaned = 0;
  std::uint64_t last = 0;
  bool by_qp_num = false;  ///< per_key: the key is the qp_num, else something of the wr_id
  std::map<std::uint64_t, std::uint64_t> last_of_key;  ///< per_key
  bool failed = false, lame = false;
  bool detaching = false, executed = false;
  int detached = 0;
  bool closed = false;
  std::vector<SetupTicket> tickets;
  std::map<ConnectionId, std::unique_ptr<ModelConnection>> connections;

  /// What the dispatcher takes for a completion's key.
  [[nodiscard]] std::uint64_t key_of(const ibv_wc& wc) const noexcept {
    return by_qp_num || wc.status != IBV_WC_SUCCESS ? wc.qp_num : wc.wr_id % 5;
  }
  [[nodiscard]] bool many() const { return order == Order::per_connection && !single; }
  /// Polled and not handled; exact where nothing is held early.
  [[nodiscard]] std::uint64_t in_hand() const {
    return made - source->pending() - delivered - orphaned;
  }
};

/// One of the dispatcher's parts as a host sees it.
struct Part {
  Runnable* runnable = nullptr;
  enum class Kind { poller, worker, control } kind = Kind::poller;
  std::uint32_t index = 0;
  bool asleep = false;
};

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : random_(seed) {
    DispatcherConfig config;
    config.drive = Drive::host;
    config.pollers[0].count = 1 + pick(3);
    config.pollers[0].batch_count = 2 + pick(8);
    config.pollers[0].hot_rounds = pick(4);
    config.pollers[0].wait = pick(2) == 0 ? WaitMode::event : WaitMode::adaptive;
    config.pollers[0].sources_max = 16;
    config.pools[0].workers = 1 + pick(3);
    config.pools[0].key_lanes = 1 + pick(6);
    config.connections_max = 8 + pick(24);
    config.stall_threshold = std::chrono::milliseconds(pick(2) * 5);
    config.last_wqe_grace = std::chrono::milliseconds(1);
    config.clock = [this] { return now_; };
    DispatcherCallbacks callbacks;
    callbacks.on_orphans = [this](SourceId id, std::span<const ibv_wc> batch) {
      orphans(id, batch);
    };
    callbacks.on_source_failed = [this](SourceId id, const Status&) { ++reported_faults_[id]; };
    dispatcher_ = start(config, callbacks);
    for (std::uint32_t i = 0; i < config.pollers[0].count; ++i) {
      parts_.push_back({&dispatcher_->poller(i), Part::Kind::poller, i, false});
    }
    for (std::uint32_t i = 0; i < config.pools[0].workers; ++i) {
      parts_.push_back({&dispatcher_->worker(i), Part::Kind::worker, i, false});
    }
    parts_.push_back({&dispatcher_->control(), Part::Kind::control, 0, false});
    fates_.emplace_back();  // wr_id 0 is nobody's
  }

  /// Returns what went wrong; empty: nothing.
  std::string run() {
    const std::uint32_t steps = 300 + pick(1500);
    for (std::uint32_t i = 0; i < steps && wrong_.empty(); ++i) {
      if (pick(3) == 0) act();
      step(parts_[pick(parts_.size())]);
      now_ += microseconds(pick(100));
      check_sleepers();
    }
    if (wrong_.empty()) wind_up();
    return wrong_;
  }

 private:
  std::uint32_t pick(std::size_t below) { return static_cast<std::uint32_t>(random_() % below); }
  bool chance(std::uint32_t one_in) { return pick(one_in) == 0; }
  template <typename... Words>
  void complain(const Words&... words) {
    if (!wrong_.empty()) return;
    std::ostringstream text;
    (text << ... << words);
    wrong_ = text.str();
  }

  // --- the scheduler ---------------------------------------------------------------------------
  void step(Part& part) {
    if (part.asleep) {
      // A host wakes when the descriptor says so, and at times for reasons of its own. The
      // control's deadlines are of the virtual clock, which no descriptor knows.
      if (!readable(part.runnable->wait_fd()) && !chance(part.kind == Part::Kind::control ? 3 : 50))
        return;
      part.runnable->finish_wait();
      part.asleep = false;
    }
    const std::size_t work = part.runnable->run_once();
    if (part.kind == Part::Kind::poller) {
      for (auto& source : sources_) {
        if (source->handle != nullptr && source->handle->poller() == part.index)
          source->executed = true;
      }
    }
    if (work == 0 && chance(2)) part.asleep = part.runnable->prepare_to_wait();
  }

  void act() {
    switch (pick(16)) {
      case 0: attach_source(); break;
      case 1: attach_connection(); break;
      case 2:
        if (chance(4)) detach_source();
        break;
      case 3:
        if (chance(2)) detach_connection();
        break;
      case 4:
        if (ModelSource* source = some_source()) source->source->make_stale_wake();
        break;
      case 5: fault(); break;
      case 6:
        if (ModelSource* source = some_source();
            source != nullptr && source->many() && source->tickets.size() < 3) {
          source->tickets.push_back(dispatcher_->expect_connection(*source->handle));
        }
        break;
      case 7:
        if (ModelSource* source = some_source(); source != nullptr && !source->tickets.empty())
          source->tickets.pop_back();
        break;
      default: complete(); break;
    }
  }

  ModelSource* some_source() {
    std::vector<ModelSource*> live;
    for (auto& source : sources_) {
      if (source->detached == 0) live.push_back(source.get());
    }
    return live.empty() ? nullptr : live[pick(live.size())];
  }

  void attach_source() {
    std::size_t live = 0;
    for (const auto& source : sources_) live += source->detached == 0;
    if (live >= kSourcesMax) return;
    auto model = std::make_unique<ModelSource>();
    ModelSource* const self = model.get();
    self->index = static_cast<std::uint32_t>(sources_.size());
    self->source = std::make_shared<SyntheticSource>(8 + pick(120));
    constexpr std::array kOrders = {Order::inlined, Order::none, Order::per_connection,
                                    Order::per_connection, Order::per_key};
    self->order = kOrders[pick(kOrders.size())];
    self->single = self->order == Order::per_connection && chance(3);
    self->in_batches = self->order == Order::none ||
                       (self->order != Order::inlined && dispatcher_->worker_count() == 1);
    self->by_qp_num = chance(2);
    KeyFunction key;
    if (self->order == Order::per_key) {
      key = [this, self](const ibv_wc& wc) noexcept {
        if (wc.status != IBV_WC_SUCCESS) complain("a key function was shown a failed completion");
        return self->key_of(wc);
      };
    }
    if (chance(12)) self->source->forbid_waiting();
    sources_.push_back(std::move(model));
    while (chance(2)) complete_on(*self);  // before it is attached (W2)
    auto attached = dispatcher_->attach(
        self->source, {.order = self->order, .single_connection = self->single, .key = key},
        [this, self](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
          handle(*self, batch, info);
        });
    if (!attached.ok()) {  // quarantined ones take up places
      self->detached = 1;
      if (attached.status().code() != StatusCode::resource_exhausted)
        complain("attach: ", attached.status().to_string());
      return;
    }
    self->handle = *attached;
    by_id_[self->handle->id()] = self;
  }

  void attach_connection() {
    ModelSource* const source = some_source();
    if (source == nullptr || !source->many()) return;
    const std::uint32_t qp_num = pick(kQueuePairs);
    for (const auto& [id, connection] : source->connections) {
      if (connection->qp_num == qp_num && connection->detached == 0) return;
    }
    auto model = std::make_unique<ModelConnection>();
    ModelConnection* const self = model.get();
    auto attached = dispatcher_->attach_queue_pair(
        qp_num, {.receive_source = source->handle,
                 .on_event = [this, self](ConnectionId, rpma::ConnectionEvent) {
                   if (++self->told_of_end > 1) complain("a connection's end was told twice");
                 }});
    if (!attached.ok()) {
      if (source->detaching) return;  // nobody new may come in
      const StatusCode code = attached.status().code();
      if (code != StatusCode::does_not_fit && code != StatusCode::resource_exhausted) {
        complain("attach_queue_pair: ", attached.status().to_string());
      }
      return;
    }
    if (source->detaching) complain("a connection was attached to a source that is being detached");
    self->handle = *attached;
    self->qp_num = qp_num;
    source->connections[self->handle->id()] = std::move(model);
  }

  std::chrono::nanoseconds some_deadline() {
    return chance(3) ? microseconds(pick(2000)) : microseconds(1'000'000);
  }

  void detach_connection() {
    ModelSource* const source = some_source();
    if (source == nullptr || source->connections.empty()) return;
    auto at = source->connections.begin();
    std::advance(at, pick(source->connections.size()));
    detach(*at->second, some_deadline());
  }
  void detach(ModelConnection& connection, std::chrono::nanoseconds deadline) {
    if (std::exchange(connection.detaching, true)) return;
    connection.handle->detach_async(deadline, [this, &connection](const DetachReport& report) {
      if (++connection.detached > 1) complain("a detach was reported twice");
      connection.closed = report.clean;
    });
  }

  void detach_source() {
    ModelSource* const source = some_source();
    if (source != nullptr) detach(*source, some_deadline());
  }
  void detach(ModelSource& source, std::chrono::nanoseconds deadline) {
    if (source.handle == nullptr || std::exchange(source.detaching, true)) return;
    source.handle->detach_async(deadline, [this, &source](const DetachReport& report) {
      if (++source.detached > 1) complain("a detach was reported twice");
      source.closed = report.clean;
      if (source.many() || source.order == Order::inlined) return;
      if (report.clean && source.in_hand() != 0)
        complain("a clean detach left ", source.in_hand(), " in a worker's hands");
      if (report.completions_abandoned != source.in_hand()) {
        complain("a detach reported ", report.completions_abandoned, " abandoned of ",
                 source.in_hand());
      }
    });
  }

  void fault() {
    ModelSource* const source = some_source();
    if (source == nullptr || !chance(3)) return;
    if (chance(2)) {
      source->source->fail_next_rearm();
      source->lame = true;
    } else if (chance(3)) {
      source->source->fail_next_poll(SourceFault::poll_failed);
      source->failed = true;
    }
  }

  void complete() {
    ModelSource* const source = some_source();
    if (source == nullptr) return;
    for (std::uint32_t burst = chance(4) ? pick(100) : 1; burst > 0; --burst) {
      if (!complete_on(*source)) return;
    }
  }
  bool complete_on(ModelSource& source) {
    const std::uint32_t qp_num = pick(kQueuePairs);
    if (!source.source->complete(qp_num, fates_.size(),
                                 chance(50) ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS))
      return false;
    fates_.push_back({source.index, qp_num, 0, 0});
    ++source.made;
    return true;
  }

  // --- what the dispatcher does ----------------------------------------------------------------
  void handle(ModelSource& source, std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
    if (source.closed) complain("a handler was called after a clean detach");
    std::uint64_t* last = source.order == Order::inlined || source.single ? &source.last : nullptr;
    if (source.many()) {
      const auto found = source.connections.find(info.connection);
      if (found == source.connections.end()) {
        complain("completions of a connection that was never attached");
        return;
      }
      if (found->second->closed)
        complain("a handler was called for a connection after its clean detach");
      last = &found->second->last;
      for (const ibv_wc& wc : batch) {
        if (wc.qp_num != found->second->qp_num) complain("another connection's completion");
      }
    }
    for (const ibv_wc& wc : batch) {
      Fate& fate = fates_[wc.wr_id];
      if (fate.source != source.index) complain("a completion went to another source's handler");
      if (++fate.delivered > 1) complain("completion ", wc.wr_id, " was delivered twice");
      if (fate.orphaned > 0) complain("completion ", wc.wr_id, " was an orphan and then delivered");
      if (last != nullptr && wc.wr_id <= *last)
        complain("out of order: ", wc.wr_id, " after ", *last);
      if (last != nullptr) *last = wc.wr_id;
      if (source.order == Order::per_key) {
        std::uint64_t& of_key = source.last_of_key[source.key_of(wc)];
        if (wc.wr_id <= of_key) complain("out of its key's order: ", wc.wr_id, " after ", of_key);
        of_key = wc.wr_id;
      }
    }
    source.delivered += batch.size();
    if (chance(200)) detach(source, some_deadline());  // from inside a handler
  }

  void orphans(SourceId id, std::span<const ibv_wc> batch) {
    ModelSource& source = *by_id_.at(id);
    if (!source.many()) complain("an orphan of a source that knows no connections");
    for (const ibv_wc& wc : batch) {
      Fate& fate = fates_[wc.wr_id];
      if (++fate.orphaned > 1 || fate.delivered > 0)
        complain("completion ", wc.wr_id, " was an orphan twice, or delivered before");
    }
    source.orphaned += batch.size();
  }

  // --- what must hold --------------------------------------------------------------------------
  [[nodiscard]] bool sleeps_soundly(const Part& part) const {
    return part.asleep && !readable(part.runnable->wait_fd());
  }

  void check_sleepers() {
    for (const Part& part : parts_) {
      if (part.kind == Part::Kind::poller && sleeps_soundly(part)) check_poller(part.index);
    }
    std::uint64_t in_hand = 0;
    for (const auto& source : sources_) {
      if (source->order != Order::inlined && !source->many()) in_hand += source->in_hand();
    }
    if (in_hand == 0) return;
    for (const Part& part : parts_) {
      if (part.kind == Part::Kind::worker && !sleeps_soundly(part)) return;
    }
    complain("every worker sleeps while ", in_hand, " completions wait for one");
  }

  /// It sleeps, and nothing will wake it: then there is nothing that it could take.
  void check_poller(std::uint32_t index) {
    std::uint64_t batches_out = 0;
    for (const auto& source : sources_) {
      if (source->handle != nullptr && source->handle->poller() == index && source->in_batches) {
        batches_out += source->in_hand();
      }
    }
    for (const auto& source : sources_) {
      if (source->handle == nullptr || source->handle->poller() != index) continue;
      if (source->failed || source->detaching || !source->executed ||
          source->source->pending() == 0)
        continue;
      const bool buffers = source->order == Order::inlined ||
                           (source->in_batches ? batches_out == 0 : source->in_hand() == 0);
      if (buffers) {
        complain("poller ", index, " sleeps while source ", source->index, " (",
                 to_string(source->order), ") has ", source->source->pending(), " completions");
      }
    }
  }

  /// No more is to come: everything is detached, and every completion has found its fate.
  void wind_up() {
    for (auto& source : sources_) source->tickets.clear();
    run_until_all_sleep("after the last ticket");
    for (auto& source : sources_) {
      for (auto& [id, connection] : source->connections) detach(*connection, std::chrono::hours(1));
    }
    run_until([&] { return all_detached(true); }, "the connections' detaches");
    for (auto& source : sources_) detach(*source, std::chrono::hours(1));
    run_until([&] { return all_detached(false); }, "the sources' detaches");
    run_until_all_sleep("at the end");
    if (!wrong_.empty()) return;
    for (const auto& source : sources_) check_sums(*source);
    for (Part& part : parts_) {
      if (part.asleep) part.runnable->finish_wait();
    }
    const Status status = dispatcher_->stop(std::chrono::seconds(10));
    if (!status.ok()) complain("stop: ", status.to_string());
    for (const PollerCounters& poller : dispatcher_->counters().pollers) {
      if (poller.sources != 0) complain("a poller still holds ", poller.sources, " sources");
      if (poller.connections != 0)
        complain("a poller still counts ", poller.connections, " connections");
    }
  }

  [[nodiscard]] bool all_detached(bool connections) const {
    for (const auto& source : sources_) {
      if (!connections && source->handle != nullptr && source->detached == 0) return false;
      for (const auto& [id, connection] : source->connections) {
        if (connection->detached == 0) return false;
      }
    }
    return true;
  }

  void check_sums(const ModelSource& source) {
    const std::uint64_t left = source.source->pending();
    if (source.made != source.delivered + source.orphaned + left) {
      complain("source ", source.index, " (", to_string(source.order), "): of ", source.made,
               " completions ", source.delivered, " were delivered, ", source.orphaned,
               " orphans, ", left, " left");
    }
    if (source.source->retired() != source.delivered + source.orphaned) {
      complain("source ", source.index, ": ", source.source->retired(), " retired");
    }
    if (source.handle != nullptr && reported_faults_[source.handle->id()] > 2)
      complain("a fault was reported again");
  }

  template <typename Condition>
  void run_until(Condition condition, const char* what) {
    constexpr int kStepsMax = 100'000;
    for (int i = 0; wrong_.empty() && !condition(); ++i) {
      if (i == kStepsMax) return complain("no end: ", what);
      step(parts_[pick(parts_.size())]);
      now_ += microseconds(pick(20));
      check_sleepers();
    }
  }

  /// Until nothing moves: each part asleep, but for pollers that have a reason to stay awake.
  void run_until_all_sleep(const char* what) {
    std::uint32_t quiet = 0;
    constexpr std::uint32_t kQuietSteps = 400;
    std::uint64_t before = total();
    run_until(
        [&] {
          quiet = total() == before ? quiet + 1 : 0;
          before = total();
          return quiet > kQuietSteps;
        },
        what);
  }
  [[nodiscard]] std::uint64_t total() const {
    std::uint64_t sum = 0;
    for (const auto& source : sources_)
      sum += source->delivered + source->orphaned + source->source->pending() +
             static_cast<std::uint64_t>(source->detached);
    return sum;
  }

  std::mt19937_64 random_;
  TimePoint now_{std::chrono::hours(1)};
  std::vector<Fate> fates_;
  std::vector<std::unique_ptr<ModelSource>> sources_;
  std::map<SourceId, ModelSource*> by_id_;
  std::map<SourceId, int> reported_faults_;
  std::string wrong_;
  std::vector<Part> parts_;
  std::unique_ptr<Dispatcher> dispatcher_;  // goes first: what its callbacks touch outlives it
};

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 10) : otherwise;
}

void run_seed(std::uint64_t seed) {
  // A check of the dispatcher that stops the program leaves this line as the last one.
  const std::string replay = "SLUICE_SIM_SEED=" + std::to_string(seed) + " replays it";
  if (std::getenv("SLUICE_SIM_VERBOSE") != nullptr) std::fprintf(stderr, "%s\n", replay.c_str());
  const std::string wrong = Simulation(seed).run();
  EXPECT_EQ(wrong, "") << replay;
}

TEST(DispatcherSimulation, EveryCompletionFindsItsFateWhateverTheOrderOfThings) {
  if (const std::uint64_t seed = from_environment("SLUICE_SIM_SEED", 0); seed != 0) {
    run_seed(seed);
    return;
  }
  const std::uint64_t seeds = from_environment("SLUICE_SIM_SEEDS", 300);
  for (std::uint64_t seed = 1; seed <= seeds && !HasFailure(); ++seed) run_seed(seed);
}

}  // namespace
}  // namespace sluice::testing
