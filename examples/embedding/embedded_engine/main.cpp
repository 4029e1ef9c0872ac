// SPDX-License-Identifier: BSD-3-Clause
// An engine that drives the dispatcher from its own threads: see README.md.
//
//   softrdma-run embedded_engine [RECORDS]                     the engine, and a sender process
//   softrdma-run embedded_engine serve FOLDER [ADDRESS]        the engine alone
//   softrdma-run embedded_engine send PORT [RECORDS [ADDRESS]] the sender alone
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "../support.hpp"
#include "engine.hpp"
#include "sender.hpp"

namespace {

using namespace embedded;
using embedding::kDone;
using embedding::kFailed;
using embedding::kUsage;
using embedding::number_in;
using sluice::Status;

constexpr std::uint32_t kRecordsDefault = 500, kRecordsMax = 1'000'000;

int complain(const std::string& what, int code) {
  return embedding::complain("embedded_engine", what, code);
}

bool report(const Engine::Summary& summary) {
  bool verified = true;
  for (const auto& log : summary.logs) verified = verified && log.verified;
  std::printf(
      "durable   %llu of %llu records of %zu bytes on %u connections, acknowledged in order\n",
      static_cast<unsigned long long>(summary.durable()),
      static_cast<unsigned long long>(summary.total()), kRecordBytes, kConnections);
  std::printf("verified  %s\n", verified ? "every durable record was read back from its log"
                                         : "NO: a log does not hold what was acknowledged");
  std::printf(
      "threads   %zu of the engine, %zu of the device, %zu of the kernel's io_uring, "
      "%zu of the dispatcher\n",
      summary.threads_engine, summary.threads_device, summary.threads_kernel,
      summary.threads_dispatcher);
  std::printf("loops     slept %llu times on one epoll each, %llu events of the engine's own\n",
              static_cast<unsigned long long>(summary.sleeps),
              static_cast<unsigned long long>(summary.engine_events));
  return verified && summary.threads_dispatcher == 0;
}

int serve(const std::string& folder, const std::string& address,
          std::optional<std::uint32_t> records_to_send) {
  sigset_t ending;
  ::sigemptyset(&ending);
  ::sigaddset(&ending, SIGINT);
  ::sigaddset(&ending, SIGTERM);
  ::sigaddset(&ending, SIGCHLD);  // a sender that never came
  ::sigprocmask(SIG_BLOCK, &ending, nullptr);
  const int stop_fd = ::signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK);
  Engine engine(folder, address);
  if (const Status started = engine.start(); !started.ok())
    return complain(started.message() + (started.os_error() != 0
                                             ? std::string(": ") + std::strerror(started.os_error())
                                             : std::string()),
                    kFailed);
  std::printf("listening on %s:%u\n", address.c_str(), engine.port());
  std::fflush(stdout);
  const pid_t sender =
      records_to_send
          ? embedding::start_again({"embedded_engine", "send", std::to_string(engine.port()),
                                    std::to_string(*records_to_send), address})
          : 0;
  if (sender < 0) return complain("the sender cannot be started", kFailed);
  const Status ran = engine.run(stop_fd);
  ::close(stop_fd);
  int sent = 0;
  if (sender > 0) {
    if (!ran.ok()) ::kill(sender, SIGKILL);
    ::waitpid(sender, &sent, 0);
  }
  const Engine::Summary summary = engine.summary();
  const bool good = report(summary);
  std::fflush(stdout);
  if (!ran.ok()) return complain(ran.message(), kFailed);
  if (summary.total() == 0 || summary.durable() < summary.total())
    return complain("the sender went away after " + std::to_string(summary.durable()) + " of " +
                        std::to_string(summary.total()) + " records; these are in the logs",
                    kFailed);
  if (sent != 0) return complain("the sender was not satisfied", kFailed);
  return good ? kDone : kFailed;
}

int serve_in_temporary_folder(std::uint32_t records) {
  const embedding::TemporaryFolder folder("embedded-engine");
  if (!folder.made()) return complain("no temporary folder can be made", kFailed);
  return serve(folder.path(), embedding::default_address(), records);
}

int send(std::uint16_t port, std::uint32_t records, const std::string& address) {
  if (const Status sent = send_records(address, port, records); !sent.ok())
    return complain("sender: " + sent.message(), kFailed);
  std::printf("sender    %llu records sent, all acknowledged in order\n",
              static_cast<unsigned long long>(records) * kConnections);
  return kDone;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string usage =
      "usage: embedded_engine [RECORDS] | serve FOLDER [ADDRESS] | "
      "send PORT [RECORDS [ADDRESS]]";
  if (words.empty()) return serve_in_temporary_folder(kRecordsDefault);
  if (words[0] == "serve" && (words.size() == 2 || words.size() == 3))
    return serve(words[1], words.size() == 3 ? words[2] : embedding::default_address(),
                 std::nullopt);
  if (words[0] == "send" && words.size() >= 2 && words.size() <= 4) {
    const auto port = number_in(words[1], 65535);
    const auto records =
        words.size() > 2 ? number_in(words[2], kRecordsMax) : std::optional(kRecordsDefault);
    if (!port) return complain("'" + words[1] + "' is no port (1 to 65535)", kUsage);
    if (!records)
      return complain("'" + words[2] + "' is no number of records (1 to 1000000)", kUsage);
    return send(static_cast<std::uint16_t>(*port), *records,
                words.size() > 3 ? words[3] : embedding::default_address());
  }
  if (words.size() == 1 && !words[0].empty() && words[0][0] >= '0' && words[0][0] <= '9') {
    const auto records = number_in(words[0], kRecordsMax);
    if (!records)
      return complain("'" + words[0] + "' is no number of records (1 to 1000000)", kUsage);
    return serve_in_temporary_folder(*records);
  }
  return complain(usage, kUsage);
}
