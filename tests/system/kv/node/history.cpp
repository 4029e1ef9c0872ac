// SPDX-License-Identifier: BSD-3-Clause
#include "history.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <deque>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace sluice::kv::test {
namespace {

constexpr std::int64_t kBeforeAll = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
/// So many operations that came just before are shown with one that no order explains.
constexpr std::size_t kShownBefore = 8;

using Value = std::optional<std::string>;

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::get: return "GET";
    case Kind::set: return "SET";
    case Kind::incr: return "INCR";
    case Kind::del: return "DEL";
  }
  return "?";
}

/// Long values are cut: their beginnings tell them apart.
std::string shown(const Value& value) {
  constexpr std::size_t kShownMax = 40;
  if (!value) return "(nothing)";
  return value->size() <= kShownMax ? *value : value->substr(0, kShownMax) + "...";
}

std::string seconds(std::int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6f", static_cast<double>(ns) / 1e9);
  return text;
}

/// When it had returned for certain.
std::int64_t end_of(const Operation& operation) {
  return operation.outcome == Outcome::unknown ? kNever : operation.returned;
}

std::optional<std::int64_t> number_of(const Value& value) {
  if (!value) return 0;
  std::int64_t number = 0;
  const char* const end = value->data() + value->size();
  const auto read = std::from_chars(value->data(), end, number);
  if (read.ec != std::errc{} || read.ptr != end) return std::nullopt;
  return number;
}

/// The time at which a violation could be known: that of the last event it rests on.
std::int64_t known_at(const Violation& violation) {
  std::int64_t at = kBeforeAll;
  for (const Operation& operation : violation.operations) at = std::max(at, operation.invoked);
  return at;
}

std::map<std::string, std::vector<Operation>> by_key(std::span<const Operation> history) {
  std::map<std::string, std::vector<Operation>> keys;
  for (const Operation& operation : history) keys[operation.key].push_back(operation);
  return keys;
}

/// A write and the reads of what it wrote. Without a write: the key before the first one.
struct Cluster {
  const Operation* write = nullptr;
  const Operation* first_to_return = nullptr;
  const Operation* last_invoked = nullptr;

  /// Where its zone is: at first_return its value has been in place for certain, at last_invocation
  /// it is still, or not yet.
  [[nodiscard]] std::int64_t first_return() const {
    return write == nullptr ? kBeforeAll : end_of(*first_to_return);
  }
  [[nodiscard]] std::int64_t last_invocation() const {
    return last_invoked == nullptr ? kBeforeAll : last_invoked->invoked;
  }
  [[nodiscard]] bool forward() const { return first_return() < last_invocation(); }
  void add(const Operation& operation) {
    if (first_to_return == nullptr || end_of(operation) < end_of(*first_to_return))
      first_to_return = &operation;
    if (last_invoked == nullptr || operation.invoked > last_invoked->invoked)
      last_invoked = &operation;
  }
};

Violation explain(const Cluster& a, const Cluster& b) {
  Violation violation;
  violation.key = (a.write != nullptr ? a.write : b.write)->key;
  const auto value = [](const Cluster& c) {
    return c.write == nullptr ? shown({}) : shown(c.write->value);
  };
  violation.what = "by these operations " + value(a) + " was there before " + value(b) +
                   ", and also " + value(b) + " before " + value(a) +
                   ": a read of what had been overwritten, or a write that was lost";
  for (const Operation* shown_one :
       {a.first_to_return, b.last_invoked, b.first_to_return, a.last_invoked})
    if (shown_one != nullptr) violation.operations.push_back(*shown_one);
  return violation;
}

}  // namespace

std::string to_string(const Operation& operation) {
  std::string text = "client " + std::to_string(operation.client) + ": " +
                     std::string(name_of(operation.kind)) + " " + operation.key;
  if (operation.kind == Kind::set)
    text += " = " + shown(operation.value);
  else if (operation.outcome == Outcome::ok)
    text += " -> " + shown(operation.value);
  text += ", from " + seconds(operation.invoked);
  switch (operation.outcome) {
    case Outcome::ok: return text + " to " + seconds(operation.returned) + " s";
    case Outcome::failed: return text + " to " + seconds(operation.returned) + " s, refused";
    case Outcome::unknown: return text + " s, unknown whether done";
  }
  return text;
}

std::string Violation::to_string() const {
  std::string text = "key " + key + ": " + what;
  auto in_order = operations;
  std::ranges::stable_sort(in_order, {}, &Operation::invoked);
  for (const Operation& operation : in_order) text += "\n  " + test::to_string(operation);
  return text;
}

