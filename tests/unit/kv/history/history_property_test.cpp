// SPDX-License-Identifier: BSD-3-Clause
// The checker against histories of a key that was really there: operations that overlap, each of
// which takes effect at one moment between its invocation and its return, or later, or never, as
// clients see it. Such histories are accepted; with an answer that is none they are not. And the
// ways to judge one, which share nothing, say the same of any history.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "history.hpp"

namespace sluice::kv::test {
namespace {

using History = std::vector<Operation>;
using Value = std::optional<std::string>;

/// What a history is made from. RapidCheck chooses its seed and its length, and shrinks the length.
std::mt19937_64 chance;

/// From `low` up to and without `beyond`.
int in_range(int low, int beyond) {
  return low + static_cast<int>(chance() % static_cast<unsigned>(beyond - low));
}
bool one_in(int n) {
  return in_range(0, n) == 0;
}
/// Seeds `chance`; a length from 1 to `max`.
int a_length(int max) {
  chance.seed(
      *rc::gen::noShrink(rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<unsigned>())));
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(1, max + 1));
}

/// The same as a server would do; the number after an INCR is its answer.
Value perform(const Operation& operation, Value& state) {
  switch (operation.kind) {
    case Kind::get: return state;
    case Kind::set: state = operation.value; return state;
    case Kind::incr: state = std::to_string((state ? std::stoll(*state) : 0) + 1); return state;
    case Kind::del: {
      const Value removed = state ? "1" : "0";
      state.reset();
      return removed;
    }
  }
  return {};
}

enum class Commands { registers, all };

/// Clients that have one operation in progress each. Each step of the run is a nanosecond.
class Run {
 public:
  Run(int clients, int steps, Commands commands) : commands_(commands) {
    std::vector<std::optional<InProgress>> in_progress(static_cast<std::size_t>(clients));
    for (now_ = 1; now_ <= steps; ++now_) {
      const auto client = static_cast<std::size_t>(in_range(0, clients));
      auto& mine = in_progress[client];
      if (!mine)
        mine = begin(static_cast<std::uint32_t>(client));
      else if (!mine->done && one_in(8))
        give_up(mine);
      else if (!mine->done)
        take_effect(*mine);
      else
        finish(mine);
      // What was given up takes effect at any time after.
      if (!abandoned_.empty() && one_in(6)) {
        (void)perform(abandoned_.back(), state);
        abandoned_.pop_back();
      }
    }
    for (auto& mine : in_progress)
      if (mine) give_up(mine);
  }

  History history;
  Value state;
  [[nodiscard]] std::int64_t now() const { return now_; }

 private:
  struct InProgress {
    Operation operation;
    bool done = false;
  };

  InProgress begin(std::uint32_t client) {
    Operation operation;
    operation.client = client;
    operation.key = "k";
    operation.invoked = now_;
    const int what = in_range(0, commands_ == Commands::registers ? 2 : 5);
    operation.kind = what == 0   ? Kind::get
                     : what == 1 ? Kind::set
                     : what == 4 ? Kind::del
                                 : Kind::incr;
    if (operation.kind == Kind::set) operation.value = std::to_string(1000 * ++written_);
    return {operation, false};
  }
  void take_effect(InProgress& mine) {
    const Value answer = perform(mine.operation, state);
    if (mine.operation.kind != Kind::set) mine.operation.value = answer;
    mine.done = true;
  }
  void finish(std::optional<InProgress>& mine) {
    mine->operation.returned = now_;
    history.push_back(mine->operation);
    mine.reset();
  }
  /// It is answered that it was refused, or nothing; then it may have been done, or be done later.
  void give_up(std::optional<InProgress>& mine) {
    Operation& operation = mine->operation;
    operation.returned = now_;
    operation.outcome = Outcome::unknown;
    if (operation.kind != Kind::set) operation.value.reset();
    if (!mine->done) {
      if (one_in(3))
        operation.outcome = Outcome::failed;
      else if (one_in(2))
        abandoned_.push_back(operation);
    }
    history.push_back(operation);
    mine.reset();
  }

