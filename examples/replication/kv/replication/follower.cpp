// SPDX-License-Identifier: BSD-3-Clause
#include "kv/replication/follower.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "kv/replication/frame_fill.hpp"
#include "kv/store/files.hpp"
#include "one_at_a_time.hpp"

namespace sluice::kv {
namespace {

constexpr const char* kRebuilding = "/REBUILDING";  ///< in the data folder, see README
constexpr std::size_t kAckSlots = 32;
constexpr std::size_t kMessagesAt = kAckSlots * wire::kAckBytes;  ///< behind the acks: one message
constexpr std::size_t kListingMax = std::size_t{64} << 20;

Status gone() {
  return {StatusCode::cancelled, "a later primary has come"};
}

}  // namespace

/// One connection from a primary. Its lane is all that touches what is not atomic.
struct Follower::Session final : Channel, std::enable_shared_from_this<Session> {
  Session(Follower& f, wire::Hello h) : follower(f), hello(std::move(h)) {}
  ~Session() override {
    if (file >= 0) ::close(file);
  }

  void on_receives(std::span<const ibv_wc> batch, ReceivePool& pool) noexcept override {
    follower.take_frames(*this, batch, pool);
  }
  void on_sends(std::span<const ibv_wc> batch) noexcept override {
    for (const ibv_wc& wc : batch)
      if (wc.wr_id < kAckSlots)
        acks_done.fetch_add(1, std::memory_order_release);  // (1) pairs with (2)
    if (!closed.load(std::memory_order_relaxed)) follower.acknowledge(*this);
  }
  void on_closed() noexcept override {
    follower.end(*this, {StatusCode::connection_lost, "its connection is closed"});
  }

  Follower& follower;
  const wire::Hello hello;
  Status unsuitable;  ///< why there will be no more than a refusal
  std::shared_ptr<rpma::MemoryRegion> ring;
  std::shared_ptr<rpma::MemoryRegion> messages;
  std::shared_ptr<ConnectionHandle> handle;  ///< set before the first frame can come
  std::atomic<bool> has_handle{false};
  std::atomic<bool> closed{false};
  std::atomic<bool> dropped{false};

  // The lane's; read by whoever acknowledges.
  std::atomic<std::uint64_t> matched{0};  ///< up to here the log is the primary's
  std::atomic<std::uint64_t> consumed{0};
  std::atomic<std::uint64_t> frames{0};

  /// Whoever is at it sends, and lets go of the connection when it is closed: so nobody sends on
  /// one that is gone.
  replicate::OneAtATime sending;
  std::atomic<std::size_t> message_bytes{0};  ///< of a report or a refusal that is to be sent
  wire::Ack last_ack;                         ///< of whoever sends, as is acks_sent
  std::uint64_t acks_sent = 0;
  std::atomic<std::uint64_t> acks_done{0};

  // A checkpoint that is being received.
  std::string listing;
  std::optional<Checkpoint> checkpoint;
  std::string incoming;
  std::uint32_t file_number = 0;
  int file = -1;
};

Follower::Follower(Parts parts) : parts_(std::move(parts)) {}
Follower::~Follower() = default;

Result<std::unique_ptr<Follower>> Follower::open(Parts parts) {
  auto follower = std::unique_ptr<Follower>(new Follower(std::move(parts)));
  const std::string path = follower->parts_.folder + "/EPOCH";
  if (::access(path.c_str(), F_OK) == 0) {
    const auto text = read_file(path, 64);
    if (!text) return text.status();
    std::uint64_t epoch = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), epoch);
    if (error != std::errc{} || (end != text->data() + text->size() && *end != '\n'))
      return Status(StatusCode::io_error,
                    path +
                        " does not hold a number: it says which epoch this node has promised to "
                        "follow; restore it, or remove the whole data folder");
    follower->promised_.store(epoch, std::memory_order_relaxed);
  }
  const std::uint64_t in_log = [&] {
    Journal::Lock lock(follower->parts_.journal);
    return follower->parts_.journal.log(lock).last_epoch();
  }();
  if (in_log > follower->promised()) follower->promised_.store(in_log, std::memory_order_relaxed);
  follower->rebuilding_.store(::access((follower->parts_.folder + kRebuilding).c_str(), F_OK) == 0,
                              std::memory_order_relaxed);
  return follower;
}

void Follower::say(const std::string& text) const {
  fmt::print(stderr, "sluice-kv: node {}: {}\n", parts_.self, text);
}

