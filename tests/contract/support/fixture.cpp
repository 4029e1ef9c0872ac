// SPDX-License-Identifier: BSD-3-Clause
#include "support/fixture.hpp"

#include <dlfcn.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <thread>

namespace sluice::contract {
namespace {

constexpr int kYieldsBeforePausing = 2000;
constexpr std::uint32_t kFirstPort = 10000;
constexpr std::uint32_t kPorts = 20000;  ///< below the ports that the system gives out by itself

/// Starts somewhere else in each process, so that cases that run at the same time seldom meet.
std::string next_port() {
  static std::atomic<std::uint32_t> next{static_cast<std::uint32_t>(::getpid()) * 131};
  return std::to_string(kFirstPort + next.fetch_add(1, std::memory_order_relaxed) % kPorts);
}

void pause_ms(int milliseconds) {
  (void)::poll(nullptr, 0, milliseconds);
}

}  // namespace

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.to_string());
}

void await(const std::string& what, const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (int i = 0; !done(); ++i) {
    if (i < kYieldsBeforePausing) {
      std::this_thread::yield();
    } else {
      pause_ms(1);
    }
    if (std::chrono::steady_clock::now() > deadline) {
      throw std::runtime_error(what + " did not happen");
    }
  }
}

bool readable(int fd) {
  pollfd descriptor{fd, POLLIN, 0};
  return ::poll(&descriptor, 1, 0) == 1 && (descriptor.revents & POLLIN) != 0;
}

void await_readable(int fd, const std::string& what) {
  pollfd descriptor{fd, POLLIN, 0};
  const auto patience_ms = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience);
  int ready = 0;
  do {
    ready = ::poll(&descriptor, 1, static_cast<int>(patience_ms.count()));
  } while (ready < 0 && errno == EINTR);
  if (ready != 1 || (descriptor.revents & POLLIN) == 0) {
    throw std::runtime_error(what + ": its descriptor never became readable");
  }
}

bool on_softrdma() {
  return ::dlsym(RTLD_DEFAULT, "softrdma_set_faults") != nullptr;
}

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  std::uint64_t state = seed * 0x9E3779B97F4A7C15U + 1;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<std::byte>(state >> 56);
  }
}

std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t hash = 14695981039346656037U;
  for (const std::byte byte : bytes) {
    hash = (hash ^ static_cast<std::uint64_t>(byte)) * 1099511628211U;
  }
  return hash;
}

rpma::ConnectionConfig patient(std::uint32_t send_queue_size, std::uint32_t receive_queue_size) {
  rpma::ConnectionConfig config;
  config.send_queue_size = send_queue_size;
  config.receive_queue_size = receive_queue_size;
  config.timeout = std::chrono::seconds(10);
  return config;
}

namespace {

std::string address_of_device() {
  const char* const rxe = std::getenv("RXE_ADDR");
  return rxe != nullptr ? rxe : "127.0.0.1";
}

}  // namespace

Site::Site() : address(address_of_device()), peer(require(rpma::Peer::listen_on(address))) {}

std::unique_ptr<rpma::Endpoint> Site::listen(std::string& port) const {
  constexpr int kAttemptsMax = 1000;
  for (int i = 0; i < kAttemptsMax; ++i) {
    port = next_port();
    auto endpoint = rpma::Endpoint::listen(peer, address, port);
    if (endpoint.ok()) return std::move(*endpoint);
    if (endpoint.status().code() != StatusCode::address_in_use) require(endpoint.status());
  }
  throw std::runtime_error("no port is free");
}

rpma::ConnectionRequest Site::ask(const std::string& port,
                                  const rpma::ConnectionConfig& client) const {
  return require(rpma::ConnectionRequest::connect_to(peer, address, port, client));
}

Pair Site::connect(const rpma::ConnectionConfig& server,
                   const rpma::ConnectionConfig& client) const {
  std::string port;
  const auto endpoint = listen(port);
  Pair pair;
  pair.client = require(ask(port, client).connect());
  pair.server = require(await_request(*endpoint, server).connect());
  // The client first: librdmacm moves its queue pair and tells the server when it asks for the
  // event.
  await_event(*pair.client, rpma::ConnectionEvent::established);
  await_event(*pair.server, rpma::ConnectionEvent::established);
  return pair;
}

