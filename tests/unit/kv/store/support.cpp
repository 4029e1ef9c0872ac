// SPDX-License-Identifier: BSD-3-Clause
#include "support.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <utility>

namespace sluice::kv::test {
namespace {

template <typename T>
T require(Result<T> result) {
  if (!result) throw std::runtime_error(result.status().to_string());
  return std::move(*result);
}

}  // namespace

StoreOptions options() {
  StoreOptions options;
  options.cluster_id = kCluster;
  options.write_buffer_bytes = 64 << 10;  // the least: files are written often
  return options;
}

std::unique_ptr<Store> open(const std::string& folder, StoreOptions with) {
  return require(Store::open(folder, std::move(with)));
}

std::vector<Outcome> apply_to(Store& store, std::span<const Write> writes) {
  std::vector<std::vector<std::byte>> payloads;
  for (const Write& write : writes) payloads.push_back(write.encode());
  std::vector<Store::Entry> entries;
  for (const auto& payload : payloads) {
    const std::uint64_t index = store.applied_index() + entries.size() + 1;
    entries.push_back({epoch_at(index), index, payload});
  }
  return require(store.apply(entries));
}

Outcome apply_to(Store& store, const Write& write) {
  return apply_to(store, std::span(&write, 1)).at(0);
}

Write set(std::string key, std::string value) {
  return {CommandKind::set, {std::move(key)}, {std::move(value)}, 0};
}

Write incr(std::string key, std::int64_t summand) {
  return {CommandKind::incr_by, {std::move(key)}, {}, summand};
}

Write del(std::vector<std::string> keys) {
  return {CommandKind::del, std::move(keys), {}, 0};
}

std::string value_of(const Store& store, const std::string& key) {
  std::string value;
  return require(store.get(key, value)) ? value : "(none)";
}

std::string difference(const Store& store, const Model& model) {
  std::vector<std::string> keys{""};
  for (int i = 0; i < 40; ++i) keys.push_back("key" + std::to_string(i));
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  const auto values = require(store.mget(views));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto wanted = model.content.find(keys[i]);
    const bool there = wanted != model.content.end();
    if (values[i].has_value() != there)
      return "'" + keys[i] + "' is " + (there ? "missing" : "there, and should not be");
    if (there && *values[i] != wanted->second) return "'" + keys[i] + "' has another value";
  }
  return {};
}

Model model_at(std::uint64_t seed, std::uint64_t index, std::size_t value_bytes_max) {
  Model model;
  for (std::uint64_t i = 1; i <= index; ++i) model.apply(write_at(seed, i, value_bytes_max));
  return model;
}

Child::Child(const std::vector<std::string>& arguments) {
  std::vector<std::string> words{KV_STORE_CHILD};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  const int error = posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  out_ = ends[0];
  if (error != 0) throw std::runtime_error("cannot start " + words[0]);
}

Child::~Child() {
  if (pid_ > 0) {
    kill();
    (void)wait();
  }
  ::close(out_);
}

std::string Child::line() {
  for (;;) {  // bound: what the child says
    if (const auto end = read_.find('\n'); end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      return line;
    }
    char piece[512];
    const ssize_t got = ::read(out_, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return {};
    read_.append(piece, static_cast<std::size_t>(got));
  }
}

void Child::kill() const {
  ::kill(pid_, SIGKILL);
}

int Child::wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace sluice::kv::test
