// SPDX-License-Identifier: BSD-3-Clause
// What is killed in the tests of the store.
//
//   kv_store_child apply FOLDER SEED VALUE_BYTES_MAX   applies the log of that seed from where the
//       store is, for ever: says "applied N" and "durable N" as it goes
//   kv_store_child install FOLDER CHECKPOINT STEP      installs it, and kills itself before STEP
//   kv_store_child create FOLDER STEP                  makes a store, likewise
//   kv_store_child full FOLDER                         writes until no file may grow any more, says
//       what the store says of it; then files may grow again, and it goes on
#include <signal.h>
#include <sys/resource.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "kv/store/store.hpp"
#include "workload.hpp"

using namespace sluice;
using namespace sluice::kv;
using namespace sluice::kv::test;

namespace {

constexpr std::uint64_t kCluster = 7;
constexpr std::size_t kWriteBuffer = 64 << 10;

StoreOptions options(const std::string& fatal_step = {}) {
  StoreOptions options;
  options.cluster_id = kCluster;
  options.write_buffer_bytes = kWriteBuffer;
  options.on_step = [fatal_step](std::string_view step) {
    if (step == fatal_step) ::raise(SIGKILL);
    return Status();
  };
  return options;
}

void say(const char* what, std::uint64_t number) {
  std::printf("%s %llu\n", what, static_cast<unsigned long long>(number));
}

int fail(const Status& status) {
  std::fprintf(stderr, "kv_store_child: %s\n", status.to_string().c_str());
  return 1;
}

/// Batches of up to 16 entries.
Status apply_some(Store& store, std::uint64_t seed, std::size_t value_bytes_max,
                  std::mt19937_64& random) {
  std::vector<std::vector<std::byte>> payloads;
  std::vector<Store::Entry> entries;
  const std::uint64_t count = 1 + random() % 16;
  for (std::uint64_t i = 1; i <= count; ++i)
    payloads.push_back(write_at(seed, store.applied_index() + i, value_bytes_max).encode());
  for (const auto& payload : payloads) {
    const std::uint64_t index = store.applied_index() + entries.size() + 1;
    entries.push_back({epoch_at(index), index, payload});
  }
  return store.apply(entries).status();
}

int apply_for_ever(const std::string& folder, std::uint64_t seed, std::size_t value_bytes_max) {
  auto store = Store::open(folder, options());
  if (!store) return fail(store.status());
  std::mt19937_64 random(std::random_device{}());
  for (;;) {  // bound: it is killed
    if (const Status status = apply_some(**store, seed, value_bytes_max, random); !status.ok())
      return fail(status);
    say("applied", (*store)->applied_index());
    const auto durable = (*store)->durable_applied_index();
    if (!durable) return fail(durable.status());
    say("durable", *durable);
    std::fflush(stdout);
    if (random() % 64 == 0) {
      if (const Status status = (*store)->flush(random() % 2 == 0); !status.ok())
        return fail(status);
    }
  }
}

int install(const std::string& folder, const std::string& checkpoint, const std::string& step) {
  auto store = Store::open(folder, options(step));
  if (!store) return fail(store.status());
  if (const Status status = (*store)->install_checkpoint(checkpoint); !status.ok())
    return fail(status);
  return 0;
}

int create(const std::string& folder, const std::string& step) {
  const auto store = Store::open(folder, options(step));
  return store ? 0 : fail(store.status());
}

int fill_up(const std::string& folder) {
  constexpr rlim_t kFileBytesMax = 256 << 10;
  ::signal(SIGXFSZ, SIG_IGN);  // write(2) fails then
  auto store = Store::open(folder, options());
  if (!store) return fail(store.status());
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  const rlim_t hard = limit.rlim_max;
  const auto let_files_grow_to = [&](rlim_t bytes) {
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  };
  std::mt19937_64 random(1);
  const auto apply_one = [&](std::size_t value_bytes) {
    Write write{CommandKind::set, {"key"}, {std::string(value_bytes, ' ')}, 0};
    for (char& c : write.values[0]) c = static_cast<char>(random());
    const auto payload = write.encode();
    const Store::Entry entry{1, (*store)->applied_index() + 1, payload};
    return (*store)->apply({&entry, 1}).status();
  };
  let_files_grow_to(kFileBytesMax);
  Status status;
  constexpr int kWritesMax = 1000;  // far more than fit
  for (int i = 0; i < kWritesMax && status.ok(); ++i)
    status = apply_one(std::size_t{512} << 10);  // a memtable each, and a file that cannot be
  std::printf("failed: %s\n", status.to_string().c_str());
  std::printf("health: %s\n", (*store)->health().to_string().c_str());
  const std::uint64_t applied = (*store)->applied_index();
  std::string value;
  const auto read = (*store)->get("key", value);
  std::printf("reads: %s\n", read && *read && value.size() == (512 << 10) ? "ok" : "failed");
  let_files_grow_to(hard);
  // RocksDB does not go on by itself after this kind of failure.
  status = apply_one(10);
  std::printf("still: %s\n", status.to_string().c_str());
  // The log brings back what was in memory.
  store->reset();
  store = Store::open(folder, options());
  if (!store) return fail(store.status());
  while ((*store)->applied_index() < applied)  // bound: the log
    if (status = apply_one(10); !status.ok()) return fail(status);
  status = apply_one(10);
  std::printf("again: %s, %llu more\n", status.ok() ? "ok" : status.to_string().c_str(),
              static_cast<unsigned long long>((*store)->applied_index() - applied));
  status = (*store)->flush(true);
  std::printf("flushed: %s\n", status.ok() ? "ok" : status.to_string().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 4 && words[0] == "apply")
    return apply_for_ever(words[1], std::stoull(words[2]), std::stoull(words[3]));
  if (words.size() == 4 && words[0] == "install") return install(words[1], words[2], words[3]);
  if (words.size() == 3 && words[0] == "create") return create(words[1], words[2]);
  if (words.size() == 2 && words[0] == "full") return fill_up(words[1]);
  return 2;
}