std::shared_ptr<rpma::MemoryRegion> Site::memory(std::size_t size) const {
  return require(rpma::MemoryRegion::allocate(peer, size, kAllUsages));
}

std::shared_ptr<rpma::RemoteRegion> Site::remote(const rpma::MemoryRegion& region) {
  return require(rpma::RemoteRegion::from_descriptor(require(region.descriptor())));
}

rpma::ConnectionRequest await_request(rpma::Endpoint& endpoint,
                                      const rpma::ConnectionConfig& config) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    auto request = endpoint.next_request(config);
    if (request.ok()) return std::move(*request);
    if (request.status().code() != StatusCode::no_completion) require(request.status());
    pollfd descriptor{endpoint.fd(), POLLIN, 0};
    (void)::poll(&descriptor, 1, 100);
  }
  throw std::runtime_error("no connection request arrived");
}

rpma::ConnectionEvent await_event(rpma::Connection& connection) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    auto event = connection.next_event();
    if (event.ok()) return *event;
    if (event.status().code() != StatusCode::no_completion) require(event.status());
    pollfd descriptor{connection.event_fd(), POLLIN, 0};
    (void)::poll(&descriptor, 1, 100);
  }
  throw std::runtime_error("no connection event arrived");
}

void await_event(rpma::Connection& connection, rpma::ConnectionEvent expected) {
  const rpma::ConnectionEvent event = await_event(connection);
  if (event != expected) {
    throw std::runtime_error("the connection event '" + std::string(to_string(event)) +
                             "' instead of '" + std::string(to_string(expected)) + "'");
  }
}

std::vector<ibv_wc> await_completions(CompletionSource& source, std::size_t count,
                                      const std::string& what) {
  std::vector<ibv_wc> all;
  await(what, [&] {
    ibv_wc buffer[16];
    const std::size_t wanted = std::min<std::size_t>(16, count - all.size());
    const PollOutcome outcome = source.poll(std::span(buffer, wanted));
    if (outcome.fault != SourceFault::none) {
      throw std::runtime_error(what +
                               ": the source failed: " + std::string(to_string(outcome.fault)));
    }
    all.insert(all.end(), buffer, buffer + outcome.count);
    return all.size() == count;
  });
  return all;
}

ibv_wc await_completion(CompletionSource& source, const std::string& what) {
  return await_completions(source, 1, what).front();
}

Collector::Collector(CompletionSource& source, std::uint32_t budget)
    : source_(source), buffer_(budget) {}

void Collector::collect(std::size_t count, const std::function<void(const ibv_wc&)>& take) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::size_t got = 0;
  while (got < count) {
    const PollOutcome outcome = source_.poll(buffer_);
    if (outcome.fault != SourceFault::none) {
      throw std::runtime_error("the source failed: " + std::string(to_string(outcome.fault)));
    }
    for (const ibv_wc& wc : std::span(buffer_).first(outcome.count)) take(wc);
    got += outcome.count;
    if (outcome.count != 0) continue;  // with its budget used up or not: it was not seen empty
    if (std::chrono::steady_clock::now() > deadline) {
      throw std::runtime_error(std::to_string(got) + " of " + std::to_string(count) +
                               " completions came");
    }
    // Seen empty since the last re-arm: may sleep.
    pollfd descriptor{source_.wait_fd(), POLLIN, 0};
    (void)::poll(&descriptor, 1, 1000);  // a signal may end it as well
    EventOutcome event = source_.consume_event();
    while (event.kind == EventOutcome::Kind::consumed) event = source_.consume_event();
    if (event.kind == EventOutcome::Kind::failed) {
      throw std::runtime_error("taking an event failed: " + std::string(to_string(event.fault)));
    }
  }
}

}  // namespace sluice::contract