std::string Verdict::to_string() const {
  std::string text =
      std::to_string(operations) + " operations on " + std::to_string(keys) + " keys";
  if (violation) return text + "; not linearizable: " + violation->to_string();
  if (undecided.empty()) return text + ", linearizable";
  text += "; nothing found, but given up on";
  for (const std::string& key : undecided) text += " " + key;
  return text;
}

bool has_unique_writes(std::span<const Operation> operations) {
  std::set<std::string_view> written;
  for (const Operation& operation : operations) {
    if (operation.kind == Kind::get || operation.outcome == Outcome::failed) continue;
    if (operation.kind != Kind::set || !written.insert(*operation.value).second) return false;
  }
  return true;
}

std::optional<Violation> zones(std::span<const Operation> operations) {
  std::unordered_map<std::string_view, Cluster> clusters;
  std::unordered_map<std::string_view, const Operation*> refused;
  Cluster absent;
  for (const Operation& operation : operations) {
    if (operation.kind != Kind::set) continue;
    if (operation.outcome == Outcome::failed) {
      refused.emplace(*operation.value, &operation);
      continue;
    }
    Cluster& cluster = clusters[*operation.value];
    cluster.write = &operation;
    cluster.add(operation);
  }
  for (const Operation& read : operations) {
    if (read.kind != Kind::get || read.outcome != Outcome::ok) continue;
    if (!read.value) {
      absent.add(read);
      continue;
    }
    const auto found = clusters.find(*read.value);
    if (found == clusters.end()) {
      if (const auto it = refused.find(*read.value); it != refused.end())
        return Violation{read.key, "a write that was refused was read", {*it->second, read}};
      return Violation{read.key, "nobody wrote what was read", {read}};
    }
    if (read.returned < found->second.write->invoked)
      return Violation{read.key, "it was read before it was written", {read, *found->second.write}};
    found->second.add(read);
  }
  // Forward zones may not overlap; a backward one may not lie within a forward one. A write of
  // unknown outcome that nobody has read has a zone that never ends, which lies within none.
  std::vector<const Cluster*> forward, backward;
  if (absent.last_invoked != nullptr) forward.push_back(&absent);
  for (const auto& [value, cluster] : clusters)
    (cluster.forward() ? forward : backward).push_back(&cluster);
  std::ranges::sort(forward, {}, &Cluster::first_return);
  std::optional<Violation> first;
  const auto found = [&](const Cluster& a, const Cluster& b) {
    Violation violation = explain(a, b);
    if (!first || known_at(violation) < known_at(*first)) first = std::move(violation);
  };
  for (std::size_t i = 1; i < forward.size(); ++i)
    if (forward[i]->first_return() < forward[i - 1]->last_invocation())
      found(*forward[i - 1], *forward[i]);
  if (first) return first;  // what follows wants zones that do not overlap
  for (const Cluster* inner : backward) {
    // The last zone that begins before the inner one does is the only one that may hold it.
    const auto after =
        std::ranges::lower_bound(forward, inner->last_invocation(), {}, &Cluster::first_return);
    if (after == forward.begin()) continue;
    const Cluster* const outer = *(after - 1);
    if (inner->first_return() < outer->last_invocation()) found(*outer, *inner);
  }
  return first;
}

namespace {

/// The search over one key. A place: a value that the key may have now, and which of the operations
/// in progress have taken effect by then.
class Search {
 public:
  Search(std::span<const Operation> operations, std::size_t places_max)
      : places_max_(places_max), operations_(needed(operations)) {}

  std::optional<Violation> run(bool& undecided) {
    struct Event {
      std::int64_t at;
      bool is_return;
      std::uint32_t operation;
    };
    std::vector<Event> events;
    for (std::uint32_t i = 0; i < operations_.size(); ++i) {
      events.push_back({operations_[i].invoked, false, i});
      if (operations_[i].outcome == Outcome::ok)
        events.push_back({operations_[i].returned, true, i});
    }
    // At the same time, invocations first: what touches may overlap.
    std::ranges::stable_sort(events, [](const Event& a, const Event& b) {
      return std::pair(a.at, a.is_return) < std::pair(b.at, b.is_return);
    });
    places_ = {Place{0, {}}};
    for (const Event& event : events) {
      if (!event.is_return) {
        in_progress_.push_back(event.operation);
        continue;
      }
      std::set<Place> after = all_with(event.operation);
      if (gave_up_) {
        undecided = true;
        return std::nullopt;
      }
      if (after.empty()) return explain(event.operation);
      places_ = std::move(after);
      std::erase(in_progress_, event.operation);
      returned_.push_back(event.operation);
      if (returned_.size() > kShownBefore) returned_.pop_front();
    }
    return std::nullopt;
  }

 private:
  struct Place {
    std::uint32_t value;              ///< an index into values_
    std::vector<std::uint32_t> done;  ///< of those in progress, ascending
    auto operator<=>(const Place&) const = default;
  };

