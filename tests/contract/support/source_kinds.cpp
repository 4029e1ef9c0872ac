// SPDX-License-Identifier: BSD-3-Clause
#include "support/source_kinds.hpp"

#include <map>

#include "sluice/core/uring/ring.hpp"
#include "sluice/core/verbs/cq_group.hpp"
#include "support/raw_link.hpp"

namespace sluice::contract {
namespace {

constexpr std::uint32_t kMessage = 64;    ///< bytes of a receive buffer
constexpr std::uint32_t kOneWriteOf = 8;  ///< bytes of a write
constexpr std::uint64_t kSequenceMask = 0xffffffffU;

/// Sends numbered messages over a connection of librpma and keeps its CQ polled.
class Sender {
 public:
  Sender(const Site& site, std::shared_ptr<rpma::Connection> connection)
      : connection_(std::move(connection)),
        source_(connection_->main_cq()),
        memory_(site.memory(SourceUnderTest::kInFlightMax * kMessage)) {}

  void send() {
    pump();
    const std::size_t offset = sent_ % SourceUnderTest::kInFlightMax * kMessage;
    std::memcpy(memory_->memory().data() + offset, &sent_, sizeof sent_);
    require(connection_->send(memory_.get(), offset, sizeof sent_, sent_));
    ++sent_;
  }
  void send_too_much() { require(connection_->send(memory_.get(), 0, 2 * kMessage, ~0ULL)); }
  /// Until all that was sent has been acknowledged by the other side.
  void settle() {
    await("the completion of what was sent", [&] {
      pump();
      return completed_ == sent_;
    });
  }

 private:
  void pump() {
    ibv_wc wcs[16];
    const PollOutcome outcome = source_->poll(wcs);
    const auto got = std::span(wcs).first(outcome.count);
    for (const ibv_wc& wc : got) {
      if (wc.status != IBV_WC_SUCCESS) {
        throw std::runtime_error(std::string("a send failed: ") + ibv_wc_status_str(wc.status));
      }
    }
    completed_ += outcome.count;
    source_->retire(got);
  }

  std::shared_ptr<rpma::Connection> connection_;
  std::shared_ptr<CompletionSource> source_;
  std::shared_ptr<rpma::MemoryRegion> memory_;
  std::uint64_t sent_ = 0;
  std::uint64_t completed_ = 0;
};

/// Reads the number that a Sender wrote, and lets go of the buffer.
std::uint64_t read_message(ReceivePool& pool, const ibv_wc& wc) {
  const ReceivedBuffer buffer = pool.take(wc);
  std::uint64_t sequence = ~0ULL;
  if (buffer.bytes().size() == sizeof sequence) {
    std::memcpy(&sequence, buffer.bytes().data(), sizeof sequence);
  }
  return sequence;
}

/// Writes to the other side's memory; the completions are numbered by wr_id.
class Writer {
 public:
  Writer(const Site& site, std::shared_ptr<rpma::Connection> connection)
      : connection_(std::move(connection)),
        memory_(site.memory(kOneWriteOf)),
        target_(site.memory(kOneWriteOf)),
        remote_(Site::remote(*target_)) {}
  void write() {
    *reinterpret_cast<std::uint64_t*>(memory_->memory().data()) = written_;
    require(connection_->write(*remote_, 0, memory_.get(), 0, kOneWriteOf, written_));
    ++written_;
  }

 private:
  std::shared_ptr<rpma::Connection> connection_;
  std::shared_ptr<rpma::MemoryRegion> memory_;
  std::shared_ptr<rpma::MemoryRegion> target_;
  std::shared_ptr<rpma::RemoteRegion> remote_;
  std::uint64_t written_ = 0;
};

class MainCq final : public SourceUnderTest {
 public:
  explicit MainCq(const Site& site)
      : pair_(site.connect(patient(), patient())), writer_(site, pair_.client) {}
  std::shared_ptr<CompletionSource> source() override { return pair_.client->main_cq(); }
  void produce_on(std::uint32_t) override { writer_.write(); }
  Item take(const ibv_wc& wc) override {
    pair_.client->main_cq()->retire(std::span(&wc, 1));
    return {0, wc.wr_id};
  }
  void settle() override {}
  std::uint32_t fail() override {
    require(pair_.client->disconnect());
    writer_.write();
    writer_.write();
    return 2;
  }

 private:
  Pair pair_;
  Writer writer_;
};

class ReceiveCq final : public SourceUnderTest {
 public:
  explicit ReceiveCq(const Site& site)
      : pair_(site.connect(patient(), patient())),
        pool_(require(pair_.server->stock(kInFlightMax, kMessage))),
        sender_(site, pair_.client) {}
  std::shared_ptr<CompletionSource> source() override { return pair_.server->receive_cq(); }
  void produce_on(std::uint32_t) override { sender_.send(); }
  Item take(const ibv_wc& wc) override { return {0, read_message(*pool_, wc)}; }
  void settle() override { sender_.settle(); }
  std::uint32_t fail() override {
    require(pair_.server->disconnect());
    return kInFlightMax;
  }

