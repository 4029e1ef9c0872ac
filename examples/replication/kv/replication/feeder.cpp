// SPDX-License-Identifier: BSD-3-Clause
#include "kv/replication/feeder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kv/replication/frame_fill.hpp"
#include "kv/store/files.hpp"

namespace sluice::kv {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kReportLimit = 5s;
/// Until a replica has installed a checkpoint: it reads it through twice.
constexpr auto kInstallLimit = 600s;
constexpr auto kFirstRetry = 50ms;
constexpr auto kLastRetry = 500ms;
constexpr auto kSignOfLife = 100ms;
constexpr auto kLook = 50ms;
/// What goes into one frame, unless an entry is larger.
constexpr std::size_t kFrameBytes = std::size_t{256} << 10;
/// A replica that is further behind is fed by the feeder's own thread: what it lacks may have to be
/// read from files.
constexpr std::uint64_t kStreamingBytesBehind = std::uint64_t{4} << 20;
constexpr std::uint64_t kRingBytesMin = 256 * 1024;
/// Of a read; writes have their number in the connection.
constexpr std::uint64_t kReadId = ~std::uint64_t{0};

std::int64_t now_ns() noexcept {
  return Clock::now().time_since_epoch().count();
}

}  // namespace

std::string_view to_string(Feeder::State state) noexcept {
  switch (state) {
    case Feeder::State::connecting: return "connecting";
    case Feeder::State::waiting: return "waiting";
    case Feeder::State::catching_up: return "catching_up";
    case Feeder::State::checkpoint: return "checkpoint";
    case Feeder::State::streaming: return "streaming";
    case Feeder::State::refused: return "refused";
  }
  return "?";
}

/// One connection. Written by whoever pumps: the feeder's thread until `streaming`, then one of all
/// at a time (pumping_).
struct Feeder::Session final : Channel {
  explicit Session(Feeder& f) noexcept : feeder(f) {}

  /// A handler that did not return in time, when the connection was let go, must not find a feeder
  /// that is gone: from now on none enters, and those inside are waited for.
  void leave_feeder() noexcept {
    inside.fetch_add(kOver, std::memory_order_acq_rel);  // (5) pairs with (6), (7)
    for (std::uint32_t in = inside.load(std::memory_order_acquire); in != kOver;
         in = inside.load(std::memory_order_acquire))
      inside.wait(in, std::memory_order_acquire);
  }
  class Visit {
   public:
    explicit Visit(Session& session) noexcept : session_(session) {
      allowed_ = (session_.inside.fetch_add(1, std::memory_order_acq_rel) & kOver) == 0;  // (6)
    }
    ~Visit() {
      session_.inside.fetch_sub(1, std::memory_order_acq_rel);  // (7)
      session_.inside.notify_all();
    }
    explicit operator bool() const noexcept { return allowed_; }

   private:
    Session& session_;
    bool allowed_;
  };

