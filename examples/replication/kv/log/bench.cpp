// SPDX-License-Identifier: BSD-3-Clause
// What a durable entry costs: appends with so many outstanding, each way to write beside the
// others.
//
//     sluice-kv-log-bench FOLDER [ROUNDS [SECONDS]]
//
// One closed loop on one thread: so many entries are appended and not durable; when some become
// durable as many are appended anew. Each round measures every way once, in turn; what is printed
// are medians over the rounds. FOLDER is made, and removed at the end.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "log.hpp"

namespace {

using sluice::kv::Log;
using sluice::kv::LogOptions;
using Clock = std::chrono::steady_clock;

struct Way {
  const char* name;
  bool prewrite, direct, dsync;
  std::uint32_t groups;
};
constexpr Way kWays[] = {
    {"grown file, write -> fdatasync", false, false, false, 1},
    {"prewritten, write -> fdatasync", true, false, false, 1},
    {"prewritten, O_DIRECT, write -> fdatasync", true, true, false, 1},
    {"the same, 2 groups in flight", true, true, false, 2},
    {"prewritten, O_DIRECT, RWF_DSYNC", true, true, true, 1},
    {"the same, 2 groups in flight", true, true, true, 2},
};
constexpr std::size_t kOutstanding[] = {1, 16, 64};
constexpr std::size_t kBytes[] = {100, 4096};

struct Figures {
  double per_second = 0, p50_us = 0, p99_us = 0, entries_per_group = 0;
};

void stop_if_failed(const sluice::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  std::exit(1);
}
template <typename T>
T value_of(sluice::Result<T> result) {
  stop_if_failed(result.status());
  return std::move(result).value();
}

/// Waits for completions and hands them to the log.
void complete(Log& log, sluice::uring::Ring& ring) {
  ibv_wc wcs[8];
  std::uint32_t count = 0;
  while ((count = ring.poll(wcs).count) == 0) {
    pollfd descriptor{ring.wait_fd(), POLLIN, 0};
    (void)::poll(&descriptor, 1, -1);
    (void)ring.consume_event();
  }
  const auto done = std::span<const ibv_wc>(wcs).first(count);
  for (const ibv_wc& wc : done) stop_if_failed(log.on_completion(sluice::uring::to_cqe(wc)));
  ring.retire(done);
}

Figures measure(const std::string& folder, const Way& way, std::size_t outstanding,
                std::size_t bytes, double seconds) {
  LogOptions options;
  options.prewrite = way.prewrite;
  options.direct = way.direct;
  options.dsync = way.dsync;
  options.groups_in_flight_max = way.groups;
  options.segment_bytes = 16ULL << 20;
  const auto log = value_of(Log::open(folder, options, "bench"));
  log->settle();
  const auto ring = value_of(sluice::uring::Ring::create({.submissions = 64}, "bench"));
  const auto ownership = value_of(ring->take_ownership("bench"));
  const std::vector<std::byte> payload(bytes, std::byte{'x'});
  std::deque<Clock::time_point> begun;
  std::vector<double> latencies;
  const auto begin = Clock::now();
  const auto end = begin + std::chrono::duration<double>(seconds);
  std::uint64_t durable = log->durable_index();
  auto now = begin;
  while (now < end || latencies.empty()) {
    while (begun.size() < outstanding) {
      begun.push_back(Clock::now());
      (void)value_of(log->append(1, payload));
    }
    stop_if_failed(log->submit(*ring));
    complete(*log, *ring);
    now = Clock::now();
    for (; durable < log->durable_index(); ++durable) {
      latencies.push_back(std::chrono::duration<double, std::micro>(now - begun.front()).count());
      begun.pop_front();
    }
    log->trim_before(durable);
  }
  const double taken = std::chrono::duration<double>(now - begin).count();
  while (log->in_flight() != 0) complete(*log, *ring);
  std::sort(latencies.begin(), latencies.end());
  const auto count = static_cast<double>(latencies.size());
  return {count / taken, latencies[latencies.size() / 2], latencies[latencies.size() * 99 / 100],
          count / static_cast<double>(log->counters().groups)};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: sluice-kv-log-bench FOLDER [ROUNDS [SECONDS]]\n");
    return 2;
  }
  const std::string folder = argv[1];
  const int rounds = std::max(1, argc > 2 ? std::atoi(argv[2]) : 5);
  const double seconds = argc > 3 ? std::atof(argv[3]) : 0.3;
  std::filesystem::create_directories(folder);
  for (const std::size_t bytes : kBytes) {
    for (const std::size_t outstanding : kOutstanding) {
      std::vector<Figures> figures[std::size(kWays)];
      for (int round = 0; round < rounds; ++round) {
        for (std::size_t way = 0; way < std::size(kWays); ++way) {
          figures[way].push_back(
              measure(folder + "/" + std::to_string(way), kWays[way], outstanding, bytes, seconds));
        }
      }
      std::printf("%zu bytes, %zu outstanding\n", bytes, outstanding);
      for (std::size_t way = 0; way < std::size(kWays); ++way) {
        const auto of = [&](double Figures::*member) {
          std::vector<double> values;
          for (const Figures& each : figures[way]) values.push_back(each.*member);
          return median(values);
        };
        std::printf("  %-46s %8.0f/s  p50 %6.0f us  p99 %6.0f us  %5.1f entries a group\n",
                    kWays[way].name, of(&Figures::per_second), of(&Figures::p50_us),
                    of(&Figures::p99_us), of(&Figures::entries_per_group));
      }
      std::fflush(stdout);
    }
  }
  std::filesystem::remove_all(folder);
  return 0;
}