 private:
  Pair pair_;
  ReceivePool* pool_;
  Sender sender_;
};

/// Stream 0: receives; stream 1: writes of the same connection.
class MixedCq final : public SourceUnderTest {
 public:
  explicit MixedCq(const Site& site)
      : pair_(site.connect(server_config(), patient())),
        pool_(require(pair_.server->stock(kInFlightMax, kMessage))),
        sender_(site, pair_.client),
        writer_(site, pair_.server) {}
  std::shared_ptr<CompletionSource> source() override { return pair_.server->main_cq(); }
  void produce_on(std::uint32_t which) override {
    if (which % 2 == 0) {
      sender_.send();
    } else {
      writer_.write();
    }
  }
  Item take(const ibv_wc& wc) override {
    pair_.server->main_cq()->retire(std::span(&wc, 1));
    if (pool_->owns(wc.wr_id)) return {0, read_message(*pool_, wc)};
    return {1, wc.wr_id};
  }
  void settle() override { sender_.settle(); }
  std::uint32_t fail() override {
    require(pair_.server->disconnect());
    return kInFlightMax;
  }

 private:
  static rpma::ConnectionConfig server_config() {
    rpma::ConnectionConfig config = patient();
    config.receive_cq_size = 0;
    return config;
  }
  Pair pair_;
  ReceivePool* pool_;
  Sender sender_;
  Writer writer_;
};

class SrqReceiveCq final : public SourceUnderTest {
 public:
  explicit SrqReceiveCq(const Site& site)
      : srq_(require(rpma::SharedReceiveQueue::create(
            site.peer, {.depth = kInFlightMax, .receive_cq_size = {}}))),
        pool_(require(srq_->stock(kInFlightMax, kMessage))) {
    rpma::ConnectionConfig server = patient();
    server.srq = srq_;
    for (std::uint32_t i = 0; i < kConnections; ++i) {
      pairs_.push_back(site.connect(server, patient()));
      senders_.push_back(std::make_unique<Sender>(site, pairs_.back().client));
      streams_[pairs_.back().server->qp_num()] = i;
    }
  }
  std::shared_ptr<CompletionSource> source() override { return srq_->receive_cq(); }
  void produce_on(std::uint32_t which) override { senders_[which % kConnections]->send(); }
  Item take(const ibv_wc& wc) override {
    return {streams_.at(wc.qp_num), read_message(*pool_, wc)};
  }
  void settle() override {
    for (auto& sender : senders_) sender->settle();
  }
  std::uint32_t fail() override {
    senders_[0]->send_too_much();
    return 1;
  }

 private:
  static constexpr std::uint32_t kConnections = 2;
  std::shared_ptr<rpma::SharedReceiveQueue> srq_;
  ReceivePool* pool_;
  std::vector<Pair> pairs_;
  std::vector<std::unique_ptr<Sender>> senders_;
  std::map<std::uint32_t, std::uint32_t> streams_;  ///< by qp_num
};

/// CQ 0: writes; CQ 1, the receive CQ: receives. Streams alike.
class SharedChannel final : public SourceUnderTest {
 public:
  explicit SharedChannel(const Site& site)
      : pair_(site.connect(server_config(), patient())),
        pool_(require(pair_.server->stock(kInFlightMax, kMessage))),
        sender_(site, pair_.client),
        writer_(site, pair_.server) {}
  std::shared_ptr<CompletionSource> source() override { return pair_.server->shared_channel(); }
  std::uint32_t cq_count() const override { return 2; }
  void produce_on(std::uint32_t which) override {
    if (which % 2 == 0) {
      writer_.write();
    } else {
      sender_.send();
    }
  }
  Item take(const ibv_wc& wc) override {
    pair_.server->shared_channel()->retire(std::span(&wc, 1));
    if (pool_->owns(wc.wr_id)) return {1, read_message(*pool_, wc)};
    return {0, wc.wr_id};
  }
  void settle() override { sender_.settle(); }
  std::uint32_t fail() override {
    require(pair_.server->disconnect());
    writer_.write();
    return kInFlightMax + 1;
  }