  void on_receives(std::span<const ibv_wc> batch, ReceivePool& pool) noexcept override {
    const Visit visit(*this);
    if (!visit) return;  // the pool takes its buffers back itself
    bool acknowledged = false;
    for (const ibv_wc& wc : batch) {
      const ReceivedBuffer buffer = pool.take(wc);
      if (wc.status != IBV_WC_SUCCESS) continue;  // on_closed will be told
      const auto kind = wire::kind_of(buffer.bytes());
      if (!kind) return broken(kind.status());
      if (*kind == wire::MessageKind::ack) {
        const auto ack = wire::decode_ack(buffer.bytes());
        if (!ack) return broken(ack.status());
        consumed.store(ack->consumed, std::memory_order_release);  // (1) pairs with (2)
        frames_consumed.store(ack->frames, std::memory_order_relaxed);
        feeder.on_ack(*ack);
        acknowledged = true;
        continue;
      }
      const std::lock_guard lock(feeder.mutex_);
      if (*kind == wire::MessageKind::report) {
        auto decoded = wire::decode_report(buffer.bytes());
        if (decoded.ok())
          report = std::move(*decoded);
        else
          why = decoded.status();
      } else if (*kind == wire::MessageKind::fetched) {
        auto decoded = wire::decode_fetched(buffer.bytes());
        if (decoded.ok())
          fetched = *decoded;
        else
          why = decoded.status();
      } else {
        auto decoded = wire::decode_refusal(buffer.bytes());
        if (decoded.ok())
          refusal = std::move(*decoded);
        else
          why = decoded.status();
      }
      feeder.wake_.notify_all();
    }
    last_heard.store(now_ns(), std::memory_order_relaxed);
    if (!acknowledged) return;
    if (streaming.load(std::memory_order_relaxed)) {
      feeder.pump();
    } else {
      const std::lock_guard lock(feeder.mutex_);
      feeder.wake_.notify_all();
    }
    feeder.parts_.owner.on_progress();
  }
  void on_sends(std::span<const ibv_wc> batch) noexcept override {
    const Visit visit(*this);
    if (!visit) return;
    if (!std::ranges::all_of(batch, [](const ibv_wc& wc) { return wc.status == IBV_WC_SUCCESS; }))
      return broken({StatusCode::connection_lost, "a write to it failed"});
    if (std::ranges::any_of(batch, [](const ibv_wc& wc) { return wc.wr_id == kReadId; })) {
      const std::lock_guard lock(feeder.mutex_);
      read_done = true;
      feeder.wake_.notify_all();
    }
  }
  void on_closed() noexcept override {
    const Visit visit(*this);
    if (!visit) return;
    broken({StatusCode::connection_lost, "its connection is closed"});
  }
  void broken(Status status) noexcept {
    const std::lock_guard lock(feeder.mutex_);
    if (why.ok()) why = std::move(status);
    streaming.store(false, std::memory_order_relaxed);
    feeder.wake_.notify_all();
  }

  /// A place for a frame of so many bytes: its offset in the ring.
  [[nodiscard]] std::optional<std::size_t> reserve(std::size_t bytes) noexcept {
    if (frames - frames_consumed.load(std::memory_order_relaxed) >= frames_max) return std::nullopt;
    // (2) acquire: pairs with (1): what the replica has consumed may be written again.
    const std::uint64_t free = ring_bytes - (head - consumed.load(std::memory_order_acquire));
    const std::size_t size = wire::aligned(bytes, wire::kFrameAlign);
    const std::uint64_t at = head % ring_bytes;
    const std::uint64_t tail = ring_bytes - at;
    if (size <= tail) return size <= free ? std::optional(at) : std::nullopt;
    if (tail + size > free) return std::nullopt;
    head += tail;  // a frame is in one piece: the rest of this round stays empty
    return 0;
  }
  /// Sends the frame that is at this place of the staging memory.
  [[nodiscard]] Status send(wire::FrameHeader header, std::size_t at) {
    const std::size_t size = wire::aligned(header.bytes, wire::kFrameAlign);
    header.position = head + size;
    wire::seal(header, staging->memory().subspan(at, header.bytes));
    const auto place = static_cast<std::uint32_t>(at / wire::kFrameAlign);
    SLUICE_RETURN_IF_ERROR(handle->connection().write_with_imm(*ring, at, staging.get(), at,
                                                               header.bytes, place, frames));
    head += size;
    ++frames;
    last_sent = now_ns();
    return {};
  }

  [[nodiscard]] Clock::duration silent_for() const noexcept {
    return Clock::duration(now_ns() - last_heard.load(std::memory_order_relaxed));
  }

  Feeder& feeder;
  static constexpr std::uint32_t kOver = std::uint32_t{1} << 31;
  std::atomic<std::uint32_t> inside{0};  ///< handlers, and kOver
  std::shared_ptr<ConnectionHandle> handle;
  std::shared_ptr<rpma::MemoryRegion> staging;  ///< what the replica's ring is a copy of
  std::shared_ptr<rpma::RemoteRegion> ring;
  std::uint64_t ring_bytes = 0;
  std::uint32_t frames_max = 0;

  std::uint64_t next = 0;            ///< the first entry that was not written
  std::uint64_t previous_epoch = 0;  ///< of the one before
  std::uint64_t head = 0;            ///< position in the ring behind the last frame
  std::uint64_t frames = 0;          ///< written
  std::int64_t last_sent = 0;
  std::uint64_t bytes_per_entry = 64;  ///< of late
  /// Whoever writes; nobody does any more when the connection is let go. Free but when it changes
  /// hands between the feeder's thread and those that pump.
  std::mutex writing;
  bool let_go = false;  ///< guarded by `writing`
  std::atomic<bool> streaming{false};
  std::atomic<std::uint64_t> consumed{0}, frames_consumed{0};
  std::atomic<std::int64_t> last_heard{now_ns()};

