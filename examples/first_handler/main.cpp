// SPDX-License-Identifier: BSD-3-Clause
// The smallest whole use of Sluice: one process listens and connects to itself, and a worker thread
// handles what arrives. Run it as: softrdma-run first_handler [CONFIG.toml]   (or plainly, with an
// RDMA device)
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <string>

#include "sluice/dispatch/dispatcher.hpp"
#include "sluice/topology/plan.hpp"

namespace {

using namespace std::chrono_literals;

template <typename T>
T must(sluice::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "first_handler: %s\n", result.status().to_string().c_str());
    std::exit(1);
  }
  return std::move(*result);
}

}  // namespace

int main(int argc, char** argv) {
  const char* const device_address = std::getenv("RXE_ADDR");
  const std::string address = device_address != nullptr ? device_address : "127.0.0.1";
  const std::string port = "7471";

  // Pinned pollers and workers, idle and asleep, where the configuration wants them; without one
  // the machine decides.
  sluice::Config config;
  if (argc > 1) config = must(sluice::Config::load(argv[1]));
  auto dispatcher = must(sluice::Dispatcher::start(config));
  for (const auto& sentence : dispatcher->plan()->degraded) {
    std::printf("not ideal: %s\n", sentence.c_str());
  }

  // One receive queue for all connections, with its own completion queue, stocked with buffers.
  auto peer = must(sluice::rpma::Peer::listen_on(address));
  auto srq = must(sluice::rpma::SharedReceiveQueue::create(peer, {.depth = 256}));
  auto* buffers = must(srq->stock(256, 64));

  // The handler: one connection's completions, in order, on one worker at a time.
  std::promise<std::string> said;
  auto receives = must(dispatcher->attach(
      srq->receive_cq(), {.receive_pool = buffers},
      [&](std::span<const ibv_wc> batch, const sluice::BatchInfo&) noexcept {
        for (const ibv_wc& wc : batch) {
          const auto message = buffers->take(wc);  // posted again when it goes out of scope
          if (wc.status != IBV_WC_SUCCESS) continue;
          const auto bytes = message.bytes();
          said.set_value({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
        }
      }));

  // Accept whoever comes; completions of the connection's own CQ (here none) get a handler, too.
  const auto ignore = [](std::span<const ibv_wc>, const sluice::BatchInfo&) noexcept {};
  sluice::ListenOptions listen;
  listen.config.srq = srq;
  listen.on_request = [&](std::span<const std::byte>) {
    sluice::ConnectionOptions options;
    options.receive_source = receives;
    options.handler = ignore;
    return std::optional(std::move(options));
  };
  auto listener =
      must(dispatcher->listen(must(sluice::rpma::Endpoint::listen(peer, address, port)), listen));

  // The other side, here in the same process.
  sluice::ConnectionOptions options;
  options.handler = ignore;
  auto client = must(dispatcher->connect(peer, address, port, {}, {}, std::move(options)));
  auto memory = must(sluice::rpma::MemoryRegion::allocate(peer, 64, RPMA_MR_USAGE_SEND));
  std::memcpy(memory->memory().data(), "hello", 5);
  if (auto status = client->connection().send(memory.get(), 0, 5, 1); !status.ok()) {
    std::fprintf(stderr, "first_handler: %s\n", status.to_string().c_str());
    return 1;
  }
  std::printf("a worker received: %s\n", said.get_future().get().c_str());

  const auto report = must(client->detach(2s));  // nobody touches it any more
  std::printf("detached: %s\n", report.to_string().c_str());
  return dispatcher->stop(2s).ok() ? 0 : 1;
}
