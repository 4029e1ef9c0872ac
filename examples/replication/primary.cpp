// SPDX-License-Identifier: BSD-3-Clause
#include "primary.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "errors.hpp"
#include "sluice/core/rpma/sources.hpp"

namespace replicate {
namespace {

using namespace std::chrono_literals;
using sluice::Status;
using sluice::StatusCode;
using Clock = std::chrono::steady_clock;

constexpr auto kConnectTimeout = 400ms;  ///< of one attempt
constexpr int kConnectAttempts = 3;      ///< only for those that ran out of time
constexpr auto kDetachTimeout = 500ms;
/// A bound: on a loaded machine the last flushes may take longer than who has interrupted us waits.
constexpr auto kStopTimeout = 5s;
constexpr auto kStopTimeoutOfFailed = 500ms;
constexpr auto kStallCheckInterval = 250ms;
/// A replica reads its copy back before it reports: at least this fast, in bytes per second.
constexpr std::uint64_t kReadBackRate = 20'000'000;
/// Receives for answers beyond one per record in flight: the reports, and a little.
constexpr std::uint32_t kSpareAnswers = 4;

std::uint64_t random_session() {
  std::uint64_t session = 0;
  if (getrandom(&session, sizeof session, 0) != sizeof session)
    session = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
  return session | 1;  // never 0
}

}  // namespace

Primary::Primary(const Options& options, const InputFile& input, std::vector<ReplicaTarget> targets,
                 Interrupts& interrupts)
    : options_(options),
      input_(input),
      interrupts_(interrupts),
      records_((input.size() + options.record_size - 1) / options.record_size),
      session_(random_session()),
      progress_(records_),
      tracker_(options.replicas, *options.quorum,
               std::uint64_t{options.connections} * options.effective_window()),
      frame_(record_frame_bytes(options.record_size)),
      dropped_(targets.size()) {
  for (auto& target : targets) {
    const auto number = static_cast<std::uint32_t>(replicas_.size());
    replicas_.push_back(std::make_unique<ReplicaLink>(
        number, std::move(target), options.connections, options.effective_window(), frame_.size()));
  }
}

Primary::~Primary() = default;

Status Primary::run(Summary& summary) {
  Status outcome = [&]() -> Status {
    SLUICE_RETURN_IF_ERROR(open_device());
    SLUICE_RETURN_IF_ERROR(start_dispatcher());
    SLUICE_RETURN_IF_ERROR(connect_all());
    SLUICE_RETURN_IF_ERROR(ship());
    return await_reports();
  }();
  progress_.clear();
  if (dispatcher_ != nullptr) {
    summary.load = load_of(dispatcher_->counters());
    // Detaches what is still attached (connections, then the source) and ends the threads. After
    // this line no handler runs, and what they used may go.
    const Status stopped = dispatcher_->stop(outcome.ok() ? kStopTimeout : kStopTimeoutOfFailed);
    if (outcome.ok() && !stopped.ok()) outcome = stopped;
  }
  fill_in(summary);
  return outcome;
}

// --- set-up ------------------------------------------------------------------------------------

Status Primary::open_device() {
  const std::string& host = replicas_.front()->target().host;
  auto peer = options_.role == Role::all ? sluice::rpma::Peer::listen_on(host)
                                         : sluice::rpma::Peer::reach(host);
  if (!peer) return no_device_hint(peer.status(), host);
  peer_ = std::move(*peer);

  // Each answer covers at least one record in flight, so as many receives as there can be records
  // in flight are always enough.
  const std::uint64_t depth =
      std::uint64_t{options_.replicas} *
      (std::uint64_t{options_.connections} * options_.effective_window() + kSpareAnswers);
  auto srq = sluice::rpma::SharedReceiveQueue::create(
      peer_, {.depth = static_cast<std::uint32_t>(depth), .receive_cq_size = {}});
  if (!srq) return srq.status();
  srq_ = std::move(*srq);
  auto pool = srq_->stock(static_cast<std::uint32_t>(depth), kReplyFrameBytes);
  if (!pool) return pool.status();
  answers_ = *pool;
  for (auto& replica : replicas_) SLUICE_RETURN_IF_ERROR(replica->allocate(peer_));
  return {};
}

Status Primary::start_dispatcher() {
  auto dispatcher = sluice::Dispatcher::start(
      options_.dispatcher_config(options_.replicas * options_.connections));
  if (!dispatcher) return dispatcher.status();
  dispatcher_ = std::move(*dispatcher);
  auto source = dispatcher_->attach(
      srq_->receive_cq(),
      {.pool = "records", .order = sluice::Order::per_connection, .receive_pool = answers_},
      [this](std::span<const ibv_wc> batch, const sluice::BatchInfo& info) noexcept {
        on_replies(batch, *static_cast<OutboundConnection*>(info.context));
      });
  if (!source) return source.status();
  answer_source_ = std::move(*source);

  watched_ = {{doorbell_.fd(), POLLIN, 0}, {interrupts_.fd(), POLLIN, 0}};
  for (const auto& replica : replicas_)
    watched_.push_back({replica->target().control_fd, POLLIN, 0});
  return {};
}

Status Primary::connect_all() {
  for (auto& replica : replicas_) {
    for (OutboundConnection& connection : replica->connections()) {
      SLUICE_RETURN_IF_ERROR(interrupts_.check());
      if (const Status connected = connect(*replica, connection); !connected.ok())
        return connected.with_context(replica->name());
    }
  }
  return {};
}

Status Primary::connect(ReplicaLink& replica, OutboundConnection& connection) {
  sluice::rpma::ConnectionConfig config;
  config.srq = srq_;
  // A send's credit comes back a little after on_sent has run: twice the window, so that the window
  // is what runs out first.
  config.send_queue_size = 2 * replica.window();
  config.timeout = kConnectTimeout;
  const auto hello = encode(Hello{.session = session_,
                                  .replica = static_cast<std::uint16_t>(replica.number()),
                                  .connection = static_cast<std::uint16_t>(connection.index),
                                  .connections = static_cast<std::uint16_t>(options_.connections),
                                  .record_size = static_cast<std::uint32_t>(options_.record_size)});
  for (int attempt = 1;; ++attempt) {
    sluice::ConnectionOptions attach;
    attach.pool = "records";
    attach.order = sluice::Order::per_connection;
    attach.context = &connection;
    attach.receive_source = answer_source_;
    attach.handler = [this](std::span<const ibv_wc> batch, const sluice::BatchInfo& info) noexcept {
      on_sent(batch, *static_cast<OutboundConnection*>(info.context));
    };
    attach.on_event = [this, &replica](sluice::ConnectionId, sluice::rpma::ConnectionEvent) {
      lost(replica, ReplicaLink::Down::closed);
    };
    auto handle =
        dispatcher_->connect(peer_, replica.target().host, std::to_string(replica.target().port),
                             config, hello, std::move(attach), kConnectTimeout);
    if (handle) {
      connection.handle = std::move(*handle);
      const auto welcome = decode_welcome(connection.handle->connection().private_data());
      if (!welcome.value) return Status(StatusCode::rejected, welcome.error);
      return replica.welcome(*welcome.value, options_.record_size);
    }
    if (handle.status().code() == StatusCode::rejected)
      return Status(StatusCode::rejected,
                    "refused the connection: nobody listens there, it serves another primary, or "
                    "the record size, "
                    "connections or version do not suit it (it says why on its stderr)");
    if (handle.status().code() != StatusCode::timed_out) return handle.status();
    if (attempt == kConnectAttempts)
      return Status(StatusCode::unreachable,
                    fmt::format("no connection in {} attempts of {} ms ({})", attempt,
                                kConnectTimeout.count(), handle.status().message()));
  }
}

// --- workers -----------------------------------------------------------------------------------

void Primary::on_replies(std::span<const ibv_wc> batch, OutboundConnection& from) noexcept {
  ReplicaLink& replica = *from.replica;
  std::uint64_t appended = 0;
  for (const ibv_wc& wc : batch) {
    const sluice::ReceivedBuffer buffer =
        answers_->take(wc);                     // posted again at the end of the loop
    if (wc.status != IBV_WC_SUCCESS) continue;  // on_event will be told
    const Frame frame = open_frame(buffer.bytes(), session_);
    const bool is_report = frame.header.kind == FrameKind::report;
    if (!frame.ok() || (!is_report && frame.header.kind != FrameKind::ack))
      return lost(replica, ReplicaLink::Down::protocol);
    appended = std::max(appended, frame.header.number);
    if (!is_report) continue;
    const auto report = decode_report(frame.payload);
    if (!report) return lost(replica, ReplicaLink::Down::protocol);
    replica.took_report(*report);
    if (!replica.identical()) lost(replica, ReplicaLink::Down::reported);
  }
  if (!tracker_.appended(replica.number(), appended))
    return lost(replica, ReplicaLink::Down::protocol);
  doorbell_.ring();
}

void Primary::on_sent(std::span<const ibv_wc> batch, OutboundConnection& to) noexcept {
  const auto done = std::ranges::count(batch, IBV_WC_SUCCESS, &ibv_wc::status);
  to.sent.fetch_add(static_cast<std::uint64_t>(done),
                    std::memory_order_release);  // (4) pairs with (3) in has_room()
  if (static_cast<std::size_t>(done) != batch.size())
    lost(*to.replica, ReplicaLink::Down::send_failed);
  doorbell_.ring();
}

void Primary::lost(ReplicaLink& replica, ReplicaLink::Down why) noexcept {
  if (replica.identical()) return;  // it has done its part and may go
  if (replica.lost(why)) doorbell_.ring();
}

// --- the feeder --------------------------------------------------------------------------------

Status Primary::ship() {
  started_ = Clock::now();
  for (std::uint64_t number = 0; number < records_; ++number) {
    SLUICE_RETURN_IF_ERROR(read_record(number));
    SLUICE_RETURN_IF_ERROR(send_to_all(number, std::span(frame_).first(frame_size_)));
  }
  digest_ = sha_.finish();
  const auto frame = std::span(frame_).first(FrameHeader::kBytes + EndOfStream::kBytes);
  encode(EndOfStream{.bytes = input_.size(), .digest = *digest_},
         frame.subspan(FrameHeader::kBytes).first<EndOfStream::kBytes>());
  seal_frame(frame, {.kind = FrameKind::end,
                     .session = session_,
                     .number = records_,
                     .length = EndOfStream::kBytes});
  return send_to_all(records_, frame);
}

/// Makes frame_ the record's frame.
Status Primary::read_record(std::uint64_t number) {
  const std::uint64_t offset = number * options_.record_size;
  const auto length =
      static_cast<std::uint32_t>(std::min(options_.record_size, input_.size() - offset));
  frame_size_ = FrameHeader::kBytes + length;
  const auto frame = std::span(frame_).first(frame_size_);
  const auto payload = frame.subspan(FrameHeader::kBytes);
  SLUICE_RETURN_IF_ERROR(input_.read(offset, payload));
  sha_.update(payload);
  seal_frame(frame,
             {.kind = FrameKind::data, .session = session_, .number = number, .length = length});
  return {};
}

/// Waits until each replica that is up has room, then sends to all of them. So the slowest living
/// replica sets the pace once it is a whole window behind; the quorum alone decides what counts.
Status Primary::send_to_all(std::uint64_t number, std::span<const std::byte> frame) {
  const bool is_record = number < records_;
  SLUICE_RETURN_IF_ERROR(wait_until([&] {
    return (!is_record || tracker_.has_room()) &&
           std::ranges::all_of(replicas_, [&](const auto& replica) {
             return !replica->up() ||
                    replica->has_room(number, tracker_.appended_by(replica->number()));
           });
  }));
  if (is_record) tracker_.sent();
  for (auto& replica : replicas_)
    if (replica->up() && !replica->send(number, frame).ok())
      lost(*replica, ReplicaLink::Down::send_failed);
  return {};
}

Status Primary::await_reports() {
  SLUICE_RETURN_IF_ERROR(wait_until([&] {
    if (committed_all_ == Clock::time_point{} && tracker_.committed() == records_)
      committed_all_ = Clock::now();
    return tracker_.committed() == records_ &&
           std::ranges::all_of(replicas_, [](const auto& replica) {
             return !replica->up() || replica->report() != nullptr;
           });
  }));
  return drop_the_lost();
}

/// Sleeps until done(), and meanwhile does what look_around() does.
template <typename Done>
Status Primary::wait_until(Done done) {
  for (;;) {
    SLUICE_RETURN_IF_ERROR(look_around());
    doorbell_.prepare_to_sleep();
    // A replica that went down since look_around() is news as well: its place in the quorum counts.
    if (done()) break;
    const auto tick = progress_.shown() ? Progress::kInterval : kStallCheckInterval;
    poll(watched_.data(), watched_.size(), static_cast<int>(tick.count()));
    doorbell_.awake();
    look_for_ended_processes();
  }
  doorbell_.awake();
  return {};
}

Status Primary::look_around() {
  SLUICE_RETURN_IF_ERROR(interrupts_.check());
  kill_one_if_due();
  if (const auto now = Clock::now(); now >= next_stall_check_) look_for_stalled(now);
  progress_.update(tracker_.committed());
  return drop_the_lost();
}

void Primary::look_for_ended_processes() {
  constexpr std::size_t kFirstProcess = 2;  // in watched_
  for (std::size_t i = kFirstProcess; i < watched_.size(); ++i) {
    if (watched_[i].revents == 0) continue;
    watched_[i].fd = -1;
    lost(*replicas_[i - kFirstProcess], ReplicaLink::Down::process_ended);
  }
}

void Primary::look_for_stalled(Clock::time_point now) {
  next_stall_check_ = now + kStallCheckInterval;
  auto limit = std::chrono::nanoseconds(options_.timeout());
  if (digest_)
    limit +=
        std::chrono::seconds(input_.size() / kReadBackRate);  // all is sent: it may be reading back
  for (auto& replica : replicas_)
    if (replica->up() && replica->stalled(tracker_.appended_by(replica->number()), now, limit))
      lost(*replica, ReplicaLink::Down::stalled);
}

void Primary::kill_one_if_due() {
  if (!options_.kill_one || killed_one_ || tracker_.committed() < records_ / 2) return;
  killed_one_ = true;
  const ReplicaTarget& victim = replicas_.back()->target();
  progress_.clear();
  fmt::print(stderr,
             "sluice-replicate: killing process {}, {}, after {} records, as --kill-one asks\n",
             victim.pid, replicas_.back()->name(), tracker_.committed());
  kill(victim.pid, SIGKILL);
}

/// Says which replicas are lost, tears their connections down, and sees whether a quorum is left.
Status Primary::drop_the_lost() {
  for (auto& replica : replicas_) {
    if (replica->up() || dropped_[replica->number()]) continue;
    dropped_[replica->number()] = true;
    progress_.clear();
    fmt::print(
        stderr,
        "sluice-replicate: {} is lost after {} records: {}; {} of {} are left, the quorum is {}\n",
        replica->name(), tracker_.appended_by(replica->number()), replica->why_down(), count_up(),
        options_.replicas, *options_.quorum);
    replica->detach(kDetachTimeout);
  }
  if (count_up() >= *options_.quorum) return {};
  const auto differs = std::ranges::any_of(replicas_, [](const auto& replica) {
    return replica->report() != nullptr && replica->report()->outcome == Report::Outcome::differs;
  });
  const auto stalled = std::ranges::any_of(
      replicas_, [](const auto& replica) { return replica->down() == ReplicaLink::Down::stalled; });
  return Status(
      differs   ? StatusCode::device_failed
      : stalled ? StatusCode::timed_out
                : StatusCode::connection_lost,
      fmt::format("no quorum any more: {} of {} replicas are left and it takes {}; {} of {} "
                  "records are committed",
                  count_up(), options_.replicas, *options_.quorum, tracker_.committed(), records_));
}

std::uint32_t Primary::count_up() const noexcept {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(replicas_, [](const auto& replica) { return replica->up(); }));
}

void Primary::fill_in(Summary& summary) const {
  summary.shipped = started_ != Clock::time_point{};
  summary.input_path = input_.path();
  summary.input_bytes = input_.size();
  summary.input_digest = digest_;
  summary.records = records_;
  summary.committed = tracker_.committed();
  summary.latencies = tracker_.latencies();
  if (committed_all_ != Clock::time_point{})
    summary.seconds = std::chrono::duration<double>(committed_all_ - started_).count();
  for (const auto& replica : replicas_) {
    Summary::Replica entry;
    entry.name = replica->name();
    entry.appended = tracker_.appended_by(replica->number());
    if (replica->report() != nullptr) entry.report = *replica->report();
    if (!replica->up()) entry.lost = replica->why_down();
    summary.replicas.push_back(std::move(entry));
  }
}

}  // namespace replicate
