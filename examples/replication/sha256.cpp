// SPDX-License-Identifier: BSD-3-Clause
#include "sha256.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "sluice/core/status.hpp"

namespace replicate {
namespace {
EVP_MD_CTX* as_context(void* context) noexcept {
  return static_cast<EVP_MD_CTX*>(context);
}
}  // namespace

void Sha256::Free::operator()(void* context) const noexcept {
  EVP_MD_CTX_free(as_context(context));
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  SLUICE_CHECK(context_ != nullptr, "OpenSSL gave no digest context");
  SLUICE_CHECK(EVP_DigestInit_ex(as_context(context_.get()), EVP_sha256(), nullptr) == 1,
               "this OpenSSL has no SHA-256");
}

void Sha256::update(std::span<const std::byte> data) noexcept {
  SLUICE_CHECK(EVP_DigestUpdate(as_context(context_.get()), data.data(), data.size()) == 1,
               "EVP_DigestUpdate failed");
}

Digest Sha256::finish() noexcept {
  Digest digest{};
  SLUICE_CHECK(EVP_DigestFinal_ex(as_context(context_.get()),
                                  reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1,
               "EVP_DigestFinal_ex failed");
  return digest;
}

std::string to_hex(const Digest& digest) {
  std::string hex;
  for (const std::byte byte : digest) hex += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return hex;
}

}  // namespace replicate
