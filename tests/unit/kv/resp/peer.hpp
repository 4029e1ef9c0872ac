// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::kv::test {

/// A client of the server under test, as plain as possible: a blocking socket. Nothing waits for
/// longer than a limit that only ends a hang.
class Peer {
 public:
  /// A socket that is not yet connected.
  Peer();
  explicit Peer(std::uint16_t port) : Peer() { connect(port); }
  Peer(Peer&& other) noexcept;
  Peer& operator=(Peer&&) = delete;
  ~Peer();

  void connect(std::uint16_t port) const;
  /// Small buffers, before connecting, so that a side that does not read is soon felt.
  void keep_buffers_small() const;
  void send(std::string_view bytes) const;
  /// As much as goes out now; 0: nothing, for as long as `patience_ms`; -1: the connection is gone.
  [[nodiscard]] long send_some(std::string_view bytes, int patience_ms) const;
  void end_sending() const;
  void close();
  /// Closes so that the server sees an error, at once, and not the end of the stream.
  void reset();

  /// Exactly that many bytes; fewer at the end of the stream, or when time is over.
  [[nodiscard]] std::string receive(std::size_t bytes);
  /// Up to and with the next "\r\n".
  [[nodiscard]] std::string line();
  /// Everything until the end of the stream; `*reset` tells whether that was an error.
  [[nodiscard]] std::string rest(bool* reset = nullptr);
  /// Sends, and receives as many bytes as are expected. For EXPECT_EQ(ask(x, y), y).
  [[nodiscard]] std::string ask(std::string_view request, std::string_view expected);

 private:
  bool receive_some();

  int fd_ = -1;
  bool ended_ = false, reset_ = false;
  std::string received_;
  std::size_t at_ = 0;
};

}  // namespace sluice::kv::test
