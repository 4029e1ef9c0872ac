// SPDX-License-Identifier: BSD-3-Clause
#include "protocol.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <cstring>

#include "crc32c.hpp"
#include "sluice/core/status.hpp"

namespace replicate {
namespace {

constexpr std::uint32_t kHelloMagic = 0x48524c53;    // "SLRH"
constexpr std::uint32_t kWelcomeMagic = 0x57524c53;  // "SLRW"
constexpr std::uint32_t kFrameMagic = 0x46524c53;    // "SLRF"
constexpr std::size_t kCrcAt = FrameHeader::kBytes - 4;

/// Puts values one after the other into a buffer that is known to be long enough.
class Writer {
 public:
  explicit Writer(std::span<std::byte> out) noexcept : out_(out) {}
  template <std::unsigned_integral T>
  Writer& put(T value) noexcept {
    for (std::size_t i = 0; i < sizeof value; ++i)
      out_[at_++] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i));
    return *this;
  }
  Writer& put(std::span<const std::byte> bytes) noexcept {
    std::ranges::copy(bytes, out_.begin() + static_cast<std::ptrdiff_t>(at_));
    at_ += bytes.size();
    return *this;
  }

 private:
  std::span<std::byte> out_;
  std::size_t at_ = 0;
};

/// Takes values out of a buffer; the caller has checked its size.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) noexcept : in_(in) {}
  template <std::unsigned_integral T>
  Reader& get(T& value) noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < sizeof value; ++i)
      sum |= std::to_integer<std::uint64_t>(in_[at_++]) << (8 * i);
    value = static_cast<T>(sum);
    return *this;
  }
  Reader& get(std::span<std::byte> bytes) noexcept {
    std::ranges::copy(in_.subspan(at_, bytes.size()), bytes.begin());
    at_ += bytes.size();
    return *this;
  }

 private:
  std::span<const std::byte> in_;
  std::size_t at_ = 0;
};

/// What is wrong with the front of some private data; empty: nothing.
std::string check_private_data(std::span<const std::byte> data, std::size_t bytes,
                               std::uint32_t magic) {
  if (data.size() < bytes)
    return fmt::format("its private data has {} bytes, not {}", data.size(), bytes);
  std::uint32_t got_magic;
  std::uint16_t version;
  Reader(data).get(got_magic).get(version);
  if (got_magic != magic)
    return fmt::format("its private data starts with {:#010x}, not {:#010x}: no sluice-replicate",
                       got_magic, magic);
  if (version != kProtocolVersion)
    return fmt::format("it speaks version {} of the protocol, this program version {}", version,
                       kProtocolVersion);
  return {};
}

}  // namespace

std::array<std::byte, Hello::kBytes> encode(const Hello& hello) noexcept {
  std::array<std::byte, Hello::kBytes> out{};
  Writer(out)
      .put(kHelloMagic)
      .put(kProtocolVersion)
      .put(hello.replica)
      .put(hello.session)
      .put(hello.connection)
      .put(hello.connections)
      .put(hello.record_size);
  return out;
}

Decoded<Hello> decode_hello(std::span<const std::byte> private_data) {
  if (auto wrong = check_private_data(private_data, Hello::kBytes, kHelloMagic); !wrong.empty())
    return {std::nullopt, wrong};
  Hello hello;
  Reader(private_data.subspan(6))
      .get(hello.replica)
      .get(hello.session)
      .get(hello.connection)
      .get(hello.connections)
      .get(hello.record_size);
  if (hello.session == 0) return {std::nullopt, "its session is 0"};
  if (hello.connection >= hello.connections)
    return {std::nullopt, fmt::format("it calls itself connection {} of {}", hello.connection,
                                      hello.connections)};
  if (hello.record_size == 0) return {std::nullopt, "its records have 0 bytes"};
  return {hello, {}};
}

std::array<std::byte, Welcome::kBytes> encode(const Welcome& welcome) noexcept {
  std::array<std::byte, Welcome::kBytes> out{};
  Writer(out)
      .put(kWelcomeMagic)
      .put(kProtocolVersion)
      .put(std::uint16_t{0})
      .put(welcome.receive_depth)
      .put(welcome.record_size_max);
  return out;
}

Decoded<Welcome> decode_welcome(std::span<const std::byte> private_data) {
  if (auto wrong = check_private_data(private_data, Welcome::kBytes, kWelcomeMagic); !wrong.empty())
    return {std::nullopt, wrong};
  Welcome welcome;
  Reader(private_data.subspan(8)).get(welcome.receive_depth).get(welcome.record_size_max);
  return {welcome, {}};
}

