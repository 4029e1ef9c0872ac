// SPDX-License-Identifier: BSD-3-Clause
#include "engine.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "../support.hpp"

namespace embedded {

using namespace std::chrono_literals;
using sluice::BatchInfo;
using sluice::Result;
using sluice::Runnable;
using sluice::Status;
using sluice::StatusCode;

namespace {

constexpr std::uint32_t kWorkers = 2;
constexpr auto kStopTimeout = 5s;
/// As many acknowledgements as can be on their way. A send's credit comes back after its handler
/// has returned: hence twice as many in the send queue.
constexpr std::uint32_t kReplySlots = kWindow;

/// What an operation of a ring is about, in its user_data.
struct Step {
  std::uint32_t connection, number;
  bool sync;
  [[nodiscard]] std::uint64_t pack() const {
    return std::uint64_t{connection} << 33 | std::uint64_t{number} << 1 | (sync ? 1U : 0U);
  }
  static Step unpack(std::uint64_t data) {
    return {static_cast<std::uint32_t>(data >> 33), static_cast<std::uint32_t>(data >> 1),
            (data & 1) != 0};
  }
};

std::vector<int> threads_of_this_process() {
  std::vector<int> ids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    ids.push_back(std::stoi(entry.path().filename().string()));
  return ids;
}

std::string name_of_thread(int id) {
  std::string name;
  std::ifstream in("/proc/self/task/" + std::to_string(id) + "/comm");
  std::getline(in, name);
  return name;
}

}  // namespace

/// One connection. Written to by the handlers of its lane only, but for what is atomic.
struct Engine::Link {
  std::uint32_t number = 0;
  int log = -1;
  std::string path;
  std::shared_ptr<sluice::ConnectionHandle> handle;
  std::shared_ptr<sluice::rpma::MemoryRegion> replies;
  std::atomic<sluice::ReceivePool*> buffers{nullptr};
  std::atomic<bool> taken{false}, down{false};
  /// Records are written from where the device put them: posted again when they are durable.
  std::array<sluice::ReceivedBuffer, kWindow> writing;
  std::array<bool, kWindow> on_disk{};
  std::uint32_t received = 0, durable = 0, total = 0;
  std::uint64_t acknowledged = 0, replies_sent = 0, replies_done = 0;
  bool failed = false;