 private:
  static rpma::ConnectionConfig server_config() {
    rpma::ConnectionConfig config = patient();
    config.shared_channel = true;
    return config;
  }
  Pair pair_;
  ReceivePool* pool_;
  Sender sender_;
  Writer writer_;
};

/// Three queue pairs; 0 and 2 send to CQ 0, 1 to CQ 1. What they send lands in an SRQ.
class VerbsGroup final : public SourceUnderTest {
 public:
  explicit VerbsGroup(const Site& site)
      : srq_(require(rpma::SharedReceiveQueue::create(
            site.peer, {.depth = kLinks * kInFlightMax, .receive_cq_size = {}}))),
        pool_(require(srq_->stock(kLinks * kInFlightMax, kMessage))),
        received_(srq_->receive_cq()),
        group_(require(verbs::CqGroup::create(site.peer->context(),
                                              {.cq_count = 2,
                                               .cq_size = 512,
                                               .completion_vectors = {},
                                               .solicited_only = false,
                                               .ack_batch = 3},
                                              "raw"))) {
    rpma::ConnectionConfig server = patient();
    server.srq = srq_;
    for (std::uint32_t i = 0; i < kLinks; ++i) {
      ibv_cq* const cq = group_->cq(i % 2);
      links_.push_back(
          std::make_unique<RawLink>(site, RawLink::Config{.send_cq = cq, .receive_cq = cq}));
      links_.back()->connect(server);
    }
  }
  std::shared_ptr<CompletionSource> source() override { return group_; }
  std::uint32_t cq_count() const override { return 2; }
  void produce_on(std::uint32_t which) override {
    pump();
    const std::uint32_t link = which % kLinks;
    links_[link]->send(0, 8, (std::uint64_t{link} << 32) | sent_[link]);
    ++sent_[link];
  }
  Item take(const ibv_wc& wc) override {
    const auto link = static_cast<std::uint32_t>(wc.wr_id >> 32);
    if (wc.qp_num != links_.at(link)->qp_num()) throw std::runtime_error("a wrong qp_num");
    return {link, wc.wr_id & kSequenceMask};
  }
  void settle() override {
    await("the arrival of what was sent", [&] {
      pump();
      return arrived_ == sent_[0] + sent_[1] + sent_[2];
    });
  }
  std::uint32_t fail() override {
    links_[1]->disconnect();
    links_[1]->send(0, 8, std::uint64_t{1} << 32);
    links_[1]->send(0, 8, std::uint64_t{1} << 32);
    return 2;
  }

 private:
  void pump() {
    ibv_wc wcs[16];
    const PollOutcome outcome = received_->poll(wcs);
    for (const ibv_wc& wc : std::span(wcs).first(outcome.count)) (void)pool_->take(wc);
    arrived_ += outcome.count;
  }

  static constexpr std::uint32_t kLinks = 3;
  std::shared_ptr<rpma::SharedReceiveQueue> srq_;
  ReceivePool* pool_;
  std::shared_ptr<CompletionSource> received_;
  std::shared_ptr<verbs::CqGroup> group_;
  std::vector<std::unique_ptr<RawLink>> links_;
  std::uint64_t sent_[kLinks] = {};
  std::uint64_t arrived_ = 0;
};

/// Operations that do nothing, numbered by user_data: they complete while they are submitted.
class UringRing final : public SourceUnderTest {
 public:
  std::shared_ptr<CompletionSource> source() override { return ring_; }
  void produce_on(std::uint32_t) override {
    io_uring_sqe* const sqe = require(ring_->prepare());
    ::io_uring_prep_nop(sqe);
    sqe->user_data = submitted_++;
    require(ring_->submit());
    ring_->release_thread();  // the next one may come from another thread
  }
  Item take(const ibv_wc& wc) override {
    ring_->retire(std::span(&wc, 1));
    const io_uring_cqe cqe = uring::to_cqe(wc);
    if (cqe.res != 0 || cqe.flags != 0) throw std::runtime_error("a strange completion");
    return {0, cqe.user_data};
  }
  void settle() override {}
  std::uint32_t fail() override {
    throw std::logic_error("a ring has no completion whose status is not success");
  }

 private:
  const std::shared_ptr<uring::Ring> ring_ =
      require(uring::Ring::create({.submissions = 16, .completions = 128}, "nops"));
  std::uint64_t submitted_ = 0;
};

}  // namespace

const char* name_of(SourceKind kind) {
  switch (kind) {
    case SourceKind::main_cq: return "MainCq";
    case SourceKind::receive_cq: return "ReceiveCq";
    case SourceKind::mixed_cq: return "MixedCq";
    case SourceKind::srq_receive_cq: return "SrqReceiveCq";
    case SourceKind::shared_channel: return "SharedChannel";
    case SourceKind::verbs_group: return "VerbsGroup";
    case SourceKind::uring_ring: return "UringRing";
  }
  return "unknown";
}

void SourceUnderTest::produce(std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) produce_on(next_++);
}

std::unique_ptr<SourceUnderTest> SourceUnderTest::make(SourceKind kind, const Site& site) {
  switch (kind) {
    case SourceKind::main_cq: return std::make_unique<MainCq>(site);
    case SourceKind::receive_cq: return std::make_unique<ReceiveCq>(site);
    case SourceKind::mixed_cq: return std::make_unique<MixedCq>(site);
    case SourceKind::srq_receive_cq: return std::make_unique<SrqReceiveCq>(site);
    case SourceKind::shared_channel: return std::make_unique<SharedChannel>(site);
    case SourceKind::verbs_group: return std::make_unique<VerbsGroup>(site);
    case SourceKind::uring_ring: return std::make_unique<UringRing>();
  }
  throw std::logic_error("an unknown kind of source");
}

}  // namespace sluice::contract