  // Guarded by the feeder's mutex.
  std::optional<wire::Report> report;
  std::optional<wire::Refusal> refusal;
  std::optional<wire::Fetched> fetched;
  bool read_done = false;
  Status why;  ///< not ok: broken
};

Feeder::Feeder(std::string node, Parts parts) : node_(std::move(node)), parts_(std::move(parts)) {}
Feeder::~Feeder() {
  stop();
}

void Feeder::start() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "kv-feeder");
    run();
  });
}

void Feeder::ask_to_stop() noexcept {
  stop_.store(true, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  wake_.notify_all();
}

void Feeder::stop() {
  ask_to_stop();
  if (thread_.joinable()) thread_.join();
}

void Feeder::nudge() noexcept {
  const std::lock_guard lock(mutex_);
  wake_.notify_all();
}

std::shared_ptr<Feeder::Session> Feeder::session() const {
  const std::lock_guard lock(mutex_);
  return session_;
}

Progress Feeder::progress() const {
  return {node_, memory_.load(std::memory_order_relaxed), durable_.load(std::memory_order_relaxed)};
}

bool Feeder::connected() const {
  const std::lock_guard lock(mutex_);
  return session_ != nullptr && session_->why.ok();
}

Feeder::Snapshot Feeder::snapshot() const {
  Snapshot out;
  out.node = node_;
  out.state = state_.load(std::memory_order_relaxed);
  out.progress = progress();
  out.applied = applied_.load(std::memory_order_relaxed);
  out.next = next_.load(std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  out.connected = session_ != nullptr && session_->why.ok();
  if (session_ != nullptr) out.silent_for = session_->silent_for();
  out.last_error = last_error_;
  return out;
}

void Feeder::on_ack(const wire::Ack& ack) noexcept {
  memory_.store(ack.memory, std::memory_order_relaxed);
  durable_.store(ack.durable, std::memory_order_relaxed);
  applied_.store(ack.applied, std::memory_order_relaxed);
}

// --- the feeder's thread -------------------------------------------------------------------------

void Feeder::run() {
  auto retry = std::chrono::milliseconds(kFirstRetry);
  while (!stopping()) {
    const auto began = Clock::now();
    const Status status = serve_once();
    if (stopping()) break;
    if (Clock::now() - began > 2s) retry = kFirstRetry;
    std::unique_lock lock(mutex_);
    if (last_error_ != status.message()) {
      last_error_ = status.message();
      if (status.code() != StatusCode::unreachable)
        fmt::print(stderr, "sluice-kv: node {}: replica {}: {}\n", parts_.self, node_, last_error_);
    }
    wake_.wait_for(lock, retry, [this] { return stopping(); });
    retry = std::min(retry * 2, std::chrono::milliseconds(kLastRetry));
  }
}

Status Feeder::serve_once() {
  set_state(State::connecting);
  const std::string address = parts_.owner.address_of(node_);
  if (address.empty()) return {StatusCode::unreachable, "it is not there"};
  const auto where = parse_host_port(address);
  if (!where) return where.status();
  auto session = std::make_shared<Session>(*this);
  auto handle = parts_.transport.connect(
      *where, {wire::hash_of(parts_.cluster), parts_.owner.epoch(), parts_.self}, *session);
  if (!handle) return handle.status();
  session->handle = std::move(*handle);
  {
    const std::lock_guard lock(mutex_);
    session_ = session;
  }
  const Status outcome = [&]() -> Status {
    auto report = await_report(*session, kReportLimit);
    if (!report) return report.status();
    parts_.owner.on_report(node_, *report);
    return feed(*session, std::move(*report));
  }();
  {
    const std::lock_guard lock(mutex_);
    session_ = nullptr;
  }
  session->streaming.store(false, std::memory_order_relaxed);
  {
    const std::lock_guard lock(session->writing);
    session->let_go = true;
  }
  const auto handle_to_drop = session->handle;
  parts_.transport.drop(handle_to_drop, session);
  session->leave_feeder();
  // What it had in memory may be gone when it is back.
  memory_.store(durable_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  next_.store(0, std::memory_order_relaxed);
  return outcome;
}

Result<wire::Report> Feeder::await_report(Session& session, std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  const bool there = wake_.wait_for(lock, limit, [&] {
    return stopping() || session.report || session.refusal || !session.why.ok();
  });
  if (stopping()) return Status(StatusCode::cancelled, "this node leads no more");
  if (session.refusal) {
    const wire::Refusal refusal = *session.refusal;
    lock.unlock();
    set_state(State::refused);
    if (refusal.promised_epoch > parts_.owner.epoch())
      parts_.owner.on_superseded(refusal.promised_epoch);
    return Status(StatusCode::rejected, "it refuses: " + refusal.why);
  }
  if (session.report) {
    wire::Report report = std::move(*session.report);
    session.report.reset();
    return report;
  }
  if (!there) return Status(StatusCode::timed_out, "it does not say what it has");
  return session.why;
}

std::optional<std::uint64_t> Feeder::last_common(const wire::Report& report) const {
  const auto epoch_here = [this](std::uint64_t index) -> std::uint64_t {
    const auto epoch = parts_.log.epoch_of(index);
    return epoch.ok() ? *epoch : 0;
  };
  std::uint64_t common = 0;
  bool found = false;
  for (std::size_t i = report.runs.size(); i-- > 0 && !found;) {
    const wire::Run& run = report.runs[i];
    std::uint64_t low = i == 0 ? report.first_index : report.runs[i - 1].last_index + 1;
    std::uint64_t high = std::min(run.last_index, parts_.log.last_index());
    // Epochs only rise, so what both logs have of one is the front of the run.
    low = std::max(low, parts_.log.first_index());
    while (low <= high) {
      const std::uint64_t middle = low + (high - low) / 2;
      const std::uint64_t epoch = epoch_here(middle);
      if (epoch == run.epoch) {
        common = middle;
        found = true;
        low = middle + 1;
      } else if (epoch < run.epoch) {
        low = middle + 1;
      } else {
        high = middle - 1;
      }
    }
  }
  if (!found && report.last_index + 1 == report.first_index) {
    // An empty log says which entry is the last before it.
    if (epoch_here(report.last_index) == report.last_epoch &&
        report.last_index + 1 >= parts_.log.first_index() &&
        report.last_index <= parts_.log.last_index()) {
      common = report.last_index;
      found = true;
    }
  }
  if (!found && report.first_index == 1 && parts_.log.first_index() == 1) {
    common = 0;  // both reach back to the beginning, and differ from there on
    found = true;
  }
  if (!found || common + 1 < parts_.log.first_index()) return std::nullopt;
  return common;
}

std::optional<std::uint64_t> Feeder::common_point(const wire::Report& report) const {
  const auto common = last_common(report);
  // What it has applied cannot be taken back, and must be the same history.
  if (!common || *common < report.applied_index) return std::nullopt;
  const auto epoch = parts_.log.epoch_of(report.applied_index);
  if (epoch.ok() && *epoch != report.applied_epoch) return std::nullopt;
  return common;
}

/// The other way round: a node that was elected, or named, takes over what this one has more.
Status Feeder::fetch(Session& session, const wire::Report& report) {
  const auto common = last_common(report);
  if (!common) return {StatusCode::unreachable, "the two logs have nothing in common"};
  SLUICE_RETURN_IF_ERROR(parts_.owner.cut_after(*common));
  const auto wait_for = [&](auto&& there, const char* otherwise) -> Status {
    std::unique_lock lock(mutex_);
    const bool in_time = wake_.wait_for(lock, kReportLimit,
                                        [&] { return stopping() || there() || !session.why.ok(); });
    if (!session.why.ok()) return session.why;
    if (!in_time || stopping()) return {StatusCode::timed_out, otherwise};
    return {};
  };
  for (std::uint64_t from = *common + 1; from <= report.last_index;) {
    {
      const std::lock_guard lock(mutex_);
      session.fetched.reset();
      session.read_done = false;
    }
    session.next = from;
    SLUICE_RETURN_IF_ERROR(send_blocking(
        session, wire::FrameKind::fetch, [](std::span<std::byte>) { return std::size_t{0}; }, 0));
    wire::Fetched fetched;
    SLUICE_RETURN_IF_ERROR(wait_for(
        [&] {
          if (session.fetched) fetched = *session.fetched;
          return session.fetched.has_value();
        },
        "it does not answer"));
    if (fetched.bytes < wire::FrameHeader::kBytes || fetched.offset > session.ring_bytes ||
        fetched.bytes > session.ring_bytes - fetched.offset)
      return {StatusCode::io_error, "it has not what it said"};
    SLUICE_RETURN_IF_ERROR(session.handle->connection().read(session.staging.get(), fetched.offset,
                                                             *session.ring, fetched.offset,
                                                             fetched.bytes, kReadId));
    SLUICE_RETURN_IF_ERROR(
        wait_for([&] { return session.read_done; }, "its memory cannot be read"));
    const auto frame =
        wire::open_frame(session.staging->memory().subspan(fetched.offset, fetched.bytes));
    if (!frame) return frame.status();
    if (frame->header.first_index != from || frame->header.count == 0)
      return {StatusCode::io_error, "it has not what it said"};
    SLUICE_RETURN_IF_ERROR(parts_.owner.take_fetched(*frame));
    from += frame->header.count;
  }
  return {};
}

Status Feeder::feed(Session& session, wire::Report report) {
  // It may have lost what it once acknowledged.
  if (report.rebuilding) {
    memory_.store(0, std::memory_order_relaxed);
    durable_.store(0, std::memory_order_relaxed);
  } else {
    const std::uint64_t has =
        std::min(durable_.load(std::memory_order_relaxed), report.durable_index);
    memory_.store(has, std::memory_order_relaxed);
    durable_.store(has, std::memory_order_relaxed);
  }
  if (report.ring_bytes < kRingBytesMin || report.ring_bytes % wire::kFrameAlign != 0 ||
      report.frames_max == 0)
    return {StatusCode::rejected, "it offers a ring that cannot be used"};
  if (report.ring_bytes / 2 <
      parts_.entry_bytes_max + wire::kEntryHeaderBytes + wire::FrameHeader::kBytes)
    return {StatusCode::rejected,
            fmt::format("its ring of {} bytes is too small for entries of {}: give it the same "
                        "--ring-bytes as this node",
                        report.ring_bytes, parts_.entry_bytes_max)};
  auto ring = rpma::RemoteRegion::from_descriptor(report.ring);
  if (!ring) return ring.status();
  session.ring = std::move(*ring);
  session.ring_bytes = report.ring_bytes;
  session.frames_max = std::min(report.frames_max, Transport::kFramesMax);
  auto staging = rpma::MemoryRegion::allocate(parts_.transport.peer(), report.ring_bytes,
                                              RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_READ_DST);
  if (!staging) return staging.status();
  session.staging = std::move(*staging);

  {
    set_state(State::waiting);
    while (!stopping() && !parts_.owner.may_write()) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] {
          return stopping() || !session.why.ok() || parts_.owner.may_write() ||
                 parts_.owner.wants_from(node_);
        });
        if (!session.why.ok()) return session.why;
      }
      if (!stopping() && parts_.owner.wants_from(node_)) {
        SLUICE_RETURN_IF_ERROR(fetch(session, report).with_context("fetch what it has more"));
        parts_.owner.on_fetched(node_);
      }
    }
  }
  while (!stopping()) {
    const auto common = common_point(report);
    if (!common) {
      SLUICE_RETURN_IF_ERROR(send_checkpoint(session));
      auto again = await_report(session, std::chrono::milliseconds(kInstallLimit));
      if (!again) return again.status();
      report = std::move(*again);
      continue;  // has the log been trimmed meanwhile: once more
    }
    session.next = *common + 1;
    next_.store(session.next, std::memory_order_relaxed);  // keeps the log from being trimmed
    const auto previous = parts_.log.epoch_of(*common);
    if (!previous) continue;
    session.previous_epoch = *previous;
    break;
  }

  for (;;) {
    set_state(State::catching_up);
    for (;;) {
      if (stopping()) return {StatusCode::cancelled, "this node leads no more"};
      const Filled filled = fill(session);
      std::unique_lock lock(mutex_);
      if (!session.why.ok()) return session.why;
      if (filled == Filled::broken) return {StatusCode::connection_lost, "a write to it failed"};
      if (filled == Filled::all) break;
      const std::uint64_t seen = session.frames_consumed.load(std::memory_order_relaxed);
      wake_.wait_for(lock, kLook, [&] {
        return stopping() || !session.why.ok() ||
               session.frames_consumed.load(std::memory_order_relaxed) != seen;
      });
      if (session.silent_for() > parts_.silence)
        return {StatusCode::timed_out, "it takes nothing, and says nothing"};
    }
    set_state(State::streaming);
    {
      const std::lock_guard lock(mutex_);
      last_error_.clear();
    }
    session.streaming.store(true, std::memory_order_relaxed);
    pump();  // what was appended in between
    parts_.owner.on_progress();
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait_for(lock, kLook, [&] {
        return stopping() || !session.why.ok() ||
               !session.streaming.load(std::memory_order_relaxed);
      });
      if (stopping()) return {StatusCode::cancelled, "this node leads no more"};
      if (!session.why.ok()) return session.why;
      if (!session.streaming.load(std::memory_order_relaxed)) break;  // fell behind
      if (session.silent_for() > parts_.silence)
        return {StatusCode::timed_out, "it has been silent for too long"};
    }
  }
}