  ~Link() {
    if (log >= 0) ::close(log);
  }
};

/// What one of the engine's threads has.
struct Engine::Loop {
  std::uint32_t number = 0;
  int epoll = -1;
  sluice::EventFd wake;  ///< stands for whatever an engine's loop waits for besides
  std::uint64_t sleeps = 0, events = 0;
  std::thread thread;
  std::atomic<int> id{0};
  ~Loop() {
    if (epoll >= 0) ::close(epoll);
  }
};

Engine::Engine(std::string folder, std::string address)
    : folder_(std::move(folder)), address_(std::move(address)) {}
Engine::~Engine() = default;

// --- set-up ------------------------------------------------------------------------------------

Status Engine::start() {
  SLUICE_RETURN_IF_ERROR(open_logs());
  auto peer = sluice::rpma::Peer::listen_on(address_);
  if (!peer) return embedding::no_device(address_, peer.status());
  peer_ = std::move(*peer);
#ifdef __SANITIZE_THREAD__
  std::thread([] {}).join();  // the sanitizer's runtime starts one of its own with the first
#endif
  threads_before_ = threads_of_this_process();

  sluice::DispatcherConfig config;
  config.drive = sluice::Drive::host;  // no thread is made: ours call run_once()
  config.pollers[0].wait = sluice::WaitMode::event;
  config.pools[0].workers = kWorkers;
  auto dispatcher = sluice::Dispatcher::start(config);
  if (!dispatcher) return dispatcher.status();
  dispatcher_ = std::move(*dispatcher);
  SLUICE_RETURN_IF_ERROR(attach_rings());
  return listen();
}

Status Engine::open_logs() {
  for (std::uint32_t i = 0; i < kConnections; ++i) {
    auto link = std::make_unique<Link>();
    link->number = i;
    link->path = folder_ + "/connection-" + std::to_string(i) + ".log";
    link->log = ::open(link->path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (link->log < 0) return {StatusCode::io_error, "cannot write " + link->path, errno};
    links_.push_back(std::move(link));
  }
  return {};
}

/// A ring for each thread that submits. All of them are one poller's, beside the connections.
Status Engine::attach_rings() {
  constexpr std::uint32_t kOperations = 2 * kConnections * kWindow;  // a write and a sync each
  for (std::uint32_t worker = 0; worker < kWorkers; ++worker) {
    auto ring =
        sluice::uring::Ring::create({.submissions = kOperations, .completions = 2 * kOperations},
                                    "ring " + std::to_string(worker));
    if (!ring) return ring.status();
    rings_.push_back(*ring);
    sluice::AttachOptions options;
    options.order = sluice::Order::per_key;
    options.key = sluice::uring_key([](const io_uring_cqe& cqe) noexcept {
      return std::uint64_t{Step::unpack(cqe.user_data).connection};
    });
    auto source = dispatcher_->attach(
        *ring, std::move(options),
        sluice::uring_handler([this](std::span<const io_uring_cqe> cqes,
                                     const BatchInfo&) noexcept { on_written(cqes); }));
    if (!source) return source.status();
    ring_sources_.push_back(*source);
  }
  return {};
}

Status Engine::listen() {
  auto endpoint = embedding::listen_on_free_port(peer_, address_, port_);
  if (!endpoint) return endpoint.status();
  sluice::ListenOptions options;
  options.config.send_queue_size = 2 * kReplySlots;
  options.config.receive_queue_size = kWindow;
  options.on_request = [this](std::span<const std::byte> hello) { return on_request(hello); };
  options.on_connected = [this](std::shared_ptr<sluice::ConnectionHandle> handle) {
    on_connected(std::move(handle));
  };
  auto listener = dispatcher_->listen(std::move(*endpoint), std::move(options));
  if (!listener) return listener.status();
  listener_ = std::move(*listener);
  return {};
}

// --- connections: on the thread that drives control() --------------------------------------------

std::optional<sluice::ConnectionOptions> Engine::on_request(std::span<const std::byte> data) {
  Hello hello{};
  if (data.size() < sizeof hello) return std::nullopt;
  std::memcpy(&hello, data.data(), sizeof hello);
  if (hello.magic != kMagic || hello.connection >= kConnections) return std::nullopt;
  Link* const link = links_[hello.connection].get();
  if (link->taken.exchange(true, std::memory_order_relaxed)) return std::nullopt;
  taken_.fetch_add(1, std::memory_order_relaxed);
  sluice::ConnectionOptions options;
  options.context = link;
  options.order = sluice::Order::per_key;
  options.key = [number = link->number](const ibv_wc&) noexcept { return std::uint64_t{number}; };
  options.handler = [this, link](std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
    on_completions(*link, batch, info.worker);
  };
  options.on_event = [this, link](sluice::ConnectionId, sluice::rpma::ConnectionEvent) {
    if (link->down.exchange(true, std::memory_order_relaxed)) return;  // closed, and lost as well
    closed_.fetch_add(1, std::memory_order_relaxed);
    end_if_all_is_done();
  };
  return options;
}

void Engine::on_connected(std::shared_ptr<sluice::ConnectionHandle> handle) {
  Link& link = *static_cast<Link*>(handle->context());
  auto& connection = handle->connection();
  auto replies = sluice::rpma::MemoryRegion::allocate(peer_, kReplySlots * sizeof(Acknowledgement),
                                                      RPMA_MR_USAGE_SEND);
  if (!replies) return fail(link, replies.status().to_string());
  link.replies = std::move(*replies);
  link.handle = std::move(handle);
  auto buffers = connection.stock(kWindow, kRecordBytes);
  if (!buffers) return fail(link, buffers.status().to_string());
  // (1) release: pairs with (2). No record comes before the sender has got the first
  // acknowledgement, so no handler looks for the buffers earlier.
  link.buffers.store(*buffers, std::memory_order_release);
  const Acknowledgement none{0};
  std::memcpy(link.replies->memory().data(), &none, sizeof none);
  link.replies_sent = 1;
  if (const Status sent = connection.send(link.replies.get(), 0, sizeof none, 0); !sent.ok())
    fail(link, sent.to_string());
}

// --- handlers: on whichever engine thread drives the worker
// ---------------------------------------

void Engine::on_completions(Link& link, std::span<const ibv_wc> batch,
                            std::uint32_t worker) noexcept {
  // (2) acquire: pairs with (1).
  sluice::ReceivePool* const buffers = link.buffers.load(std::memory_order_acquire);
  sluice::uring::Ring& ring = *rings_[worker];  // this thread's own
  bool submit = false;
  for (const ibv_wc& wc : batch) {
    const bool is_receive = buffers != nullptr && buffers->owns(wc.wr_id);
    if (wc.status != IBV_WC_SUCCESS || stopping_.load(std::memory_order_relaxed)) {
      if (is_receive) buffers->take(wc).release();  // a failed one was flushed: on_event is told
    } else if (is_receive) {
      write(link, ring, wc);
      submit = true;
    } else {
      ++link.replies_done;
      acknowledge(link);  // what found no free place
    }
  }
  if (!submit) return;
  if (const Status status = ring.submit(); !status.ok()) fail(link, status.to_string());
}

/// From the buffer where the device put it, into the log, and synced: nothing is copied.
void Engine::write(Link& link, sluice::uring::Ring& ring, const ibv_wc& wc) noexcept {
  const std::uint32_t number = link.received;
  sluice::ReceivedBuffer& buffer = link.writing[number % kWindow];
  buffer = link.buffers.load(std::memory_order_relaxed)->take(wc);
  if (!is_whole(buffer.bytes(), link.number, number)) {
    buffer.release();
    return fail(link, "a record is damaged");
  }
  ++link.received;
  link.total = header_of(buffer.bytes()).total;
  io_uring_sqe* chain[2];
  if (!ring.try_prepare(chain)) {  // it was made for all
    buffer.release();
    return fail(link, "the ring is full");
  }
  ::io_uring_prep_write(chain[0], link.log, buffer.bytes().data(), kRecordBytes,
                        std::uint64_t{number} * kRecordBytes);
  chain[0]->flags |= IOSQE_IO_LINK;  // the sync only if all was written
  chain[0]->user_data = Step{link.number, number, false}.pack();
  ::io_uring_prep_fsync(chain[1], link.log, IORING_FSYNC_DATASYNC);
  chain[1]->user_data = Step{link.number, number, true}.pack();
}

void Engine::on_written(std::span<const io_uring_cqe> cqes) noexcept {
  for (const io_uring_cqe& cqe : cqes) {
    const Step step = Step::unpack(cqe.user_data);
    Link& link = *links_[step.connection];
    if (!step.sync) {
      if (cqe.res != static_cast<int>(kRecordBytes))
        fail(link, "cannot write " + link.path + ": " +
                       (cqe.res < 0 ? std::strerror(-cqe.res) : "cut short"));
      continue;
    }
    link.writing[step.number % kWindow].release();
    if (cqe.res < 0) {
      fail(link, "cannot sync " + link.path + ": " + std::strerror(-cqe.res));
      continue;
    }
    // Syncs overtake each other; what is acknowledged does not.
    link.on_disk[step.number % kWindow] = true;
    while (link.on_disk[link.durable % kWindow]) link.on_disk[link.durable++ % kWindow] = false;
    acknowledge(link);
  }
}

/// One message says it for all that is durable by now.
void Engine::acknowledge(Link& link) noexcept {
  if (link.failed || link.acknowledged == link.durable || link.handle->down()) return;
  if (link.replies_sent - link.replies_done == kReplySlots) return;  // the next completion calls
  const std::size_t offset = link.replies_sent % kReplySlots * sizeof(Acknowledgement);
  const Acknowledgement reply{link.durable};
  std::memcpy(link.replies->memory().data() + offset, &reply, sizeof reply);
  // It may be going down just now; on_event is told of that.
  if (!link.handle->connection().send(link.replies.get(), offset, sizeof reply, 0).ok()) return;
  ++link.replies_sent;
  link.acknowledged = link.durable;
}

void Engine::fail(Link& link, std::string why) noexcept {
  link.failed = true;
  if (!failed_.exchange(true, std::memory_order_relaxed))
    std::fprintf(stderr, "embedded_engine: connection %u: %s\n", link.number, why.c_str());
  stop_early();
}

// --- the engine's loops ------------------------------------------------------------------------

Status Engine::run(int stop_fd) {
  stop_fd_ = stop_fd;
  const std::vector<std::vector<Runnable*>> parts{
      {&dispatcher_->poller(0), &dispatcher_->control(), &dispatcher_->worker(0)},
      {&dispatcher_->worker(1)}};
  for (std::uint32_t i = 0; i < parts.size(); ++i) {
    loops_.push_back(std::make_unique<Loop>());
    loops_.back()->number = i;
  }
  for (const auto& loop : loops_)
    loop->thread = std::thread([this, &loop, &parts] { run_loop(*loop, parts[loop->number]); });
  for (const auto& loop : loops_) loop->thread.join();

  listener_.reset();
  // On this thread, now that the others have let go: detaches what is left, runs what has to run.
  const Status stopped = dispatcher_->stop(kStopTimeout);
  for (const auto& ring : rings_) SLUICE_RETURN_IF_ERROR(ring->close(kStopTimeout));
  if (failed_.load(std::memory_order_relaxed))
    return {StatusCode::io_error, "the engine had to stop"};
  if (by_signal_.load(std::memory_order_relaxed))
    return {StatusCode::cancelled, "stopped by a signal"};
  return stopped;
}

/// The shape that matters: run everything; sleep only if each part agrees to; then tell each part
/// that was asked.
void Engine::run_loop(Loop& loop, std::span<Runnable* const> parts) {
  ::pthread_setname_np(::pthread_self(), ("engine-" + std::to_string(loop.number)).c_str());
  loop.id.store(static_cast<int>(::syscall(SYS_gettid)), std::memory_order_relaxed);
  loop.epoll = ::epoll_create1(EPOLL_CLOEXEC);
  const auto watch = [&](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    SLUICE_CHECK(::epoll_ctl(loop.epoll, EPOLL_CTL_ADD, fd, &event) == 0,
                 "a descriptor could not be watched");
  };
  watch(loop.wake.fd());
  if (loop.number == 0 && stop_fd_ >= 0) watch(stop_fd_);
  for (Runnable* const part : parts) watch(part->wait_fd());

  while (!ending_.load(std::memory_order_acquire)) {  // (4) acquire: pairs with (3)
    std::size_t work = 0;
    for (Runnable* const part : parts) work += part->run_once();
    if (work > 0) {
      end_if_all_is_done();
      continue;
    }
    std::size_t ready = 0;
    while (ready < parts.size() && parts[ready]->prepare_to_wait()) ++ready;
    if (ready == parts.size()) {
      ++loop.sleeps;
      look_at_own_events(loop);
    }
    for (std::size_t i = 0; i < ready; ++i) parts[i]->finish_wait();
  }
  // Whoever stops the dispatcher takes over the parts, and with the workers their rings.
  for (Runnable* const part : parts) part->release_thread();
  rings_[loop.number]->release_thread();
}

/// The engine's only place to block: its own descriptors and the dispatcher's, together.
void Engine::look_at_own_events(Loop& loop) {
  std::array<epoll_event, 8> events;
  const int count = ::epoll_wait(loop.epoll, events.data(), events.size(), -1);
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<std::size_t>(i)].data.fd;
    signalfd_siginfo signal{};
    if (fd == loop.wake.fd()) {
      loop.wake.drain();
      ++loop.events;
    } else if (fd == stop_fd_ && ::read(fd, &signal, sizeof signal) == sizeof signal) {
      ++loop.events;
      if (signal.ssi_signo == SIGCHLD) {
        sender_gone_.store(true, std::memory_order_relaxed);
        end_if_all_is_done();
      } else {
        by_signal_.store(true, std::memory_order_relaxed);
        stop_early();
      }
    }
  }
}