  /// Leaves out what says nothing: what was refused, reads without an answer, and writes of unknown
  /// outcome of which no answer tells. The last are many in a history with faults, and each would
  /// double the places.
  static std::vector<Operation> needed(std::span<const Operation> operations) {
    std::set<std::string_view> read;
    bool all_matter = false;
    for (const Operation& operation : operations) {
      if (operation.outcome == Outcome::failed) continue;
      if (operation.kind == Kind::get && operation.outcome == Outcome::ok && operation.value)
        read.insert(*operation.value);
      all_matter |= operation.kind == Kind::incr || operation.kind == Kind::del;
    }
    std::vector<Operation> kept;
    for (const Operation& operation : operations) {
      if (operation.outcome == Outcome::failed) continue;
      if (operation.outcome == Outcome::unknown) {
        if (operation.kind == Kind::get) continue;
        if (operation.kind == Kind::set && !all_matter && !read.contains(*operation.value))
          continue;
      }
      kept.push_back(operation);
    }
    // By invocation, so that equals in progress are in the order of their numbers.
    std::ranges::stable_sort(kept, {}, &Operation::invoked);
    return kept;
  }

  std::uint32_t intern(const Value& value) {
    const auto [it, is_new] =
        value_numbers_.try_emplace(value, static_cast<std::uint32_t>(values_.size()));
    if (is_new) values_.push_back(value);
    return it->second;
  }

  /// The value after the operation, had it taken effect on `before`; nothing: it cannot have given
  /// its answer there.
  std::optional<std::uint32_t> after(const Operation& operation, std::uint32_t before) {
    const Value value = values_[before];
    switch (operation.kind) {
      case Kind::get:
        if (operation.value != value) return std::nullopt;
        return before;
      case Kind::set: return intern(operation.value);
      case Kind::del:
        if (operation.value && (*operation.value == "1") != value.has_value()) return std::nullopt;
        return intern(std::nullopt);
      case Kind::incr: {
        const auto number = number_of(value);
        if (!number || *number == kNever) return std::nullopt;
        const std::string next = std::to_string(*number + 1);
        if (operation.value && *operation.value != next) return std::nullopt;
        return intern(next);
      }
    }
    return std::nullopt;
  }

  /// All places that can be reached by putting operations in progress in order until `target` is
  /// done.
  std::set<Place> all_with(std::uint32_t target) {
    std::set<Place> seen = places_, reached;
    std::vector<Place> open(places_.begin(), places_.end());
    while (!open.empty()) {
      const Place place = std::move(open.back());
      open.pop_back();
      if (const auto at = std::ranges::lower_bound(place.done, target);
          at != place.done.end() && *at == target) {
        Place without = place;  // it has returned: nobody will ask again
        without.done.erase(without.done.begin() + (at - place.done.begin()));
        reached.insert(std::move(without));
        continue;
      }
      // One that never returns can stand for any later one like it: of those that are alike only
      // the first that is not done is tried.
      std::vector<const Operation*> tried;
      for (const std::uint32_t next : in_progress_) {
        if (std::ranges::binary_search(place.done, next)) continue;
        const Operation& operation = operations_[next];
        if (operation.outcome == Outcome::unknown) {
          if (std::ranges::any_of(tried, [&](const Operation* other) {
                return other->kind == operation.kind && other->value == operation.value;
              }))
            continue;
          tried.push_back(&operation);
        }
        const auto value = after(operation, place.value);
        if (!value) continue;
        Place there{*value, place.done};
        there.done.insert(std::ranges::upper_bound(there.done, next), next);
        if (seen.insert(there).second) open.push_back(std::move(there));
      }
      if (seen.size() > places_max_) {
        gave_up_ = true;
        return {};
      }
    }
    return reached;
  }

  Violation explain(std::uint32_t target) const {
    Violation violation;
    violation.key = operations_[target].key;
    std::set<std::string> before;
    for (const Place& place : places_) before.insert(shown(values_[place.value]));
    violation.what = "no order explains the last of these operations to return";
    constexpr std::size_t kValuesShown = 5;
    std::string list;
    std::size_t count = 0;
    for (const std::string& value : before)
      if (++count <= kValuesShown) list += (list.empty() ? "" : ", ") + value;
    violation.what += "; what was answered before it leaves " + list +
                      (count > kValuesShown ? ", ..." : "") + " as the value";
    for (const std::uint32_t index : returned_) violation.operations.push_back(operations_[index]);
    for (const std::uint32_t index : in_progress_)
      violation.operations.push_back(operations_[index]);
    return violation;
  }

