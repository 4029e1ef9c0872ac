// SPDX-License-Identifier: BSD-3-Clause
#include "replica.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "errors.hpp"
#include "sluice/core/rpma/sources.hpp"
#include "summary.hpp"

namespace replicate {
namespace {

using namespace std::chrono_literals;
using sluice::Status;
using sluice::StatusCode;
using Clock = std::chrono::steady_clock;

constexpr auto kSetupTimeout = 400ms;
/// A bound: on a loaded machine the last flushes may take longer than who has interrupted us waits.
constexpr auto kStopTimeout = 5s;
constexpr auto kStopTimeoutOfFailed = 500ms;
/// How long a replica that has reported waits for the primary to take it and to close.
constexpr auto kFarewellTimeout = 5000ms;
constexpr unsigned kLastResortSeconds = 3;
constexpr int kPortTries = 64;

/// Receives kept in store beyond what is handed out as credits: the end frame, and a little.
constexpr std::uint32_t kSpareReceives = 4;

}  // namespace

Replica::Replica(const Options& options, Interrupts& interrupts, Starter& starter)
    : options_(options), interrupts_(interrupts), starter_(starter) {}

Replica::~Replica() = default;

Status Replica::run() {
  const auto where = parse_host_port(options_.listen, true);
  if (!where) return where.status();
  Status outcome = serve(*where);
  if (outcome.code() == StatusCode::cancelled) end_process_after(kLastResortSeconds);
  if (dispatcher_ != nullptr) {
    listener_.reset();
    // Detaches the connections, then the source, then ends the threads. After this line no handler
    // runs, and what they used may go.
    const Status stopped = dispatcher_->stop(outcome.ok() ? kStopTimeout : kStopTimeoutOfFailed);
    if (outcome.ok() && !stopped.ok()) outcome = stopped;
  }
  return outcome;
}

Status Replica::serve(const HostPort& where) {
  const Status ready = [&]() -> Status {
    auto file = OutputFile::create(options_.output);
    if (!file) return file.status();
    log_ = std::make_unique<RecordLog>(std::move(*file), options_.effective_receive_depth(),
                                       options_.fsync);
    SLUICE_RETURN_IF_ERROR(open_device(where));
    SLUICE_RETURN_IF_ERROR(start_dispatcher());
    return start_listening(where);
  }();
  if (!ready.ok()) {
    starter_.failed(ready);
    return ready;
  }
  Status outcome = take_copy();
  if (outcome.ok()) outcome = finish_copy();
  if (outcome.code() != StatusCode::cancelled) report_and_wait(outcome);
  return outcome;
}

// --- set-up ------------------------------------------------------------------------------------

Status Replica::open_device(const HostPort& where) {
  auto peer = sluice::rpma::Peer::listen_on(where.host);
  if (!peer) return no_device_hint(peer.status(), where.host);
  peer_ = std::move(*peer);

  const std::uint32_t depth = options_.effective_receive_depth() + kSpareReceives;
  auto srq =
      sluice::rpma::SharedReceiveQueue::create(peer_, {.depth = depth, .receive_cq_size = {}});
  if (!srq) return srq.status();
  srq_ = std::move(*srq);
  auto pool =
      srq_->stock(depth, static_cast<std::uint32_t>(record_frame_bytes(options_.record_size)));
  if (!pool) return pool.status();
  receives_ = *pool;
  return {};
}

Status Replica::start_dispatcher() {
  auto dispatcher = sluice::Dispatcher::start(options_.dispatcher_config(options_.connections_max));
  if (!dispatcher) return dispatcher.status();
  dispatcher_ = std::move(*dispatcher);

  // The one source of all receives. Completions arrive sorted by connection, in order, and a
  // connection's are never on two workers at once; context is the one that was given in on_request.
  auto source = dispatcher_->attach(
      srq_->receive_cq(),
      {.pool = "records", .order = sluice::Order::per_connection, .receive_pool = receives_},
      [this](std::span<const ibv_wc> batch, const sluice::BatchInfo& info) noexcept {
        on_received(batch, *static_cast<InboundConnection*>(info.context));
      });
  if (!source) return source.status();
  receive_source_ = std::move(*source);
  return {};
}

Status Replica::start_listening(const HostPort& where) {
  // librpma does not tell which port it got for 0, so any free one is found by trying.
  const auto first = static_cast<std::uint32_t>(getpid()) * 7919U;
  std::uint16_t port = where.port;
  std::unique_ptr<sluice::rpma::Endpoint> endpoint;
  for (int attempt = 0; endpoint == nullptr; ++attempt) {
    if (where.port == 0)
      port =
          static_cast<std::uint16_t>(20000 + (first + static_cast<std::uint32_t>(attempt)) % 12000);
    auto tried = sluice::rpma::Endpoint::listen(peer_, where.host, std::to_string(port));
    if (tried) {
      endpoint = std::move(*tried);
    } else if (where.port != 0 || tried.status().code() != StatusCode::address_in_use ||
               attempt >= kPortTries) {
      return tried.status();
    }
  }

  sluice::ListenOptions listen;
  listen.config.srq = srq_;
  // Replies are signalled, and their credits come back a little after on_sent has run: twice the
  // places, so that places run out first.
  listen.config.send_queue_size = 2 * InboundConnection::kReplySlots;
  listen.config.timeout = kSetupTimeout;
  listen.establish_timeout = kSetupTimeout;
  const auto welcome =
      encode(Welcome{.receive_depth = options_.effective_receive_depth(),
                     .record_size_max = static_cast<std::uint32_t>(options_.record_size)});
  listen.reply.assign(welcome.begin(), welcome.end());
  listen.on_request = [this](std::span<const std::byte> data) { return on_request(data); };
  listen.on_connected = [this](const std::shared_ptr<sluice::ConnectionHandle>& handle) {
    on_connected(handle);
  };
  listen.on_failed = [](const Status& why) {
    fmt::print(stderr, "sluice-replicate: a connection was not set up: {}\n", why.message());
  };
  auto listener = dispatcher_->listen(std::move(endpoint), std::move(listen));
  if (!listener) return listener.status();
  listener_ = std::move(*listener);

  if (starter_.present())
    starter_.listening(port);
  else
    fmt::print(stderr, "sluice-replicate: listening on {}:{} ({}), the copy goes to {}\n",
               where.host, port, peer_->device_name(), options_.output);
  return {};
}

// --- the set-up thread -------------------------------------------------------------------------

std::optional<sluice::ConnectionOptions> Replica::on_request(
    std::span<const std::byte> private_data) {
  const auto hello = decode_hello(private_data);
  const Status admitted =
      hello.value ? admit(*hello.value) : Status(StatusCode::rejected, hello.error);
  if (!admitted.ok()) {
    fmt::print(stderr, "sluice-replicate: refused a connection: {}\n", admitted.message());
    return std::nullopt;
  }
  InboundConnection& connection = *stripes_[hello.value->connection];
  sluice::ConnectionOptions options;
  options.pool = "records";
  options.order = sluice::Order::per_connection;
  options.context = &connection;
  options.receive_source = receive_source_;
  options.handler = [this](std::span<const ibv_wc> batch, const sluice::BatchInfo& info) noexcept {
    on_sent(batch, *static_cast<InboundConnection*>(info.context));
  };
  options.on_event = [this, &connection](sluice::ConnectionId, sluice::rpma::ConnectionEvent) {
    on_closed(connection);
  };
  return options;
}

/// Takes the connection into the session, or says why not. The first one decides which session
/// this replica serves.
Status Replica::admit(const Hello& hello) {
  const auto refuse = [](std::string why) { return Status(StatusCode::rejected, std::move(why)); };
  if (hello.record_size > options_.record_size)
    return refuse(fmt::format("its records have {} bytes, and --record-size {} is what fits here",
                              hello.record_size, options_.record_size));
  if (hello.connections > options_.connections_max)
    return refuse(fmt::format("it wants {} connections, and --connections-max is {}",
                              hello.connections, options_.connections_max));
  if (hello.connections > options_.effective_receive_depth())
    return refuse(fmt::format("{} connections cannot share {} receives: raise --receive-depth",
                              hello.connections, options_.effective_receive_depth()));
  if (session_ != 0 && hello.session != session_)
    return refuse("this replica serves another primary");
  if (session_ != 0 && hello.connections != stripes_.size())
    return refuse(fmt::format("it speaks of {} connections, the ones before of {}",
                              hello.connections, stripes_.size()));

  auto connection = std::make_unique<InboundConnection>();
  connection->index = hello.connection;
  auto replies = sluice::rpma::MemoryRegion::allocate(
      peer_, InboundConnection::kReplySlots * kReplyFrameBytes, RPMA_MR_USAGE_SEND);
  if (!replies) return replies.status();
  connection->replies = std::move(*replies);

  if (session_ == 0) {
    session_ = hello.session;
    stripes_.resize(hello.connections);
  }
  // A primary tries again when a connection was not established in time; one that was stays.
  InboundConnection*& stripe = stripes_[hello.connection];
  if (stripe != nullptr && stripe->link.load(std::memory_order_acquire) != nullptr)
    return refuse(fmt::format("its connection {} is there already", hello.connection));
  stripe = connection.get();
  connections_.push_back(std::move(connection));
  return {};
}

void Replica::on_connected(const std::shared_ptr<sluice::ConnectionHandle>& handle) {
  const auto hello = decode_hello(handle->connection().private_data());
  if (!hello.value) return;  // on_request has seen these bytes
  InboundConnection& connection = *stripes_[hello.value->connection];
  connection.handle = handle;
  connection.link.store(&handle->connection(), std::memory_order_release);  // (1) pairs with (2)
  established_.fetch_add(1, std::memory_order_relaxed);
  // Records may have come before we got to know the connection that their answer goes over.
  appender_.run([this]() noexcept { append_and_answer(); });
}

// --- workers -----------------------------------------------------------------------------------

void Replica::on_received(std::span<const ibv_wc> batch, InboundConnection& from) noexcept {
  for (const ibv_wc& wc : batch) {
    sluice::ReceivedBuffer buffer = receives_->take(wc);
    if (wc.status != IBV_WC_SUCCESS) continue;  // on_closed will be told
    const Frame frame = open_frame(buffer.bytes(), session_);
    if (!frame.ok()) {
      fail(StatusCode::device_failed,
           fmt::format("a message over connection {}, after {} records: {}", from.index,
                       log_->appended(), to_string(frame.error)));
      return;
    }
    const std::uint64_t number = frame.header.number;
    const bool is_record =
        frame.header.kind == FrameKind::data || frame.header.kind == FrameKind::end;
    if (!is_record || number % stripes_.size() != from.index) {
      fail(StatusCode::device_failed,
           fmt::format("frame {} does not belong on connection {}", number, from.index));
      return;
    }
    if (const auto put = log_->put(frame, std::move(buffer)); put != RecordLog::Put::ok) {
      fail(StatusCode::device_failed,
           fmt::format("record {}: {}", number, RecordLog::to_string(put)));
      return;
    }
  }
  appender_.run([this]() noexcept { append_and_answer(); });
}

void Replica::on_sent(std::span<const ibv_wc> batch, InboundConnection& to) noexcept {
  const auto done = std::ranges::count(batch, IBV_WC_SUCCESS, &ibv_wc::status);
  to.replies_done.fetch_add(static_cast<std::uint64_t>(done),
                            std::memory_order_release);  // (3) pairs with (4)
  if (static_cast<std::size_t>(done) != batch.size()) on_closed(to);
  // An answer may be waiting for the place that became free.
  appender_.run([this]() noexcept { append_and_answer(); });
}

/// One worker at a time. Others leave their records in the log and go; this one finds them.
void Replica::append_and_answer() noexcept {
  for (;;) {  // bound: the records that are in flight
    RecordLog::Appended appended;
    if (!failed_.load(std::memory_order_relaxed)) appended = log_->append_ready();
    if (!appended.status.ok()) fail(appended.status.code(), appended.status.to_string());
    if (appended.last) answer_on_ = stripes_[*appended.last % stripes_.size()];
    answer();
    if (appended.records == 0) break;
  }
  if (log_->end() != nullptr) doorbell_.ring();
}

/// Says how far the copy has come, if that is news; an answer that finds no free place is not lost:
/// the next one covers it. So there is at most one answer per run of records, and fewer when the
/// primary is slow to take them.
void Replica::answer() noexcept {
  const std::uint64_t appended = log_->appended();
  // (5) acquire: pairs with (6): the report.
  if (report_ready_.load(std::memory_order_acquire) && !report_sent_) {
    InboundConnection* const to = answer_on_ != nullptr ? answer_on_ : stripes_.front();
    std::array<std::byte, Report::kBytes> payload;
    encode(report_, payload);
    const FrameHeader header{.kind = FrameKind::report,
                             .session = session_,
                             .number = appended,
                             .length = payload.size()};
    if (send_frame(*to, header, payload)) report_sent_ = true;
    return;
  }
  if (appended == acknowledged_ || answer_on_ == nullptr) return;
  const FrameHeader header{
      .kind = FrameKind::ack, .session = session_, .number = appended, .length = 0};
  if (send_frame(*answer_on_, header, {})) acknowledged_ = appended;
}

/// False: there is no place (or no connection) for it now.
bool Replica::send_frame(InboundConnection& to, FrameHeader header,
                         std::span<const std::byte> payload) noexcept {
  sluice::rpma::Connection* const link =
      to.link.load(std::memory_order_acquire);  // (2) pairs with (1)
  if (link == nullptr) return false;
  // (4) acquire: pairs with (3): the device has let go of the place.
  if (to.replies_sent - to.replies_done.load(std::memory_order_acquire) >=
      InboundConnection::kReplySlots)
    return false;
  const std::size_t offset = to.replies_sent % InboundConnection::kReplySlots * kReplyFrameBytes;
  const std::size_t size = FrameHeader::kBytes + payload.size();
  const auto frame = to.replies->memory().subspan(offset, size);
  std::ranges::copy(payload, frame.begin() + FrameHeader::kBytes);
  seal_frame(frame, header);
  const Status sent = link->send(to.replies.get(), offset, size, to.replies_sent);
  if (!sent.ok()) return false;  // the connection is going; on_closed will be told
  ++to.replies_sent;
  return true;
}

void Replica::on_closed(InboundConnection& connection) noexcept {
  if (connection.closed.exchange(true, std::memory_order_relaxed)) return;
  closed_.fetch_add(1, std::memory_order_release);  // (7) pairs with (8)
  doorbell_.ring();
}

// --- the main thread ---------------------------------------------------------------------------

/// Sleeps until done(), a signal, the starter's end, or the limit.
template <typename Done>
Status Replica::wait_until(Done done, std::optional<std::chrono::milliseconds> limit) {
  const auto deadline = Clock::now() + limit.value_or(0ms);
  for (;;) {
    SLUICE_RETURN_IF_ERROR(interrupts_.check());
    doorbell_.prepare_to_sleep();
    if (done()) break;
    int timeout = -1;
    if (limit) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      if (left <= 0ms) return Status(StatusCode::timed_out, "the time is over");
      timeout = static_cast<int>(left.count());
    }
    pollfd fds[] = {
        {doorbell_.fd(), POLLIN, 0}, {interrupts_.fd(), POLLIN, 0}, {starter_.fd(), POLLIN, 0}};
    poll(fds, 3, timeout);  // poll(2) passes over a negative descriptor
    doorbell_.awake();
    if (fds[2].revents != 0) return Status(StatusCode::cancelled, "the starter is gone");
  }
  doorbell_.awake();
  return {};
}