Status Follower::store_promise(std::uint64_t epoch) {
  return write_file_atomically(parts_.folder + "/EPOCH", std::to_string(epoch) + "\n");
}

Status Follower::promise(std::uint64_t epoch) {
  Journal::Lock lock(parts_.journal);
  if (epoch < promised())
    return {StatusCode::rejected, "epoch " + std::to_string(promised()) + " was promised, and " +
                                      std::to_string(epoch) + " is older"};
  if (epoch == promised()) return {};
  SLUICE_RETURN_IF_ERROR(store_promise(epoch));
  promised_.store(epoch, std::memory_order_relaxed);
  return {};
}

Status Follower::mark_rebuilding(const std::string& folder, const std::string& why) {
  return write_file_atomically(folder + kRebuilding, why);
}

Status Follower::begin_rebuilding() {
  SLUICE_RETURN_IF_ERROR(mark_rebuilding(
      parts_.folder, "this node's data was lost, and is fetched from the primary\n"));
  rebuild_target_.store(0, std::memory_order_relaxed);
  rebuilding_.store(true, std::memory_order_relaxed);
  return {};
}

// --- the set-up thread ---------------------------------------------------------------------------

std::shared_ptr<Channel> Follower::on_request(std::span<const std::byte> bytes) {
  auto hello = wire::decode_hello(bytes);
  Status why = hello.status();
  if (why.ok() && hello->cluster != wire::hash_of(parts_.cluster))
    why = {StatusCode::rejected, "node " + hello->node + " belongs to another cluster"};
  if (!why.ok()) say("refused a connection: " + why.message());
  // A rejection carries no reason to the other side: who is refused is told over the connection.
  auto session = std::make_shared<Session>(*this, hello.ok() ? std::move(*hello) : wire::Hello{});
  session->unsuitable = why;
  return session;
}

void Follower::on_connected(std::shared_ptr<ConnectionHandle> handle, Channel& channel) {
  const auto session = static_cast<Session&>(channel).shared_from_this();
  session->handle = std::move(handle);
  session->has_handle.store(true, std::memory_order_release);  // (5) pairs with (6)
  const std::uint64_t epoch = session->hello.epoch;
  const std::uint64_t before = promised();
  const Status promised_now = [&]() -> Status {
    if (!session->unsuitable.ok()) return session->unsuitable;
    if (const Status failed = parts_.journal.log().failed(); !failed.ok()) return failed;
    SLUICE_RETURN_IF_ERROR(promise(epoch));
    // What is installed replaces the log: nothing may be acknowledged meanwhile.
    Journal::Lock lock(parts_.journal);
    if (installing_) return {StatusCode::rejected, "it installs a checkpoint just now: try again"};
    return {};
  }();
  if (epoch > before && promised_now.ok()) parts_.on_newer_epoch(epoch);

  auto messages = rpma::MemoryRegion::allocate(
      parts_.transport.peer(), kMessagesAt + wire::kMessageBytesMax, RPMA_MR_USAGE_SEND);
  if (!messages) return end(*session, messages.status());
  session->messages = std::move(*messages);
  std::vector<std::byte> message;
  if (promised_now.ok()) {
    auto ring = rpma::MemoryRegion::allocate(parts_.transport.peer(), parts_.ring_bytes,
                                             RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC);
    if (!ring) return end(*session, ring.status());
    session->ring = std::move(*ring);
    std::shared_ptr<Session> before_it;
    {
      const std::lock_guard lock(mutex_);
      before_it = std::exchange(current_, session);
      last_error_.clear();
    }
    if (before_it != nullptr) end(*before_it, gone());
    auto descriptor = session->ring->descriptor();
    if (!descriptor) return end(*session, descriptor.status());
    Journal::Lock lock(parts_.journal);
    wire::Report report = make_report(lock);
    report.ring = std::move(*descriptor);
    message = wire::encode(report);
  } else {
    // The promise is news for primaries of this cluster only.
    message =
        wire::encode(wire::Refusal{.promised_epoch = session->unsuitable.ok() ? promised() : 0,
                                   .why = promised_now.message()});
  }
  send_message(*session, message);
  if (session->closed.load(std::memory_order_relaxed))  // before there was a handle to let go of
    end(*session, {StatusCode::connection_lost, "its connection is closed"});
}

void Follower::send_message(Session& session, std::span<const std::byte> message) {
  std::ranges::copy(message, session.messages->memory().subspan(kMessagesAt).begin());
  // (3) release: pairs with (4): the message is in place.
  session.message_bytes.store(message.size(), std::memory_order_release);
  acknowledge(session);
}

