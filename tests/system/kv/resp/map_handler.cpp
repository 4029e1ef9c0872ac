// SPDX-License-Identifier: BSD-3-Clause
#include "map_handler.hpp"

#include <charconv>
#include <cstdint>
#include <utility>

namespace sluice::kv::test {

MapHandler::MapHandler(Where where) : where_(where) {
  if (where == Where::worker) worker_ = std::thread([this] { work(); });
}

MapHandler::~MapHandler() {
  if (!worker_.joinable()) return;
  {
    const std::lock_guard lock(tasks_mutex_);
    ended_ = true;
  }
  tasks_came_.notify_one();
  worker_.join();
}

void MapHandler::handle(const Request& request, Ticket ticket) noexcept {
  if (where_ == Where::io_thread) {
    answer(request.command.id, request.words, ticket.reply());
    std::move(ticket).complete();
    return;
  }
  const std::lock_guard lock(tasks_mutex_);
  tasks_.push_back(
      {request.command.id, Words(request.words.begin(), request.words.end()), std::move(ticket)});
}

void MapHandler::round_done() noexcept {
  if (where_ == Where::worker) tasks_came_.notify_one();
}

void MapHandler::work() {
  CompletionBatch batch;
  for (;;) {
    std::vector<Task> tasks;
    {
      std::unique_lock lock(tasks_mutex_);
      tasks_came_.wait(lock, [&] { return ended_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      tasks.swap(tasks_);
    }
    for (Task& task : tasks) {
      answer(task.id, task.words, task.ticket.reply());
      batch.add(std::move(task.ticket));
    }
    batch.post();
  }
}

template <typename AnyWords>
void MapHandler::answer(CommandId id, const AnyWords& words, ReplyBuilder reply) {
  const std::lock_guard lock(map_mutex_);
  const auto key = [&](std::size_t i) { return std::string(words[i]); };
  std::int64_t count = 0;
  switch (id) {
    case CommandId::set:
      map_[key(1)] = words[2];
      reply.ok();
      break;
    case CommandId::mset:
      for (std::size_t i = 1; i < words.size(); i += 2) map_[key(i)] = words[i + 1];
      reply.ok();
      break;
    case CommandId::get:
    case CommandId::mget:
      if (id == CommandId::mget) reply.array(words.size() - 1);
      for (std::size_t i = 1; i < words.size(); ++i) {
        const auto found = map_.find(key(i));
        found == map_.end() ? reply.null() : reply.bulk(found->second);
      }
      break;
    case CommandId::del:
      for (std::size_t i = 1; i < words.size(); ++i)
        count += static_cast<std::int64_t>(map_.erase(key(i)));
      reply.integer(count);
      break;
    case CommandId::exists:
      for (std::size_t i = 1; i < words.size(); ++i)
        count += static_cast<std::int64_t>(map_.count(key(i)));
      reply.integer(count);
      break;
    case CommandId::incr: increment(words[1], reply); break;
    case CommandId::info:
      reply.bulk("# Keyspace\r\ndb0:keys=" + std::to_string(map_.size()) + "\r\n");
      break;
    case CommandId::wait: reply.integer(0); break;
    default: reply.error("ERR not a data command"); break;
  }
}

void MapHandler::increment(std::string_view key, ReplyBuilder reply) {
  std::string& value = map_.try_emplace(std::string(key), "0").first->second;
  std::int64_t number = 0;
  const auto read = std::from_chars(value.data(), value.data() + value.size(), number);
  if (read.ec != std::errc{} || read.ptr != value.data() + value.size()) {
    reply.error("ERR the value is no integer");
    return;
  }
  value = std::to_string(++number);
  reply.integer(number);
}

}  // namespace sluice::kv::test