void seal_frame(std::span<std::byte> frame, const FrameHeader& header) noexcept {
  SLUICE_CHECK(frame.size() == FrameHeader::kBytes + header.length,
               "seal_frame: the frame is not as long as its header says");
  Writer(frame)
      .put(kFrameMagic)
      .put(kProtocolVersion)
      .put(static_cast<std::uint16_t>(header.kind))
      .put(header.session)
      .put(header.number)
      .put(header.length);
  const std::uint32_t crc = crc32c(frame.subspan(FrameHeader::kBytes), crc32c(frame.first(kCrcAt)));
  Writer(frame.subspan(kCrcAt)).put(crc);
}

std::string_view to_string(FrameError error) noexcept {
  using enum FrameError;
  switch (error) {
    case none: return "nothing wrong";
    case too_short: return "shorter than a header";
    case bad_magic: return "wrong magic number";
    case bad_version: return "wrong protocol version";
    case bad_kind: return "unknown kind";
    case wrong_session: return "of another session";
    case bad_length: return "its length is not the one in its header";
    case bad_crc: return "CRC32C mismatch";
  }
  return "?";
}

Frame open_frame(std::span<const std::byte> message, std::uint64_t session) noexcept {
  Frame frame;
  if (message.size() < FrameHeader::kBytes) return frame;  // too_short
  std::uint32_t magic, crc;
  std::uint16_t version, kind;
  Reader(message)
      .get(magic)
      .get(version)
      .get(kind)
      .get(frame.header.session)
      .get(frame.header.number)
      .get(frame.header.length)
      .get(crc);
  frame.header.kind = static_cast<FrameKind>(kind);
  const auto payload = message.subspan(FrameHeader::kBytes);
  frame.error = [&] {
    if (magic != kFrameMagic) return FrameError::bad_magic;
    if (version != kProtocolVersion) return FrameError::bad_version;
    if (kind < 1 || kind > 4) return FrameError::bad_kind;
    if (frame.header.length != payload.size()) return FrameError::bad_length;
    if (crc32c(payload, crc32c(message.first(kCrcAt))) != crc) return FrameError::bad_crc;
    if (frame.header.session != session) return FrameError::wrong_session;
    return FrameError::none;
  }();
  if (frame.ok()) frame.payload = payload;
  return frame;
}

void encode(const EndOfStream& end, std::span<std::byte, EndOfStream::kBytes> out) noexcept {
  Writer(out).put(end.bytes).put(end.digest);
}

std::optional<EndOfStream> decode_end(std::span<const std::byte> payload) noexcept {
  if (payload.size() != EndOfStream::kBytes) return std::nullopt;
  EndOfStream end;
  Reader(payload).get(end.bytes).get(end.digest);
  return end;
}

void Report::set_why(std::string_view why) noexcept {
  text_size = static_cast<std::uint16_t>(std::min(why.size(), kTextMax));
  std::memcpy(text.data(), why.data(), text_size);
}

void encode(const Report& report, std::span<std::byte, Report::kBytes> out) noexcept {
  const Load& load = report.load;
  Writer writer(out);
  writer.put(static_cast<std::uint8_t>(report.outcome))
      .put(static_cast<std::uint8_t>(load.workers))
      .put(report.text_size)
      .put(report.bytes)
      .put(report.digest)
      .put(load.polls)
      .put(load.empty_polls)
      .put(load.sleeps)
      .put(load.wakes)
      .put(load.worker_wakes)
      .put(load.completions);
  for (const std::uint64_t handled : load.handled) writer.put(handled);
  writer.put(std::as_bytes(std::span(report.text)));
}

std::optional<Report> decode_report(std::span<const std::byte> payload) noexcept {
  if (payload.size() != Report::kBytes) return std::nullopt;
  Report report;
  Load& load = report.load;
  std::uint8_t outcome, workers;
  Reader reader(payload);
  reader.get(outcome)
      .get(workers)
      .get(report.text_size)
      .get(report.bytes)
      .get(report.digest)
      .get(load.polls)
      .get(load.empty_polls)
      .get(load.sleeps)
      .get(load.wakes)
      .get(load.worker_wakes)
      .get(load.completions);
  for (std::uint64_t& handled : load.handled) reader.get(handled);
  reader.get(std::as_writable_bytes(std::span(report.text)));
  if (outcome < 1 || outcome > 3 || workers > Load::kWorkersMax ||
      report.text_size > Report::kTextMax)
    return std::nullopt;
  report.outcome = static_cast<Report::Outcome>(outcome);
  load.workers = workers;
  // It goes to a terminal: whatever the other side sent, it stays one line of text.
  for (char& c : std::span(report.text).first(report.text_size))
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return report;
}

}  // namespace replicate
