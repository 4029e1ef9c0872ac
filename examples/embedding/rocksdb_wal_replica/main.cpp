// SPDX-License-Identifier: BSD-3-Clause
// Around what wal_shipping.hpp shows: two databases, a load, and a comparison. See README.md.
//
//   softrdma-run rocksdb_wal_replica [WRITES]                   both, each in a process of its own
//   softrdma-run rocksdb_wal_replica replica FOLDER [ADDRESS]   the replica alone
//   softrdma-run rocksdb_wal_replica primary FOLDER PORT [WRITES [ADDRESS]]
#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../support.hpp"
#include "wal_shipping.hpp"

namespace {

using namespace std::chrono_literals;
using namespace sluice;
using namespace sluice::wal_shipping;
using embedding::kDone;
using embedding::kFailed;
using embedding::kUsage;
using embedding::number_in;
using Database = std::unique_ptr<rocksdb::DB>;

constexpr std::uint32_t kWritesDefault = 2000, kWritesMax = 10'000'000;
constexpr std::uint32_t kWritesPerFlush = 500;
constexpr std::uint64_t kWalTtlSeconds = 3600;
constexpr auto kStopTimeout = 5s;

int complain(const std::string& what, int code = kFailed) {
  return embedding::complain("rocksdb_wal_replica", what, code);
}

unsigned long long wide(std::uint64_t number) {
  return number;
}

Result<Database> open(const std::string& folder, rocksdb::Options options, bool read_only = false) {
  options.create_if_missing = !read_only;
  rocksdb::DB* db = nullptr;
  const auto status = read_only ? rocksdb::DB::OpenForReadOnly(options, folder, &db)
                                : rocksdb::DB::Open(options, folder, &db);
  if (!status.ok())
    return Status(StatusCode::io_error, "cannot open " + folder + ": " + status.ToString());
  return Database(db);
}

/// Batches of up to four writes over few keys, and a flush now and then, which is what takes WAL
/// files away. The engine's own thread.
rocksdb::Status write_load(rocksdb::DB& db, Primary& primary, std::uint32_t writes) {
  std::mt19937_64 random(writes);
  for (std::uint32_t i = 0; i < writes; ++i) {
    rocksdb::WriteBatch batch;
    for (std::uint64_t n = 1 + random() % 4; n > 0; --n) {
      const std::string key = "key" + std::to_string(random() % 1000);
      const auto status =
          random() % 8 == 0 ? batch.Delete(key)
                            : batch.Put(key, std::string(random() % 200, 'x') + std::to_string(i));
      if (!status.ok()) return status;
    }
    auto status = db.Write(rocksdb::WriteOptions(), &batch);
    if (status.ok() && i % kWritesPerFlush == kWritesPerFlush - 1)
      status = db.Flush(rocksdb::FlushOptions());
    if (!status.ok()) return status;
    primary.written();
  }
  return {};
}

int run_primary(const std::string& folder, std::uint32_t port, std::uint32_t writes,
                const std::string& address) {
  auto peer = rpma::Peer::reach(address);
  if (!peer) return complain("primary: " + embedding::no_device(address, peer.status()).message());
  const auto keep = std::make_shared<KeepWal>();
  rocksdb::Options options;
  options.listeners.push_back(keep);
  options.WAL_ttl_seconds = kWalTtlSeconds;
  auto db = open(folder, options);
  if (!db) return complain("primary: " + db.status().message());
  Primary primary(**db, *keep);
  auto dispatcher = Dispatcher::start(DispatcherConfig{});
  if (!dispatcher) return complain("primary: " + dispatcher.status().message());
  Status outcome = primary.connect(**dispatcher, *peer, address, std::to_string(port));
  if (outcome.ok()) {
    std::thread engine([&] {
      const auto written = write_load(**db, primary, writes);
      if (!written.ok()) complain("primary: cannot write: " + written.ToString());
      primary.written(true);
    });
    outcome = primary.ship();
    engine.join();
  }
  const Status stopped = (*dispatcher)->stop(kStopTimeout);
  if (!outcome.ok()) return complain("primary: " + outcome.message());
  std::printf(
      "primary   %u batches written and acknowledged, sequence number %llu; WAL files kept "
      "%llu times\n",
      writes, wide((*db)->GetLatestSequenceNumber()), wide(keep->times_held));
  return stopped.ok() ? kDone : complain("primary: " + stopped.message());
}

/// Serves one primary, which `start_primary` starts as a process if it is there; ends with it, or
/// by a signal.
int run_replica(const std::string& folder, const std::string& address,
                const std::function<pid_t(std::uint16_t port)>& start_primary) {
  sigset_t ending;
  ::sigemptyset(&ending);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) ::sigaddset(&ending, signal);
  ::sigprocmask(SIG_BLOCK, &ending, nullptr);
  auto db = open(folder, {});
  if (!db) return complain(db.status().message());
  auto peer = rpma::Peer::listen_on(address);
  if (!peer) return complain(embedding::no_device(address, peer.status()).message());
  std::uint16_t port = 0;
  auto endpoint = embedding::listen_on_free_port(*peer, address, port);
  if (!endpoint) return complain(endpoint.status().message());