  const Commands commands_;
  std::int64_t now_ = 0;
  int written_ = 0;
  History abandoned_;
};

Run a_run(Commands commands, int steps_max) {
  const int steps = a_length(steps_max);
  return Run(in_range(1, 6), steps, commands);
}

RC_GTEST_PROP(Histories, OfARegisterThatWasThereAreAccepted, ()) {
  const Run run = a_run(Commands::registers, 300);
  RC_ASSERT(has_unique_writes(run.history));
  const auto by_zones = zones(run.history);
  if (by_zones) RC_FAIL(by_zones->to_string() + "\n" + listing(run.history, "k"));
  bool undecided = false;
  const auto by_search = search(run.history, undecided);
  if (by_search) RC_FAIL(by_search->to_string() + "\n" + listing(run.history, "k"));
  RC_ASSERT(!undecided);
  RC_ASSERT(!check_nothing_lost(run.history, {{"k", run.state}}));
}

RC_GTEST_PROP(Histories, WithCountersAndRemovalsAreAccepted, ()) {
  const Run run = a_run(Commands::all, 120);
  const Verdict verdict = check(run.history);
  if (!verdict.linearizable()) RC_FAIL(verdict.to_string() + "\n" + listing(run.history, "k"));
}

RC_GTEST_PROP(Histories, AStaleReadIsFound, ()) {
  Run run = a_run(Commands::registers, 300);
  const auto is = [](const Operation& operation, Kind kind) {
    return operation.kind == kind && operation.outcome == Outcome::ok;
  };
  // Reads, with what they would give if they came from a copy that lags behind.
  std::vector<std::pair<std::size_t, std::string>> stale;
  for (std::size_t i = 0; i < run.history.size(); ++i) {
    const Operation& read = run.history[i];
    if (!is(read, Kind::get)) continue;
    for (const Operation& newer : run.history)
      for (const Operation& older : run.history)
        if (is(newer, Kind::set) && is(older, Kind::set) && older.returned < newer.invoked &&
            newer.returned < read.invoked)
          stale.emplace_back(i, *older.value);
  }
  RC_PRE(!stale.empty());
  const auto& [which, value] =
      stale[static_cast<std::size_t>(in_range(0, static_cast<int>(stale.size())))];
  run.history[which].value = value;
  RC_ASSERT(zones(run.history).has_value());
  bool undecided = false;
  RC_ASSERT(search(run.history, undecided).has_value());
  RC_ASSERT(check(run.history).violation.has_value());
}

RC_GTEST_PROP(Histories, ALostWriteIsFound, ()) {
  // A server that acknowledges one more write, and then goes on with what it had before.
  Run run = a_run(Commands::registers, 300);
  const Value before = run.state;
  const std::int64_t now = run.now();
  run.history.push_back({9, Kind::set, Outcome::ok, "k", "last", now + 1, now + 2});
  // What of unknown outcome is there may come late, and nobody can tell it from a loss.
  const bool may_come_late = std::ranges::any_of(run.history, [&](const Operation& operation) {
    return operation.outcome == Outcome::unknown && operation.value == before;
  });
  RC_PRE(!may_come_late);
  RC_ASSERT(check_nothing_lost(run.history, {{"k", before}}).has_value());
  RC_ASSERT(!check_nothing_lost(run.history, {{"k", "last"}}));
  run.history.push_back({9, Kind::get, Outcome::ok, "k", before, now + 3, now + 4});
  RC_ASSERT(check(run.history).violation.has_value());
}

RC_GTEST_PROP(Histories, ALostIncrementIsFound, ()) {
  History history;
  std::int64_t now = 0;
  int number = 0;
  const int count = 1 + a_length(40), lost = in_range(0, count - 1);
  for (int i = 0; i < count; ++i) {
    history.push_back({1, Kind::incr, Outcome::ok, "k", std::to_string(number + 1), now, now + 1});
    if (i != lost) ++number;  // after the lost one its number is given again
    now += 2;
  }
  RC_ASSERT(check(history).violation.has_value());
  RC_ASSERT(check_nothing_lost(history, {{"k", std::to_string(number - 1)}}).has_value());
}