  const std::size_t places_max_;
  const std::vector<Operation> operations_;
  std::vector<Value> values_{std::nullopt};
  std::map<Value, std::uint32_t> value_numbers_{{std::nullopt, 0}};
  std::set<Place> places_;
  std::vector<std::uint32_t> in_progress_;
  std::deque<std::uint32_t> returned_;
  bool gave_up_ = false;
};

}  // namespace

std::optional<Violation> search(std::span<const Operation> operations, bool& undecided,
                                std::size_t states_max) {
  undecided = false;
  return Search(operations, states_max).run(undecided);
}

Verdict check(std::span<const Operation> history) {
  Verdict verdict;
  for (const auto& [key, operations] : by_key(history)) {
    ++verdict.keys;
    verdict.operations += operations.size();
    bool undecided = false;
    auto violation =
        has_unique_writes(operations) ? zones(operations) : search(operations, undecided);
    if (undecided) verdict.undecided.push_back(key);
    if (violation && (!verdict.violation || known_at(*violation) < known_at(*verdict.violation)))
      verdict.violation = std::move(violation);
  }
  return verdict;
}

namespace {

/// The last acknowledged SET that came after `end` for certain.
const Operation* lost_after(std::span<const Operation> operations, std::int64_t end) {
  const Operation* lost = nullptr;
  for (const Operation& operation : operations)
    if (operation.kind == Kind::set && operation.outcome == Outcome::ok &&
        operation.invoked > end && (lost == nullptr || operation.invoked > lost->invoked))
      lost = &operation;
  return lost;
}

std::optional<Violation> lost_set(std::span<const Operation> operations, const Value& at_the_end) {
  const std::string& key = operations.front().key;
  const std::string there = "; at the end there is " + shown(at_the_end);
  if (!at_the_end) {
    if (const Operation* lost = lost_after(operations, kBeforeAll))
      return Violation{key, "an acknowledged write is lost" + there, {*lost}};
    return std::nullopt;
  }
  // The same value may have been written more than once: the last write of it that may have
  // happened counts.
  const Operation* source = nullptr;
  for (const Operation& operation : operations)
    if (operation.kind == Kind::set && operation.outcome != Outcome::failed &&
        operation.value == at_the_end && (source == nullptr || end_of(operation) > end_of(*source)))
      source = &operation;
  if (source == nullptr) return Violation{key, "nobody wrote what is there" + there, {}};
  if (const Operation* lost = lost_after(operations, end_of(*source)))
    return Violation{key, "an acknowledged write is lost" + there, {*source, *lost}};
  return std::nullopt;
}

std::optional<Violation> lost_incr(std::span<const Operation> operations, const Value& at_the_end) {
  const std::string& key = operations.front().key;
  std::int64_t possible = 0;
  const Operation* highest = nullptr;
  for (const Operation& operation : operations) {
    if (operation.kind != Kind::incr || operation.outcome == Outcome::failed) continue;
    ++possible;
    if (operation.outcome == Outcome::ok &&
        (highest == nullptr || number_of(operation.value) > number_of(highest->value)))
      highest = &operation;
  }
  const auto number = number_of(at_the_end);
  const std::string there = "; at the end there is " + shown(at_the_end);
  if (!number || *number > possible)
    return Violation{key, "more than was ever counted" + there, {}};
  if (highest != nullptr && *number < number_of(highest->value))
    return Violation{key, "an acknowledged INCR is lost" + there, {*highest}};
  return std::nullopt;
}

}  // namespace

std::optional<Violation> check_nothing_lost(
    std::span<const Operation> history,
    const std::map<std::string, std::optional<std::string>>& at_the_end) {
  for (const auto& entry : by_key(history)) {
    const std::vector<Operation>& operations = entry.second;
    const auto found = at_the_end.find(entry.first);
    if (found == at_the_end.end()) continue;
    const auto has = [&](Kind kind) {
      return std::ranges::any_of(operations, [&](const Operation& o) { return o.kind == kind; });
    };
    if (has(Kind::del) || (has(Kind::set) && has(Kind::incr))) continue;
    auto violation = has(Kind::incr) ? lost_incr(operations, found->second)
                                     : lost_set(operations, found->second);
    if (violation) return violation;
  }
  return std::nullopt;
}

std::string listing(std::span<const Operation> history, const std::string& key,
                    std::size_t lines_max) {
  std::vector<const Operation*> chosen;
  for (const Operation& operation : history)
    if (operation.key == key) chosen.push_back(&operation);
  std::ranges::stable_sort(chosen, {}, [](const Operation* o) { return o->invoked; });
  std::string text;
  const std::size_t from = chosen.size() > lines_max ? chosen.size() - lines_max : 0;
  if (from > 0) text += std::to_string(from) + " before these\n";
  for (std::size_t i = from; i < chosen.size(); ++i) text += to_string(*chosen[i]) + "\n";
  return text;
}

}  // namespace sluice::kv::test