wire::Report Follower::make_report(const Journal::Lock& lock) const {
  const Log& log = parts_.journal.log(lock);
  wire::Report report;
  report.first_index = log.first_index();
  report.last_index = log.last_index();
  report.durable_index = log.durable_index();
  const Store::Position applied = parts_.store.applied();
  report.applied_index = applied.index;
  report.applied_epoch = applied.epoch;
  report.ring_bytes = parts_.ring_bytes;
  report.frames_max = Transport::kFramesMax;
  report.rebuilding = rebuilding();
  const auto epoch_of = [&](std::uint64_t index) {
    const auto epoch = log.epoch_of(index);
    return epoch.ok() ? *epoch : 0;
  };
  /// Epochs only rise: where the run that ends with `last` begins.
  const auto run_begins = [&](std::uint64_t epoch, std::uint64_t last) {
    std::uint64_t low = report.first_index, high = last;  // it is in [low, high]
    while (low < high) {
      const std::uint64_t middle = low + (high - low) / 2;
      if (epoch_of(middle) == epoch)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  };
  report.last_epoch = epoch_of(report.last_index);
  for (std::uint64_t last = report.last_index, begin = 0; last >= report.first_index;
       last = begin - 1) {
    if (report.runs.size() == wire::Report::kRunsMax) {
      // What is older than these runs is not spoken of: an earlier first entry than the first
      // run's is no use to anybody then.
      report.first_index = last + 1;
      break;
    }
    const std::uint64_t epoch = epoch_of(last);
    report.runs.push_back({epoch, last});
    begin = run_begins(epoch, last);
  }
  std::ranges::reverse(report.runs);
  return report;
}

// --- workers -------------------------------------------------------------------------------------

void Follower::take_frames(Session& session, std::span<const ibv_wc> batch,
                           ReceivePool& pool) noexcept {
  constexpr std::size_t kMost = 64;
  std::array<wire::Frame, kMost> frames;
  std::size_t count = 0;
  Status status;
  for (const ibv_wc& wc : batch) {
    const ReceivedBuffer buffer =
        pool.take(wc);  // a write with immediate takes one, and leaves it empty
    if (wc.status != IBV_WC_SUCCESS || session.closed.load(std::memory_order_relaxed)) continue;
    if (count == kMost) status = {StatusCode::internal, "more frames at once than are looked at"};
    if (!status.ok()) continue;
    const std::size_t at = std::size_t{ntohl(wc.imm_data)} * wire::kFrameAlign;
    if (wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM || session.ring == nullptr ||
        at >= session.ring->memory().size()) {
      status = {StatusCode::io_error, "something that is no frame"};
      continue;
    }
    auto frame = wire::open_frame(session.ring->memory().subspan(at));  // its CRC, outside any lock
    if (!frame.ok() || frame->header.epoch != session.hello.epoch)
      status =
          frame.ok() ? Status(StatusCode::rejected, "a frame of another epoch") : frame.status();
    else
      frames[count++] = *frame;
  }
  std::uint64_t commit = 0, fetch_from = 0;
  {
    Journal::Lock lock(parts_.journal);
    if (session.closed.load(std::memory_order_relaxed)) status = gone();
    for (std::size_t i = 0; i < count && status.ok(); ++i) {
      const wire::Frame& frame = frames[i];
      // A node that has nothing, in a cluster that has something, lost its disk: even if it was
      // fed a little since, it cannot speak for what it once acknowledged.
      if (!rebuilding() && parts_.journal.log().last_index() == 0 &&
          (frame.header.commit > 0 || frame.header.first_index > 1))
        status = begin_rebuilding();
      if (!status.ok()) break;
      if (frame.header.kind == wire::FrameKind::entries) {
        status = take_entries(lock, session, frame);
        if (!status.ok()) break;
        parts_.journal.want_disk(lock,
                                 std::min(frame.header.disk, parts_.journal.log().last_index()));
        commit = std::max(
            commit, std::min(frame.header.commit, session.matched.load(std::memory_order_relaxed)));
        if (rebuilding() && rebuild_target_.load(std::memory_order_relaxed) == 0)
          // `disk` is the primary's first entry at least, behind all that was ever acknowledged.
          rebuild_target_.store(
              std::max({std::uint64_t{1}, frame.header.commit, frame.header.disk}),
              std::memory_order_relaxed);
      } else {
        if (promised() != session.hello.epoch) {
          status = gone();
          break;
        }
        if (frame.header.kind == wire::FrameKind::fetch)
          fetch_from = frame.header.first_index;
        else
          status = take_checkpoint(session, frame);
      }
      session.frames.fetch_add(1, std::memory_order_relaxed);
      session.consumed.store(frame.header.position, std::memory_order_relaxed);
    }
    parts_.journal.submit_if_wanted(lock);
    parts_.applier.raise(commit);
  }
  if (!status.ok()) return end(session, status);
  if (count == 0) return;
  if (fetch_from > 0) answer_fetch(session, fetch_from);
  acknowledge(session);
  parts_.applier.kick();
  if (rebuilding()) note_rebuilt(session);
}

/// Puts entries where the other side can read them: in the half of the ring that it does not use
/// before it leads.
void Follower::answer_fetch(Session& session, std::uint64_t from) {
  const std::size_t offset =
      session.ring->memory().size() / 2 / wire::kFrameAlign * wire::kFrameAlign;
  const auto frame = session.ring->memory().subspan(offset);
  const Log& log = parts_.journal.log();
  wire::Fetched fetched{.offset = offset, .bytes = 0};
  const auto filled = fill_frame(log, from, frame);
  const auto previous = log.epoch_of(from - 1);
  if (filled && previous && filled->count > 0) {
    wire::seal({.kind = wire::FrameKind::entries,
                .bytes = static_cast<std::uint32_t>(filled->bytes),
                .count = filled->count,
                .epoch = session.hello.epoch,
                .first_index = from,
                .previous_epoch = *previous},
               frame);
    fetched.bytes = filled->bytes;
  }
  send_message(session, wire::encode(fetched));
}

bool Follower::is_current(const Session& session) const noexcept {
  return promised() == session.hello.epoch && !session.closed.load(std::memory_order_relaxed);
}

Status Follower::take_entries(Journal::Lock& lock, Session& session, const wire::Frame& frame) {
  if (!is_current(session)) return gone();
  const Log& log = parts_.journal.log(lock);
  const std::uint64_t before = frame.header.first_index - 1;
  if (before > log.last_index())
    return {StatusCode::internal, fmt::format("entry {} was left out", log.last_index() + 1)};
  if (before + 1 >= log.first_index()) {
    const auto epoch = log.epoch_of(before);
    if (!epoch || *epoch != frame.header.previous_epoch)
      return {StatusCode::internal,
              fmt::format("entry {} is another one here, and what follows does not fit", before)};
  }  // else: trimmed, so it was applied, so it counted
  if (before > session.matched.load(std::memory_order_relaxed))
    session.matched.store(before, std::memory_order_relaxed);
  return wire::each_entry(frame,
                          [&](const Entry& entry) { return take_entry(lock, session, entry); });
}

Status Follower::take_entry(Journal::Lock& lock, Session& session, const Entry& entry) {
  const Log& log = parts_.journal.log(lock);
  if (entry.index < log.first_index()) return {};
  if (entry.index <= log.last_index()) {
    const auto here = log.epoch_of(entry.index);
    if (here.ok() && *here == entry.epoch) {  // it has come before
      session.matched.store(std::max(entry.index, session.matched.load(std::memory_order_relaxed)),
                            std::memory_order_relaxed);
      return {};
    }
    // Nothing of it may be under way to the store.
    lock.give_up_for([&] { parts_.applier.cut(entry.index - 1); });
    SLUICE_RETURN_IF_ERROR(
        parts_.journal.wait_until_idle(lock, [&] { return !is_current(session); }));
    if (!is_current(session)) return gone();
    if (entry.index <= parts_.store.applied_index())
      return {StatusCode::internal,
              fmt::format("entry {} was applied here, and is another one there", entry.index)};
    say(fmt::format("entries {} to {} of epoch {} were never acknowledged, and are dropped",
                    entry.index, log.last_index(), here.ok() ? *here : 0));
    SLUICE_RETURN_IF_ERROR(parts_.journal.truncate_after(lock, entry.index - 1));
  }
  Status appended = parts_.journal.append(lock, entry);
  if (appended.code() == StatusCode::resource_exhausted) {
    // More than may lie in memory: the primary waits, since its ring is not consumed.
    parts_.journal.want_disk(lock, log.last_index());
    parts_.journal.submit_if_wanted(lock);
    SLUICE_RETURN_IF_ERROR(
        parts_.journal.wait_until_idle(lock, [&] { return !is_current(session); }));
    if (!is_current(session)) return gone();
    appended = parts_.journal.append(lock, entry);
  }
  SLUICE_RETURN_IF_ERROR(appended);
  session.matched.store(entry.index, std::memory_order_relaxed);
  return {};
}

void Follower::acknowledge(Session& session) noexcept {
  session.sending.run([this, &session]() noexcept {
    if (session.closed.load(std::memory_order_relaxed)) return let_go(session);
    // (4) acquire: pairs with (3).
    if (const std::size_t bytes = session.message_bytes.exchange(0, std::memory_order_acquire)) {
      const Status sent =
          session.handle->connection().send(session.messages.get(), kMessagesAt, bytes, kAckSlots);
      if (!sent.ok()) {
        session.closed.store(true, std::memory_order_relaxed);
        return let_go(session);
      }
    }
    // (2) acquire: pairs with (1): the device has let go of the place.
    if (session.acks_sent - session.acks_done.load(std::memory_order_acquire) >= kAckSlots) return;
    const std::uint64_t matched = session.matched.load(std::memory_order_relaxed);
    const wire::Ack ack{.memory = matched,
                        .durable = std::min(matched, parts_.journal.log().durable_index()),
                        .applied = parts_.store.applied_index(),
                        .consumed = session.consumed.load(std::memory_order_relaxed),
                        .frames = session.frames.load(std::memory_order_relaxed)};
    // Another primary may have cut the log between these two looks: then they say nothing.
    if (promised() != session.hello.epoch) return;
    if (ack.memory == session.last_ack.memory && ack.durable == session.last_ack.durable &&
        ack.frames == session.last_ack.frames)
      return;
    const std::size_t slot = session.acks_sent % kAckSlots;
    const std::size_t at = slot * wire::kAckBytes;
    const std::size_t bytes =
        wire::encode(ack, session.messages->memory().subspan(at, wire::kAckBytes));
    if (!session.handle->connection().send(session.messages.get(), at, bytes, slot).ok()) return;
    session.last_ack = ack;
    ++session.acks_sent;
  });
}

/// By whoever is sending (Session::sending).
void Follower::let_go(Session& session) noexcept {
  if (!session.has_handle.load(std::memory_order_acquire) ||  // (6) pairs with (5)
      session.dropped.exchange(true, std::memory_order_relaxed))
    return;
  parts_.transport.drop_async(session.handle, session.shared_from_this());
}

void Follower::durable_moved() noexcept {
  std::shared_ptr<Session> session;
  {
    const std::lock_guard lock(mutex_);
    session = current_;
  }
  if (session == nullptr || session->closed.load(std::memory_order_relaxed)) return;
  acknowledge(*session);
  if (rebuilding()) note_rebuilt(*session);
}

void Follower::note_rebuilt(const Session& session) noexcept {
  const std::uint64_t target = rebuild_target_.load(std::memory_order_relaxed);
  const std::uint64_t have = std::min(session.matched.load(std::memory_order_relaxed),
                                      parts_.journal.log().durable_index());
  if (target == 0 || have < target) return;
  if (!rebuilding_.exchange(false, std::memory_order_relaxed)) return;
  parts_.defer([this] {
    ::unlink((parts_.folder + kRebuilding).c_str());
    (void)sync_folder(parts_.folder);
    say("has all data again");
    parts_.on_rebuilt();
  });
}

void Follower::end(Session& session, const Status& why) noexcept {
  const bool is_first = !session.closed.exchange(true, std::memory_order_relaxed);
  const auto self = session.shared_from_this();
  {
    const std::lock_guard lock(mutex_);
    if (current_ == self) {
      current_ = nullptr;
      last_error_ = why.message();
    }
  }
  if (is_first && !why.ok() && why.code() != StatusCode::connection_lost &&
      why.code() != StatusCode::cancelled)
    say(fmt::format("from primary {}: {}", session.hello.node, why.message()));
  acknowledge(session);  // lets go of the connection, when it is nobody's turn to send
}

void Follower::close() {
  std::shared_ptr<Session> session;
  {
    const std::lock_guard lock(mutex_);
    session = current_;
  }
  if (session != nullptr) end(*session, gone());
}

Follower::Info Follower::info() const {
  const std::lock_guard lock(mutex_);
  return {current_ != nullptr ? current_->hello.node : std::string(), last_error_};
}

// --- a checkpoint --------------------------------------------------------------------------------

Status Follower::take_checkpoint(Session& session, const wire::Frame& frame) {
  switch (frame.header.kind) {
    case wire::FrameKind::entries:
    case wire::FrameKind::fetch: break;
    case wire::FrameKind::checkpoint_begin: {
      // The log and the store go back to it: until all is here again this node cannot speak for
      // what it acknowledged.
      if (session.listing.empty()) SLUICE_RETURN_IF_ERROR(begin_rebuilding());
      if (session.checkpoint) {  // another one
        session.checkpoint.reset();
        session.listing.clear();
      }
      if (session.listing.size() + frame.body.size() > kListingMax)
        return {StatusCode::resource_exhausted, "the listing of a checkpoint is too long"};
      session.listing.append(reinterpret_cast<const char*>(frame.body.data()), frame.body.size());
      return {};
    }
    case wire::FrameKind::checkpoint_file: {
      const auto part = wire::decode_file_part(frame.body);
      if (!part) return part.status();
      if (!session.checkpoint) {
        auto checkpoint = parse_checkpoint(session.listing);
        if (!checkpoint) return checkpoint.status();
        session.checkpoint = std::move(*checkpoint);
        session.incoming = parts_.store.incoming() + "/" +
                           std::to_string(checkpoints_.fetch_add(1, std::memory_order_relaxed));
        SLUICE_RETURN_IF_ERROR(remove_folder(session.incoming));
        SLUICE_RETURN_IF_ERROR(make_folder(session.incoming));
      }
      const auto& files = session.checkpoint->files;
      if (part->file >= files.size() || part->offset + part->bytes.size() > files[part->file].bytes)
        return {StatusCode::io_error, "a part of a file that is not in the checkpoint's listing"};
      if (session.file < 0 || session.file_number != part->file) {
        if (session.file >= 0) ::close(session.file);
        const std::string path = session.incoming + "/" + files[part->file].name;
        session.file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        session.file_number = part->file;
        if (session.file < 0) return {StatusCode::io_error, "write " + path, errno};
      }
      std::span<const std::byte> rest = part->bytes;
      for (std::uint64_t at = part->offset; !rest.empty();) {
        const ssize_t wrote =
            ::pwrite(session.file, rest.data(), rest.size(), static_cast<off_t>(at));
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0)
          return {errno == ENOSPC ? StatusCode::resource_exhausted : StatusCode::io_error,
                  "write a checkpoint's file in " + session.incoming, errno};
        rest = rest.subspan(static_cast<std::size_t>(wrote));
        at += static_cast<std::uint64_t>(wrote);
      }
      return {};
    }
    case wire::FrameKind::checkpoint_end: {
      if (session.file >= 0) ::close(std::exchange(session.file, -1));
      if (!session.checkpoint) return {StatusCode::io_error, "a checkpoint without files"};
      installing_ = true;  // the caller holds the journal's lock
      parts_.defer([this, shared = session.shared_from_this()] { install(shared); });
      return {};
    }
  }
  return {StatusCode::io_error, "a frame of an unknown kind"};
}

