// SPDX-License-Identifier: BSD-3-Clause
#include "load.hpp"

#include <algorithm>
#include <random>
#include <set>

namespace sluice::kv::test {

using Clock = std::chrono::steady_clock;

std::int64_t now_ns() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

Load::Load(LoadOptions options) : options_(std::move(options)), clients_(options_.clients) {
  std::uint32_t number = 0;
  for (Client& client : clients_)
    client.thread = std::thread([this, &client, mine = number++] { run(mine, client.history); });
}

std::uint64_t Load::acknowledged() const {
  return acknowledged_.load(std::memory_order_relaxed);
}

bool Load::wait_for_more(std::uint64_t count, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  const std::uint64_t wanted = acknowledged() + count;
  constexpr std::chrono::milliseconds kBetweenLooks{5};
  while (acknowledged() < wanted) {
    if (Clock::now() > deadline || !refusal().empty()) return false;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return true;
}

std::string Load::refusal() const {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

void Load::end() {
  ending_.store(true, std::memory_order_relaxed);
  for (Client& client : clients_)
    if (client.thread.joinable()) client.thread.join();
}

std::vector<Operation> Load::stop() {
  end();
  std::vector<Operation> all;
  for (Client& client : clients_) std::ranges::move(client.history, std::back_inserter(all));
  return all;
}

void Load::run(std::uint32_t number, std::vector<Operation>& history) {
  std::mt19937_64 random(options_.seed * 1000 + number);
  const auto below = [&](std::uint64_t n) { return n == 0 ? 0 : random() % n; };
  ClusterClient client(options_.client);
  for (std::uint64_t count = 0; !ending_.load(std::memory_order_relaxed); ++count) {
    Operation operation;
    operation.client = number;
    const std::string id = std::to_string(number) + "-" + std::to_string(count);
    const std::uint64_t what = below(12);
    if (what < 4 && options_.registers > 0) {
      operation.kind = Kind::get;
      operation.key = "register-" + std::to_string(below(options_.registers));
    } else if (what < 7 && options_.registers > 0) {
      operation.kind = Kind::set;
      operation.key = "register-" + std::to_string(below(options_.registers));
    } else if (what < 9 && options_.counters > 0) {
      operation.kind = what == 7 ? Kind::get : Kind::incr;
      operation.key = "counter-" + std::to_string(below(options_.counters));
    } else {
      operation.kind = Kind::set;
      operation.key = "once-" + id;
    }
    if (operation.kind == Kind::set)
      operation.value = id + std::string(below(options_.value_bytes_max), '.');
    Words words;
    switch (operation.kind) {
      case Kind::get: words = {"GET", operation.key}; break;
      case Kind::set: words = {"SET", operation.key, *operation.value}; break;
      case Kind::incr: words = {"INCR", operation.key}; break;
      case Kind::del: words = {"DEL", operation.key}; break;
    }
    operation.invoked = now_ns();
    const bool reads = operation.kind == Kind::get;
    const Answer answer = reads ? client.read(words) : client.write(words);
    operation.returned = now_ns();
    operation.outcome = answer.outcome;
    if (answer.ok() && operation.kind != Kind::set) operation.value = answer.reply.value();
    if (answer.ok() && !reads) acknowledged_.fetch_add(1, std::memory_order_relaxed);
    if (answer.outcome == Outcome::failed) {
      const std::lock_guard lock(mutex_);
      refusal_ = words[0] + " " + words[1] + ": " + answer.reply.to_string();
    }
    history.push_back(std::move(operation));
  }
}

std::optional<std::map<std::string, std::optional<std::string>>> read_all(
    ClusterClient& client, std::vector<Operation>& history) {
  constexpr std::uint32_t kReader = 1000;
  constexpr std::size_t kKeysAtOnce = 100;
  std::set<std::string> names;
  for (const Operation& operation : history) names.insert(operation.key);
  const std::vector<std::string> keys(names.begin(), names.end());
  std::map<std::string, std::optional<std::string>> values;
  for (std::size_t from = 0; from < keys.size(); from += kKeysAtOnce) {
    const std::size_t count = std::min(kKeysAtOnce, keys.size() - from);
    Words words{"MGET"};
    for (std::size_t i = 0; i < count; ++i) words.push_back(keys[from + i]);
    const std::int64_t invoked = now_ns();
    const Answer answer = client.read(words);
    const std::int64_t returned = now_ns();
    if (!answer.ok() || answer.reply.elements.size() != count) return std::nullopt;
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = answer.reply.elements[i].value();
      values[keys[from + i]] = value;
      history.push_back(
          {kReader, Kind::get, Outcome::ok, keys[from + i], value, invoked, returned});
    }
  }
  return values;
}

std::string summary(const std::vector<Operation>& history) {
  const auto count = [&](Outcome outcome) {
    return std::to_string(std::ranges::count(history, outcome, &Operation::outcome));
  };
  return std::to_string(history.size()) + " operations: " + count(Outcome::ok) + " done, " +
         count(Outcome::failed) + " refused, " + count(Outcome::unknown) + " of unknown outcome";
}

Judgement judge(Load& load, const ClientOptions& reader) {
  Judgement out;
  auto history = load.stop();
  if (!load.refusal().empty()) out.wrong += "a client gave up: " + load.refusal() + "\n";
  const auto written = history;
  ClusterClient client(reader);
  const auto at_the_end = read_all(client, history);
  out.summary = summary(history);
  if (!at_the_end) {
    out.wrong += "not every key could be read at the end\n";
    return out;
  }
  if (const Verdict verdict = check(history); !verdict.linearizable())
    out.wrong += verdict.to_string() + "\n";
  if (const auto lost = check_nothing_lost(written, *at_the_end))
    out.wrong += lost->to_string() + "\n";
  return out;
}

}  // namespace sluice::kv::test
