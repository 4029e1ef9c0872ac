// SPDX-License-Identifier: BSD-3-Clause
// A peer can touch what it was given the key of, within its bounds and rights, and nothing else.
#include <sys/socket.h>
#include <unistd.h>

#include "pair.hpp"
#include "wire.hpp"

namespace softrdma_test {
namespace {

namespace wire = softrdma::wire;
using wire::FrameType;

TEST(Protection, WrongKeysBoundsAndRightsAreRefusedAndNothingIsTouched) {
  enum Expect { kOk, kRefused };
  const auto attempt = [](ibv_wr_opcode opcode, unsigned rights, Expect expect, auto&& spoil) {
    Pair pair({.access = rights | IBV_ACCESS_LOCAL_WRITE});
    ibv_context* verbs = pair.server.id->verbs;
    drain_async(verbs);
    std::memset(pair.client.memory.data(), 0xEE, 4096);
    std::uint64_t address = pair.server.address(0);
    std::uint32_t rkey = pair.server.mr->lkey;
    spoil(address, rkey, pair);
    ASSERT_EQ(
        pair.client.post(opcode, 1, {pair.client.sge(0, 64)}, IBV_SEND_SIGNALED, address, rkey), 0);
    const ibv_wc wc = next_wc(pair.client.scq);
    if (expect == kOk) {
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      return;
    }
    EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(pair.server.memory, std::vector<std::uint8_t>(pair.server.memory.size(), 0));
    EXPECT_EQ(pair.client.memory[0], 0xEE);
    EXPECT_EQ(next_async(verbs), IBV_EVENT_QP_ACCESS_ERR);
  };
  const auto fine = [](std::uint64_t&, std::uint32_t&, Pair&) {};
  const unsigned all = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    attempt(opcode, all, kOk, fine);
    attempt(opcode, all, kRefused, [](std::uint64_t&, std::uint32_t& key, Pair&) { key ^= 1; });
    attempt(opcode, all, kRefused, [](std::uint64_t& a, std::uint32_t&, Pair&) { a -= 1; });
    attempt(opcode, all, kRefused,
            [](std::uint64_t& a, std::uint32_t&, Pair& p) { a += p.server.memory.size() - 63; });
    attempt(opcode, all, kRefused, [](std::uint64_t& a, std::uint32_t&, Pair&) { a = ~0ULL - 10; });
    attempt(opcode, all, kRefused, [](std::uint64_t& a, std::uint32_t& k, Pair& p) {
      a = p.client.address(0);  // a region of another domain
      k = p.client.mr->lkey;
    });
  }
  attempt(IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_READ, kRefused, fine);
  attempt(IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_WRITE, kRefused, fine);
  attempt(IBV_WR_RDMA_READ, 0, kRefused, fine);
}

TEST(Protection, ARegionThatIsGoneCannotBeReached) {
  Pair pair;
  const std::uint32_t rkey = pair.server.mr->rkey;
  ASSERT_EQ(ibv_dereg_mr(pair.server.mr), 0);
  pair.server.mr = nullptr;
  ASSERT_EQ(pair.client.post(IBV_WR_RDMA_WRITE, 1, {pair.client.sge(0, 64)}, IBV_SEND_SIGNALED,
                             pair.server.address(0), rkey),
            0);
  EXPECT_EQ(next_wc(pair.client.scq).status, IBV_WC_REM_ACCESS_ERR);
}

/// A peer that speaks the protocol by hand, as badly as it likes.
class Hostile {
 public:
  explicit Hostile(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to = loopback(port);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  }
  Hostile(const Hostile&) = delete;
  Hostile& operator=(const Hostile&) = delete;
  ~Hostile() { ::close(fd_); }
  void raw(std::vector<std::uint8_t> bytes) const {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;  // closed on us: what the test wants
      sent += static_cast<std::size_t>(n);
    }
  }
  static std::vector<std::uint8_t> frame(const wire::Header& h, std::uint8_t fill = 0xEE) {
    std::vector<std::uint8_t> bytes(wire::kHeaderSize + h.payload_length, fill);
    wire::encode(h, std::span<std::uint8_t, wire::kHeaderSize>(bytes.data(), wire::kHeaderSize));
    return bytes;
  }
  static std::vector<std::uint8_t> request() {
    wire::Header h;
    h.type = FrameType::kConnectRequest;
    h.aux = 5;
    h.payload_length = wire::kConnParamSize + wire::kRequestPrivateSize;
    auto bytes = frame(h, 0);
    bytes[wire::kHeaderSize + 1] = 16;  // initiator depth: it will read
    return bytes;
  }
  /// True once the other side has closed.
  [[nodiscard]] bool closed() const {
    std::uint8_t bytes[4096];
    for (;;) {
      if (!readable(fd_, 30'000)) return false;
      if (::recv(fd_, bytes, sizeof bytes, 0) <= 0) return true;
    }
  }
  [[nodiscard]] bool answered() const { return readable(fd_, 30'000); }

 private:
  int fd_;
};

/// A listening side whose accepted connection can be abused.
struct Victim {
  Pair pair;  // shows that others are not harmed
  Side side;

  void accept() {
    ASSERT_EQ(next_event(pair.listen_events, &side.id), RDMA_CM_EVENT_CONNECT_REQUEST);
    side.events = rdma_create_event_channel();
    ASSERT_EQ(rdma_migrate_id(side.id, side.events), 0);
    side.create(Options{});
    ASSERT_EQ(side.recv(1, 0, 64), 0);
    ASSERT_EQ(rdma_accept(side.id, nullptr), 0);
  }
  std::uint16_t port() { return ntohs(rdma_get_src_port(pair.listen_id)); }
  void works() {
    ASSERT_EQ(pair.server.recv(1, 0, 64), 0);
    ASSERT_EQ(pair.client.send(2, 0, 8), 0);
    EXPECT_EQ(next_wc(pair.server.scq).status, IBV_WC_SUCCESS);
    EXPECT_EQ(next_wc(pair.client.scq).status, IBV_WC_SUCCESS);
  }
  ~Victim() { side.destroy(); }
};

TEST(Protection, StrangersAtTheDoorAreTurnedAway) {
  Victim victim;
  {
    Hostile h(victim.port());
    h.raw(std::vector<std::uint8_t>(100, 'G'));
    EXPECT_TRUE(h.closed());
  }
  {
    Hostile h(victim.port());
    auto bytes = Hostile::request();
    bytes[4] = 99;  // another version
    h.raw(bytes);
    EXPECT_TRUE(h.closed());
  }
  {
    Hostile h(victim.port());
    wire::Header data;
    data.type = FrameType::kSend;
    h.raw(Hostile::frame(data));
    EXPECT_TRUE(h.closed());
  }
  {
    Hostile h(victim.port());
    auto bytes = Hostile::request();
    bytes.resize(bytes.size() / 2);
    h.raw(bytes);  // and gone
  }
  victim.works();
}

TEST(Protection, AbuseOfAConnectionEndsThatConnectionAlone) {
  wire::Header h;
  std::vector<std::vector<std::uint8_t>> abuses;
  const auto add = [&](FrameType type, auto&& fill) {
    h = wire::Header{};
    h.type = type;
    fill(h);
    abuses.push_back(Hostile::frame(h));
  };
  add(FrameType::kSend, [](wire::Header& x) { x.sequence = 1; });  // out of order
  add(FrameType::kSend,
      [](wire::Header& x) { x.total = 10, x.offset = 5, x.payload_length = 5; });  // no start
  add(FrameType::kSend, [](wire::Header& x) { x.payload_length = 10; });           // beyond its end
  add(FrameType::kAck, [](wire::Header&) {});                                      // of nothing
  add(FrameType::kNak, [](wire::Header& x) { x.aux = 2; });
  add(FrameType::kReadResponse, [](wire::Header& x) { x.total = x.payload_length = 8; });
  add(FrameType::kAtomicResponse, [](wire::Header& x) { x.payload_length = 8; });
  add(FrameType::kReceiverNotReady, [](wire::Header&) {});
  add(FrameType::kConnectRequest, [](wire::Header& x) { x.payload_length = 64; });
  add(FrameType::kConnectReply, [](wire::Header& x) { x.payload_length = 204; });
  add(FrameType::kReady, [](wire::Header&) {});
  for (const auto& abuse : abuses) {
    Victim victim;
    ibv_context* verbs = victim.pair.client.id->verbs;
    drain_async(verbs);
    Hostile hostile(victim.port());
    hostile.raw(Hostile::request());
    ASSERT_NO_FATAL_FAILURE(victim.accept());
    ASSERT_TRUE(hostile.answered());
    wire::Header ready;
    ready.type = FrameType::kReady;
    hostile.raw(Hostile::frame(ready));
    ASSERT_EQ(next_event(victim.side.events), RDMA_CM_EVENT_ESTABLISHED);
    hostile.raw(abuse);
    EXPECT_TRUE(hostile.closed()) << "frame type " << static_cast<int>(abuse[5]);
    EXPECT_EQ(next_event(victim.side.events), RDMA_CM_EVENT_DISCONNECTED);
    EXPECT_EQ(next_wc(victim.side.scq).status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(next_async(verbs), IBV_EVENT_QP_FATAL);
    EXPECT_EQ(victim.side.memory, std::vector<std::uint8_t>(victim.side.memory.size(), 0));
    victim.works();
  }
}

TEST(Protection, ReadsThatNobodyCollectsUseBoundedMemory) {
  Victim victim;
  Hostile hostile(victim.port());
  hostile.raw(Hostile::request());
  ASSERT_NO_FATAL_FAILURE(victim.accept());
  ASSERT_TRUE(hostile.answered());
  wire::Header h;
  h.type = FrameType::kReady;
  hostile.raw(Hostile::frame(h));
  for (std::uint32_t i = 0; i < 1000; ++i) {
    h = wire::Header{};
    h.type = FrameType::kReadRequest;
    h.sequence = i;
    h.address = victim.side.address(0);
    h.rkey = victim.side.mr->rkey;
    h.total = static_cast<std::uint32_t>(victim.side.memory.size());
    hostile.raw(Hostile::frame(h));
  }
  EXPECT_TRUE(hostile.closed());
  victim.works();
}

}  // namespace
}  // namespace softrdma_test
