// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <string>

#include "resp/command_handler.hpp"
#include "resp/request_parser.hpp"
#include "resp/socket.hpp"
#include "sluice/core/cacheline.hpp"

namespace sluice::kv {

class IoThread;
struct Client;

/// A request that has no reply yet, or one whose reply waits for those before it. It belongs to its
/// I/O thread, which lends its second half to the holder of the ticket.
struct PendingReply {
  // The I/O thread's.
  alignas(kCacheLine) IoThread* home = nullptr;
  Client* client = nullptr;      ///< none: the connection has gone meanwhile
  PendingReply* next = nullptr;  ///< in its client's line, or among the free ones
  bool done = false;
  // The ticket holder's, until it is handed back.
  alignas(kCacheLine) PendingReply* next_returned = nullptr;
  std::string bytes;
};
static_assert(offsetof(PendingReply, next_returned) % kCacheLine == 0 &&
              offsetof(PendingReply, next_returned) >= offsetof(PendingReply, done) + 1);

/// A connection, as its I/O thread keeps it. Threads: that one.
/// Memory: some 400 bytes, 1.2 KiB after small requests (measured), and buffers of up to 16 KiB
/// that are kept after larger ones.
struct Client {
  enum class Phase : std::uint8_t {
    open,       ///< requests are taken
    closing,    ///< none any more; what was asked is answered, then -> lingering. Moved on by a
                ///< QUIT, a malformed request, the peer's end of sending, the server's stop
    lingering,  ///< all is sent, and the end of it; what still comes is thrown away, because
                ///< closing a socket with unread bytes would destroy the replies on their way ->
                ///< gone
    gone,       ///< closed; freed at the end of the round
  };
  /// Where it waits until it may go on with requests that have arrived.
  enum class Stalled : std::uint8_t {
    no,
    by_itself,  ///< too many requests or bytes of its own; it goes on when they are sent
    starved,    ///< no PendingReply was free: in IoThread::starved_
    resuming,   ///< in IoThread::resuming_
  };

  Client(int socket, const RequestLimits& limits) : fd(socket), parser(limits) {}

  [[nodiscard]] std::size_t unsent_bytes() const noexcept { return out.size() - out_at; }
  /// Replies that take memory because the client, or an earlier request, is slow.
  [[nodiscard]] std::size_t output_bytes() const noexcept { return unsent_bytes() + held_bytes; }

  Descriptor fd;
  Phase phase = Phase::open;
  Stalled stalled = Stalled::no;
  bool reading = true;   ///< registered for reading
  bool writing = false;  ///< registered for writing: the socket is full
  bool dirty = false;    ///< in IoThread::dirty_
  bool at_end = false;   ///< the peer has sent its last byte
  ConnectionState state;
  RequestParser parser;
  std::size_t input_bytes = 0;    ///< the parser's memory, as far as IoThread::input_bytes_ has it
  PendingReply* first = nullptr;  ///< the oldest request without a sent reply
  PendingReply* last = nullptr;
  std::size_t in_line = 0;     ///< how many from first to last
  std::size_t held_bytes = 0;  ///< replies among them that are there already
  std::string out;             ///< replies in order; those before out_at are sent
  std::size_t out_at = 0;
  std::size_t index = 0;                      ///< in IoThread::clients_
  std::list<Client*>::iterator linger_place;  ///< in IoThread::lingering_
  std::chrono::steady_clock::time_point linger_end;
};

}  // namespace sluice::kv