// --- writing -------------------------------------------------------------------------------------

void Feeder::pump() noexcept {
  pumping_.run([this]() noexcept {
    const auto session = this->session();
    if (session == nullptr || stopping() || !session->streaming.load(std::memory_order_relaxed))
      return;
    const Filled filled = fill(*session);
    if (filled == Filled::broken) {
      session->broken({StatusCode::connection_lost, "a write to it failed"});
    } else if (filled == Filled::no_room) {
      const std::uint64_t behind = parts_.log.last_index() + 1 - session->next;
      if (behind * session->bytes_per_entry > kStreamingBytesBehind) {
        session->streaming.store(false, std::memory_order_relaxed);
        nudge();
      }
    }
  });
}

Feeder::Filled Feeder::fill(Session& session) {
  const std::lock_guard lock(session.writing);
  if (session.let_go) return Filled::all;
  std::size_t wanted = kFrameBytes;
  for (;;) {  // bound: each turn writes an entry, or enlarges the frame once, or ends
    const bool nothing = session.next > parts_.log.last_index();
    if (nothing && now_ns() - session.last_sent < std::chrono::nanoseconds(kSignOfLife).count())
      return Filled::all;
    const std::size_t most = nothing ? wire::FrameHeader::kBytes : wanted;
    const auto at = session.reserve(most);
    if (!at) return Filled::no_room;
    const auto frame = session.staging->memory().subspan(*at, most);
    wire::FrameHeader header{.kind = wire::FrameKind::entries,
                             .epoch = parts_.owner.epoch(),
                             .disk = parts_.owner.disk_index(),
                             .first_index = session.next,
                             .previous_epoch = session.previous_epoch};
    FilledFrame filled{.bytes = wire::FrameHeader::kBytes, .last_epoch = session.previous_epoch};
    if (!nothing) {
      const auto read = fill_frame(parts_.log, session.next, frame);
      if (!read.ok()) {
        session.broken(read.status());  // trimmed under a replica that was too slow
        return Filled::broken;
      }
      filled = *read;
      if (filled.count == 0) {
        if (filled.needed == 0 || filled.needed > session.ring_bytes / 2) return Filled::broken;
        wanted = filled.needed;
        continue;
      }
      header.count = filled.count;
    }
    header.bytes = static_cast<std::uint32_t>(filled.bytes);
    header.commit = parts_.owner.commit_index();
    const Status sent = session.send(header, *at);
    if (sent.code() == StatusCode::resource_exhausted) return Filled::no_room;
    if (!sent.ok()) return Filled::broken;
    session.next += header.count;
    session.previous_epoch = filled.last_epoch;
    if (header.count > 0)
      session.bytes_per_entry = std::max<std::uint64_t>(1, filled.bytes / header.count);
    next_.store(session.next, std::memory_order_relaxed);
    wanted = kFrameBytes;
  }
}

