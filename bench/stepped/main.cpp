// SPDX-License-Identifier: BSD-3-Clause
// sluice-bench-stepped ORDER COUNT [CONNECTIONS [BATCH [WORKERS]]]
//
// A poller and a worker stepped on one thread, for callgrind: COUNT completions go through the
// dispatcher in batches of BATCH (32), round CONNECTIONS (8) connections.
// The pool has WORKERS (1), the first of which is stepped: with one, order takes no lanes. What is
// to be told apart is in functions of its own that are not inlined: the source's poll
// (SteadySource::poll), the handler's work (bench_handle), and the loop that steps (bench_rounds),
// for callgrind's
// --toggle-collect.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "sluice/dispatch/dispatcher.hpp"

namespace {

using namespace sluice;

constexpr std::uint32_t kBatchMax = 32;
constexpr std::uint32_t kCapacity = 1024;

struct Workload {
  std::vector<ibv_wc> completions;  ///< one poll's
  std::uint64_t left = 0;           ///< to be polled
  std::uint64_t handled = 0;
  std::uint64_t sum = 0;
};

}  // namespace

extern "C" {

/// Reads every completion.
[[gnu::noinline]] void bench_handle(Workload* workload, const ibv_wc* batch, std::size_t count) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += batch[i].wr_id + batch[i].byte_len;
  workload->sum += sum;
  workload->handled += count;
}

/// A round of the poller, then as many of the worker as it takes to handle what that brought; and
/// so on until as many have been handled.
[[gnu::noinline]] void bench_rounds(Runnable* poller, Runnable* worker, const Workload* workload,
                                    std::uint64_t completions) {
  std::uint64_t due = workload->handled;
  const std::uint64_t end = due + completions;
  while (due < end) {
    due += poller->run_once();
    while (workload->handled < due) worker->run_once();
  }
}

}  // extern "C"

namespace {

class SteadySource final : public CompletionSource {
 public:
  explicit SteadySource(Workload& workload) : workload_(workload) {}
  /// What a provider's poll does at least: it writes each completion.
  [[gnu::noinline]] PollOutcome poll(std::span<ibv_wc> out) noexcept override {
    const std::size_t count =
        std::min<std::size_t>({out.size(), workload_.completions.size(), workload_.left});
    workload_.left -= count;
    const ibv_wc* const from = workload_.completions.data();
    for (std::size_t i = 0; i < count; ++i) out[i] = from[i];
    return {static_cast<std::uint32_t>(count), SourceFault::none, 0};
  }
  EventOutcome consume_event() noexcept override { return {}; }
  [[nodiscard]] int wait_fd() const noexcept override { return -1; }
  [[nodiscard]] std::uint32_t capacity() const noexcept override { return kCapacity; }
  [[nodiscard]] std::string_view name() const noexcept override { return "steady"; }

 private:
  Workload& workload_;
};

bool parse(std::string_view text, std::uint64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

int fail(const Status& status) {
  std::fprintf(stderr, "sluice-bench-stepped: %s\n", status.to_string().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view order_name = argc > 1 ? argv[1] : "";
  std::uint64_t count = 0, connections = 8, batch = kBatchMax, workers = 1;
  const bool numbers = argc > 2 && argc <= 6 && parse(argv[2], count) &&
                       (argc < 4 || parse(argv[3], connections)) &&
                       (argc < 5 || parse(argv[4], batch)) && (argc < 6 || parse(argv[5], workers));
  Order order = Order::none;
  for (const Order one : {Order::inlined, Order::per_connection}) {
    if (order_name == to_string(one)) order = one;
  }
  if (!numbers || order_name != to_string(order) || connections < 1 || connections > 256 ||
      batch < 1 || batch > kBatchMax || workers < 1 || workers > 8) {
    std::fputs(
        "usage: sluice-bench-stepped none|per_connection|inline COUNT [CONNECTIONS [BATCH "
        "[WORKERS]]]\n",
        stderr);
    return 2;
  }

  Workload workload;
  workload.completions.resize(batch);
  for (std::uint32_t i = 0; i < batch; ++i) {
    workload.completions[i].wr_id = i;
    workload.completions[i].qp_num = i % static_cast<std::uint32_t>(connections);
    workload.completions[i].byte_len = 64;
    workload.completions[i].opcode = IBV_WC_RECV;
  }

  DispatcherConfig config;
  config.drive = Drive::host;
  config.pollers[0].wait = WaitMode::busy;
  config.pollers[0].sources_max = 1;
  config.pools[0].workers = static_cast<std::uint32_t>(workers);
  config.connections_max = 256;
  auto dispatcher = Dispatcher::start(config);
  if (!dispatcher) return fail(dispatcher.status());
  auto source =
      (*dispatcher)
          ->attach(std::make_shared<SteadySource>(workload), {.order = order},
                   [&workload](std::span<const ibv_wc> completions, const BatchInfo&) noexcept {
                     bench_handle(&workload, completions.data(), completions.size());
                   });
  if (!source) return fail(source.status());
  std::vector<std::shared_ptr<ConnectionHandle>> handles;
  for (std::uint32_t qp = 0; order == Order::per_connection && qp < connections; ++qp) {
    auto handle = (*dispatcher)->attach_queue_pair(qp, {.receive_source = *source});
    if (!handle) return fail(handle.status());
    handles.push_back(*handle);
  }

  Runnable& poller = (*dispatcher)->poller(0);
  Runnable& worker = (*dispatcher)->worker(0);
  // The commands of the attaching are executed, and all buffers have been used once.
  constexpr std::uint64_t kWarmUp = 65'536;
  workload.left = kWarmUp;
  while (workload.handled < kWarmUp) {
    poller.run_once();
    worker.run_once();
  }
  workload.left = count;
  bench_rounds(&poller, &worker, &workload, count);
  std::printf("handled %llu\nsum %llu\n", static_cast<unsigned long long>(workload.handled),
              static_cast<unsigned long long>(workload.sum));
  std::fflush(stdout);
  // Nothing is detached: the process goes.
  std::_Exit(workload.handled == kWarmUp + count ? 0 : 1);
}
