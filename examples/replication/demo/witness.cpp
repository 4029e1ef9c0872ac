// SPDX-License-Identifier: BSD-3-Clause
#include "witness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace demo {
namespace {

using sluice::Result;
using sluice::Status;

/// Keys that are read back in one go.
constexpr std::uint64_t kReadTogether = 256;

/// A number that looks random and can be had again (the finaliser of MurmurHash3).
std::uint64_t scrambled(std::uint64_t x) noexcept {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

}  // namespace

Witness::Witness(std::uint32_t number, std::vector<std::uint16_t> ports)
    : number_(number), ports_(std::move(ports)), thread_([this] { run(); }) {}

Witness::~Witness() {
  stop();
}

void Witness::stop() {
  stop_.store(true, std::memory_order_relaxed);  // what the thread wrote is seen after join()
  if (thread_.joinable()) thread_.join();
}

std::string Witness::key(std::uint64_t index) const {
  return fmt::format("witness:{}:{}", number_, index);
}

std::string Witness::value(std::uint64_t index) const {
  return fmt::format("{}:{:016x}", index, scrambled((std::uint64_t{number_} << 48) ^ index));
}

void Witness::run() {
  auto last = Clock::now();
  for (std::uint64_t index = 0; !stop_.load(std::memory_order_relaxed);) {  // bound: stop()
    if (!client_ && !connect()) {
      std::this_thread::sleep_for(kAgainAfter);
      continue;
    }
    const Outcome outcome = write(index);
    if (outcome != Outcome::acknowledged) {
      ++repeated_;
      if (outcome == Outcome::elsewhere) client_.reset();
      std::this_thread::sleep_for(kAgainAfter);
      continue;
    }
    acknowledged_.store(++index, std::memory_order_relaxed);
    const auto now = Clock::now();
    if (now - last > longest_pause_.length) longest_pause_ = {now - last, now};
    last = now;
  }
}

/// To the node that is said to lead, else to the next one.
bool Witness::connect() {
  const std::uint16_t port = leader_ ? *leader_ : ports_[next_++ % ports_.size()];
  leader_.reset();
  auto client = Client::connect("127.0.0.1", port, kAnswerLimit);
  if (!client) return false;
  auto reply = client->ask({"DURABILITY", kLevel});
  if (!reply) return false;
  if (reply->kind == Reply::Kind::error) {
    surprise_ = fmt::format("DURABILITY {} was answered: {}", kLevel, reply->text);
    return false;
  }
  client_.emplace(std::move(*client));
  return true;
}

Witness::Outcome Witness::write(std::uint64_t index) {
  auto reply = client_->ask({"SET", key(index), value(index)});
  if (!reply) return Outcome::elsewhere;
  if (reply->kind == Reply::Kind::text && reply->text == "OK") return Outcome::acknowledged;
  if (const auto address = moved_to(*reply)) {
    leader_ = address->port;  // all of them are on this machine
    return Outcome::elsewhere;
  }
  if (reply->text.starts_with("CLUSTERDOWN")) return Outcome::elsewhere;
  if (reply->text.starts_with("NOREPLICAS") || reply->text.starts_with("UNCERTAIN"))
    return Outcome::again;
  surprise_ = fmt::format("SET was answered: {}", reply->text);
  return Outcome::again;
}

Result<Witness::Verdict> Witness::verify(Client& primary, Interrupts& interrupts) const {
  Verdict verdict;
  const std::uint64_t end = acknowledged();
  for (std::uint64_t begin = 0; begin < end; begin += kReadTogether) {
    SLUICE_RETURN_IF_ERROR(interrupts.check());
    std::vector<std::vector<std::string>> commands;
    for (std::uint64_t i = begin; i < std::min(begin + kReadTogether, end); ++i)
      commands.push_back({"GET", key(i)});
    auto replies = primary.ask_all(commands);
    if (!replies) return replies.status();
    for (std::size_t i = 0; i < replies->size(); ++i) {
      const Reply& reply = (*replies)[i];
      if (reply.kind == Reply::Kind::error)
        return Status(sluice::StatusCode::rejected, commands[i][1] + ": " + reply.text);
      ++verdict.looked_for;
      if (reply.kind == Reply::Kind::nothing)
        ++verdict.missing;
      else if (reply.text != value(begin + i))
        ++verdict.wrong;
    }
  }
  return verdict;
}

}  // namespace demo
