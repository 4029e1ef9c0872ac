// SPDX-License-Identifier: BSD-3-Clause
#include "kv/replication/wire.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "crc32c.hpp"

namespace sluice::kv::wire {
namespace {

static_assert(
    std::endian::native == std::endian::little,
    "numbers are copied as they are: on another machine put() and get() have to turn them");

constexpr std::uint32_t kHelloMagic = 0x4b56484c;
constexpr std::uint32_t kMessageMagic = 0x4b564d53;
constexpr std::uint32_t kFrameMagic = 0x4b564652;
constexpr std::size_t kMessageHeaderBytes = 16;

template <typename T>
void put(std::span<std::byte> out, std::size_t at, T value) noexcept {
  std::memcpy(out.data() + at, &value, sizeof value);
}
template <typename T>
[[nodiscard]] T get(std::span<const std::byte> in, std::size_t at) noexcept {
  T value;
  std::memcpy(&value, in.data() + at, sizeof value);
  return value;
}

/// Writes fields behind each other.
class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) noexcept : out_(out) {}
  template <typename T>
  Writer& operator<<(T value) {
    const std::size_t at = out_.size();
    out_.resize(at + sizeof value);
    put(std::span(out_), at, value);
    return *this;
  }
  Writer& bytes(std::span<const std::byte> bytes) {
    *this << static_cast<std::uint32_t>(bytes.size());
    out_.insert(out_.end(), bytes.begin(), bytes.end());
    return *this;
  }

 private:
  std::vector<std::byte>& out_;
};

/// Reads them; what is not there is 0 and remembered.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) noexcept : in_(in) {}
  template <typename T>
  T next() noexcept {
    if (in_.size() < sizeof(T)) {
      short_ = true;
      return T{};
    }
    const T value = get<T>(in_, 0);
    in_ = in_.subspan(sizeof(T));
    return value;
  }
  std::span<const std::byte> bytes(std::size_t most) noexcept {
    const auto size = next<std::uint32_t>();
    if (size > most || size > in_.size()) {
      short_ = true;
      return {};
    }
    const auto found = in_.first(size);
    in_ = in_.subspan(size);
    return found;
  }
  [[nodiscard]] bool complete() const noexcept { return !short_ && in_.empty(); }

 private:
  std::span<const std::byte> in_;
  bool short_ = false;
};

Status damaged(const char* what) {
  return {StatusCode::io_error, what};
}

std::span<const std::byte> bytes_of(std::string_view text) noexcept {
  return std::as_bytes(std::span(text));
}
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// In front: magic, CRC-32C of what follows, length, kind, version.
void seal_message(MessageKind kind, std::span<std::byte> message) noexcept {
  put(message, 0, kMessageMagic);
  put(message, 8, static_cast<std::uint32_t>(message.size()));
  put(message, 12, static_cast<std::uint16_t>(kind));
  put(message, 14, kVersion);
  put(message, 4, replicate::crc32c(message.subspan(8)));
}

[[nodiscard]] Result<std::span<const std::byte>> body_of(std::span<const std::byte> message,
                                                         MessageKind kind) {
  const auto found = kind_of(message);
  if (!found) return found.status();
  if (*found != kind) return damaged("a message of another kind");
  return message.first(get<std::uint32_t>(message, 8)).subspan(kMessageHeaderBytes);
}

}  // namespace

std::vector<std::byte> encode(const Hello& hello) {
  SLUICE_CHECK(hello.node.size() <= kNodeBytesMax, "a node's id is too long for a Hello");
  std::vector<std::byte> out;
  Writer(out) << kHelloMagic << std::uint32_t{kVersion} << hello.cluster << hello.epoch;
  Writer(out).bytes(bytes_of(hello.node));
  return out;
}

Result<Hello> decode_hello(std::span<const std::byte> bytes) {
  Reader in(bytes);
  if (in.next<std::uint32_t>() != kHelloMagic)
    return Status(StatusCode::rejected, "it is no node of sluice-kv");
  if (const auto version = in.next<std::uint32_t>(); version != kVersion)
    return Status(StatusCode::not_supported,
                  "it speaks version " + std::to_string(version) + " of the protocol, this node " +
                      std::to_string(kVersion) + ": run the same version on both");
  Hello hello;
  hello.cluster = in.next<std::uint64_t>();
  hello.epoch = in.next<std::uint64_t>();
  hello.node = text_of(in.bytes(kNodeBytesMax));
  if (hello.epoch == 0 || hello.node.empty())
    return Status(StatusCode::rejected, "its greeting is cut short");
  return hello;
}

std::vector<std::byte> encode(const Report& report) {
  std::vector<std::byte> out(kMessageHeaderBytes);
  Writer to(out);
  to << report.first_index << report.last_index << report.last_epoch << report.durable_index
     << report.applied_index << report.applied_epoch << report.ring_bytes << report.frames_max
     << static_cast<std::uint32_t>(report.rebuilding)
     << static_cast<std::uint32_t>(report.runs.size());
  for (const Run& run : report.runs) to << run.epoch << run.last_index;
  to.bytes(report.ring);
  SLUICE_CHECK(out.size() <= kMessageBytesMax, "a report is longer than a message");
  seal_message(MessageKind::report, out);
  return out;
}

