// SPDX-License-Identifier: BSD-3-Clause
#include "client.hpp"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <charconv>
#include <thread>
#include <utility>

namespace sluice::kv::test {
namespace {

using Clock = std::chrono::steady_clock;

/// What a polite client waits before it asks again a cluster that has no primary.
constexpr std::chrono::milliseconds kBetweenTries{10};

timeval to_timeval(std::chrono::milliseconds time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  return {seconds.count(), std::chrono::microseconds(time - seconds).count()};
}

Reply to_reply(const redisReply& from) {
  using Type = Reply::Type;
  Reply reply;
  switch (from.type) {
    case REDIS_REPLY_ERROR: reply.type = Type::error; break;
    case REDIS_REPLY_INTEGER: reply.type = Type::integer; break;
    case REDIS_REPLY_ARRAY: reply.type = Type::array; break;
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS: reply.type = Type::text; break;
    default: break;
  }
  if (reply.type == Type::error || reply.type == Type::text) reply.text.assign(from.str, from.len);
  if (reply.type == Type::integer) reply.integer = from.integer;
  if (reply.type == Type::array)
    for (std::size_t i = 0; i < from.elements; ++i)
      reply.elements.push_back(to_reply(*from.element[i]));
  return reply;
}

struct Arguments {
  explicit Arguments(const Words& words) {
    for (const std::string& word : words) {
      data.push_back(word.data());
      sizes.push_back(word.size());
    }
  }
  [[nodiscard]] int count() const { return static_cast<int>(data.size()); }
  std::vector<const char*> data;
  std::vector<std::size_t> sizes;
};

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(at), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

}  // namespace

std::optional<Address> Address::parse(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  Address address{std::string(text.substr(0, colon)), 0};
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data() + colon + 1, end, address.port);
  if (read.ec != std::errc{} || read.ptr != end) return std::nullopt;
  return address;
}

bool Reply::is_error(std::string_view code) const {
  return is_error() && (text == code || text.starts_with(std::string(code) + " "));
}

std::optional<std::string> Reply::value() const {
  if (type == Type::null) return std::nullopt;
  return type == Type::integer ? std::to_string(integer) : text;
}

std::string Reply::to_string() const {
  switch (type) {
    case Type::null: return "(nothing)";
    case Type::text: return text;
    case Type::integer: return std::to_string(integer);
    case Type::error: return "error " + text;
    case Type::array: break;
  }
  std::string all;
  for (const Reply& element : elements) all += (all.empty() ? "[" : ", ") + element.to_string();
  return (all.empty() ? "[" : all) + "]";
}

void Connection::Free::operator()(redisContext* context) const noexcept {
  redisFree(context);
}

Connection::Connection(const Address& to, std::chrono::milliseconds timeout)
    : context_(redisConnectWithTimeout(to.host.c_str(), to.port, to_timeval(timeout))) {
  if (context_ != nullptr &&
      (context_->err != 0 || redisSetTimeout(context_.get(), to_timeval(timeout)) != REDIS_OK))
    context_.reset();
}

Connection::~Connection() = default;
Connection::Connection(Connection&&) noexcept = default;
Connection& Connection::operator=(Connection&&) noexcept = default;

std::optional<Reply> Connection::call(const Words& words) {
  send_later(words);
  return receive();
}

void Connection::send_later(const Words& words) {
  Arguments arguments(words);
  if (context_ != nullptr)
    redisAppendCommandArgv(context_.get(), arguments.count(), arguments.data.data(),
                           arguments.sizes.data());
}

void Connection::flush() {
  for (int all_sent = 0; context_ != nullptr && all_sent == 0;)
    if (redisBufferWrite(context_.get(), &all_sent) != REDIS_OK) context_.reset();
}

std::optional<Reply> Connection::receive() {
  void* got = nullptr;
  if (context_ == nullptr || redisGetReply(context_.get(), &got) != REDIS_OK) {
    context_.reset();
    return std::nullopt;
  }
  Reply reply = to_reply(*static_cast<redisReply*>(got));
  freeReplyObject(got);
  return reply;
}

// --- INFO --------------------------------------------------------------------------------------

Info::Info(const std::string& text) : text_(text) {}