Status Replica::take_copy() {
  SLUICE_RETURN_IF_ERROR(wait_until(
      [this] {
        return log_->end() != nullptr || failed_.load(std::memory_order_acquire) ||
               closed_.load(std::memory_order_acquire) > 0;  // (8) pairs with (7)
      },
      std::nullopt));
  if (const Status why = failure(); !why.ok()) return why;
  if (log_->end() == nullptr)
    return Status(StatusCode::connection_lost,
                  fmt::format("the primary is gone after {} records: no copy", log_->appended()));
  return {};
}

/// Reads the copy back, compares it with what the primary said, and gives it its name.
Status Replica::finish_copy() {
  OutputFile& file = log_->file();
  report_.bytes = file.size();
  auto digest = file.digest();
  if (!digest) return digest.status();
  report_.digest = *digest;
  const EndOfStream& end = *log_->end();
  if (file.size() != end.bytes || *digest != end.digest) {
    report_.outcome = Report::Outcome::differs;
    return Status(StatusCode::device_failed,
                  fmt::format("the copy has {} bytes and SHA-256 {}, the original {} bytes and {}",
                              file.size(), to_hex(*digest), end.bytes, to_hex(end.digest)));
  }
  SLUICE_RETURN_IF_ERROR(file.commit(options_.fsync));
  report_.outcome = Report::Outcome::identical;
  return {};
}

/// Tells the primary how it went, if it is still there, and waits until it has closed.
void Replica::report_and_wait(const Status& outcome) {
  if (established_.load(std::memory_order_relaxed) == 0) return;
  report_.load = load_of(dispatcher_->counters());
  if (!outcome.ok()) report_.set_why(outcome.message());
  report_ready_.store(true, std::memory_order_release);  // (6) release: pairs with (5)
  appender_.run([this]() noexcept { append_and_answer(); });
  const Status closed = wait_until(
      [this] {
        return closed_.load(std::memory_order_acquire) >=
               established_.load(std::memory_order_relaxed);
      },
      kFarewellTimeout);
  if (closed.code() == StatusCode::timed_out)
    fmt::print(stderr, "sluice-replicate: the primary did not close within {} ms\n",
               kFarewellTimeout.count());
}

void Replica::fail(StatusCode code, std::string message) noexcept {
  const std::lock_guard lock(failure_mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  failure_ = Status(code, std::move(message));
  failed_.store(true, std::memory_order_release);
  doorbell_.ring();
}

Status Replica::failure() {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

}  // namespace replicate