/// Any answers at all, right or wrong, of operations that overlap in any way.
History any_history(Commands commands, int operations_max) {
  History history;
  const int count = a_length(operations_max);
  for (int i = 0; i < count; ++i) {
    Operation operation;
    operation.client = static_cast<std::uint32_t>(i);
    operation.key = "k";
    operation.invoked = in_range(0, 20);
    operation.returned = operation.invoked + in_range(0, 8);
    const int what = in_range(0, commands == Commands::registers ? 2 : 4);
    const int outcome = in_range(0, 8);
    operation.outcome = outcome == 0   ? Outcome::failed
                        : outcome <= 2 ? Outcome::unknown
                                       : Outcome::ok;
    const std::string small = std::to_string(in_range(1, 4));
    switch (what) {
      case 0:
        operation.kind = Kind::get;
        if (one_in(4) == false) operation.value = small;
        break;
      case 1:
        operation.kind = Kind::set;
        operation.value = commands == Commands::registers ? std::to_string(i + 1) : small;
        break;
      case 2:
        operation.kind = Kind::incr;
        if (operation.outcome == Outcome::ok) operation.value = small;
        break;
      default:
        operation.kind = Kind::del;
        if (operation.outcome == Outcome::ok) operation.value = one_in(2) ? "1" : "0";
        break;
    }
    history.push_back(std::move(operation));
  }
  return history;
}

/// By trying each order of each choice of the unknown ones. The definition, and nothing else.
bool some_order_explains(History history) {
  std::erase_if(history, [](const Operation& o) {
    return o.outcome == Outcome::failed || (o.outcome == Outcome::unknown && o.kind == Kind::get);
  });
  const auto ends = [](const Operation& o) {
    return o.outcome == Outcome::unknown ? std::numeric_limits<std::int64_t>::max() : o.returned;
  };
  const std::size_t choices = std::size_t{1} << history.size();
  for (std::size_t chosen = 0; chosen < choices; ++chosen) {
    std::vector<std::size_t> order;
    bool all_known_are_in = true;
    for (std::size_t i = 0; i < history.size(); ++i) {
      if ((chosen >> i & 1) != 0)
        order.push_back(i);
      else
        all_known_are_in &= history[i].outcome == Outcome::unknown;
    }
    if (!all_known_are_in) continue;
    do {
      Value state;
      bool fits = true;
      for (std::size_t i = 0; fits && i < order.size(); ++i) {
        const Operation& operation = history[order[i]];
        for (std::size_t j = i + 1; j < order.size(); ++j)
          fits &= ends(history[order[j]]) >= operation.invoked;
        const Value answer = perform(operation, state);
        if (operation.outcome == Outcome::ok) fits &= answer == operation.value;
      }
      if (fits) return true;
    } while (std::ranges::next_permutation(order).found);
  }
  return false;
}

RC_GTEST_PROP(WaysToJudge, SayTheSameOfAnyRegister, ()) {
  const History history = any_history(Commands::registers, 12);
  bool undecided = false;
  const bool by_zones = !zones(history), by_search = !search(history, undecided);
  RC_ASSERT(!undecided);
  RC_CLASSIFY(by_zones, "linearizable");
  if (by_zones != by_search) RC_FAIL(listing(history, "k"));
}

RC_GTEST_PROP(WaysToJudge, SayWhatTheDefinitionSays, ()) {
  const Commands commands = *rc::gen::element(Commands::registers, Commands::all);
  const History history = any_history(commands, 6);
  const bool defined = some_order_explains(history);
  bool undecided = false;
  RC_CLASSIFY(defined, "linearizable");
  if (!search(history, undecided) != defined) RC_FAIL("search\n" + listing(history, "k"));
  if (commands == Commands::registers && !zones(history) != defined)
    RC_FAIL("zones\n" + listing(history, "k"));
}

}  // namespace
}  // namespace sluice::kv::test