std::string Info::operator[](std::string_view key) const {
  for (std::string_view line : split(text_, '\n')) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == ':')
      return std::string(line.substr(key.size() + 1));
  }
  return {};
}

std::uint64_t Info::number(std::string_view key) const {
  const std::string text = (*this)[key];
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

std::vector<std::string> Info::list(std::string_view key) const {
  const std::string text = (*this)[key];
  std::vector<std::string> members;
  for (const std::string_view member : split(text, ',')) members.emplace_back(member);
  std::ranges::sort(members);
  return members;
}

std::string Info::replica(std::string_view node, std::string_view field) const {
  const std::uint64_t count = number("connected_replicas");
  // Replicas that are away may be listed behind the connected ones.
  constexpr std::uint64_t kReplicasMax = 64;
  for (std::uint64_t i = 0; i < std::max(count, kReplicasMax); ++i) {
    const std::string line = (*this)["replica" + std::to_string(i)];
    bool is_it = false;
    std::string value;
    for (const std::string_view part : split(line, ',')) {
      is_it |= part == "node=" + std::string(node);
      if (part.starts_with(field) && part.size() > field.size() && part[field.size()] == '=')
        value = part.substr(field.size() + 1);
    }
    if (is_it) return value;
  }
  return {};
}

// --- a client of the cluster -------------------------------------------------------------------

std::optional<Reply> ClusterClient::connect() {
  if (connection_) return std::nullopt;
  Connection made(node(), options_.answer_timeout);
  Reply cut{Reply::Type::error, "no connection", 0, {}};
  if (!made.connected()) return cut;
  const auto asked = [&](const Words& words) -> std::optional<Reply> {
    auto reply = made.call(words);
    if (!reply) return cut;
    return reply->is_error() ? reply : std::nullopt;
  };
  if (!options_.password.empty())
    if (auto refused = asked({"AUTH", options_.password})) return refused;
  if (!options_.durability.empty())
    if (auto refused = asked({"DURABILITY", options_.durability})) return refused;
  connection_ = std::move(made);
  return std::nullopt;
}

void ClusterClient::go_to(const Address& node) {
  connection_.reset();
  const auto known = std::ranges::find(options_.nodes, node);
  at_ = static_cast<std::size_t>(known - options_.nodes.begin());
  if (known == options_.nodes.end()) options_.nodes.push_back(node);
}

void ClusterClient::go_to_another() {
  connection_.reset();
  at_ = (at_ + 1) % options_.nodes.size();
}

Answer ClusterClient::run(const Words& words, bool again_if_unknown) {
  const auto deadline = Clock::now() + options_.patience;
  Answer answer;
  while (Clock::now() < deadline) {
    if (auto refused = connect()) {
      answer.reply = std::move(*refused);
    } else if (auto reply = connection_->call(words)) {
      answer.reply = std::move(*reply);
      if (!answer.reply.is_error()) {
        answer.outcome = Outcome::ok;
        return answer;
      }
      if (answer.reply.is_error("UNCERTAIN") && !again_if_unknown) {
        answer.outcome = Outcome::unknown;
        return answer;
      }
    } else {
      answer.reply = {Reply::Type::error, "cut off", 0, {}};
      if (!again_if_unknown) {
        go_to_another();
        answer.outcome = Outcome::unknown;
        return answer;
      }
    }
    const Reply& error = answer.reply;
    if (error.is_error("MOVED")) {
      const auto named = Address::parse(error.text.substr(error.text.rfind(' ') + 1));
      // Two that name each other for a while are asked slowly, too.
      if (named) {
        if (*named == node()) std::this_thread::sleep_for(kBetweenTries);
        go_to(*named);
        continue;
      }
    }
    // LOADING: a Redis that has just started.
    const bool nothing_was_done = error.is_error("CLUSTERDOWN") || error.is_error("NOREPLICAS") ||
                                  error.is_error("LOADING") || error.is_error("UNCERTAIN") ||
                                  error.text == "no connection" || error.text == "cut off";
    if (!nothing_was_done) return answer;  // a request that is wrong, now and later
    if (!error.is_error("NOREPLICAS")) go_to_another();
    std::this_thread::sleep_for(kBetweenTries);
  }
  return answer;
}

}  // namespace sluice::kv::test
