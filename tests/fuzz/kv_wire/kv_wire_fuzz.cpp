// SPDX-License-Identifier: BSD-3-Clause
// Reads arbitrary bytes as everything that one node of sluice-kv may send to another. Nothing may
// crash or read elsewhere. A CRC is put right first, so that what lies behind it is reached.
#include <cstdint>
#include <cstring>
#include <vector>

#include "crc32c.hpp"
#include "kv/replication/wire.hpp"

using namespace sluice::kv::wire;

namespace {

void put_crc_right(std::vector<std::byte>& bytes, std::uint32_t magic) {
  if (bytes.size() < 16) return;
  std::memcpy(bytes.data(), &magic, sizeof magic);
  std::uint32_t size = 0;
  std::memcpy(&size, bytes.data() + 8, sizeof size);
  if (size < 16 || size > bytes.size()) return;
  const std::uint32_t crc = replicate::crc32c(std::span(bytes).first(size).subspan(8));
  std::memcpy(bytes.data() + 4, &crc, sizeof crc);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* const begin = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> bytes(begin, begin + size);
  (void)decode_hello(bytes);
  (void)decode_file_part(bytes);
  put_crc_right(bytes, 0x4b564d53);
  (void)decode_report(bytes);
  (void)decode_refusal(bytes);
  (void)decode_ack(bytes);
  put_crc_right(bytes, 0x4b564652);
  if (const auto frame = open_frame(bytes)) {
    (void)decode_file_part(frame->body);
    std::size_t seen = 0;
    (void)each_entry(*frame, [&](const sluice::kv::Entry& entry) -> sluice::Status {
      for (const std::byte byte : entry.payload) seen += static_cast<std::size_t>(byte);
      return {};
    });
  }
  return 0;
}