/// Sends a frame that `body` fills in, and waits for room as long as the replica lives.
Status Feeder::send_blocking(Session& session, wire::FrameKind kind,
                             const std::function<std::size_t(std::span<std::byte>)>& body,
                             std::size_t bytes_max) {
  for (;;) {
    if (stopping()) return {StatusCode::cancelled, "this node leads no more"};
    if (const auto at = session.reserve(wire::FrameHeader::kBytes + bytes_max)) {
      const auto frame =
          session.staging->memory().subspan(*at, wire::FrameHeader::kBytes + bytes_max);
      const std::size_t bytes = body(frame.subspan(wire::FrameHeader::kBytes));
      const Status sent =
          session.send({.kind = kind,
                        .bytes = static_cast<std::uint32_t>(wire::FrameHeader::kBytes + bytes),
                        .epoch = parts_.owner.epoch(),
                        .first_index = session.next},
                       *at);
      if (sent.code() != StatusCode::resource_exhausted) return sent;
    }
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, kLook, [&] { return stopping() || !session.why.ok(); });
    if (!session.why.ok()) return session.why;
    if (session.silent_for() > parts_.silence + 10s)
      return {StatusCode::timed_out, "it takes no more of the checkpoint"};
  }
}

Status Feeder::send_checkpoint(Session& session) {
  set_state(State::checkpoint);
  constexpr std::size_t kPart = std::size_t{64} << 10;
  (void)remove_folder(parts_.checkpoint_folder);
  const auto checkpoint = parts_.store.make_checkpoint(parts_.checkpoint_folder);
  if (!checkpoint) return checkpoint.status().with_context("make a checkpoint for it");
  next_.store(checkpoint->index + 1, std::memory_order_relaxed);
  fmt::print(
      stderr, "sluice-kv: node {}: replica {} gets a checkpoint of entry {} ({} files, {} KiB)\n",
      parts_.self, node_, checkpoint->index, checkpoint->files.size(), checkpoint->bytes() / 1024);
  const Status sent = [&]() -> Status {
    const std::string listing = to_text(*checkpoint);
    for (std::size_t at = 0; at < listing.size(); at += kPart) {
      const std::size_t bytes = std::min(kPart, listing.size() - at);
      SLUICE_RETURN_IF_ERROR(send_blocking(
          session, wire::FrameKind::checkpoint_begin,
          [&](std::span<std::byte> out) {
            std::memcpy(out.data(), listing.data() + at, bytes);
            return bytes;
          },
          bytes));
    }
    for (std::uint32_t number = 0; number < checkpoint->files.size(); ++number) {
      const Checkpoint::File& file = checkpoint->files[number];
      const std::string path = parts_.checkpoint_folder + "/" + file.name;
      const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0) return {StatusCode::io_error, "read " + path, errno};
      Status status;
      for (std::uint64_t at = 0; at < file.bytes && status.ok();) {
        const std::size_t bytes = std::min<std::uint64_t>(kPart, file.bytes - at);
        ssize_t got = 0;
        status = send_blocking(
            session, wire::FrameKind::checkpoint_file,
            [&](std::span<std::byte> out) {
              wire::put_file_part_header(number, at, out);
              got = ::pread(fd, out.data() + wire::FilePart::kHeaderBytes, bytes,
                            static_cast<off_t>(at));
              return wire::FilePart::kHeaderBytes +
                     static_cast<std::size_t>(std::max<ssize_t>(got, 0));
            },
            wire::FilePart::kHeaderBytes + bytes);
        if (status.ok() && got <= 0) status = {StatusCode::io_error, "read " + path, errno};
        at += static_cast<std::uint64_t>(std::max<ssize_t>(got, 0));
      }
      ::close(fd);
      SLUICE_RETURN_IF_ERROR(status);
    }
    return send_blocking(
        session, wire::FrameKind::checkpoint_end,
        [](std::span<std::byte>) { return std::size_t{0}; }, 0);
  }();
  (void)remove_folder(parts_.checkpoint_folder);
  return sent;
}

}  // namespace sluice::kv
