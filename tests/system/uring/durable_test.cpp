// SPDX-License-Identifier: BSD-3-Clause
// What a storage engine does: it receives over RDMA, writes each message to its connection's log
// and syncs it through io_uring, and acknowledges over RDMA what is durable, in order. Both kinds
// of completions come through the same poller and workers; each worker submits to a ring of its
// own.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "sluice/core/uring/ring.hpp"
#include "sluice/dispatch/uring.hpp"
#include "support.hpp"

namespace sluice::system_test {
namespace {

constexpr std::uint32_t kWindow = 16;  ///< messages of a connection that are not acknowledged yet
constexpr std::uint32_t kWorkers = 2;

/// One connection's log.
class Log {
 public:
  Log() {
    char path[] = "/tmp/sluice-log-XXXXXX";
    fd_ = ::mkostemp(path, O_CLOEXEC);
    if (fd_ < 0) throw std::runtime_error("no file for a log");
    (void)::unlink(path);
  }
  /// One that takes nothing.
  struct Full {};
  explicit Log(Full) : fd_(::open("/dev/full", O_WRONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error("no /dev/full");
  }
  ~Log() { (void)::close(fd_); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  [[nodiscard]] int fd() const { return fd_; }
  /// Whether this message is in its place.
  [[nodiscard]] bool holds(std::uint32_t tag, std::uint32_t sequence) const {
    Message message{};
    return ::pread(fd_, &message, sizeof message, off_t{sequence} * kMessageSize) ==
               ssize_t{sizeof message} &&
           message.tag == tag && message.sequence == sequence &&
           message.check == check_of(tag, sequence);
  }
  [[nodiscard]] off_t size() const { return ::lseek(fd_, 0, SEEK_END); }

 private:
  int fd_ = -1;
};

/// One connection: what it sends, its log, and its acknowledgements.
struct Link {
  Link(std::uint32_t its_tag, std::unique_ptr<Log> its_log)
      : tag(its_tag), request(its_tag), reply(its_tag + 10000), log(std::move(its_log)) {}
  const std::uint32_t tag;
  Stream request, reply;
  std::unique_ptr<Log> log;
  std::shared_ptr<ConnectionHandle> client, server;
  std::atomic<std::uint32_t> early_acks{0};  ///< of what was not in the log yet
  std::atomic<std::uint32_t> failed_writes{0}, cancelled_syncs{0}, strange{0}, refused{0};

  std::atomic<ReceivePool*> buffers{nullptr};

  // The server's. No lock: what is received and what the rings complete for one connection has one
  // key, so one lane, and its handlers never run on two workers at once.
  std::array<ReceivedBuffer, kWindow> writing;  ///< written from where they were received
  std::array<bool, kWindow> durable{};
  std::uint32_t received = 0;
  std::uint32_t acknowledged = 0;
};

/// What a completion of a ring is about.
struct Step {
  std::uint32_t tag;
  std::uint32_t sequence;
  bool sync;
  [[nodiscard]] std::uint64_t pack() const {
    return std::uint64_t{tag} << 33 | std::uint64_t{sequence} << 1 | (sync ? 1U : 0U);
  }
  static Step unpack(std::uint64_t user_data) {
    return {static_cast<std::uint32_t>(user_data >> 33), static_cast<std::uint32_t>(user_data >> 1),
            (user_data & 1) != 0};
  }
};

class Engine {
 public:
  explicit Engine(std::uint32_t connections, bool first_is_full = false)
      : connections_(connections) {
    for (std::uint32_t tag = 0; tag < connections; ++tag) {
      links_.push_back(std::make_unique<Link>(tag, tag == 0 && first_is_full
                                                       ? std::make_unique<Log>(Log::Full{})
                                                       : std::make_unique<Log>()));
    }
    attach_rings();
    connect_all();
  }
  ~Engine() {
    if (acceptor_) acceptor_->close();
  }

  /// Sends `messages` on each connection, no more than a window ahead of what `done` says of it.
  void send(std::uint32_t messages, const std::function<std::uint32_t(const Link&)>& done) {
    memory_ = site_.memory(std::size_t{2} * connections_ * kWindow * kMessageSize);
    for (auto& link : links_) {
      const std::size_t area = std::size_t{kWindow} * kMessageSize;
      link->request.use(memory_, 2 * link->tag * area, kWindow);
      link->reply.use(memory_, (2 * link->tag + 1) * area, kWindow);
    }
    for (std::uint32_t sent = 0; sent < messages; ++sent) {
      for (auto& link : links_) {
        await("room in the window of connection " + std::to_string(link->tag), [&] {
          return link->request.sent() - done(*link) < kWindow &&
                 link->request.sent() - link->request.completed_sends < kWindow;
        });
        link->request.send(link->client->connection(), 1);
      }
    }
    for (auto& link : links_) {
      await("the end of connection " + std::to_string(link->tag),
            [&] { return done(*link) == messages; });
    }
  }

  /// All ends cleanly, in the order that an engine has to keep: connections, rings, their sources.
  void finish() {
    for (auto& link : links_) {
      await("the send completions", [&] {
        return link->reply.completed_sends == link->reply.sent() &&
               link->request.completed_sends == link->request.sent();
      });
    }
    acceptor_->close();
    for (auto& link : links_) detach_clean(*link->client);
    for (auto& link : links_) detach_clean(*link->server);
    for (auto& ring : rings_) await("the credits", [&] { return ring->in_flight() == 0; });
    for (auto& source : ring_sources_) EXPECT_TRUE(require(source->detach(kDrainPatience)).clean);
    for (auto& ring : rings_) {
      require(ring->close(kDrainPatience, [](const io_uring_cqe&) { ADD_FAILURE(); }));
    }
    EXPECT_TRUE(server_->stop(kDrainPatience).ok());
    EXPECT_TRUE(client_->stop(kDrainPatience).ok());
    EXPECT_EQ(server_.failed_sources, 0u);
    EXPECT_EQ(server_.orphans, 0u);
  }

  std::vector<std::unique_ptr<Link>>& links() { return links_; }
  /// Operations that each ring has completed.
  [[nodiscard]] std::uint64_t completed_on(std::uint32_t ring) const { return completed_[ring]; }

 private:
  void attach_rings() {
    // A write and a sync for every message that can be there, on whichever ring.
    const std::uint32_t most = 2 * connections_ * kWindow;
    for (std::uint32_t worker = 0; worker < kWorkers; ++worker) {
      rings_.push_back(require(uring::Ring::create({.submissions = most, .completions = 2 * most},
                                                   "log " + std::to_string(worker))));
      AttachOptions options;
      options.order = Order::per_key;
      options.key = uring_key([](const io_uring_cqe& cqe) noexcept {
        return std::uint64_t{Step::unpack(cqe.user_data).tag};
      });
      const auto handle = [this, worker](std::span<const io_uring_cqe> cqes,
                                         const BatchInfo&) noexcept {
        completed_[worker] += cqes.size();
        for (const io_uring_cqe& cqe : cqes) written(cqe);
      };
      ring_sources_.push_back(
          require(server_->attach(rings_.back(), std::move(options), uring_handler(handle))));
    }
  }

  void connect_all() {
    const rpma::ConnectionConfig config = patient(2 * kWindow, 2 * kWindow);
    acceptor_ = std::make_unique<Acceptor>(site_, *server_, config, [this](std::uint32_t tag) {
      Link* const link = links_.at(tag).get();
      ConnectionOptions options;
      options.context = link;
      options.order = Order::per_key;
      options.key = [tag](const ibv_wc&) noexcept { return std::uint64_t{tag}; };
      options.handler = [this, link](std::span<const ibv_wc> batch,
                                     const BatchInfo& info) noexcept {
        uring::Ring& ring = *rings_[info.worker];
        for (const ibv_wc& wc : batch) serve(*link, ring, wc);
        if (!ring.submit().ok()) ++link->refused;
      };
      return std::optional<ConnectionOptions>(std::move(options));
    });
    for (auto& link : links_) {
      ConnectionOptions options;
      options.handler = [link = link.get()](std::span<const ibv_wc> batch,
                                            const BatchInfo&) noexcept {
        ReceivePool* const pool = link->client->connection().receive_pool();
        for (const ibv_wc& wc : batch) {
          if (pool == nullptr || !pool->owns(wc.wr_id)) {
            link->request.note(wc);
            continue;
          }
          // What is acknowledged is in the log by now. (What is not received comes back at the
          // end.)
          if (wc.status == IBV_WC_SUCCESS && !link->log->holds(link->tag, link->reply.received))
            ++link->early_acks;
          link->reply.receive(*pool, wc);
        }
      };
      link->client = require(connect(site_, *client_, acceptor_->port(), link->tag,
                                     std::move(options), patient(2 * kWindow, 2 * kWindow)));
      (void)require(link->client->connection().stock(2 * kWindow, kMessageSize));
    }
    acceptor_->await_connected(connections_);
    for (auto& link : links_) {
      link->server = acceptor_->handle(link->tag);
      link->buffers = require(link->server->connection().stock(2 * kWindow, kMessageSize));
    }
  }

  void serve(Link& link, uring::Ring& ring, const ibv_wc& wc) {
    ReceivePool* const pool = link.buffers;
    if (pool == nullptr || !pool->owns(wc.wr_id)) {
      link.reply.note(wc);
      if (link.server != nullptr) acknowledge(link);
    } else if (wc.status != IBV_WC_SUCCESS) {
      pool->take(wc).release();  // flushed at the end; what failed has no key
    } else {
      const Stream::Call call(link.request);
      receive(link, ring, *pool, wc);
    }
  }

  /// A message has arrived: to the log with it, from the buffer where it lies.
  static void receive(Link& link, uring::Ring& ring, ReceivePool& pool, const ibv_wc& wc) {
    const std::uint32_t sequence = link.received++;
    ReceivedBuffer& buffer = link.writing[sequence % kWindow];
    buffer = pool.take(wc);
    io_uring_sqe* chain[2];
    if (buffer.bytes().size() != kMessageSize || !ring.try_prepare(chain)) {
      ++link.refused;
      return;
    }
    ::io_uring_prep_write(chain[0], link.log->fd(), buffer.bytes().data(), kMessageSize,
                          std::uint64_t{sequence} * kMessageSize);
    chain[0]->flags |= IOSQE_IO_LINK;
    chain[0]->user_data = Step{link.tag, sequence, false}.pack();
    ::io_uring_prep_fsync(chain[1], link.log->fd(), IORING_FSYNC_DATASYNC);
    chain[1]->user_data = Step{link.tag, sequence, true}.pack();
  }

  /// A step has completed. The syncs of one connection overtake each other, on one ring and between
  /// two; acknowledgements do not.
  void written(const io_uring_cqe& cqe) {
    const Step step = Step::unpack(cqe.user_data);
    Link& link = *links_.at(step.tag);
    const Stream::Call call(link.request);
    if (!step.sync) {
      if (cqe.res < 0) ++link.failed_writes;
      if (cqe.res >= 0 && cqe.res != static_cast<int>(kMessageSize)) ++link.strange;
      return;
    }
    link.writing[step.sequence % kWindow].release();
    if (cqe.res == -ECANCELED) ++link.cancelled_syncs;
    if (cqe.res != 0) return;
    link.durable[step.sequence % kWindow] = true;
    acknowledge(link);
  }

  /// What is durable, in order. No more than half of what the send queue takes: the credits of the
  /// completions that this very call handles are not back before it returns, and the other half is
  /// there for it.
  static void acknowledge(Link& link) {
    while (link.durable[link.acknowledged % kWindow] &&
           link.reply.sent() - link.reply.completed_sends < kWindow) {
      link.durable[link.acknowledged++ % kWindow] = false;
      if (!link.reply.send(link.server->connection()).ok()) ++link.refused;
    }
  }

  const std::uint32_t connections_;
  Site site_;
  std::vector<std::unique_ptr<Link>> links_;
  std::array<std::atomic<std::uint64_t>, kWorkers> completed_{};
  std::vector<std::shared_ptr<uring::Ring>> rings_;
  std::shared_ptr<rpma::MemoryRegion> memory_;
  Node server_{{.workers = kWorkers}}, client_;
  std::vector<std::shared_ptr<SourceHandle>> ring_sources_;
  std::unique_ptr<Acceptor> acceptor_;
};

void expect_durable(const Link& link, std::uint32_t messages) {
  SCOPED_TRACE("connection " + std::to_string(link.tag));
  EXPECT_EQ(link.reply.received, messages);
  EXPECT_EQ(link.reply.out_of_order, 0u);
  EXPECT_EQ(link.reply.strange, 0u);
  EXPECT_EQ(link.reply.failed, 0u);
  EXPECT_EQ(link.early_acks, 0u);
  EXPECT_EQ(link.failed_writes, 0u);
  EXPECT_EQ(link.cancelled_syncs, 0u);
  EXPECT_EQ(link.strange, 0u);
  EXPECT_EQ(link.refused, 0u);
  EXPECT_EQ(link.request.overlaps, 0u) << "handlers of one key ran on two workers at once";
  for (std::uint32_t i = 0; i < messages; ++i) EXPECT_TRUE(link.log->holds(link.tag, i)) << i;
  EXPECT_EQ(link.log->size(), off_t{messages} * kMessageSize);
}

TEST(DurableLog, WhatIsAcknowledgedIsInTheLogInOrderPerConnection) {
  constexpr std::uint32_t kConnections = 4, kMessages = 150;
  Engine engine(kConnections);
  engine.send(kMessages, [](const Link& link) { return link.reply.received.load(); });
  for (const auto& link : engine.links()) expect_durable(*link, kMessages);
  EXPECT_EQ(engine.completed_on(0) + engine.completed_on(1), 2 * kConnections * kMessages);
  engine.finish();
}

TEST(DurableLog, AFullDiskOfOneConnectionIsToldByEachCompletionAndHoldsUpNobody) {
  constexpr std::uint32_t kConnections = 3, kMessages = 60;
  Engine engine(kConnections, true);
  engine.send(kMessages, [](const Link& link) {
    return link.tag == 0 ? link.cancelled_syncs.load() : link.reply.received.load();
  });
  const Link& full = *engine.links()[0];
  EXPECT_EQ(full.failed_writes, kMessages);
  EXPECT_EQ(full.cancelled_syncs, kMessages);
  EXPECT_EQ(full.reply.sent(), 0u);
  EXPECT_EQ(full.refused, 0u);
  for (std::uint32_t i = 1; i < kConnections; ++i) expect_durable(*engine.links()[i], kMessages);
  engine.finish();
}

}  // namespace
}  // namespace sluice::system_test