std::vector<std::byte> encode(const Refusal& refusal) {
  constexpr std::size_t kTextMax = 400;
  std::vector<std::byte> out(kMessageHeaderBytes);
  Writer to(out);
  to << refusal.promised_epoch;
  to.bytes(bytes_of(std::string_view(refusal.why).substr(0, kTextMax)));
  seal_message(MessageKind::refusal, out);
  return out;
}

std::vector<std::byte> encode(const Fetched& fetched) {
  std::vector<std::byte> out(kMessageHeaderBytes);
  Writer(out) << fetched.offset << fetched.bytes;
  seal_message(MessageKind::fetched, out);
  return out;
}

std::size_t encode(const Ack& ack, std::span<std::byte> out) noexcept {
  constexpr std::size_t kBytes = kMessageHeaderBytes + 5 * sizeof(std::uint64_t);
  static_assert(kBytes <= kAckBytes);
  const auto message = out.first(kBytes);
  std::size_t at = kMessageHeaderBytes;
  for (const std::uint64_t value :
       {ack.memory, ack.durable, ack.applied, ack.consumed, ack.frames}) {
    put(message, at, value);
    at += sizeof value;
  }
  seal_message(MessageKind::ack, message);
  return kBytes;
}

Result<MessageKind> kind_of(std::span<const std::byte> message) {
  if (message.size() < kMessageHeaderBytes) return damaged("a message that is cut short");
  if (get<std::uint32_t>(message, 0) != kMessageMagic)
    return damaged("something that is no message");
  const auto bytes = get<std::uint32_t>(message, 8);
  if (bytes < kMessageHeaderBytes || bytes > message.size())
    return damaged("a message that is cut short");
  if (get<std::uint32_t>(message, 4) != replicate::crc32c(message.first(bytes).subspan(8)))
    return damaged("a message whose CRC is wrong");
  if (get<std::uint16_t>(message, 14) != kVersion)
    return Status(StatusCode::not_supported, "a message of another version");
  const auto kind = get<std::uint16_t>(message, 12);
  if (kind < 1 || kind > 4) return damaged("a message of an unknown kind");
  return static_cast<MessageKind>(kind);
}

Result<Report> decode_report(std::span<const std::byte> message) {
  const auto body = body_of(message, MessageKind::report);
  if (!body) return body.status();
  Reader in(*body);
  Report report;
  report.first_index = in.next<std::uint64_t>();
  report.last_index = in.next<std::uint64_t>();
  report.last_epoch = in.next<std::uint64_t>();
  report.durable_index = in.next<std::uint64_t>();
  report.applied_index = in.next<std::uint64_t>();
  report.applied_epoch = in.next<std::uint64_t>();
  report.ring_bytes = in.next<std::uint64_t>();
  report.frames_max = in.next<std::uint32_t>();
  report.rebuilding = in.next<std::uint32_t>() != 0;
  const auto runs = in.next<std::uint32_t>();
  if (runs > Report::kRunsMax) return damaged("a report with too many epochs");
  for (std::uint32_t i = 0; i < runs; ++i) {
    const auto epoch = in.next<std::uint64_t>();
    report.runs.push_back({epoch, in.next<std::uint64_t>()});
  }
  const auto ring = in.bytes(Report::kDescriptorMax);
  report.ring.assign(ring.begin(), ring.end());
  if (!in.complete()) return damaged("a report that is cut short");
  return report;
}

Result<Refusal> decode_refusal(std::span<const std::byte> message) {
  const auto body = body_of(message, MessageKind::refusal);
  if (!body) return body.status();
  Reader in(*body);
  Refusal refusal;
  refusal.promised_epoch = in.next<std::uint64_t>();
  refusal.why = text_of(in.bytes(kMessageBytesMax));
  if (!in.complete()) return damaged("a refusal that is cut short");
  return refusal;
}

Result<Fetched> decode_fetched(std::span<const std::byte> message) {
  const auto body = body_of(message, MessageKind::fetched);
  if (!body) return body.status();
  Reader in(*body);
  Fetched fetched;
  fetched.offset = in.next<std::uint64_t>();
  fetched.bytes = in.next<std::uint64_t>();
  if (!in.complete()) return damaged("an answer to a fetch that is cut short");
  return fetched;
}

Result<Ack> decode_ack(std::span<const std::byte> message) {
  const auto body = body_of(message, MessageKind::ack);
  if (!body) return body.status();
  Reader in(*body);
  Ack ack;
  ack.memory = in.next<std::uint64_t>();
  ack.durable = in.next<std::uint64_t>();
  ack.applied = in.next<std::uint64_t>();
  ack.consumed = in.next<std::uint64_t>();
  ack.frames = in.next<std::uint64_t>();
  if (!in.complete()) return damaged("an acknowledgement that is cut short");
  return ack;
}

