// SPDX-License-Identifier: BSD-3-Clause
#include "resp/resp_server.hpp"

#include <cstdio>
#include <utility>

#include "resp/io_thread.hpp"
#include "resp/socket.hpp"

namespace sluice::kv {
namespace {

constexpr unsigned kIoThreadsMax = 64;
/// How long the destructor waits for tickets before it says so.
constexpr std::chrono::seconds kTicketsLate{5};

Status check(const ServerOptions& options) {
  const auto wrong = [](std::string what) {
    return Status{StatusCode::invalid_argument, std::move(what)};
  };
  if (options.io_threads < 1 || options.io_threads > kIoThreadsMax)
    return wrong("io_threads is 1 to " + std::to_string(kIoThreadsMax) + ", not " +
                 std::to_string(options.io_threads));
  if (options.clients_max < 1) return wrong("clients_max is at least 1");
  if (options.pipeline_max < 1) return wrong("pipeline_max is at least 1");
  if (options.in_flight_max < 1) return wrong("in_flight_max is at least 1");
  if (options.output_pause_bytes >= options.output_bytes_max)
    return wrong("output_pause_bytes is less than output_bytes_max");
  return {};
}

}  // namespace

struct RespServer::Impl {
  Impl(ServerOptions options, CommandHandler& handler) : context(std::move(options), handler) {}

  ServerContext context;
  std::string where;
  std::uint16_t port = 0;
  bool stopped = false;
};

RespServer::RespServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<RespServer>> RespServer::start(ServerOptions options,
                                                      CommandHandler& handler) {
  SLUICE_RETURN_IF_ERROR(check(options));
  if (!options.message)
    options.message = [](std::string_view text) {
      std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
    };
  auto listener = listen_on(options.address, options.port);
  if (!listener) return listener.status();
  auto impl = std::make_unique<Impl>(std::move(options), handler);
  impl->where = listener->where;
  impl->port = listener->port;
  ServerContext& context = impl->context;
  const bool loopback = listener->loopback;
  for (unsigned i = 0; i < context.options.io_threads; ++i) {
    context.threads.push_back(std::make_unique<IoThread>(context));
    SLUICE_RETURN_IF_ERROR(
        context.threads.back()->open(i == 0 ? std::move(*listener) : Listener{}, i));
  }
  // The one that accepts comes last: it hands clients to all others.
  for (unsigned i = context.options.io_threads; i-- > 0;) {
    if (Status launched = context.threads[i]->launch(); !launched.ok()) {
      for (unsigned made = i + 1; made < context.options.io_threads; ++made)
        context.threads[made]->request_stop(std::chrono::steady_clock::now());
      return launched;
    }
  }
  if (!loopback)
    context.say("listening on " + impl->where + ", which other machines may reach" +
                (context.options.requirepass.empty() ? "; no password is asked for"
                                                     : "; a password is asked for"));
  return std::unique_ptr<RespServer>(new RespServer(std::move(impl)));
}

RespServer::~RespServer() {
  if (!impl_->stopped) (void)stop(std::chrono::milliseconds{0});
  for (const auto& thread : impl_->context.threads) {
    while (!thread->wait_until_finished(kTicketsLate))  // bound: none, they point into this server
      impl_->context.say("the server ends, but its handler still holds " +
                         std::to_string(stats().in_flight) + " requests");
    thread->join();
  }
}

std::uint16_t RespServer::port() const noexcept {
  return impl_->port;
}

std::string RespServer::listening_on() const {
  return impl_->where;
}

ServerStats RespServer::stats() const noexcept {
  ServerStats sum;
  sum.clients = impl_->context.clients.load(std::memory_order_relaxed);
  for (const auto& thread : impl_->context.threads) thread->add_to(sum);
  return sum;
}

Status RespServer::stop(std::chrono::milliseconds deadline) {
  SLUICE_CHECK(!std::exchange(impl_->stopped, true), "a RespServer was stopped twice");
  const auto until = std::chrono::steady_clock::now() + deadline;
  std::size_t cut = 0;
  for (const auto& thread : impl_->context.threads) thread->request_stop(until);
  for (const auto& thread : impl_->context.threads) cut += thread->wait_until_closed();
  if (cut == 0) return {};
  return {StatusCode::timed_out, std::to_string(cut) +
                                     " clients were cut off: their requests were not answered in "
                                     "time, or they did not read the answers"};
}

}  // namespace sluice::kv