  // What ends it comes as a signal, or as one that is sent here from a handler.
  std::promise<Status> ended;
  auto outcome = ended.get_future();
  const pid_t me = ::getpid();
  std::atomic<bool> told{false};
  Replica replica(**db, [&](const Status& why) {
    if (told.exchange(true)) return;
    ended.set_value(why);
    ::kill(me, SIGCHLD);
  });
  auto dispatcher = Dispatcher::start(DispatcherConfig{});
  if (!dispatcher) return complain(dispatcher.status().message());
  if (const Status listening = replica.listen(**dispatcher, *peer, std::move(*endpoint));
      !listening.ok())
    return complain(listening.message());
  std::printf("listening on %s:%u, at sequence number %llu\n", address.c_str(), port,
              wide((*db)->GetLatestSequenceNumber()));
  std::fflush(stdout);
  const pid_t primary = start_primary ? start_primary(port) : 0;
  if (primary < 0) return complain("the primary cannot be started");

  Status why;
  int status = 0;
  bool reaped = primary == 0;
  for (bool done = false; !done;) {  // bound: the primary's life, or a signal
    int signal = 0;
    ::sigwait(&ending, &signal);
    if (signal != SIGCHLD) why = {StatusCode::cancelled, "stopped by a signal"};
    if (!reaped && ::waitpid(primary, &status, WNOHANG) == primary) reaped = true;
    const bool has_ended = outcome.wait_for(0s) == std::future_status::ready;
    const bool sent_nothing = start_primary && reaped && replica.messages == 0 && !has_ended;
    if (sent_nothing)
      why = {StatusCode::connection_lost, "the primary ended before it sent anything"};
    if (has_ended) why = outcome.get();
    done = has_ended || sent_nothing || signal != SIGCHLD;
  }
  const Status stopped = (*dispatcher)->stop(kStopTimeout);
  if (!reaped) {
    if (!why.ok()) ::kill(primary, SIGKILL);
    ::waitpid(primary, &status, 0);
  }
  const std::uint64_t sequence = (*db)->GetLatestSequenceNumber();
  if (!why.ok())
    return complain(why.message() + " at sequence number " + std::to_string(sequence) +
                    "; all up to it is in " + folder);
  std::printf("replica   %llu batches applied and synced, sequence number %llu\n",
              wide(replica.messages - 1), wide(sequence));
  if (!stopped.ok()) return complain(stopped.message());
  return status == 0 ? kDone : complain("the primary was not satisfied");
}

/// Key by key.
Result<std::uint64_t> compare(const std::string& one, const std::string& other) {
  auto a = open(one, {}, true), b = open(other, {}, true);
  if (!a) return a.status();
  if (!b) return b.status();
  const std::unique_ptr<rocksdb::Iterator> left((*a)->NewIterator({})),
      right((*b)->NewIterator({}));
  std::uint64_t keys = 0;
  left->SeekToFirst();
  right->SeekToFirst();
  for (; left->Valid() && right->Valid(); left->Next(), right->Next(), ++keys) {
    if (left->key() != right->key() || left->value() != right->value())
      return Status(StatusCode::internal, "they differ at " + left->key().ToString());
  }
  if (left->Valid() || right->Valid() || !left->status().ok() || !right->status().ok())
    return Status(StatusCode::internal, "one has more than the other");
  return keys;
}

int run_both(std::uint32_t writes) {
  const embedding::TemporaryFolder folder("wal-replica");
  if (!folder.made()) return complain("no temporary folder can be made");
  const std::string address = embedding::default_address();
  const std::string one = folder.path() + "/primary", other = folder.path() + "/replica";
  const int code = run_replica(other, address, [&](std::uint16_t port) {
    return embedding::start_again({"rocksdb_wal_replica", "primary", one, std::to_string(port),
                                   std::to_string(writes), address});
  });
  if (code != kDone) return code;
  const auto keys = compare(one, other);
  if (!keys) return complain("primary and replica: " + keys.status().message());
  std::printf("compared  %llu keys, all the same\n", wide(*keys));
  return kDone;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto word = [&](std::size_t i, const std::string& otherwise) {
    return i < words.size() ? words[i] : otherwise;
  };
  const auto writes_in = [&](std::size_t i) {
    return number_in(word(i, std::to_string(kWritesDefault)), kWritesMax);
  };
  const auto bad_writes = [&](std::size_t i) {
    return complain("'" + words[i] + "' is no number of writes (1 to 10000000)", kUsage);
  };
  if (!words.empty() && words[0] == "replica" && (words.size() == 2 || words.size() == 3))
    return run_replica(words[1], word(2, embedding::default_address()), {});
  if (!words.empty() && words[0] == "primary" && words.size() >= 3 && words.size() <= 5) {
    const auto port = number_in(words[2], 65535);
    if (!port) return complain("'" + words[2] + "' is no port (1 to 65535)", kUsage);
    const auto writes = writes_in(3);
    if (!writes) return bad_writes(3);
    return run_primary(words[1], *port, *writes, word(4, embedding::default_address()));
  }
  if (words.empty() ||
      (words.size() == 1 && words[0].find_first_not_of("0123456789") == std::string::npos)) {
    const auto writes = writes_in(0);
    return writes ? run_both(*writes) : bad_writes(0);
  }
  return complain(
      "usage: rocksdb_wal_replica [WRITES] | replica FOLDER [ADDRESS] | "
      "primary FOLDER PORT [WRITES [ADDRESS]]",
      kUsage);
}