// --- frames --------------------------------------------------------------------------------------

void put_entry(const Entry& entry, std::span<std::byte> out) noexcept {
  put(out, 0, entry.epoch);
  put(out, 8, entry.index);
  put(out, 16, entry.previous_epoch);
  put(out, 24, static_cast<std::uint32_t>(entry.payload.size()));
  put(out, 28, std::uint32_t{0});
  if (!entry.payload.empty())
    std::memcpy(out.data() + kEntryHeaderBytes, entry.payload.data(), entry.payload.size());
  const std::size_t filled = kEntryHeaderBytes + entry.payload.size();
  std::memset(out.data() + filled, 0, entry_bytes(entry.payload.size()) - filled);
}

void seal(const FrameHeader& header, std::span<std::byte> frame) noexcept {
  put(frame, 0, kFrameMagic);
  put(frame, 8, header.bytes);
  put(frame, 12, header.count);
  put(frame, 16, static_cast<std::uint16_t>(header.kind));
  put(frame, 18, kVersion);
  put(frame, 20, std::uint32_t{0});
  put(frame, 24, header.epoch);
  put(frame, 32, header.position);
  put(frame, 40, header.commit);
  put(frame, 48, header.disk);
  put(frame, 56, header.first_index);
  put(frame, 64, header.previous_epoch);
  put(frame, 4, replicate::crc32c(frame.first(header.bytes).subspan(8)));
}

Result<Frame> open_frame(std::span<const std::byte> at) {
  if (at.size() < FrameHeader::kBytes) return damaged("a frame that does not fit into the ring");
  if (get<std::uint32_t>(at, 0) != kFrameMagic) return damaged("something that is no frame");
  Frame frame;
  FrameHeader& header = frame.header;
  header.bytes = get<std::uint32_t>(at, 8);
  if (header.bytes < FrameHeader::kBytes || header.bytes > at.size())
    return damaged("a frame that does not fit into the ring");
  if (get<std::uint32_t>(at, 4) != replicate::crc32c(at.first(header.bytes).subspan(8)))
    return damaged("a frame whose CRC is wrong");
  if (get<std::uint16_t>(at, 18) != kVersion)
    return Status(StatusCode::not_supported, "a frame of another version");
  const auto kind = get<std::uint16_t>(at, 16);
  if (kind < 1 || kind > 5) return damaged("a frame of an unknown kind");
  header.kind = static_cast<FrameKind>(kind);
  header.count = get<std::uint32_t>(at, 12);
  header.epoch = get<std::uint64_t>(at, 24);
  header.position = get<std::uint64_t>(at, 32);
  header.commit = get<std::uint64_t>(at, 40);
  header.disk = get<std::uint64_t>(at, 48);
  header.first_index = get<std::uint64_t>(at, 56);
  header.previous_epoch = get<std::uint64_t>(at, 64);
  frame.body = at.first(header.bytes).subspan(FrameHeader::kBytes);
  return frame;
}

Status each_entry(const Frame& frame, const std::function<Status(const Entry&)>& sink) {
  std::span<const std::byte> rest = frame.body;
  for (std::uint32_t i = 0; i < frame.header.count; ++i) {
    if (rest.size() < kEntryHeaderBytes) return damaged("a frame with fewer entries than it says");
    const auto bytes = get<std::uint32_t>(rest, 24);
    if (bytes > rest.size() || entry_bytes(bytes) > rest.size())
      return damaged("a frame with fewer entries than it says");
    const Entry entry{.epoch = get<std::uint64_t>(rest, 0),
                      .index = get<std::uint64_t>(rest, 8),
                      .previous_epoch = get<std::uint64_t>(rest, 16),
                      .payload = rest.subspan(kEntryHeaderBytes, bytes)};
    if (entry.index != frame.header.first_index + i)
      return damaged("a frame whose entries do not follow each other");
    SLUICE_RETURN_IF_ERROR(sink(entry));
    rest = rest.subspan(entry_bytes(bytes));
  }
  return {};
}

void put_file_part_header(std::uint32_t file, std::uint64_t offset,
                          std::span<std::byte> out) noexcept {
  put(out, 0, file);
  put(out, 4, std::uint32_t{0});
  put(out, 8, offset);
}

Result<FilePart> decode_file_part(std::span<const std::byte> body) {
  if (body.size() < FilePart::kHeaderBytes) return damaged("a part of a file that is cut short");
  return FilePart{.file = get<std::uint32_t>(body, 0),
                  .offset = get<std::uint64_t>(body, 8),
                  .bytes = body.subspan(FilePart::kHeaderBytes)};
}

std::uint64_t hash_of(std::string_view name) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash == 0 ? 1 : hash;
}

}  // namespace sluice::kv::wire
