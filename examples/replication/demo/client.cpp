// SPDX-License-Identifier: BSD-3-Clause
#include "client.hpp"

#include <fmt/format.h>
#include <hiredis/hiredis.h>

#include <cerrno>
#include <charconv>
#include <string_view>

namespace demo {
namespace {

using sluice::Result;
using sluice::Status;
using sluice::StatusCode;

timeval as_timeval(std::chrono::milliseconds time) {
  return {time.count() / 1000, time.count() % 1000 * 1000};
}

Reply as_reply(const redisReply& reply) {
  const std::string text(reply.str == nullptr ? "" : reply.str, reply.len);
  switch (reply.type) {
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS: return {Reply::Kind::text, text};
    case REDIS_REPLY_ERROR: return {Reply::Kind::error, text};
    case REDIS_REPLY_NIL: return {Reply::Kind::nothing, "(nil)"};
    default: return {Reply::Kind::other, fmt::format("(a reply of type {})", reply.type)};
  }
}

}  // namespace

void Client::Free::operator()(redisContext* context) const noexcept {
  redisFree(context);
}

Result<Client> Client::connect(const std::string& host, std::uint16_t port,
                               std::chrono::milliseconds limit) {
  Client client(redisConnectWithTimeout(host.c_str(), port, as_timeval(limit)));
  if (client.context_ == nullptr) return Status(StatusCode::resource_exhausted, "no memory");
  if (client.context_->err != 0)
    return Status(StatusCode::unreachable,
                  fmt::format("{}:{}: {}", host, port, client.context_->errstr));
  redisSetTimeout(client.context_.get(), as_timeval(limit));
  return client;
}

Result<std::vector<Reply>> Client::ask_all(const std::vector<std::vector<std::string>>& commands) {
  for (const auto& command : commands) {
    std::vector<const char*> words;
    std::vector<std::size_t> lengths;
    for (const std::string& word : command) {
      words.push_back(word.data());
      lengths.push_back(word.size());
    }
    if (redisAppendCommandArgv(context_.get(), static_cast<int>(words.size()), words.data(),
                               lengths.data()) != REDIS_OK)
      return Status(StatusCode::resource_exhausted, context_->errstr);
  }
  std::vector<Reply> replies;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    void* reply = nullptr;
    if (redisGetReply(context_.get(), &reply) != REDIS_OK)
      return Status(StatusCode::connection_lost, context_->errstr);
    replies.push_back(as_reply(*static_cast<redisReply*>(reply)));
    freeReplyObject(reply);
  }
  return replies;
}

Result<Reply> Client::ask(const std::vector<std::string>& command) {
  auto replies = ask_all({command});
  if (!replies) return replies.status();
  return std::move(replies->front());
}

std::optional<Address> moved_to(const Reply& reply) {
  constexpr std::string_view kMoved = "MOVED 0 ";
  if (reply.kind != Reply::Kind::error || !reply.text.starts_with(kMoved)) return std::nullopt;
  const std::string where = reply.text.substr(kMoved.size());
  const std::size_t colon = where.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  Address address{where.substr(0, colon), 0};
  const char* const end = where.data() + where.size();
  const auto [stopped, error] = std::from_chars(where.data() + colon + 1, end, address.port);
  if (error != std::errc{} || stopped != end) return std::nullopt;
  return address;
}

}  // namespace demo