/// What is in the rings is waited for, nothing else.
void Engine::stop_early() noexcept {
  stopping_.store(true, std::memory_order_relaxed);
  end_if_all_is_done();
}

/// Nobody is connected any more, and the disk owes nothing. Called after each round with work and
/// by whatever else may have been the last thing to wait for.
void Engine::end_if_all_is_done() noexcept {
  const std::uint32_t taken = taken_.load(std::memory_order_relaxed);
  const bool came_and_went = taken > 0 && closed_.load(std::memory_order_relaxed) == taken;
  const bool never_came = taken == 0 && sender_gone_.load(std::memory_order_relaxed);
  if (!came_and_went && !never_came && !stopping_.load(std::memory_order_relaxed)) return;
  if (std::ranges::any_of(rings_, [](const auto& ring) { return ring->in_flight() > 0; })) return;
  if (counted_.exchange(true, std::memory_order_relaxed)) return;
  count_threads();                                 // while all of them are there
  ending_.store(true, std::memory_order_release);  // (3) release: pairs with (4)
  for (const auto& loop : loops_) loop->wake.signal();
}

// --- the summary -------------------------------------------------------------------------------

/// While the engine runs: whose threads are there?
void Engine::count_threads() {
  Summary counted;
  for (const int id : threads_of_this_process()) {
    const std::string name = name_of_thread(id);
    const bool is_engine = std::ranges::any_of(
        loops_, [&](const auto& loop) { return loop->id.load(std::memory_order_relaxed) == id; });
    if (is_engine)
      ++counted.threads_engine;
    else if (name == "softrdma")
      ++counted.threads_device;
    else if (name.starts_with("iou-"))  // a worker of io_uring, which ps(1) shows as ours
      ++counted.threads_kernel;
    else if (std::ranges::find(threads_before_, id) == threads_before_.end())
      ++counted.threads_dispatcher;
  }
  summary_.threads_engine = counted.threads_engine;
  summary_.threads_device = counted.threads_device;
  summary_.threads_kernel = counted.threads_kernel;
  summary_.threads_dispatcher = counted.threads_dispatcher;
}

std::uint64_t Engine::Summary::durable() const noexcept {
  std::uint64_t sum = 0;
  for (const Log& log : logs) sum += log.durable;
  return sum;
}

std::uint64_t Engine::Summary::total() const noexcept {
  std::uint64_t sum = 0;
  for (const Log& log : logs) sum += log.total;
  return sum;
}

Engine::Summary Engine::summary() const {
  Summary summary = summary_;
  for (const auto& loop : loops_) {
    summary.sleeps += loop->sleeps;
    summary.engine_events += loop->events;
  }
  std::vector<std::byte> record(kRecordBytes);
  for (const auto& link : links_) {
    Log& log = summary.logs[link->number];
    log = {link->received, link->durable, link->total, true};
    for (std::uint32_t i = 0; i < link->durable && log.verified; ++i) {
      const auto at = static_cast<off_t>(std::uint64_t{i} * kRecordBytes);
      log.verified = ::pread(link->log, record.data(), kRecordBytes, at) ==
                         static_cast<ssize_t>(kRecordBytes) &&
                     is_whole(record, link->number, i);
    }
  }
  return summary;
}

}  // namespace embedded
