// SPDX-License-Identifier: BSD-3-Clause
#include "kv/cluster/base64.hpp"

#include <openssl/evp.h>

#include <climits>

#include "sluice/core/status.hpp"

namespace sluice::kv {
namespace {

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}
unsigned char* bytes_of(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}

}  // namespace

std::string base64_encode(std::string_view bytes) {
  SLUICE_CHECK(bytes.size() <= INT_MAX / 2, "more bytes than base64_encode() takes");
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // OpenSSL ends it with a zero byte
  const int length =
      EVP_EncodeBlock(bytes_of(text), bytes_of(bytes), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

std::optional<std::string> base64_decode(std::string_view text) {
  if (text.size() % 4 != 0 || text.size() > INT_MAX / 2) return std::nullopt;
  std::string bytes(text.size() / 4 * 3, '\0');
  const int length =
      EVP_DecodeBlock(bytes_of(bytes), bytes_of(text), static_cast<int>(text.size()));
  if (length < 0 || static_cast<std::size_t>(length) != bytes.size()) return std::nullopt;
  std::size_t padding = 0;  // OpenSSL counts it as zero bytes
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  bytes.resize(bytes.size() - padding);
  // OpenSSL takes white space and stray bits; what was encoded has neither.
  if (base64_encode(bytes) != text) return std::nullopt;
  return bytes;
}

}  // namespace sluice::kv