/// On a thread that may block.
void Follower::install(const std::shared_ptr<Session>& session) {
  const Status installed = parts_.applier.pause_for([&]() -> Status {
    SLUICE_RETURN_IF_ERROR(
        write_file_atomically(session->incoming + "/" + kCheckpointListing, session->listing));
    if (promised() != session->hello.epoch) return gone();
    SLUICE_RETURN_IF_ERROR(parts_.store.install_checkpoint(session->incoming));
    Journal::Lock lock(parts_.journal);
    SLUICE_RETURN_IF_ERROR(parts_.journal.wait_until_idle(lock));
    const Store::Position position = parts_.store.applied();
    return parts_.journal.restart_after(lock, position.index, position.epoch);
  });
  {
    Journal::Lock lock(parts_.journal);
    installing_ = false;
  }
  if (!installed.ok()) (void)remove_folder(session->incoming);
  if (!installed.ok()) return end(*session, installed.with_context("install a checkpoint"));
  say(fmt::format("installed a checkpoint of entry {}", session->checkpoint->index));
  std::vector<std::byte> message;
  {
    Journal::Lock lock(parts_.journal);
    wire::Report report = make_report(lock);
    auto descriptor = session->ring->descriptor();
    if (!descriptor) return end(*session, descriptor.status());
    report.ring = std::move(*descriptor);
    message = wire::encode(report);
    session->matched.store(0, std::memory_order_relaxed);
  }
  send_message(*session, message);
}

}  // namespace sluice::kv
